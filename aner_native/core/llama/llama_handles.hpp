// The engine's objects as owned values. In a forked child they are abandoned, not freed: their threads did not come along.
#pragma once

#include "../process_guard.hpp"

#include "llama.h"

#include <memory>

namespace aner {

template <typename T, void (*Free)(T *)>
struct GuardedDelete {
    ProcessGuard guard;
    void operator()(T * object) const noexcept {
        if (!guard.foreign()) {
            Free(object);
        }
    }
};

using LlamaModelPtr = std::unique_ptr<llama_model, GuardedDelete<llama_model, llama_model_free>>;
using LlamaContextPtr = std::unique_ptr<llama_context, GuardedDelete<llama_context, llama_free>>;
using LlamaAdapterPtr = std::unique_ptr<llama_adapter_lora, GuardedDelete<llama_adapter_lora, llama_adapter_lora_free>>;
using LlamaBatchPtr = std::unique_ptr<llama_batch_ext, GuardedDelete<llama_batch_ext, llama_batch_ext_free>>;

}  // namespace aner

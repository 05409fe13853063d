// The engine's objects as owned values. In a forked child they are abandoned, not freed: their threads did not come along.
#pragma once

#include "../process_guard.hpp"

#include "llama.h"

#include <memory>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

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

// A load leaves freed memory behind in the heaps of the threads that it ran on: without the trim it looks like a leak.
inline void free_model(llama_model * model) noexcept {
    llama_model_free(model);
#if defined(__GLIBC__)
    malloc_trim(0);
#endif
}

using LlamaModelPtr = std::unique_ptr<llama_model, GuardedDelete<llama_model, free_model>>;
using LlamaContextPtr = std::unique_ptr<llama_context, GuardedDelete<llama_context, llama_free>>;
using LlamaAdapterPtr = std::unique_ptr<llama_adapter_lora, GuardedDelete<llama_adapter_lora, llama_adapter_lora_free>>;
using LlamaBatchPtr = std::unique_ptr<llama_batch_ext, GuardedDelete<llama_batch_ext, llama_batch_ext_free>>;

}  // namespace aner

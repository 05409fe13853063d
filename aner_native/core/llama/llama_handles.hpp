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

// Large freed blocks stay in the heaps of the threads that made them: without the trim it looks like a leak.
inline void give_memory_back() noexcept {
#if defined(__GLIBC__)
    malloc_trim(0);
#endif
}

inline void free_model(llama_model * model) noexcept {
    llama_model_free(model);
    give_memory_back();
}

inline void free_context(llama_context * context) noexcept {
    llama_free(context);
    give_memory_back();
}

using LlamaModelPtr = std::unique_ptr<llama_model, GuardedDelete<llama_model, free_model>>;
using LlamaContextPtr = std::unique_ptr<llama_context, GuardedDelete<llama_context, free_context>>;
using LlamaAdapterPtr = std::unique_ptr<llama_adapter_lora, GuardedDelete<llama_adapter_lora, llama_adapter_lora_free>>;
using LlamaBatchPtr = std::unique_ptr<llama_batch_ext, GuardedDelete<llama_batch_ext, llama_batch_ext_free>>;

}  // namespace aner

#include "large_stack.hpp"

#include "../host_memory.hpp"

#include <pthread.h>

#include <cstdint>
#include <string>

namespace aner {

namespace {

constexpr std::size_t k_base_stack = 8U << 20;
constexpr std::size_t k_stack_per_byte = 1024;   // measured: at most 290 a character with GCC 12, over all pre-tokenizers
constexpr std::size_t k_granule = 64U << 10;     // some systems want whole pages
constexpr std::size_t k_unchecked = 256U << 20;  // address space that is not worth a look at the memory

void * enter(void * work) {
    (*static_cast<const std::function<void()> *>(work))();
    return nullptr;
}

Error no_stack(std::size_t n_bytes, std::size_t stack, const std::string & why) noexcept {
    return Error{ErrorCode::out_of_memory, "a text of " + std::to_string(n_bytes) + " bytes may need " + std::to_string(stack >> 20) +
                                               " MiB to be tokenized by this model, " + why + ": shorten it"};
}

}  // namespace

Error run_with_stack_for(std::size_t n_bytes, const std::function<void()> & work) noexcept {
    const std::size_t needed = k_base_stack + n_bytes * k_stack_per_byte;
    const std::size_t stack = (needed + k_granule - 1) / k_granule * k_granule;
    if (stack > k_unchecked) {
        const std::int64_t available = available_memory();
        if (available >= 0 && stack > static_cast<std::size_t>(available)) {
            return no_stack(n_bytes, stack, "and " + std::to_string(available >> 20) + " MiB are available");
        }
    }
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_t thread;
    const bool started = pthread_attr_setstacksize(&attributes, stack) == 0 &&
                         pthread_create(&thread, &attributes, enter, const_cast<std::function<void()> *>(&work)) == 0;
    pthread_attr_destroy(&attributes);
    if (!started) {
        return no_stack(n_bytes, stack, "and the system grants no such stack");
    }
    pthread_join(thread, nullptr);
    return {};
}

}  // namespace aner

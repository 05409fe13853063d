#include "large_stack.hpp"

#include "../host_memory.hpp"

#include <pthread.h>

#include <cstdint>
#include <string>

namespace aner {

namespace {

constexpr std::size_t k_base_stack = 8U << 20;
constexpr std::size_t k_stack_per_byte = 1024;   // measured: 270 a character with GCC 12, whatever the pre-tokenizer
constexpr std::size_t k_memory_per_byte = 512;   // of a text that is one match: the stack it touches and the engine's copies
constexpr std::size_t k_granule = 64U << 10;     // some systems want whole pages
constexpr std::size_t k_unchecked = 128U << 20;  // memory that is not worth a look at what is available

void * enter(void * work) {
    (*static_cast<const std::function<void()> *>(work))();
    return nullptr;
}

Error no_memory(std::size_t n_bytes, std::size_t needed, const std::string & why) {
    return Error{ErrorCode::out_of_memory, "a text of " + std::to_string(n_bytes) + " bytes may take " + std::to_string(needed >> 20) +
                                               " MiB to be tokenized by this model, and " + why + ": shorten it"};
}

}  // namespace

Error run_with_stack_for(std::size_t n_bytes, const std::function<void()> & work) {
    const std::size_t memory = n_bytes * k_memory_per_byte;
    if (memory > k_unchecked) {
        const std::int64_t available = available_memory();
        if (available >= 0 && memory > static_cast<std::size_t>(available)) {
            return no_memory(n_bytes, memory, std::to_string(available >> 20) + " MiB are available");
        }
    }
    const std::size_t stack = (k_base_stack + n_bytes * k_stack_per_byte + k_granule - 1) / k_granule * k_granule;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_t thread;
    const bool started = pthread_attr_setstacksize(&attributes, stack) == 0 &&
                         pthread_create(&thread, &attributes, enter, const_cast<std::function<void()> *>(&work)) == 0;
    pthread_attr_destroy(&attributes);
    if (!started) {
        return no_memory(n_bytes, stack, "the system grants no such stack");
    }
    pthread_join(thread, nullptr);
    return {};
}

}  // namespace aner

#include "large_stack.hpp"

#include <pthread.h>

#include <string>

namespace aner {

namespace {

constexpr std::size_t k_base_stack = 8U << 20;
constexpr std::size_t k_stack_per_character = 1024;    // measured: below 600 bytes with libstdc++'s executor
constexpr std::size_t k_max_run = 8U << 20;            // 8 GiB of address space, of which only the touched part is memory

void * enter(void * work) {
    (*static_cast<const std::function<void()> *>(work))();
    return nullptr;
}

}  // namespace

Error run_with_stack_for(std::size_t run, const std::function<void()> & work) noexcept {
    if (run > k_max_run) {
        return Error{ErrorCode::invalid_request, "the text has a run of " + std::to_string(run) +
                                                     " bytes without a word boundary: at most " + std::to_string(k_max_run) +
                                                     " can be tokenized"};
    }
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, k_base_stack + run * k_stack_per_character);
    pthread_t thread;
    const int failed = pthread_create(&thread, &attributes, enter, const_cast<std::function<void()> *>(&work));
    pthread_attr_destroy(&attributes);
    if (failed != 0) {
        return Error{ErrorCode::out_of_memory, "no stack for a text with a run of " + std::to_string(run) +
                                                   " bytes without a word boundary"};
    }
    pthread_join(thread, nullptr);
    return {};
}

}  // namespace aner

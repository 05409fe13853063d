#include "process_guard.hpp"

#include <atomic>

#if !defined(_WIN32)
#include <pthread.h>
#endif

namespace aner {

namespace {

std::atomic<std::uint64_t> forks{0};

}  // namespace

std::uint64_t fork_generation() noexcept {
#if !defined(_WIN32)
    static const int installed =
        pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
    (void) installed;
#endif
    return forks.load(std::memory_order_relaxed);
}

}  // namespace aner

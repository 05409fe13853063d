// Asks a request to end. Any thread may ask; the thread that runs the request looks between engine calls.
#pragma once

#include "errors.hpp"
#include "types.hpp"

#include <atomic>

namespace aner {

class Cancellation {
public:
    // `timeout` in nanoseconds from `start`; 0 or less: none.
    Cancellation(Clock::time_point start, Nanoseconds timeout) noexcept
        : start_(start), timeout_(timeout) {}

    void request() noexcept { requested_.store(true, std::memory_order_relaxed); }
    [[nodiscard]] bool requested() const noexcept { return requested_.load(std::memory_order_relaxed); }

    // Errors: cancelled, timeout.
    Error check() const noexcept {
        if (requested()) {
            return Error{ErrorCode::cancelled, "the request was cancelled"};
        }
        if (timeout_ > 0 && elapsed(start_, Clock::now()) >= timeout_) {
            return Error{ErrorCode::timeout, "the request did not finish within its timeout of " +
                                                 std::to_string(static_cast<double>(timeout_) / 1e9) + " s"};
        }
        return {};
    }

private:
    const Clock::time_point start_;
    const Nanoseconds timeout_;
    std::atomic<bool> requested_{false};
};

}  // namespace aner

// Asks a request to end. Any thread may ask; the thread that runs the request looks between engine calls.
#pragma once

#include "errors.hpp"
#include "types.hpp"

#include <atomic>
#include <new>
#include <string>

namespace aner {

class Cancellation {
public:
    // `timeout` in nanoseconds from `start`; 0 or less: none.
    Cancellation(Clock::time_point start, Nanoseconds timeout) noexcept
        : start_(start), timeout_(timeout) {}

    void request() noexcept { requested_.store(true); }
    [[nodiscard]] bool requested() const noexcept { return requested_.load(); }

    // Errors: cancelled, timeout.
    Error check() const noexcept try {
        if (requested()) {
            return error();
        }
        if (timeout_ > 0 && elapsed(start_, Clock::now()) >= timeout_) {
            return Error{ErrorCode::timeout, "the request did not finish within its timeout of " +
                                                 std::to_string(static_cast<double>(timeout_) / 1e9) + " s"};
        }
        return {};
    } catch (const std::bad_alloc &) {
        return Error{ErrorCode::timeout};
    }

    // When `check` will say timeout; the end of time where there is none.
    [[nodiscard]] Clock::time_point deadline() const noexcept {
        return timeout_ > 0 ? start_ + std::chrono::nanoseconds(timeout_) : Clock::time_point::max();
    }

    [[nodiscard]] static Error error() noexcept { return Error{ErrorCode::cancelled, "the request was cancelled"}; }

private:
    const Clock::time_point start_;
    const Nanoseconds timeout_;
    std::atomic<bool> requested_{false};
};

}  // namespace aner

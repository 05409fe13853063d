// The words that every file of core shares.
#pragma once

#include <chrono>
#include <cstdint>

namespace aner {

using Token = std::int32_t;       // an id of the model's vocabulary
using Position = std::int32_t;    // a token's place in its sequence, from 0
using SequenceId = std::int32_t;  // a slot of a context
using Nanoseconds = std::int64_t;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t k_unmeasured = -1;  // a measurement that was not made; never 0

[[nodiscard]] inline Nanoseconds elapsed(Clock::time_point from, Clock::time_point to) noexcept {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(to - from).count();
}

}  // namespace aner

// How much memory this process could still take.
#pragma once

#include <cstdint>

namespace aner {

// Bytes: the host's available memory or what the control group leaves, whichever is less; -1 where neither is known.
[[nodiscard]] std::int64_t available_memory() noexcept;

}  // namespace aner

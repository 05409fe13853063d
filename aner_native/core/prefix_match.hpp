// How much of a prompt a context already holds.
#pragma once

#include "types.hpp"

#include <algorithm>
#include <vector>

namespace aner {

// Tokens that both start with.
[[nodiscard]] inline std::int32_t common_prefix(const std::vector<Token> & a, const std::vector<Token> & b) noexcept {
    const std::size_t n = std::min(a.size(), b.size());
    return static_cast<std::int32_t>(std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(n), b.begin()).first - a.begin());
}

}  // namespace aner

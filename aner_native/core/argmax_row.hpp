// The one greedy choice: plain decoding, verification of drafts and the sampler all use it.
#pragma once

#include "errors.hpp"
#include "types.hpp"

#include <cstdint>

namespace aner {

// The index of the largest of `n` logits, the lowest index on ties. Minus infinity is a legal entry (a token that cannot come).
// Errors: invalid_output for a NaN or plus infinity anywhere, or when no entry is finite.
Result<Token> argmax_row(const float * logits, std::int32_t n) noexcept;

}  // namespace aner

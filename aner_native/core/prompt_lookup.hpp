// Proposes what comes next from an earlier occurrence of the last tokens: prompt-lookup speculation (S1).
//
// Purpose    Text that repeats its own history (quotes, code, tables) is proposed without a second model; the target verifies.
// Design     One backward pass over at most `limits::lookup_window` recent tokens finds the longest suffix, 2..8 tokens, that
//            occurred before; of equals the most recent; it stops at the first of 8. The proposal is what followed it; where that
//            reaches the end of the history it goes on copying from itself, so that a short period gives a full draft.
// Invariants Pure: history in, tokens out. No allocation, no clock. Less than 20 microseconds for 4,096 tokens, whatever they
//            are (bench/native).
// Threads    Any.
#pragma once

#include "limits.hpp"
#include "types.hpp"

#include <array>
#include <cstddef>

namespace aner {

struct Draft {
    std::array<Token, limits::max_speculative_tokens> tokens{};
    std::int32_t n_tokens = 0;      // 0: no suffix occurred before, or no room
    std::int32_t match_length = 0;  // of the suffix, 0 without a match
    std::size_t source = 0;         // index in the history of the first proposed token
};

// At most `n_wanted` tokens after `history[0, n)`.
[[nodiscard]] Draft propose_draft(const Token * history, std::size_t n, std::int32_t n_wanted) noexcept;

}  // namespace aner

// Which idle context serves a prompt. Pure: what each context holds, and the room that is left; tested by tables.
#pragma once

#include "types.hpp"

#include <cstdint>
#include <vector>

namespace aner {

struct IdlePrefix {
    std::int32_t n_retained = 0;   // tokens the context holds; 0: empty
    std::int32_t n_matching = 0;   // of those, how many the prompt starts with
    std::uint64_t last_used = 0;   // smaller: longer ago
};

constexpr std::int32_t k_new_context = -1;

// The index of the context to take, or k_new_context. `n_template`: tokens that every conversation starts with; a match that is
// not longer tells nothing. `has_room`: another context may be made and retained beside the idle ones.
//
//   a longest match beyond the template    that context; of equals, the one that loses least
//   otherwise                              an empty one; a new one while there is room; else the least recently used (P5)
[[nodiscard]] std::int32_t choose_context(const std::vector<IdlePrefix> & idle, std::int32_t n_template, bool has_room) noexcept;

}  // namespace aner

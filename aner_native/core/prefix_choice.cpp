#include "prefix_choice.hpp"

#include <algorithm>
#include <tuple>

namespace aner {

namespace {

template <typename Better>
std::int32_t best_of(const std::vector<IdlePrefix> & idle, Better better) noexcept {
    const auto best = std::min_element(idle.begin(), idle.end(), better);
    return static_cast<std::int32_t>(best - idle.begin());
}

}  // namespace

std::int32_t choose_context(const std::vector<IdlePrefix> & idle, std::int32_t n_template, bool has_room) noexcept {
    if (idle.empty()) {
        return k_new_context;
    }
    const std::int32_t longest = best_of(idle, [](const IdlePrefix & a, const IdlePrefix & b) {
        return std::tuple(-a.n_matching, a.n_retained, a.last_used) < std::tuple(-b.n_matching, b.n_retained, b.last_used);
    });
    if (idle[static_cast<std::size_t>(longest)].n_matching > n_template) {
        return longest;
    }
    const std::int32_t empty = best_of(idle, [](const IdlePrefix & a, const IdlePrefix & b) {
        return std::tuple(a.n_retained > 0, ~a.last_used) < std::tuple(b.n_retained > 0, ~b.last_used);  // its memory is warm
    });
    if (idle[static_cast<std::size_t>(empty)].n_retained == 0) {
        return empty;
    }
    if (has_room) {
        return k_new_context;
    }
    return best_of(idle, [](const IdlePrefix & a, const IdlePrefix & b) { return a.last_used < b.last_used; });
}

}  // namespace aner

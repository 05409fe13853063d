#include "prompt_lookup.hpp"

#include <algorithm>

namespace aner {

Draft propose_draft(const Token * history, std::size_t n, std::int32_t n_wanted) noexcept {
    Draft draft;
    const std::int32_t n_draft = std::min(n_wanted, limits::max_speculative_tokens);
    if (n < 2 || n_draft <= 0) {
        return draft;
    }
    constexpr auto window = static_cast<std::size_t>(limits::lookup_window);
    const std::size_t oldest = n > window ? n - window : 0;
    const Token last = history[n - 1];
    std::size_t best = limits::min_ngram - 1;  // length of the best earlier occurrence: one must be longer to count
    std::size_t best_end = n;                  // index of its last token, n: none
    for (std::size_t end = n - 1; end-- > oldest + best;) {
        // A longer one has the suffix's last token and the one before the best. Both in one branch: it is seldom taken.
        if (static_cast<int>(history[end] == last) & static_cast<int>(history[end - best] == history[n - 1 - best])) {
            std::size_t length = 1;
            while (length < limits::max_ngram && end >= oldest + length && history[end - length] == history[n - 1 - length]) {
                ++length;
            }
            if (length > best) {
                best = length;
                best_end = end;
                if (length == limits::max_ngram) {
                    break;
                }
            }
        }
    }
    if (best_end == n) {
        return draft;
    }
    draft.match_length = static_cast<std::int32_t>(best);
    draft.source = best_end + 1;
    for (std::int32_t i = 0; i < n_draft; ++i) {
        const std::size_t from = draft.source + static_cast<std::size_t>(i);
        draft.tokens[static_cast<std::size_t>(i)] = from < n ? history[from] : draft.tokens[from - n];
    }
    draft.n_tokens = n_draft;
    return draft;
}

}  // namespace aner

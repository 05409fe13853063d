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
    std::int32_t best_length = 0;
    std::size_t best_end = 0;  // index of the last token of the best earlier occurrence
    for (std::size_t end = n - 1; end-- > oldest;) {
        if (history[end] != last) {
            continue;
        }
        std::int32_t length = 1;
        while (length < limits::max_ngram && end >= oldest + static_cast<std::size_t>(length) &&
               history[end - static_cast<std::size_t>(length)] == history[n - 1 - static_cast<std::size_t>(length)]) {
            ++length;
        }
        if (length > best_length) {
            best_length = length;
            best_end = end;
            if (length == limits::max_ngram) {
                break;
            }
        }
    }
    if (best_length < limits::min_ngram) {
        return draft;
    }
    draft.match_length = best_length;
    draft.source = best_end + 1;
    for (std::int32_t i = 0; i < n_draft; ++i) {
        const std::size_t from = draft.source + static_cast<std::size_t>(i);
        draft.tokens[static_cast<std::size_t>(i)] = from < n ? history[from] : draft.tokens[from - n];
    }
    draft.n_tokens = n_draft;
    return draft;
}

}  // namespace aner

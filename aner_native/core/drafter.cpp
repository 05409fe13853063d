#include "drafter.hpp"

#include <algorithm>

namespace aner {

Drafter::Drafter(std::int32_t max_draft, CostTable costs, std::vector<Token> ends)
    : max_draft_(max_draft), policy_(max_draft, std::move(costs)), ends_(std::move(ends)) {}

Draft Drafter::next(const Token * history, std::size_t n, std::int32_t room) noexcept {
    if (!policy_.wants_draft()) {
        return {};
    }
    Draft draft = propose_draft(history, n, std::min(room, max_draft_));
    const auto begin = draft.tokens.begin();
    draft.n_tokens = static_cast<std::int32_t>(std::find_first_of(begin, begin + draft.n_tokens, ends_.begin(), ends_.end()) - begin);
    if (draft.n_tokens > 0) {
        draft.n_tokens = policy_.choose(draft.match_length, draft.n_tokens);
    }
    return draft;
}

void Drafter::observe(const Draft & draft, std::int32_t n_accepted) noexcept {
    policy_.observe(draft.match_length, draft.n_tokens, n_accepted);
}

}  // namespace aner

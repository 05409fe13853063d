// The drafts of one request: where a match is, how many of its tokens are proposed, what becomes of them. A running request and
// an offline replay both use it, so that a replay scores the very policy that runs.
#pragma once

#include "draft_policy.hpp"
#include "prompt_lookup.hpp"

#include <vector>

namespace aner {

class Drafter {
public:
    // `ends`: ids that end a generation, in any order; no draft holds one.
    Drafter(std::int32_t max_draft, CostTable costs, std::vector<Token> ends);

    // What to verify behind `history[0, n)`, of at most `room` tokens, often none. Called once for each decode call.
    [[nodiscard]] Draft next(const Token * history, std::size_t n, std::int32_t room) noexcept;

    // What became of a draft that `next` gave.
    void observe(const Draft & draft, std::int32_t n_accepted) noexcept;

private:
    const std::int32_t max_draft_;
    DraftPolicy policy_;
    const std::vector<Token> ends_;
};

}  // namespace aner

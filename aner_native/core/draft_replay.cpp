#include "draft_replay.hpp"

#include "drafter.hpp"

#include <algorithm>
#include <new>

namespace aner {

// The first token of the output came with the prompt; each call from then on adds the accepted tokens of its draft and one more,
// which may be the one that ends the output.
Result<DraftScore> replay_drafts(const RecordedRequest & request, std::int32_t max_draft, const CostTable & costs) noexcept try {
    DraftScore score;
    score.calls.resize(static_cast<std::size_t>(limits::max_speculative_tokens) + 2);
    Drafter drafter(max_draft, costs, request.ends);
    std::vector<Token> text = request.prompt;
    text.insert(text.end(), request.output.begin(), request.output.end());
    const std::size_t n_prompt = request.prompt.size();
    const std::size_t n_target = text.size() + (request.ended_by_token ? 1 : 0);
    for (std::size_t known = n_prompt + 1; known < n_target;) {
        const auto n_output = static_cast<std::int32_t>(known - n_prompt);
        const std::int32_t room = std::min(request.max_tokens - n_output, request.context - static_cast<std::int32_t>(known)) - 1;
        const Draft draft = drafter.next(text.data(), known, room);
        const std::size_t period = known - draft.source;  // a longer draft copies from itself
        std::int32_t n_accepted = 0;
        for (std::size_t at = known; n_accepted < draft.n_tokens && at < text.size(); ++at, ++n_accepted) {
            const auto place = static_cast<std::size_t>(n_accepted);
            if (text[at] != draft.tokens[place]) {
                break;
            }
            score.accepted_from_prompt += draft.source + place % period < n_prompt ? 1 : 0;
        }
        known += static_cast<std::size_t>(n_accepted) + 1;
        score.calls[static_cast<std::size_t>(draft.n_tokens) + 1] += 1;
        if (draft.n_tokens > 0) {
            score.proposed_tokens += draft.n_tokens;
            score.accepted_tokens += n_accepted;
            score.verification_steps += 1;
            drafter.observe(draft, n_accepted);
        }
    }
    return score;
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

}  // namespace aner

// Scores drafts without the model: with greedy decoding, what is accepted depends on the request's tokens alone.
#pragma once

#include "draft_policy.hpp"
#include "errors.hpp"
#include "types.hpp"

#include <vector>

namespace aner {

// A finished greedy request.
struct RecordedRequest {
    std::vector<Token> prompt;
    std::vector<Token> output;    // without the token that ended it
    std::vector<Token> ends;      // ids that end a generation
    bool ended_by_token = false;  // by one of them; else by a stop string, max_tokens or the end of the context
    std::int32_t max_tokens = 0;
    std::int32_t context = 0;
};

struct DraftScore {
    std::int64_t proposed_tokens = 0;
    std::int64_t accepted_tokens = 0;
    std::int64_t accepted_from_prompt = 0;  // copied out of the prompt; the others out of the output
    std::int64_t verification_steps = 0;
    std::vector<std::int64_t> calls;  // decode calls by their number of rows; [0] is always 0
};

// What the request's counters would be with drafts of at most `max_draft` tokens chosen by `costs`.
Result<DraftScore> replay_drafts(const RecordedRequest & request, std::int32_t max_draft, const CostTable & costs) noexcept;

}  // namespace aner

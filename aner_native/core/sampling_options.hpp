// How one request chooses its tokens. The defaults are plain greedy decoding.
#pragma once

#include "errors.hpp"
#include "types.hpp"

#include <cstdint>
#include <utility>
#include <vector>

namespace aner {

struct SamplingOptions {
    float temperature = 0;                           // 0..100; 0: the most likely token
    std::int32_t top_k = 0;                          // 0: off
    float top_p = 1;                                 // above 0, at most 1 (off)
    float min_p = 0;                                 // 0 (off)..1, of the most likely token's probability
    float repeat_penalty = 1;                        // above 0, at most 10; 1: off
    float frequency_penalty = 0;                     // -2..2, for each occurrence
    float presence_penalty = 0;                      // -2..2, once
    std::int32_t penalty_window = 64;                // the last n tokens of prompt and output; -1: all of them
    std::vector<std::pair<Token, float>> logit_bias; // -100..100, or -infinity to ban; entries for one token add up
    std::uint64_t seed = 0;                          // every value is a seed, 0 too
    bool ignore_eos = false;                         // never choose an end-of-generation id
    std::int32_t min_tokens = 0;                     // before that many, neither an end-of-generation id nor a stop token
    std::vector<Token> stop_token_ids;               // the caller ends at one; the sampler only bans them before min_tokens
    std::int32_t n_logprobs = -1;                    // -1: off; 0: the chosen token's; n: and the n best

    [[nodiscard]] bool penalizes() const noexcept {
        return penalty_window != 0 && (repeat_penalty != 1 || frequency_penalty != 0 || presence_penalty != 0);
    }
    // Whether the greedy choice can differ from the argmax of the raw logits.
    [[nodiscard]] bool changes_greedy_choice() const noexcept {
        return !logit_bias.empty() || penalizes() || ignore_eos || min_tokens > 0;
    }
};

// Every range. Errors: invalid_request, with the option, its limits and the value.
Error validate(const SamplingOptions & options, std::int32_t n_vocab) noexcept;

}  // namespace aner

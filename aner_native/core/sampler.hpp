// Chooses one token from a row of logits.
//
//   bias, penalties, bans of end-of-generation ids, then
//   temperature 0    the argmax
//   else             top_k, top_p, min_p, temperature, draw
//
// top_p and min_p see the probabilities at temperature 1 of what the filters before them kept. A choice depends on the options
// and the arguments of the call alone: draw i of a request is a function of (seed, i), so its tokens are the same alone and in
// a batch. Probabilities are summed in double precision in the order of the ids, ties go to the lower id.
//
// A sampler belongs to one request and one thread at a time; what it keeps between calls is only scratch memory.
#pragma once

#include "errors.hpp"
#include "sampling_options.hpp"
#include "types.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

namespace aner {

struct TopLogprob {
    Token token;
    float logprob;
};

struct Sampled {
    Token token = 0;
    // Of the raw logits, before bias, penalties and temperature. NaN, and `top` empty, when n_logprobs is -1.
    float logprob = std::numeric_limits<float>::quiet_NaN();
    std::vector<TopLogprob> top;  // best first, n_logprobs of them; tokens that cannot come are left out
};

class Sampler {
public:
    // `options` passed validate() for `n_vocab`. `eog_tokens`: the model's end-of-generation ids, never null.
    Sampler(SamplingOptions options, std::shared_ptr<const std::vector<Token>> eog_tokens, std::int32_t n_vocab) noexcept;

    // `logits` has n_vocab entries and is not changed. `history`: prompt and output so far, only read when penalties are on.
    // `n_output`: tokens of the output so far, which is also the number of this draw.
    // Errors: invalid_output as argmax_row; invalid_request when bias and bans leave no token; out_of_memory.
    Result<Sampled> sample(const float * logits, const Token * history, std::size_t n_history, std::int32_t n_output) noexcept;

    [[nodiscard]] const SamplingOptions & options() const noexcept { return options_; }

private:
    struct Candidate {
        Token token;
        float logit;
    };
    // The order of every selection: no two candidates are equal in it.
    static bool better(const Candidate & a, const Candidate & b) noexcept {
        return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
    }

    [[nodiscard]] bool is_choice_of_edited_row(Token token, std::int32_t n_output) const noexcept;
    // The row to choose from: the engine's own unless an option edits it.
    const float * edited_row(const float * logits, const Token * history, std::size_t n_history, std::int32_t n_output);
    void penalize(const Token * history, std::size_t n_history);
    Token draw(const float * row, float largest, std::int32_t n_output);
    void keep_likely(float largest);  // top_p and min_p
    Candidate last_of(double enough, float largest);  // the fewest best candidates that weigh enough end with it
    // Fills weights_ with exp((logit - largest) / temperature) and gives their sum.
    double weigh(const Candidate * candidates, std::size_t n, float largest, float temperature);
    void select_top(const float * row, std::int32_t k, std::vector<Candidate> & best) const;  // in no order
    void add_logprobs(const float * logits, float largest, Sampled & sampled);

    SamplingOptions options_;
    std::shared_ptr<const std::vector<Token>> eog_tokens_;
    std::int32_t n_vocab_;

    std::vector<float> row_;               // the edited copy
    std::vector<std::int32_t> counts_;     // of each token in the penalty window; all 0 between calls
    std::vector<Token> seen_;              // tokens with a count
    std::vector<Candidate> candidates_;    // what the filters kept, in the order of ids
    std::vector<Candidate> selection_;     // scratch of the filters
    std::vector<double> weights_;          // what weigh() gave each of its candidates
};

}  // namespace aner

// What a request is made of, whichever way its rows are computed: its tokens, its sampler, its text, and every way in which it
// ends. It knows no context, no thread and no clock but the ones it is told about.
//
//   [0, n_computed)        in the context's memory
//   [n_computed, n_known)  pending: a piece of the prompt, or the one token that was chosen last
#pragma once

#include "generation.hpp"
#include "model.hpp"
#include "text_stream.hpp"

#include <memory>
#include <vector>

namespace aner {

class Sequence {
public:
    // `request` passed validate().
    Sequence(ModelHandle model, GenerationRequest request, const ContextSettings & settings);

    [[nodiscard]] const GenerationRequest & request() const noexcept { return request_; }
    [[nodiscard]] const Model & model() const noexcept { return *model_; }
    [[nodiscard]] const std::vector<Token> & history() const noexcept { return history_; }  // prompt, then output
    [[nodiscard]] std::int32_t n_prompt() const noexcept { return n_prompt_; }
    [[nodiscard]] std::int32_t n_known() const noexcept { return static_cast<std::int32_t>(history_.size()); }
    [[nodiscard]] std::int32_t n_computed() const noexcept { return n_computed_; }
    [[nodiscard]] std::int32_t n_output() const noexcept { return static_cast<std::int32_t>(result_.tokens.size()); }
    [[nodiscard]] bool prefilling() const noexcept { return n_computed_ < n_prompt_; }
    [[nodiscard]] std::vector<Token> ends() const;  // every token id that ends it

    // [0, n) of the prompt was found in memory.
    void begin_at(std::int32_t n) noexcept;

    // Rows of the prompt were computed; returns whether the prompt is complete, so that its last row has logits.
    bool prompt_computed(std::int32_t n_rows) noexcept;

    // The row of `history()[n_computed]` was computed.
    void pending_computed() noexcept { ++n_computed_; }

    // The choice that follows all that is known. Errors: invalid_output, invalid_request, out_of_memory, engine (no logits).
    Result<Sampled> choose(const float * logits) noexcept;

    // Appends one chosen token to `event`, or ends the output with it. Allocates; passes std::bad_alloc on.
    void append(Sampled sampled, GenerationEvent & event);

    // The time of an engine call that had rows of this sequence, and of their sampling, up to `after`.
    void measure(bool prefill, Nanoseconds duration, Clock::time_point after) noexcept;

    // Adds the text that was held back to `event`, and completes the result but for what its context's owner measures.
    void finish(GenerationEvent & event);

    [[nodiscard]] GenerationResult & result() noexcept { return result_; }
    [[nodiscard]] const GenerationResult & result() const noexcept { return result_; }

private:
    [[nodiscard]] bool is_end(Token token) const noexcept;

    const ModelHandle model_;
    const GenerationRequest request_;
    const std::int32_t n_prompt_;
    const std::int32_t context_;
    Sampler sampler_;
    TextStream text_;
    std::vector<Token> history_;
    std::int32_t n_computed_ = 0;
    std::int32_t n_chosen_ = 0;  // since the last measurement
    GenerationResult result_;
};

}  // namespace aner

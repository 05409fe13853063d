// One request run on its caller's thread, one engine call per step.
//
// Purpose    The latency side: no queue, no worker thread, no hand-over between threads. The caller regains control after each
//            engine call, so that it can look at signals, deliver text and cancel.
// Design     A step plans the next rows (a chunk of the prompt, or the pending token and a draft), decodes them, and applies the
//            outcome: sample, append, check every way in which a request ends. A drafted token is accepted when it equals what
//            the target chose in its place; the first that does not is replaced by that choice, and the positions after it are
//            trimmed. The parts that a request holds (context, admission) sit in one optional; ending it empties that.
// Invariants n_computed <= n_known <= context. Rows are evaluated once, in order. Text that was handed out is final.
// Threads    `next` is serialised by a mutex (a second caller gets busy); `cancel` sets a flag, and frees the parts itself when
//            no step is running. The mutex is never taken while holding another.
#pragma once

#include "admission.hpp"
#include "cancellation.hpp"
#include "context_hold.hpp"
#include "draft_policy.hpp"
#include "generation.hpp"
#include "model.hpp"
#include "prompt_lookup.hpp"
#include "text_stream.hpp"

#include <memory>
#include <mutex>
#include <optional>

namespace aner {

class DirectGeneration final : public Generation {
public:
    DirectGeneration(ModelHandle model, Admission admission, GenerationRequest request, const ContextSettings & settings) noexcept;

    // Takes a context from `source`, unless no tokens are asked for (P9). `costs`: for drafts, if the settings have room for any.
    Error acquire(ContextSource & source, const CostTable & costs) noexcept;

    Result<GenerationEvent> next() noexcept override;
    void cancel() noexcept override;
    [[nodiscard]] const GenerationResult & result() const noexcept override { return result_; }

private:
    struct Held {
        Admission admission;
        std::unique_ptr<ContextHold> context;
    };

    Result<GenerationEvent> step() noexcept;
    void plan_prefill() noexcept;
    void plan_decode() noexcept;
    Result<Sampled> sample(std::int32_t row) noexcept;
    Error apply_prefill(GenerationEvent & event) noexcept;
    Error apply_decode(GenerationEvent & event) noexcept;
    void append(Sampled sampled, GenerationEvent & event) noexcept;
    [[nodiscard]] bool ends_generation(Token token) const noexcept;
    void measure(bool prefill, Clock::time_point before) noexcept;
    void finish(GenerationEvent & event) noexcept;
    Error fail(Error error) noexcept;
    [[nodiscard]] std::int32_t n_known() const noexcept { return static_cast<std::int32_t>(history_.size()); }

    const ModelHandle model_;
    const GenerationRequest request_;
    const std::int32_t n_prompt_;
    const ContextSettings settings_;
    Cancellation cancellation_;
    Sampler sampler_;
    TextStream text_;

    std::mutex stepping_;
    std::optional<Held> held_;
    std::vector<Token> history_;   // prompt, then output
    std::int32_t n_computed_ = 0;  // of history_, in the context's memory
    Batch batch_;
    Draft draft_;                        // rows after the first of batch_, while decoding
    std::optional<DraftPolicy> policy_;  // none: no drafts
    std::int32_t n_sampled_ = 0;         // choices of the current step
    GenerationResult result_;
    bool finished_ = false;
    Error failure_;
};

Result<std::shared_ptr<Generation>> start_direct(ModelHandle model, ContextSource & source, const ContextSettings & settings,
                                                 const CostTable & costs, Admission admission, GenerationRequest request) noexcept;

}  // namespace aner

// One request run on its caller's thread, one engine call per step.
//
// Purpose    The latency side: no queue, no worker thread, no hand-over between threads. The caller regains control after each
//            engine call, so that it can look at signals, deliver text and cancel.
// Design     A step plans the next rows (a chunk of the prompt, or the pending token and a draft), decodes them, and applies the
//            outcome: sample, append, check every way in which a request ends. A drafted token is accepted when it equals what
//            the target chose in its place; the first that does not is replaced by that choice, and the positions after it are
//            trimmed. The parts that a request holds (context, admission) sit in one optional; ending it empties that.
// Invariants n_computed <= n_known <= context. Rows are evaluated once, in order. Text that was handed out is final.
// Threads    One thread at a time has the turn to use the request; none waits for it. `next` without it is busy. `cancel` sets a
//            flag, then ends the request if it gets the turn; else the thread that has it looks at the flag after giving it
//            back, so a cancellation is never lost. Once over, the outcome does not change and needs no turn.
#pragma once

#include "admission.hpp"
#include "cancellation.hpp"
#include "context_hold.hpp"
#include "drafter.hpp"
#include "generation.hpp"
#include "process_guard.hpp"
#include "sequence.hpp"

#include <atomic>
#include <memory>
#include <optional>

namespace aner {

class DirectGeneration final : public Generation {
public:
    DirectGeneration(ModelHandle model, Admission admission, GenerationRequest request, const ContextSettings & settings);

    // Takes a context from `source`, unless no tokens are asked for (P9). `costs`: for drafts, if the settings have room for any.
    Error acquire(ContextSource & source, const CostTable & costs);

    Result<GenerationEvent> next() noexcept override;
    void cancel() noexcept override;
    [[nodiscard]] const GenerationResult & result() const noexcept override { return sequence_.result(); }

private:
    struct Held {
        Admission admission;
        std::unique_ptr<ContextHold> context;
    };

    [[nodiscard]] Result<GenerationEvent> outcome() const noexcept;
    void end_if_cancelled() noexcept;
    Result<GenerationEvent> step() noexcept;
    void plan_prefill();
    void plan_decode();
    Result<Sampled> choose(std::int32_t row) noexcept;
    Error apply_prefill(GenerationEvent & event);
    Error apply_decode(GenerationEvent & event);
    void finish(GenerationEvent & event);
    Error fail(Error error) noexcept;

    const ContextSettings settings_;
    Sequence sequence_;
    Cancellation cancellation_;

    std::atomic<bool> turn_{false};  // taken
    std::atomic<bool> over_{false};  // set last, when the result or failure_ is complete
    std::optional<Held> held_;
    Batch batch_;
    Draft draft_;                     // rows after the first of batch_, while decoding
    std::optional<Drafter> drafter_;  // none: no drafts
    Error failure_;
    const ProcessGuard guard_;
};

Result<std::shared_ptr<Generation>> start_direct(ModelHandle model, ContextSource & source, const ContextSettings & settings,
                                                 const CostTable & costs, Admission admission, GenerationRequest request) noexcept;

}  // namespace aner

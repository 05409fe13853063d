// A conversation's own context: its KV stays across turns, generated tokens included.
//
// Purpose    A next turn evaluates only what is new, without lending anything to or from a pool.
// Design     A turn is a direct generation whose context source is the session. The hold trims the context to what the new prompt
//            shares with it; `keep` records what is in memory afterwards. A turn that fails puts the context back to what it held
//            before: the new positions are trimmed, and what the trim had removed is evaluated again.
// Invariants `tokens_` are exactly the positions [0, n) in memory while no turn runs.
// Threads    One turn at a time (the busy error otherwise); `reset` counts as a turn.
#pragma once

#include "admission.hpp"
#include "context_hold.hpp"
#include "draft_policy.hpp"
#include "generation.hpp"
#include "model.hpp"
#include "process_guard.hpp"

#include <atomic>
#include <memory>
#include <string>
#include <vector>

namespace aner {

class Session final : public ContextSource, public std::enable_shared_from_this<Session> {
public:
    static Result<std::shared_ptr<Session>> make(ModelHandle model, const ContextSettings & settings, CostTable costs) noexcept;

    // One turn over the whole rendered conversation. Errors: those of Lease::start.
    Result<std::shared_ptr<Generation>> start(GenerationRequest request) noexcept;

    // Forgets everything. Errors: busy, forked, engine.
    Error reset() noexcept;

    // What is in memory, and the same back into a session that holds nothing yet. Errors: busy, forked, engine, invalid_request.
    struct Snapshot {
        std::vector<Token> tokens;
        std::string memory;
    };
    Result<Snapshot> save() noexcept;
    Error restore(Snapshot snapshot) noexcept;

    Result<std::unique_ptr<ContextHold>> acquire(const std::vector<Token> & prompt, std::int32_t n_template,
                                                 Timings & timings) noexcept override;

    [[nodiscard]] const Model & model() const noexcept { return *model_; }
    [[nodiscard]] const ContextSettings & settings() const noexcept { return settings_; }
    [[nodiscard]] const ResolvedContext & resolved() const noexcept { return decoder_->resolved(); }
    [[nodiscard]] bool foreign() const noexcept { return guard_.foreign(); }

    Session(ModelHandle model, const ContextSettings & settings, CostTable costs, std::unique_ptr<Decoder> decoder);

private:
    class Turn;

    Result<Admission> admit() noexcept;
    Error evaluate(const std::vector<Token> & tokens, std::int32_t from) noexcept;
    void forget() noexcept;

    const ModelHandle model_;
    const ContextSettings settings_;
    const CostTable costs_;
    const std::unique_ptr<Decoder> decoder_;
    std::vector<Token> tokens_;
    bool usable_ = true;  // false: the context could not be cleared
    const std::shared_ptr<std::atomic<bool>> taken_ = std::make_shared<std::atomic<bool>>(false);
    const ProcessGuard guard_;
};

}  // namespace aner

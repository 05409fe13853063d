// What a caller holds: one resident model, one immutable profile, one pool of contexts, one request at a time.
#pragma once

#include "context_pool.hpp"
#include "generation.hpp"
#include "process_guard.hpp"
#include "scheduler.hpp"
#include "session.hpp"

#include <atomic>
#include <memory>

namespace aner {

// Errors: unsupported_combination, for settings that take positions back on a model that cannot (O6).
Error check_memory_kind(const Model & model, const OptimizerSettings & settings) noexcept;

// The context that a batching lease shares between its slots. Errors: configuration, unsupported_combination.
Result<ContextSettings> batching_context(const ContextSettings & single, const OptimizerSettings & optimizer,
                                         const BatchingSettings & batching) noexcept;

class Lease;
using LeaseHandle = std::shared_ptr<const Lease>;

class Lease {
public:
    // An ordinary lease of a model that was just loaded; proves its context settings on the engine.
    static Result<LeaseHandle> make(ModelHandle model) noexcept;

    // Builders: the source stays as it is; the new lease shares the weights and has a fresh pool. Errors: configuration,
    // unsupported_combination, forked, and what making its first context gives.
    Result<LeaseHandle> with_optimizer(const OptimizerSettings & settings) const noexcept;
    Result<LeaseHandle> with_adapter(const std::string & path, float scale) const noexcept;
    Result<LeaseHandle> with_context_pool(std::int32_t max_idle) const noexcept;

    // A lease whose callers share one context of `max_sequences` slots, run by a worker; its builders are unsupported_operation.
    Result<LeaseHandle> with_batching(const BatchingSettings & batching) const noexcept;

    // A conversation with a context of its own and this lease's settings; it owes the pool nothing.
    Result<std::shared_ptr<Session>> session() const noexcept;

    // A sibling that admits a caller of its own and shares this lease's pool and profile. Errors: out_of_memory.
    Result<LeaseHandle> native_stateless() const noexcept;

    // Errors: invalid_request, context_full, busy, forked, and what acquiring a context gives.
    Result<std::shared_ptr<Generation>> start(GenerationRequest request) const noexcept;

    [[nodiscard]] const Model & model() const noexcept { return *model_; }
    [[nodiscard]] const Profile & profile() const noexcept { return profile_; }
    [[nodiscard]] const EffectiveAdapters & adapters() const noexcept { return pool_->settings().adapters; }
    [[nodiscard]] const ContextPool & pool() const noexcept { return *pool_; }  // of a batching lease: its source's settings, and empty
    [[nodiscard]] const Scheduler * scheduler() const noexcept { return scheduler_.get(); }  // null unless it batches
    [[nodiscard]] bool foreign() const noexcept { return guard_.foreign(); }

    Lease(ModelHandle model, Profile profile, std::shared_ptr<ContextPool> pool, std::shared_ptr<Scheduler> scheduler,
          ProcessGuard guard);

private:
    static Result<LeaseHandle> make(ModelHandle model, const Profile & profile, const EffectiveAdapters & adapters) noexcept;
    [[nodiscard]] Error check_builder(const char * name) const noexcept;

    const ModelHandle model_;
    const Profile profile_;
    const std::shared_ptr<ContextPool> pool_;
    const std::shared_ptr<Scheduler> scheduler_;
    const std::shared_ptr<std::atomic<bool>> taken_ = std::make_shared<std::atomic<bool>>(false);
    const ProcessGuard guard_;
};

}  // namespace aner

#include "lease.hpp"

#include "direct_generation.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>

namespace aner {

namespace {

Error forked() noexcept {
    return Error{ErrorCode::forked, "this model was loaded before the process forked: load it again in the child, or use the "
                                    "'spawn' start method"};
}

}  // namespace

// A state that was folded into one cannot be taken apart again.
Error check_memory_kind(const Model & model, const OptimizerSettings & settings) noexcept try {
    const MemoryKind kind = model.info().memory_kind;
    const bool trims = settings.prefix_cache_entries > 0 || settings.speculative_tokens > 0;
    if (!trims || kind == MemoryKind::attention || kind == MemoryKind::sliding_window) {
        return {};
    }
    return Error{ErrorCode::unsupported_combination,
                 std::string("this model is ") + (kind == MemoryKind::recurrent ? "recurrent" : "a hybrid with recurrent layers") +
                     ", so positions cannot be taken back: prefix_cache_entries and speculative_tokens must be 0"};
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

Result<ContextSettings> batching_context(const ContextSettings & single, const OptimizerSettings & optimizer,
                                         const BatchingSettings & batching) noexcept try {
    if (Error error = validate(batching, optimizer); error.failed()) {
        return error;
    }
    const std::int64_t positions = static_cast<std::int64_t>(single.context) * batching.max_sequences;
    if (positions > std::numeric_limits<std::int32_t>::max()) {
        return Error{ErrorCode::configuration, "max_sequences times context is " + std::to_string(positions) +
                                                   " positions, which no context can hold"};
    }
    return shared_context(single, optimizer.batch_tokens, batching.max_sequences);
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

Lease::Lease(ModelHandle model, Profile profile, std::shared_ptr<ContextPool> pool, std::shared_ptr<Scheduler> scheduler,
             ProcessGuard guard)
    : model_(std::move(model)), profile_(profile), pool_(std::move(pool)), scheduler_(std::move(scheduler)), guard_(guard) {}

Result<LeaseHandle> Lease::make(ModelHandle model) noexcept {
    Profile profile;
    const std::int32_t context = model->info().settings.context;
    profile.optimizer.prefix_cache_tokens = std::min(profile.optimizer.prefix_cache_tokens, context);
    return make(std::move(model), profile, {});
}

Result<LeaseHandle> Lease::make(ModelHandle model, const Profile & profile, const EffectiveAdapters & adapters) noexcept try {
    ContextSettings settings = resolve(model->info().settings, profile.optimizer);
    settings.adapters = adapters;
    const RetentionPolicy policy{profile.max_idle_contexts, profile.optimizer.prefix_cache_entries,
                                 profile.optimizer.prefix_cache_tokens};
    auto pool = std::make_shared<ContextPool>(model, settings, policy);
    if (Error error = pool->prove(); error.failed()) {
        return error;
    }
    return LeaseHandle(std::make_shared<const Lease>(std::move(model), profile, std::move(pool), nullptr, ProcessGuard()));
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

// A scheduler's context is shared and fixed: what would change it belongs before it (B10).
Error Lease::check_builder(const char * name) const noexcept try {
    if (foreign()) {
        return forked();
    }
    if (scheduler_ != nullptr) {
        return Error{ErrorCode::unsupported_operation, std::string(name) + " is not possible on a batching lease, whose requests share "
                                                                           "one context: configure the lease before with_batching, or "
                                                                           "use another one"};
    }
    return {};
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

Result<LeaseHandle> Lease::with_optimizer(const OptimizerSettings & settings) const noexcept try {
    if (Error error = check_builder("with_optimizer"); error.failed()) {
        return error;
    }
    if (Error error = validate(settings, model_->info().settings.context); error.failed()) {
        return error;
    }
    if (Error error = check_memory_kind(*model_, settings); error.failed()) {
        return error;
    }
    Profile profile;
    profile.optimizer = settings;
    profile.max_idle_contexts = std::max(limits::default_idle_contexts, settings.prefix_cache_entries);
    return make(model_, profile, adapters());
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

Result<LeaseHandle> Lease::with_adapter(const std::string & path, float scale) const noexcept try {
    if (Error error = check_builder("with_adapter"); error.failed()) {
        return error;
    }
    if (!std::isfinite(scale) || scale == 0) {
        return Error{ErrorCode::configuration, "scale is " + std::to_string(scale) + ": it must be a finite number other than 0, with "
                                               "which the adapter would do nothing"};
    }
    EffectiveAdapters all = adapters();
    if (all.size() == limits::max_adapters) {
        return Error{ErrorCode::configuration, "this lease has " + std::to_string(all.size()) + " adapters already, which is the most"};
    }
    EffectiveAdapter added;
    added.scale = scale;
    if (Error error = model_->load_adapter(path).into(added.adapter); error.failed()) {
        return error;
    }
    all.push_back(std::move(added));
    return make(model_, profile_, all);
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

Result<LeaseHandle> Lease::with_context_pool(std::int32_t max_idle) const noexcept try {
    if (Error error = check_builder("with_context_pool"); error.failed()) {
        return error;
    }
    if (max_idle < 0 || max_idle > limits::max_idle_contexts) {
        return Error{ErrorCode::configuration, "max_idle is " + std::to_string(max_idle) + ": it must be within 0.." +
                                                   std::to_string(limits::max_idle_contexts)};
    }
    Profile profile = profile_;
    profile.max_idle_contexts = max_idle;
    return make(model_, profile, adapters());
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

Result<LeaseHandle> Lease::with_batching(const BatchingSettings & batching) const noexcept try {
    if (Error error = check_builder("with_batching"); error.failed()) {
        return error;
    }
    ContextSettings settings;
    if (Error error = batching_context(pool_->settings(), profile_.optimizer, batching).into(settings); error.failed()) {
        return error;
    }
    std::shared_ptr<Scheduler> scheduler;
    if (Error error = Scheduler::make(model_, settings, batching).into(scheduler); error.failed()) {
        return error;
    }
    Profile profile = profile_;
    profile.max_sequences = batching.max_sequences;
    profile.step_target = batching.step_target;
    profile.max_idle_contexts = 0;
    auto pool = std::make_shared<ContextPool>(model_, pool_->settings(), RetentionPolicy{});
    return LeaseHandle(std::make_shared<const Lease>(model_, profile, std::move(pool), std::move(scheduler), guard_));
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

Result<std::shared_ptr<Session>> Lease::session() const noexcept try {
    if (Error error = check_builder("session"); error.failed()) {
        return error;
    }
    ContextSettings settings = pool_->settings();
    settings.full_window = true;  // a turn takes positions back
    return Session::make(model_, settings, pool_->costs());
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

Result<LeaseHandle> Lease::native_stateless() const noexcept try {
    return LeaseHandle(std::make_shared<const Lease>(model_, profile_, pool_, scheduler_, guard_));
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

Result<std::shared_ptr<Generation>> Lease::start(GenerationRequest request) const noexcept {
    if (foreign()) {
        return forked();
    }
    if (Error error = validate(request, model_->vocabulary().n_tokens(), model_->info().settings.context); error.failed()) {
        return error;
    }
    if (Error error = validate_draft_sampling(pool_->settings(), request); error.failed()) {
        return error;
    }
    if (taken_->exchange(true, std::memory_order_acquire)) {
        return Error{ErrorCode::busy, "this model handle is running another request: finish or cancel it first, or make a "
                                      "sibling with native_stateless()"};
    }
    if (scheduler_ != nullptr) {
        return scheduler_->submit(std::move(request), Admission(taken_));
    }
    return start_direct(model_, *pool_, pool_->settings(), pool_->costs(), Admission(taken_), std::move(request));
}

}  // namespace aner

#include "lease.hpp"

#include "direct_generation.hpp"

#include <algorithm>
#include <new>

namespace aner {

namespace {

Error forked() noexcept {
    return Error{ErrorCode::forked, "this model was loaded before the process forked: load it again in the child, or use the "
                                    "'spawn' start method"};
}

}  // namespace

Lease::Lease(ModelHandle model, Profile profile, std::shared_ptr<ContextPool> pool, ProcessGuard guard)
    : model_(std::move(model)), profile_(profile), pool_(std::move(pool)), guard_(guard) {}

Result<LeaseHandle> Lease::make(ModelHandle model) noexcept {
    Profile profile;
    const std::int32_t context = model->info().settings.context;
    profile.optimizer.prefix_cache_tokens = std::min(profile.optimizer.prefix_cache_tokens, context);
    return make(std::move(model), profile);
}

Result<LeaseHandle> Lease::make(ModelHandle model, const Profile & profile) noexcept try {
    const ContextSettings settings = resolve(model->info().settings, profile.optimizer);
    auto pool = std::make_shared<ContextPool>(model, settings, profile.max_idle_contexts);
    if (Error error = pool->prove(); error.failed()) {
        return error;
    }
    return LeaseHandle(std::make_shared<const Lease>(std::move(model), profile, std::move(pool), ProcessGuard()));
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

Result<LeaseHandle> Lease::with_context_pool(std::int32_t max_idle) const noexcept try {
    if (foreign()) {
        return forked();
    }
    if (max_idle < 0 || max_idle > limits::max_idle_contexts) {
        return Error{ErrorCode::configuration, "max_idle is " + std::to_string(max_idle) + ": it must be within 0.." +
                                                   std::to_string(limits::max_idle_contexts)};
    }
    Profile profile = profile_;
    profile.max_idle_contexts = max_idle;
    return make(model_, profile);
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

Result<LeaseHandle> Lease::native_stateless() const noexcept try {
    return LeaseHandle(std::make_shared<const Lease>(model_, profile_, pool_, guard_));
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
    if (taken_->exchange(true, std::memory_order_acquire)) {
        return Error{ErrorCode::busy, "this model handle is running another request: finish or cancel it first, or make a "
                                      "sibling with native_stateless()"};
    }
    return start_direct(model_, pool_, Admission(taken_), std::move(request));
}

}  // namespace aner

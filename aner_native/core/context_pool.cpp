#include "context_pool.hpp"

namespace aner {

Error ContextLease::retain() && noexcept {
    std::unique_ptr<Decoder> decoder = std::move(decoder_);  // freed on return if it is not put back
    if (Error error = decoder->clear(); error.failed()) {
        return error;
    }
    pool_->put(std::move(decoder));
    return {};
}

Result<ContextLease> ContextPool::acquire() noexcept {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (!idle_.empty()) {
            std::unique_ptr<Decoder> decoder = std::move(idle_.back());
            idle_.pop_back();
            return ContextLease(shared_from_this(), std::move(decoder), true);
        }
    }
    Result<std::unique_ptr<Decoder>> made = model_->make_decoder(settings_);
    if (made.failed()) {
        return made.error();
    }
    return ContextLease(shared_from_this(), made.take(), false);
}

Error ContextPool::prove() noexcept {
    Result<std::unique_ptr<Decoder>> made = model_->make_decoder(settings_);
    if (made.failed()) {
        return made.error();
    }
    resolved_ = made.value()->resolved();
    memory_ = made.value()->memory();
    put(made.take());
    return {};
}

std::int32_t ContextPool::n_idle() const noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    return static_cast<std::int32_t>(idle_.size());
}

void ContextPool::put(std::unique_ptr<Decoder> decoder) noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (static_cast<std::int32_t>(idle_.size()) < max_idle_) {
        idle_.push_back(std::move(decoder));
    }
}  // without room the parameter frees the context after the lock

}  // namespace aner

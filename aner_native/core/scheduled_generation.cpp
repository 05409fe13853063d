#include "scheduled_generation.hpp"

namespace aner {

ScheduledGeneration::~ScheduledGeneration() { cancel(); }

Result<GenerationEvent> ScheduledGeneration::take(std::chrono::milliseconds patience) noexcept {
    if (guard_.foreign()) {
        return Error{ErrorCode::forked, "this request runs in the parent process: start it again in the child"};
    }
    if (turn_.exchange(true)) {
        return member_->cancellation.requested() ? Cancellation::error()
                                                 : Error{ErrorCode::busy, "another thread is taking the next piece of this "
                                                                          "request: use one thread for it"};
    }
    Result<EventChannel::Taken> taken = member_->channel.take(patience);
    if (!taken.failed() && !taken.value().came && scheduler_->starves_itself(member_)) {
        taken = member_->channel.take(std::chrono::milliseconds(0));
    }
    turn_.store(false);
    if (taken.failed()) {
        return taken.error();
    }
    if (taken.value().was_full) {
        scheduler_->wake();
    }
    return std::move(taken.value().event);
}

void ScheduledGeneration::want_result_only() noexcept {
    if (!guard_.foreign() && member_->channel.want_result_only()) {
        scheduler_->wake();
    }
}

void ScheduledGeneration::set_waker(std::shared_ptr<WakePipe> waker) noexcept {
    if (!guard_.foreign()) {
        member_->channel.set_waker(std::move(waker));
    }
}

void ScheduledGeneration::cancel() noexcept {
    if (!guard_.foreign()) {
        scheduler_->cancel(member_);
    }
}

}  // namespace aner

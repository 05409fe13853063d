// The handle of a request that a scheduler runs: its caller reads the channel on its own thread.
#pragma once

#include "scheduler.hpp"

namespace aner {

class ScheduledGeneration final : public Generation {
public:
    ScheduledGeneration(std::shared_ptr<Scheduler> scheduler, std::shared_ptr<Scheduler::Member> member) noexcept
        : scheduler_(std::move(scheduler)), member_(std::move(member)) {}
    ~ScheduledGeneration() override;

    // Waits for at most 50 ms, so that the caller can look at signals; an event without text says that nothing came.
    Result<GenerationEvent> next() noexcept override { return take(std::chrono::milliseconds(50)); }
    Result<GenerationEvent> poll() noexcept override { return take(std::chrono::milliseconds(0)); }
    void want_result_only() noexcept override;
    void set_waker(std::shared_ptr<WakePipe> waker) noexcept override;
    void cancel() noexcept override;
    [[nodiscard]] const GenerationResult & result() const noexcept override { return member_->sequence.result(); }

private:
    Result<GenerationEvent> take(std::chrono::milliseconds patience) noexcept;

    const std::shared_ptr<Scheduler> scheduler_;
    const std::shared_ptr<Scheduler::Member> member_;
    std::atomic<bool> turn_{false};  // taken: a thread is in take
    const ProcessGuard guard_;
};

}  // namespace aner

// A load on a thread of its own, so that whoever waits for it can look at signals, report progress and cancel.
#pragma once

#include "../lease.hpp"
#include "llama_model.hpp"

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace aner {

// Two stages, in order: admission (headers, first digest), then the engine's load with the second digest and the first
// context. Between them the caller may try the model in a child process.
class LoadTask {
public:
    LoadTask(std::string path, LoadSettings settings) noexcept : path_(std::move(path)), settings_(std::move(settings)) {}
    ~LoadTask();  // cancels and joins

    // `digests`: the content too, without which nothing can be loaded; the headers alone are enough to plan.
    void start_admission(bool digests) noexcept;
    void start_load(Nanoseconds probe_duration) noexcept;

    // True when the stage that was started is over; waits for it at most that long.
    [[nodiscard]] bool wait(std::int64_t milliseconds) noexcept;  // at once in a forked child, whose parent has the thread
    void cancel() noexcept { progress_.cancelled.store(true); }

    [[nodiscard]] LoadPhase phase() const noexcept { return progress_.phase.load(); }
    [[nodiscard]] float fraction() const noexcept { return progress_.fraction.load(); }

    // In a forked child: the load is the parent's, and its thread may have been in the middle of anything.
    [[nodiscard]] bool foreign() const noexcept { return guard_.foreign(); }

    // Of the stage that is over. Errors: forked, and what the stage gave.
    [[nodiscard]] Error error() const noexcept;
    [[nodiscard]] const AdmittedModel & admitted() const noexcept { return admitted_; }
    [[nodiscard]] LeaseHandle lease() const noexcept { return lease_; }

private:
    template <typename Stage>
    void run(Stage stage) noexcept;

    const ProcessGuard guard_;
    const std::string path_;
    const LoadSettings settings_;
    const Clock::time_point start_ = Clock::now();
    LoadProgress progress_;
    AdmittedModel admitted_;
    LeaseHandle lease_;
    Error error_;

    std::mutex mutex_;
    std::condition_variable finished_;
    bool running_ = false;
    std::thread thread_;
};

}  // namespace aner

#include "load_task.hpp"

#include "backend.hpp"

#include <chrono>
#include <exception>

namespace aner {

LoadTask::~LoadTask() {
    cancel();
    if (thread_.joinable()) {
        thread_.join();
    }
}

template <typename Stage>
void LoadTask::run(Stage stage) noexcept {
    if (foreign()) {
        return;
    }
    if (thread_.joinable()) {
        thread_.join();
    }
    running_ = true;
    try {
        thread_ = std::thread([this, stage] {
            Error error = stage();
            const std::lock_guard<std::mutex> lock(mutex_);
            error_ = std::move(error);
            running_ = false;
            finished_.notify_all();
        });
    } catch (const std::exception & error) {
        error_ = Error{ErrorCode::out_of_memory, std::string("a thread for the load could not be started: ") + error.what()};
        running_ = false;
    }
}

void LoadTask::start_admission(bool digests) noexcept {
    run([this, digests]() noexcept -> Error {
        if (Error error = validate(settings_); error.failed()) {
            return error;
        }
        // Before the content is digested: a device that is not there is told at once. Its memory is looked at when the size is known.
        if (!settings_.reproducible) {
            if (const Result<ChosenDevice> device = choose_device(settings_.device, 0); device.failed()) {
                return device.error();
            }
        }
        Result<AdmittedModel> admitted = digests ? admit_model_file(path_, settings_.expected_sha256, progress_)
                                                 : admit_model_headers(path_, progress_);
        return admitted.into(admitted_);
    });
}

void LoadTask::start_load(Nanoseconds probe_duration) noexcept {
    run([this, probe_duration]() noexcept -> Error {
        ModelHandle model;
        if (Error error = load_model(admitted_, settings_, start_, probe_duration, progress_).into(model); error.failed()) {
            return error;
        }
        progress_.enter(LoadPhase::context);
        return Lease::make(std::move(model)).into(lease_);
    });
}

bool LoadTask::wait(std::int64_t milliseconds) noexcept {
    if (foreign()) {
        return true;
    }
    std::unique_lock<std::mutex> lock(mutex_);
    return finished_.wait_for(lock, std::chrono::milliseconds(milliseconds), [this] { return !running_; });
}

Error LoadTask::error() const noexcept {
    return foreign() ? Error{ErrorCode::forked, "this load was started before the process forked: start it again in the child"}
                     : error_;
}

}  // namespace aner

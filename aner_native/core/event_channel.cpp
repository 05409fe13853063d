#include "event_channel.hpp"

#include "limits.hpp"

#include <utility>

namespace aner {

void EventChannel::announce(std::unique_lock<std::mutex> lock) noexcept {
    const std::shared_ptr<WakePipe> waker = waker_;
    lock.unlock();
    changed_.notify_all();
    if (waker != nullptr) {
        waker->wake();
    }
}

void EventChannel::push(std::string_view text) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (result_only_ || over_) {
        return;
    }
    text_ += text;
    ++n_unread_;
    if (!text_.empty()) {
        announce(std::move(lock));
    }
}

void EventChannel::finish() noexcept {
    std::unique_lock<std::mutex> lock(mutex_);
    over_ = true;
    announce(std::move(lock));
}

void EventChannel::fail(Error error) noexcept {
    std::unique_lock<std::mutex> lock(mutex_);
    if (over_) {
        return;
    }
    over_ = true;
    error_ = std::move(error);
    announce(std::move(lock));
}

void EventChannel::fail_now(Error error) noexcept {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (!over_) {
            text_.clear();
        }
    }
    fail(std::move(error));
}

bool EventChannel::full() const noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    return !result_only_ && n_unread_ >= limits::max_unread_tokens;
}

Result<EventChannel::Taken> EventChannel::take(std::chrono::milliseconds patience) noexcept {
    std::unique_lock<std::mutex> lock(mutex_);
    reader_ = std::this_thread::get_id();
    changed_.wait_for(lock, patience, [&] { return over_ || !text_.empty(); });
    Taken taken;
    taken.was_full = n_unread_ >= limits::max_unread_tokens;
    taken.came = over_ || !text_.empty();
    if (over_ && text_.empty() && error_.failed()) {
        return error_;
    }
    taken.event.text = std::exchange(text_, {});
    taken.event.finished = over_ && !error_.failed();
    // Bytes of an unfinished character are no text yet, and still count as read: there is nothing to take of them.
    n_unread_ = 0;
    return taken;
}

bool EventChannel::want_result_only() noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    result_only_ = true;
    text_.clear();
    return std::exchange(n_unread_, 0) >= limits::max_unread_tokens;
}

void EventChannel::set_waker(std::shared_ptr<WakePipe> waker) noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    waker_.swap(waker);
}

std::thread::id EventChannel::reader() const noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    return reader_;
}

bool EventChannel::over() const noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    return over_;
}

}  // namespace aner

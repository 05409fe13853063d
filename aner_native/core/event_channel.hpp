// The way from the scheduler's worker to the one reader of a request.
//
// Purpose    The worker never waits for a reader, and what it has ready for one is bounded: a reader that does not keep up has
//            its sequence left out of the steps (B7), and nothing else changes for anybody.
// Design     A text, a count of the tokens in it that were not taken yet, and an end: finished, or an error. `take` gives all
//            the text there is as one piece. A reader that wants the result alone says so: then no text is kept, the channel is
//            never full, and the reader is woken once.
// Invariants Text is taken in order and once. The end comes after all text, but for an error that the reader caused itself.
// Threads    One worker pushes, one reader takes, any thread looks. Its mutex is the last in the order of locks; nothing is
//            called while it is held.
#pragma once

#include "generation.hpp"
#include "wake_pipe.hpp"

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace aner {

class EventChannel {
public:
    // -- the worker. Passes std::bad_alloc on.
    void push(std::string_view text);
    // The first end stands.
    void finish() noexcept;
    void fail(Error error) noexcept;
    void fail_now(Error error) noexcept;  // text that was not taken yet is dropped
    [[nodiscard]] bool full() const noexcept;

    // -- the reader
    struct Taken {
        GenerationEvent event;
        bool came = false;      // something did within the patience
        bool was_full = false;  // the worker may go on
    };
    Result<Taken> take(std::chrono::milliseconds patience) noexcept;
    bool want_result_only() noexcept;  // whether it was full
    // Woken whenever something comes, from now on. Null: nobody.
    void set_waker(std::shared_ptr<WakePipe> waker) noexcept;
    // The thread that takes, or before the first take the one that made the request.
    [[nodiscard]] std::thread::id reader() const noexcept;
    [[nodiscard]] bool over() const noexcept;

private:
    void announce(std::unique_lock<std::mutex> lock) noexcept;

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::string text_;
    std::int32_t n_unread_ = 0;  // tokens
    bool result_only_ = false;
    bool over_ = false;
    Error error_;
    std::thread::id reader_ = std::this_thread::get_id();
    std::shared_ptr<WakePipe> waker_;
};

}  // namespace aner

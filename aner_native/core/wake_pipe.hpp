// Wakes an event loop that watches a file descriptor: one pipe for any number of requests, and a byte when one has news.
#pragma once

#include "errors.hpp"

#include <memory>

namespace aner {

class WakePipe {
public:
    // Errors: out_of_memory (no file descriptor could be had).
    static Result<std::shared_ptr<WakePipe>> make() noexcept;
    WakePipe(int read_end, int write_end) noexcept : read_end_(read_end), write_end_(write_end) {}
    ~WakePipe();
    WakePipe(const WakePipe &) = delete;
    WakePipe & operator=(const WakePipe &) = delete;

    // Any thread. A full pipe is as good as one more byte.
    void wake() const noexcept;

    // Takes every byte that is there.
    void drain() const noexcept;

    [[nodiscard]] int read_end() const noexcept { return read_end_; }

private:
    const int read_end_;
    const int write_end_;
};

}  // namespace aner

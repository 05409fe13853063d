#include "wake_pipe.hpp"

#include <new>

#if !defined(_WIN32)
#include <fcntl.h>
#include <unistd.h>
#endif

namespace aner {

#if !defined(_WIN32)

Result<std::shared_ptr<WakePipe>> WakePipe::make() noexcept try {
    int ends[2] = {-1, -1};
    if (::pipe(ends) != 0) {
        return Error{ErrorCode::out_of_memory, "no file descriptors are left for waking an event loop"};
    }
    for (const int end : ends) {
        ::fcntl(end, F_SETFL, ::fcntl(end, F_GETFL) | O_NONBLOCK);
        ::fcntl(end, F_SETFD, FD_CLOEXEC);
    }
    return std::make_shared<WakePipe>(ends[0], ends[1]);
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

WakePipe::~WakePipe() {
    ::close(read_end_);
    ::close(write_end_);
}

void WakePipe::wake() const noexcept {
    const char byte = 1;
    [[maybe_unused]] const auto written = ::write(write_end_, &byte, 1);
}

void WakePipe::drain() const noexcept {
    char bytes[256];
    while (::read(read_end_, bytes, sizeof bytes) == static_cast<ssize_t>(sizeof bytes)) {
    }
}

#else

Result<std::shared_ptr<WakePipe>> WakePipe::make() noexcept {
    return Error{ErrorCode::unsupported_operation, "event loops cannot be woken on this platform"};
}
WakePipe::~WakePipe() = default;
void WakePipe::wake() const noexcept {}
void WakePipe::drain() const noexcept {}

#endif

}  // namespace aner

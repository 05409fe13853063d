// Tells whether this process is the one that made a handle. A forked child inherits handles whose threads did not come along.
#pragma once

#include <cstdint>

namespace aner {

// Counts the forks between the program's start and this process; the first call installs the hook.
[[nodiscard]] std::uint64_t fork_generation() noexcept;

class ProcessGuard {
public:
    // True in a child that was forked after the handle was made: it must neither use nor free what it guards.
    [[nodiscard]] bool foreign() const noexcept { return fork_generation() != born_; }

private:
    std::uint64_t born_ = fork_generation();
};

}  // namespace aner

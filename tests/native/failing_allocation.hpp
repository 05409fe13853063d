// Lets memory run out at a chosen place: one allocation of the calling thread fails, the n-th from now on.
#pragma once

#include <cstdint>

namespace aner::testing {

class FailingAllocation {
public:
    explicit FailingAllocation(std::int64_t nth) noexcept;  // from 1
    ~FailingAllocation();
    FailingAllocation(const FailingAllocation &) = delete;
    FailingAllocation & operator=(const FailingAllocation &) = delete;

    [[nodiscard]] bool happened() const noexcept;
};

// Calls `work(nth)` for n = 1, 2, .. while it returns whether a FailingAllocation of its own happened. Gives the number of times.
template <typename Work>
std::int64_t with_each_allocation_failing(Work work) {
    std::int64_t nth = 1;
    while (work(nth)) {
        ++nth;
    }
    return nth - 1;
}

}  // namespace aner::testing

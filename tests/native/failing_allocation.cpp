#include "failing_allocation.hpp"

#include <cstdlib>
#include <new>

namespace aner::testing {

namespace {

thread_local std::int64_t n_left = 0;  // until one fails; 0: none will

}  // namespace

FailingAllocation::FailingAllocation(std::int64_t nth) noexcept { n_left = nth; }

FailingAllocation::~FailingAllocation() { n_left = 0; }

bool FailingAllocation::happened() const noexcept { return n_left == 0; }

static void * allocate(std::size_t n_bytes) noexcept {
    if (n_left > 0 && --n_left == 0) {
        return nullptr;
    }
    return std::malloc(n_bytes > 0 ? n_bytes : 1);
}

}  // namespace aner::testing

void * operator new(std::size_t n_bytes) {
    void * const memory = aner::testing::allocate(n_bytes);
    if (memory == nullptr) {
        throw std::bad_alloc();
    }
    return memory;
}

void * operator new(std::size_t n_bytes, const std::nothrow_t &) noexcept { return aner::testing::allocate(n_bytes); }

void operator delete(void * memory) noexcept { std::free(memory); }
void operator delete(void * memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void * memory, const std::nothrow_t &) noexcept { std::free(memory); }

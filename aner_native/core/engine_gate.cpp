#include "engine_gate.hpp"

#include <thread>

#if !defined(_WIN32)
#include <pthread.h>
#endif

namespace aner {

namespace {

std::atomic<bool> closed{false};
std::atomic<int> inside{0};

#if !defined(_WIN32)
// The calls of a parent's threads never end in a forked child: they are not the child's to wait for.
[[maybe_unused]] const int forget_in_child = pthread_atfork(nullptr, nullptr, [] { inside.store(0); });
#endif

}  // namespace

EngineCall::EngineCall() noexcept { inside.fetch_add(1); }  // before the gate is looked at: the closer waits for it or it sees it

EngineCall::~EngineCall() { inside.fetch_sub(1); }

Error EngineCall::check() const noexcept {
    return closed.load() ? Error{ErrorCode::cancelled, "the interpreter is shutting down"} : Error{};
}

bool engine_gate_closed() noexcept { return closed.load(std::memory_order_relaxed); }

bool close_engine_gate(std::chrono::milliseconds patience) noexcept {
    closed.store(true);
    const auto until = std::chrono::steady_clock::now() + patience;
    while (inside.load() > 0 && std::chrono::steady_clock::now() < until) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return inside.load() == 0;
}

}  // namespace aner

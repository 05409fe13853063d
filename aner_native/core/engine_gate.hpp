// Lets the process exit while a thread is inside the engine: every engine call that may take long stands in the gate, and
// closing the gate refuses new calls, aborts the running ones and waits for them.
#pragma once

#include "errors.hpp"

#include <atomic>
#include <chrono>

namespace aner {

class EngineCall {
public:
    EngineCall() noexcept;
    ~EngineCall();
    EngineCall(const EngineCall &) = delete;
    EngineCall & operator=(const EngineCall &) = delete;

    // cancelled when the gate was closed: the caller returns this and does not enter the engine.
    Error check() const noexcept;
};

// Polled by the engine itself (abort callback, load progress).
[[nodiscard]] bool engine_gate_closed() noexcept;

// At process exit, once. True when no call is left in the engine.
bool close_engine_gate(std::chrono::milliseconds patience) noexcept;

}  // namespace aner

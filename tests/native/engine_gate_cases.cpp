#include "engine_gate.hpp"
#include "forked_child.hpp"

#include <atomic>
#include <thread>

using namespace aner;
using namespace aner::testing;
using namespace std::chrono_literals;

// Closing the gate is for the whole process and for good: each case closes that of a child.

ANER_CASE("", an_open_gate_lets_calls_through) {
    CHECK(!engine_gate_closed());
    const EngineCall call;
    CHECK(!call.check().failed());
}

ANER_CASE("Z1", a_closed_gate_refuses_calls_and_waits_for_none_that_came_too_late) {
    check_in_child([] {
        {
            const EngineCall over;
        }
        const auto before = std::chrono::steady_clock::now();
        CHECK(close_engine_gate(30s));
        CHECK(std::chrono::steady_clock::now() - before < 20s);
        CHECK(engine_gate_closed());
        {
            const EngineCall late;
            CHECK(late.check().code() == ErrorCode::cancelled);
        }
        CHECK(close_engine_gate(30s));
    });
}

ANER_CASE("Z1", closing_the_gate_ends_a_running_call_and_waits_for_it) {
    check_in_child([] {
        std::atomic<bool> inside{false};
        std::atomic<bool> left{false};
        std::thread worker([&] {
            const EngineCall call;
            inside.store(true);
            while (!engine_gate_closed()) {  // as the engine polls it
                std::this_thread::yield();
            }
            std::this_thread::sleep_for(30ms);
            left.store(true);
        });
        while (!inside.load()) {
            std::this_thread::yield();
        }
        const bool empty = close_engine_gate(30s);
        const bool waited = left.load();
        worker.join();
        CHECK(empty && waited);
    });
}

ANER_CASE("Z1", a_call_that_does_not_end_holds_the_exit_no_longer_than_the_patience) {
    check_in_child([] {
        const EngineCall stuck;
        const auto before = std::chrono::steady_clock::now();
        CHECK(!close_engine_gate(50ms));
        CHECK(std::chrono::steady_clock::now() - before >= 50ms);
    });
}

#include "scripted_run.hpp"

#include <algorithm>
#include <atomic>
#include <thread>

using namespace aner;
using namespace aner::testing;

namespace {

bool is_free(const LeaseHandle & lease) {
    GenerationHandle probe;
    return !lease->start(request_for(prompt_of(1), 0)).into(probe).failed();
}

}  // namespace

ANER_CASE("Z6", a_cancellation_without_a_step_frees_the_context_and_the_lease_at_once) {
    for (int n_steps = 0; n_steps < 4; ++n_steps) {
        const Scene scene;
        const LeaseHandle lease = scene.lease();
        const GenerationHandle generation = start(lease, request_for(prompt_of(5), 9));
        for (int i = 0; i < n_steps; ++i) {
            CHECK(!generation->next().failed());
        }
        CHECK(!is_free(lease));
        generation->cancel();
        CHECK_EQUAL(scene.script->n_alive(), 0);
        CHECK_EQUAL(lease->pool().n_idle(), 0);
        CHECK(is_free(lease));
        for (int i = 0; i < 2; ++i) {
            generation->cancel();
            CHECK(generation->next().error().code() == ErrorCode::cancelled);
        }
        CHECK_EQUAL(scene.script->n_calls(), n_steps);
        check_answer(lease, prompt_of(6), 4);
        CHECK(scene.script->violations().empty());
    }
}

ANER_CASE("Z6", a_cancellation_during_a_step_takes_effect_after_it) {
    for (int call = 1; call <= 4; ++call) {
        const Scene scene;
        const LeaseHandle lease = scene.lease();
        const GenerationHandle generation = start(lease, request_for(prompt_of(5), 9));
        scene.script->on_decode = [&](int now) {
            if (now == call) {
                generation->cancel();
                CHECK_EQUAL(scene.script->n_alive(), 1);  // the step still needs it
            }
        };
        for (int i = 1; i < call; ++i) {
            CHECK(!generation->next().failed());
        }
        CHECK(generation->next().error().code() == ErrorCode::cancelled);
        CHECK_EQUAL(scene.script->n_calls(), call);
        CHECK_EQUAL(scene.script->n_alive(), 0);
        CHECK(is_free(lease));
        CHECK(scene.script->violations().empty());
    }
}

ANER_CASE("Z6 Z1", a_cancellation_from_another_thread_does_not_wait_for_the_step_and_ends_the_request_with_it) {
    const Scene scene;
    const LeaseHandle lease = scene.lease();
    const GenerationHandle generation = start(lease, request_for(prompt_of(5), 9));
    scene.script->hold(3);
    Run all;
    std::thread reader([&] { all = run(*generation); });
    scene.script->wait_until_held();
    generation->cancel();
    const int n_alive = scene.script->n_alive();
    const bool was_free = is_free(lease);
    const ErrorCode told = generation->next().error().code();  // who else asks need not wait for the step either
    scene.script->release();
    reader.join();
    CHECK_EQUAL(n_alive, 1);
    CHECK(!was_free);
    CHECK(told == ErrorCode::cancelled);
    CHECK(all.error.code() == ErrorCode::cancelled);
    CHECK_EQUAL(scene.script->n_calls(), 3);
    CHECK_EQUAL(scene.script->n_alive(), 0);
    CHECK(is_free(lease));
    CHECK(scene.script->violations().empty());
}

ANER_CASE("B9", a_second_reader_during_a_step_is_refused_as_busy_and_harms_nothing) {
    const Scene scene;
    const LeaseHandle lease = scene.lease();
    const GenerationHandle generation = start(lease, request_for(prompt_of(5), 6));
    scene.script->hold(2);
    Run all;
    std::thread reader([&] { all = run(*generation); });
    scene.script->wait_until_held();
    const ErrorCode told = generation->next().error().code();
    scene.script->release();
    reader.join();
    CHECK(told == ErrorCode::busy);
    CHECK_EQUAL(all.error.message(), "");
    CHECK(generation->result().tokens == expected_output(prompt_of(5), 6));
}

ANER_CASE("Z1", a_cancellation_after_the_end_changes_nothing) {
    const Scene scene;
    const LeaseHandle lease = scene.lease();
    const GenerationHandle generation = start(lease, request_for(prompt_of(5), 6));
    CHECK_EQUAL(run(*generation).error.message(), "");
    generation->cancel();
    CHECK(!generation->next().failed() && generation->next().value().finished);
    CHECK(generation->result().tokens == expected_output(prompt_of(5), 6));
    CHECK_EQUAL(lease->pool().n_idle(), 1);
}

ANER_CASE("Z1", a_cancellation_during_the_last_step_lets_the_finished_request_be_finished) {
    const Scene scene;
    const LeaseHandle lease = scene.lease();
    const GenerationHandle generation = start(lease, request_for(prompt_of(5), 3));
    scene.script->on_decode = [&](int now) {
        if (now == 3) {
            generation->cancel();
        }
    };
    const Run all = run(*generation);
    CHECK_EQUAL(all.error.message(), "");
    CHECK(generation->result().tokens == expected_output(prompt_of(5), 3));
    CHECK(!generation->next().failed());
    CHECK_EQUAL(lease->pool().n_idle(), 1);
}

// However a cancellation and a step meet: when both calls have returned, nothing is held any more. The cancellation comes later
// whenever the step still saw it, and earlier whenever it did not, so most meet at the end of the step.
ANER_CASE("Z6 Z1", a_cancellation_is_never_lost_at_the_end_of_a_step) {
    const Scene scene;
    const LeaseHandle lease = scene.lease();
    constexpr int n_rounds = 5000;
    std::atomic<int> n_inside{0};  // steps that began, cancellers that know it, cancellations that returned
    std::atomic<int> n_awake{0};
    std::atomic<int> n_done{0};
    std::atomic<int> delay{0};
    const auto wait_for = [](const std::atomic<int> & count, int n) {
        while (count.load() < n) {
            std::this_thread::yield();
        }
    };
    scene.script->on_decode = [&](int) { wait_for(n_awake, n_inside.fetch_add(1) + 1); };
    GenerationHandle generation;
    std::thread canceller([&] {
        for (int i = 1; i <= n_rounds; ++i) {
            wait_for(n_inside, i);
            n_awake.store(i);
            for (volatile int left = delay.load(); left > 0; left = left - 1) {
            }
            generation->cancel();
            n_done.fetch_add(1);
        }
    });
    int n_lost = 0;
    for (int i = 1; i <= n_rounds; ++i) {
        generation = start(lease, request_for(prompt_of(1), 3));
        const bool seen = generation->next().failed();
        wait_for(n_done, i);
        n_lost += scene.script->n_alive() == 0 && is_free(lease) ? 0 : 1;
        delay.store(std::max(0, delay.load() + (seen ? 7 : -7)));
        generation.reset();
    }
    canceller.join();
    CHECK_EQUAL(n_lost, 0);
    CHECK(scene.script->violations().empty());
}

ANER_CASE("Z1", readers_and_cancellers_on_many_threads_leave_a_free_lease) {
    const Scene scene;
    const LeaseHandle lease = scene.lease();
    for (int round = 0; round < 200; ++round) {
        const GenerationHandle generation = start(lease, request_for(prompt_of(3), 20));
        std::atomic<int> n_strange{0};
        std::vector<std::thread> threads;
        for (int i = 0; i < 3; ++i) {
            threads.emplace_back([&] {
                for (;;) {
                    const Result<GenerationEvent> event = generation->next();
                    const ErrorCode code = event.error().code();
                    n_strange += code != ErrorCode::ok && code != ErrorCode::busy && code != ErrorCode::cancelled ? 1 : 0;
                    if (code == ErrorCode::cancelled || (code == ErrorCode::ok && event.value().finished)) {
                        return;
                    }
                }
            });
        }
        if (round % 2 == 0) {
            threads.emplace_back([&] { generation->cancel(); });
        }
        for (std::thread & thread : threads) {
            thread.join();
        }
        CHECK_EQUAL(n_strange.load(), 0);
        CHECK(is_free(lease));
    }
    CHECK(scene.script->violations().empty());
    CHECK(scene.script->n_alive() <= 1);
}

ANER_CASE("Z6", a_timeout_ends_the_request_at_the_next_step_and_discards_its_context) {
    const Scene scene;
    const LeaseHandle lease = scene.lease();
    GenerationRequest request = request_for(prompt_of(5), 9);
    request.start = Clock::now() - std::chrono::seconds(10);
    request.timeout = 9'500'000'000;
    const GenerationHandle generation = start(lease, std::move(request));
    const Error error = generation->next().error();
    CHECK(error.code() == ErrorCode::timeout);
    CHECK(error.message().find("9.5") != std::string::npos);
    CHECK_EQUAL(scene.script->n_calls(), 0);
    CHECK_EQUAL(scene.script->n_alive(), 0);
    CHECK(is_free(lease));
    generation->cancel();
    CHECK(generation->next().error().code() == ErrorCode::timeout);  // the first reason stands
}

ANER_CASE("Z6", a_timeout_that_passes_during_a_step_lets_no_other_begin) {
    const Scene scene;
    const LeaseHandle lease = scene.lease();
    GenerationRequest request = request_for(prompt_of(5), 9);
    request.timeout = 200'000'000;
    const Clock::time_point end = request.start + std::chrono::nanoseconds(request.timeout);
    scene.script->on_decode = [&](int) { std::this_thread::sleep_until(end); };
    const GenerationHandle generation = start(lease, std::move(request));
    CHECK(run(*generation).error.code() == ErrorCode::timeout);
    CHECK(scene.script->n_calls() <= 1);
    CHECK_EQUAL(scene.script->n_alive(), 0);
    CHECK(is_free(lease));
}

ANER_CASE("", a_timeout_of_zero_or_less_is_none) {
    for (const Nanoseconds timeout : {Nanoseconds{0}, Nanoseconds{-5}}) {
        const Cancellation cancellation(Clock::now() - std::chrono::hours(1), timeout);
        CHECK(!cancellation.check().failed());
    }
}

ANER_CASE("Z6", a_cancellation_is_told_before_a_timeout) {
    Cancellation cancellation(Clock::now() - std::chrono::seconds(1), 1);
    CHECK(cancellation.check().code() == ErrorCode::timeout);
    cancellation.request();
    CHECK(cancellation.requested());
    CHECK(cancellation.check().code() == ErrorCode::cancelled);
}

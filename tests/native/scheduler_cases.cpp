#include "scheduler.hpp"

#include "scripted_run.hpp"

#include <algorithm>
#include <atomic>
#include <random>
#include <set>
#include <thread>

using namespace aner;
using namespace aner::testing;

namespace {

struct Batched {
    explicit Batched(std::int32_t max_sequences, std::int32_t batch_tokens = 32, std::int32_t context = 64, Nanoseconds target = 0)
        : scene(context) {
        LeaseHandle ordinary;
        LeaseHandle tuned;
        CHECK_EQUAL(Lease::make(scene.model).into(ordinary).message(), "");
        OptimizerSettings settings;
        settings.threads = settings.prefill_threads = 1;
        settings.batch_tokens = settings.micro_batch_tokens = batch_tokens;
        settings.prefix_cache_tokens = context;
        CHECK_EQUAL(ordinary->with_optimizer(settings).into(tuned).message(), "");
        CHECK_EQUAL(tuned->with_batching({max_sequences, target}).into(lease).message(), "");
        scene.script->forget_batches();
    }

    [[nodiscard]] LeaseHandle sibling() const {
        LeaseHandle made;
        CHECK_EQUAL(lease->native_stateless().into(made).message(), "");
        return made;
    }
    [[nodiscard]] GenerationHandle submit(GenerationRequest request) const { return start(sibling(), std::move(request)); }
    [[nodiscard]] Error refused(GenerationRequest request) const {
        GenerationHandle generation;
        return sibling()->start(std::move(request)).into(generation);
    }

    Scene scene;
    LeaseHandle lease;
};

void check_whole(Generation & generation, const Tokens & prompt, std::int32_t n) {
    const Run all = run(generation);
    CHECK_EQUAL(all.error.message(), "");
    CHECK(generation.result().tokens == expected_output(prompt, n));
    CHECK_EQUAL(all.streamed, letters_of(generation.result().tokens));
    CHECK_EQUAL(generation.result().text, all.streamed);
}

template <typename Condition>
void wait_for(Condition && condition) {
    for (int i = 0; i < 5000 && !condition(); ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    CHECK(condition());
}

}  // namespace

ANER_CASE("B2", concurrent_requests_share_calls_and_each_gets_its_own_answer) {
    const Batched batched(4);
    batched.scene.script->hold(1);
    std::vector<GenerationHandle> all;
    for (std::int32_t i = 0; i < 4; ++i) {
        all.push_back(batched.submit(request_for(prompt_of(3 + 5 * i), 6 + i)));
    }
    batched.scene.script->wait_until_held();
    batched.scene.script->release();
    for (std::int32_t i = 0; i < 4; ++i) {
        check_whole(*all[static_cast<std::size_t>(i)], prompt_of(3 + 5 * i), 6 + i);
    }
    bool shared = false;
    for (const Batch & batch : batched.scene.script->batches()) {
        std::set<SequenceId> ids;
        for (const BatchRow & row : batch) {
            ids.insert(row.sequence);
        }
        shared = shared || ids.size() == 4;
    }
    CHECK(shared);
    CHECK(batched.scene.script->violations().empty());
    CHECK(all[0]->result().timings.batch_peak_sequences == 4);
    CHECK(all[0]->result().timings.batch_max_sequences == 4);
}

ANER_CASE("B11 B4", any_mix_of_lengths_and_arrivals_gives_what_each_request_gives_alone) {
    std::mt19937 random(3);
    const auto pick = [&](std::int32_t low, std::int32_t high) { return std::uniform_int_distribution<std::int32_t>(low, high)(random); };
    for (int round = 0; round < 30; ++round) {
        const std::int32_t n_slots = pick(1, 6);
        const Batched batched(n_slots, pick(n_slots, 40));
        std::vector<std::thread> callers;
        std::atomic<int> wrong{0};
        for (int caller = 0; caller < 8; ++caller) {
            callers.emplace_back([&, seed = pick(0, 1 << 30)] {
                std::mt19937 own(static_cast<std::uint32_t>(seed));
                const LeaseHandle lease = batched.sibling();
                for (int i = 0; i < 6; ++i) {
                    const Tokens prompt = prompt_of(std::uniform_int_distribution<std::int32_t>(1, 40)(own));
                    const std::int32_t n = std::uniform_int_distribution<std::int32_t>(1, 20)(own);
                    GenerationHandle generation;
                    Error error;
                    do {
                        error = lease->start(request_for(prompt, n)).into(generation);
                    } while (error.code() == ErrorCode::busy);
                    const bool right = !error.failed() && !run(*generation).error.failed() &&
                                       generation->result().tokens == expected_output(prompt, n);
                    wrong += right ? 0 : 1;
                }
            });
        }
        for (std::thread & one : callers) {
            one.join();
        }
        CHECK_EQUAL(wrong.load(), 0);
        CHECK(batched.scene.script->violations().empty());
    }
}

ANER_CASE("B5", every_slot_and_eight_waiters_are_accepted_and_the_next_is_busy_at_once) {
    const Batched batched(2);
    batched.scene.script->hold(1);
    std::vector<GenerationHandle> all;
    for (int i = 0; i < 2 + limits::max_waiting; ++i) {
        all.push_back(batched.submit(request_for(prompt_of(4), 5)));
    }
    batched.scene.script->wait_until_held();
    for (int i = 0; i < 3; ++i) {
        CHECK(batched.refused(request_for(prompt_of(4), 5)).code() == ErrorCode::busy);
    }
    CHECK_EQUAL(batched.lease->scheduler()->load().n_waiting, limits::max_waiting);
    batched.scene.script->release();
    for (const GenerationHandle & one : all) {
        check_whole(*one, prompt_of(4), 5);
    }
    check_whole(*batched.submit(request_for(prompt_of(4), 5)), prompt_of(4), 5);
}

ANER_CASE("B4", a_short_request_that_comes_late_is_through_before_a_long_one) {
    const Batched batched(2);
    const GenerationHandle longer = batched.submit(request_for(prompt_of(4), 59));
    const GenerationHandle first = batched.submit(request_for(prompt_of(4), 2));
    longer->want_result_only();
    check_whole(*first, prompt_of(4), 2);
    check_whole(*batched.submit(request_for(prompt_of(9), 2)), prompt_of(9), 2);
    const Run all = run(*longer);
    CHECK_EQUAL(all.error.message(), "");
    CHECK(longer->result().tokens == expected_output(prompt_of(4), 59));
}

ANER_CASE("B7", a_reader_that_does_not_read_stops_its_own_sequence_and_nobody_else) {
    const Batched batched(2, 32, 300);
    const GenerationHandle unread = batched.submit(request_for(prompt_of(4), 250));
    for (int i = 0; i < 10; ++i) {
        check_whole(*batched.submit(request_for(prompt_of(5), 40)), prompt_of(5), 40);
    }
    std::int32_t n_rows = 0;
    for (const Batch & batch : batched.scene.script->batches()) {
        for (const BatchRow & row : batch) {
            n_rows += row.sequence == 0 && row.wants_logits ? 1 : 0;
        }
    }
    CHECK(n_rows <= limits::max_unread_tokens + 1);
    check_whole(*unread, prompt_of(4), 250);
}

ANER_CASE("B8", a_request_that_waits_for_slots_which_its_own_thread_holds_half_read_fails_instead_of_waiting_for_ever) {
    const Batched batched(2, 32, 300);
    const GenerationHandle first = batched.submit(request_for(prompt_of(4), 250));
    const GenerationHandle second = batched.submit(request_for(prompt_of(5), 250));
    const GenerationHandle third = batched.submit(request_for(prompt_of(6), 3));
    Error error;
    for (int i = 0; i < 1000 && !error.failed(); ++i) {
        Result<GenerationEvent> event = third->next();
        error = event.error();
        CHECK(event.failed() || !event.value().finished);
    }
    CHECK(error.code() == ErrorCode::reentrant_request);
    check_whole(*first, prompt_of(4), 250);
    check_whole(*second, prompt_of(5), 250);
}

ANER_CASE("B12", a_cancelled_request_frees_its_slot_and_harms_nobody) {
    for (const bool queued : {false, true}) {
        const Batched batched(queued ? 1 : 2, 32, 400);
        const GenerationHandle other = batched.submit(request_for(prompt_of(7), 300));
        other->want_result_only();
        const GenerationHandle victim = batched.submit(request_for(prompt_of(4), 300));
        if (!queued) {
            CHECK(!victim->next().failed());
        }
        victim->cancel();
        CHECK(run(*victim).error.code() == ErrorCode::cancelled);
        CHECK(run(*victim).error.code() == ErrorCode::cancelled);
        const Run all = run(*other);
        CHECK_EQUAL(all.error.message(), "");
        CHECK(other->result().tokens == expected_output(prompt_of(7), 300));
        check_whole(*batched.submit(request_for(prompt_of(8), 4)), prompt_of(8), 4);
        CHECK(batched.scene.script->violations().empty());
    }
}

ANER_CASE("B12", a_timeout_ends_a_request_that_runs_waits_or_is_not_read) {
    const Batched batched(1, 32, 600);
    GenerationRequest unread = request_for(prompt_of(4), 500);
    unread.timeout = 30'000'000;
    const GenerationHandle running = batched.submit(unread);
    GenerationRequest late = request_for(prompt_of(4), 5);
    late.timeout = 10'000'000;
    const GenerationHandle waiting = batched.submit(late);
    CHECK(run(*waiting).error.code() == ErrorCode::timeout);
    check_whole(*batched.submit(request_for(prompt_of(6), 3)), prompt_of(6), 3);  // nobody read the first: its time ran out
    CHECK(run(*running).error.code() == ErrorCode::timeout);
}

ANER_CASE("B6", closing_the_lease_harms_no_accepted_request) {
    GenerationHandle generation;
    Scene scene;
    {
        const Batched batched(1);
        generation = batched.submit(request_for(prompt_of(4), 9));
    }
    check_whole(*generation, prompt_of(4), 9);
}

ANER_CASE("B9", a_lease_admits_one_request_and_the_next_as_soon_as_that_one_is_known_to_be_over) {
    const Batched batched(2);
    for (int i = 0; i < 50; ++i) {
        const GenerationHandle first = start(batched.lease, request_for(prompt_of(4), 3));
        GenerationHandle second;
        if (i == 0) {
            CHECK(batched.lease->start(request_for(prompt_of(4), 3)).into(second).code() == ErrorCode::busy);
        }
        check_whole(*first, prompt_of(4), 3);
    }
}

ANER_CASE("B12", a_failed_call_costs_nobody_who_can_be_evaluated_alone) {
    for (int call = 1; call <= 12; ++call) {
        const Batched batched(3);
        batched.scene.script->failing_call = batched.scene.script->n_calls() + call;
        std::vector<GenerationHandle> all;
        for (std::int32_t i = 0; i < 3; ++i) {
            all.push_back(batched.submit(request_for(prompt_of(3 + i), 8)));
        }
        for (std::int32_t i = 0; i < 3; ++i) {
            check_whole(*all[static_cast<std::size_t>(i)], prompt_of(3 + i), 8);
        }
        CHECK(batched.scene.script->violations().empty());
    }
}

ANER_CASE("B12", logits_that_are_not_numbers_end_one_step_s_requests_and_the_next_ones_are_right) {
    const Batched batched(2);
    batched.scene.script->nan_call = batched.scene.script->n_calls() + 2;
    const GenerationHandle first = batched.submit(request_for(prompt_of(3), 8));
    CHECK(run(*first).error.code() == ErrorCode::invalid_output);
    check_whole(*batched.submit(request_for(prompt_of(3), 8)), prompt_of(3), 8);
}

ANER_CASE("B12", an_engine_that_fails_for_good_is_told_to_everyone_and_nobody_waits) {
    const Batched batched(2);
    batched.scene.script->next = [](const Tokens &) -> Token { throw std::runtime_error("for good"); };
    std::vector<GenerationHandle> all;
    for (int i = 0; i < 6; ++i) {
        all.push_back(batched.submit(request_for(prompt_of(3 + i), 8)));
    }
    for (const GenerationHandle & one : all) {
        CHECK(run(*one).error.failed());
    }
    wait_for([&] { return batched.refused(request_for(prompt_of(3), 2)).code() == ErrorCode::engine; });
}

ANER_CASE("B10", a_batching_lease_refuses_every_builder) {
    const Batched batched(2);
    LeaseHandle derived;
    std::shared_ptr<Session> session;
    CHECK(batched.lease->with_optimizer({}).into(derived).code() == ErrorCode::unsupported_operation);
    CHECK(batched.lease->with_context_pool(1).into(derived).code() == ErrorCode::unsupported_operation);
    CHECK(batched.lease->with_adapter("x", 1).into(derived).code() == ErrorCode::unsupported_operation);
    CHECK(batched.lease->with_batching({2}).into(derived).code() == ErrorCode::unsupported_operation);
    CHECK(batched.lease->session().into(session).code() == ErrorCode::unsupported_operation);
}

ANER_CASE("B1", settings_outside_their_ranges_are_refused_with_both_numbers) {
    const Scene scene;
    const LeaseHandle lease = scene.lease();
    LeaseHandle derived;
    for (const std::int32_t n : {-1, 0, 257}) {
        CHECK(lease->with_batching({n}).into(derived).code() == ErrorCode::configuration);
    }
    OptimizerSettings settings;
    settings.batch_tokens = settings.micro_batch_tokens = 3;
    settings.prefix_cache_tokens = 16;
    LeaseHandle tuned;
    CHECK_EQUAL(lease->with_optimizer(settings).into(tuned).message(), "");
    const Error error = tuned->with_batching({4}).into(derived);
    CHECK(error.code() == ErrorCode::configuration);
    CHECK(error.message().find("batch_tokens is 3 and max_sequences is 4") != std::string::npos);
    CHECK(!tuned->with_batching({3}).into(derived).failed());
    settings.speculative_tokens = 2;
    CHECK_EQUAL(lease->with_optimizer(settings).into(tuned).message(), "");
    CHECK(tuned->with_batching({2}).into(derived).code() == ErrorCode::unsupported_combination);
}

ANER_CASE("B2", gaps_between_the_ids_that_run_are_filled_and_leave_nothing_behind) {
    const Batched batched(4, 32, 200);
    std::vector<GenerationHandle> all;
    for (std::int32_t i = 0; i < 4; ++i) {
        all.push_back(batched.submit(request_for(prompt_of(3 + i), i == 0 || i == 3 ? 150 : 2)));
        all.back()->want_result_only();
    }
    for (std::int32_t i = 0; i < 4; ++i) {
        CHECK_EQUAL(run(*all[static_cast<std::size_t>(i)]).error.message(), "");
        CHECK(all[static_cast<std::size_t>(i)]->result().tokens == expected_output(prompt_of(3 + i), i == 0 || i == 3 ? 150 : 2));
    }
    bool filled = false;
    for (const Batch & batch : batched.scene.script->batches()) {
        for (const BatchRow & row : batch) {
            filled = filled || (row.sequence == 1 && !row.wants_logits && row.position == 0 && row.token == 0);
        }
    }
    CHECK(filled);
    CHECK(batched.scene.script->violations().empty());
}

ANER_CASE("P9", a_request_for_no_tokens_takes_no_slot) {
    const Batched batched(1);
    batched.scene.script->hold(batched.scene.script->n_calls() + 1);
    const GenerationHandle running = batched.submit(request_for(prompt_of(3), 3));
    batched.scene.script->wait_until_held();
    const GenerationHandle none = batched.submit(request_for(prompt_of(3), 0));
    CHECK_EQUAL(run(*none).error.message(), "");
    CHECK(none->result().tokens.empty());
    batched.scene.script->release();
    check_whole(*running, prompt_of(3), 3);
}

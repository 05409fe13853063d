#include "scripted_run.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <numeric>
#include <thread>

using namespace aner;
using namespace aner::testing;

namespace {

Error start_error(const LeaseHandle & lease, GenerationRequest request) {
    GenerationHandle generation;
    return lease->start(std::move(request)).into(generation);
}

LeaseHandle sibling_of(const LeaseHandle & lease) {
    LeaseHandle sibling;
    CHECK_EQUAL(lease->native_stateless().into(sibling).message(), "");
    return sibling;
}

bool same(const Profile & a, const Profile & b) {
    const OptimizerSettings & x = a.optimizer;
    const OptimizerSettings & y = b.optimizer;
    return a.max_idle_contexts == b.max_idle_contexts && x.threads == y.threads && x.prefill_threads == y.prefill_threads &&
           x.batch_tokens == y.batch_tokens && x.micro_batch_tokens == y.micro_batch_tokens &&
           x.prefix_cache_entries == y.prefix_cache_entries && x.prefix_cache_tokens == y.prefix_cache_tokens &&
           x.speculative_tokens == y.speculative_tokens;
}

}  // namespace

ANER_CASE("", an_admission_is_given_back_when_it_ends_and_only_once_when_it_moved) {
    const auto taken = std::make_shared<std::atomic<bool>>(true);
    {
        Admission first(taken);
        {
            const Admission moved(std::move(first));
            CHECK(taken->load());
        }
        CHECK(!taken->load());
        taken->store(true);  // the next caller's
    }
    CHECK(taken->load());
}

ANER_CASE("B9", a_second_request_on_a_lease_is_busy_until_the_first_has_ended) {
    const Scene scene;
    const LeaseHandle lease = scene.lease();
    GenerationHandle first = start(lease, request_for(prompt_of(4), 3));
    const int n_made = scene.script->n_made();
    for (int i = 0; i < 3; ++i) {
        const Error error = start_error(lease, request_for(prompt_of(4), 3));
        CHECK(error.code() == ErrorCode::busy);
        CHECK(error.message().find("native_stateless()") != std::string::npos);
        (void) first->next();
    }
    CHECK_EQUAL(scene.script->n_made(), n_made);
    CHECK(!start_error(lease, request_for(prompt_of(4), 3)).failed());  // finished
    first = start(lease, request_for(prompt_of(4), 3));
    first.reset();  // given up
    check_answer(lease, prompt_of(4), 3);
}

ANER_CASE("B9", a_wrong_request_is_refused_as_wrong_even_while_the_lease_is_busy_and_takes_nothing) {
    const Scene scene;
    const LeaseHandle lease = scene.lease();
    CHECK(start_error(lease, request_for({}, 3)).code() == ErrorCode::invalid_request);
    const GenerationHandle running = start(lease, request_for(prompt_of(4), 3));
    CHECK(start_error(lease, request_for({}, 3)).code() == ErrorCode::invalid_request);
    CHECK_EQUAL(run(*running).error.message(), "");
}

ANER_CASE("B9", siblings_admit_a_caller_each_and_share_one_pool) {
    const Scene scene;
    const LeaseHandle lease = scene.lease(3);
    const LeaseHandle second = sibling_of(lease);
    const LeaseHandle third = sibling_of(second);
    CHECK(&lease->pool() == &second->pool() && &lease->pool() == &third->pool());
    CHECK(&lease->model() == &third->model());
    CHECK(same(lease->profile(), third->profile()));
    const std::array<GenerationHandle, 3> running = {start(lease, request_for(prompt_of(4), 5)),
                                                     start(second, request_for(prompt_of(5), 5)),
                                                     start(third, request_for(prompt_of(6), 5))};
    for (const LeaseHandle & each : {lease, second, third}) {
        CHECK(start_error(each, request_for(prompt_of(4), 3)).code() == ErrorCode::busy);
    }
    for (int i = 0; i < 5; ++i) {
        for (const GenerationHandle & each : running) {  // turn by turn
            CHECK(!each->next().failed());
        }
    }
    for (std::int32_t i = 0; i < 3; ++i) {
        CHECK(running[static_cast<std::size_t>(i)]->result().tokens == expected_output(prompt_of(4 + i), 5));
    }
    CHECK_EQUAL(lease->pool().n_idle(), 3);
    CHECK(scene.script->violations().empty());
}

ANER_CASE("B9 Z1", of_many_concurrent_callers_of_one_lease_one_is_admitted_and_siblings_run_side_by_side) {
    const Scene scene;
    const LeaseHandle lease = scene.lease(2);
    std::atomic<int> n_inside{0};
    std::atomic<int> n_wrong{0};
    std::atomic<int> n_answers{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 6; ++t) {
        threads.emplace_back([&, t] {
            const LeaseHandle own = sibling_of(lease);
            for (int i = 0; i < 60; ++i) {
                const bool shared = (t + i) % 2 == 0;
                const Tokens prompt = prompt_of(1 + (t + i) % 5);
                GenerationHandle generation;
                const Error error = (shared ? lease : own)->start(request_for(prompt, 4)).into(generation);
                if (error.failed()) {
                    n_wrong += shared && error.code() == ErrorCode::busy ? 0 : 1;
                    continue;
                }
                n_wrong += shared && n_inside.fetch_add(1) != 0 ? 1 : 0;
                for (int step = 1; step < 4; ++step) {
                    n_wrong += generation->next().failed() ? 1 : 0;
                }
                n_inside -= shared ? 1 : 0;  // before the last step lets the next caller in
                n_wrong += run(*generation).error.failed() ? 1 : 0;
                n_wrong += generation->result().tokens == expected_output(prompt, 4) ? 0 : 1;
                n_answers += 1;
            }
        });
    }
    for (std::thread & thread : threads) {
        thread.join();
    }
    CHECK_EQUAL(n_wrong.load(), 0);
    CHECK(n_answers.load() >= 180);
    CHECK(lease->pool().n_idle() <= 2);
    CHECK(scene.script->violations().empty());
}

ANER_CASE("P11 O7", with_context_pool_makes_a_lease_with_its_own_pool_and_leaves_the_source_as_it_was) {
    const Scene scene;
    const LeaseHandle source = scene.lease(1);
    const Profile before = source->profile();
    for (std::int32_t max_idle = 0; max_idle <= 4; ++max_idle) {
        LeaseHandle derived;
        CHECK(!source->with_context_pool(max_idle).into(derived).failed());
        CHECK(&derived->pool() != &source->pool());
        CHECK(&derived->model() == &source->model());
        CHECK_EQUAL(derived->pool().max_idle(), max_idle);
        CHECK_EQUAL(derived->profile().max_idle_contexts, max_idle);
        Profile expected = before;
        expected.max_idle_contexts = max_idle;
        CHECK(same(derived->profile(), expected));
        CHECK(same(source->profile(), before));
        check_answer(derived, prompt_of(4), 3);
        CHECK_EQUAL(derived->pool().n_idle(), std::min(max_idle, 1));
    }
    CHECK_EQUAL(source->pool().n_idle(), 1);
}

ANER_CASE("P11", a_bound_outside_0_to_4_is_a_configuration_error_with_the_limit_and_the_value) {
    const Scene scene;
    const LeaseHandle lease = scene.lease();
    for (const std::int32_t max_idle : {-1, 5, 1000}) {
        const Error error = lease->with_context_pool(max_idle).error();
        CHECK(error.code() == ErrorCode::configuration);
        CHECK_EQUAL(error.message(), "max_idle is " + std::to_string(max_idle) + ": it must be within 0..4");
    }
}

ANER_CASE("O7", a_profile_does_not_change_by_what_its_lease_does) {
    const Scene scene;
    const LeaseHandle lease = scene.lease();
    const Profile before = lease->profile();
    check_answer(lease, prompt_of(4), 3);
    const GenerationHandle running = start(lease, request_for(prompt_of(4), 3));
    running->cancel();
    (void) sibling_of(lease);
    CHECK(same(lease->profile(), before));
}

ANER_CASE("", an_ordinary_lease_cuts_its_defaults_to_a_small_context) {
    const Scene scene(16);
    LeaseHandle lease;
    CHECK(!Lease::make(scene.model).into(lease).failed());
    CHECK_EQUAL(lease->profile().optimizer.prefix_cache_tokens, 16);
    CHECK_EQUAL(lease->profile().max_idle_contexts, 1);
    CHECK_EQUAL(lease->pool().settings().batch_tokens, 16);
    CHECK_EQUAL(lease->pool().n_idle(), 1);
    CHECK(!validate(lease->profile().optimizer, 16).failed());
}

ANER_CASE("", settings_that_the_engine_refuses_fail_when_the_lease_is_made) {
    const Scene scene;
    const LeaseHandle lease = scene.lease();
    scene.script->make_failure = Error{ErrorCode::unsupported_combination, "not with this model"};
    CHECK(Lease::make(scene.model).error().code() == ErrorCode::unsupported_combination);
    CHECK(lease->with_context_pool(2).error().code() == ErrorCode::unsupported_combination);
}

ANER_CASE("O9", a_request_finishes_after_its_lease_is_gone) {
    const Scene scene;
    LeaseHandle lease = scene.lease();
    LeaseHandle derived = sibling_of(lease);
    const GenerationHandle generation = start(lease, request_for(prompt_of(4), 6));
    CHECK(!generation->next().failed());
    lease.reset();
    check_answer(derived, prompt_of(5), 3);
    derived.reset();
    CHECK_EQUAL(run(*generation).error.message(), "");
    CHECK(generation->result().tokens == expected_output(prompt_of(4), 6));
}

ANER_CASE("Z1 O9", everything_may_be_destroyed_in_any_order_and_the_weights_go_last) {
    std::array<int, 6> order{};
    std::iota(order.begin(), order.end(), 0);
    do {
        auto scene = std::make_unique<Scene>();
        const std::shared_ptr<Script> script = scene->script;
        std::array<std::shared_ptr<const void>, 6> parts;
        {
            const LeaseHandle lease = scene->lease(2);
            const LeaseHandle sibling = sibling_of(lease);
            const GenerationHandle running = start(lease, request_for(prompt_of(4), 6));
            CHECK(!running->next().failed());
            const GenerationHandle finished = start(sibling, request_for(prompt_of(4), 1));
            CHECK_EQUAL(run(*finished).error.message(), "");
            const std::shared_ptr<ContextPool> pool = scene->pool(4);
            CHECK(!pool->prove().failed());
            parts = {scene->model, lease, sibling, running, finished, pool};
        }
        const std::weak_ptr<const Model> model = scene->model;
        scene.reset();
        for (const int i : order) {
            CHECK(!model.expired());
            parts[static_cast<std::size_t>(i)].reset();
        }
        CHECK(model.expired());
        CHECK_EQUAL(script->n_alive(), 0);
        CHECK(script->violations().empty());
    } while (std::next_permutation(order.begin(), order.end()));
}

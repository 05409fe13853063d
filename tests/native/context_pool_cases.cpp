#include "scripted_run.hpp"

#include <algorithm>
#include <atomic>
#include <thread>

using namespace aner;
using namespace aner::testing;

namespace {

using Hold = std::unique_ptr<ContextHold>;

struct Loan {
    Hold hold;
    Timings timings;

    Error keep() { return hold->keep({}, 0, 0, timings); }
    [[nodiscard]] Decoder & decoder() const { return hold->decoder(); }
};

Loan acquire(ContextPool & pool) {
    Loan loan;
    CHECK_EQUAL(pool.acquire({5, 6}, 0, loan.timings).into(loan.hold).message(), "");
    return loan;
}

}  // namespace

ANER_CASE("P11", the_pool_keeps_at_most_max_idle_contexts_and_bounds_only_idle_ones) {
    for (std::int32_t max_idle = 0; max_idle <= limits::max_idle_contexts; ++max_idle) {
        const Scene scene;
        const std::shared_ptr<ContextPool> pool = scene.pool(4, max_idle);
        std::vector<Loan> busy;
        for (int i = 0; i < 6; ++i) {
            busy.push_back(acquire(*pool));
        }
        CHECK_EQUAL(scene.script->n_alive(), 6);
        for (int i = 0; i < 6; ++i) {
            CHECK(!busy[static_cast<std::size_t>(i)].keep().failed());
            CHECK_EQUAL(pool->n_idle(), std::min(i + 1, max_idle));
            CHECK_EQUAL(scene.script->n_alive(), 5 - i + std::min(i + 1, max_idle));
        }
    }
}

ANER_CASE("P6", a_loan_that_is_not_retained_frees_its_context) {
    const Scene scene;
    const std::shared_ptr<ContextPool> pool = scene.pool(4, 4);
    {
        const Loan fresh = acquire(*pool);
        CHECK_EQUAL(fresh.timings.context_pool_reused, 0);
        CHECK_EQUAL(scene.script->n_alive(), 1);
    }
    CHECK_EQUAL(scene.script->n_alive(), 0);
    CHECK_EQUAL(pool->n_idle(), 0);
    CHECK_EQUAL(scene.script->n_cleared(), 0);
}

ANER_CASE("P6", a_retained_context_is_empty_and_comes_back) {
    const Scene scene;
    const std::shared_ptr<ContextPool> pool = scene.pool(4);
    const Decoder * first = nullptr;
    {
        Loan lease = acquire(*pool);
        first = &lease.decoder();
        CHECK(!lease.decoder().decode({{5, 0, 0, false}, {6, 1, 0, true}}).failed());
        CHECK(!lease.keep().failed());
    }
    Loan again = acquire(*pool);
    CHECK_EQUAL(again.timings.context_pool_reused, 1);
    CHECK(&again.decoder() == first);
    CHECK_EQUAL(again.decoder().max_position(0), -1);
    CHECK_EQUAL(pool->n_idle(), 0);
    CHECK_EQUAL(scene.script->n_made(), 1);
}

ANER_CASE("P6", a_context_that_refuses_to_be_cleared_is_freed_with_the_error) {
    const Scene scene;
    const std::shared_ptr<ContextPool> pool = scene.pool(4);
    Loan lease = acquire(*pool);
    scene.script->clearing = Clearing::refused;
    CHECK(lease.keep().code() == ErrorCode::engine);
    lease.hold.reset();
    CHECK_EQUAL(scene.script->n_alive(), 0);
    CHECK_EQUAL(pool->n_idle(), 0);
}

ANER_CASE("", the_context_that_was_used_last_is_lent_first) {
    const Scene scene;
    const std::shared_ptr<ContextPool> pool = scene.pool(4, 2);
    Loan first = acquire(*pool);
    Loan second = acquire(*pool);
    const Decoder * const last = &first.decoder();
    CHECK(!second.keep().failed());
    CHECK(!first.keep().failed());
    CHECK(&acquire(*pool).decoder() == last);
}

ANER_CASE("", proving_a_pool_makes_one_context_keeps_it_if_there_is_room_and_tells_what_it_is) {
    for (const std::int32_t max_idle : {0, 1}) {
        const Scene scene;
        const std::shared_ptr<ContextPool> pool = scene.pool(4, max_idle);
        CHECK(!pool->prove().failed());
        CHECK_EQUAL(scene.script->n_made(), 1);
        CHECK_EQUAL(pool->n_idle(), max_idle);
        CHECK_EQUAL(scene.script->n_alive(), max_idle);
        CHECK_EQUAL(pool->resolved().micro_batch_tokens, 4);
        CHECK_EQUAL(pool->memory().kv, 640);
    }
}

ANER_CASE("", a_context_that_cannot_be_made_is_the_makers_error) {
    const Scene scene;
    const std::shared_ptr<ContextPool> pool = scene.pool(4);
    scene.script->make_failure = Error{ErrorCode::unsupported_combination, "not with this model"};
    CHECK(pool->prove().code() == ErrorCode::unsupported_combination);
    Timings timings;
    CHECK(pool->acquire({5}, 0, timings).error().code() == ErrorCode::unsupported_combination);
}

ANER_CASE("P11 Z1", a_pool_that_many_threads_use_keeps_its_bound_and_lends_a_context_to_one_at_a_time) {
    const Scene scene;
    const std::shared_ptr<ContextPool> pool = scene.pool(4, 2);
    std::atomic<int> n_wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 6; ++t) {
        threads.emplace_back([&, t] {
            for (int i = 0; i < 300; ++i) {
                Loan lease = acquire(*pool);
                n_wrong += lease.decoder().max_position(0) != -1 ? 1 : 0;
                n_wrong += lease.decoder().decode({{5, 0, 0, true}}).failed() ? 1 : 0;
                n_wrong += pool->n_idle() > 2 ? 1 : 0;
                if ((t + i) % 3 != 0) {
                    n_wrong += lease.keep().failed() ? 1 : 0;
                }
            }
        });
    }
    for (std::thread & thread : threads) {
        thread.join();
    }
    CHECK_EQUAL(n_wrong.load(), 0);
    CHECK_EQUAL(pool->n_idle(), scene.script->n_alive());
    CHECK(pool->n_idle() <= 2);
    CHECK(scene.script->violations().empty());
}

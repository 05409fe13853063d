#include "scripted_run.hpp"

using namespace aner;
using namespace aner::testing;

namespace {

// The request failed: its context is gone, the lease is free, and whatever the request is asked now is the same error.
void check_discarded(const Scene & scene, const LeaseHandle & lease, Generation & generation, const Error & error) {
    CHECK_EQUAL(lease->pool().n_idle(), 0);
    CHECK_EQUAL(scene.script->n_alive(), 0);
    const int n_calls = scene.script->n_calls();
    for (int i = 0; i < 2; ++i) {
        const Error again = generation.next().error();
        CHECK(again.code() == error.code());
        CHECK_EQUAL(again.message(), error.message());
    }
    CHECK_EQUAL(scene.script->n_calls(), n_calls);
    check_answer(lease, prompt_of(7), 5);
    CHECK(scene.script->violations().empty());
}

}  // namespace

ANER_CASE("P7", a_failed_engine_call_discards_the_context_whichever_it_was) {
    for (const ErrorCode code : {ErrorCode::engine, ErrorCode::out_of_memory, ErrorCode::cancelled}) {
        for (int call = 1; call <= 6; ++call) {
            const Scene scene;
            const LeaseHandle lease = scene.lease();
            check_answer(lease, prompt_of(4), 3);  // three calls, and an idle context
            scene.script->failing_call = 3 + call;
            scene.script->failure = Error{code, "it broke"};
            const GenerationHandle generation = start(lease, request_for(prompt_of(9), 6));
            const Run all = run(*generation);
            CHECK(all.error.code() == code);
            CHECK_EQUAL(all.error.message(), "it broke");
            CHECK_EQUAL(all.n_steps, call);
            CHECK_EQUAL(all.streamed, letters_of(expected_output(prompt_of(9), call - 1)));
            check_discarded(scene, lease, *generation, all.error);
        }
    }
}

ANER_CASE("P7", a_chunk_of_a_prompt_that_fails_discards_the_context) {
    for (int call = 1; call <= 3; ++call) {
        const Scene scene;
        const std::shared_ptr<ContextPool> pool = scene.pool(4);
        scene.script->failing_call = call;
        const GenerationHandle generation = start(scene.model, pool, request_for(prompt_of(10), 3));
        CHECK(run(*generation).error.code() == ErrorCode::engine);
        CHECK_EQUAL(scene.script->n_alive(), 0);
        CHECK_EQUAL(pool->n_idle(), 0);
    }
}

ANER_CASE("P7", logits_that_are_not_numbers_are_invalid_output_and_discard_the_context) {
    for (int call = 1; call <= 4; ++call) {
        const Scene scene;
        const LeaseHandle lease = scene.lease();
        scene.script->nan_call = call;
        const GenerationHandle generation = start(lease, request_for(prompt_of(9), 4));
        const Run all = run(*generation);
        CHECK(all.error.code() == ErrorCode::invalid_output);
        CHECK_EQUAL(all.n_steps, call);
        check_discarded(scene, lease, *generation, all.error);
    }
}

ANER_CASE("E2", logits_that_are_missing_are_an_engine_error_and_discard_the_context) {
    for (int call = 1; call <= 3; ++call) {
        const Scene scene;
        const LeaseHandle lease = scene.lease();
        scene.script->rowless_call = call;
        const GenerationHandle generation = start(lease, request_for(prompt_of(9), 4));
        const Run all = run(*generation);
        CHECK(all.error.code() == ErrorCode::engine);
        CHECK(!all.error.message().empty());
        check_discarded(scene, lease, *generation, all.error);
    }
}

ANER_CASE("P7", options_that_ban_every_token_fail_the_request_and_discard_the_context) {
    const Scene scene;
    const LeaseHandle lease = scene.lease();
    GenerationRequest request = request_for(prompt_of(3), 4);
    for (Token token = 0; token < ScriptedModel::k_n_vocab; ++token) {
        request.sampling.logit_bias.emplace_back(token, -std::numeric_limits<float>::infinity());
    }
    const GenerationHandle generation = start(lease, std::move(request));
    const Run all = run(*generation);
    CHECK(all.error.code() == ErrorCode::invalid_request);
    check_discarded(scene, lease, *generation, all.error);
}

ANER_CASE("P6", only_a_request_that_succeeded_returns_its_context) {
    const Scene scene;
    const LeaseHandle lease = scene.lease();
    const int n_made = scene.script->n_made();
    for (int i = 0; i < 5; ++i) {
        const GenerationHandle generation = start(lease, request_for(prompt_of(5 + i), 4));
        CHECK_EQUAL(lease->pool().n_idle(), 0);
        CHECK_EQUAL(run(*generation).error.message(), "");
        CHECK_EQUAL(lease->pool().n_idle(), 1);
        CHECK_EQUAL(generation->result().timings.context_pool_reused, 1);
    }
    CHECK_EQUAL(scene.script->n_made(), n_made);
    {
        const GenerationHandle unfinished = start(lease, request_for(prompt_of(5), 4));
        CHECK(!unfinished->next().failed());
    }
    CHECK_EQUAL(lease->pool().n_idle(), 0);
    CHECK_EQUAL(scene.script->n_alive(), 0);
    check_answer(lease, prompt_of(6), 4);
    CHECK_EQUAL(scene.script->n_made(), n_made + 1);
}

ANER_CASE("P1", an_ordinary_request_leaves_an_empty_context_and_reuses_no_token) {
    const Scene scene;
    const LeaseHandle lease = scene.lease();
    const Tokens prompt = prompt_of(12);
    for (int i = 0; i < 3; ++i) {  // the same prompt, so that a prefix would be found
        scene.script->forget_batches();
        const GenerationHandle generation = start(lease, request_for(prompt, 4));
        CHECK_EQUAL(run(*generation).error.message(), "");
        CHECK_EQUAL(generation->result().timings.cached_input_tokens, 0);
        CHECK_EQUAL(generation->result().timings.evaluated_input_tokens, 12);
        CHECK_EQUAL(scene.script->batches().at(0).size(), 12U);
        CHECK_EQUAL(scene.script->batches().at(0).at(0).position, 0);
    }
    const std::shared_ptr<ContextPool> pool = scene.pool(4);
    CHECK_EQUAL(run(*start(scene.model, pool, request_for(prompt, 4))).error.message(), "");
    CHECK_EQUAL(pool->n_idle(), 1);
    Timings timings;
    std::unique_ptr<ContextHold> idle;
    CHECK_EQUAL(pool->acquire(prompt, 0, timings).into(idle).message(), "");
    CHECK_EQUAL(timings.context_pool_reused, 1);
    CHECK_EQUAL(idle->decoder().max_position(0), -1);
}

ANER_CASE("P6", a_context_that_cannot_be_cleared_is_freed_and_its_answer_stands) {
    const Scene scene;
    const LeaseHandle lease = scene.lease();
    scene.script->clearing = Clearing::refused;
    const GenerationHandle generation = start(lease, request_for(prompt_of(5), 4));
    CHECK_EQUAL(run(*generation).error.message(), "");
    CHECK(generation->result().tokens == expected_output(prompt_of(5), 4));
    CHECK_EQUAL(generation->result().timings.context_clear_duration, k_unmeasured);
    CHECK_EQUAL(lease->pool().n_idle(), 0);
    CHECK_EQUAL(scene.script->n_alive(), 0);
    scene.script->clearing = Clearing::honest;
    check_answer(lease, prompt_of(6), 4);
    CHECK_EQUAL(lease->pool().n_idle(), 1);
}

ANER_CASE("P6", a_context_that_only_claims_to_be_empty_never_gives_an_answer) {
    const Scene scene;
    const LeaseHandle lease = scene.lease();
    scene.script->clearing = Clearing::pretended;
    for (int i = 0; i < 2; ++i) {
        const GenerationHandle generation = start(lease, request_for(prompt_of(5), 4));
        const Run all = run(*generation);
        CHECK(all.error.failed() ? all.error.code() == ErrorCode::engine
                                 : generation->result().tokens == expected_output(prompt_of(5), 4));
    }
    scene.script->clearing = Clearing::honest;
    check_answer(lease, prompt_of(5), 4);
    CHECK(scene.script->violations().empty());
}

ANER_CASE("Z1", a_context_that_cannot_be_made_fails_the_start_and_frees_the_lease) {
    const Scene scene;
    const LeaseHandle lease = scene.lease(0);
    for (int i = 0; i < 3; ++i) {
        scene.script->make_failure = Error{ErrorCode::out_of_memory, "no room for a context"};
        GenerationHandle generation;
        const Error error = lease->start(request_for(prompt_of(3), 4)).into(generation);
        CHECK(error.code() == ErrorCode::out_of_memory && generation == nullptr);
        CHECK_EQUAL(error.message(), "no room for a context");
        scene.script->make_failure = Error{};
        check_answer(lease, prompt_of(3), 4);
    }
}

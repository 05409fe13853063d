#include "scripted_run.hpp"

using namespace aner;
using namespace aner::testing;

namespace {

constexpr std::int32_t k_n_vocab = 100;
constexpr std::int32_t k_context = 32;

void check_refused(const GenerationRequest & request, ErrorCode code, const std::vector<const char *> & mentions) {
    const Error error = validate(request, k_n_vocab, k_context);
    CHECK(error.code() == code);
    for (const char * part : mentions) {
        CHECK_EQUAL(error.message().find(part) != std::string::npos ? "" : error.message(), "");
    }
}

}  // namespace

ANER_CASE("L15", a_prompt_holds_at_most_context_minus_one_tokens_and_the_error_has_both_counts) {
    CHECK(!validate(request_for(Tokens(31, 5), 1), k_n_vocab, k_context).failed());
    check_refused(request_for(Tokens(32, 5), 1), ErrorCode::context_full, {"32 tokens", "holds 32"});
    check_refused(request_for(Tokens(320, 5), 1), ErrorCode::context_full, {"320 tokens", "holds 32"});
    check_refused(request_for(Tokens(32, 5), 0), ErrorCode::context_full, {"32 tokens"});
    check_refused(request_for({}, 1), ErrorCode::invalid_request, {"no tokens"});
}

ANER_CASE("Z7", tokens_outside_the_vocabulary_are_refused) {
    CHECK(!validate(request_for({0, 99}, 1), k_n_vocab, k_context).failed());
    for (const Token token : {-1, 100, std::numeric_limits<Token>::min(), std::numeric_limits<Token>::max()}) {
        check_refused(request_for({0, token, 5}, 1), ErrorCode::invalid_request, {"the prompt", "0..99"});
    }
}

ANER_CASE("Z7", budgets_out_of_range_are_refused) {
    GenerationRequest request = request_for({1}, -1);
    check_refused(request, ErrorCode::invalid_request, {"max_tokens is -1"});
    request.max_tokens = std::numeric_limits<std::int32_t>::max();
    CHECK(!validate(request, k_n_vocab, k_context).failed());
    request.max_tokens = 3;
    request.sampling.min_tokens = 3;
    CHECK(!validate(request, k_n_vocab, k_context).failed());
    request.sampling.min_tokens = 4;
    check_refused(request, ErrorCode::invalid_request, {"min_tokens is 4", "max_tokens is 3"});
}

ANER_CASE("Z7", stop_strings_and_sampling_options_are_validated_with_the_request) {
    GenerationRequest request = request_for({1}, 5);
    request.stop = {"x", ""};
    check_refused(request, ErrorCode::invalid_request, {"stop[1]"});
    request.stop.clear();
    request.sampling.top_p = 0;
    check_refused(request, ErrorCode::invalid_request, {"top_p"});
    request.sampling.top_p = 1;
    request.sampling.stop_token_ids = {100};
    check_refused(request, ErrorCode::invalid_request, {"stop_token_ids"});
}

ANER_CASE("L15 Z7", a_refused_request_takes_no_context_and_leaves_the_lease_free) {
    const Scene scene(16);
    const LeaseHandle lease = scene.lease();
    for (int i = 0; i < 3; ++i) {
        GenerationHandle generation;
        CHECK(lease->start(request_for(prompt_of(16), 1)).into(generation).code() == ErrorCode::context_full);
        CHECK(lease->start(request_for({ScriptedModel::k_n_vocab}, 1)).into(generation).code() == ErrorCode::invalid_request);
        CHECK_EQUAL(lease->pool().n_idle(), 1);
        CHECK_EQUAL(scene.script->n_calls(), i);
        check_answer(lease, prompt_of(15), 1);
    }
}

// Every duration was measured, and each lies inside those that contain it.
ANER_CASE("T1 T3 T7", the_durations_of_a_request_lie_inside_each_other) {
    const Scene scene;
    const std::shared_ptr<ContextPool> pool = scene.pool(4);
    for (int i = 0; i < 3; ++i) {
        GenerationRequest request = request_for(prompt_of(10), 5);
        request.template_duration = 21;
        request.tokenize_duration = 22;
        request.start -= std::chrono::seconds(2);  // it waited
        const Clock::time_point start_of_request = request.start;
        const Clock::time_point start_of_work = Clock::now();
        const GenerationHandle generation = start(scene.model, pool, std::move(request));
        CHECK_EQUAL(run(*generation).error.message(), "");
        const Nanoseconds worked = elapsed(start_of_work, Clock::now());
        const Timings & t = generation->result().timings;
        CHECK_EQUAL(t.template_duration, 21);
        CHECK_EQUAL(t.tokenize_duration, 22);
        for (const Nanoseconds each :
             {t.context_acquire_duration, t.prefill_duration, t.generation_duration, t.context_clear_duration}) {
            CHECK(each >= 0);
        }
        CHECK(t.prefill_duration > 0 && t.generation_duration > 0);
        CHECK(t.context_acquire_duration + t.prefill_duration + t.generation_duration + t.context_clear_duration <= worked);
        CHECK(t.first_token_duration >= 2'000'000'000 + t.context_acquire_duration + t.prefill_duration);
        CHECK(t.total_duration >= t.first_token_duration + t.generation_duration + t.context_clear_duration);
        CHECK(t.total_duration <= elapsed(start_of_request, Clock::now()));
        CHECK_EQUAL(t.context_pool_reused, i == 0 ? 0 : 1);
    }
}

ANER_CASE("T1", the_counts_of_a_request_are_those_of_what_was_evaluated) {
    for (std::int32_t n = 1; n < 12; ++n) {
        const Scene scene;
        const GenerationHandle generation = start(scene.model, scene.pool(4), request_for(prompt_of(n), n));
        CHECK_EQUAL(run(*generation).error.message(), "");
        const Timings & t = generation->result().timings;
        std::int64_t n_rows = 0;
        for (const Batch & batch : scene.script->batches()) {
            n_rows += static_cast<std::int64_t>(batch.size());
        }
        CHECK_EQUAL(t.input_tokens, n);
        CHECK_EQUAL(t.cached_input_tokens + t.evaluated_input_tokens, t.input_tokens);
        CHECK_EQUAL(t.output_tokens, n);
        CHECK_EQUAL(t.evaluated_input_tokens + t.output_tokens - 1, n_rows);
        CHECK_EQUAL(generation->result().timed_tokens, n - 1);  // the first one came with the prompt
        CHECK_EQUAL(t.threads, 1);
        CHECK_EQUAL(t.prefill_threads, 2);
        CHECK_EQUAL(t.batch_tokens, 8);
        CHECK_EQUAL(t.micro_batch_tokens, 4);
    }
}

ANER_CASE("T2", what_was_not_measured_is_minus_one) {
    const Scene scene;
    const GenerationHandle one = start(scene.lease(), request_for(prompt_of(3), 1));
    CHECK_EQUAL(run(*one).error.message(), "");
    const Timings & t = one->result().timings;
    CHECK_EQUAL(t.generation_duration, -1);  // no token after the first
    CHECK_EQUAL(t.cached_input_tokens, 0);
    for (const std::int64_t of_another_mechanism :
         {t.queue_duration, t.template_duration, t.tokenize_duration, t.prefix_cache_hit, t.prefix_cache_retained_entries,
          t.prefix_cache_retained_tokens, t.speculative_proposed_tokens, t.speculative_accepted_tokens,
          t.speculative_verification_steps, t.batch_max_sequences, t.batch_peak_sequences, t.scheduler_steps,
          t.batch_decoded_tokens}) {
        CHECK_EQUAL(of_another_mechanism, -1);
    }
    const GenerationHandle none = start(scene.lease(), request_for(prompt_of(3), 0));
    CHECK_EQUAL(run(*none).error.message(), "");
    const Timings & nothing = none->result().timings;
    for (const std::int64_t not_done : {nothing.context_acquire_duration, nothing.prefill_duration, nothing.first_token_duration,
                                        nothing.generation_duration, nothing.context_clear_duration, nothing.context_pool_reused}) {
        CHECK_EQUAL(not_done, -1);
    }
    CHECK_EQUAL(nothing.input_tokens, 3);
    CHECK_EQUAL(nothing.output_tokens, 0);
    CHECK(nothing.total_duration >= 0);
}

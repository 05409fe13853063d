#include "scripted_run.hpp"

#include <algorithm>

using namespace aner;
using namespace aner::testing;

namespace {

// A script that plays these tokens after the prompt.
void play(Script & script, std::size_t n_prompt, Tokens output) {
    script.next = [n_prompt, output = std::move(output)](const Tokens & history) { return output.at(history.size() - n_prompt); };
}

Tokens tokens_of(const std::string & letters) {
    Tokens tokens;
    for (const char letter : letters) {
        tokens.push_back(k_first_plain + letter - 'a');
    }
    return tokens;
}

}  // namespace

ANER_CASE("", a_prompt_is_evaluated_in_chunks_of_micro_batch_tokens_with_logits_only_for_its_last_row) {
    for (const std::int32_t micro : {1, 2, 3, 4, 7, 16}) {
        for (std::int32_t n = 1; n <= 40; ++n) {
            const Scene scene;
            const Tokens prompt = prompt_of(n);
            CHECK_EQUAL(run(*start(scene.model, scene.pool(micro), request_for(prompt, 1))).error.message(), "");
            std::vector<BatchRow> rows;
            const std::vector<Batch> batches = scene.script->batches();
            CHECK_EQUAL(static_cast<std::int32_t>(batches.size()), (n + micro - 1) / micro);
            for (const Batch & batch : batches) {
                const bool last = &batch == &batches.back();
                CHECK_EQUAL(static_cast<std::int32_t>(batch.size()), last ? n - micro * ((n - 1) / micro) : micro);
                rows.insert(rows.end(), batch.begin(), batch.end());
            }
            for (std::int32_t i = 0; i < n; ++i) {
                const BatchRow & row = rows.at(static_cast<std::size_t>(i));
                CHECK_EQUAL(row.token, prompt[static_cast<std::size_t>(i)]);
                CHECK_EQUAL(row.wants_logits, i == n - 1);
            }
            CHECK(scene.script->violations().empty());
        }
    }
}

ANER_CASE("", no_token_is_evaluated_twice_and_the_last_one_not_at_all) {
    for (const std::int32_t micro : {1, 3, 16}) {
        const Scene scene;
        const Tokens prompt = prompt_of(10);
        CHECK_EQUAL(run(*start(scene.model, scene.pool(micro), request_for(prompt, 12))).error.message(), "");
        Tokens expected = prompt;
        for (const Token token : expected_output(prompt, 11)) {
            expected.push_back(token);
        }
        Tokens evaluated;
        for (const Batch & batch : scene.script->batches()) {
            for (const BatchRow & row : batch) {
                CHECK_EQUAL(row.position, static_cast<Position>(evaluated.size()));
                CHECK_EQUAL(row.sequence, 0);
                evaluated.push_back(row.token);
            }
        }
        CHECK(evaluated == expected);
        CHECK(scene.script->violations().empty());
    }
}

ANER_CASE("", the_output_is_the_greedy_continuation_of_the_prompt_and_the_pieces_are_its_text) {
    for (std::int32_t n = 1; n <= 20; ++n) {
        const Scene scene;
        const LeaseHandle lease = scene.lease();
        for (const std::int32_t max_tokens : {1, 2, 9}) {
            const GenerationHandle generation = start(lease, request_for(prompt_of(n), max_tokens));
            const Run all = run(*generation);
            const GenerationResult & result = generation->result();
            CHECK_EQUAL(all.error.message(), "");
            CHECK(result.tokens == expected_output(prompt_of(n), max_tokens));
            CHECK_EQUAL(result.text, letters_of(result.tokens));
            CHECK_EQUAL(all.streamed, result.text);
            CHECK(result.finish_reason == FinishReason::length);
            CHECK(result.logprobs.empty());
        }
        CHECK(scene.script->violations().empty());
    }
}

ANER_CASE("Z4", each_step_makes_one_engine_call_at_most) {
    const Scene scene;
    const GenerationHandle generation = start(scene.model, scene.pool(4), request_for(prompt_of(10), 5));
    for (int n_steps = 1; n_steps <= 7; ++n_steps) {  // chunks of 4, 4 and 2, the last with the first token; then four tokens
        const Result<GenerationEvent> event = generation->next();
        CHECK(!event.failed());
        CHECK_EQUAL(scene.script->n_calls(), n_steps);
        CHECK_EQUAL(event.value().finished, n_steps == 7);
    }
}

ANER_CASE("", a_finished_request_says_so_again_without_text_or_work) {
    const Scene scene;
    const GenerationHandle generation = start(scene.lease(), request_for(prompt_of(3), 2));
    (void) run(*generation);
    const int n_calls = scene.script->n_calls();
    for (int i = 0; i < 3; ++i) {
        const Result<GenerationEvent> again = generation->next();
        CHECK(!again.failed() && again.value().finished && again.value().text.empty());
    }
    CHECK_EQUAL(scene.script->n_calls(), n_calls);
    CHECK_EQUAL(generation->result().tokens.size(), 2U);
}

ANER_CASE("L15", the_end_of_the_context_finishes_with_length) {
    constexpr std::int32_t context = 16;
    for (std::int32_t n = 1; n < context; ++n) {
        const Scene scene(context);
        const GenerationHandle generation = start(scene.lease(), request_for(prompt_of(n), 1000));
        CHECK_EQUAL(run(*generation).error.message(), "");
        CHECK(generation->result().tokens == expected_output(prompt_of(n), context - n));
        CHECK(generation->result().finish_reason == FinishReason::length);
        CHECK(scene.script->violations().empty());
    }
}

ANER_CASE("P9", no_tokens_asked_for_touch_no_context_and_give_an_empty_result) {
    const Scene scene;
    const LeaseHandle lease = scene.lease();
    check_answer(lease, prompt_of(4), 3);
    const int n_calls = scene.script->n_calls();
    const int n_made = scene.script->n_made();
    const int n_cleared = scene.script->n_cleared();
    const GenerationHandle generation = start(lease, request_for(prompt_of(5), 0));
    CHECK_EQUAL(lease->pool().n_idle(), 1);  // also while it runs
    const Run all = run(*generation);
    CHECK_EQUAL(all.error.message(), "");
    CHECK_EQUAL(all.n_steps, 1);
    CHECK(generation->result().tokens.empty() && generation->result().text.empty() && all.streamed.empty());
    CHECK(generation->result().finish_reason == FinishReason::length);
    CHECK_EQUAL(scene.script->n_calls(), n_calls);
    CHECK_EQUAL(scene.script->n_made(), n_made);
    CHECK_EQUAL(scene.script->n_cleared(), n_cleared);
    CHECK_EQUAL(lease->pool().n_idle(), 1);
    GenerationHandle refused;
    CHECK(lease->start(request_for({}, 0)).into(refused).code() == ErrorCode::invalid_request);
    check_answer(lease, prompt_of(5), 3);  // and the lease is free
}

ANER_CASE("", tokens_that_end_the_output_are_not_part_of_it) {
    for (const Token end : {k_eos, k_eot, k_first_plain + 25}) {
        for (const std::size_t n_before : {std::size_t{0}, std::size_t{1}, std::size_t{4}}) {
            const Scene scene;
            const Tokens before(n_before, k_first_plain + 2);
            Tokens output = before;
            output.push_back(end);
            play(*scene.script, 6, output);
            GenerationRequest request = request_for(prompt_of(6), 5);
            request.sampling.stop_token_ids = {k_first_plain + 20, k_first_plain + 25};
            request.sampling.n_logprobs = 2;
            const GenerationHandle generation = start(scene.lease(), std::move(request));
            const Run all = run(*generation);
            CHECK_EQUAL(all.error.message(), "");
            CHECK(generation->result().tokens == before);
            CHECK_EQUAL(all.streamed, std::string(n_before, 'c'));
            CHECK_EQUAL(generation->result().text, all.streamed);
            CHECK_EQUAL(generation->result().logprobs.size(), n_before);
            CHECK_EQUAL(generation->result().timings.output_tokens, static_cast<std::int64_t>(n_before));
            CHECK(generation->result().finish_reason == FinishReason::stop);
        }
    }
}

ANER_CASE("", a_token_that_ends_the_output_wins_over_a_budget_that_ends_with_it) {
    const Scene scene;
    play(*scene.script, 2, {k_first_plain, k_eos});
    const GenerationHandle generation = start(scene.lease(), request_for(prompt_of(2), 2));
    CHECK_EQUAL(run(*generation).streamed, "a");
    CHECK(generation->result().finish_reason == FinishReason::stop);
}

ANER_CASE("Z5", a_stop_string_ends_the_text_before_it_and_wins_over_the_budget) {
    for (const std::int32_t max_tokens : {4, 9}) {
        const Scene scene;
        play(*scene.script, 3, tokens_of("abxyzdefg"));
        GenerationRequest request = request_for(prompt_of(3), max_tokens);
        request.stop = {"zz", "xy"};
        const GenerationHandle generation = start(scene.lease(), std::move(request));
        const Run all = run(*generation);
        CHECK_EQUAL(all.streamed, "ab");
        CHECK_EQUAL(generation->result().text, "ab");
        CHECK(generation->result().tokens == tokens_of("abxy"));
        CHECK(generation->result().finish_reason == FinishReason::stop);
        CHECK_EQUAL(scene.script->n_calls(), 4);  // nothing is evaluated after it
    }
}

ANER_CASE("Z5", text_that_was_held_back_comes_with_the_end) {
    for (const Token end : {k_eos, k_first_plain}) {  // by a token or by the budget
        const Scene scene;
        Tokens output = tokens_of("abx");
        output.push_back(end);
        play(*scene.script, 3, output);
        GenerationRequest request = request_for(prompt_of(3), end == k_eos ? 9 : 3);
        request.stop = {"xyz"};
        const GenerationHandle generation = start(scene.lease(), std::move(request));
        const Run all = run(*generation);
        CHECK_EQUAL(all.streamed, "abx");
        CHECK_EQUAL(generation->result().text, "abx");
        CHECK(generation->result().finish_reason == (end == k_eos ? FinishReason::stop : FinishReason::length));
    }
}

ANER_CASE("Z5", a_character_that_the_end_cuts_becomes_a_replacement_which_can_itself_be_a_stop_string) {
    const std::string replacement = "\xEF\xBF\xBD";
    for (const bool stops : {false, true}) {
        const Scene scene;
        play(*scene.script, 3, {k_first_plain, k_half, k_half});
        GenerationRequest request = request_for(prompt_of(3), 2);
        if (stops) {
            request.stop = {replacement};
        }
        const GenerationHandle generation = start(scene.lease(), std::move(request));
        const Run all = run(*generation);
        CHECK_EQUAL(all.streamed, stops ? "a" : "a" + replacement);
        CHECK_EQUAL(generation->result().text, all.streamed);
        CHECK(generation->result().finish_reason == (stops ? FinishReason::stop : FinishReason::length));
    }
}

ANER_CASE("Z7", log_probabilities_come_one_for_each_token_of_the_output) {
    const Scene scene;
    GenerationRequest request = request_for(prompt_of(3), 6);
    request.sampling.n_logprobs = 3;
    const GenerationHandle generation = start(scene.lease(), std::move(request));
    (void) run(*generation);
    const GenerationResult & result = generation->result();
    CHECK_EQUAL(result.logprobs.size(), 6U);
    for (std::size_t i = 0; i < 6; ++i) {
        CHECK_EQUAL(result.logprobs[i].token, result.tokens[i]);
        CHECK_EQUAL(result.logprobs[i].top.size(), 3U);
        CHECK_EQUAL(result.logprobs[i].top[0].token, result.tokens[i]);  // the script's choice is the best by far
    }
}

ANER_CASE("P8", a_sampler_starts_anew_for_each_request) {
    GenerationRequest request = request_for(prompt_of(5), 20);
    request.sampling.temperature = 2;
    request.sampling.seed = 11;
    request.sampling.frequency_penalty = 1.5F;
    request.sampling.penalty_window = -1;
    const Scene fresh;
    const GenerationHandle alone = start(fresh.lease(), request);
    CHECK_EQUAL(run(*alone).error.message(), "");
    CHECK(alone->result().tokens != expected_output(request.prompt, 20));  // it was drawn
    CHECK_EQUAL(alone->result().seed, 11U);
    const Scene scene;
    const LeaseHandle lease = scene.lease();
    for (int i = 0; i < 3; ++i) {
        const GenerationHandle generation = start(lease, request);
        CHECK_EQUAL(run(*generation).error.message(), "");
        CHECK(generation->result().tokens == alone->result().tokens);
        check_answer(lease, prompt_of(7), 4);  // another request between them
    }
}

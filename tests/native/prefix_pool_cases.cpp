// Prefix reuse and drafts on a scripted model: what is kept, what is taken, and that no output shows it.
#include "context_pool.hpp"
#include "prefix_choice.hpp"
#include "scripted_run.hpp"

#include <random>

using namespace aner;
using namespace aner::testing;

namespace {

LeaseHandle tuned(const Scene & scene, std::int32_t entries, std::int32_t tokens, std::int32_t drafts = 0, std::int32_t micro_batch = 8) {
    LeaseHandle ordinary;
    LeaseHandle made;
    CHECK_EQUAL(Lease::make(scene.model).into(ordinary).message(), "");
    OptimizerSettings settings;
    settings.batch_tokens = micro_batch;
    settings.micro_batch_tokens = micro_batch;
    settings.prefix_cache_entries = entries;
    settings.prefix_cache_tokens = tokens;
    settings.speculative_tokens = drafts;
    CHECK_EQUAL(ordinary->with_optimizer(settings).into(made).message(), "");
    return made;
}

Timings timings_of(const LeaseHandle & lease, const Tokens & prompt, std::int32_t n, std::int32_t n_template = 0) {
    GenerationRequest request = request_for(prompt, n);
    request.n_template = n_template;
    const GenerationHandle generation = start(lease, std::move(request));
    CHECK_EQUAL(run(*generation).error.message(), "");
    CHECK(generation->result().tokens == expected_output(prompt, n));
    return generation->result().timings;
}

}  // namespace

ANER_CASE("P3 P5", the_choice_of_a_context_follows_the_table) {
    struct Row {
        std::vector<IdlePrefix> idle;  // retained, matching, last used
        std::int32_t n_template;
        bool has_room;
        std::int32_t chosen;
    };
    const Row table[] = {
        {{}, 0, true, k_new_context},
        {{}, 0, false, k_new_context},
        {{{50, 40, 1}, {90, 60, 2}}, 5, true, 1},                // the longest match
        {{{90, 40, 2}, {50, 40, 1}}, 5, true, 1},                // of equals the one that loses least
        {{{50, 40, 1}, {50, 40, 2}}, 5, true, 0},                // then the older
        {{{50, 5, 1}, {0, 0, 2}}, 5, true, 1},                   // template only: the empty one
        {{{50, 5, 1}}, 5, true, k_new_context},                  // template only: a new one while there is room
        {{{50, 5, 2}, {60, 3, 1}}, 5, false, 1},                 // without room the least recently used
        {{{50, 6, 2}, {60, 3, 1}}, 5, false, 0},                 // one token beyond the template counts
        {{{0, 0, 1}}, 0, true, 0},
    };
    for (const Row & row : table) {
        CHECK_EQUAL(choose_context(row.idle, row.n_template, row.has_room), row.chosen);
    }
}

ANER_CASE("P4 P6", a_repeated_prompt_replays_one_token_and_nothing_generated_is_kept) {
    const Scene scene;
    const LeaseHandle lease = tuned(scene, 1, 64);
    const Tokens prompt = prompt_of(20);
    CHECK_EQUAL(timings_of(lease, prompt, 6).cached_input_tokens, 0);
    scene.script->forget_batches();
    const Timings warm = timings_of(lease, prompt, 6);
    CHECK_EQUAL(warm.cached_input_tokens, 19);
    CHECK_EQUAL(warm.evaluated_input_tokens, 1);
    CHECK_EQUAL(warm.prefix_cache_hit, 1);
    CHECK_EQUAL(warm.prefix_cache_retained_tokens, 20);
    CHECK_EQUAL(scene.script->batches().front().front().position, 19);
    CHECK(scene.script->violations().empty());
}

ANER_CASE("P6", retention_is_cut_to_its_limit) {
    const Scene scene;
    const LeaseHandle lease = tuned(scene, 1, 7);
    (void) timings_of(lease, prompt_of(20), 6);
    CHECK_EQUAL(timings_of(lease, prompt_of(20), 6).cached_input_tokens, 7);
}

ANER_CASE("P7", a_failed_request_takes_its_entry_with_it) {
    const Scene scene;
    const LeaseHandle lease = tuned(scene, 1, 64);
    (void) timings_of(lease, prompt_of(20), 4);
    scene.script->failing_call = scene.script->n_calls() + 2;
    const GenerationHandle failing = start(lease, request_for(prompt_of(20), 4));
    CHECK(run(*failing).error.failed());
    CHECK_EQUAL(lease->pool().n_idle(), 0);
    scene.script->failing_call = 0;
    CHECK_EQUAL(timings_of(lease, prompt_of(20), 4).cached_input_tokens, 0);
}

ANER_CASE("P5 P11", entries_stay_within_their_bound_and_the_least_recently_used_goes) {
    const Scene scene;
    const LeaseHandle lease = tuned(scene, 2, 64);
    Tokens prompts[3];
    for (int i = 0; i < 3; ++i) {
        prompts[i] = prompt_of(20);
        prompts[i][0] = k_first_plain + i;
    }
    (void) timings_of(lease, prompts[0], 2);
    (void) timings_of(lease, prompts[1], 2);
    CHECK_EQUAL(timings_of(lease, prompts[0], 2).cached_input_tokens, 19);
    CHECK_EQUAL(timings_of(lease, prompts[2], 2).cached_input_tokens, 0);  // displaces prompts[1]
    CHECK_EQUAL(lease->pool().n_idle(), 2);
    CHECK_EQUAL(timings_of(lease, prompts[0], 2).cached_input_tokens, 19);
    CHECK_EQUAL(timings_of(lease, prompts[1], 2).cached_input_tokens, 0);
}

ANER_CASE("S2 S3 S7 S8 S9 P12", any_series_of_requests_answers_by_the_script_with_reuse_and_drafts) {
    std::mt19937 random(5);
    for (int round = 0; round < 60; ++round) {
        const Scene scene(80);
        // The next token repeats the history with a period: drafts are often right, and wrong at random places.
        const int period = 1 + static_cast<int>(random() % 6);
        const auto noise = static_cast<std::int32_t>(random() % 5);
        scene.script->next = [period, noise](const Tokens & history) {
            const auto n = static_cast<std::int32_t>(history.size());
            const bool breaks = noise > 0 && n % (4 + noise) == 0;
            return breaks ? scripted_token(history)
                          : n >= period ? std::max(history[static_cast<std::size_t>(n - period)], k_first_plain) : k_first_plain;
        };
        const LeaseHandle lease = tuned(scene, static_cast<std::int32_t>(random() % 3), 40, static_cast<std::int32_t>(random() % 9),
                                        2 + static_cast<std::int32_t>(random() % 8));
        for (int i = 0; i < 6; ++i) {
            const Tokens prompt = prompt_of(1 + static_cast<std::int32_t>(random() % 60));
            const auto n = static_cast<std::int32_t>(1 + random() % 30);
            Tokens history = prompt;
            while (static_cast<std::int32_t>(history.size() - prompt.size()) < n && history.size() < 80) {
                history.push_back(scene.script->next(history));
            }
            const GenerationHandle generation = start(lease, request_for(prompt, n));
            const Run all = run(*generation);
            CHECK_EQUAL(all.error.message(), "");
            const GenerationResult & result = generation->result();
            CHECK(result.tokens == Tokens(history.begin() + static_cast<std::ptrdiff_t>(prompt.size()), history.end()));
            CHECK_EQUAL(all.streamed, letters_of(result.tokens));
            const Timings & t = result.timings;
            CHECK(t.speculative_accepted_tokens <= t.speculative_proposed_tokens);
            CHECK_EQUAL(t.cached_input_tokens + t.evaluated_input_tokens, t.input_tokens);
        }
        CHECK(scene.script->violations().empty());
    }
}

ANER_CASE("C1 C2", a_session_keeps_its_own_memory_and_a_failed_turn_leaves_it_as_it_was) {
    const Scene scene(80);
    LeaseHandle lease;
    CHECK_EQUAL(Lease::make(scene.model).into(lease).message(), "");
    std::shared_ptr<Session> session;
    CHECK_EQUAL(lease->session().into(session).message(), "");
    const Tokens first = prompt_of(12);
    GenerationHandle turn;
    CHECK_EQUAL(session->start(request_for(first, 5)).into(turn).message(), "");
    CHECK(!run(*turn).error.failed());
    Tokens second = first;
    for (const Token token : turn->result().tokens) {
        second.push_back(token);
    }
    second.insert(second.end(), {7, 8, 9});
    scene.script->failing_call = scene.script->n_calls() + 2;
    CHECK_EQUAL(session->start(request_for(second, 5)).into(turn).message(), "");
    CHECK(run(*turn).error.failed());
    scene.script->failing_call = 0;
    CHECK_EQUAL(session->start(request_for(second, 5)).into(turn).message(), "");
    CHECK(!run(*turn).error.failed());
    CHECK(turn->result().tokens == expected_output(second, 5));
    CHECK_EQUAL(turn->result().timings.cached_input_tokens, 16);  // 12 of the prompt, and 4 of 5 that were evaluated
    CHECK(scene.script->violations().empty());
}

// Whatever allocation fails, the caller gets an error (out_of_memory, or the one that it would have got), nothing ends the
// process, and nothing stays taken.
#include "failing_allocation.hpp"
#include "folder.hpp"
#include "gguf_bytes.hpp"
#include "kv_layout.hpp"
#include "kv_trim.hpp"
#include "log_ring.hpp"
#include "model_file.hpp"
#include "scripted_run.hpp"

using namespace aner;
using namespace aner::testing;

namespace {

bool is_memory_or(const Error & error, ErrorCode other) {
    return error.code() == ErrorCode::out_of_memory || error.code() == other;
}

// `call()` gives an error; the code must be `expected` whenever no allocation failed.
template <typename Call>
void check_error(ErrorCode expected, Call call) {
    const std::int64_t n_failed = with_each_allocation_failing([&](std::int64_t nth) {
        Error error;
        bool happened = false;
        {
            const FailingAllocation failing(nth);
            error = call();
            happened = failing.happened();
        }
        CHECK(happened ? is_memory_or(error, expected) : error.code() == expected);
        return happened;
    });
    CHECK(n_failed > 0);
}

GenerationRequest demanding_request() {
    GenerationRequest request = request_for(prompt_of(9), 12);
    request.stop = {"no such stop string in this text, whatever comes", "another one that is too long for it"};
    request.sampling.n_logprobs = 2;
    request.sampling.repeat_penalty = 1.1F;
    request.sampling.temperature = 0.5F;
    request.sampling.top_p = 0.9F;
    request.sampling.min_tokens = 2;
    return request;
}

}  // namespace

ANER_CASE("E2", memory_that_runs_out_anywhere_in_a_request_fails_the_request_and_frees_what_it_held) {
    const Scene scene;
    const LeaseHandle lease = scene.lease();
    const std::int64_t n_failed = with_each_allocation_failing([&](std::int64_t nth) {
        GenerationRequest request = demanding_request();
        Error error;
        bool happened = false;
        {
            const FailingAllocation failing(nth);
            GenerationHandle generation;
            error = lease->start(std::move(request)).into(generation);
            if (generation != nullptr) {
                error = run(*generation).error;
            }
            happened = failing.happened();
        }
        CHECK(happened || !error.failed());
        CHECK(!error.failed() || error.code() == ErrorCode::out_of_memory);
        CHECK(!error.failed() || lease->pool().n_idle() <= 1);
        CHECK_EQUAL(scene.script->n_alive(), lease->pool().n_idle());
        check_answer(lease, prompt_of(4), 3);
        return happened;
    });
    CHECK(n_failed > 40);
    CHECK(scene.script->violations().empty());
}

// The same with everything that takes memory beside it: retained prefixes, drafts, a conversation.
ANER_CASE("E2 P7 C2", memory_that_runs_out_in_a_tuned_request_or_a_turn_leaves_no_wrong_memory_behind) {
    const Scene scene(80);
    scene.script->next = [](const Tokens & history) { return history[history.size() - 3]; };  // drafts are right
    OptimizerSettings settings;
    settings.batch_tokens = 16;
    settings.micro_batch_tokens = 8;
    settings.prefix_cache_entries = 2;
    settings.prefix_cache_tokens = 64;
    settings.speculative_tokens = 4;
    LeaseHandle tuned;
    CHECK_EQUAL(scene.lease()->with_optimizer(settings).into(tuned).message(), "");
    std::shared_ptr<Session> session;
    CHECK_EQUAL(tuned->session().into(session).message(), "");
    const auto fails_safely = [&](auto & owner) {
        std::int32_t n_prompt = 9;
        return with_each_allocation_failing([&](std::int64_t nth) {
            n_prompt = n_prompt == 9 ? 30 : 9;  // now longer, now shorter than what is kept
            GenerationRequest request = request_for(prompt_of(n_prompt), 12);
            Error error;
            bool happened = false;
            {
                const FailingAllocation failing(nth);
                GenerationHandle generation;
                error = owner->start(std::move(request)).into(generation);
                if (generation != nullptr) {
                    error = run(*generation).error;
                }
                generation.reset();
                happened = failing.happened();
            }
            CHECK(!error.failed() || error.code() == ErrorCode::out_of_memory);
            Tokens history = prompt_of(20);
            const auto check_continued = [&] {
                GenerationHandle next;
                CHECK_EQUAL(owner->start(request_for(history, 12)).into(next).message(), "");
                CHECK_EQUAL(run(*next).error.message(), "");
                for (const Token token : next->result().tokens) {
                    CHECK_EQUAL(token, history[history.size() - 3]);
                    history.push_back(token);
                }
                CHECK_EQUAL(next->result().tokens.size(), 12U);
            };
            if (nth > 1) {  // on what the check before left, the whole of it
                for (int i = 0; i < 12; ++i) {
                    history.push_back(history[history.size() - 3]);
                }
                check_continued();
                history.resize(20);
            }
            check_continued();
            return happened;
        });
    };
    CHECK(fails_safely(tuned) > 40);
    CHECK(fails_safely(session) > 30);
    CHECK(scene.script->violations().empty());
}

ANER_CASE("E2", memory_that_runs_out_does_not_lose_a_cancellation_or_a_timeout) {
    const Scene scene;
    const LeaseHandle lease = scene.lease();
    with_each_allocation_failing([&](std::int64_t nth) {
        const GenerationHandle generation = start(lease, request_for(prompt_of(4), 3));
        GenerationRequest request = request_for(prompt_of(4), 3);
        bool happened = false;
        {
            const FailingAllocation failing(nth);
            generation->cancel();
            happened = failing.happened();
        }
        CHECK(generation->next().error().code() == ErrorCode::cancelled);
        CHECK_EQUAL(scene.script->n_alive(), lease->pool().n_idle());
        request.timeout = 1;
        const GenerationHandle late = start(lease, std::move(request));
        {
            const FailingAllocation failing(nth);
            CHECK(late->next().error().code() == ErrorCode::timeout);
            happened = happened || failing.happened();
        }
        return happened;
    });
}

ANER_CASE("E2", memory_that_runs_out_while_a_lease_or_a_session_is_made_makes_none) {
    const Scene scene;
    const LeaseHandle lease = scene.lease();
    const int n_alive = scene.script->n_alive();
    const auto check_none = [&](auto make) {
        with_each_allocation_failing([&](std::int64_t nth) {
            decltype(make().take()) made;
            Error error;
            bool happened = false;
            {
                const FailingAllocation failing(nth);
                error = make().into(made);
                happened = failing.happened();
            }
            CHECK(error.failed() ? made == nullptr && error.code() == ErrorCode::out_of_memory : made != nullptr);
            made.reset();
            CHECK_EQUAL(scene.script->n_alive(), n_alive);
            return happened;
        });
    };
    check_none([&] { return Lease::make(scene.model); });
    check_none([&] { return lease->with_context_pool(3); });
    check_none([&] { return lease->native_stateless(); });
    OptimizerSettings settings;
    settings.batch_tokens = 16;
    settings.micro_batch_tokens = 16;
    settings.prefix_cache_tokens = 64;
    settings.speculative_tokens = 4;
    check_none([&] { return lease->with_optimizer(settings); });
    check_none([&] { return lease->session(); });
    check_error(ErrorCode::configuration, [&] { return lease->with_context_pool(-1).error(); });
}

ANER_CASE("E2", memory_that_runs_out_while_a_request_is_refused_is_an_error_too) {
    const auto refused = [](ErrorCode code, const GenerationRequest & request) {
        check_error(code, [&] { return validate(request, 29, 64); });
    };
    refused(ErrorCode::invalid_request, request_for({}, 5));
    refused(ErrorCode::invalid_request, request_for({1}, -1));
    refused(ErrorCode::invalid_request, request_for({29}, 1));
    refused(ErrorCode::context_full, request_for(prompt_of(64), 1));
    GenerationRequest request = request_for({1}, 5);
    request.stop = {std::string(2000, 'x')};
    refused(ErrorCode::invalid_request, request);
    request.stop = {"a stop string that is not valid UTF-8 \xE6\xAD"};
    refused(ErrorCode::invalid_request, request);
    request.stop.clear();
    request.sampling.min_tokens = 6;
    refused(ErrorCode::invalid_request, request);
    request.sampling.min_tokens = 0;
    request.sampling.temperature = -1;
    refused(ErrorCode::invalid_request, request);
}

ANER_CASE("E2", memory_that_runs_out_while_a_setting_is_refused_is_an_error_too) {
    const std::string name = "a name that needs memory of its own";
    check_error(ErrorCode::configuration, [&] { return kv_type_named(name).error(); });
    check_error(ErrorCode::configuration, [&] { return flash_attention_named(name).error(); });
    LoadSettings load;
    load.context = 3;
    check_error(ErrorCode::configuration, [&] { return validate(load); });
    OptimizerSettings optimizer;
    optimizer.speculative_tokens = 33;
    check_error(ErrorCode::configuration, [&] { return validate(optimizer, 64); });
    ModelFacts facts;
    facts.head_dim_k = 48;
    facts.head_dim_v = 64;
    check_error(ErrorCode::configuration, [&] { return validate_kv_type(facts, KvType::q8_0, FlashAttention::automatic); });
    facts.head_dim_k = 64;
    check_error(ErrorCode::configuration, [&] { return validate_kv_type(facts, KvType::q8_0, FlashAttention::off); });
    with_each_allocation_failing([&](std::int64_t nth) {
        const FailingAllocation failing(nth);
        const ContextSettings settings = resolve(LoadSettings{}, OptimizerSettings{});
        const bool happened = failing.happened();
        CHECK(settings.threads >= 1);
        return happened;
    });
    const Scene scene;
    ScriptedDecoder decoder(scene.script, scene.pool(4)->settings(), ScriptedModel::k_n_vocab);
    check_error(ErrorCode::trim_unsupported, [&] { return trim_to(decoder, 0, 7); });
}

ANER_CASE("E2", memory_that_runs_out_while_a_file_is_admitted_is_an_error) {
    const Folder folder;
    const std::string path = folder.write("tiny.gguf", tiny_llama().bytes());
    const std::int64_t n_failed = with_each_allocation_failing([&](std::int64_t nth) {
        LoadProgress progress;
        Error error;
        bool happened = false;
        {
            const FailingAllocation failing(nth);
            error = admit_model_file(path, {}, progress).error();
            happened = failing.happened();
        }
        CHECK(happened || !error.failed());
        CHECK(is_memory_or(error, ErrorCode::ok));
        return happened;
    });
    CHECK(n_failed > 50);
    LoadProgress progress;
    const std::string other(64, '0');
    const std::string no_digest = "no digest, and long enough";
    const std::string no_file = folder.file("none");
    check_error(ErrorCode::fingerprint_mismatch, [&] { return admit_model_file(path, other, progress).error(); });
    check_error(ErrorCode::configuration, [&] { return admit_model_file(path, no_digest, progress).error(); });
    check_error(ErrorCode::model_not_found, [&] { return admit_model_file(no_file, {}, progress).error(); });
    AdmittedModel model = admit_model_file(path, {}, progress).take();
    check_error(ErrorCode::ok, [&] { return verify_content(model, progress).error(); });
    model.digest.hex = other;
    check_error(ErrorCode::fingerprint_mismatch, [&] { return verify_content(model, progress).error(); });
}

ANER_CASE("E2", memory_that_runs_out_while_the_engine_logs_loses_lines_only) {
    (void) LogRing::drain();
    const std::string text = "a line that is longer than what fits into a string without memory of its own\n";
    const std::string part = "a part of a line, not short either";
    with_each_allocation_failing([&](std::int64_t nth) {
        const FailingAllocation failing(nth);
        const std::uint64_t mark = LogRing::mark();
        for (int i = 0; i < 20; ++i) {
            LogRing::append(LogLevel::error, false, part.c_str());
            LogRing::append(LogLevel::error, true, text.c_str());
        }
        (void) LogRing::errors_since(mark);
        (void) LogRing::drain();
        return failing.happened();
    });
    (void) LogRing::drain();
    LogRing::append(LogLevel::info, false, text.c_str());
    CHECK_EQUAL(LogRing::drain().size(), 1U);
}

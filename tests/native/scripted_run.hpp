// Requests on a scripted model, and what must come of them: computed from the prompt alone, without the core.
#pragma once

#include "check.hpp"
#include "context_pool.hpp"
#include "direct_generation.hpp"
#include "lease.hpp"
#include "scripted_model.hpp"

#include <memory>
#include <string>

namespace aner::testing {

using GenerationHandle = std::shared_ptr<Generation>;

struct Scene {
    explicit Scene(std::int32_t context = 64) : model(std::make_shared<ScriptedModel>(script, context)) {}

    [[nodiscard]] LeaseHandle lease(std::int32_t max_idle = 1) const {
        LeaseHandle ordinary;
        LeaseHandle made;
        CHECK_EQUAL(Lease::make(model).into(ordinary).message(), "");
        CHECK_EQUAL(ordinary->with_context_pool(max_idle).into(made).message(), "");
        return made;
    }

    // A pool of small batches, for a request without a lease.
    [[nodiscard]] std::shared_ptr<ContextPool> pool(std::int32_t micro_batch, std::int32_t max_idle = 1,
                                                    std::int32_t max_entries = 0, std::int32_t max_tokens = 0) const {
        ContextSettings settings;
        settings.context = model->info().settings.context;
        settings.batch_tokens = 2 * micro_batch;
        settings.micro_batch_tokens = micro_batch;
        settings.threads = 1;
        settings.prefill_threads = 2;
        return std::make_shared<ContextPool>(model, settings, RetentionPolicy{max_idle, max_entries, max_tokens});
    }

    std::shared_ptr<Script> script = std::make_shared<Script>();
    ModelHandle model;
};

inline Tokens prompt_of(std::int32_t n) {
    Tokens prompt;
    for (std::int32_t i = 0; i < n; ++i) {
        prompt.push_back(k_first_plain + (i * 5 + 1) % (k_half - k_first_plain));
    }
    return prompt;
}

inline GenerationRequest request_for(Tokens prompt, std::int32_t max_tokens) {
    GenerationRequest request;
    request.prompt = std::move(prompt);
    request.max_tokens = max_tokens;
    return request;
}

inline Tokens expected_output(const Tokens & prompt, std::int32_t n) {
    Tokens history = prompt;
    for (std::int32_t i = 0; i < n; ++i) {
        history.push_back(scripted_token(history));
    }
    return {history.begin() + static_cast<std::ptrdiff_t>(prompt.size()), history.end()};
}

inline std::string letters_of(const Tokens & tokens) {
    std::string text;
    for (const Token token : tokens) {
        text += static_cast<char>('a' + token - k_first_plain);
    }
    return text;
}

inline GenerationHandle start(const LeaseHandle & lease, GenerationRequest request) {
    GenerationHandle generation;
    CHECK_EQUAL(lease->start(std::move(request)).into(generation).message(), "");
    return generation;
}

inline GenerationHandle start(const ModelHandle & model, const std::shared_ptr<ContextPool> & pool, GenerationRequest request) {
    GenerationHandle generation;
    Admission admission(std::make_shared<std::atomic<bool>>(true));
    CHECK_EQUAL(start_direct(model, *pool, pool->settings(), pool->costs(), std::move(admission), std::move(request)).into(generation).message(), "");
    return generation;
}

struct Run {
    std::string streamed;
    int n_steps = 0;
    Error error;
};

inline Run run(Generation & generation) {
    Run all;
    for (bool finished = false; !finished;) {
        Result<GenerationEvent> event = generation.next();
        all.n_steps += 1;
        if (event.failed()) {
            all.error = event.error();
            return all;
        }
        all.streamed += event.value().text;
        finished = event.value().finished;
    }
    return all;
}

// Runs a request that must succeed, on whatever the lease has left from before, and compares it with the script.
inline void check_answer(const LeaseHandle & lease, const Tokens & prompt, std::int32_t n) {
    const GenerationHandle generation = start(lease, request_for(prompt, n));
    const Run all = run(*generation);
    CHECK_EQUAL(all.error.message(), "");
    CHECK(generation->result().tokens == expected_output(prompt, n));
    CHECK_EQUAL(all.streamed, letters_of(generation->result().tokens));
}

}  // namespace aner::testing

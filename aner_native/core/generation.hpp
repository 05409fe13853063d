// One request and what comes out of it, whichever way it is run.
#pragma once

#include "profile.hpp"
#include "sampler.hpp"
#include "timings.hpp"
#include "wake_pipe.hpp"

#include <memory>
#include <string>
#include <vector>

namespace aner {

enum class FinishReason : std::int32_t { stop, length };

struct GenerationRequest {
    std::vector<Token> prompt;
    std::int32_t n_template = 0;        // tokens that every conversation starts with: a cached prefix must be longer to count
    std::int32_t max_tokens = 256;
    SamplingOptions sampling;
    std::vector<std::string> stop;      // texts; the earliest in the output ends it and is not part of it
    Nanoseconds timeout = 0;            // from `start`; 0: none
    Clock::time_point start = Clock::now();
    Nanoseconds template_duration = k_unmeasured;
    Nanoseconds tokenize_duration = k_unmeasured;
};

struct GenerationResult {
    std::string text;            // UTF-8, the joined pieces
    std::vector<Token> tokens;   // without the token that ended it
    std::vector<Sampled> logprobs;   // one per token, when asked for
    FinishReason finish_reason = FinishReason::length;
    std::uint64_t seed = 0;
    Timings timings;
    std::int64_t timed_tokens = 0;  // tokens that `timings.generation_duration` covers
};

// What one call of `next` brought. Text is final: it is never taken back.
struct GenerationEvent {
    std::string text;
    bool finished = false;
};

// A running request. `next` is called by one thread at a time; `cancel` by any.
class Generation {
public:
    virtual ~Generation() = default;

    // Runs or awaits one step. Errors end the request, free what it held, and come again from every later call.
    virtual Result<GenerationEvent> next() noexcept = 0;

    // The same without waiting: an event without text that is not finished says that nothing came. Where a request is run by its
    // reader there is nothing to wait for, and this is `next`.
    virtual Result<GenerationEvent> poll() noexcept { return next(); }

    // The reader will take no more pieces, only the result: nothing is held up for it.
    virtual void want_result_only() noexcept {}

    // `waker` is woken whenever something can be taken, from now on. Null: nobody is.
    virtual void set_waker(std::shared_ptr<WakePipe>) noexcept {}

    // Ends the request at the next step boundary; frees what it held at once if no step is running.
    virtual void cancel() noexcept = 0;

    // Only after `next` said finished.
    [[nodiscard]] virtual const GenerationResult & result() const noexcept = 0;
};

// Everything about a request that can be refused before any work. Errors: invalid_request, context_full.
Error validate(const GenerationRequest & request, std::int32_t n_vocab, std::int32_t context) noexcept;

// Speculation verifies greedy choices only (S6). Errors: invalid_request.
Error validate_draft_sampling(const ContextSettings & settings, const GenerationRequest & request) noexcept;

}  // namespace aner

// What a request holds of the engine while it runs: one context, and how much of the prompt is in it already.
#pragma once

#include "decoder.hpp"
#include "timings.hpp"

#include <memory>
#include <vector>

namespace aner {

// Destroying a hold without `keep` is the failure path: whatever owns the context is told by that alone.
class ContextHold {
public:
    virtual ~ContextHold() = default;

    [[nodiscard]] virtual Decoder & decoder() noexcept = 0;

    // [0, n_cached) of the prompt is in the context's memory.
    [[nodiscard]] virtual std::int32_t n_cached() const noexcept = 0;

    // The request succeeded: `history` is the prompt of `n_prompt` tokens and its output, [0, n_computed) is in memory. Called
    // once, last. Fills in what the context's owner measures. Errors: the context could not be kept; the response stands.
    virtual Error keep(const std::vector<Token> & history, std::int32_t n_prompt, std::int32_t n_computed,
                       Timings & timings) noexcept = 0;
};

// Where a request takes its context from: a pool, or a session's own.
class ContextSource {
public:
    virtual ~ContextSource() = default;

    // `n_template`: tokens that every conversation of this model starts with. Fills in what the source measures.
    virtual Result<std::unique_ptr<ContextHold>> acquire(const std::vector<Token> & prompt, std::int32_t n_template,
                                                         Timings & timings) noexcept = 0;
};

}  // namespace aner

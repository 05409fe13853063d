// The idle contexts of one derived model, and the loan of one to one request.
//
// Purpose    A context of the engine costs memory and milliseconds to make, and the KV of a prompt costs its whole prefill: a
//            finished request leaves its context, and with prefix reuse the KV of its prompt, for the next.
// Design     `acquire` takes the idle context that choose_context names, or makes a new one. The hold that it returns is the
//            only owner; only `keep` gives the context back, trimmed to prompt tokens or empty. A hold that is destroyed
//            otherwise frees it, so failure paths hold no code.
// Invariants An idle context holds exactly its `tokens`, positions [0, n). Without prefix reuse those are none. At most
//            `capacity()` are idle. Generated positions are never idle.
// Threads    Any thread; one mutex, held for list operations only, never while the engine works.
#pragma once

#include "context_hold.hpp"
#include "draft_policy.hpp"
#include "model.hpp"

#include <memory>
#include <mutex>
#include <vector>

namespace aner {

struct RetentionPolicy {
    std::int32_t max_idle = 0;     // idle contexts, with or without tokens
    std::int32_t max_entries = 0;  // prefix_cache_entries; 0: contexts are retained empty
    std::int32_t max_tokens = 0;   // prompt tokens of one entry
};

class ContextPool final : public ContextSource, public std::enable_shared_from_this<ContextPool> {
public:
    ContextPool(ModelHandle model, ContextSettings settings, RetentionPolicy policy)
        : model_(std::move(model)), settings_(settings), policy_(policy) {
        idle_.reserve(capacity());  // so that giving back takes no memory
    }

    Result<std::unique_ptr<ContextHold>> acquire(const std::vector<Token> & prompt, std::int32_t n_template,
                                                 Timings & timings) noexcept override;

    // Makes the first context now, so that a setting the engine refuses fails when it is configured; measures the cost of drafts
    // if the profile speculates; keeps the context if there is room.
    Error prove() noexcept;

    [[nodiscard]] std::int32_t max_idle() const noexcept { return policy_.max_idle; }
    [[nodiscard]] std::int32_t n_idle() const noexcept;
    [[nodiscard]] const ContextSettings & settings() const noexcept { return settings_; }

    // As the engine resolved and allocated them for a context of this pool, and the times of its calls by rows; after prove().
    [[nodiscard]] const ResolvedContext & resolved() const noexcept { return resolved_; }
    [[nodiscard]] const MemoryUse & memory() const noexcept { return memory_; }
    [[nodiscard]] const CostTable & costs() const noexcept { return costs_; }

private:
    class Loan;
    struct Idle {
        std::unique_ptr<Decoder> decoder;
        std::vector<Token> tokens;
        std::uint64_t last_used = 0;
    };

    [[nodiscard]] bool retains_prefixes() const noexcept { return policy_.max_entries > 0; }
    [[nodiscard]] std::size_t capacity() const noexcept;
    [[nodiscard]] std::size_t least_valuable(const std::vector<Token> & newer) const noexcept;
    // Takes the idle context that serves `prompt` best; without a decoder: make a new one.
    Idle take(const std::vector<Token> & prompt, std::int32_t n_template);
    void put(Idle idle) noexcept;
    void report(Timings & timings) const noexcept;

    const ModelHandle model_;
    const ContextSettings settings_;
    const RetentionPolicy policy_;
    ResolvedContext resolved_;
    MemoryUse memory_;
    CostTable costs_;
    mutable std::mutex mutex_;
    std::vector<Idle> idle_;
    std::uint64_t uses_ = 0;
};

}  // namespace aner

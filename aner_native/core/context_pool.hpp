// The idle contexts of one derived model, and the loan of one to one request.
//
// Purpose    A context of the engine costs memory and milliseconds to make, so a finished request leaves its own for the next.
// Design     `acquire` takes an idle context or makes a new one; the ContextLease that it returns is the only owner. Only
//            `retain` gives the context back; a lease that is destroyed otherwise frees it, so failure paths hold no code.
// Invariants An idle context of an ordinary pool is empty: no position of any sequence. At most `max_idle` are kept.
// Threads    Any thread; one mutex, held for list operations only, never while the engine works.
#pragma once

#include "model.hpp"

#include <memory>
#include <mutex>
#include <vector>

namespace aner {

class ContextPool;

class ContextLease {
public:
    ContextLease(std::shared_ptr<ContextPool> pool, std::unique_ptr<Decoder> decoder, bool reused) noexcept
        : pool_(std::move(pool)), decoder_(std::move(decoder)), reused_(reused) {}

    [[nodiscard]] Decoder & decoder() noexcept { return *decoder_; }
    [[nodiscard]] bool reused() const noexcept { return reused_; }

    // Clears the context and returns it to its pool if there is room. Success only; consumes the lease.
    Error retain() && noexcept;

private:
    std::shared_ptr<ContextPool> pool_;
    std::unique_ptr<Decoder> decoder_;
    bool reused_;
};

class ContextPool : public std::enable_shared_from_this<ContextPool> {
public:
    ContextPool(ModelHandle model, ContextSettings settings, std::int32_t max_idle)
        : model_(std::move(model)), settings_(settings), max_idle_(max_idle) {
        idle_.reserve(static_cast<std::size_t>(max_idle));  // so that giving back takes no memory
    }

    Result<ContextLease> acquire() noexcept;

    // Makes the first context now, so that a setting the engine refuses fails when it is configured; keeps it if there is room.
    Error prove() noexcept;

    [[nodiscard]] std::int32_t max_idle() const noexcept { return max_idle_; }
    [[nodiscard]] std::int32_t n_idle() const noexcept;
    [[nodiscard]] const ContextSettings & settings() const noexcept { return settings_; }

    // As the engine resolved and allocated them for a context of this pool; valid after prove().
    [[nodiscard]] const ResolvedContext & resolved() const noexcept { return resolved_; }
    [[nodiscard]] const MemoryUse & memory() const noexcept { return memory_; }

private:
    friend class ContextLease;
    void put(std::unique_ptr<Decoder> decoder) noexcept;

    const ModelHandle model_;
    const ContextSettings settings_;
    const std::int32_t max_idle_;
    ResolvedContext resolved_;
    MemoryUse memory_;
    mutable std::mutex mutex_;
    std::vector<std::unique_ptr<Decoder>> idle_;  // most recently used last
};

}  // namespace aner

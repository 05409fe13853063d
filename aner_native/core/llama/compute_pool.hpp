// The compute threads of the CPU backend: persistent, shared by every context that asks for as many, used by one at a time.
//
// Two decodes on one pool give garbage, and two pools on the same cores fight for them, so all CPU decodes of the process take
// turns, first come first served. A context on an accelerator has a pool of its own and waits for nobody.
#pragma once

#include "../errors.hpp"

#include "ggml-cpu.h"

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

namespace aner {

// A first-come-first-served lock: a mutex would let the thread that just released it take it again, and starve the others.
class TurnQueue {
public:
    void enter() noexcept;
    void leave() noexcept;

private:
    std::mutex mutex_;
    std::condition_variable moved_;
    std::uint64_t next_ticket_ = 0;
    std::uint64_t serving_ = 0;
};

class ComputePool {
public:
    // `exclusive`: a pool of the caller's own, outside the turns. Errors: out_of_memory (threads could not be made).
    static Result<std::shared_ptr<ComputePool>> get(std::int32_t n_threads, bool exclusive) noexcept;

    explicit ComputePool(ggml_threadpool * pool, std::shared_ptr<TurnQueue> turns) noexcept
        : pool_(pool), turns_(std::move(turns)) {}
    ~ComputePool();
    ComputePool(const ComputePool &) = delete;
    ComputePool & operator=(const ComputePool &) = delete;

    [[nodiscard]] ggml_threadpool * threads() const noexcept { return pool_; }

    class Turn {
    public:
        explicit Turn(ComputePool & pool) noexcept : turns_(*pool.turns_) { turns_.enter(); }
        ~Turn() { turns_.leave(); }
        Turn(const Turn &) = delete;
        Turn & operator=(const Turn &) = delete;

    private:
        TurnQueue & turns_;
    };

private:
    ggml_threadpool * const pool_;
    const std::shared_ptr<TurnQueue> turns_;
};

}  // namespace aner

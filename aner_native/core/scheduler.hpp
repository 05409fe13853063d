// Runs the requests of many callers together, in one context of the engine with a KV stream for each.
//
// Purpose    The throughput side: one engine call per step carries a row of every sequence that decodes and pieces of the
//            prompts that wait, so the weights are read once for all of them.
// Design     A worker thread repeats: sweep out what ended, fill free slots from the queue, plan_step, decode, apply. A slot is
//            a sequence id of the context; ids are handed out lowest first and rows are put in their order, since the engine
//            computes a run of neighbouring ids as one graph. Small gaps in that run are filled with rows that are thrown away.
//            A slot is taken when a request is submitted, so a request that finds one free never waits; at most eight wait.
//            When a step fails, each of its sequences is taken back and tried alone: only one that fails alone is lost.
// Invariants A free slot's stream is empty. Every sequence's stream holds exactly its [0, n_computed) between steps. KV for the
//            whole context is there for each slot from the beginning, so an admitted request never lacks room.
// Threads    The worker owns the decoder and every admitted sequence, and never touches Python. Lock order: the scheduler's
//            mutex, then a channel's; no lock is held while the engine works. Whoever drops the last handle joins the worker.
#pragma once

#include "admission.hpp"
#include "cancellation.hpp"
#include "event_channel.hpp"
#include "process_guard.hpp"
#include "sequence.hpp"
#include "step_planner.hpp"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace aner {

struct BatchingSettings {
    std::int32_t max_sequences = 0;
    // While a sequence decodes, a step takes as many rows of prompts as are predicted to fit in this; 0: all that the batch holds.
    Nanoseconds step_target = limits::default_step_target_ms * 1'000'000;
};

// Errors: configuration, unsupported_combination.
Error validate(const BatchingSettings & settings, const OptimizerSettings & optimizer) noexcept;

// One context for all sequences, from what one context of a request alone is made of.
[[nodiscard]] ContextSettings shared_context(ContextSettings settings, std::int32_t batch_tokens, std::int32_t max_sequences) noexcept;

class Scheduler : public std::enable_shared_from_this<Scheduler> {
public:
    // Errors: what making the context gives; out_of_memory.
    static Result<std::shared_ptr<Scheduler>> make(ModelHandle model, const ContextSettings & settings,
                                                   const BatchingSettings & batching) noexcept;
    ~Scheduler();

    // `request` passed validate(). Errors: busy (every slot taken and eight waiting), engine (the worker gave up), out_of_memory.
    Result<std::shared_ptr<Generation>> submit(GenerationRequest request, Admission admission) noexcept;

    [[nodiscard]] const ContextSettings & settings() const noexcept { return settings_; }
    [[nodiscard]] const BatchingSettings & batching() const noexcept { return batching_; }
    [[nodiscard]] const ResolvedContext & resolved() const noexcept { return resolved_; }
    [[nodiscard]] const MemoryUse & memory() const noexcept { return memory_; }

    struct Load {
        std::int32_t n_running = 0;
        std::int32_t n_waiting = 0;
        std::int64_t n_steps = 0;
        Nanoseconds last_step = k_unmeasured;
    };
    [[nodiscard]] Load load() const noexcept;

private:
    friend class ScheduledGeneration;

    struct Member {
        Member(ModelHandle model, GenerationRequest request, const ContextSettings & settings, Admission right)
            : sequence(std::move(model), std::move(request), settings),
              cancellation(sequence.request().start, sequence.request().timeout),
              admission(std::move(right)) {}

        Sequence sequence;  // the worker's, once it has a slot
        Cancellation cancellation;
        EventChannel channel;
        std::optional<Admission> admission;
        SequenceId slot = -1;  // under the mutex
        std::uint64_t arrival = 0;
        Clock::time_point submitted = Clock::now();
        GenerationEvent event;     // of the current step
        bool prefilled = false;    // the current step had rows of its prompt
        Error failure;             // why it ends, when not by itself
    };
    using MemberHandle = std::shared_ptr<Member>;

    Scheduler(ModelHandle model, const ContextSettings & settings, const BatchingSettings & batching,
              std::unique_ptr<Decoder> decoder);

    // -- any thread
    void cancel(const MemberHandle & member) noexcept;
    void wake() noexcept;
    // True, and the request is out of the queue, when it waits for slots that only this thread could free by reading.
    bool starves_itself(const MemberHandle & member) noexcept;

    // -- the worker
    void run() noexcept;
    bool collect() noexcept;  // sweep, refill, and see who takes part; false: it is over
    void sweep() noexcept;
    void refill() noexcept;   // under the mutex
    [[nodiscard]] Clock::time_point next_deadline() const noexcept;  // under the mutex
    void step() noexcept;
    void add_rows(const Share & share);
    void add_fillers();
    Error remove_fillers() noexcept;
    Error apply(const Share & share) noexcept;
    void complete(const std::vector<Share> & shares, Clock::time_point before) noexcept;
    void recover(Error error) noexcept;
    void observe(Nanoseconds duration) noexcept;
    void end(SequenceId slot) noexcept;
    void give_up(const Error & error) noexcept;
    [[nodiscard]] std::int32_t prefill_limit() const noexcept;
    [[nodiscard]] std::int32_t n_running() const noexcept;  // under the mutex
    const ModelHandle model_;
    const ContextSettings settings_;
    const BatchingSettings batching_;
    const ProcessGuard guard_;
    const ResolvedContext resolved_;
    const MemoryUse memory_;
    const bool fills_gaps_;

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    bool changes_ = false;    // since the worker looked last
    bool stopping_ = false;
    Error dead_;              // why nothing runs any more
    std::uint64_t n_admitted_ = 0;
    std::vector<MemberHandle> slots_;  // by sequence id; written by submit (into a free one) and by the worker, under the mutex
    std::deque<MemberHandle> queue_;
    Load load_;

    // the worker's own
    std::unique_ptr<Decoder> decoder_;
    std::vector<MemberHandle> active_;  // a copy of slots_ for the current step
    std::vector<Waiting> waiting_;
    Batch batch_;
    std::vector<std::int32_t> first_row_;  // of each sequence id in batch_
    struct Filler { SequenceId id; Position position; };
    std::vector<Filler> fillers_;  // rows of batch_ that are thrown away
    double prefill_row_cost_ = 0;          // nanoseconds, 0: not known yet
    std::int32_t n_barren_ = 0;            // steps in a row of which nothing came

    std::thread worker_;
};

}  // namespace aner

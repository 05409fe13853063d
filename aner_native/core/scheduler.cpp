#include "scheduler.hpp"

#include "scheduled_generation.hpp"

#include <algorithm>
#include <new>
#include <string>
#include <system_error>
#include <utility>

namespace aner {

Error validate(const BatchingSettings & settings, const OptimizerSettings & optimizer) noexcept try {
    if (settings.max_sequences < 1 || settings.max_sequences > limits::max_sequences) {
        return Error{ErrorCode::configuration, "max_sequences is " + std::to_string(settings.max_sequences) +
                                                   ": it must be within 1.." + std::to_string(limits::max_sequences)};
    }
    if (optimizer.batch_tokens < settings.max_sequences) {
        return Error{ErrorCode::configuration, "batch_tokens is " + std::to_string(optimizer.batch_tokens) + " and max_sequences is " +
                                                   std::to_string(settings.max_sequences) +
                                                   ": each sequence needs a row of every step, so batch_tokens must not be below it"};
    }
    if (settings.step_target < 0 || settings.step_target > limits::max_step_target_ms * 1'000'000) {
        return Error{ErrorCode::configuration, "step_target_ms is " + std::to_string(settings.step_target / 1'000'000) +
                                                   ": it must be within 0.." + std::to_string(limits::max_step_target_ms)};
    }
    if (optimizer.prefix_cache_entries > 0 || optimizer.speculative_tokens > 0) {
        return Error{ErrorCode::unsupported_combination, "batching shares one context between all requests, and this profile has "
                                                         "prefix_cache_entries or speculative_tokens: they must be 0"};
    }
    return {};
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

ContextSettings shared_context(ContextSettings settings, std::int32_t batch_tokens, std::int32_t max_sequences) noexcept {
    const std::int64_t positions = static_cast<std::int64_t>(settings.context) * max_sequences;
    settings.n_sequences = max_sequences;
    settings.n_outputs = max_sequences;
    settings.batch_tokens = static_cast<std::int32_t>(std::min<std::int64_t>(batch_tokens, positions));
    settings.micro_batch_tokens = std::min(settings.micro_batch_tokens, settings.batch_tokens);
    return settings;
}

// -- made, and taken down -----------------------------------------------------------------------------------------------------

Scheduler::Scheduler(ModelHandle model, const ContextSettings & settings, const BatchingSettings & batching,
                     std::unique_ptr<Decoder> decoder)
    : model_(std::move(model)),
      settings_(settings),
      batching_(batching),
      resolved_(decoder->resolved()),
      memory_(decoder->memory()),
      fills_gaps_(model_->info().memory_kind == MemoryKind::attention ||
                  (model_->info().memory_kind == MemoryKind::sliding_window && settings.full_window)),
      decoder_(std::move(decoder)) {
    const auto n = static_cast<std::size_t>(batching.max_sequences);
    slots_.resize(n);
    active_.resize(n);
    waiting_.reserve(n);
    first_row_.resize(n);
    fillers_.reserve(n);
    batch_.reserve(static_cast<std::size_t>(settings.batch_tokens));
}

Result<std::shared_ptr<Scheduler>> Scheduler::make(ModelHandle model, const ContextSettings & settings,
                                                   const BatchingSettings & batching) noexcept try {
    std::unique_ptr<Decoder> decoder;
    if (Error error = model->make_decoder(settings).into(decoder); error.failed()) {
        return error;
    }
    // In a forked child the worker does not exist, and its locks may be held for ever: nothing of it is taken down there.
    std::shared_ptr<Scheduler> scheduler(new Scheduler(std::move(model), settings, batching, std::move(decoder)),
                                         [](Scheduler * one) {
                                             if (!one->guard_.foreign()) {
                                                 delete one;
                                             }
                                         });
    scheduler->worker_ = std::thread([worker = scheduler.get()] { worker->run(); });
    return scheduler;
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
} catch (const std::system_error &) {
    return Error{ErrorCode::out_of_memory, "the scheduler's thread could not be started"};
}

Scheduler::~Scheduler() {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        stopping_ = true;
        changes_ = true;
    }
    changed_.notify_all();
    if (worker_.joinable()) {
        worker_.join();
    }
}

// -- any thread ----------------------------------------------------------------------------------------------------------------

Result<std::shared_ptr<Generation>> Scheduler::submit(GenerationRequest request, Admission admission) noexcept try {
    MemberHandle member(new Member(model_, std::move(request), settings_, std::move(admission)),
                        [guard = guard_](Member * one) {
                            if (!guard.foreign()) {  // a condition variable with a waiter cannot be destroyed in a child
                                delete one;
                            }
                        });
    Timings & t = member->sequence.result().timings;
    t.batch_max_sequences = batching_.max_sequences;
    t.batch_peak_sequences = 0;
    t.scheduler_steps = 0;
    t.batch_decoded_tokens = 0;
    auto generation = std::make_shared<ScheduledGeneration>(shared_from_this(), member);
    if (member->sequence.request().max_tokens == 0) {  // checked, and nothing to run (P9)
        member->admission.reset();
        t.total_duration = elapsed(member->sequence.request().start, Clock::now());
        member->channel.finish();
        return std::shared_ptr<Generation>(std::move(generation));
    }
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (dead_.failed()) {
            member->channel.fail(dead_);
            return dead_;
        }
        member->arrival = n_admitted_++;
        const auto free = std::find(slots_.begin(), slots_.end(), nullptr);
        if (free != slots_.end()) {
            member->slot = static_cast<SequenceId>(free - slots_.begin());
            t.queue_duration = elapsed(member->submitted, Clock::now());
            *free = member;
        } else if (queue_.size() < static_cast<std::size_t>(limits::max_waiting)) {
            queue_.push_back(member);
        } else {
            const Error busy{ErrorCode::busy, "all " + std::to_string(batching_.max_sequences) + " slots are taken and " +
                                                  std::to_string(limits::max_waiting) + " requests wait: try again later"};
            member->channel.fail(busy);
            return busy;
        }
        changes_ = true;
    }
    changed_.notify_one();
    return std::shared_ptr<Generation>(std::move(generation));
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

void Scheduler::wake() noexcept {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        changes_ = true;
    }
    changed_.notify_one();
}

void Scheduler::cancel(const MemberHandle & member) noexcept {
    member->cancellation.request();
    if (member->channel.over()) {
        return;
    }
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto queued = std::find(queue_.begin(), queue_.end(), member);
        if (queued != queue_.end()) {
            queue_.erase(queued);
            member->admission.reset();
            member->channel.fail_now(Cancellation::error());
            return;
        }
        changes_ = true;
    }
    changed_.notify_one();
}

bool Scheduler::starves_itself(const MemberHandle & member) noexcept {
    const std::thread::id reader = std::this_thread::get_id();
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto queued = std::find(queue_.begin(), queue_.end(), member);
    if (queued == queue_.end()) {
        return false;
    }
    for (const MemberHandle & one : slots_) {
        if (one == nullptr || !one->channel.full() || one->channel.reader() != reader) {
            return false;
        }
    }
    queue_.erase(queued);
    member->admission.reset();
    member->channel.fail_now(Error{ErrorCode::reentrant_request,
                                   "every slot is held by a stream that this thread has read only in part, so this request would "
                                   "wait for ever: read or close one of them first, or use more max_sequences"});
    return true;
}

Scheduler::Load Scheduler::load() const noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    Load load = load_;
    load.n_running = n_running();
    load.n_waiting = static_cast<std::int32_t>(queue_.size());
    return load;
}

std::int32_t Scheduler::n_running() const noexcept {
    return static_cast<std::int32_t>(slots_.size()) - static_cast<std::int32_t>(std::count(slots_.begin(), slots_.end(), nullptr));
}

}  // namespace aner

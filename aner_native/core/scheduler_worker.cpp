// The scheduler's worker thread: what it does between two looks at the requests of others.
#include "scheduler.hpp"

#include "kv_trim.hpp"

#include <algorithm>
#include <limits>
#include <new>
#include <utility>

#if !defined(_WIN32)
#include <csignal>
#endif

namespace aner {

namespace {

constexpr std::int32_t k_filled_gap = 3;         // idle ids: so many thrown away rows cost less than one more graph
constexpr std::int32_t k_unknown_limit = 65;     // rows of prompts in a step before their cost is known
constexpr std::int32_t k_least_timed_rows = 16;  // fewer say little about the cost of one
constexpr std::int32_t k_patience = 3;           // steps of which nothing came before the worker gives up

// Signals are for the threads that know what to do with them.
void block_signals() noexcept {
#if !defined(_WIN32)
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
#endif
}

}  // namespace

void Scheduler::run() noexcept {
    block_signals();
    while (collect()) {
        step();
    }
    give_up(Cancellation::error());
    decoder_.reset();
}

// Waits until there is something to compute. False: the last handle is gone, or nothing can be computed any more.
bool Scheduler::collect() noexcept {
    while (true) {
        sweep();
        std::unique_lock<std::mutex> lock(mutex_);
        if (stopping_ || dead_.failed()) {
            return false;
        }
        refill();
        waiting_.clear();
        for (std::size_t i = 0; i < slots_.size(); ++i) {
            active_[i] = slots_[i];
            const MemberHandle & one = slots_[i];
            if (one != nullptr && !one->channel.full()) {
                const Sequence & sequence = one->sequence;
                const std::int32_t left = sequence.prefilling() ? sequence.n_prompt() - sequence.n_computed() : 0;
                waiting_.push_back({static_cast<SequenceId>(i), left, one->arrival});
            }
        }
        if (!waiting_.empty()) {
            changes_ = false;
            return true;
        }
        const Clock::time_point deadline = next_deadline();
        const auto news = [&] { return changes_; };
        if (deadline == Clock::time_point::max()) {
            changed_.wait(lock, news);
        } else {
            changed_.wait_until(lock, deadline, news);
        }
        changes_ = false;
    }
}

Clock::time_point Scheduler::next_deadline() const noexcept {
    Clock::time_point earliest = Clock::time_point::max();
    for (const MemberHandle & one : slots_) {
        earliest = one != nullptr ? std::min(earliest, one->cancellation.deadline()) : earliest;
    }
    for (const MemberHandle & one : queue_) {
        earliest = std::min(earliest, one->cancellation.deadline());
    }
    return earliest;
}

// Ends what was cancelled or ran out of time, with a slot or without.
void Scheduler::sweep() noexcept {
    std::vector<SequenceId> ended;  // its memory is the only one that can run out here, and then the next sweep does it
    try {
        const std::lock_guard<std::mutex> lock(mutex_);
        for (const MemberHandle & one : slots_) {
            if (one != nullptr) {
                one->failure = one->cancellation.check();
                if (one->failure.failed()) {
                    ended.push_back(one->slot);
                }
            }
        }
        for (auto one = queue_.begin(); one != queue_.end();) {
            const MemberHandle member = *one;
            const Error error = member->cancellation.check();
            one = error.failed() ? queue_.erase(one) : one + 1;
            if (error.failed()) {
                member->admission.reset();
                member->channel.fail_now(error);
            }
        }
    } catch (const std::bad_alloc &) {
    }
    for (const SequenceId slot : ended) {
        end(slot);
    }
}

void Scheduler::refill() noexcept {
    for (std::size_t i = 0; i < slots_.size() && !queue_.empty(); ++i) {
        if (slots_[i] == nullptr) {
            slots_[i] = std::move(queue_.front());
            queue_.pop_front();
            slots_[i]->slot = static_cast<SequenceId>(i);
            slots_[i]->sequence.result().timings.queue_duration = elapsed(slots_[i]->submitted, Clock::now());
        }
    }
}

// Plan, decode, apply.
void Scheduler::step() noexcept try {
    const std::vector<Share> shares = plan_step(waiting_, {settings_.batch_tokens, prefill_limit()});
    batch_.clear();
    fillers_.clear();
    for (const Share & share : shares) {
        add_rows(share);
    }
    add_fillers();
    const Clock::time_point before = Clock::now();
    Error error = decoder_->decode(batch_);
    if (error.failed()) {
        recover(std::move(error));
        return;
    }
    n_barren_ = 0;
    for (const Share & share : shares) {
        Member & member = *active_[static_cast<std::size_t>(share.id)];
        member.failure = apply(share);
    }
    if (Error trimmed = remove_fillers(); trimmed.failed()) {
        give_up(trimmed);
        return;
    }
    complete(shares, before);
} catch (const std::bad_alloc &) {
    recover(Error{ErrorCode::out_of_memory});
}

void Scheduler::add_rows(const Share & share) {
    const Sequence & sequence = active_[static_cast<std::size_t>(share.id)]->sequence;
    first_row_[static_cast<std::size_t>(share.id)] = static_cast<std::int32_t>(batch_.size());
    const Position first = sequence.n_computed();
    const std::int32_t n_known = sequence.n_known();
    for (Position position = first; position < first + share.n_rows; ++position) {
        batch_.push_back({sequence.history()[static_cast<std::size_t>(position)], position, share.id, position + 1 == n_known});
    }
}

// The engine computes a run of neighbouring ids as one graph and begins a new one at each gap. A row of an idle stream that is
// taken back afterwards costs less than that, while the gap is small.
void Scheduler::add_fillers() {
    if (!fills_gaps_ || batch_.empty()) {
        return;
    }
    const std::size_t n_rows = batch_.size();
    for (std::size_t i = 1; i < n_rows; ++i) {
        const SequenceId from = batch_[i - 1].sequence + 1;
        const SequenceId to = batch_[i].sequence;
        if (to - from < 1 || to - from > k_filled_gap) {
            continue;
        }
        for (SequenceId id = from; id < to; ++id) {
            const MemberHandle & owner = active_[static_cast<std::size_t>(id)];
            const Position position = owner == nullptr ? 0 : owner->sequence.n_computed();
            if (position < settings_.context && static_cast<std::int32_t>(batch_.size()) < settings_.batch_tokens) {
                batch_.push_back({0, position, id, false});
                fillers_.push_back({id, position});
            }
        }
    }
    if (fillers_.empty()) {
        return;
    }
    std::stable_sort(batch_.begin(), batch_.end(), [](const BatchRow & a, const BatchRow & b) { return a.sequence < b.sequence; });
    for (std::size_t i = batch_.size(); i-- > 0;) {
        first_row_[static_cast<std::size_t>(batch_[i].sequence)] = static_cast<std::int32_t>(i);
    }
}

Error Scheduler::remove_fillers() noexcept {
    for (const Filler & filler : fillers_) {
        if (Error error = trim_to(*decoder_, filler.id, filler.position); error.failed()) {
            return error;
        }
    }
    fillers_.clear();
    return {};
}

// What the step computed for one sequence. Its rows stand in batch_ from first_row_ on.
Error Scheduler::apply(const Share & share) noexcept try {
    Member & member = *active_[static_cast<std::size_t>(share.id)];
    Sequence & sequence = member.sequence;
    member.event = {};
    member.prefilled = sequence.prefilling();
    if (member.prefilled) {
        if (!sequence.prompt_computed(share.n_rows)) {
            return {};
        }
    } else {
        sequence.pending_computed();
    }
    const std::int32_t last = first_row_[static_cast<std::size_t>(share.id)] + share.n_rows - 1;
    Result<Sampled> sampled = sequence.choose(decoder_->logits(last));
    if (sampled.failed()) {
        return sampled.error();
    }
    sequence.append(sampled.take(), member.event);
    if (member.event.finished) {
        sequence.finish(member.event);
    }
    sequence.result().text += member.event.text;
    return {};
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

// Measures the step, hands out its texts, and frees the slots of what ended with it.
void Scheduler::complete(const std::vector<Share> & shares, Clock::time_point before) noexcept {
    const Clock::time_point after = Clock::now();
    const Nanoseconds duration = elapsed(before, after);
    observe(duration);
    std::int32_t running = 0;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        running = n_running();
        load_.n_steps += 1;
        load_.last_step = duration;
    }
    std::int64_t n_tokens = 0;
    for (const Share & share : shares) {
        const Member & member = *active_[static_cast<std::size_t>(share.id)];
        n_tokens += !member.failure.failed() && !member.sequence.prefilling() ? 1 : 0;
    }
    for (const Share & share : shares) {
        Member & member = *active_[static_cast<std::size_t>(share.id)];
        member.sequence.measure(member.prefilled, duration, after);
        Timings & t = member.sequence.result().timings;
        t.scheduler_steps += 1;
        t.batch_decoded_tokens += n_tokens;
        t.batch_peak_sequences = std::max<std::int64_t>(t.batch_peak_sequences, running);
        if (!member.failure.failed()) {
            try {
                member.channel.push(member.event.text);
            } catch (const std::bad_alloc &) {
                member.failure = Error{ErrorCode::out_of_memory};
            }
        }
        if (member.failure.failed() || member.event.finished) {
            end(share.id);
        }
    }
}

// A call for many failed. Each of its sequences is taken back to where it was and evaluated alone; who fails alone, fails.
void Scheduler::recover(Error error) noexcept {
    if (error.code() == ErrorCode::cancelled || error.code() == ErrorCode::forked) {
        give_up(error);  // the process is leaving
        return;
    }
    if (Error trimmed = remove_fillers(); trimmed.failed()) {
        give_up(error);
        return;
    }
    std::int32_t n_saved = 0;
    for (const Waiting & one : waiting_) {
        Member & member = *active_[static_cast<std::size_t>(one.id)];
        member.failure = error;
        const Clock::time_point before = Clock::now();
        try {
            if (!trim_to(*decoder_, one.id, member.sequence.n_computed()).failed()) {
                const std::vector<Share> alone = plan_step({one}, {settings_.batch_tokens, prefill_limit()});
                batch_.clear();
                add_rows(alone.front());
                member.failure = decoder_->decode(batch_);
                if (!member.failure.failed()) {
                    member.failure = apply(alone.front());
                    n_saved += 1;
                    complete(alone, before);
                    continue;
                }
            }
        } catch (const std::bad_alloc &) {
            member.failure = Error{ErrorCode::out_of_memory};
        }
        end(one.id);
    }
    n_barren_ = n_saved > 0 ? 0 : n_barren_ + 1;
    if (n_barren_ >= k_patience) {
        give_up(error);
    }
}

// The sequence of a slot is over: by itself, or with its `failure`. Its stream is emptied before the slot is anybody else's, and
// the caller's right to a request is given back before it can know.
void Scheduler::end(SequenceId slot) noexcept {
    const MemberHandle member = slots_[static_cast<std::size_t>(slot)];  // only the worker replaces it
    if (member == nullptr) {
        return;  // everything was given up meanwhile
    }
    const Clock::time_point before = Clock::now();
    const bool cleared = !trim_to(*decoder_, slot, 0).failed();
    const Clock::time_point after = Clock::now();
    member->admission.reset();
    if (member->failure.failed()) {
        if (member->failure.code() == ErrorCode::cancelled) {
            member->channel.fail_now(member->failure);
        } else {
            member->channel.fail(member->failure);
        }
    } else {
        Timings & t = member->sequence.result().timings;
        t.context_clear_duration = cleared ? elapsed(before, after) : k_unmeasured;
        t.total_duration = elapsed(member->sequence.request().start, after);
    }
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        slots_[static_cast<std::size_t>(slot)] = nullptr;
        active_[static_cast<std::size_t>(slot)] = nullptr;
        refill();
    }
    if (!member->failure.failed()) {
        member->channel.finish();
    }
    if (!cleared) {
        give_up(Error{ErrorCode::engine, "the engine could not empty a slot"});
    }
}

// Nothing runs any more: everyone who waits is told, and so is everyone who comes.
void Scheduler::give_up(const Error & error) noexcept {
    std::vector<MemberHandle> all;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!dead_.failed()) {
        dead_ = error;
    }
    for (MemberHandle & one : slots_) {
        if (one != nullptr) {
            one->admission.reset();
            one->channel.fail(error);
            one = nullptr;
        }
    }
    for (const MemberHandle & one : queue_) {
        one->admission.reset();
        one->channel.fail(error);
    }
    queue_.clear();
}

void Scheduler::observe(Nanoseconds duration) noexcept {
    std::int32_t n_rows = 0;
    for (const BatchRow & row : batch_) {
        n_rows += active_[static_cast<std::size_t>(row.sequence)] != nullptr &&
                          active_[static_cast<std::size_t>(row.sequence)]->prefilled
                      ? 1
                      : 0;
    }
    if (n_rows >= k_least_timed_rows) {
        const double cost = static_cast<double>(duration) / n_rows;
        prefill_row_cost_ = prefill_row_cost_ > 0 ? 0.75 * prefill_row_cost_ + 0.25 * cost : cost;
    }
}

std::int32_t Scheduler::prefill_limit() const noexcept {
    if (batching_.step_target == 0) {
        return std::numeric_limits<std::int32_t>::max();
    }
    if (prefill_row_cost_ <= 0) {
        return k_unknown_limit;
    }
    const double n = static_cast<double>(batching_.step_target) / prefill_row_cost_;
    return static_cast<std::int32_t>(std::clamp(n, 1.0, 65536.0));
}

}  // namespace aner

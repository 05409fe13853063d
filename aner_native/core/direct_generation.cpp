#include "direct_generation.hpp"

#include "kv_trim.hpp"

#include <algorithm>
#include <new>

namespace aner {

DirectGeneration::DirectGeneration(ModelHandle model, Admission admission, GenerationRequest request,
                                   const ContextSettings & settings)
    : settings_(settings),
      sequence_(std::move(model), std::move(request), settings),
      cancellation_(sequence_.request().start, sequence_.request().timeout) {
    held_.emplace(Held{std::move(admission), nullptr});
}

Error DirectGeneration::acquire(ContextSource & source, const CostTable & costs) {
    const GenerationRequest & request = sequence_.request();
    Timings & t = sequence_.result().timings;
    if (settings_.speculative_tokens > 0) {
        drafter_.emplace(settings_.n_outputs - 1, costs, sequence_.ends());
        t.speculative_proposed_tokens = 0;
        t.speculative_accepted_tokens = 0;
        t.speculative_verification_steps = 0;
    }
    if (request.max_tokens == 0) {
        return {};
    }
    const Clock::time_point before = Clock::now();
    if (Error error = source.acquire(request.prompt, request.n_template, t).into(held_->context); error.failed()) {
        return error;
    }
    t.context_acquire_duration = elapsed(before, Clock::now());
    sequence_.begin_at(held_->context->n_cached());
    return {};
}

Result<GenerationEvent> DirectGeneration::next() noexcept {
    if (over_.load()) {
        return outcome();
    }
    if (guard_.foreign()) {
        return Error{ErrorCode::forked, "this request runs in the parent process: start it again in the child"};
    }
    if (turn_.exchange(true)) {
        return cancellation_.requested() ? Cancellation::error()
                                         : Error{ErrorCode::busy, "another thread is taking the next piece of this request: use "
                                                                  "one thread for it"};
    }
    Result<GenerationEvent> event = over_.load() ? outcome() : step();
    turn_.store(false);
    if (cancellation_.requested()) {
        end_if_cancelled();  // asked for during the step, by a thread that did not get the turn
        if (over_.load() && failure_.failed()) {
            return failure_;
        }
    }
    return event;
}

Result<GenerationEvent> DirectGeneration::outcome() const noexcept {
    if (failure_.failed()) {
        return failure_;
    }
    return GenerationEvent{{}, true};
}

void DirectGeneration::cancel() noexcept {
    cancellation_.request();
    end_if_cancelled();
}

void DirectGeneration::end_if_cancelled() noexcept {
    if (over_.load() || turn_.exchange(true)) {
        return;
    }
    if (!over_.load()) {
        (void) fail(Cancellation::error());
    }
    turn_.store(false);
}

// Plan, decode, apply.
Result<GenerationEvent> DirectGeneration::step() noexcept try {
    GenerationEvent event;
    if (Error error = cancellation_.check(); error.failed()) {
        return fail(std::move(error));
    }
    if (sequence_.request().max_tokens == 0) {
        event.finished = true;
        finish(event);
        return event;
    }
    const bool prefill = sequence_.prefilling();
    const Clock::time_point before = Clock::now();
    batch_.clear();
    draft_ = {};
    if (prefill) {
        plan_prefill();
    } else {
        plan_decode();
    }
    Error error = held_->context->decoder().decode(batch_);
    if (!error.failed()) {
        error = prefill ? apply_prefill(event) : apply_decode(event);
    }
    if (error.failed()) {
        return fail(std::move(error));
    }
    const Clock::time_point after = Clock::now();
    sequence_.measure(prefill, elapsed(before, after), after);
    if (event.finished) {
        finish(event);
    } else {
        sequence_.result().text += event.text;
    }
    return event;
} catch (const std::bad_alloc &) {
    return fail(Error{ErrorCode::out_of_memory});
}

void DirectGeneration::plan_prefill() {
    const std::int32_t n_prompt = sequence_.n_prompt();
    const std::int32_t end = std::min(n_prompt, sequence_.n_computed() + settings_.micro_batch_tokens);
    for (Position position = sequence_.n_computed(); position < end; ++position) {
        batch_.push_back({sequence_.history()[static_cast<std::size_t>(position)], position, 0, position + 1 == n_prompt});
    }
}

void DirectGeneration::plan_decode() {
    const Position pending = sequence_.n_computed();
    const std::vector<Token> & history = sequence_.history();
    batch_.push_back({history.back(), pending, 0, true});
    if (!drafter_.has_value()) {
        return;
    }
    // The target adds one token of its own to a draft, so each bound keeps one free.
    const std::int32_t room =
        std::min(sequence_.request().max_tokens - sequence_.n_output(), settings_.context - sequence_.n_known()) - 1;
    draft_ = drafter_->next(history.data(), history.size(), room);
    for (std::int32_t i = 0; i < draft_.n_tokens; ++i) {
        batch_.push_back({draft_.tokens[static_cast<std::size_t>(i)], pending + 1 + i, 0, true});
    }
}

Result<Sampled> DirectGeneration::choose(std::int32_t row) noexcept {
    return sequence_.choose(held_->context->decoder().logits(row));
}

Error DirectGeneration::apply_prefill(GenerationEvent & event) {
    const auto n_rows = static_cast<std::int32_t>(batch_.size());
    if (!sequence_.prompt_computed(n_rows)) {
        return {};
    }
    Result<Sampled> sampled = choose(n_rows - 1);
    if (!sampled.failed()) {
        sequence_.append(sampled.take(), event);
    }
    return sampled.error();
}

// Row 0 is the pending token, row i the i-th drafted one. The target's choice in row i follows the tokens up to it, so it counts
// only while all drafted tokens before it were accepted.
Error DirectGeneration::apply_decode(GenerationEvent & event) {
    std::int32_t n_accepted = 0;
    for (std::int32_t row = 0;; ++row) {
        Result<Sampled> sampled = choose(row);
        if (sampled.failed()) {
            return sampled.error();
        }
        const bool accepted = row < draft_.n_tokens && sampled.value().token == draft_.tokens[static_cast<std::size_t>(row)];
        n_accepted += accepted ? 1 : 0;
        sequence_.pending_computed();
        sequence_.append(sampled.take(), event);
        if (!accepted || event.finished) {
            break;
        }
    }
    if (draft_.n_tokens == 0) {
        return {};
    }
    Timings & t = sequence_.result().timings;
    t.speculative_proposed_tokens += draft_.n_tokens;
    t.speculative_accepted_tokens += n_accepted;
    t.speculative_verification_steps += 1;
    drafter_->observe(draft_, n_accepted);
    // [0, n_computed) is verified, [n_computed, end) is the rejected or unconsumed rest of the draft
    return trim_to(held_->context->decoder(), 0, sequence_.n_computed());
}

void DirectGeneration::finish(GenerationEvent & event) {
    sequence_.finish(event);
    GenerationResult & result = sequence_.result();
    result.text += event.text;  // from here on nothing that this request needs takes memory
    if (held_->context != nullptr) {
        // A context that cannot be kept is freed instead; the response stands, and its clearing was not measured.
        (void) held_->context->keep(sequence_.history(), sequence_.n_prompt(), sequence_.n_computed(), result.timings);
    }
    held_.reset();
    result.timings.total_duration = elapsed(sequence_.request().start, Clock::now());
    over_.store(true);
}

Error DirectGeneration::fail(Error error) noexcept {
    held_.reset();
    failure_ = std::move(error);
    over_.store(true);
    return failure_;
}

Result<std::shared_ptr<Generation>> start_direct(ModelHandle model, ContextSource & source, const ContextSettings & settings,
                                                 const CostTable & costs, Admission admission, GenerationRequest request) noexcept try {
    auto generation = std::make_shared<DirectGeneration>(std::move(model), std::move(admission), std::move(request), settings);
    if (Error error = generation->acquire(source, costs); error.failed()) {
        return error;
    }
    return std::shared_ptr<Generation>(std::move(generation));
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

}  // namespace aner

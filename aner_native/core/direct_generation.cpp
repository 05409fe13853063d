#include "direct_generation.hpp"

#include "kv_trim.hpp"

#include <algorithm>
#include <new>

namespace aner {

namespace {

std::shared_ptr<const std::vector<Token>> end_of_generation_of(const ModelHandle & model) noexcept {
    return {model, &model->vocabulary().end_of_generation()};  // lives as long as the model
}

}  // namespace

DirectGeneration::DirectGeneration(ModelHandle model, Admission admission, GenerationRequest request,
                                   const ContextSettings & settings)
    : model_(std::move(model)),
      request_(std::move(request)),
      n_prompt_(static_cast<std::int32_t>(request_.prompt.size())),
      settings_(settings),
      cancellation_(request_.start, request_.timeout),
      sampler_(request_.sampling, end_of_generation_of(model_), model_->vocabulary().n_tokens()),
      text_(request_.stop),
      history_(request_.prompt) {
    held_.emplace(Held{std::move(admission), nullptr});
    history_.reserve(history_.size() + static_cast<std::size_t>(std::min(request_.max_tokens, 4096)));
    Timings & t = result_.timings;
    t.template_duration = request_.template_duration;
    t.tokenize_duration = request_.tokenize_duration;
    t.input_tokens = n_prompt_;
    t.cached_input_tokens = 0;
    t.evaluated_input_tokens = 0;
    t.output_tokens = 0;
    t.threads = settings_.threads;
    t.prefill_threads = settings_.prefill_threads;
    t.batch_tokens = settings_.batch_tokens;
    t.micro_batch_tokens = settings_.micro_batch_tokens;
    result_.seed = request_.sampling.seed;
}

Error DirectGeneration::acquire(ContextSource & source, const CostTable & costs) {
    Timings & t = result_.timings;
    if (settings_.speculative_tokens > 0) {
        std::vector<Token> ends = model_->vocabulary().end_of_generation();
        ends.insert(ends.end(), request_.sampling.stop_token_ids.begin(), request_.sampling.stop_token_ids.end());
        drafter_.emplace(settings_.n_outputs - 1, costs, std::move(ends));
        t.speculative_proposed_tokens = 0;
        t.speculative_accepted_tokens = 0;
        t.speculative_verification_steps = 0;
    }
    if (request_.max_tokens == 0) {
        return {};
    }
    const Clock::time_point before = Clock::now();
    if (Error error = source.acquire(request_.prompt, request_.n_template, t).into(held_->context); error.failed()) {
        return error;
    }
    t.context_acquire_duration = elapsed(before, Clock::now());
    n_computed_ = held_->context->n_cached();
    t.cached_input_tokens = n_computed_;
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

// Plan, decode, apply. [0, n_computed) is in the context's memory, [n_computed, n_known) is pending: a piece of the prompt, or
// the one token that was sampled last.
Result<GenerationEvent> DirectGeneration::step() noexcept try {
    GenerationEvent event;
    if (Error error = cancellation_.check(); error.failed()) {
        return fail(std::move(error));
    }
    if (request_.max_tokens == 0) {
        event.finished = true;
        finish(event);
        return event;
    }
    const bool prefill = n_computed_ < n_prompt_;
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
    if (!error.failed()) {
        measure(prefill, before);
    }
    if (error.failed()) {
        return fail(std::move(error));
    }
    if (event.finished) {
        finish(event);
    } else {
        result_.text += event.text;
    }
    return event;
} catch (const std::bad_alloc &) {
    return fail(Error{ErrorCode::out_of_memory});
}

void DirectGeneration::plan_prefill() {
    const std::int32_t end = std::min(n_prompt_, n_computed_ + settings_.micro_batch_tokens);
    for (Position position = n_computed_; position < end; ++position) {
        batch_.push_back({history_[static_cast<std::size_t>(position)], position, 0, position + 1 == n_prompt_});
    }
}

void DirectGeneration::plan_decode() {
    const Position pending = n_computed_;
    batch_.push_back({history_.back(), pending, 0, true});
    if (!drafter_.has_value()) {
        return;
    }
    // The target adds one token of its own to a draft, so each bound keeps one free.
    const auto n_output = static_cast<std::int32_t>(result_.tokens.size());
    const std::int32_t room = std::min(request_.max_tokens - n_output, settings_.context - n_known()) - 1;
    draft_ = drafter_->next(history_.data(), history_.size(), room);
    for (std::int32_t i = 0; i < draft_.n_tokens; ++i) {
        batch_.push_back({draft_.tokens[static_cast<std::size_t>(i)], pending + 1 + i, 0, true});
    }
}

Result<Sampled> DirectGeneration::sample(std::int32_t row) noexcept {
    const float * logits = held_->context->decoder().logits(row);
    if (logits == nullptr) {
        return Error{ErrorCode::engine, "the engine has no logits for a row that asked for them"};
    }
    ++n_sampled_;
    return sampler_.sample(logits, history_.data(), history_.size(), static_cast<std::int32_t>(result_.tokens.size()));
}

Error DirectGeneration::apply_prefill(GenerationEvent & event) {
    const auto n_rows = static_cast<std::int32_t>(batch_.size());
    n_computed_ += n_rows;
    result_.timings.evaluated_input_tokens += n_rows;
    if (n_computed_ < n_prompt_) {
        return {};
    }
    Result<Sampled> sampled = sample(n_rows - 1);
    if (!sampled.failed()) {
        append(sampled.take(), event);
    }
    return sampled.error();
}

// Row 0 is the pending token, row i the i-th drafted one. The target's choice in row i follows the tokens up to it, so it counts
// only while all drafted tokens before it were accepted.
Error DirectGeneration::apply_decode(GenerationEvent & event) {
    std::int32_t n_accepted = 0;
    for (std::int32_t row = 0;; ++row) {
        Result<Sampled> sampled = sample(row);
        if (sampled.failed()) {
            return sampled.error();
        }
        const bool accepted = row < draft_.n_tokens && sampled.value().token == draft_.tokens[static_cast<std::size_t>(row)];
        n_accepted += accepted ? 1 : 0;
        ++n_computed_;
        append(sampled.take(), event);
        if (!accepted || event.finished) {
            break;
        }
    }
    if (draft_.n_tokens == 0) {
        return {};
    }
    Timings & t = result_.timings;
    t.speculative_proposed_tokens += draft_.n_tokens;
    t.speculative_accepted_tokens += n_accepted;
    t.speculative_verification_steps += 1;
    drafter_->observe(draft_, n_accepted);
    // [0, n_computed) is verified, [n_computed, end) is the rejected or unconsumed rest of the draft
    return trim_to(held_->context->decoder(), 0, n_computed_);
}

void DirectGeneration::measure(bool prefill, Clock::time_point before) noexcept {
    Timings & t = result_.timings;
    const Clock::time_point after = Clock::now();
    Nanoseconds & duration = prefill ? t.prefill_duration : t.generation_duration;
    duration = std::max<Nanoseconds>(duration, 0) + elapsed(before, after);
    if (!prefill) {
        result_.timed_tokens += n_sampled_;
    } else if (n_sampled_ > 0) {
        t.first_token_duration = elapsed(request_.start, after);
    }
    n_sampled_ = 0;
}

bool DirectGeneration::ends_generation(Token token) const noexcept {
    const std::vector<Token> & model_ends = model_->vocabulary().end_of_generation();
    const std::vector<Token> & asked = request_.sampling.stop_token_ids;
    return std::binary_search(model_ends.begin(), model_ends.end(), token) ||
           std::find(asked.begin(), asked.end(), token) != asked.end();
}

// Appends one token that the target chose, or ends the output with it.
void DirectGeneration::append(Sampled sampled, GenerationEvent & event) {
    if (ends_generation(sampled.token)) {
        event.finished = true;
        result_.finish_reason = FinishReason::stop;
        return;
    }
    const Token token = sampled.token;
    history_.push_back(token);
    result_.tokens.push_back(token);
    result_.timings.output_tokens += 1;
    if (request_.sampling.n_logprobs >= 0) {
        result_.logprobs.push_back(std::move(sampled));
    }
    const StreamedText streamed = text_.push(model_->vocabulary().piece(token));
    event.text += streamed.text;
    const bool full = static_cast<std::int32_t>(result_.tokens.size()) == request_.max_tokens || n_known() == settings_.context;
    event.finished = streamed.stopped || full;
    result_.finish_reason = streamed.stopped ? FinishReason::stop : FinishReason::length;
}

void DirectGeneration::finish(GenerationEvent & event) {
    const StreamedText rest = text_.finish();
    event.text += rest.text;
    result_.finish_reason = rest.stopped ? FinishReason::stop : result_.finish_reason;
    result_.text += event.text;  // from here on nothing that this request needs takes memory
    if (held_->context != nullptr) {
        // A context that cannot be kept is freed instead; the response stands, and its clearing was not measured.
        (void) held_->context->keep(history_, n_prompt_, n_computed_, result_.timings);
    }
    held_.reset();
    result_.timings.total_duration = elapsed(request_.start, Clock::now());
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

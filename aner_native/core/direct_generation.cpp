#include "direct_generation.hpp"

#include <algorithm>
#include <new>

namespace aner {

namespace {

std::shared_ptr<const std::vector<Token>> end_of_generation_of(const ModelHandle & model) noexcept {
    return {model, &model->vocabulary().end_of_generation()};  // lives as long as the model
}

}  // namespace

DirectGeneration::DirectGeneration(ModelHandle model, Admission admission, GenerationRequest request)
    : model_(std::move(model)),
      request_(std::move(request)),
      n_prompt_(static_cast<std::int32_t>(request_.prompt.size())),
      cancellation_(request_.start, request_.timeout),
      sampler_(request_.sampling, end_of_generation_of(model_), model_->vocabulary().n_tokens()),
      text_(request_.stop),
      history_(request_.prompt) {
    held_.emplace(Held{std::move(admission), std::nullopt});
    history_.reserve(history_.size() + static_cast<std::size_t>(std::min(request_.max_tokens, 4096)));
    Timings & t = result_.timings;
    t.template_duration = request_.template_duration;
    t.tokenize_duration = request_.tokenize_duration;
    t.input_tokens = n_prompt_;
    t.cached_input_tokens = 0;
    t.evaluated_input_tokens = 0;
    t.output_tokens = 0;
    result_.seed = request_.sampling.seed;
}

Error DirectGeneration::acquire(ContextPool & pool) noexcept {
    const ContextSettings & s = pool.settings();
    Timings & t = result_.timings;
    t.threads = s.threads;
    t.prefill_threads = s.prefill_threads;
    t.batch_tokens = s.batch_tokens;
    t.micro_batch_tokens = s.micro_batch_tokens;
    if (request_.max_tokens == 0) {
        return {};
    }
    const Clock::time_point before = Clock::now();
    Result<ContextLease> context = pool.acquire();
    if (context.failed()) {
        return context.error();
    }
    held_->context.emplace(context.take());
    t.context_acquire_duration = elapsed(before, Clock::now());
    t.context_pool_reused = held_->context->reused() ? 1 : 0;
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
        end_if_cancelled();  // asked for after the step had looked, by a thread that did not get the turn
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
        finish(FinishReason::length, event);
        return event;
    }
    const bool prefill = n_computed_ < n_prompt_;
    const Clock::time_point before = Clock::now();
    Error error = evaluate_chunk();
    if (!error.failed() && n_computed_ == n_known()) {
        Result<Sampled> sampled = sample();
        error = sampled.error();
        if (!error.failed()) {
            Timings & t = result_.timings;
            const Clock::time_point after = Clock::now();
            Nanoseconds & duration = prefill ? t.prefill_duration : t.generation_duration;
            duration = std::max<Nanoseconds>(duration, 0) + elapsed(before, after);
            if (prefill) {
                t.first_token_duration = elapsed(request_.start, after);
            }
            apply(sampled.take(), event);
            result_.timed_tokens += prefill ? 0 : 1;
        }
    } else if (!error.failed()) {
        Nanoseconds & duration = result_.timings.prefill_duration;
        duration = std::max<Nanoseconds>(duration, 0) + elapsed(before, Clock::now());
    }
    if (!error.failed() && !event.finished) {
        error = cancellation_.check();
    }
    if (error.failed()) {
        return fail(std::move(error));
    }
    return event;
} catch (const std::bad_alloc &) {
    return fail(Error{ErrorCode::out_of_memory});
}

Error DirectGeneration::evaluate_chunk() {
    Decoder & decoder = held_->context->decoder();
    const std::int32_t n_rows = std::min(n_known() - n_computed_, decoder.resolved().micro_batch_tokens);
    batch_.clear();
    for (std::int32_t i = 0; i < n_rows; ++i) {
        const Position position = n_computed_ + i;
        batch_.push_back({history_[static_cast<std::size_t>(position)], position, 0, position + 1 == n_known()});
    }
    if (Error error = decoder.decode(batch_); error.failed()) {
        return error;
    }
    if (n_computed_ < n_prompt_) {
        result_.timings.evaluated_input_tokens += n_rows;
    }
    n_computed_ += n_rows;
    return {};
}

Result<Sampled> DirectGeneration::sample() noexcept {
    const float * row = held_->context->decoder().logits(static_cast<std::int32_t>(batch_.size()) - 1);
    if (row == nullptr) {
        return Error{ErrorCode::engine, "the engine has no logits for a row that asked for them"};
    }
    return sampler_.sample(row, history_.data(), history_.size(), static_cast<std::int32_t>(result_.tokens.size()));
}

bool DirectGeneration::ends_generation(Token token) const noexcept {
    const std::vector<Token> & model_ends = model_->vocabulary().end_of_generation();
    const std::vector<Token> & asked = request_.sampling.stop_token_ids;
    return std::binary_search(model_ends.begin(), model_ends.end(), token) ||
           std::find(asked.begin(), asked.end(), token) != asked.end();
}

void DirectGeneration::apply(Sampled sampled, GenerationEvent & event) {
    if (ends_generation(sampled.token)) {
        finish(FinishReason::stop, event);
        return;
    }
    const Token token = sampled.token;
    history_.push_back(token);
    result_.tokens.push_back(token);
    result_.timings.output_tokens += 1;
    if (request_.sampling.n_logprobs >= 0) {
        result_.logprobs.push_back(std::move(sampled));
    }
    StreamedText streamed = text_.push(model_->vocabulary().piece(token));
    event.text += streamed.text;
    if (streamed.stopped) {
        finish(FinishReason::stop, event);
    } else if (static_cast<std::int32_t>(result_.tokens.size()) == request_.max_tokens ||
               n_known() == model_->info().settings.context) {
        finish(FinishReason::length, event);
    } else {
        result_.text += streamed.text;
    }
}

void DirectGeneration::finish(FinishReason reason, GenerationEvent & event) {
    const StreamedText rest = text_.finish();
    event.text += rest.text;
    event.finished = true;
    result_.text += event.text;  // from here on nothing takes memory
    result_.finish_reason = rest.stopped ? FinishReason::stop : reason;
    if (held_->context.has_value()) {
        const Clock::time_point before = Clock::now();
        const Error error = std::move(*held_->context).retain();  // a context that cannot be cleared is freed instead
        if (!error.failed()) {
            result_.timings.context_clear_duration = elapsed(before, Clock::now());
        }
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

Result<std::shared_ptr<Generation>> start_direct(ModelHandle model, const std::shared_ptr<ContextPool> & pool,
                                                 Admission admission, GenerationRequest request) noexcept try {
    auto generation = std::make_shared<DirectGeneration>(std::move(model), std::move(admission), std::move(request));
    if (Error error = generation->acquire(*pool); error.failed()) {
        return error;
    }
    return std::shared_ptr<Generation>(std::move(generation));
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

}  // namespace aner

#include "direct_generation.hpp"

#include <algorithm>

namespace aner {

namespace {

std::shared_ptr<const std::vector<Token>> end_of_generation_of(const ModelHandle & model) noexcept {
    return {model, &model->vocabulary().end_of_generation()};  // lives as long as the model
}

}  // namespace

DirectGeneration::DirectGeneration(ModelHandle model, Admission admission, GenerationRequest request) noexcept
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
    const std::unique_lock<std::mutex> lock(stepping_, std::try_to_lock);
    if (!lock.owns_lock()) {
        return Error{ErrorCode::busy, "another thread is taking the next piece of this request: use one thread for it"};
    }
    if (failure_.failed()) {
        return failure_;
    }
    if (finished_) {
        return GenerationEvent{{}, true};
    }
    return step();
}

void DirectGeneration::cancel() noexcept {
    cancellation_.request();
    const std::unique_lock<std::mutex> lock(stepping_, std::try_to_lock);
    if (lock.owns_lock() && !finished_ && !failure_.failed()) {
        (void) fail(cancellation_.check());
    }  // else the running step sees the request at its end
}

// Plan, decode, apply. [0, n_computed) is in the context's memory, [n_computed, n_known) is pending: a piece of the prompt, or
// the one token that was sampled last.
Result<GenerationEvent> DirectGeneration::step() noexcept {
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
        const float * row = held_->context->decoder().logits(static_cast<std::int32_t>(batch_.size()) - 1);
        Result<Sampled> sampled = sampler_.sample(row, history_.data(), history_.size(),
                                                  static_cast<std::int32_t>(result_.tokens.size()));
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
    if (!error.failed() && !finished_) {
        error = cancellation_.check();
    }
    if (error.failed()) {
        return fail(std::move(error));
    }
    return event;
}

Error DirectGeneration::evaluate_chunk() noexcept {
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

bool DirectGeneration::ends_generation(Token token) const noexcept {
    const std::vector<Token> & model_ends = model_->vocabulary().end_of_generation();
    const std::vector<Token> & asked = request_.sampling.stop_token_ids;
    return std::binary_search(model_ends.begin(), model_ends.end(), token) ||
           std::find(asked.begin(), asked.end(), token) != asked.end();
}

void DirectGeneration::apply(Sampled sampled, GenerationEvent & event) noexcept {
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

void DirectGeneration::finish(FinishReason reason, GenerationEvent & event) noexcept {
    const StreamedText rest = text_.finish();
    event.text += rest.text;
    event.finished = true;
    result_.text += event.text;
    result_.finish_reason = rest.stopped ? FinishReason::stop : reason;
    if (held_->context.has_value()) {
        const Clock::time_point before = Clock::now();
        const Error error = std::move(*held_->context).retain();  // a context that cannot be cleared is freed instead
        if (!error.failed()) {
            result_.timings.context_clear_duration = elapsed(before, Clock::now());
        }
    }
    held_.reset();
    finished_ = true;
    result_.timings.total_duration = elapsed(request_.start, Clock::now());
}

Error DirectGeneration::fail(Error error) noexcept {
    held_.reset();
    failure_ = std::move(error);
    return failure_;
}

Result<std::shared_ptr<Generation>> start_direct(ModelHandle model, const std::shared_ptr<ContextPool> & pool,
                                                 Admission admission, GenerationRequest request) noexcept {
    auto generation = std::make_shared<DirectGeneration>(std::move(model), std::move(admission), std::move(request));
    if (Error error = generation->acquire(*pool); error.failed()) {
        return error;
    }
    return std::shared_ptr<Generation>(std::move(generation));
}

}  // namespace aner

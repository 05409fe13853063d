#include "sequence.hpp"

#include <algorithm>

namespace aner {

namespace {

constexpr std::int32_t k_reserved_output = 4096;  // tokens; a longer output grows its vectors on the way

std::shared_ptr<const std::vector<Token>> end_of_generation_of(const ModelHandle & model) noexcept {
    return {model, &model->vocabulary().end_of_generation()};  // lives as long as the model
}

}  // namespace

Sequence::Sequence(ModelHandle model, GenerationRequest request, const ContextSettings & settings)
    : model_(std::move(model)),
      request_(std::move(request)),
      n_prompt_(static_cast<std::int32_t>(request_.prompt.size())),
      context_(settings.context),
      sampler_(request_.sampling, end_of_generation_of(model_), model_->vocabulary().n_tokens()),
      text_(request_.stop),
      history_(request_.prompt) {
    history_.reserve(history_.size() + static_cast<std::size_t>(std::min(request_.max_tokens, k_reserved_output)));
    Timings & t = result_.timings;
    t.template_duration = request_.template_duration;
    t.tokenize_duration = request_.tokenize_duration;
    t.input_tokens = n_prompt_;
    t.cached_input_tokens = 0;
    t.evaluated_input_tokens = 0;
    t.output_tokens = 0;
    t.threads = settings.threads;
    t.prefill_threads = settings.prefill_threads;
    t.batch_tokens = settings.batch_tokens;
    t.micro_batch_tokens = settings.micro_batch_tokens;
    result_.seed = request_.sampling.seed;
}

std::vector<Token> Sequence::ends() const {
    std::vector<Token> all = model_->vocabulary().end_of_generation();
    all.insert(all.end(), request_.sampling.stop_token_ids.begin(), request_.sampling.stop_token_ids.end());
    return all;
}

void Sequence::begin_at(std::int32_t n) noexcept {
    n_computed_ = n;
    result_.timings.cached_input_tokens = n;
}

bool Sequence::prompt_computed(std::int32_t n_rows) noexcept {
    n_computed_ += n_rows;
    result_.timings.evaluated_input_tokens += n_rows;
    return n_computed_ == n_prompt_;
}

Result<Sampled> Sequence::choose(const float * logits) noexcept {
    if (logits == nullptr) {
        return Error{ErrorCode::engine, "the engine has no logits for a row that asked for them"};
    }
    ++n_chosen_;
    return sampler_.sample(logits, history_.data(), history_.size(), n_output());
}

bool Sequence::is_end(Token token) const noexcept {
    const std::vector<Token> & model_ends = model_->vocabulary().end_of_generation();
    const std::vector<Token> & asked = request_.sampling.stop_token_ids;
    return std::binary_search(model_ends.begin(), model_ends.end(), token) ||
           std::find(asked.begin(), asked.end(), token) != asked.end();
}

void Sequence::append(Sampled sampled, GenerationEvent & event) {
    if (is_end(sampled.token)) {
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
    const bool full = n_output() == request_.max_tokens || n_known() == context_;
    event.finished = streamed.stopped || full;
    result_.finish_reason = streamed.stopped ? FinishReason::stop : FinishReason::length;
}

void Sequence::measure(bool prefill, Nanoseconds duration, Clock::time_point after) noexcept {
    Timings & t = result_.timings;
    Nanoseconds & sum = prefill ? t.prefill_duration : t.generation_duration;
    sum = std::max<Nanoseconds>(sum, 0) + duration;
    if (!prefill) {
        result_.timed_tokens += n_chosen_;
    } else if (n_chosen_ > 0) {
        t.first_token_duration = elapsed(request_.start, after);
    }
    n_chosen_ = 0;
}

void Sequence::finish(GenerationEvent & event) {
    const StreamedText rest = text_.finish();
    event.text += rest.text;
    result_.finish_reason = rest.stopped ? FinishReason::stop : result_.finish_reason;
}

}  // namespace aner

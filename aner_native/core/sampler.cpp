#include "sampler.hpp"

#include "argmax_row.hpp"
#include "exponentials.hpp"

#include <algorithm>
#include <cmath>
#include <new>
#include <numeric>
#include <string>
#include <utility>

namespace aner {

namespace {

constexpr float k_banned = -std::numeric_limits<float>::infinity();

// The finalizer of SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64 bits in which every input bit moves half the output.
std::uint64_t mix(std::uint64_t x) noexcept {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
    return x ^ (x >> 31);
}

// Draw `index` of the stream of `seed`, uniform in [0, 1) in steps of 2^-53: SplitMix64 read at an index, from a start that the
// seed is mixed into first, so that neighbouring seeds are not neighbouring places of one stream.
double uniform(std::uint64_t seed, std::uint64_t index) noexcept {
    constexpr std::uint64_t odd = 0x9E3779B97F4A7C15U;  // 2^64 divided by the golden ratio
    const std::uint64_t bits = mix(mix(seed + odd) + (index + 1) * odd);
    return static_cast<double>(bits >> 11) * 0x1p-53;
}

// A finite logit stays finite upwards: a tiny repeat penalty can overflow the division.
float below_infinity(float logit) noexcept {
    return std::min(logit, std::numeric_limits<float>::max());
}

}  // namespace

Sampler::Sampler(SamplingOptions options, std::shared_ptr<const std::vector<Token>> eog_tokens, std::int32_t n_vocab) noexcept
    : options_(std::move(options)), eog_tokens_(std::move(eog_tokens)), n_vocab_(n_vocab) {}

Result<Sampled> Sampler::sample(const float * logits, const Token * history, std::size_t n_history,
                                std::int32_t n_output) noexcept {
    const Result<Token> raw = argmax_row(logits, n_vocab_);
    if (raw.failed()) {
        return raw.error();
    }
    try {
        Sampled sampled;
        sampled.token = raw.value();
        const float * row = logits;
        if (!is_choice_of_edited_row(raw.value(), n_output)) {
            row = edited_row(logits, history, n_history, n_output);
        }
        if (row != logits) {
            const Result<Token> edited = argmax_row(row, n_vocab_);
            if (edited.failed()) {
                return Error{ErrorCode::invalid_request,
                             "logit_bias, ignore_eos and min_tokens together ban every token that the model offers"};
            }
            sampled.token = edited.value();
        }
        if (options_.temperature > 0) {
            sampled.token = draw(row, row[sampled.token], n_output);
        }
        if (options_.n_logprobs >= 0) {
            add_logprobs(logits, logits[raw.value()], sampled);
        }
        return sampled;
    } catch (const std::bad_alloc &) {
        return Error{ErrorCode::out_of_memory};
    }
}

// Bans alone leave the largest logit the largest unless it is banned itself: a greedy choice needs no edited row then.
bool Sampler::is_choice_of_edited_row(Token token, std::int32_t n_output) const noexcept {
    if (options_.temperature > 0 || !options_.logit_bias.empty() || options_.penalizes()) {
        return false;
    }
    const bool too_short = n_output < options_.min_tokens;
    const auto holds = [token](const std::vector<Token> & tokens) {
        return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
    };
    return !((options_.ignore_eos || too_short) && holds(*eog_tokens_)) && !(too_short && holds(options_.stop_token_ids));
}

const float * Sampler::edited_row(const float * logits, const Token * history, std::size_t n_history, std::int32_t n_output) {
    const bool too_short = n_output < options_.min_tokens;
    const bool bans_end = options_.ignore_eos || too_short;
    if (options_.logit_bias.empty() && !options_.penalizes() && !bans_end) {
        return logits;
    }
    row_.assign(logits, logits + n_vocab_);
    for (const auto & [token, bias] : options_.logit_bias) {
        row_[token] += bias;
    }
    if (options_.penalizes()) {
        penalize(history, n_history);
    }
    if (bans_end) {
        for (const Token token : *eog_tokens_) {
            row_[token] = k_banned;
        }
    }
    if (too_short) {
        for (const Token token : options_.stop_token_ids) {
            row_[token] = k_banned;
        }
    }
    return row_.data();
}

void Sampler::penalize(const Token * history, std::size_t n_history) {
    const std::size_t window =
        options_.penalty_window < 0 ? n_history : std::min<std::size_t>(n_history, options_.penalty_window);
    counts_.resize(n_vocab_, 0);
    seen_.clear();
    seen_.reserve(std::min<std::size_t>(window, n_vocab_));
    for (std::size_t i = n_history - window; i < n_history; ++i) {  // [n_history - window, n_history) is what counts
        const Token token = history[i];
        if (token >= 0 && token < n_vocab_ && counts_[token]++ == 0) {
            seen_.push_back(token);
        }
    }
    for (const Token token : seen_) {
        float & logit = row_[token];
        logit = below_infinity(logit > 0 ? logit / options_.repeat_penalty : logit * options_.repeat_penalty);
        logit -= static_cast<float>(counts_[token]) * options_.frequency_penalty + options_.presence_penalty;
        counts_[token] = 0;
    }
}

Token Sampler::draw(const float * row, float largest, std::int32_t n_output) {
    if (options_.top_k > 0 && options_.top_k < n_vocab_) {
        select_top(row, options_.top_k, candidates_);
        std::sort(candidates_.begin(), candidates_.end(),
                  [](const Candidate & a, const Candidate & b) { return a.token < b.token; });
    } else {
        candidates_.resize(n_vocab_);
        std::size_t n = 0;
        for (Token token = 0; token < n_vocab_; ++token) {
            candidates_[n] = {token, row[token]};
            n += row[token] != k_banned ? 1 : 0;
        }
        candidates_.resize(n);
    }
    if (options_.top_p < 1 || options_.min_p > 0) {
        keep_likely(largest);
    }
    const double total = weigh(candidates_.data(), candidates_.size(), largest, options_.temperature);
    const double target = uniform(options_.seed, static_cast<std::uint64_t>(n_output)) * total;
    double sum = 0;
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
        sum += weights_[i];
        if (sum > target) {
            return candidates_[i].token;
        }
    }
    return candidates_.back().token;  // not reached: the same sums in the same order end at the total
}

double Sampler::weigh(const Candidate * candidates, std::size_t n, float largest, float temperature) {
    weights_.resize(n);
    for (std::size_t i = 0; i < n; ++i) {
        const double below = static_cast<double>(candidates[i].logit) - static_cast<double>(largest);
        weights_[i] = below / static_cast<double>(temperature);
    }
    exponentials(weights_.data(), n);
    return std::accumulate(weights_.begin(), weights_.end(), 0.0);
}

void Sampler::keep_likely(float largest) {
    const double total = weigh(candidates_.data(), candidates_.size(), largest, 1);
    // All candidates that weigh less than (1 - top_p) * total / n weigh together less than what top_p leaves out, so none of
    // them is needed; half of that leaves room for rounding. Few candidates remain to be ordered.
    const double top_p = static_cast<double>(options_.top_p);
    const double negligible = 0.5 * (1 - top_p) * total / static_cast<double>(candidates_.size());
    const double least = std::max(negligible, static_cast<double>(options_.min_p));
    std::size_t n = 0;
    for (std::size_t i = 0; i < weights_.size(); ++i) {
        candidates_[n] = candidates_[i];
        n += weights_[i] >= least ? 1 : 0;
    }
    candidates_.resize(n);
    if (options_.top_p < 1) {
        const Candidate last = last_of(top_p * total, largest);
        const auto dropped = [&](const Candidate & candidate) { return better(last, candidate); };
        candidates_.erase(std::remove_if(candidates_.begin(), candidates_.end(), dropped), candidates_.end());
    }
}

Sampler::Candidate Sampler::last_of(double enough, float largest) {
    selection_ = candidates_;
    double sum = 0;
    // [0, first) is in order and not enough; [first, end) is found and ordered next, four times as many each time.
    for (std::size_t first = 0; first < selection_.size();) {
        const std::size_t end = std::min(selection_.size(), 4 * first + 64);
        const auto begin = selection_.begin();
        std::nth_element(begin + first, begin + (end - 1), selection_.end(), better);
        std::sort(begin + first, begin + end, better);
        weigh(&selection_[first], end - first, largest, 1);
        for (; first < end; ++first) {
            sum += weights_[first + weights_.size() - end];
            if (sum >= enough) {
                return selection_[first];
            }
        }
    }
    return selection_.back();
}

// Every time the buffer is full, the best k stay and set the bar for what follows: linear for any row.
void Sampler::select_top(const float * row, std::int32_t k, std::vector<Candidate> & best) const {
    const auto keep_best = [&] {
        std::nth_element(best.begin(), best.begin() + (k - 1), best.end(), better);
        best.resize(k);
    };
    best.clear();
    const std::size_t full = 2 * static_cast<std::size_t>(k) + 256;
    float bar = k_banned;  // an equal logit comes later, so it has the higher id and stays out
    for (Token token = 0; token < n_vocab_; ++token) {
        if (row[token] > bar) {
            best.push_back({token, row[token]});
            if (best.size() == full) {
                keep_best();
                bar = best.back().logit;
            }
        }
    }
    if (best.size() > static_cast<std::size_t>(k)) {
        keep_best();
    }
}

void Sampler::add_logprobs(const float * logits, float largest, Sampled & sampled) {
    weights_.resize(n_vocab_);
    for (Token token = 0; token < n_vocab_; ++token) {
        weights_[token] = static_cast<double>(logits[token]) - static_cast<double>(largest);
    }
    exponentials(weights_.data(), weights_.size());
    const double total = std::accumulate(weights_.begin(), weights_.end(), 0.0);
    const double log_total = static_cast<double>(largest) + std::log(total);
    const auto logprob_of = [&](float logit) { return static_cast<float>(static_cast<double>(logit) - log_total); };
    sampled.logprob = logprob_of(logits[sampled.token]);
    if (options_.n_logprobs == 0) {
        return;
    }
    select_top(logits, options_.n_logprobs, selection_);
    std::sort(selection_.begin(), selection_.end(), better);
    sampled.top.reserve(selection_.size());
    for (const Candidate & candidate : selection_) {
        sampled.top.push_back({candidate.token, logprob_of(candidate.logit)});
    }
}

}  // namespace aner

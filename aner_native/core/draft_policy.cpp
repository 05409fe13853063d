#include "draft_policy.hpp"

#include <algorithm>

namespace aner {

namespace {

// Chosen by replaying recorded requests under cost tables from flat to steep (aner.measure.replay): a broad optimum.
constexpr float k_memory = 0.8F;           // weight of older evidence at each new draft
constexpr std::int32_t k_max_pause = 64;   // calls
constexpr std::int32_t k_max_misses = 3;   // drafts in a row that were rejected whole, then it pauses
constexpr std::int32_t k_trial_draft = 1;  // tokens of a draft for evidence: at one in 64 calls it costs about one per cent
// What is believed of a match before any evidence, in observations: longer matches are better ones.
constexpr float k_prior_weight = 5.0F;

float prior_rate(std::size_t match_length) noexcept { return 0.5F + 0.055F * static_cast<float>(match_length); }

}  // namespace

DraftPolicy::DraftPolicy(std::int32_t max_draft, CostTable costs) noexcept : max_draft_(max_draft), costs_(std::move(costs)) {
    for (std::size_t length = 0; length < k_lengths; ++length) {
        rates_[length].fill({k_prior_weight * prior_rate(length), k_prior_weight});
    }
}

float DraftPolicy::time_of(std::int32_t n_rows) const noexcept {
    if (costs_.size() < 2) {
        return 1.0F;
    }
    return costs_[std::min(static_cast<std::size_t>(n_rows), costs_.size() - 1)];
}

bool DraftPolicy::wants_draft() noexcept {
    if (pause_ > 0) {
        --pause_;
        return false;
    }
    return max_draft_ > 0;
}

std::int32_t DraftPolicy::choose(std::int32_t match_length, std::int32_t n_available) noexcept {
    const std::int32_t limit = std::min(max_draft_, n_available);
    const auto & rates = rates_[static_cast<std::size_t>(std::clamp(match_length, 0, limits::max_ngram))];
    float expected = 1.0F;  // tokens emitted by the call
    float product = 1.0F;   // chance that the draft holds so far
    float best = expected / time_of(1);
    std::int32_t chosen = 0;
    for (std::int32_t k = 1; k <= limit; ++k) {
        const Rate & rate = rates[static_cast<std::size_t>(k - 1)];
        product *= rate.accepted / rate.seen;
        expected += product;
        if (const float speed = expected / time_of(k + 1); speed > best) {
            best = speed;
            chosen = k;
        }
    }
    if (chosen == 0 && limit > 0) {
        if (trying_) {
            chosen = std::min(limit, k_trial_draft);
        } else {
            back_off();
        }
    }
    trying_ = trying_ && chosen == 0;
    return chosen;
}

void DraftPolicy::observe(std::int32_t match_length, std::int32_t n_proposed, std::int32_t n_accepted) noexcept {
    auto & rates = rates_[static_cast<std::size_t>(std::clamp(match_length, 0, limits::max_ngram))];
    // Places after the first rejection were not compared: nothing is learnt of them.
    for (std::int32_t place = 0; place < std::min(n_proposed, n_accepted + 1); ++place) {
        Rate & rate = rates[static_cast<std::size_t>(place)];
        rate.accepted = k_memory * rate.accepted + (place < n_accepted ? 1.0F : 0.0F);
        rate.seen = k_memory * rate.seen + 1.0F;
    }
    if (n_accepted > 0) {
        n_misses_ = 0;
        next_pause_ = 1;
    } else if (++n_misses_ >= k_max_misses) {
        back_off();
    }
}

void DraftPolicy::back_off() noexcept {
    pause_ = next_pause_;
    trying_ = true;
    next_pause_ = std::min(2 * next_pause_, k_max_pause);
}

}  // namespace aner

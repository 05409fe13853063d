#include "step_planner.hpp"

#include <algorithm>

namespace aner {

namespace {

constexpr std::int32_t k_piece = 32;  // kernels work in tiles of as many rows

// The most rows within `n` that make whole tiles. The engine computes the first row of a prompt's piece together with the rows of
// the sequences that decode, so beside those a piece has one row more.
std::int32_t whole_pieces(std::int32_t n, bool beside_decoding) noexcept {
    const std::int32_t first = beside_decoding ? 1 : 0;
    const std::int32_t tiles = (n - first) / k_piece * k_piece;
    return tiles > 0 ? first + tiles : 0;
}

}  // namespace

std::vector<Share> plan_step(const std::vector<Waiting> & sequences, const StepBudget & budget) {
    std::vector<Share> shares;
    std::vector<Waiting> prompts;
    for (const Waiting & one : sequences) {
        if (one.n_prompt_left == 0) {
            shares.push_back({one.id, 1});
        } else {
            prompts.push_back(one);
        }
    }
    if (prompts.empty()) {
        return shares;
    }
    const bool beside_decoding = !shares.empty();
    std::int32_t rest = budget.batch_tokens - static_cast<std::int32_t>(shares.size());
    rest = !beside_decoding ? rest : std::min(rest, budget.prefill_limit);

    std::iter_swap(prompts.begin(), std::min_element(prompts.begin(), prompts.end(), [](const Waiting & a, const Waiting & b) {
                       return a.arrival < b.arrival;
                   }));
    const Waiting & oldest = prompts.front();
    std::sort(prompts.begin() + 1, prompts.end(), [](const Waiting & a, const Waiting & b) {
        return a.n_prompt_left != b.n_prompt_left ? a.n_prompt_left < b.n_prompt_left : a.arrival < b.arrival;
    });

    const std::int32_t kept = std::min(oldest.n_prompt_left, std::max(1, rest / 4));
    rest -= kept;
    for (std::size_t i = 1; i < prompts.size() && rest > 0; ++i) {
        const Waiting & one = prompts[i];
        const std::int32_t n = one.n_prompt_left <= rest ? one.n_prompt_left : whole_pieces(rest, beside_decoding);
        if (n > 0) {
            shares.push_back({one.id, n});
            rest -= n;
        }
    }
    const std::int32_t all = kept + rest;
    const std::int32_t tiles = whole_pieces(all, beside_decoding);
    shares.push_back({oldest.id, oldest.n_prompt_left <= all ? oldest.n_prompt_left : tiles >= kept ? tiles : all});
    std::sort(shares.begin(), shares.end(), [](const Share & a, const Share & b) { return a.id < b.id; });
    return shares;
}

}  // namespace aner

// How many tokens to propose, by evidence: the draft that promises most tokens for its time, or none.
//
// For each match length the policy counts how often the token at each place of a draft was accepted. E(k), the tokens that a
// call with k proposals is expected to emit, is one plus the sum of the products of those rates; T(r), the time of a call with r
// rows, comes from a table that is fixed for the lease. The policy takes the k of the greatest E(k) / T(k + 1). If that is k = 0,
// or three drafts in a row were rejected whole, it pauses for 1, 2, 4 .. 64 calls and then tries a short draft for new evidence,
// so that text without overlap is hardly slowed and text that begins to repeat is soon found.
//
// The decision depends on the request's tokens and the table alone, never on the clock (S10).
#pragma once

#include "limits.hpp"
#include "types.hpp"

#include <array>
#include <vector>

namespace aner {

// Relative time of one call by its number of rows: [0] unused, [1] is one row. Empty: rows are free, always draft in full.
using CostTable = std::vector<float>;

class DraftPolicy {
public:
    DraftPolicy(std::int32_t max_draft, CostTable costs) noexcept;

    // The length of the next draft for a suffix of `match_length` tokens, at most `n_available`; 0: do not draft.
    [[nodiscard]] std::int32_t choose(std::int32_t match_length, std::int32_t n_available) noexcept;

    // What became of a draft of `n_proposed` tokens.
    void observe(std::int32_t match_length, std::int32_t n_proposed, std::int32_t n_accepted) noexcept;

    // False while the policy backs off: then not even the search for a match is worth its time. Called once for each call.
    [[nodiscard]] bool wants_draft() noexcept;

private:
    struct Rate {
        float accepted;
        float seen;
    };
    static constexpr std::size_t k_lengths = limits::max_ngram + 1;
    static constexpr std::size_t k_places = limits::max_speculative_tokens;

    [[nodiscard]] float time_of(std::int32_t n_rows) const noexcept;
    void back_off() noexcept;

    const std::int32_t max_draft_;
    const CostTable costs_;
    std::array<std::array<Rate, k_places>, k_lengths> rates_;
    std::int32_t pause_ = 0;       // calls left without a draft
    bool trying_ = false;          // the pause is over: the next draft is for evidence, whatever the rates say
    std::int32_t next_pause_ = 1;  // how long the next pause is
    std::int32_t n_misses_ = 0;    // drafts rejected whole since one was not
};

}  // namespace aner

#include "cost_table.hpp"

#include "kv_trim.hpp"

#include <algorithm>
#include <new>

namespace aner {

namespace {

constexpr std::int32_t k_depth = 64;                    // tokens before the measured rows
constexpr std::int32_t k_every_size_up_to = 9;          // kernels work in steps of a few rows: there every size counts
constexpr std::int32_t k_repeats = 4;                   // the least of them stands: noise only adds
constexpr Nanoseconds k_budget = 1'000'000'000;

Batch rows_at(Position first, std::int32_t n_rows, std::int32_t n_vocab, bool wants_logits) {
    Batch batch;
    for (std::int32_t i = 0; i < n_rows; ++i) {
        const auto token = static_cast<Token>((static_cast<std::int64_t>(first + i) * 7919 + 13) % n_vocab);
        batch.push_back({token, first + i, 0, wants_logits});
    }
    return batch;
}

Error time_call(Decoder & decoder, const Batch & batch, Position depth, Nanoseconds & least) noexcept {
    const Clock::time_point before = Clock::now();
    if (Error error = decoder.decode(batch); error.failed()) {
        return error;
    }
    const Nanoseconds duration = elapsed(before, Clock::now());
    least = least < 0 ? duration : std::min(least, duration);
    return trim_to(decoder, 0, depth);
}

}  // namespace

CostTable cost_table(const std::vector<std::int32_t> & sizes, std::vector<Nanoseconds> least) {
    for (std::size_t i = least.size() - 1; i-- > 0;) {
        least[i] = std::min(least[i], least[i + 1]);
    }
    CostTable table(static_cast<std::size_t>(sizes.back()) + 1, 0.0F);
    const auto one = static_cast<float>(std::max<Nanoseconds>(least.front(), 1));
    table[1] = 1.0F;
    for (std::size_t i = 1; i < sizes.size(); ++i) {
        const auto from = static_cast<std::size_t>(sizes[i - 1]);
        const auto to = static_cast<std::size_t>(sizes[i]);
        const float there = static_cast<float>(std::max<Nanoseconds>(least[i], 1)) / one;
        for (std::size_t n = from + 1; n <= to; ++n) {
            table[n] = table[from] + (there - table[from]) * static_cast<float>(n - from) / static_cast<float>(to - from);
        }
    }
    return table;
}

Result<CostTable> measure_costs(Decoder & decoder, std::int32_t max_rows, std::int32_t n_vocab) noexcept try {
    const std::int32_t depth = std::min({k_depth, decoder.resolved().context - max_rows, decoder.resolved().micro_batch_tokens});
    if (depth < 1) {
        return CostTable{};
    }
    if (Error error = decoder.decode(rows_at(0, depth, n_vocab, false)); error.failed()) {
        return error;
    }
    std::vector<std::int32_t> sizes;
    for (std::int32_t n = 1; n <= max_rows; n += n < k_every_size_up_to ? 1 : 4) {
        sizes.push_back(n);
    }
    if (sizes.back() != max_rows) {
        sizes.push_back(max_rows);
    }
    std::vector<Nanoseconds> least(sizes.size(), k_unmeasured);
    const Clock::time_point start = Clock::now();
    for (std::int32_t round = 0; round < k_repeats && (round == 0 || elapsed(start, Clock::now()) < k_budget); ++round) {
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            // A new size rebuilds the engine's graph. Drafts come between calls of one row, so they pay for that; plain decoding,
            // which repeats one row, does not: of two such calls in a row the second counts, being the shorter.
            for (std::int32_t call = 0; call < (sizes[i] == 1 ? 2 : 1); ++call) {
                if (Error error = time_call(decoder, rows_at(depth, sizes[i], n_vocab, true), depth, least[i]); error.failed()) {
                    return error;
                }
            }
        }
    }
    if (Error error = decoder.clear(); error.failed()) {
        return error;
    }
    return cost_table(sizes, std::move(least));
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

}  // namespace aner

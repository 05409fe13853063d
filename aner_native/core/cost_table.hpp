// The relative time of one engine call by its number of rows, measured once for a lease.
#pragma once

#include "decoder.hpp"
#include "draft_policy.hpp"

namespace aner {

// The table from the shortest of the measured durations for calls of `sizes[i]` rows, sizes rising from 1. Noise only adds, and
// more rows never take less time, so what a longer call took is a bound for the shorter ones; between sizes a straight line.
CostTable cost_table(const std::vector<std::int32_t> & sizes, std::vector<Nanoseconds> least);

// Calls of 1..`max_rows` rows behind a short prompt, on an empty context that is empty again afterwards. Takes about one second
// at most on a fast model, and one call of each measured size on a slow one. Errors: those of decoding and trimming.
Result<CostTable> measure_costs(Decoder & decoder, std::int32_t max_rows, std::int32_t n_vocab) noexcept;

}  // namespace aner

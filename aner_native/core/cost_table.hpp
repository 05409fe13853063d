// The relative time of one engine call by its number of rows, measured once for a lease.
#pragma once

#include "decoder.hpp"
#include "draft_policy.hpp"

namespace aner {

// Calls of 1..`max_rows` rows behind a short prompt, on an empty context that is empty again afterwards. Takes about one second
// at most on a fast model, and one call of each measured size on a slow one. Errors: those of decoding and trimming.
Result<CostTable> measure_costs(Decoder & decoder, std::int32_t max_rows, std::int32_t n_vocab) noexcept;

}  // namespace aner

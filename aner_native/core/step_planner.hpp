// Who gets how many rows of the next engine call. A pure function of counters.
//
//   batch_tokens                the whole call
//   1 each                      every sequence that decodes
//   R                           the rest; while any decodes, at most prefill_limit
//   a quarter of R, then        the oldest prompt, which also takes what is left at the end
//   the rest of R, shortest     the younger prompts, in whole tiles of 32 rows unless it is a prompt's last piece
//
// The oldest prompt's piece is cut to whole tiles too where that leaves it its quarter. So each decoding sequence advances in every step, and the oldest prompt of r tokens is through within
// ceil(r / max(1, floor(R / 4))) steps, R being the least it has been meanwhile.
#pragma once

#include "types.hpp"

#include <limits>
#include <vector>

namespace aner {

struct Waiting {
    SequenceId id = 0;
    std::int32_t n_prompt_left = 0;  // 0: it decodes
    std::uint64_t arrival = 0;       // its place in the order of admission
};

struct StepBudget {
    std::int32_t batch_tokens = 0;  // at least the number of sequences
    std::int32_t prefill_limit = std::numeric_limits<std::int32_t>::max();  // at least 1; counts while a sequence decodes
};

struct Share {
    SequenceId id = 0;
    std::int32_t n_rows = 0;  // 1 or more

    bool operator==(const Share & other) const noexcept { return id == other.id && n_rows == other.n_rows; }
};

// `sequences` in ascending order of ids, and so are the shares. A prompt that gets nothing has none. Passes std::bad_alloc on.
std::vector<Share> plan_step(const std::vector<Waiting> & sequences, const StepBudget & budget);

}  // namespace aner

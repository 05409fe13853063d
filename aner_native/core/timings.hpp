// What one request measured. Durations in nanoseconds, counts as integers, -1 for what was not measured (T1, T2).
#pragma once

#include "types.hpp"

namespace aner {

struct Timings {
    Nanoseconds queue_duration = k_unmeasured;
    Nanoseconds template_duration = k_unmeasured;
    Nanoseconds tokenize_duration = k_unmeasured;
    Nanoseconds context_acquire_duration = k_unmeasured;
    Nanoseconds prefill_duration = k_unmeasured;      // decode calls that evaluate the prompt, and the first token's sampling
    Nanoseconds first_token_duration = k_unmeasured;  // from the request's start
    Nanoseconds generation_duration = k_unmeasured;   // decode calls after the first token, and their sampling
    Nanoseconds context_clear_duration = k_unmeasured;
    Nanoseconds total_duration = k_unmeasured;        // from the request's start

    std::int64_t input_tokens = k_unmeasured;
    std::int64_t cached_input_tokens = k_unmeasured;
    std::int64_t evaluated_input_tokens = k_unmeasured;
    std::int64_t output_tokens = k_unmeasured;

    std::int64_t context_pool_reused = k_unmeasured;
    std::int64_t prefix_cache_hit = k_unmeasured;
    std::int64_t prefix_cache_entries = k_unmeasured;
    std::int64_t prefix_cache_retained_entries = k_unmeasured;
    std::int64_t prefix_cache_retained_tokens = k_unmeasured;

    std::int64_t threads = k_unmeasured;
    std::int64_t prefill_threads = k_unmeasured;
    std::int64_t batch_tokens = k_unmeasured;
    std::int64_t micro_batch_tokens = k_unmeasured;

    std::int64_t speculative_proposed_tokens = k_unmeasured;
    std::int64_t speculative_accepted_tokens = k_unmeasured;
    std::int64_t speculative_verification_steps = k_unmeasured;

    std::int64_t batch_max_sequences = k_unmeasured;
    std::int64_t batch_peak_sequences = k_unmeasured;
    std::int64_t scheduler_steps = k_unmeasured;
    std::int64_t batch_decoded_tokens = k_unmeasured;
};

}  // namespace aner

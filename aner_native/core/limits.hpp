// Every fixed number of the contract, once.
#pragma once

#include <cstddef>
#include <cstdint>

namespace aner::limits {

// Loading (L15) and the engine's own bounds.
constexpr std::int32_t min_context = 16;
constexpr std::int32_t max_context = 1 << 24;      // positions; far above any trained context, far below overflow
constexpr std::int32_t max_threads = 512;          // GGML_MAX_N_THREADS
constexpr std::int32_t max_layers = 512;           // LLAMA_MAX_LAYERS
constexpr std::int32_t max_experts = 1024;         // LLAMA_MAX_EXPERTS
constexpr std::int32_t max_sequences = 256;        // LLAMA_MAX_SEQ

// Profiles (O4).
constexpr std::int32_t max_batch_tokens = 65536;
constexpr std::int32_t max_prefix_cache_entries = 4;
constexpr std::int32_t max_speculative_tokens = 32;
constexpr std::int32_t max_idle_contexts = 4;      // P11
constexpr std::int32_t default_idle_contexts = 1;
constexpr std::size_t max_adapters = 4;            // C4

// Prompt lookup (S1).
constexpr std::int32_t min_ngram = 2;
constexpr std::int32_t max_ngram = 8;
constexpr std::int32_t lookup_window = 4096;       // tokens of recent history

// Scheduling (B5).
constexpr std::int32_t max_waiting = 8;
constexpr std::int32_t max_unread_tokens = 64;     // of a stream whose reader does not keep up (B7)
constexpr std::int64_t default_step_target_ms = 250;
constexpr std::int64_t max_step_target_ms = 60'000;

// Requests.
constexpr std::int32_t max_stop_strings = 16;
constexpr std::int32_t max_stop_bytes = 1024;      // each
constexpr std::int32_t max_logprobs = 20;          // alternatives per token
constexpr std::int64_t max_prompt_bytes = 64LL << 20;

}  // namespace aner::limits

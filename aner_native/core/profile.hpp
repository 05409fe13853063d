// What a lease is configured with. Values, never changed after they are made.
#pragma once

#include "adapter.hpp"
#include "errors.hpp"
#include "limits.hpp"
#include "types.hpp"

#include <cstdint>
#include <string>

namespace aner {

enum class KvType : std::int32_t { f16, f32, bf16, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl };
enum class FlashAttention : std::int32_t { automatic, on, off };

// What load() fixes for every lease of the resident model.
struct LoadSettings {
    std::int32_t context = 4096;  // positions of one sequence
    std::string device = "auto";
    KvType kv_type = KvType::f16;
    FlashAttention flash_attention = FlashAttention::automatic;
    bool reproducible = false;  // L12
    bool mapped = true;         // L14
    std::string expected_sha256;
};

// The seven settings of with_optimizer, in its order. 0 threads: chosen from the CPUs that this process may use.
struct OptimizerSettings {
    std::int32_t threads = 0;
    std::int32_t prefill_threads = 0;
    std::int32_t batch_tokens = 512;
    std::int32_t micro_batch_tokens = 512;
    std::int32_t prefix_cache_entries = 0;
    std::int32_t prefix_cache_tokens = 2048;
    std::int32_t speculative_tokens = 0;
};

struct Profile {
    OptimizerSettings optimizer;
    std::int32_t max_idle_contexts = limits::default_idle_contexts;
    std::int32_t max_sequences = 0;             // 0: it does not batch
    std::int64_t step_target = k_unmeasured;    // nanoseconds
};

// What one context of the engine is made from. All numbers are in effect: nothing is left to choose.
struct ContextSettings {
    std::int32_t context = 0;
    std::int32_t batch_tokens = 0;
    std::int32_t micro_batch_tokens = 0;
    std::int32_t threads = 0;
    std::int32_t prefill_threads = 0;
    std::int32_t n_sequences = 1;
    std::int32_t n_outputs = 1;           // logits rows of one decode call: one, and one for each drafted token
    std::int32_t speculative_tokens = 0;  // as asked for; a small batch leaves room for fewer
    KvType kv_type = KvType::f16;
    FlashAttention flash_attention = FlashAttention::automatic;
    bool reproducible = false;
    EffectiveAdapters adapters;
    bool full_window = false;  // sliding-window layers keep every position, so that any cut can be trimmed to
};

[[nodiscard]] const char * name_of(KvType type) noexcept;
[[nodiscard]] const char * name_of(FlashAttention policy) noexcept;
Result<KvType> kv_type_named(const std::string & name) noexcept;
Result<FlashAttention> flash_attention_named(const std::string & name) noexcept;

// Ranges of L15 and O4; code configuration, with the limit and the value.
Error validate(const LoadSettings & settings) noexcept;
Error validate(const OptimizerSettings & settings, std::int32_t context) noexcept;

// The numbers in effect: threads chosen, batches cut to the context.
[[nodiscard]] ContextSettings resolve(const LoadSettings & load, const OptimizerSettings & optimizer) noexcept;

// CPUs that this process may really use: affinity, then the control group's quota; at least 1.
[[nodiscard]] std::int32_t usable_cpus() noexcept;

}  // namespace aner

// What aner needs of the engine's private headers, which change with every pin. Included nowhere else.
#pragma once

#include "llama.h"

#include <cstdint>

namespace aner::engine_private {

[[nodiscard]] bool flash_attention_in_effect(const llama_context & context);

// On a CPU without flash attention: micro-batches of so many rows use its tiled kernel all the same (patch 0005). Returns the
// rows, or 0 for a model or KV type that it is not for.
std::int32_t use_flash_attention_in_prefill(llama_context & context, ggml_type kv_type);

struct Breakdown {
    std::int64_t weights = 0;
    std::int64_t context = 0;
    std::int64_t compute = 0;
    bool on_accelerator = false;  // some weights or context memory lies on a device that is not the CPU
};
[[nodiscard]] Breakdown memory_breakdown(const llama_context & context);

// Bytes of keys and values of one sequence of n_positions, layer by layer; a windowed layer keeps its window and a micro-batch.
[[nodiscard]] std::int64_t kv_payload(const llama_context & context, std::int64_t n_positions, ggml_type type, bool full_window);

// Makes the context's CPU backend use the reference kernels: results do not depend on the shape of a batch.
void use_reference_kernels(const llama_context & context);

}  // namespace aner::engine_private

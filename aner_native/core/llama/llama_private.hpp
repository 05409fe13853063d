// What aner needs of the engine's private headers, which change with every pin. Included nowhere else.
#pragma once

#include "../gguf_header.hpp"

#include "llama.h"

#include <cstdint>
#include <vector>

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

// Bytes of weights that a load would take of a model that was opened without allocation. `splits`: its files' headers.
// Mapped weights that are computed as they lie in the file take what is mapped of each file, from the first to the last.
[[nodiscard]] std::int64_t planned_weights(const llama_model & model, bool mapped, const std::vector<GgufHeader> & splits);

// Bytes that one sequence takes, by kind of layer.
struct KvBytes {
    std::int64_t attention = 0;
    std::int64_t windowed = 0;
    std::int64_t recurrent = 0;
    [[nodiscard]] std::int64_t sum() const noexcept { return attention + windowed + recurrent; }
};

// `n_positions`: kept by a layer that attends to everything; `n_windowed`: by one with a sliding window.
[[nodiscard]] KvBytes kv_bytes(const llama_model & model, ggml_type type, std::int64_t n_positions, std::int64_t n_windowed);

// Makes the context's CPU backend use the reference kernels: results do not depend on the shape of a batch.
void use_reference_kernels(const llama_context & context);

}  // namespace aner::engine_private

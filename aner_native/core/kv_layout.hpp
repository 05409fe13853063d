// How one position of a model's keys and values is stored, by KV type.
#pragma once

#include "errors.hpp"
#include "model_admission.hpp"
#include "model_facts.hpp"
#include "profile.hpp"

namespace aner {

constexpr std::int64_t k_kv_cell_bytes = 52;  // host memory of one KV cell beside its keys and values

struct KvBlock {
    std::int32_t elements;
    std::int32_t bytes;
};

[[nodiscard]] KvBlock block_of(KvType type) noexcept;

// Bytes of keys and values of one position over all layers that attend: layers x KV heads x (key head + value head bytes).
[[nodiscard]] std::int64_t kv_bytes_per_position(const ModelFacts & facts, KvType type) noexcept;

// Whether the model can hold its KV in this type under this policy (L7). Errors: configuration.
Error validate_kv_type(const ModelFacts & facts, KvType type, FlashAttention policy) noexcept;

}  // namespace aner

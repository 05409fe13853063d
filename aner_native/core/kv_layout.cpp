#include "kv_layout.hpp"

#include <new>
#include <utility>

namespace aner {

KvBlock block_of(KvType type) noexcept {
    switch (type) {
        case KvType::f16:
        case KvType::bf16: return {1, 2};
        case KvType::f32: return {1, 4};
        case KvType::q8_0: return {32, 34};
        case KvType::q5_1: return {32, 24};
        case KvType::q5_0: return {32, 22};
        case KvType::q4_1: return {32, 20};
        case KvType::q4_0:
        case KvType::iq4_nl: return {32, 18};
    }
    return {1, 2};
}

std::int64_t kv_bytes_per_position(const ModelFacts & facts, KvType type) noexcept {
    const KvBlock block = block_of(type);
    const std::int64_t elements = static_cast<std::int64_t>(facts.head_dim_k) + facts.head_dim_v;
    std::int64_t heads = 0;
    for (const std::int32_t n : facts.n_head_kv) {
        heads += n;
    }
    return heads * elements / block.elements * block.bytes;
}

Error validate_kv_type(const ModelFacts & facts, KvType type, FlashAttention policy) noexcept try {
    const KvBlock block = block_of(type);
    if (block.elements == 1) {
        return {};
    }
    for (const auto & [name, size] : {std::pair{"key", facts.head_dim_k}, std::pair{"value", facts.head_dim_v}}) {
        if (size % block.elements != 0) {
            return Error{ErrorCode::configuration, std::string("kv_cache_type '") + name_of(type) + "' stores blocks of " +
                                                       std::to_string(block.elements) + " elements, and this model's " + name +
                                                       " heads have " + std::to_string(size) +
                                                       ": use f16, bf16 or f32"};
        }
    }
    if (policy == FlashAttention::off) {
        return Error{ErrorCode::configuration, std::string("kv_cache_type '") + name_of(type) +
                                                   "' needs flash attention, which was set to 'off': use 'auto' or 'on', or an "
                                                   "unquantized type"};
    }
    return {};
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

}  // namespace aner

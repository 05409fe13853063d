#include "check.hpp"
#include "kv_layout.hpp"

#include <string>

using namespace aner;
using namespace aner::testing;

namespace {

// From the formats' definitions: elements of a block, and its bits of scales and of quants.
struct Format {
    KvType type;
    std::int32_t elements;
    std::int32_t scale_bits;
    std::int32_t bits_per_element;
};

constexpr Format k_formats[] = {
    {KvType::f16, 1, 0, 16},      {KvType::f32, 1, 0, 32},      {KvType::bf16, 1, 0, 16},
    {KvType::q8_0, 32, 16, 8},    {KvType::q5_1, 32, 32, 5},    {KvType::q5_0, 32, 16, 5},
    {KvType::q4_1, 32, 32, 4},    {KvType::q4_0, 32, 16, 4},    {KvType::iq4_nl, 32, 16, 4},
};

ModelFacts facts_of(std::vector<std::int32_t> n_head_kv, std::int32_t head_dim_k, std::int32_t head_dim_v) {
    ModelFacts facts;
    facts.n_layer = static_cast<std::int32_t>(n_head_kv.size());
    facts.n_head_kv = std::move(n_head_kv);
    facts.head_dim_k = head_dim_k;
    facts.head_dim_v = head_dim_v;
    return facts;
}

}  // namespace

ANER_CASE("M1", a_row_takes_the_blocks_of_its_format) {
    for (const Format & format : k_formats) {
        CHECK_EQUAL(block_of(format.type).elements, format.elements);
        CHECK_EQUAL(block_of(format.type).bytes * 8, format.scale_bits + format.elements * format.bits_per_element);
    }
    CHECK_EQUAL(block_of(KvType::q8_0).bytes, 34);  // as the contract has it
}

ANER_CASE("M1", kv_bytes_are_layers_by_kv_heads_by_key_and_value_head_bytes) {
    CHECK_EQUAL(kv_bytes_per_position(facts_of(std::vector<std::int32_t>(30, 3), 64, 64), KvType::f16), 30 * 3 * (128 + 128));
    CHECK_EQUAL(kv_bytes_per_position(facts_of(std::vector<std::int32_t>(30, 3), 64, 64), KvType::q8_0), 30 * 3 * (68 + 68));
    CHECK_EQUAL(kv_bytes_per_position(facts_of({2, 2}, 64, 32), KvType::q4_0), 2 * 2 * (36 + 18));
    CHECK_EQUAL(kv_bytes_per_position(facts_of({0, 4, 0, 4}, 128, 128), KvType::f32), 8 * (512 + 512));  // a hybrid
    CHECK_EQUAL(kv_bytes_per_position(facts_of({0, 0}, 64, 64), KvType::f16), 0);                        // a recurrent one
    const std::int64_t largest = kv_bytes_per_position(facts_of(std::vector<std::int32_t>(512, 1 << 14), 1 << 14, 1 << 14), KvType::f32);
    CHECK_EQUAL(largest, std::int64_t{512} << (14 + 15 + 2));
}

ANER_CASE("L7", a_type_whose_block_does_not_divide_a_head_is_a_configuration_error) {
    for (const Format & format : k_formats) {
        for (const std::int32_t size : {32, 48, 64, 80, 100, 128}) {
            for (const bool of_keys : {true, false}) {
                const ModelFacts facts = facts_of({2}, of_keys ? size : 64, of_keys ? 64 : size);
                const Error error = validate_kv_type(facts, format.type, FlashAttention::automatic);
                if (size % format.elements == 0) {
                    CHECK_EQUAL(error.message(), "");
                    continue;
                }
                CHECK(error.code() == ErrorCode::configuration);
                CHECK(error.message().find(name_of(format.type)) != std::string::npos);
                CHECK(error.message().find(of_keys ? "key heads have " : "value heads have ") != std::string::npos);
                CHECK(error.message().find(std::to_string(size)) != std::string::npos);
            }
        }
    }
}

ANER_CASE("L7", a_quantized_cache_without_flash_attention_is_a_configuration_error) {
    const ModelFacts facts = facts_of({2}, 64, 64);
    for (const Format & format : k_formats) {
        CHECK(!validate_kv_type(facts, format.type, FlashAttention::automatic).failed());
        CHECK(!validate_kv_type(facts, format.type, FlashAttention::on).failed());
        const Error off = validate_kv_type(facts, format.type, FlashAttention::off);
        CHECK(off.code() == (format.elements > 1 ? ErrorCode::configuration : ErrorCode::ok));
    }
}

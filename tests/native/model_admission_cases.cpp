#include "check.hpp"
#include "folder.hpp"
#include "gguf_bytes.hpp"
#include "gguf_splits.hpp"
#include "model_admission.hpp"

#include <limits>

using namespace aner;
using aner::testing::Folder;
using aner::testing::GgufBytes;
using aner::testing::raw;
using aner::testing::sized;
using aner::testing::tiny_llama;

namespace {

std::vector<GgufHeader> headers_of(const GgufBytes & gguf) {
    const Folder folder;
    Result<std::vector<GgufHeader>> headers = read_model_headers(folder.write("model.gguf", gguf.bytes()));
    CHECK_EQUAL(headers.error().message(), "");
    return headers.take();
}

void check_admitted(const GgufBytes & gguf) {
    CHECK_EQUAL(admit_model(headers_of(gguf)).message(), "");
}

// The message must name the key, and say what was found or what is allowed.
void check_refused(const GgufBytes & gguf, std::string_view key, std::string_view part) {
    const Error error = admit_model(headers_of(gguf));
    CHECK(error.code() == ErrorCode::model_load);
    const bool told = error.message().find(key) != std::string::npos && error.message().find(part) != std::string::npos;
    CHECK_EQUAL(told ? "" : error.message(), "");
}

GgufBytes with_number(const char * suffix, std::uint32_t value) {
    return tiny_llama().number(std::string("llama.") + suffix, value);
}

GgufBytes with_real(const char * suffix, float value) {
    return tiny_llama().real(std::string("llama.") + suffix, value);
}

std::vector<std::string> tokens(std::vector<std::string> texts) {
    for (std::string & text : texts) {
        text = sized(text);
    }
    return texts;
}

}  // namespace

ANER_CASE("L9 L10", a_sound_model_is_admitted_and_its_facts_are_read) {
    const std::vector<GgufHeader> headers = headers_of(tiny_llama().text("tokenizer.chat_template", "{{ messages }}"));
    CHECK_EQUAL(admit_model(headers).message(), "");
    CHECK(is_covered_model(headers));
    const ModelFacts facts = facts_of(headers).take();
    CHECK_EQUAL(facts.architecture, "llama");
    CHECK_EQUAL(facts.name, "tiny");
    CHECK_EQUAL(facts.chat_template, "{{ messages }}");
    CHECK(facts.n_layer == 1 && facts.n_embd == 8 && facts.n_vocab == 12 && facts.context_train == 64);
    CHECK(facts.n_head == std::vector<std::int32_t>{2} && facts.n_head_kv == std::vector<std::int32_t>{1});
    CHECK(facts.head_dim_k == 4 && facts.head_dim_v == 4 && facts.sliding_window == 0);
    CHECK(!facts.is_recurrent && !facts.is_hybrid);
    CHECK_EQUAL(facts.tensor_types.at("f32").n_tensors, 11);
    CHECK_EQUAL(facts.n_parameters, 96 + 8 + 8 + 64 + 32 + 32 + 64 + 8 + 3 * 128);
    CHECK_EQUAL(facts.tensor_bytes, 4U * 696U);
}

ANER_CASE("L9", a_count_outside_its_range_or_of_another_type_is_refused_with_its_key) {
    check_refused(with_number("block_count", 0), "llama.block_count = 0", "1..512");
    check_refused(with_number("block_count", 513), "llama.block_count = 513", "1..512");
    check_refused(tiny_llama().unset("llama.block_count"), "llama.block_count is missing", "1..512");
    check_refused(tiny_llama().text("llama.block_count", "1"), "llama.block_count = '1' (str)", "u32");
    check_refused(tiny_llama().set("llama.block_count", GgufBytes::u64, raw<std::uint64_t>(1)), "= 1 (u64)", "u32");
    check_refused(with_number("context_length", 0), "llama.context_length = 0", "1..2147483647");
    check_refused(with_number("embedding_length", 0), "llama.embedding_length = 0", "1..");
    check_refused(with_number("nextn_predict_layers", 1), "llama.nextn_predict_layers = 1", "below block_count, 1");
    check_refused(with_number("attention.key_length", 0x40000010), "attention.key_length = 1073741840", "1..16384");
    check_refused(with_number("attention.sliding_window", UINT32_MAX), "sliding_window = 4294967295", "0..8388608");
    check_refused(with_number("pooling_type", 9), "llama.pooling_type = 9", "0..4");
}

ANER_CASE("L9", a_real_that_is_no_number_or_out_of_range_is_refused_with_its_key) {
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    constexpr float infinity = std::numeric_limits<float>::infinity();
    for (const float value : {0.0F, -1e-5F, nan, infinity}) {
        check_refused(with_real("attention.layer_norm_rms_epsilon", value), "layer_norm_rms_epsilon", "above 0");
        check_refused(with_real("rope.freq_base", value), "llama.rope.freq_base", "above 0");
    }
    for (const float value : {-1.0F, nan, infinity}) {
        check_refused(with_real("rope.scaling.factor", value), "llama.rope.scaling.factor", "of at least 0");
    }
    check_refused(with_number("rope.freq_base", 10000), "rope.freq_base = 10000 (u32)", "f32");
    check_admitted(with_real("rope.freq_base", 5e5F));
    check_admitted(with_real("rope.scaling.factor", 0));
}

ANER_CASE("L9", rope_scaling_is_one_of_four) {
    for (const char * name : {"none", "linear", "yarn", "longrope"}) {
        check_admitted(tiny_llama().text("llama.rope.scaling.type", name));
    }
    check_refused(tiny_llama().text("llama.rope.scaling.type", "ntk"), "llama.rope.scaling.type = 'ntk'", "longrope");
    check_refused(with_number("rope.scaling.type", 1), "llama.rope.scaling.type = 1 (u32)", "(str)");
}

ANER_CASE("L9", experts_must_add_up) {
    const auto experts = [](std::uint32_t n, std::uint32_t n_used, std::uint32_t n_groups, std::uint32_t n_used_groups) {
        return with_number("expert_count", n).number("llama.expert_used_count", n_used)
            .number("llama.expert_group_count", n_groups).number("llama.expert_group_used_count", n_used_groups);
    };
    check_admitted(experts(0, 0, 0, 0));
    check_admitted(experts(8, 2, 0, 0));
    check_admitted(experts(8, 8, 4, 2));
    check_refused(experts(8, 0, 0, 0), "llama.expert_count = 8", "at least one");
    check_refused(experts(8, 9, 0, 0), "expert_used_count 9", "at most all");
    check_refused(experts(8, 2, 8, 1), "expert_group_count 8", "fewer than experts");
    check_refused(experts(8, 2, 3, 1), "expert_group_count 3", "divide them");
    check_refused(experts(8, 2, 4, 0), "expert_group_used_count 0", "some but not all");
    check_refused(experts(8, 2, 4, 4), "expert_group_used_count 4", "some but not all");
    check_refused(experts(0, 1, 0, 0), "expert_used_count 1", "without experts");
    check_refused(experts(1025, 1, 0, 0), "llama.expert_count = 1025", "0..1024");
    CHECK(!is_covered_model(headers_of(experts(8, 2, 0, 0))));  // admitted, and tried in a child process first
}

ANER_CASE("L9", heads_must_fit_the_graph_of_the_architecture) {
    check_refused(with_number("attention.head_count", 0), "llama.attention.head_count = 0", "at least 1");
    check_refused(with_number("attention.head_count_kv", 0), "llama.attention.head_count_kv = 0", "at least 1");
    check_refused(with_number("attention.head_count_kv", 4), "2 heads (attention.head_count)", "4 KV heads");
    check_refused(with_number("attention.head_count", 3).number("llama.attention.head_count_kv", 2), "3 heads", "2 KV heads");
    check_refused(with_number("attention.value_length", 2), "2 value elements (attention.value_length)", "of one size");
    check_refused(with_number("rope.dimension_count", 3), "llama.rope.dimension_count = 3", "even");
    check_refused(with_number("rope.dimension_count", 6), "llama.rope.dimension_count = 6", "the head size, 4");
    check_refused(with_number("rope.dimension_count", 0), "0 of them rotated (rope.dimension_count)", "at least 2");
    check_refused(with_number("rope.dimension_count", 2), "2 of them rotated", "whole head");
    check_refused(with_number("attention.key_length_swa", 8), "key_length", "_swa");
    const char * heads = "llama.attention.head_count";
    check_refused(tiny_llama().array(heads, GgufBytes::u32, {raw(2U), raw(2U)}), "array of 2 u32", "1 layers");
    check_refused(tiny_llama().array(heads, GgufBytes::i32, {raw(-2)}), heads, "0..16384");
    check_admitted(tiny_llama().array(heads, GgufBytes::i32, {raw(2)}));
    check_refused(with_number("embedding_length", 16), "token_embd.weight' is 8 x 12", "16 x 12");
}

ANER_CASE("L9", a_tensor_type_without_a_kernel_is_refused) {
    check_refused(tiny_llama().tensor("blk.0.attn_q.bias", {8}, 1, 16), "blk.0.attn_q.bias", "f16: it must be f32");
    check_refused(tiny_llama().tensor("rope_freqs.weight", {2}, 1, 4), "rope_freqs.weight", "f16: it must be f32");
    check_refused(tiny_llama().tensor("blk.0.attn_q.scale", {1, 1}, 1, 2), "blk.0.attn_q.scale", "f16: it must be f32");
    check_refused(tiny_llama().tensor("blk.0.attn_q.scale", {1}, 26, 4), "blk.0.attn_q.scale", "i32");
    check_refused(tiny_llama().tensor("x.weight", {256, 1}, 15, 292), "x.weight", "q8_k");
    check_refused(tiny_llama().number("general.alignment", 16), "general.alignment = 16", "at least 32");
}

ANER_CASE("L9", the_vocabulary_must_be_whole) {
    const std::string t = "tokenizer.ggml.";
    const auto listed = [&](const std::vector<std::string> & texts) {
        return tiny_llama().array(t + "tokens", GgufBytes::str, tokens(texts));
    };
    check_refused(tiny_llama().unset(t + "tokens"), "tokenizer.ggml.tokens is missing", "array of str");
    check_refused(listed({}), "tokenizer.ggml.tokens", "not empty");
    check_refused(listed({"a", "b", "a"}), "tokenizer.ggml.tokens", "'a' twice");
    check_refused(listed({"a", std::string("b\0c", 3), std::string("b\0d", 3)}), "tokenizer.ggml.tokens", "'b' twice");
    check_refused(listed({"a", "", "[EMPTY_1]"}), "tokenizer.ggml.tokens", "twice");
    check_refused(listed({"a", std::string(5000, 'b')}), "token 1", "5000 bytes");
    check_refused(listed({"a", "b"}), "tokenizer.ggml.scores is an array of 12 f32", "2 tokens");
    check_refused(with_number("vocab_size", 13), "llama.vocab_size = 13", "the number of tokens, 12");
    check_refused(tiny_llama().number(t + "bos_token_id", 12), "bos_token_id = 12", "below the number of tokens, 12");
    check_refused(tiny_llama().text(t + "eos_token_id", "2"), "eos_token_id = '2' (str)", "u32");
    check_refused(tiny_llama().number(t + "add_bos_token", 1), "add_bos_token = 1 (u32)", "bool");
    check_refused(tiny_llama().text(t + "model", "gpt2"), "merges is missing", "array of str");
    check_refused(tiny_llama().text(t + "model", "magic"), "'magic'", "not a tokenizer");
    const std::vector<std::string> bytes = {"ab", "b", "\\n\\n", "\\n", "\\x41", "A\\t", "1", "2", "3", "4", "5", "6"};
    check_refused(listed(bytes).text(t + "model", "rwkv"), "no token for the byte 97", "alone");
}

ANER_CASE("L9", a_token_that_is_added_to_each_prompt_must_exist) {
    const std::string t = "tokenizer.ggml.";
    const auto one_token = [&] {
        GgufBytes gguf = tiny_llama().array(t + "tokens", GgufBytes::str, tokens({"a"}));
        return gguf.unset(t + "scores").unset(t + "token_type").unset(t + "bos_token_id").unset(t + "eos_token_id");
    };
    check_refused(one_token(), "tokenizer.ggml.bos_token_id is missing", "added to each prompt");
    const std::string on = raw<std::uint8_t>(1);
    const std::string off = raw<std::uint8_t>(0);
    GgufBytes ends = one_token().set(t + "add_bos_token", GgufBytes::boolean, off);
    ends.set(t + "add_eos_token", GgufBytes::boolean, on);
    check_refused(ends, "tokenizer.ggml.eos_token_id is missing", "added to each prompt");
}

ANER_CASE("L10", a_model_that_cannot_generate_is_refused_with_the_reason) {
    const std::pair<const char *, const char *> architectures[] = {
        {"bert", "encoder"}, {"gemma-embedding", "embeds"}, {"t5", "encoder-decoder"},   {"llada", "diffusion"},
        {"eagle3", "draft"}, {"clip", "vision projector"},  {"wavtokenizer-dec", "sound"},
    };
    for (const auto & [name, reason] : architectures) {
        check_refused(tiny_llama().text("general.architecture", name), name, reason);
    }
    check_refused(tiny_llama().text("tokenizer.ggml.model", "none"), "'none'", "no vocabulary");
    check_refused(tiny_llama().text("general.type", "adapter"), "general.type = 'adapter'", "'model'");
    check_refused(tiny_llama().text("general.type", "mmproj"), "general.type = 'mmproj'", "'model'");
    GgufBytes looks_ahead = tiny_llama().set("llama.attention.causal", GgufBytes::boolean, raw<std::uint8_t>(0));
    check_refused(looks_ahead, "attention.causal = false", "looks ahead");
    check_refused(tiny_llama().unset("general.architecture"), "general.architecture is missing", "architecture");
}

ANER_CASE("L9", what_no_test_of_ours_runs_is_admitted_but_not_covered) {
    CHECK(!is_covered_model(headers_of(tiny_llama().text("general.architecture", "starcoder"))));
    CHECK(!is_covered_model(headers_of(tiny_llama().text("tokenizer.ggml.model", "plamo2"))));
    CHECK(!is_covered_model(headers_of(tiny_llama().tensor("blk.0.x.weight", {64, 1}, 40, 36))));
}

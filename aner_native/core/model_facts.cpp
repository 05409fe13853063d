#include "model_facts.hpp"

#include "limits.hpp"

#include <algorithm>
#include <new>

namespace aner {

namespace {

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) noexcept {
    return std::find(names.begin(), names.end(), name) != names.end();
}

// As the engine sorts them. The layers of a hybrid differ in kind; falcon-h1 has both kinds in each.
bool is_recurrent_architecture(std::string_view name) noexcept {
    return is_one_of(name, {"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"});
}

bool is_hybrid_architecture(std::string_view name) noexcept {
    return is_one_of(name, {"jamba",      "falcon-h1", "plamo2",    "granitehybrid", "lfm2",        "lfm2moe",
                            "nemotron_h", "qwen3next", "kimi-k3",   "nemotron_h_moe", "kimi-linear", "bailingmoe3",
                            "glm5-next",  "qwen35",    "qwen35moe", "qwen4exp",       "deepseek4",   "minimax-01"});
}

std::int32_t small(std::optional<std::uint32_t> value) noexcept {
    return static_cast<std::int32_t>(std::min<std::uint32_t>(value.value_or(0), INT32_MAX));
}

std::vector<std::int32_t> per_layer(const GgufHeader & header, const char * suffix, std::size_t n_layer) {
    const GgufValue * value = header.find(header.key(suffix));
    std::vector<std::int32_t> all(n_layer, 0);
    for (std::size_t i = 0; value != nullptr && i < n_layer; ++i) {
        const std::int64_t n = value->integer(value->is_array ? i : 0).value_or(0);
        all[i] = static_cast<std::int32_t>(std::clamp<std::int64_t>(n, 0, INT32_MAX));
    }
    return all;
}

// phi3 models carry a window that the engine leaves out; gemma2 has one even when its file does not say so.
std::int32_t sliding_window_of(const GgufHeader & header) {
    const std::optional<std::uint32_t> window = header.u32(header.key("attention.sliding_window"));
    if (header.architecture() == "phi3") {
        return 0;
    }
    return small(!window && header.architecture() == "gemma2" ? 4096 : window);
}

void set_attention(ModelFacts & facts, const GgufHeader & header) {
    const auto n_layer = static_cast<std::size_t>(facts.n_layer);
    facts.n_head = per_layer(header, "attention.head_count", n_layer);
    facts.n_head_kv = header.find(header.key("attention.head_count_kv")) != nullptr
                          ? per_layer(header, "attention.head_count_kv", n_layer)
                          : facts.n_head;
    const std::int32_t most = facts.n_head.empty() ? 0 : *std::max_element(facts.n_head.begin(), facts.n_head.end());
    const std::int32_t even_share = most > 0 ? facts.n_embd / most : 0;
    const auto head_dim = [&](const char * suffix) {
        const std::optional<std::uint32_t> said = header.u32(header.key(suffix));
        return said && most > 0 ? small(said) : even_share;
    };
    facts.head_dim_k = head_dim("attention.key_length");
    facts.head_dim_v = head_dim("attention.value_length");
    facts.sliding_window = sliding_window_of(header);
    facts.is_recurrent = is_recurrent_architecture(facts.architecture);
    facts.is_hybrid = is_hybrid_architecture(facts.architecture);
    if (facts.is_recurrent) {
        std::fill(facts.n_head_kv.begin(), facts.n_head_kv.end(), 0);
    }
}

void add_tensors(ModelFacts & facts, const GgufHeader & header) {
    for (const GgufTensor & tensor : header.tensors) {
        ModelFacts::TypeUse & use = facts.tensor_types[std::string(tensor.type->name)];
        use.n_tensors += 1;
        use.bytes += tensor.bytes;
        facts.tensor_bytes += tensor.bytes;
        facts.n_parameters += tensor.n_elements();
    }
}

}  // namespace

Result<ModelFacts> facts_of(const std::vector<GgufHeader> & splits) noexcept try {
    const GgufHeader & header = splits.front();
    ModelFacts facts;
    facts.architecture = header.architecture();
    facts.name = header.text("general.name").value_or("");
    const std::int32_t n_blocks = std::min(small(header.u32(header.key("block_count"))), limits::max_layers);
    facts.n_layer = n_blocks - std::min(n_blocks, small(header.u32(header.key("nextn_predict_layers"))));
    facts.n_embd = small(header.u32(header.key("embedding_length")));
    facts.context_train = small(header.u32(header.key("context_length")));
    facts.chat_template = header.text("tokenizer.chat_template").value_or("");
    facts.vocabulary = header.text("tokenizer.ggml.model").value_or("");
    if (const GgufValue * tokens = header.find("tokenizer.ggml.tokens"); tokens != nullptr && tokens->is_array) {
        facts.n_vocab = static_cast<std::int32_t>(tokens->count);
    }
    set_attention(facts, header);
    for (const GgufHeader & split : splits) {
        add_tensors(facts, split);
    }
    return facts;
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

}  // namespace aner

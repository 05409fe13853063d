#include "model_admission.hpp"

#include "graph_admission.hpp"
#include "limits.hpp"
#include "vocabulary_admission.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <new>
#include <string>
#include <string_view>

namespace aner {

namespace {

constexpr std::int64_t k_max_heads = 1 << 14;
constexpr std::int64_t k_max_head_dim = 1 << 14;
constexpr std::int64_t k_max_width = 1 << 24;      // of embedding, feed-forward, state: far above any model, far below overflow
constexpr std::int64_t k_max_window = 1 << 23;     // times 256 sequences, plus a micro-batch, it stays within 32 bits
constexpr std::uint32_t k_engine_alignment = 32;  // bytes; the engine asserts it of the start of a mapped file's data

struct Range {
    const char * suffix;  // of the key, after the architecture
    std::int64_t least;
    std::int64_t most;
    bool required;
};

constexpr Range k_ranges[] = {
    {"context_length", 1, INT32_MAX, true},
    {"embedding_length", 1, k_max_width, true},
    {"block_count", 1, limits::max_layers, true},
    {"embedding_length_out", 0, k_max_width, false},
    {"nextn_predict_layers", 0, limits::max_layers, false},
    {"expert_count", 0, limits::max_experts, false},
    {"expert_group_count", 0, limits::max_experts, false},
    {"expert_group_used_count", 0, limits::max_experts, false},
    {"pooling_type", 0, 4, false},
    {"attention.key_length", 1, k_max_head_dim, false},
    {"attention.value_length", 1, k_max_head_dim, false},
    {"attention.key_length_swa", 1, k_max_head_dim, false},
    {"attention.value_length_swa", 1, k_max_head_dim, false},
    {"attention.sliding_window", 0, k_max_window, false},
    {"rope.dimension_count", 0, k_max_head_dim, false},
    {"rope.dimension_count_swa", 0, k_max_head_dim, false},
    {"rope.scaling.original_context_length", 1, INT32_MAX, false},
    {"ssm.conv_kernel", 2, k_max_width, false},
    {"ssm.inner_size", 1, k_max_width, false},
    {"ssm.state_size", 1, k_max_width, false},
    {"ssm.time_step_rank", 1, k_max_width, false},
    {"ssm.group_count", 0, k_max_width, false},
    {"shortconv.l_cache", 2, k_max_width, false},
};

struct RealRange {
    const char * suffix;
    bool positive;  // above 0; otherwise at least 0
    double most;
};

constexpr RealRange k_real_ranges[] = {
    {"attention.layer_norm_rms_epsilon", true, 1},
    {"attention.layer_norm_epsilon", true, 1},
    {"attention.scale", false, 1e9},
    {"attention.clamp_kqv", false, 1e9},
    {"attention.max_alibi_bias", false, 1e9},
    {"attn_logit_softcapping", false, 1e9},
    {"final_logit_softcapping", false, 1e9},
    {"rope.freq_base", true, 1e15},
    {"rope.freq_base_swa", true, 1e15},
    {"rope.scale_linear", false, 1e9},
    {"rope.scaling.factor", false, 1e9},
    {"rope.scaling.attn_factor", false, 1e9},
};

struct PerLayer {
    const char * suffix;
    std::int64_t most;
};

constexpr PerLayer k_per_layer[] = {
    {"attention.head_count", k_max_heads},
    {"attention.head_count_kv", k_max_heads},
    {"feed_forward_length", k_max_width},
    {"expert_used_count", limits::max_experts},
};

struct Reason {
    std::string_view architecture;
    const char * why;
};

constexpr const char * k_encoder = "is an encoder: it embeds text and cannot generate any";
constexpr const char * k_diffusion = "is a diffusion model: it does not generate token by token";
constexpr const char * k_draft = "is a draft for another model and cannot generate alone";
constexpr const char * k_audio = "makes sound, not text";

constexpr Reason k_no_generator[] = {
    {"clip", "is a vision projector (mmproj), not a language model"},
    {"t5", "is an encoder-decoder, which is not supported"},
    {"t5encoder", k_encoder},
    {"bert", k_encoder},
    {"modern-bert", k_encoder},
    {"nomic-bert", k_encoder},
    {"nomic-bert-moe", k_encoder},
    {"neo-bert", k_encoder},
    {"jina-bert-v2", k_encoder},
    {"jina-bert-v3", k_encoder},
    {"eurobert", k_encoder},
    {"llama-embed", k_encoder},
    {"gemma-embedding", k_encoder},
    {"dream", k_diffusion},
    {"llada", k_diffusion},
    {"llada-moe", k_diffusion},
    {"rnd1", k_diffusion},
    {"eagle3", k_draft},
    {"dflash", k_draft},
    {"gemma4-assistant", k_draft},
    {"qwen3tts", k_audio},
    {"pockettts", k_audio},
    {"wavtokenizer-dec", k_audio},
};

bool ends_with(std::string_view text, std::string_view end) noexcept {
    return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

class Admission {
public:
    explicit Admission(const std::vector<GgufHeader> & splits)
        : splits_(splits), header_(splits.front()), checked_graph_(has_checked_graph(header_.architecture())) {}

    Error run() {
        if (!kind() || !ranges() || !reals() || !per_layer() || !rope_scaling() || !experts() || !tensors() ||
            !passes(admit_vocabulary(header_))) {
            return std::move(error_);
        }
        const Result<ModelFacts> facts = facts_of(splits_);
        if (facts.failed()) {
            return facts.error();
        }
        (void) passes(admit_graph(splits_, facts.value()));
        return std::move(error_);
    }

private:
    bool fail(const std::string & what) {
        error_ = Error{ErrorCode::model_load, "'" + header_.path + "' cannot be loaded: " + what};
        return false;
    }

    bool passes(const Error & error) { return !error.failed() || fail(error.message()); }

    bool fail_value(const std::string & key, const std::string & allowed) {
        return fail(header_.shown(key) + ": it must be " + allowed);
    }

    bool kind() {
        const GgufValue * type = header_.find("general.type");
        if (type != nullptr && (!type->is_scalar(GgufType::text) || type->text() != "model")) {
            return fail_value("general.type", "'model' (str); an adapter, projector or importance matrix is no base model");
        }
        if (header_.architecture().empty()) {
            return fail_value("general.architecture", "the name of the architecture (str)");
        }
        for (const Reason & reason : k_no_generator) {
            if (reason.architecture == header_.architecture()) {
                return fail("the architecture " + quoted(reason.architecture) + " " + reason.why);
            }
        }
        const std::string causal = header_.key("attention.causal");
        return header_.find(causal) == nullptr || header_.boolean(causal) == true ||
               fail_value(causal, "true (bool); a model that looks ahead cannot generate");
    }

    bool ranges() {
        for (const Range & range : k_ranges) {
            const std::string key = header_.key(range.suffix);
            const GgufValue * value = header_.find(key);
            const bool left_to_trial = !checked_graph_ && !range.required && value != nullptr && value->is_array;
            if ((value == nullptr && !range.required) || left_to_trial) {
                continue;  // some architectures have arrays here
            }
            const bool typed = value != nullptr && value->is_scalar(GgufType::u32);
            if (!typed || *value->integer() < range.least || *value->integer() > range.most) {
                return fail_value(key, "a u32 within " + std::to_string(range.least) + ".." + std::to_string(range.most));
            }
        }
        const std::int64_t n_layer = header_.number("block_count");
        return header_.number("nextn_predict_layers") < n_layer ||
               fail_value(header_.key("nextn_predict_layers"), "below block_count, " + std::to_string(n_layer));
    }

    bool reals() {
        for (const RealRange & range : k_real_ranges) {
            const std::string key = header_.key(range.suffix);
            const GgufValue * value = header_.find(key);
            if (value == nullptr || (!checked_graph_ && value->is_array)) {
                continue;
            }
            // Written so that a NaN, which compares with nothing, is refused.
            const double x = value->is_scalar(GgufType::f32) ? *value->real() : -1;
            if (!(x <= range.most && (range.positive ? x > 0 : x >= 0))) {
                char most[32];
                std::snprintf(most, sizeof most, "%g", range.most);
                const char * least = range.positive ? "an f32 above 0 and at most " : "an f32 of at least 0 and at most ";
                return fail_value(key, std::string(least) + most);
            }
        }
        return true;
    }

    bool per_layer() {
        const auto n_layer = static_cast<std::uint64_t>(header_.number("block_count"));
        for (const PerLayer & entry : k_per_layer) {
            const std::string key = header_.key(entry.suffix);
            const GgufValue * value = header_.find(key);
            if (value == nullptr) {
                continue;
            }
            const bool array = value->is_array_of(GgufType::u32) || value->is_array_of(GgufType::i32);
            bool fits = value->is_scalar(GgufType::u32) || (array && value->count == n_layer);
            for (std::uint64_t i = 0; fits && i < value->count; ++i) {
                fits = *value->integer(i) >= 0 && *value->integer(i) <= entry.most;
            }
            if (!fits) {
                return fail_value(key, "a u32 within 0.." + std::to_string(entry.most) + ", or one for each of the " +
                                           std::to_string(n_layer) + " layers");
            }
        }
        return true;
    }

    bool rope_scaling() {
        const std::string key = header_.key("rope.scaling.type");
        const std::string_view name = header_.find(key) == nullptr ? "none" : header_.text(key).value_or("");
        if (name != "none" && name != "linear" && name != "yarn" && name != "longrope") {
            return fail_value(key, "'none', 'linear', 'yarn' or 'longrope' (str)");
        }
        const std::string finetuned = header_.key("rope.scaling.finetuned");
        return header_.find(finetuned) == nullptr || header_.boolean(finetuned) || fail_value(finetuned, "a bool");
    }

    bool experts() {
        const std::int64_t n = header_.number("expert_count");
        const std::int64_t n_groups = header_.number("expert_group_count");
        const std::int64_t n_used_groups = header_.number("expert_group_used_count");
        std::int64_t n_used = 0;
        const GgufValue * used = header_.find(header_.key("expert_used_count"));
        for (std::uint64_t i = 0; used != nullptr && i < used->count; ++i) {
            n_used = std::max(n_used, *used->integer(i));
        }
        const std::string found = header_.key("expert_count") + " = " + std::to_string(n) + ", with expert_used_count " +
                                  std::to_string(n_used) + ", expert_group_count " + std::to_string(n_groups) +
                                  ", expert_group_used_count " + std::to_string(n_used_groups) + ": ";
        const bool one_is_none = header_.architecture() == "hunyuan-dense" || header_.architecture() == "hunyuan_vl";
        if (n == 0 || (n == 1 && one_is_none)) {
            return (n == 1 || (n_used == 0 && n_groups == 0)) || fail(found + "without experts none can be used or grouped");
        }
        if (n_used < 1 || n_used > n) {
            return fail(found + "at least one and at most all of the experts must be used");
        }
        const bool grouped = n_groups < 2 || (n % n_groups == 0 && n_used_groups >= 1 && n_used_groups < n_groups);
        return (n_groups < n && grouped) ||
               fail(found + "groups must be fewer than experts and divide them, and some but not all of them be used");
    }

    bool tensors() {
        bool any = false;
        for (const GgufHeader & split : splits_) {
            if (split.alignment < k_engine_alignment) {
                return fail("general.alignment = " + std::to_string(split.alignment) + ": it must be at least " +
                            std::to_string(k_engine_alignment));
            }
            for (const GgufTensor & tensor : split.tensors) {
                any = true;
                if (!computable(tensor)) {
                    return false;
                }
            }
        }
        return any || fail("it holds no tensors");
    }

    // Norms and biases have kernels for f32 only, and nothing multiplies by integers or by formats of intermediate results.
    bool computable(const GgufTensor & tensor) {
        const std::string_view type = tensor.type->name;
        const std::string_view name = tensor.name;
        const bool foreign = type == "i8" || type == "i16" || type == "i64" || type == "f64" || type == "q8_1" ||
                             type == "q8_k" || (type == "i32" && checked_graph_);
        if (foreign) {
            return fail("the tensor " + quoted(name) + " has the type " + std::string(type) + ", which no weight can have");
        }
        const bool added_or_scaled = ends_with(name, "norm.weight") || ends_with(name, ".bias");
        const bool plain = tensor.n_elements() == tensor.dims[0] || ends_with(name, ".ssm_a") || ends_with(name, ".ssm_d") ||
                           ends_with(name, "conv1d.weight") || ends_with(name, ".conv.weight");
        return type == "f32" || (!added_or_scaled && !(checked_graph_ && plain)) ||
               fail("the tensor " + quoted(name) + " has the type " + std::string(type) + ": it must be f32");
    }

    const std::vector<GgufHeader> & splits_;
    const GgufHeader & header_;
    const bool checked_graph_;
    Error error_;
};

}  // namespace

Error admit_model(const std::vector<GgufHeader> & splits) noexcept try {
    return Admission{splits}.run();
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

bool is_covered_model(const std::vector<GgufHeader> & splits) noexcept try {
    const GgufHeader & header = splits.front();
    bool covered = is_covered_architecture(header.architecture()) &&
                   is_covered_tokenizer(header.text("tokenizer.ggml.model").value_or("")) &&
                   header.number("expert_count") == 0 && header.number("nextn_predict_layers") == 0;
    for (const GgufHeader & split : splits) {
        for (const GgufTensor & tensor : split.tensors) {
            covered = covered && tensor.type->name != "nvfp4";  // the engine asserts on the scales that come with it
        }
    }
    return covered;
} catch (const std::bad_alloc &) {
    return false;
}

}  // namespace aner

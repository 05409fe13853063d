#include "graph_admission.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

namespace aner {

namespace {

enum class Rotation { none, whole_head, part_of_head };

struct Graph {
    std::string_view architecture;
    bool covered;
    Rotation rotation;    // rope.dimension_count against the head size
    bool query_is_width;  // heads x head size is the embedding length
    bool same_heads;      // all layers attend, with the same numbers of heads
    bool double_inner;    // Mamba: ssm.inner_size is twice the embedding length
    bool grouped_state;   // Mamba-2: heads and groups divide ssm.inner_size
};

constexpr Graph k_graphs[] = {
    {"llama", true, Rotation::whole_head, false, true, false, false},
    {"qwen2", true, Rotation::whole_head, true, true, false, false},
    {"qwen3", true, Rotation::whole_head, false, true, false, false},
    {"gemma", false, Rotation::part_of_head, false, true, false, false},
    {"gemma2", true, Rotation::part_of_head, false, true, false, false},
    {"gemma3", true, Rotation::part_of_head, false, true, false, false},
    {"phi3", true, Rotation::part_of_head, true, true, false, false},
    {"granite", false, Rotation::whole_head, false, true, false, false},
    {"lfm2", true, Rotation::part_of_head, true, false, false, false},
    {"jamba", false, Rotation::none, true, false, true, false},
    {"granitehybrid", false, Rotation::part_of_head, false, false, true, true},
    {"falcon-h1", false, Rotation::part_of_head, false, true, false, true},
    {"mamba", true, Rotation::none, false, false, true, false},
    {"mamba2", false, Rotation::none, false, false, false, true},
};

const Graph * find_graph(std::string_view architecture) noexcept {
    for (const Graph & graph : k_graphs) {
        if (graph.architecture == architecture) {
            return &graph;
        }
    }
    return nullptr;
}

class GraphAdmission {
public:
    GraphAdmission(const std::vector<GgufHeader> & splits, const ModelFacts & facts, const Graph * graph)
        : splits_(splits), header_(splits.front()), facts_(facts), graph_(graph) {}

    Error run() {
        if ((facts_.is_recurrent || (kv_heads_divide() && rotation_fits())) && graph_ != nullptr) {
            (void) (shapes() && state() && (facts_.is_recurrent || attention()));
        }
        return std::move(error_);
    }

private:
    bool fail(const std::string & what) {
        error_ = Error{ErrorCode::model_load, what};
        return false;
    }

    [[nodiscard]] std::string shown(const char * suffix) const { return header_.shown(header_.key(suffix)); }

    bool kv_heads_divide() {
        for (std::size_t i = 0; i < facts_.n_head.size(); ++i) {
            const std::int32_t n = facts_.n_head[i];
            const std::int32_t n_kv = facts_.n_head_kv[i];
            if (n > 0 && n_kv > 0 && n % n_kv != 0) {
                return fail("layer " + std::to_string(i) + " has " + std::to_string(n) + " heads (attention.head_count) and " +
                            std::to_string(n_kv) + " KV heads (attention.head_count_kv): these must divide those");
            }
        }
        return true;
    }

    // The engine asserts it only when it computes, so that trying out the graph would not show it.
    bool rotation_fits() {
        const std::int64_t rotated = header_.number("rope.dimension_count");
        return (rotated % 2 == 0 && (rotated <= facts_.head_dim_k || facts_.head_dim_k == 0)) ||
               fail(shown("rope.dimension_count") + ": it must be even and within the head size, " +
                    std::to_string(facts_.head_dim_k));
    }

    bool shapes() { return shape("token_embd.weight", true) && shape("output.weight", false); }

    [[nodiscard]] const GgufTensor * find_tensor(const std::string & name) const {
        for (const GgufHeader & split : splits_) {
            if (const GgufTensor * tensor = split.find_tensor(name); tensor != nullptr) {
                return tensor;
            }
        }
        return nullptr;
    }

    bool shape(const char * name, bool required) {
        const GgufTensor * tensor = find_tensor(name);
        if (tensor == nullptr) {
            return !required || fail(std::string("the tensor '") + name + "' is missing");
        }
        const std::array<std::int64_t, 4> wanted = {facts_.n_embd, facts_.n_vocab, 1, 1};
        return tensor->dims == wanted ||
               fail(std::string("the tensor '") + name + "' is " + std::to_string(tensor->dims[0]) + " x " +
                    std::to_string(tensor->dims[1]) + ": embedding_length and the vocabulary make it " +
                    std::to_string(wanted[0]) + " x " + std::to_string(wanted[1]));
    }

    bool state() {
        const std::int64_t inner = header_.number("ssm.inner_size");
        if (graph_->double_inner && inner != 2 * header_.number("embedding_length")) {
            return fail(shown("ssm.inner_size") + ": it must be twice the embedding_length, " + std::to_string(facts_.n_embd));
        }
        const std::int64_t n_heads = header_.number("ssm.time_step_rank");
        const std::int64_t n_groups = header_.number("ssm.group_count");
        if (graph_->grouped_state && (n_heads == 0 || n_groups == 0 || inner % n_heads != 0 || inner % n_groups != 0)) {
            return fail(shown("ssm.inner_size") + ": ssm.time_step_rank, " + std::to_string(n_heads) +
                        ", and ssm.group_count, " + std::to_string(n_groups) + ", must divide it");
        }
        return convolutions_have_bias();
    }

    // Optional for some architectures, and then followed as a null pointer.
    bool convolutions_have_bias() {
        for (std::int32_t i = 0; i < facts_.n_layer; ++i) {
            const std::string convolution = "blk." + std::to_string(i) + ".ssm_conv1d.";
            if (find_tensor(convolution + "weight") != nullptr && find_tensor(convolution + "bias") == nullptr) {
                return fail("the tensor '" + convolution + "bias' is missing");
            }
        }
        return true;
    }

    bool attention() { return head_counts() && head_sizes() && caps() && window_pattern() && projections(); }

    // For phi3 the engine takes these tensors for optional, and then follows null pointers.
    bool projections() {
        for (std::size_t i = 0; i < facts_.n_head_kv.size(); ++i) {
            const std::string layer = "blk." + std::to_string(i) + ".";
            const auto has = [&](const char * name) { return find_tensor(layer + name) != nullptr; };
            const bool attends = facts_.n_head_kv[i] > 0;
            if (attends && !has("attn_qkv.weight") && !(has("attn_q.weight") && has("attn_k.weight") && has("attn_v.weight"))) {
                return fail("the tensor '" + layer + "attn_qkv.weight' is missing, or attn_q, attn_k and attn_v in its place");
            }
        }
        return true;
    }

    bool head_counts() {
        const auto [least, most] = std::minmax_element(facts_.n_head.begin(), facts_.n_head.end());
        if (*least < 1 || *least != *most) {
            return fail(shown("attention.head_count") + ": all layers must have the same number, at least 1");
        }
        const auto [least_kv, most_kv] = std::minmax_element(facts_.n_head_kv.begin(), facts_.n_head_kv.end());
        if (graph_->same_heads) {
            return (*least_kv >= 1 && *least_kv == *most_kv) ||
                   fail(shown("attention.head_count_kv") + ": all layers must have the same number, at least 1");
        }
        return (*least_kv == 0 && *most_kv > 0) ||
               fail(shown("attention.head_count_kv") + ": some layers must have KV heads and some none, as it is a hybrid");
    }

    bool head_sizes() {
        const std::int64_t k = facts_.head_dim_k;
        const std::int64_t v = facts_.head_dim_v;
        const std::int64_t rotated = header_.number("rope.dimension_count", k);
        const std::string found = "heads have " + std::to_string(k) + " key (attention.key_length) and " + std::to_string(v) +
                                  " value elements (attention.value_length), " + std::to_string(rotated) +
                                  " of them rotated (rope.dimension_count): ";
        if (k < 1 || k != v) {
            return fail(found + "keys and values must be of one size");
        }
        if (graph_->rotation != Rotation::none && (rotated < 2 || rotated % 2 != 0)) {
            return fail(found + "it must be an even number, at least 2");
        }
        if (graph_->rotation == Rotation::whole_head && rotated != k) {
            return fail(found + "the whole head must be rotated");
        }
        if (graph_->query_is_width && k * facts_.n_head[0] != facts_.n_embd) {
            return fail(found + std::to_string(facts_.n_head[0]) + " heads must make up the embedding_length, " +
                        std::to_string(facts_.n_embd));
        }
        return (header_.number("attention.key_length_swa", k) == k && header_.number("attention.value_length_swa", v) == v &&
                header_.number("rope.dimension_count_swa", rotated) == rotated) ||
               fail(found + "the sizes for sliding-window layers (_swa) must be the same");
    }

    // gemma2 divides by them, and always has a window.
    bool caps() {
        if (facts_.architecture != "gemma2") {
            return true;
        }
        for (const char * suffix : {"attn_logit_softcapping", "final_logit_softcapping"}) {
            if (header_.f32(header_.key(suffix)) == 0.0F) {
                return fail(shown(suffix) + ": it must be above 0");
            }
        }
        return facts_.sliding_window > 0 || fail(shown("attention.sliding_window") + ": it must be above 0");
    }

    // The engine asserts that a model with a window has a layer that uses it.
    bool window_pattern() {
        const GgufValue * pattern = header_.find(header_.key("attention.sliding_window_pattern"));
        const bool used = facts_.architecture == "gemma2" || facts_.architecture == "gemma3";
        if (pattern == nullptr || facts_.sliding_window == 0 || !used) {
            return true;
        }
        if (!pattern->is_array) {
            return (pattern->is_scalar(GgufType::u32) && pattern->integer() != 1) ||
                   fail(shown("attention.sliding_window_pattern") + ": it must be a u32 other than 1");
        }
        bool any = false;
        for (std::uint64_t i = 0; i < pattern->count; ++i) {
            any = any || pattern->boolean(i) == true || pattern->integer(i).value_or(0) != 0;
        }
        const bool typed = pattern->boolean(0) || pattern->type == GgufType::u32 || pattern->type == GgufType::i32;
        return (typed && any && pattern->count == facts_.n_head.size()) ||
               fail(shown("attention.sliding_window_pattern") + ": it must be a bool for each layer, true for at least one");
    }

    const std::vector<GgufHeader> & splits_;
    const GgufHeader & header_;
    const ModelFacts & facts_;
    const Graph * graph_;
    Error error_;
};

}  // namespace

bool has_checked_graph(std::string_view architecture) noexcept {
    return find_graph(architecture) != nullptr;
}

bool is_covered_architecture(std::string_view architecture) noexcept {
    const Graph * graph = find_graph(architecture);
    return graph != nullptr && graph->covered;
}

Error admit_graph(const std::vector<GgufHeader> & splits, const ModelFacts & facts) {
    return GraphAdmission{splits, facts, find_graph(facts.architecture)}.run();
}

}  // namespace aner

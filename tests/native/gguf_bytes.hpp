// Makes GGUF files of any content, right or wrong, byte by byte from the format's description.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace aner::testing {

template <typename T>
std::string raw(T value) {
    std::string bytes(sizeof value, '\0');
    std::memcpy(bytes.data(), &value, sizeof value);
    return bytes;
}

inline std::string sized(std::string_view text) {
    return raw<std::uint64_t>(text.size()) + std::string(text);
}

class GgufBytes {
public:
    enum Type : std::uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, str, arr, u64, i64, f64 };

    // `value` is what follows the type. An earlier value of the key is replaced.
    GgufBytes & set(const std::string & key, Type type, const std::string & value) {
        unset(key);
        return add(key, type, value);
    }
    GgufBytes & add(const std::string & key, Type type, const std::string & value) {
        pairs_.push_back({key, raw<std::uint32_t>(type) + value});
        return *this;
    }
    GgufBytes & unset(const std::string & key) {
        for (std::size_t i = pairs_.size(); i-- > 0;) {
            if (pairs_[i].key == key) {
                pairs_.erase(pairs_.begin() + static_cast<std::ptrdiff_t>(i));
            }
        }
        return *this;
    }
    GgufBytes & number(const std::string & key, std::uint32_t value) { return set(key, u32, raw(value)); }
    GgufBytes & real(const std::string & key, float value) { return set(key, f32, raw(value)); }
    GgufBytes & text(const std::string & key, std::string_view value) { return set(key, str, sized(value)); }
    GgufBytes & array(const std::string & key, Type type, const std::vector<std::string> & elements) {
        std::string value = raw<std::uint32_t>(type) + raw<std::uint64_t>(elements.size());
        for (const std::string & element : elements) {
            value += element;
        }
        return set(key, arr, value);
    }

    // n_bytes of data; the offset follows from the tensors before.
    GgufBytes & tensor(const std::string & name, const std::vector<std::int64_t> & dims, std::uint32_t type,
                       std::size_t n_bytes) {
        tensors_.push_back({name, dims, type, n_bytes, 0});
        return *this;
    }
    GgufBytes & floats(const std::string & name, const std::vector<std::int64_t> & dims) {
        std::size_t n = 4;
        for (const std::int64_t dim : dims) {
            n *= static_cast<std::size_t>(dim);
        }
        return tensor(name, dims, 0, n);
    }
    GgufBytes & shift(std::size_t tensor, std::int64_t by) {
        tensors_[tensor].shift = by;
        return *this;
    }

    [[nodiscard]] std::string header() const {
        std::string out = "GGUF" + raw<std::uint32_t>(3);
        out += raw<std::uint64_t>(tensors_.size()) + raw<std::uint64_t>(pairs_.size());
        for (const Pair & pair : pairs_) {
            out += sized(pair.key) + pair.value;
        }
        std::uint64_t offset = 0;
        for (const Tensor & tensor : tensors_) {
            out += sized(tensor.name) + raw(static_cast<std::uint32_t>(tensor.dims.size()));
            for (const std::int64_t dim : tensor.dims) {
                out += raw(dim);
            }
            out += raw(tensor.type) + raw(offset + static_cast<std::uint64_t>(tensor.shift));
            offset += padded(tensor.n_bytes);
        }
        return out;
    }

    [[nodiscard]] std::string bytes() const {
        std::string out = header();
        out.resize(padded(out.size()));
        for (std::size_t i = 0; i < tensors_.size(); ++i) {
            const bool last = i + 1 == tensors_.size();
            out.append(last ? tensors_[i].n_bytes : padded(tensors_[i].n_bytes), '\x3c');
        }
        return out;
    }

private:
    struct Pair {
        std::string key;
        std::string value;
    };
    struct Tensor {
        std::string name;
        std::vector<std::int64_t> dims;
        std::uint32_t type;
        std::size_t n_bytes;
        std::int64_t shift;
    };

    static std::size_t padded(std::size_t n) { return (n + 31) / 32 * 32; }

    std::vector<Pair> pairs_;
    std::vector<Tensor> tensors_;
};

// A llama of one layer, width 8, two heads of 4, and twelve tokens.
inline GgufBytes tiny_llama() {
    GgufBytes gguf;
    gguf.text("general.architecture", "llama").text("general.name", "tiny");
    gguf.number("llama.context_length", 64).number("llama.embedding_length", 8).number("llama.block_count", 1);
    gguf.number("llama.feed_forward_length", 16).number("llama.attention.head_count", 2);
    gguf.number("llama.attention.head_count_kv", 1).real("llama.attention.layer_norm_rms_epsilon", 1e-5F);
    gguf.text("tokenizer.ggml.model", "llama");
    gguf.number("tokenizer.ggml.bos_token_id", 1).number("tokenizer.ggml.eos_token_id", 2);
    std::vector<std::string> tokens;
    std::vector<std::string> scores;
    std::vector<std::string> types;
    for (int i = 0; i < 12; ++i) {
        tokens.push_back(sized(std::string(1, static_cast<char>('a' + i))));
        scores.push_back(raw(0.0F));
        types.push_back(raw<std::int32_t>(1));
    }
    gguf.array("tokenizer.ggml.tokens", GgufBytes::str, tokens).array("tokenizer.ggml.scores", GgufBytes::f32, scores);
    gguf.array("tokenizer.ggml.token_type", GgufBytes::i32, types);
    gguf.floats("token_embd.weight", {8, 12}).floats("output_norm.weight", {8});
    gguf.floats("blk.0.attn_norm.weight", {8}).floats("blk.0.attn_q.weight", {8, 8}).floats("blk.0.attn_k.weight", {8, 4});
    gguf.floats("blk.0.attn_v.weight", {8, 4}).floats("blk.0.attn_output.weight", {8, 8}).floats("blk.0.ffn_norm.weight", {8});
    gguf.floats("blk.0.ffn_gate.weight", {8, 16}).floats("blk.0.ffn_up.weight", {8, 16});
    gguf.floats("blk.0.ffn_down.weight", {16, 8});
    return gguf;
}

}  // namespace aner::testing

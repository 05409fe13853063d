#include "vocabulary_admission.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

namespace aner {

namespace {

constexpr std::size_t k_max_token_bytes = 4096;  // the engine's tries recurse once a byte
constexpr std::int64_t k_no_token = -1;
constexpr std::int64_t k_type_byte = 6;

// What the engine assumes where the file says nothing. Ids outside the vocabulary count as none.
struct Tokenizer {
    std::string_view model;
    std::int64_t bos;
    std::int64_t eos;
    bool adds_bos;  // for gpt2 it depends on the pre-tokenizer; true is the cautious answer
    bool adds_eos;
};

constexpr Tokenizer k_tokenizers[] = {
    {"llama", 1, 2, true, false},
    {"gpt2", 11, 11, true, false},
    {"hybriddna", 11, 11, true, false},
    {"whitespace", 11, 11, true, false},
    {"gemma4", k_no_token, k_no_token, true, false},
    {"t5", k_no_token, 1, false, true},
    {"bert", 101, k_no_token, true, false},
    {"rwkv", k_no_token, k_no_token, false, false},
    {"plamo2", 1, 2, false, false},
    {"test", k_no_token, k_no_token, false, false},
};

class VocabularyAdmission {
public:
    explicit VocabularyAdmission(const GgufHeader & header) : header_(header) {}

    Error run() {
        (void) (tokenizer() && tokens() && scores_and_types() && merges() && special_ids() && switches() && word_pieces() &&
                byte_tokens() && bytes_of_rwkv());
        return std::move(error_);
    }

private:
    bool fail(const std::string & what) {
        error_ = Error{ErrorCode::model_load, what};
        return false;
    }

    bool fail_value(const std::string & key, const std::string & allowed) {
        return fail(header_.shown(key) + ": it must be " + allowed);
    }

    bool tokenizer() {
        const std::optional<std::string_view> model = header_.text("tokenizer.ggml.model");
        if (!model) {
            return fail_value("tokenizer.ggml.model", "the name of a tokenizer (str)");
        }
        const std::string_view name = *model;
        if (name == "no_vocab" || name == "none") {
            return fail("it has no vocabulary (tokenizer.ggml.model = " + quoted(name) + "), so it cannot generate text");
        }
        const auto * found = std::find_if(std::begin(k_tokenizers), std::end(k_tokenizers),
                                          [&](const Tokenizer & known) { return known.model == name; });
        if (found == std::end(k_tokenizers)) {
            return fail("tokenizer.ggml.model = " + quoted(name) + " is not a tokenizer that the engine knows");
        }
        tokenizer_ = *found;
        if (header_.find("tokenizer.ggml.pre") != nullptr && !header_.text("tokenizer.ggml.pre")) {
            return fail_value("tokenizer.ggml.pre", "a str");
        }
        // The engine asserts that no space is left in a word; this pre-tokenizer leaves them to one that drops them.
        return header_.text("tokenizer.ggml.pre") != "whitespace" || name == "whitespace" ||
               fail_value("tokenizer.ggml.pre", "another one where tokenizer.ggml.model is " + quoted(name));
    }

    bool tokens() {
        tokens_ = header_.find("tokenizer.ggml.tokens");
        if (tokens_ == nullptr || !tokens_->is_array_of(GgufType::text)) {
            return fail_value("tokenizer.ggml.tokens", "an array of str");
        }
        if (tokens_->count == 0) {  // the upper end is the header's own
            return fail_value("tokenizer.ggml.tokens", "not empty");
        }
        const std::string size = header_.key("vocab_size");
        if (header_.find(size) != nullptr && header_.number("vocab_size", k_no_token) != n_tokens()) {
            return fail_value(size, "a u32, the number of tokens, " + std::to_string(n_tokens()));
        }
        return distinct();
    }

    // As the engine reads them: up to the first NUL, and an empty one under a name of its own.
    bool distinct() {
        std::unordered_set<std::string> seen;
        seen.reserve(tokens_->count);
        for (std::uint64_t i = 0; i < tokens_->count; ++i) {
            const std::string_view text = token(i);
            if (text.size() > k_max_token_bytes) {
                return fail("token " + std::to_string(i) + " has " + std::to_string(text.size()) + " bytes: at most " +
                            std::to_string(k_max_token_bytes) + " are allowed");
            }
            if (!seen.insert(text.empty() ? "[EMPTY_" + std::to_string(i) + "]" : std::string(text)).second) {
                return fail("tokenizer.ggml.tokens has " + quoted(text) + " twice (again at " + std::to_string(i) + ")");
            }
        }
        return true;
    }

    bool as_long_as_tokens(const char * key, std::initializer_list<GgufType> types) {
        const GgufValue * value = header_.find(key);
        if (value == nullptr) {
            return true;
        }
        const bool typed = value->is_array && std::find(types.begin(), types.end(), value->type) != types.end();
        return (typed && value->count == tokens_->count) ||
               fail_value(key, "an array of " + std::string(name_of(*types.begin())) + ", one for each of the " +
                                   std::to_string(n_tokens()) + " tokens");
    }

    bool scores_and_types() {
        return as_long_as_tokens("tokenizer.ggml.scores", {GgufType::f32, GgufType::i32}) &&
               as_long_as_tokens("tokenizer.ggml.token_type", {GgufType::i32});
    }

    bool merges() {
        const GgufValue * value = header_.find("tokenizer.ggml.merges");
        const std::string_view model = tokenizer_.model;
        const bool byte_pairs = model == "gpt2" || model == "hybriddna" || model == "whitespace";
        const bool needed = model == "gemma4" || (byte_pairs && header_.text("tokenizer.ggml.pre") != "kimi-k2");
        const bool right = value == nullptr ? !needed : value->is_array_of(GgufType::text);
        return right || fail_value("tokenizer.ggml.merges", "an array of str");
    }

    bool special_ids() {
        for (const char * name : {"bos", "eos", "eot", "eom", "unknown"}) {
            const std::string key = std::string("tokenizer.ggml.") + name + "_token_id";
            const GgufValue * value = header_.find(key);
            if (value != nullptr && (!value->is_scalar(GgufType::u32) || *value->integer() >= n_tokens())) {
                return fail_value(key, "a u32 below the number of tokens, " + std::to_string(n_tokens()));
            }
        }
        return true;
    }

    // The engine asserts that a token it is told to add exists.
    bool switches() {
        const std::string_view pre = header_.text("tokenizer.ggml.pre").value_or("");
        const bool always = tokenizer_.model == "gemma4" || pre == "gemma4" || pre == "granite-embed-multi-311m";
        const bool adds_bos = always || header_.boolean("tokenizer.ggml.add_bos_token").value_or(tokenizer_.adds_bos);
        const bool adds_eos = header_.boolean("tokenizer.ggml.add_eos_token").value_or(tokenizer_.adds_eos);
        for (const char * key : {"tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token", "tokenizer.ggml.add_sep_token",
                                 "tokenizer.ggml.add_space_prefix", "tokenizer.ggml.remove_extra_whitespaces"}) {
            if (header_.find(key) != nullptr && !header_.boolean(key)) {
                return fail_value(key, "a bool");
            }
        }
        const bool never = tokenizer_.model == "test" || tokenizer_.model == "rwkv" || tokenizer_.model == "plamo2";
        if (!never && adds_bos && id("bos", tokenizer_.bos) == k_no_token) {
            return fail_value("tokenizer.ggml.bos_token_id", "a token, as one is added to each prompt");
        }
        return never || !adds_eos || id("eos", tokenizer_.eos) != k_no_token ||
               fail_value("tokenizer.ggml.eos_token_id", "a token, as one is added to each prompt");
    }

    bool word_pieces() {
        if (tokenizer_.model != "bert") {
            return true;
        }
        const GgufValue * types = header_.find("tokenizer.ggml.token_type");
        for (std::uint64_t i = 0; types != nullptr && i < types->count; ++i) {
            if (types->integer(i) == k_type_byte) {
                return fail("tokenizer.ggml.token_type marks token " + std::to_string(i) + " as a byte: bert has none");
            }
        }
        return (id("bos", tokenizer_.bos) != k_no_token && id("seperator", 102) != k_no_token) ||
               fail("a bert tokenizer needs tokenizer.ggml.bos_token_id and tokenizer.ggml.seperator_token_id");
    }

    // The engine reads the byte out of the token's text, at these places, and throws or takes a wrong one where it is not there.
    bool byte_tokens() {
        const GgufValue * types = header_.find("tokenizer.ggml.token_type");
        for (std::uint64_t i = 0; types != nullptr && i < types->count; ++i) {
            const std::string_view text = token(i);
            const auto digit = [&](std::size_t at) { return std::isxdigit(static_cast<unsigned char>(text[at])) != 0; };
            const bool spelled = text.size() == 6 && text.substr(0, 3) == "<0x" && digit(3) && digit(4) && text[5] == '>';
            if (types->integer(i) == k_type_byte && !spelled) {
                return fail("tokenizer.ggml.token_type marks token " + std::to_string(i) + " as a byte, and its text is " +
                            quoted(text) + ": it must be <0xNN>");
            }
        }
        return true;
    }

    // The engine's rwkv tokenizer never leaves a byte that starts a token and is none itself.
    bool bytes_of_rwkv() {
        if (tokenizer_.model != "rwkv") {
            return true;
        }
        std::array<bool, 256> starts{};
        std::array<bool, 256> alone{};
        for (std::uint64_t i = 0; i < tokens_->count; ++i) {
            const std::string text = unescaped(token(i));
            if (!text.empty()) {
                const auto first = static_cast<unsigned char>(text[0]);
                starts[first] = true;
                alone[first] = alone[first] || text.size() == 1;
            }
        }
        for (std::size_t byte = 0; byte < 256; ++byte) {
            if (starts[byte] && !alone[byte]) {
                return fail("tokenizer.ggml.tokens has no token for the byte " + std::to_string(byte) +
                            " alone, which starts others");
            }
        }
        return true;
    }

    // \t, \n, \r, \xHH and \ before any other character.
    static std::string unescaped(std::string_view text) {
        const auto digit = [](char c) { return static_cast<unsigned>(c >= 'a' ? c - 'a' + 10 : c - '0'); };
        std::string out;
        for (std::size_t i = 0; i < text.size(); ++i) {
            if (text[i] != '\\' || i + 1 == text.size()) {
                if (text[i] != '\\') {
                    out += text[i];
                }
                continue;
            }
            const char c = text[++i];
            if (c != 'x') {
                out += c == 't' ? '\t' : c == 'n' ? '\n' : c == 'r' ? '\r' : c;
            } else if (i + 2 < text.size()) {
                out += static_cast<char>((digit(text[i + 1]) << 4) + digit(text[i + 2]));
                i += 2;
            } else {
                break;
            }
        }
        return out;
    }

    [[nodiscard]] std::int64_t n_tokens() const { return static_cast<std::int64_t>(tokens_->count); }

    [[nodiscard]] std::string_view token(std::uint64_t i) const {
        const std::string_view text = *tokens_->text(i);
        return text.substr(0, text.find('\0'));
    }

    [[nodiscard]] std::int64_t id(const char * name, std::int64_t otherwise) const {
        const std::optional<std::uint32_t> said = header_.u32(std::string("tokenizer.ggml.") + name + "_token_id");
        if (said && *said < tokens_->count) {
            return *said;
        }
        return otherwise < n_tokens() ? otherwise : k_no_token;
    }

    const GgufHeader & header_;
    const GgufValue * tokens_ = nullptr;
    Tokenizer tokenizer_{};
    Error error_;
};

}  // namespace

Error admit_vocabulary(const GgufHeader & header) {
    return VocabularyAdmission{header}.run();
}

bool is_covered_tokenizer(std::string_view model) noexcept {
    return model == "llama" || model == "gpt2" || model == "test";
}

}  // namespace aner

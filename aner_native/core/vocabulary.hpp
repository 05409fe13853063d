// Text to tokens and back. Immutable after the load, any thread.
#pragma once

#include "errors.hpp"
#include "types.hpp"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace aner {

// Half-open byte ranges of a prompt in which the text of a control token is only text; ascending, disjoint.
using ByteSpans = std::vector<std::pair<std::int64_t, std::int64_t>>;

class Vocabulary {
public:
    virtual ~Vocabulary() = default;

    // `text` is UTF-8. `parse_control`: texts of control tokens become those tokens, except inside `literal`.
    // `add_bos`: exactly one BOS starts the result when the model wants one, also when the text brings its own.
    virtual Result<std::vector<Token>> tokenize(std::string_view text, bool add_bos, bool parse_control,
                                                const ByteSpans & literal) const noexcept = 0;

    [[nodiscard]] std::int32_t n_tokens() const noexcept { return static_cast<std::int32_t>(offsets_.size()) - 1; }
    [[nodiscard]] bool contains(Token token) const noexcept { return token >= 0 && token < n_tokens(); }

    // The bytes that a token adds to a text; empty for control tokens. `token` is within the vocabulary.
    [[nodiscard]] std::string_view piece(Token token) const noexcept {
        const auto i = static_cast<std::size_t>(token);
        return std::string_view(pieces_).substr(offsets_[i], offsets_[i + 1] - offsets_[i]);
    }

    [[nodiscard]] Token bos() const noexcept { return bos_; }  // -1: none
    [[nodiscard]] Token eos() const noexcept { return eos_; }  // -1: none
    [[nodiscard]] bool adds_bos() const noexcept { return adds_bos_; }
    [[nodiscard]] const std::vector<Token> & end_of_generation() const noexcept { return end_of_generation_; }  // ascending
    [[nodiscard]] const std::vector<std::pair<std::string, Token>> & control() const noexcept { return control_; }
    [[nodiscard]] std::size_t longest_piece() const noexcept { return longest_piece_; }  // bytes, control texts included

protected:
    void add_piece(std::string_view piece);

    std::string pieces_;
    std::vector<std::size_t> offsets_{0};
    Token bos_ = -1;
    Token eos_ = -1;
    bool adds_bos_ = false;
    std::vector<Token> end_of_generation_;
    std::vector<std::pair<std::string, Token>> control_;  // longest text first
    std::size_t longest_piece_ = 1;
};

inline void Vocabulary::add_piece(std::string_view piece) {
    pieces_ += piece;
    offsets_.push_back(pieces_.size());
    longest_piece_ = piece.size() > longest_piece_ ? piece.size() : longest_piece_;
}

}  // namespace aner

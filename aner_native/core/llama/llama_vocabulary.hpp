// The model's vocabulary, read once from the engine.
#pragma once

#include "../vocabulary.hpp"

#include "llama.h"

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace aner {

class LlamaVocabulary final : public Vocabulary {
public:
    // Reads every piece. Errors: model_load.
    Error read(const llama_vocab * vocab) noexcept;

    Result<std::vector<Token>> tokenize(std::string_view text, bool add_bos, bool parse_control,
                                        const ByteSpans & literal) const noexcept override;

private:
    struct ControlToken {
        Token token;
        bool strips_left;   // white space before it is not part of the prompt
        bool strips_right;  // nor after it
    };
    using ControlMap = std::map<std::string, ControlToken, std::less<>>;

    void read_pieces();
    void read_control();
    void append(std::string_view text, bool parse_control, std::vector<Token> & tokens) const;
    void append_by_parts(std::string_view text, const ByteSpans & literal, std::vector<Token> & tokens) const;
    [[nodiscard]] ControlMap::const_iterator control_at(std::string_view text, std::size_t at) const;  // the longest

    const llama_vocab * vocab_ = nullptr;
    ControlMap control_tokens_;                 // by text
    std::vector<std::size_t> control_lengths_;  // of the texts, descending
};

}  // namespace aner

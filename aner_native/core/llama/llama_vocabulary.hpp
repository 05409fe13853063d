// The model's vocabulary, read once from the engine.
#pragma once

#include "../vocabulary.hpp"

#include "llama.h"

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
    struct ControlText {
        std::string text;
        Token token;
        bool strips_left;   // white space before it is not part of the prompt
        bool strips_right;  // nor after it
    };

    void read_pieces();
    void read_control();
    void append(std::string_view text, bool parse_control, std::vector<Token> & tokens) const;
    void append_by_parts(std::string_view text, const ByteSpans & literal, std::vector<Token> & tokens) const;
    [[nodiscard]] const ControlText * control_at(std::string_view text, std::size_t at) const noexcept;

    const llama_vocab * vocab_ = nullptr;
    std::vector<ControlText> control_texts_;  // longest first
};

}  // namespace aner

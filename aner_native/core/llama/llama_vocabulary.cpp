#include "llama_vocabulary.hpp"

#include "../limits.hpp"
#include "large_stack.hpp"

#include <algorithm>
#include <cctype>
#include <exception>
#include <limits>
#include <stdexcept>

namespace aner {

Error LlamaVocabulary::read(const llama_vocab * vocab) noexcept {
    vocab_ = vocab;
    try {
        if (llama_vocab_type(vocab) == LLAMA_VOCAB_TYPE_NONE) {
            return Error{ErrorCode::model_load, "the model has no vocabulary: it cannot turn text into tokens"};
        }
        bos_ = llama_vocab_bos(vocab);
        eos_ = llama_vocab_eos(vocab);
        adds_bos_ = llama_vocab_get_add_bos(vocab) && bos_ >= 0;
        read_pieces();
        read_control();
    } catch (const std::exception & error) {
        return Error{ErrorCode::model_load, std::string("the vocabulary cannot be read: ") + error.what()};
    }
    return {};
}

void LlamaVocabulary::read_pieces() {
    const std::int32_t n = llama_vocab_n_tokens(vocab_);
    std::string buffer(256, '\0');
    offsets_.reserve(static_cast<std::size_t>(n) + 1);
    for (Token token = 0; token < n; ++token) {
        std::int32_t length = llama_token_to_piece(vocab_, token, buffer.data(), static_cast<std::int32_t>(buffer.size()), 0, false);
        if (length < 0) {
            buffer.resize(static_cast<std::size_t>(-length));
            length = llama_token_to_piece(vocab_, token, buffer.data(), static_cast<std::int32_t>(buffer.size()), 0, false);
        }
        add_piece(std::string_view(buffer).substr(0, static_cast<std::size_t>(std::max(length, 0))));
        if (llama_vocab_is_eog(vocab_, token)) {
            end_of_generation_.push_back(token);
        }
    }
}

void LlamaVocabulary::read_control() {
    for (Token token = 0; token < n_tokens(); ++token) {
        const auto attributes = static_cast<unsigned>(llama_vocab_get_attr(vocab_, token));
        const char * text = llama_vocab_get_text(vocab_, token);
        if ((attributes & (LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_UNKNOWN)) == 0 || text == nullptr || *text == '\0') {
            continue;
        }
        const ControlToken control{token, (attributes & LLAMA_TOKEN_ATTR_LSTRIP) != 0, (attributes & LLAMA_TOKEN_ATTR_RSTRIP) != 0};
        control_tokens_.emplace(text, control);
        control_.emplace_back(text, token);
        longest_piece_ = std::max(longest_piece_, control_.back().first.size());
    }
    std::stable_sort(control_.begin(), control_.end(), [](const auto & a, const auto & b) { return a.first.size() > b.first.size(); });
    for (const auto & [text, token] : control_) {
        if (control_lengths_.empty() || control_lengths_.back() != text.size()) {
            control_lengths_.push_back(text.size());
        }
    }
}

Result<std::vector<Token>> LlamaVocabulary::tokenize(std::string_view text, bool add_bos, bool parse_control,
                                                     const ByteSpans & literal) const noexcept try {
    if (static_cast<std::int64_t>(text.size()) > limits::max_prompt_bytes) {
        return Error{ErrorCode::invalid_request, "the text has " + std::to_string(text.size()) + " bytes: at most " +
                                                     std::to_string(limits::max_prompt_bytes) + " are accepted"};
    }
    std::vector<Token> tokens;
    Error failure;
    const auto work = [&] {
        try {
            if (parse_control && !literal.empty()) {
                append_by_parts(text, literal, tokens);
            } else {
                append(text, parse_control, tokens);
            }
        } catch (const std::bad_alloc &) {
            failure = Error{ErrorCode::out_of_memory};
        } catch (const std::out_of_range &) {  // how the engine's table of tokens answers
            failure = Error{ErrorCode::invalid_request, "the text has a character that this model's vocabulary cannot spell: it "
                                                        "has no token for one of the bytes"};
        } catch (const std::exception & error) {
            failure = Error{ErrorCode::engine, std::string("the engine could not tokenize the text: ") + error.what()};
        }
    };
    if (llama_vocab_type(vocab_) != LLAMA_VOCAB_TYPE_BPE) {
        work();
    } else if (Error error = run_with_stack_for(text.size(), work); error.failed()) {
        return error;
    }
    if (failure.failed()) {
        return failure;
    }
    if (add_bos && adds_bos_ && (tokens.empty() || tokens.front() != bos_)) {
        tokens.insert(tokens.begin(), bos_);
    }
    while (add_bos && tokens.size() > 1 && tokens[0] == bos_ && tokens[1] == bos_ && bos_ >= 0) {
        tokens.erase(tokens.begin());
    }
    return tokens;
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

void LlamaVocabulary::append(std::string_view text, bool parse_control, std::vector<Token> & tokens) const {
    if (text.empty()) {
        return;
    }
    const std::size_t before = tokens.size();
    const auto length = static_cast<std::int32_t>(text.size());
    tokens.resize(before + text.size() + 2);  // one token a byte, and a space that some vocabularies put in front
    std::int32_t n = llama_tokenize(vocab_, text.data(), length, tokens.data() + before,
                                    static_cast<std::int32_t>(tokens.size() - before), false, parse_control);
    if (n < 0 && n != std::numeric_limits<std::int32_t>::min()) {
        tokens.resize(before + static_cast<std::size_t>(-n));
        n = llama_tokenize(vocab_, text.data(), length, tokens.data() + before, -n, false, parse_control);
    }
    if (n < 0) {
        throw std::length_error("too many tokens");
    }
    tokens.resize(before + static_cast<std::size_t>(n));
}

LlamaVocabulary::ControlMap::const_iterator LlamaVocabulary::control_at(std::string_view text, std::size_t at) const {
    for (const std::size_t length : control_lengths_) {
        if (const auto found = control_tokens_.find(text.substr(at, length)); found != control_tokens_.end()) {
            return found;
        }
    }
    return control_tokens_.end();
}

// As the engine does it for a whole text, but an occurrence that touches a literal span is plain text.
void LlamaVocabulary::append_by_parts(std::string_view text, const ByteSpans & literal, std::vector<Token> & tokens) const {
    auto span = literal.begin();  // the first that ends after the place that is looked at
    const auto is_literal = [&](std::size_t begin, std::size_t end) {
        while (span != literal.end() && span->second <= static_cast<std::int64_t>(begin)) {
            ++span;
        }
        return span != literal.end() && span->first < static_cast<std::int64_t>(end);
    };
    bool first_bytes[256] = {};
    for (const auto & [control_text, control] : control_tokens_) {
        first_bytes[static_cast<unsigned char>(control_text.front())] = true;
    }
    std::size_t from = 0;  // [from, at) is plain text not yet appended
    for (std::size_t at = 0; at < text.size();) {
        const auto found = first_bytes[static_cast<unsigned char>(text[at])] ? control_at(text, at) : control_tokens_.end();
        if (found == control_tokens_.end() || is_literal(at, at + found->first.size())) {
            ++at;
            continue;
        }
        const ControlToken & control = found->second;
        std::size_t end = at;
        while (control.strips_left && end > from && std::isspace(static_cast<unsigned char>(text[end - 1])) != 0) {
            --end;
        }
        append(text.substr(from, end - from), false, tokens);
        tokens.push_back(control.token);
        at += found->first.size();
        while (control.strips_right && at < text.size() && std::isspace(static_cast<unsigned char>(text[at])) != 0) {
            ++at;
        }
        from = at;
    }
    append(text.substr(from), false, tokens);
}

}  // namespace aner

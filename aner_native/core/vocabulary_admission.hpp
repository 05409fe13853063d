// The part of admit_model that concerns the vocabulary: the engine builds its tokenizer from it, with assertions of its own.
#pragma once

#include "errors.hpp"
#include "gguf_header.hpp"

#include <string_view>

namespace aner {

// Errors: model_load.
Error admit_vocabulary(const GgufHeader & header);

// Tokenizers that our tests run; the engine has more.
[[nodiscard]] bool is_covered_tokenizer(std::string_view model) noexcept;

}  // namespace aner

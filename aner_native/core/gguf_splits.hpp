// A model that is one file, or several named `NAME-00001-of-00003.gguf` and so on, the first of which is the one to give.
#pragma once

#include "errors.hpp"
#include "gguf_header.hpp"

#include <string>
#include <vector>

namespace aner {

// Reads the file and, when it is the first of a split model, all the others in order; their paths are in the headers. Errors:
// those of read_gguf_header; model_load that names the first split when another one was given, or the one that is missing.
[[nodiscard]] Result<std::vector<GgufHeader>> read_model_headers(const std::string & path) noexcept;

}  // namespace aner

// Walks the bytes of a GGUF header once, from the start of the file.
#pragma once

#include "errors.hpp"
#include "gguf_header.hpp"
#include "regular_file.hpp"

namespace aner {

// Fills an empty `header`. Errors: model_load.
Error read_header(const RegularFile & file, GgufHeader & header);

}  // namespace aner

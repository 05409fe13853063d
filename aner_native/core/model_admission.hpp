// Decides from the header whether the engine can be given a model at all.
//
// The engine answers most damaged files with an error, but some metadata runs into an assertion that ends the process, and some
// into an endless loop, a division by zero or a null pointer. Every such path that metadata can reach is refused here first,
// with the key, what was found and what is allowed.
#pragma once

#include <vector>

#include "errors.hpp"
#include "gguf_header.hpp"
#include "model_facts.hpp"

namespace aner {

// `splits` as read_model_headers gives them, metadata in the first. Errors: model_load, out_of_memory.
Error admit_model(const std::vector<GgufHeader> & splits) noexcept;

// True when the checks above, and our tests, cover all that the engine does with this model: its architecture, its vocabulary
// and its tensor types. Any other admitted model is first tried in a child process.
[[nodiscard]] bool is_covered_model(const std::vector<GgufHeader> & splits) noexcept;

}  // namespace aner

// Runs a function on a thread with a stack for a text of a given size. The engine's pre-tokenizers hand most byte-level BPE
// texts to std::regex, which recurses once for each character of a match. Where a match can end depends on the model's
// expressions (some go on over spaces), so the whole text counts.
#pragma once

#include "../errors.hpp"

#include <cstddef>
#include <functional>

namespace aner {

// `n_bytes`: of the text. Errors: out_of_memory when no such stack can be had, or memory would not hold all of it.
Error run_with_stack_for(std::size_t n_bytes, const std::function<void()> & work);

}  // namespace aner

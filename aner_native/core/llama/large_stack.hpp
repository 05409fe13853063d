// Runs a function on a thread with a stack of its own size. The engine's pre-tokenizers hand some texts to std::regex, which
// recurses once or more for each character of a run and would otherwise overflow the caller's stack.
#pragma once

#include "../errors.hpp"

#include <cstddef>
#include <functional>

namespace aner {

// `run`: characters that the recursion may go over. Errors: invalid_request when no such stack can be had.
Error run_with_stack_for(std::size_t run, const std::function<void()> & work) noexcept;

}  // namespace aner

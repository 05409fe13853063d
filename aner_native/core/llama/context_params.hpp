// aner's settings of a context in the engine's terms.
#pragma once

#include "../profile.hpp"

#include "llama.h"

namespace aner {

[[nodiscard]] ggml_type engine_type(KvType type) noexcept;
[[nodiscard]] llama_context_params context_params(const ContextSettings & settings, bool on_cpu) noexcept;

}  // namespace aner

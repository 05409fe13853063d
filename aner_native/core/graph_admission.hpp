// The part of admit_model that concerns single architectures: what their graphs assert, or take for granted, of the settings.
#pragma once

#include "errors.hpp"
#include "gguf_header.hpp"
#include "model_facts.hpp"

#include <string_view>
#include <vector>

namespace aner {

// True for architectures whose graph admit_graph checks; of the others it knows only what all have in common.
[[nodiscard]] bool has_checked_graph(std::string_view architecture) noexcept;

// True when, besides, our tests run it: nothing in its settings then reaches an assertion of the engine.
[[nodiscard]] bool is_covered_architecture(std::string_view architecture) noexcept;

// After the ranges and types of all settings were checked. Errors: model_load.
Error admit_graph(const std::vector<GgufHeader> & splits, const ModelFacts & facts);

}  // namespace aner

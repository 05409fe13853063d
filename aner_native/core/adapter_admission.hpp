// Decides from its header whether the engine can be given an adapter, and whether it would apply all of it.
#pragma once

#include "errors.hpp"
#include "gguf_header.hpp"
#include "model_facts.hpp"

#include <array>
#include <string>
#include <unordered_map>

namespace aner {

// The dimensions of each tensor of the base model, by name.
using TensorShapes = std::unordered_map<std::string, std::array<std::int64_t, 4>>;

[[nodiscard]] TensorShapes shapes_of(const std::vector<GgufHeader> & splits);

// Errors: adapter, with what was found and what the base has; out_of_memory.
Error admit_adapter(const GgufHeader & header, const ModelFacts & base, const TensorShapes & shapes) noexcept;

}  // namespace aner

// What aner needs to know of a model before it is loaded: for its info, for checks of KV types, for memory estimates.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "errors.hpp"
#include "gguf_header.hpp"

namespace aner {

struct ModelFacts {
    std::string architecture;
    std::string name;                       // general.name; may be empty
    std::int32_t n_layer = 0;               // without layers that only predict further tokens
    std::int32_t n_embd = 0;
    std::int32_t n_vocab = 0;
    std::int32_t context_train = 0;
    std::vector<std::int32_t> n_head;       // per layer
    std::vector<std::int32_t> n_head_kv;    // per layer; 0 where a layer has no attention
    std::int32_t head_dim_k = 0;            // elements
    std::int32_t head_dim_v = 0;
    std::int32_t sliding_window = 0;        // positions; 0: none, or none that the engine uses
    bool is_recurrent = false;              // no layer attends
    bool is_hybrid = false;                 // some layers attend, some keep a state
    std::string chat_template;              // empty: none
    std::string vocabulary;                 // tokenizer.ggml.model

    struct TypeUse {
        std::int64_t n_tensors = 0;
        std::uint64_t bytes = 0;
    };
    std::map<std::string, TypeUse> tensor_types;  // real types in the file, whatever its name says
    std::uint64_t tensor_bytes = 0;
    std::int64_t n_parameters = 0;
};

// For splits that admit_model let pass. Errors: out_of_memory.
[[nodiscard]] Result<ModelFacts> facts_of(const std::vector<GgufHeader> & splits) noexcept;

}  // namespace aner

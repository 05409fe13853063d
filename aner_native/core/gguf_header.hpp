// The header of a GGUF file (versions 2 and 3, little-endian), read by our own bounded reader before the engine sees the path.
//
// Nothing in the file is believed: each count, length and offset is checked against what the file can hold before memory is
// taken for it, so a hostile header costs no more than its own size. A header that was read is well-formed; whether the engine
// survives it is the question of model_admission.hpp.
#pragma once

#include "errors.hpp"
#include "gguf_value.hpp"

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace aner {

struct GgufTensor {
    std::string name;
    std::array<std::int64_t, 4> dims = {1, 1, 1, 1};  // each at least 1; dims[0] is the row length
    std::uint32_t n_dims = 0;
    const TensorType * type = nullptr;                // never null in a header that was read
    std::uint64_t offset = 0;                         // bytes, from GgufHeader::data_offset
    std::uint64_t bytes = 0;

    [[nodiscard]] std::int64_t n_elements() const noexcept { return dims[0] * dims[1] * dims[2] * dims[3]; }
};

struct GgufHeader {
    std::string path;
    std::uint64_t file_bytes = 0;
    std::uint32_t version = 0;
    std::uint32_t alignment = 32;     // bytes, a power of two
    std::uint64_t data_offset = 0;    // bytes, from the start of the file
    std::vector<GgufTensor> tensors;  // in file order; no two share a name or a byte, all lie inside the file
    std::map<std::string, GgufValue, std::less<>> metadata;
    std::map<std::string, std::size_t, std::less<>> tensor_index;

    [[nodiscard]] const GgufValue * find(std::string_view key) const noexcept;  // null: none
    [[nodiscard]] const GgufTensor * find_tensor(std::string_view name) const noexcept;

    // Scalars, by the exact type in the file; nothing when absent or of another type.
    [[nodiscard]] std::optional<std::uint32_t> u32(std::string_view key) const noexcept;
    [[nodiscard]] std::optional<float> f32(std::string_view key) const noexcept;
    [[nodiscard]] std::optional<bool> boolean(std::string_view key) const noexcept;
    [[nodiscard]] std::optional<std::string_view> text(std::string_view key) const noexcept;

    // By the architecture's prefix: "llama" and "block_count" make "llama.block_count".
    [[nodiscard]] std::string_view architecture() const noexcept;  // empty: not said
    [[nodiscard]] std::string key(std::string_view suffix) const;
    [[nodiscard]] std::int64_t number(std::string_view suffix, std::int64_t otherwise = 0) const;  // of a u32

    // For messages: "llama.block_count = 0 (u32)", or that it is missing.
    [[nodiscard]] std::string shown(std::string_view key) const;
};

// Reads one file. Never blocks on a pipe or a device. Errors: model_not_found (nothing at the path), model_load (what is wrong
// with the file), out_of_memory.
[[nodiscard]] Result<GgufHeader> read_gguf_header(const std::string & path) noexcept;

}  // namespace aner

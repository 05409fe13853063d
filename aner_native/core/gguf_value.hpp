// The types of a GGUF file: of its metadata values, and of its tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace aner {

enum class GgufType : std::uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, text, array, u64, i64, f64 };
constexpr std::uint32_t k_n_gguf_types = 13;

[[nodiscard]] std::string_view name_of(GgufType type) noexcept;
[[nodiscard]] std::uint32_t bytes_of(GgufType type) noexcept;  // of one element; 0 for text and array

// One metadata value: a scalar, or an array of scalars. The accessors give nothing when the type is another one.
struct GgufValue {
    GgufType type = GgufType::u8;     // of the scalar, or of each element; never `array`
    bool is_array = false;
    std::uint64_t count = 1;
    std::string bytes;                // the elements in the file's order and form, or the strings one after the other
    std::vector<std::uint32_t> ends;  // of each string of an array in `bytes`; empty for other types

    // Element i (0 for a scalar); nothing when i is not below count.
    [[nodiscard]] std::optional<std::int64_t> integer(std::uint64_t i = 0) const noexcept;  // any integer type that fits
    [[nodiscard]] std::optional<double> real(std::uint64_t i = 0) const noexcept;           // f32, f64
    [[nodiscard]] std::optional<bool> boolean(std::uint64_t i = 0) const noexcept;
    [[nodiscard]] std::optional<std::string_view> text(std::uint64_t i = 0) const noexcept;

    [[nodiscard]] bool is_scalar(GgufType wanted) const noexcept { return !is_array && type == wanted; }
    [[nodiscard]] bool is_array_of(GgufType wanted) const noexcept { return is_array && type == wanted; }
    [[nodiscard]] std::string type_name() const;  // "u32", "array of 3 str"
    [[nodiscard]] std::string shown() const;      // a scalar as text, for messages; the type name of an array
};

// A tensor type that the pinned engine knows: `block` elements of a row take `bytes` bytes.
struct TensorType {
    std::uint32_t id;
    std::string_view name;
    std::uint32_t block;
    std::uint32_t bytes;
};

[[nodiscard]] const TensorType * find_tensor_type(std::uint32_t id) noexcept;  // null: unknown, or removed from the format

// Text from a file, for a message: control characters escaped, cut at 64 bytes, in quotes.
[[nodiscard]] std::string quoted(std::string_view text);

}  // namespace aner

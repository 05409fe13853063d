#include "gguf_value.hpp"

#include <array>
#include <cstdio>
#include <cstring>

namespace aner {

namespace {

struct TypeFact {
    std::string_view name;
    std::uint32_t bytes;
};

constexpr std::array<TypeFact, k_n_gguf_types> k_types{{{"u8", 1},
                                                        {"i8", 1},
                                                        {"u16", 2},
                                                        {"i16", 2},
                                                        {"u32", 4},
                                                        {"i32", 4},
                                                        {"f32", 4},
                                                        {"bool", 1},
                                                        {"str", 0},
                                                        {"arr", 0},
                                                        {"u64", 8},
                                                        {"i64", 8},
                                                        {"f64", 8}}};

constexpr TensorType k_tensor_types[] = {
    {0, "f32", 1, 4}, {1, "f16", 1, 2}, {2, "q4_0", 32, 18}, {3, "q4_1", 32, 20}, {6, "q5_0", 32, 22}, {7, "q5_1", 32, 24},
    {8, "q8_0", 32, 34}, {9, "q8_1", 32, 36}, {10, "q2_k", 256, 84}, {11, "q3_k", 256, 110}, {12, "q4_k", 256, 144},
    {13, "q5_k", 256, 176}, {14, "q6_k", 256, 210}, {15, "q8_k", 256, 292}, {16, "iq2_xxs", 256, 66},
    {17, "iq2_xs", 256, 74}, {18, "iq3_xxs", 256, 98}, {19, "iq1_s", 256, 50}, {20, "iq4_nl", 32, 18},
    {21, "iq3_s", 256, 110}, {22, "iq2_s", 256, 82}, {23, "iq4_xs", 256, 136}, {24, "i8", 1, 1}, {25, "i16", 1, 2},
    {26, "i32", 1, 4}, {27, "i64", 1, 8}, {28, "f64", 1, 8}, {29, "iq1_m", 256, 56}, {30, "bf16", 1, 2},
    {34, "tq1_0", 256, 54}, {35, "tq2_0", 256, 66}, {39, "mxfp4", 32, 17}, {40, "nvfp4", 64, 36}, {41, "q1_0", 128, 18},
    {42, "q2_0", 64, 18},
};

template <typename T>
T element(const std::string & bytes, std::uint64_t i) noexcept {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    return value;
}

}  // namespace

std::string_view name_of(GgufType type) noexcept {
    return k_types[static_cast<std::size_t>(type)].name;
}

std::uint32_t bytes_of(GgufType type) noexcept {
    return k_types[static_cast<std::size_t>(type)].bytes;
}

std::optional<std::int64_t> GgufValue::integer(std::uint64_t i) const noexcept {
    if (i >= count) {
        return {};
    }
    switch (type) {
        case GgufType::u8: return element<std::uint8_t>(bytes, i);
        case GgufType::i8: return element<std::int8_t>(bytes, i);
        case GgufType::u16: return element<std::uint16_t>(bytes, i);
        case GgufType::i16: return element<std::int16_t>(bytes, i);
        case GgufType::u32: return element<std::uint32_t>(bytes, i);
        case GgufType::i32: return element<std::int32_t>(bytes, i);
        case GgufType::i64: return element<std::int64_t>(bytes, i);
        case GgufType::u64: {
            const auto value = element<std::uint64_t>(bytes, i);
            return value <= INT64_MAX ? std::optional<std::int64_t>(static_cast<std::int64_t>(value)) : std::nullopt;
        }
        default: return {};
    }
}

std::optional<double> GgufValue::real(std::uint64_t i) const noexcept {
    if (i >= count) {
        return {};
    }
    if (type == GgufType::f32) {
        return static_cast<double>(element<float>(bytes, i));
    }
    return type == GgufType::f64 ? std::optional<double>(element<double>(bytes, i)) : std::nullopt;
}

std::optional<bool> GgufValue::boolean(std::uint64_t i) const noexcept {
    return i < count && type == GgufType::boolean ? std::optional<bool>(bytes[i] != 0) : std::nullopt;
}

std::optional<std::string_view> GgufValue::text(std::uint64_t i) const noexcept {
    if (i >= count || type != GgufType::text) {
        return {};
    }
    if (!is_array) {
        return bytes;
    }
    const std::size_t begin = i == 0 ? 0 : ends[i - 1];
    return std::string_view(bytes).substr(begin, ends[i] - begin);
}

std::string GgufValue::type_name() const {
    const std::string name{name_of(type)};
    return is_array ? "array of " + std::to_string(count) + " " + name : name;
}

std::string GgufValue::shown() const {
    if (is_array) {
        return type_name();
    }
    if (const auto value = text()) {
        return quoted(*value);
    }
    if (const auto value = boolean()) {
        return *value ? "true" : "false";
    }
    if (const auto value = integer()) {
        return std::to_string(*value);
    }
    if (type == GgufType::u64) {
        return std::to_string(element<std::uint64_t>(bytes, 0));
    }
    char number[32];
    std::snprintf(number, sizeof number, "%.7g", real().value_or(0));
    return number;
}

const TensorType * find_tensor_type(std::uint32_t id) noexcept {
    for (const TensorType & type : k_tensor_types) {
        if (type.id == id) {
            return &type;
        }
    }
    return nullptr;
}

std::string quoted(std::string_view text) {
    std::string out = "'";
    for (const char c : text.substr(0, 64)) {
        if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) {
            char escape[8];
            std::snprintf(escape, sizeof escape, "\\x%02x", static_cast<unsigned>(static_cast<unsigned char>(c)));
            out += escape;
        } else {
            out += c;
        }
    }
    return out + (text.size() > 64 ? "...'" : "'");
}

}  // namespace aner

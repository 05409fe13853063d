#include "gguf_header.hpp"

#include "gguf_reader.hpp"
#include "regular_file.hpp"

#include <new>

namespace aner {

namespace {

const GgufValue * scalar(const GgufValue * value, GgufType type) noexcept {
    return value != nullptr && value->is_scalar(type) ? value : nullptr;
}

}  // namespace

const GgufValue * GgufHeader::find(std::string_view key) const noexcept {
    const auto found = metadata.find(key);
    return found == metadata.end() ? nullptr : &found->second;
}

const GgufTensor * GgufHeader::find_tensor(std::string_view name) const noexcept {
    const auto found = tensor_index.find(name);
    return found == tensor_index.end() ? nullptr : &tensors[found->second];
}

std::optional<std::uint32_t> GgufHeader::u32(std::string_view key) const noexcept {
    const GgufValue * value = scalar(find(key), GgufType::u32);
    return value != nullptr ? std::optional(static_cast<std::uint32_t>(*value->integer())) : std::nullopt;
}

std::optional<float> GgufHeader::f32(std::string_view key) const noexcept {
    const GgufValue * value = scalar(find(key), GgufType::f32);
    return value != nullptr ? std::optional(static_cast<float>(*value->real())) : std::nullopt;
}

std::optional<bool> GgufHeader::boolean(std::string_view key) const noexcept {
    const GgufValue * value = scalar(find(key), GgufType::boolean);
    return value != nullptr ? value->boolean() : std::nullopt;
}

std::optional<std::string_view> GgufHeader::text(std::string_view key) const noexcept {
    const GgufValue * value = scalar(find(key), GgufType::text);
    return value != nullptr ? value->text() : std::nullopt;
}

std::string_view GgufHeader::architecture() const noexcept {
    return text("general.architecture").value_or(std::string_view{});
}

std::string GgufHeader::key(std::string_view suffix) const {
    return std::string(architecture()) + "." + std::string(suffix);
}

std::int64_t GgufHeader::number(std::string_view suffix, std::int64_t otherwise) const {
    const std::optional<std::uint32_t> value = u32(key(suffix));
    return value ? static_cast<std::int64_t>(*value) : otherwise;
}

std::string GgufHeader::shown(std::string_view key) const {
    const GgufValue * value = find(key);
    if (value == nullptr) {
        return std::string(key) + " is missing";
    }
    const std::string type = value->type_name();
    return std::string(key) + (value->is_array ? " is an " + type : " = " + value->shown() + " (" + type + ")");
}

Result<GgufHeader> read_gguf_header(const std::string & path) noexcept try {
    Result<RegularFile> file = RegularFile::open(path);
    if (file.failed()) {
        return file.error();
    }
    GgufHeader header;
    if (Error error = read_header(file.value(), header); error.failed()) {
        return error;
    }
    return header;
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

}  // namespace aner

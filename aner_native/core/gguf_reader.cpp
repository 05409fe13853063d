#include "gguf_reader.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace aner {

namespace {

constexpr std::uint64_t k_max_header_bytes = 256u << 20;  // the largest vocabularies take a tenth
constexpr std::uint64_t k_max_pairs = 1u << 16;
constexpr std::uint64_t k_max_tensors = 1u << 18;
constexpr std::uint64_t k_min_pair_bytes = 8 + 1 + 4 + 1;             // key of one letter, type, one byte
constexpr std::uint64_t k_min_tensor_bytes = 8 + 1 + 4 + 8 + 4 + 8;  // name of one letter, one dimension, type, offset
constexpr std::uint64_t k_max_key_bytes = 65535;
constexpr std::uint64_t k_max_name_bytes = 63;  // GGML_MAX_NAME - 1
constexpr std::uint32_t k_max_alignment = 1u << 20;
constexpr std::size_t k_window_bytes = 256u << 10;

struct Signature {
    std::string_view start;
    const char * what;
};

constexpr Signature k_foreign[] = {
    {"version https://git-lfs", "a Git LFS pointer, not the model it points to: fetch it with `git lfs pull`"},
    {"PK\x03\x04", "a ZIP archive or a PyTorch checkpoint"},
    {"lmgg", "a GGML file of an old format (before GGUF): convert it again"},
    {"fmgg", "a GGML file of an old format (before GGUF): convert it again"},
    {"tjgg", "a GGML file of an old format (before GGUF): convert it again"},
};

std::string what_starts_with(std::string_view start) {
    for (const Signature & signature : k_foreign) {
        if (start.substr(0, signature.start.size()) == signature.start) {
            return signature.what;
        }
    }
    const std::size_t first = start.find_first_not_of(" \t\r\n");
    if (first != std::string_view::npos && start[first] == '<') {
        return "an HTML or XML page, not a model: the download probably failed";
    }
    if (start.size() > 8 && start[8] == '{') {
        return "a safetensors file: convert it to GGUF";
    }
    return "not a GGUF file: it starts with " + quoted(start.substr(0, 4)) + " instead of 'GGUF'";
}

// Every method gives false after the first failure, whose error is kept.
class Reader {
public:
    explicit Reader(const RegularFile & file) noexcept : file_(file), limit_(std::min(file.size(), k_max_header_bytes)) {}

    Error read(GgufHeader & header) {
        header.path = file_.path();
        header.file_bytes = file_.size();
        (void) (start(header) && pairs(header) && alignment(header) && tensors(header) && layout(header));
        return std::move(error_);
    }

private:
    bool fail(const std::string & what) {
        if (!error_.failed()) {
            error_ = Error{ErrorCode::model_load, "'" + file_.path() + "' " + what};
        }
        return false;
    }

    [[nodiscard]] std::uint64_t left() const noexcept { return limit_ - offset_; }

    bool has(std::uint64_t n_bytes, std::string_view what) {
        if (n_bytes <= left()) {
            return true;
        }
        if (limit_ < file_.size()) {
            return fail("is damaged: " + std::string(what) + " would take its header beyond " +
                        std::to_string(k_max_header_bytes >> 20) + " MiB");
        }
        return fail("is cut short or damaged: " + std::string(what) + " cannot lie in the " + std::to_string(left()) +
                    " bytes that are left");
    }

    bool take(void * to, std::size_t n_bytes, const char * what) {
        if (!has(n_bytes, what)) {
            return false;
        }
        if (n_bytes > k_window_bytes) {
            error_ = file_.read_at(offset_, to, n_bytes);
        } else {
            if (offset_ < window_begin_ || offset_ + n_bytes > window_begin_ + window_.size()) {
                window_.resize(static_cast<std::size_t>(std::min<std::uint64_t>(k_window_bytes, left())));
                window_begin_ = offset_;
                error_ = file_.read_at(offset_, window_.data(), window_.size());
            }
            std::memcpy(to, window_.data() + (offset_ - window_begin_), n_bytes);
        }
        offset_ += n_bytes;
        return !error_.failed();
    }

    template <typename T>
    bool take(T & to, const char * what) {
        return take(&to, sizeof to, what);
    }

    bool append_text(std::string & to, std::uint64_t max_bytes, const char * what) {
        std::uint64_t n = 0;
        if (!take(n, what)) {
            return false;
        }
        if (n > max_bytes) {
            return fail("has " + std::string(what) + " of " + std::to_string(n) + " bytes: at most " +
                        std::to_string(max_bytes) + " are allowed");
        }
        if (!has(n, what)) {
            return false;
        }
        const std::size_t before = to.size();
        to.resize(before + static_cast<std::size_t>(n));
        return n == 0 || take(to.data() + before, static_cast<std::size_t>(n), what);
    }

    // Keys and tensor names. The engine compares them as C strings, so a NUL would make two of ours one of its.
    bool take_name(std::string & name, std::uint64_t max_bytes, const char * what) {
        if (!append_text(name, max_bytes, what)) {
            return false;
        }
        const bool printable =
            std::all_of(name.begin(), name.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x20 && c != 0x7f; });
        return (!name.empty() && printable) ||
               fail("has " + std::string(what) + " that is empty or unprintable: " + quoted(name));
    }

    bool start(GgufHeader & header) {
        if (file_.size() == 0) {
            return fail("is empty");
        }
        char first[64] = {};
        const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(sizeof first, file_.size()));
        error_ = file_.read_at(0, first, n);
        if (error_.failed()) {
            return false;
        }
        if (std::string_view(first, n).substr(0, 4) != "GGUF") {
            return fail("is " + what_starts_with(std::string_view(first, n)));
        }
        offset_ = 4;
        if (!take(header.version, "the version")) {
            return false;
        }
        if ((header.version & 0xffff) == 0 && header.version != 0) {
            return fail("is a big-endian GGUF file: only little-endian ones are supported");
        }
        if (header.version != 2 && header.version != 3) {
            return fail("has GGUF version " + std::to_string(header.version) + ": 2 and 3 are supported");
        }
        return take(n_tensors_, "the tensor count") && take(n_pairs_, "the metadata count") &&
               plausible(n_pairs_, k_max_pairs, k_min_pair_bytes, "metadata pairs") &&
               plausible(n_tensors_, k_max_tensors, k_min_tensor_bytes, "tensors");
    }

    bool plausible(std::uint64_t n, std::uint64_t most, std::uint64_t least_bytes, const char * what) {
        if (n > most) {
            return fail("claims " + std::to_string(n) + " " + what + ", more than " + std::to_string(most));
        }
        return has(n * least_bytes, std::to_string(n) + " " + what);
    }

    bool pairs(GgufHeader & header) {
        for (std::uint64_t i = 0; i < n_pairs_; ++i) {
            std::string key;
            GgufValue value;
            if (!take_name(key, k_max_key_bytes, "a key") || !take_value(key, value)) {
                return false;
            }
            if (const auto added = header.metadata.emplace(std::move(key), std::move(value)); !added.second) {
                return fail("has the key " + quoted(added.first->first) + " twice");
            }
        }
        return true;
    }

    bool take_type(const std::string & key, GgufType & type) {
        std::uint32_t id = 0;
        if (!take(id, "a value type")) {
            return false;
        }
        if (id >= k_n_gguf_types) {
            return fail("has a value of the unknown type " + std::to_string(id) + " under " + quoted(key));
        }
        type = static_cast<GgufType>(id);
        return true;
    }

    bool take_value(const std::string & key, GgufValue & value) {
        if (!take_type(key, value.type)) {
            return false;
        }
        value.is_array = value.type == GgufType::array;
        if (value.is_array) {
            if (!take_type(key, value.type) || !take(value.count, "an array length")) {
                return false;
            }
            if (value.type == GgufType::array) {
                return fail("has an array of arrays under " + quoted(key));
            }
        }
        return value.type == GgufType::text ? take_texts(key, value) : take_numbers(key, value);
    }

    bool has_elements(const std::string & key, const GgufValue & value, std::uint64_t least_bytes) {
        const bool fits = value.count <= left() / least_bytes;
        return fits || has(UINT64_MAX, "the value of " + quoted(key) + " (" + value.type_name() + ")");
    }

    bool take_texts(const std::string & key, GgufValue & value) {
        if (!value.is_array) {
            if (!append_text(value.bytes, k_max_header_bytes, "a string")) {
                return false;
            }
            return value.bytes.find('\0') == std::string::npos || fail("has a NUL byte in the value of " + quoted(key));
        }
        if (!has_elements(key, value, sizeof(std::uint64_t))) {  // a length each, at least
            return false;
        }
        value.ends.reserve(static_cast<std::size_t>(value.count));
        for (std::uint64_t i = 0; i < value.count; ++i) {
            if (!append_text(value.bytes, k_max_header_bytes, "a string of an array")) {
                return false;
            }
            value.ends.push_back(static_cast<std::uint32_t>(value.bytes.size()));  // below k_max_header_bytes
        }
        return true;
    }

    bool take_numbers(const std::string & key, GgufValue & value) {
        if (!has_elements(key, value, bytes_of(value.type))) {
            return false;
        }
        value.bytes.resize(static_cast<std::size_t>(value.count * bytes_of(value.type)));
        return value.bytes.empty() || take(value.bytes.data(), value.bytes.size(), "a value");
    }

    bool alignment(GgufHeader & header) {
        const GgufValue * value = header.find("general.alignment");
        if (value == nullptr) {
            return true;
        }
        const auto n = header.u32("general.alignment");
        if (!n || *n == 0 || *n > k_max_alignment || (*n & (*n - 1)) != 0) {
            return fail("has general.alignment = " + value->shown() + " (" + value->type_name() +
                        "): it must be a u32, a power of two, at most " + std::to_string(k_max_alignment));
        }
        header.alignment = *n;
        return true;
    }

    bool tensors(GgufHeader & header) {
        for (std::uint64_t i = 0; i < n_tensors_; ++i) {
            GgufTensor tensor;
            if (!take_name(tensor.name, k_max_name_bytes, "a tensor name") || !take_shape(tensor) ||
                !take(tensor.offset, "a tensor offset")) {
                return false;
            }
            if (!header.tensor_index.emplace(tensor.name, header.tensors.size()).second) {
                return fail("has the tensor " + quoted(tensor.name) + " twice");
            }
            header.tensors.push_back(std::move(tensor));
        }
        return true;
    }

    bool take_shape(GgufTensor & tensor) {
        const auto bad = [&](const std::string & what) {
            return fail("has the tensor " + quoted(tensor.name) + " with " + what);
        };
        std::uint32_t type = 0;
        if (!take(tensor.n_dims, "a dimension count")) {
            return false;
        }
        if (tensor.n_dims < 1 || tensor.n_dims > tensor.dims.size()) {
            return bad(std::to_string(tensor.n_dims) + " dimensions: 1 to 4 are possible");
        }
        // At most 8 bytes an element (f64, i64), so no product or padding below can overflow.
        constexpr std::int64_t most = INT64_MAX / 16;
        std::int64_t n_elements = 1;
        for (std::uint32_t i = 0; i < tensor.n_dims; ++i) {
            if (!take(tensor.dims[i], "a dimension")) {
                return false;
            }
            if (tensor.dims[i] < 1 || tensor.dims[i] > most / n_elements) {
                return bad("a dimension of " + std::to_string(tensor.dims[i]));
            }
            n_elements *= tensor.dims[i];
        }
        if (!take(type, "a tensor type")) {
            return false;
        }
        tensor.type = find_tensor_type(type);
        if (tensor.type == nullptr) {
            return bad("the unknown or removed type " + std::to_string(type));
        }
        if (tensor.dims[0] % tensor.type->block != 0) {
            return bad("rows of " + std::to_string(tensor.dims[0]) + " elements, which blocks of " +
                       std::to_string(tensor.type->block) + " (" + std::string(tensor.type->name) + ") do not fill");
        }
        tensor.bytes = static_cast<std::uint64_t>(n_elements) / tensor.type->block * tensor.type->bytes;
        return true;
    }

    // Tensors follow one another in order, each padded to the alignment: the format demands it, and so does the engine.
    bool layout(GgufHeader & header) {
        const auto padded = [&](std::uint64_t n) { return (n + header.alignment - 1) / header.alignment * header.alignment; };
        header.data_offset = header.tensors.empty() ? offset_ : padded(offset_);
        std::uint64_t next = 0;
        for (const GgufTensor & tensor : header.tensors) {
            if (tensor.offset != next) {
                return fail("has the tensor " + quoted(tensor.name) + " at offset " + std::to_string(tensor.offset) +
                            (tensor.offset < next ? ", over the one before it" : ", after a gap") + ": expected " +
                            std::to_string(next));
            }
            if (header.data_offset > header.file_bytes || next > header.file_bytes - header.data_offset ||
                tensor.bytes > header.file_bytes - header.data_offset - next) {
                return fail("is cut short: it has " + std::to_string(header.file_bytes) + " bytes, and the tensor " +
                            quoted(tensor.name) + " ends at byte " + std::to_string(header.data_offset + next + tensor.bytes));
            }
            next = padded(next + tensor.bytes);
        }
        return true;
    }

    const RegularFile & file_;
    std::uint64_t limit_;
    std::uint64_t offset_ = 0;
    std::uint64_t n_tensors_ = 0;
    std::uint64_t n_pairs_ = 0;
    std::vector<char> window_;
    std::uint64_t window_begin_ = 0;
    Error error_;
};

}  // namespace

Error read_header(const RegularFile & file, GgufHeader & header) {
    return Reader{file}.read(header);
}

}  // namespace aner

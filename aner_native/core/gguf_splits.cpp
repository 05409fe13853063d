#include "gguf_splits.hpp"

#include <cstdint>
#include <cstdio>
#include <new>
#include <optional>
#include <set>
#include <utility>

namespace aner {

namespace {

Error refused(const GgufHeader & header, const std::string & what) {
    return Error{ErrorCode::model_load, "'" + header.path + "' " + what};
}

std::string split_ending(std::uint32_t number, std::uint32_t count) {
    char ending[64];
    std::snprintf(ending, sizeof ending, "-%05u-of-%05u.gguf", number, count);
    return ending;
}

// What comes before the ending of split `number` (from 1); nothing when the name has not that ending.
std::optional<std::string> prefix_of(const std::string & path, std::uint32_t number, std::uint32_t count) {
    const std::string ending = split_ending(number, count);
    if (path.size() <= ending.size() || path.compare(path.size() - ending.size(), ending.size(), ending) != 0) {
        return {};
    }
    return path.substr(0, path.size() - ending.size());
}

// The engine reads the key of later splits with a getter that aborts on any other type.
Result<std::uint32_t> split_value(const GgufHeader & header, const char * key) {
    const GgufValue * value = header.find(key);
    if (value == nullptr || !value->is_scalar(GgufType::u16)) {
        return refused(header, "belongs to a split model, and " + header.shown(key) + ": it must be a u16");
    }
    return static_cast<std::uint32_t>(*value->integer());
}

Error check_split(const GgufHeader & header, std::uint32_t index, std::uint32_t count) {
    const Result<std::uint32_t> no = split_value(header, "split.no");
    const Result<std::uint32_t> of = split_value(header, "split.count");
    if (no.failed() || of.failed()) {
        return no.failed() ? no.error() : of.error();
    }
    if (no.value() != index || of.value() != count) {
        return refused(header, "says that it is split " + std::to_string(no.value() + 1) + " of " +
                                   std::to_string(of.value()) + ": by its name it is " + std::to_string(index + 1) + " of " +
                                   std::to_string(count));
    }
    return {};
}

Error check_tensors(const std::vector<GgufHeader> & splits) {
    std::set<std::string_view> names;
    for (const GgufHeader & split : splits) {
        for (const GgufTensor & tensor : split.tensors) {
            if (!names.insert(tensor.name).second) {
                return refused(split, "has the tensor " + quoted(tensor.name) + ", which an earlier split has too");
            }
        }
    }
    const GgufValue * n = splits[0].find("split.tensors.count");
    if (n == nullptr || !n->is_scalar(GgufType::i32) || *n->integer() != static_cast<std::int64_t>(names.size())) {
        return refused(splits[0], "belongs to a split model, and " + splits[0].shown("split.tensors.count") + ": it must be " +
                                      std::to_string(names.size()) + " (i32), the number of tensors in all splits");
    }
    return {};
}

Error not_the_first(const GgufHeader & header, std::uint32_t index, std::uint32_t count) {
    const std::optional<std::string> prefix = prefix_of(header.path, index + 1, count);
    return refused(header, "is split " + std::to_string(index + 1) + " of " + std::to_string(count) + ": load the first one" +
                               (prefix ? ", '" + *prefix + split_ending(1, count) + "'" : std::string{}));
}

Error read_others(std::vector<GgufHeader> & splits, std::uint32_t count) {
    const std::optional<std::string> prefix = prefix_of(splits[0].path, 1, count);
    if (!prefix) {
        return refused(splits[0], "is the first of " + std::to_string(count) + " splits, so its name must end in '" +
                                      split_ending(1, count) + "'");
    }
    for (std::uint32_t i = 1; i < count; ++i) {
        const std::string path = *prefix + split_ending(i + 1, count);
        Result<GgufHeader> split = read_gguf_header(path);
        if (split.failed() && split.error().code() == ErrorCode::model_not_found) {
            return refused(splits[0], "needs '" + path + "' beside it (split " + std::to_string(i + 1) + " of " +
                                          std::to_string(count) + "), which is missing");
        }
        if (split.failed()) {
            return split.error();
        }
        if (Error error = check_split(split.value(), i, count); error.failed()) {
            return error;
        }
        splits.push_back(split.take());
    }
    return check_tensors(splits);
}

}  // namespace

Result<std::vector<GgufHeader>> read_model_headers(const std::string & path) noexcept try {
    Result<GgufHeader> first = read_gguf_header(path);
    if (first.failed()) {
        return first.error();
    }
    std::vector<GgufHeader> splits;
    splits.push_back(first.take());
    if (splits[0].find("split.count") == nullptr && splits[0].find("split.no") == nullptr) {
        return splits;
    }
    const Result<std::uint32_t> no = split_value(splits[0], "split.no");
    const Result<std::uint32_t> count = split_value(splits[0], "split.count");
    if (no.failed() || count.failed()) {
        return no.failed() ? no.error() : count.error();
    }
    if (no.value() != 0) {
        return not_the_first(splits[0], no.value(), count.value());
    }
    if (count.value() > 1) {
        if (Error error = read_others(splits, count.value()); error.failed()) {
            return error;
        }
    }
    return splits;
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

}  // namespace aner

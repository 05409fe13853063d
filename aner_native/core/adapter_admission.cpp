#include "adapter_admission.hpp"

#include <cmath>
#include <new>

namespace aner {

namespace {

struct Pair {
    const GgufTensor * a = nullptr;
    const GgufTensor * b = nullptr;
};

Error refuse(const GgufHeader & header, const std::string & why) { return Error{ErrorCode::adapter, header.path + ": " + why}; }

std::string shape_of(const std::array<std::int64_t, 4> & dims) {
    return std::to_string(dims[0]) + " x " + std::to_string(dims[1]) + (dims[2] > 1 ? " x " + std::to_string(dims[2]) : "");
}

bool take_suffix(std::string & name, const std::string & suffix) {
    if (name.size() <= suffix.size() || name.compare(name.size() - suffix.size(), suffix.size(), suffix) != 0) {
        return false;
    }
    name.resize(name.size() - suffix.size());
    return true;
}

// The engine reads these three with getters that end the process on another type.
Error check_metadata(const GgufHeader & header, const ModelFacts & base) {
    for (const auto & [key, wanted] : {std::pair{"general.type", "adapter"}, std::pair{"adapter.type", "lora"}}) {
        const GgufValue * value = header.find(key);
        if (value == nullptr || header.text(key) != wanted) {
            return refuse(header, std::string("this is not a LoRA adapter: ") + key + " must be the string '" + wanted + "' and is " +
                                      (value == nullptr ? "missing" : header.text(key) ? "'" + std::string(*header.text(key)) + "'"
                                                                                       : value->type_name()));
        }
    }
    if (header.architecture() != base.architecture) {
        return refuse(header, "the adapter is for '" + std::string(header.architecture()) + "', the base model is '" +
                                  base.architecture + "'");
    }
    if (const GgufValue * alpha = header.find("adapter.lora.alpha"); alpha != nullptr) {
        const std::optional<float> number = header.f32("adapter.lora.alpha");
        if (!number.has_value() || !std::isfinite(*number)) {
            return refuse(header, "adapter.lora.alpha must be a finite 32-bit float and is " +
                                      (number.has_value() ? std::to_string(*number) : alpha->type_name()));
        }
    }
    if (header.find("adapter.alora.invocation_tokens") != nullptr) {
        return refuse(header, "activated adapters (aLoRA), which act after certain tokens only, are not supported");
    }
    return {};
}

Error check_pair(const GgufHeader & header, const std::string & name, const Pair & pair, const TensorShapes & shapes) {
    if (pair.a == nullptr || pair.b == nullptr) {
        return refuse(header, "'" + name + "' has only one of lora_a and lora_b");
    }
    const auto base = shapes.find(name);
    if (base == shapes.end()) {
        return refuse(header, "'" + name + "' does not exist in the base model: the adapter belongs to another one");
    }
    if (name == "token_embd.weight") {
        return refuse(header, "adapters of the token embedding are not supported");
    }
    const auto & a = pair.a->dims;
    const auto & b = pair.b->dims;
    const auto & w = base->second;
    const bool fits = a[0] == w[0] && b[1] == w[1] && a[1] == b[0] && a[2] == w[2] && b[2] == w[2] && a[3] == w[3] && b[3] == w[3];
    if (!fits || a[1] < 1) {
        return refuse(header, "'" + name + "' is " + shape_of(w) + " in the base model, the adapter's parts are " + shape_of(a) + " and " +
                                  shape_of(b) + ": it belongs to another base");
    }
    return {};
}

}  // namespace

TensorShapes shapes_of(const std::vector<GgufHeader> & splits) {
    TensorShapes shapes;
    for (const GgufHeader & header : splits) {
        for (const GgufTensor & tensor : header.tensors) {
            shapes.emplace(tensor.name, tensor.dims);
        }
    }
    return shapes;
}

Error admit_adapter(const GgufHeader & header, const ModelFacts & base, const TensorShapes & shapes) noexcept try {
    if (Error error = check_metadata(header, base); error.failed()) {
        return error;
    }
    std::unordered_map<std::string, Pair> pairs;
    for (const GgufTensor & tensor : header.tensors) {
        std::string name = tensor.name;
        if (take_suffix(name, ".lora_a")) {
            pairs[name].a = &tensor;
        } else if (take_suffix(name, ".lora_b")) {
            pairs[name].b = &tensor;
        } else {
            return refuse(header, "'" + tensor.name + "' is neither a lora_a nor a lora_b: the engine would not apply it");
        }
    }
    if (pairs.empty()) {
        return refuse(header, "the adapter has no tensors");
    }
    for (const auto & [name, pair] : pairs) {
        if (Error error = check_pair(header, name, pair, shapes); error.failed()) {
            return error;
        }
    }
    return {};
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

}  // namespace aner

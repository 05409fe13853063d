// The resident weights: immutable, shared by every lease, freed with the last of them.
#pragma once

#include "decoder.hpp"
#include "model_admission.hpp"
#include "model_facts.hpp"
#include "profile.hpp"
#include "vocabulary.hpp"

#include <memory>
#include <string>

namespace aner {

// Nanoseconds and bytes; -1 where not measured.
struct LoadSummary {
    std::int64_t digest_before_bytes = k_unmeasured;
    std::int64_t digest_after_bytes = k_unmeasured;
    Nanoseconds digest_before = k_unmeasured;
    Nanoseconds digest_after = k_unmeasured;
    Nanoseconds probe = k_unmeasured;   // child process, for architectures that no test of ours covers
    Nanoseconds engine = k_unmeasured;  // the engine's own load
    Nanoseconds total = k_unmeasured;
};

enum class MemoryKind : std::int32_t { attention, sliding_window, recurrent, hybrid };

struct ModelInfo {
    std::string path;
    std::string fingerprint;  // SHA-256 of the content, hex
    std::string description;  // the engine's one-line summary
    std::string device;       // what was resolved: "cpu", "cuda:0", ...
    MemoryKind memory_kind = MemoryKind::attention;
    ModelFacts facts;         // from the header
    LoadSettings settings;
    LoadSummary summary;
};

class Model {
public:
    virtual ~Model() = default;
    [[nodiscard]] virtual const ModelInfo & info() const noexcept = 0;
    [[nodiscard]] virtual const Vocabulary & vocabulary() const noexcept = 0;
    // Errors: configuration, unsupported_combination, out_of_memory, device_unavailable, engine, forked.
    virtual Result<std::unique_ptr<Decoder>> make_decoder(const ContextSettings & settings) const noexcept = 0;
    // Errors: adapter, model_not_found, out_of_memory, forked, cancelled.
    virtual Result<std::shared_ptr<const Adapter>> load_adapter(const std::string & path) const noexcept = 0;
};

using ModelHandle = std::shared_ptr<const Model>;

}  // namespace aner

// A model's files, checked and digested, before the engine sees them.
#pragma once

#include "adapter_admission.hpp"
#include "errors.hpp"
#include "fingerprint.hpp"
#include "model_admission.hpp"
#include "model_facts.hpp"

#include <atomic>
#include <string>
#include <vector>

namespace aner {

enum class LoadPhase : std::int32_t { header, digest, probe, engine, verify, context };

// Written by the thread that loads, read by the one that waits for it; `cancelled` the other way round.
struct LoadProgress {
    std::atomic<LoadPhase> phase{LoadPhase::header};
    std::atomic<float> fraction{0.0F};
    std::atomic<bool> cancelled{false};

    void enter(LoadPhase next) noexcept {
        fraction.store(0.0F);
        phase.store(next);
    }
};

struct AdmittedModel {
    std::vector<std::string> paths;  // every split, in order
    ModelFacts facts;
    TensorShapes shapes;             // for adapters
    Digest digest;                   // of the content, before the load
    bool covered = false;            // false: to be tried in a child process before the engine gets it here
};

// Reads and checks the headers; what was admitted has no digest. Errors: model_not_found, model_load, out_of_memory.
Result<AdmittedModel> admit_model_headers(const std::string & path, LoadProgress & progress) noexcept;

// Reads and checks the headers, then digests the content. `expected_sha256`: 64 hex digits, or empty for any content.
// Errors: model_not_found, model_load, fingerprint_mismatch, cancelled, out_of_memory.
Result<AdmittedModel> admit_model_file(const std::string & path, const std::string & expected_sha256,
                                       LoadProgress & progress) noexcept;

// The second digest, after the load. Errors: fingerprint_mismatch, and those of digesting.
Result<Digest> verify_content(const AdmittedModel & admitted, LoadProgress & progress) noexcept;

}  // namespace aner

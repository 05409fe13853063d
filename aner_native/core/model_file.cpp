#include "model_file.hpp"

#include "gguf_splits.hpp"

#include <algorithm>
#include <cctype>
#include <new>

namespace aner {

namespace {

Error check_expected(const std::string & expected) {
    const bool hex = expected.size() == 64 && std::all_of(expected.begin(), expected.end(), [](unsigned char c) {
        return std::isxdigit(c) != 0;
    });
    if (expected.empty() || hex) {
        return {};
    }
    return Error{ErrorCode::configuration, "expected_sha256 must be 64 hexadecimal digits, it is " + quoted(expected)};
}

std::string lower(std::string text) {
    std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return text;
}

}  // namespace

Result<AdmittedModel> admit_model_headers(const std::string & path, LoadProgress & progress) noexcept try {
    progress.enter(LoadPhase::header);
    Result<std::vector<GgufHeader>> headers = read_model_headers(path);
    if (headers.failed()) {
        return headers.error();
    }
    if (Error error = admit_model(headers.value()); error.failed()) {
        return error;
    }
    Result<ModelFacts> facts = facts_of(headers.value());
    if (facts.failed()) {
        return facts.error();
    }
    AdmittedModel admitted;
    admitted.facts = facts.take();
    admitted.covered = is_covered_model(headers.value());
    admitted.shapes = shapes_of(headers.value());
    for (const GgufHeader & header : headers.value()) {
        admitted.paths.push_back(header.path);
    }
    return admitted;
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

Result<AdmittedModel> admit_model_file(const std::string & path, const std::string & expected_sha256,
                                       LoadProgress & progress) noexcept try {
    if (Error error = check_expected(expected_sha256); error.failed()) {
        return error;
    }
    AdmittedModel admitted;
    if (Error error = admit_model_headers(path, progress).into(admitted); error.failed()) {
        return error;
    }
    progress.enter(LoadPhase::digest);
    Result<Digest> digest = digest_files(admitted.paths, &progress.fraction, &progress.cancelled);
    if (digest.failed()) {
        return digest.error();
    }
    admitted.digest = digest.take();
    if (!expected_sha256.empty() && lower(expected_sha256) != admitted.digest.hex) {
        return Error{ErrorCode::fingerprint_mismatch, path + " has SHA-256 " + admitted.digest.hex + ", expected_sha256 is " +
                                                          lower(expected_sha256) + ": this is other content, it was not loaded"};
    }
    return admitted;
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

Result<Digest> verify_content(const AdmittedModel & admitted, LoadProgress & progress) noexcept try {
    progress.enter(LoadPhase::verify);
    Result<Digest> digest = digest_files(admitted.paths, &progress.fraction, &progress.cancelled);
    if (!digest.failed() && digest.value().hex != admitted.digest.hex) {
        return Error{ErrorCode::fingerprint_mismatch,
                     admitted.paths.front() + " changed while it was loaded: SHA-256 was " + admitted.digest.hex +
                         " before and is " + digest.value().hex + " after. Nothing was kept; load it again when it is at rest"};
    }
    return digest;
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

}  // namespace aner

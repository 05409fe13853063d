#include "check.hpp"
#include "folder.hpp"
#include "gguf_bytes.hpp"
#include "model_file.hpp"

#include <algorithm>
#include <cctype>

using namespace aner;
using aner::testing::Folder;
using aner::testing::GgufBytes;
using aner::testing::tiny_llama;

namespace {

Result<AdmittedModel> admit(const std::string & path, const std::string & expected = {}) {
    LoadProgress progress;
    return admit_model_file(path, expected, progress);
}

AdmittedModel admitted(const std::string & path) {
    Result<AdmittedModel> model = admit(path);
    CHECK_EQUAL(model.error().message(), "");
    return model.take();
}

std::string sha256_of(std::string_view bytes) {
    Sha256 hash;
    hash.update(bytes);
    return hash.hex();
}

std::string upper(std::string text) {
    std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
    return text;
}

}  // namespace

ANER_CASE("L5 L6", an_admitted_model_has_its_facts_and_the_digest_of_its_whole_content) {
    const Folder folder;
    const std::string bytes = tiny_llama().bytes();
    const std::string path = folder.write("tiny.gguf", bytes);
    const AdmittedModel model = admitted(path);
    CHECK(model.paths == std::vector<std::string>{path});
    CHECK_EQUAL(model.facts.architecture, "llama");
    CHECK_EQUAL(model.facts.n_vocab, 12);
    CHECK_EQUAL(model.digest.hex, sha256_of(bytes));
    CHECK_EQUAL(model.digest.bytes, static_cast<std::int64_t>(bytes.size()));
    CHECK(model.covered);
    CHECK(!admitted(folder.write("moe.gguf", tiny_llama().number("llama.expert_count", 4).number("llama.expert_used_count", 2)
                                                  .bytes())).covered);
}

ANER_CASE("L5", other_content_than_expected_is_refused_with_both_digests) {
    const Folder folder;
    const std::string bytes = tiny_llama().bytes();
    const std::string path = folder.write("tiny.gguf", bytes);
    CHECK(!admit(path, sha256_of(bytes)).failed());
    CHECK(!admit(path, upper(sha256_of(bytes))).failed());
    const std::string other = sha256_of("other");
    const Error error = admit(path, other).error();
    CHECK(error.code() == ErrorCode::fingerprint_mismatch);
    CHECK(error.message().find(other) != std::string::npos && error.message().find(sha256_of(bytes)) != std::string::npos);
}

ANER_CASE("L5", an_expected_digest_that_is_none_is_refused_before_the_file_is_looked_at) {
    for (const std::string & expected : {std::string("abc"), std::string(63, 'a'), std::string(65, 'a'), std::string(64, 'g'),
                                         " " + std::string(63, 'a'), std::string(100000, 'x')}) {
        const Error error = admit("/no/such/file", expected).error();
        CHECK(error.code() == ErrorCode::configuration);
        CHECK(error.message().size() < 200);
    }
}

ANER_CASE("L9", a_missing_a_foreign_and_a_damaged_file_are_told_apart) {
    const Folder folder;
    CHECK(admit(folder.file("none.gguf")).error().code() == ErrorCode::model_not_found);
    CHECK(admit(folder.write("page.gguf", "<!DOCTYPE html><html></html>")).error().code() == ErrorCode::model_load);
    const std::string bytes = tiny_llama().bytes();
    CHECK(admit(folder.write("cut.gguf", std::string_view(bytes).substr(0, bytes.size() / 2))).error().code() ==
          ErrorCode::model_load);
    CHECK(admit(folder.write("encoder.gguf", tiny_llama().text("general.architecture", "bert").bytes())).error().code() ==
          ErrorCode::model_load);
}

ANER_CASE("L5", content_that_changed_during_the_load_is_a_fingerprint_mismatch) {
    const Folder folder;
    std::string bytes = tiny_llama().bytes();
    const std::string path = folder.write("tiny.gguf", bytes);
    const AdmittedModel model = admitted(path);
    LoadProgress progress;
    Result<Digest> same = verify_content(model, progress);
    CHECK_EQUAL(same.error().message(), "");
    CHECK_EQUAL(same.value().hex, model.digest.hex);
    CHECK(progress.phase.load() == LoadPhase::verify);
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    (void) folder.write("tiny.gguf", bytes);
    const Error error = verify_content(model, progress).error();
    CHECK(error.code() == ErrorCode::fingerprint_mismatch);
    CHECK(error.message().find(sha256_of(bytes)) != std::string::npos);
    CHECK(error.message().find(model.digest.hex) != std::string::npos);
}

ANER_CASE("L5", every_split_is_part_of_the_digest_in_its_order) {
    const Folder folder;
    GgufBytes first = tiny_llama();
    first.set("split.no", GgufBytes::u16, aner::testing::raw<std::uint16_t>(0));
    first.set("split.count", GgufBytes::u16, aner::testing::raw<std::uint16_t>(2));
    first.set("split.tensors.count", GgufBytes::i32, aner::testing::raw<std::int32_t>(12));
    GgufBytes second;
    second.set("split.no", GgufBytes::u16, aner::testing::raw<std::uint16_t>(1));
    second.set("split.count", GgufBytes::u16, aner::testing::raw<std::uint16_t>(2));
    second.floats("output.weight", {8, 12});
    const std::string a = folder.write("m-00001-of-00002.gguf", first.bytes());
    const std::string b = folder.write("m-00002-of-00002.gguf", second.bytes());
    const AdmittedModel model = admitted(a);
    CHECK(model.paths == (std::vector<std::string>{a, b}));
    CHECK_EQUAL(model.digest.hex, sha256_of(first.bytes() + second.bytes()));
}

ANER_CASE("L5", a_cancelled_load_ends_in_either_digest_and_progress_reaches_the_end_of_each) {
    const Folder folder;
    const std::string path = folder.write("tiny.gguf", tiny_llama().bytes());
    LoadProgress progress;
    Result<AdmittedModel> model = admit_model_file(path, {}, progress);
    CHECK(!model.failed());
    CHECK(progress.phase.load() == LoadPhase::digest);
    CHECK_EQUAL(progress.fraction.load(), 1.0F);
    progress.cancelled.store(true);
    CHECK(verify_content(model.value(), progress).error().code() == ErrorCode::cancelled);
    LoadProgress cancelled;
    cancelled.cancelled.store(true);
    CHECK(admit_model_file(path, {}, cancelled).error().code() == ErrorCode::cancelled);
}

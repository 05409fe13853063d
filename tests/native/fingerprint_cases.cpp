#include "check.hpp"
#include "fingerprint.hpp"
#include "folder.hpp"

#include <utility>

using namespace aner;
using aner::testing::Folder;

namespace {

std::string digest(std::string_view message, bool use_cpu_instructions) {
    Sha256 sha{use_cpu_instructions};
    sha.update(message);
    return sha.hex();
}

// The examples of FIPS 180-2, and the empty message.
const std::pair<std::string, const char *> k_examples[] = {
    {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
    {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
    {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
     "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu",
     "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
    {std::string(1000000, 'a'), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
};

std::string sequence(std::size_t n) {
    std::string bytes;
    for (std::size_t i = 0; i < n; ++i) {
        bytes += static_cast<char>(i * 167 + i / 256);
    }
    return bytes;
}

}  // namespace

ANER_CASE("L6", sha256_gives_the_published_digests_with_and_without_cpu_instructions) {
    for (const auto & [message, expected] : k_examples) {
        CHECK_EQUAL(digest(message, false), expected);
        CHECK_EQUAL(digest(message, true), expected);
    }
}

ANER_CASE("L6", sha256_does_not_depend_on_how_a_message_is_cut_nor_on_the_code_that_runs) {
    for (std::size_t n = 0; n < 300; ++n) {
        const std::string message = sequence(n);
        const std::string expected = digest(message, false);
        CHECK_EQUAL(digest(message, true), expected);
        for (const std::size_t step : {std::size_t{1}, std::size_t{7}, std::size_t{63}, std::size_t{64}, std::size_t{65}}) {
            Sha256 sha;
            for (std::size_t i = 0; i < n; i += step) {
                sha.update(std::string_view(message).substr(i, step));
                CHECK_EQUAL(sha.hex().size(), 64U);  // looking on the way changes nothing
            }
            CHECK_EQUAL(sha.hex(), expected);
        }
    }
}

ANER_CASE("L5 L6", several_files_have_the_digest_of_their_concatenation) {
    const Folder folder;
    const std::string whole = sequence(3000000);
    const std::string a = folder.write("a", whole.substr(0, 1234567));
    const std::string b = folder.write("b", whole.substr(1234567));
    std::atomic<float> fraction{0};
    const Result<Digest> both = digest_files({a, b}, &fraction, nullptr);
    CHECK_EQUAL(both.value().hex, digest(whole, false));
    CHECK_EQUAL(both.value().bytes, 3000000);
    CHECK(both.value().duration > 0);
    CHECK_EQUAL(fraction.load(), 1.0F);
    CHECK(digest_files({b, a}, nullptr, nullptr).value().hex != both.value().hex);
    CHECK_EQUAL(digest_files({folder.write("c", "")}, nullptr, nullptr).value().hex, k_examples[0].second);
}

ANER_CASE("L5", a_digest_can_be_cancelled_and_tells_what_it_cannot_read) {
    const Folder folder;
    const std::atomic<bool> cancelled{true};
    const std::string file = folder.write("a", "x");
    CHECK(digest_files({file}, nullptr, &cancelled).error().code() == ErrorCode::cancelled);
    CHECK(digest_files({file, folder.file("missing")}, nullptr, nullptr).error().code() == ErrorCode::model_not_found);
    CHECK(digest_files({file, "/dev/zero"}, nullptr, nullptr).error().code() == ErrorCode::model_load);
}

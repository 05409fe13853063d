#include "check.hpp"
#include "folder.hpp"
#include "gguf_bytes.hpp"
#include "gguf_splits.hpp"
#include "model_admission.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

using namespace aner;
using aner::testing::Folder;
using aner::testing::GgufBytes;
using aner::testing::raw;
using aner::testing::sized;
using aner::testing::tiny_llama;

namespace {

// The message of a file that must be refused as damaged.
std::string refusal(const std::string & content) {
    const Folder folder;
    const Result<GgufHeader> header = read_gguf_header(folder.write("model.gguf", content));
    CHECK(header.failed());
    CHECK(header.error().code() == ErrorCode::model_load);
    return header.error().message();
}

bool says(const std::string & message, std::string_view part) {
    return message.find(part) != std::string::npos;
}

void check_refused(const GgufBytes & gguf, std::string_view part) {
    const std::string message = refusal(gguf.bytes());
    CHECK_EQUAL(says(message, part) ? "" : message, "");
}

std::string with(std::string bytes, std::size_t at, const std::string & patch) {
    return bytes.replace(at, patch.size(), patch);
}

std::string split(std::uint16_t no, std::uint16_t count, std::int32_t n_tensors, const char * tensor) {
    GgufBytes gguf;
    gguf.set("split.no", GgufBytes::u16, raw(no)).set("split.count", GgufBytes::u16, raw(count));
    gguf.set("split.tensors.count", GgufBytes::i32, raw(n_tensors)).floats(tensor, {4});
    return gguf.bytes();
}

}  // namespace

ANER_CASE("L9", a_header_gives_back_every_value_that_was_written) {
    GgufBytes gguf;
    gguf.add("a.u8", GgufBytes::u8, raw<std::uint8_t>(250)).add("a.i8", GgufBytes::i8, raw<std::int8_t>(-3));
    gguf.add("a.u16", GgufBytes::u16, raw<std::uint16_t>(65000)).add("a.i16", GgufBytes::i16, raw<std::int16_t>(-300));
    gguf.add("a.u32", GgufBytes::u32, raw<std::uint32_t>(4000000000U)).add("a.i32", GgufBytes::i32, raw<std::int32_t>(-70000));
    gguf.add("a.u64", GgufBytes::u64, raw<std::uint64_t>(1ULL << 63)).add("a.i64", GgufBytes::i64, raw<std::int64_t>(-5));
    gguf.add("a.f32", GgufBytes::f32, raw(1.5F)).add("a.f64", GgufBytes::f64, raw(-2.25));
    gguf.add("a.bool", GgufBytes::boolean, raw<std::uint8_t>(1)).text("a.str", "caf\xc3\xa9");
    gguf.array("a.texts", GgufBytes::str, {sized("x"), sized(""), sized(std::string("y\0z", 3))});
    gguf.array("a.numbers", GgufBytes::i16, {raw<std::int16_t>(7), raw<std::int16_t>(-7)}).array("a.none", GgufBytes::f32, {});
    gguf.tensor("one", {64, 3}, 8, 204).floats("two", {2, 2, 2, 2});
    const Folder folder;
    const Result<GgufHeader> read = read_gguf_header(folder.write("all.gguf", gguf.bytes()));
    CHECK_EQUAL(read.error().message(), "");
    const GgufHeader & header = read.value();

    CHECK(header.find("a.u8")->integer() == 250);
    CHECK(header.find("a.i8")->integer() == -3);
    CHECK(header.find("a.u16")->integer() == 65000);
    CHECK(header.find("a.i16")->integer() == -300);
    CHECK(header.u32("a.u32") == 4000000000U);
    CHECK(header.find("a.i32")->integer() == -70000);
    CHECK(!header.find("a.u64")->integer());
    CHECK_EQUAL(header.find("a.u64")->shown(), "9223372036854775808");
    CHECK(header.find("a.i64")->integer() == -5);
    CHECK(header.f32("a.f32") == 1.5F);
    CHECK(header.find("a.f64")->real() == -2.25);
    CHECK(header.boolean("a.bool") == true);
    CHECK(header.text("a.str") == "caf\xc3\xa9");
    const GgufValue * texts = header.find("a.texts");
    CHECK(texts->count == 3 && texts->text(0) == "x" && texts->text(1) == "" && texts->text(2) == std::string_view("y\0z", 3));
    CHECK(!texts->text(3));
    CHECK(header.find("a.numbers")->integer(1) == -7);
    CHECK(header.find("a.none")->count == 0 && !header.find("a.none")->real());
    CHECK(!header.u32("a.i32") && !header.text("a.u8") && !header.u32("a.absent"));

    CHECK_EQUAL(header.version, 3U);
    CHECK_EQUAL(header.tensors.size(), 2U);
    const GgufTensor * one = header.find_tensor("one");
    CHECK(one->dims == (std::array<std::int64_t, 4>{64, 3, 1, 1}) && one->type->name == "q8_0" && one->bytes == 204);
    CHECK_EQUAL(header.find_tensor("two")->offset, 224U);
    CHECK_EQUAL(header.data_offset, (gguf.header().size() + 31) / 32 * 32);
    CHECK_EQUAL(header.data_offset + 224 + 64, header.file_bytes);
}

ANER_CASE("L9", a_file_cut_anywhere_is_refused) {
    const Folder folder;
    const std::string whole = tiny_llama().bytes();
    CHECK(!read_gguf_header(folder.write("whole.gguf", whole)).failed());
    for (std::size_t n = 0; n < whole.size(); ++n) {
        const Result<GgufHeader> header = read_gguf_header(folder.write("cut.gguf", std::string_view(whole).substr(0, n)));
        CHECK(header.failed() && header.error().code() == ErrorCode::model_load);
    }
}

ANER_CASE("L9", a_flipped_byte_anywhere_in_the_header_never_ends_the_process) {
    const Folder folder;
    const GgufBytes gguf = tiny_llama();
    const std::string whole = gguf.bytes();
    const std::size_t n_header = gguf.header().size();
    std::size_t n_refused = 0;
    for (std::size_t i = 0; i < n_header; ++i) {
        for (const int flip : {0x01, 0x10, 0x80, 0xff}) {
            std::string damaged = whole;
            damaged[i] = static_cast<char>(damaged[i] ^ flip);
            const Result<std::vector<GgufHeader>> headers = read_model_headers(folder.write("flipped.gguf", damaged));
            const Error error = headers.failed() ? headers.error() : admit_model(headers.value());
            CHECK(!error.failed() || error.code() == ErrorCode::model_load);
            n_refused += error.failed() ? 1 : 0;
            if (!error.failed()) {
                CHECK(!facts_of(headers.value()).failed());
            }
        }
    }
    CHECK(n_refused > n_header);  // many a flip only changes a name or a token, and is none of our business
}

ANER_CASE("L9", claimed_sizes_beyond_the_file_are_refused_before_memory_is_taken) {
    const std::string whole = tiny_llama().bytes();
    for (const std::uint64_t huge : {std::uint64_t{1} << 20, std::uint64_t{1} << 40, std::uint64_t{1} << 61, UINT64_MAX}) {
        CHECK(says(refusal(with(whole, 8, raw(huge))), "tensors"));
        CHECK(says(refusal(with(whole, 16, raw(huge))), "metadata"));
        for (const std::uint32_t type : {0U, 4U, 8U, 10U}) {
            GgufBytes gguf;
            gguf.add("a", GgufBytes::arr, raw(type) + raw(huge));
            check_refused(gguf, "cannot lie");
        }
        GgufBytes gguf;
        gguf.add("a", GgufBytes::str, raw(huge));
        CHECK(says(refusal(gguf.bytes()), "bytes"));
        gguf.set("a", GgufBytes::u8, "x").tensor("t", {static_cast<std::int64_t>(huge / 2), 3}, 0, 4);
        CHECK(refusal(gguf.bytes()).size() > 20);
    }
    const Folder folder;  // a file that is huge, and empty: its size vouches for nothing
    const std::string sparse = folder.write("sparse.gguf", "GGUF" + raw<std::uint32_t>(3) + raw<std::uint64_t>(0) +
                                                               raw<std::uint64_t>(1) + sized("a") + raw<std::uint32_t>(8) +
                                                               raw(std::uint64_t{1} << 38));
    std::filesystem::resize_file(sparse, std::uintmax_t{1} << 40);
    CHECK(says(read_gguf_header(sparse).error().message(), "at most"));
}

ANER_CASE("L9", damage_in_the_header_is_named) {
    GgufBytes base;
    base.number("a", 1).floats("t", {4}).floats("u", {4});
    check_refused(GgufBytes(base).add("a", GgufBytes::u8, "x"), "the key 'a' twice");
    check_refused(GgufBytes(base).add("", GgufBytes::u8, "x"), "a key that is empty");
    check_refused(GgufBytes(base).add(std::string("b\0", 2), GgufBytes::u8, "x"), "unprintable: 'b\\x00'");
    check_refused(GgufBytes(base).add(std::string(70000, 'k'), GgufBytes::u8, "x"), "a key of 70000 bytes");
    check_refused(GgufBytes(base).add("b", static_cast<GgufBytes::Type>(13), "x"), "unknown type 13");
    check_refused(GgufBytes(base).add("b", GgufBytes::arr, raw<std::uint32_t>(9) + raw<std::uint64_t>(0)), "array of arrays");
    check_refused(GgufBytes(base).text("b", std::string_view("x\0y", 3)), "a NUL byte in the value of 'b'");
    check_refused(GgufBytes(base).number("general.alignment", 24), "a power of two");
    check_refused(GgufBytes(base).text("general.alignment", "32"), "'32' (str)");
    check_refused(GgufBytes(base).floats("t", {4}), "the tensor 't' twice");
    check_refused(GgufBytes(base).floats(std::string(64, 'n'), {4}), "a tensor name of 64 bytes");
    check_refused(GgufBytes(base).floats("v", {}), "0 dimensions");
    check_refused(GgufBytes(base).tensor("v", {1, 1, 1, 1, 1}, 0, 4), "5 dimensions");
    check_refused(GgufBytes(base).tensor("v", {0}, 0, 4), "a dimension of 0");
    check_refused(GgufBytes(base).tensor("v", {-1}, 0, 4), "a dimension of -1");
    check_refused(GgufBytes(base).tensor("v", {1LL << 31, 1LL << 31, 1LL << 31}, 0, 4), "a dimension of");
    check_refused(GgufBytes(base).tensor("v", {4}, 5, 4), "removed type 5");
    check_refused(GgufBytes(base).tensor("v", {4}, 43, 4), "removed type 43");
    check_refused(GgufBytes(base).tensor("v", {33}, 8, 68), "blocks of 32 (q8_0)");
    check_refused(GgufBytes(base).tensor("v", {1 << 20}, 0, 4), "cut short");
    check_refused(GgufBytes(base).shift(1, -32), "over the one before it");
    check_refused(GgufBytes(base).shift(1, 32), "after a gap");
    const std::string bytes = base.bytes();
    CHECK(says(refusal(with(bytes, 4, raw<std::uint32_t>(1))), "version 1"));
    CHECK(says(refusal(with(bytes, 4, raw<std::uint32_t>(3U << 24))), "big-endian"));
}

ANER_CASE("L9", what_is_no_gguf_file_is_called_what_it_is) {
    CHECK(says(refusal(""), "is empty"));
    CHECK(says(refusal("\n <!DOCTYPE html>"), "HTML"));
    CHECK(says(refusal("version https://git-lfs.github.com/spec/v1\n"), "git lfs pull"));
    CHECK(says(refusal("PK\x03\x04 and so on"), "ZIP"));
    CHECK(says(refusal("tjgg and so on"), "before GGUF"));
    CHECK(says(refusal(std::string("\x50\0\0\0\0\0\0\0{\"a\"", 12)), "safetensors"));
    CHECK(says(refusal("hello"), "'hell' instead of 'GGUF'"));
}

ANER_CASE("L4 L9", what_is_no_file_is_refused_at_once) {
    const Folder folder;
    CHECK(read_gguf_header(folder.file("missing")).error().code() == ErrorCode::model_not_found);
    CHECK(read_gguf_header("").error().code() == ErrorCode::model_not_found);
    CHECK(read_gguf_header("https://example.org/model.gguf").error().code() == ErrorCode::model_not_found);
    CHECK(says(read_gguf_header(folder.file("")).error().message(), "is a directory"));
    CHECK(says(read_gguf_header("/dev/zero").error().message(), "is a device"));
    CHECK(::mkfifo(folder.file("pipe").c_str(), 0600) == 0);
    CHECK(says(read_gguf_header(folder.file("pipe")).error().message(), "is a pipe"));
    const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    folder.file("socket").copy(address.sun_path, sizeof address.sun_path - 1);
    CHECK(::bind(fd, reinterpret_cast<const sockaddr *>(&address), sizeof address) == 0);
    CHECK(says(read_gguf_header(folder.file("socket")).error().message(), "is a socket"));
    ::close(fd);
}

ANER_CASE("L5 L9", a_split_model_is_read_from_its_first_file_in_order) {
    const Folder folder;
    const std::string first = folder.write("m-00001-of-00003.gguf", split(0, 3, 3, "a"));
    CHECK(says(read_model_headers(first).error().message(), "m-00002-of-00003.gguf' beside it (split 2 of 3)"));
    const std::string second = folder.write("m-00002-of-00003.gguf", split(1, 3, 3, "b"));
    folder.write("m-00003-of-00003.gguf", split(2, 3, 3, "c"));
    const Result<std::vector<GgufHeader>> splits = read_model_headers(first);
    CHECK_EQUAL(splits.error().message(), "");
    CHECK_EQUAL(splits.value().size(), 3U);
    CHECK_EQUAL(splits.value()[1].path, second);
    CHECK(splits.value()[2].find_tensor("c") != nullptr);

    CHECK(says(read_model_headers(second).error().message(), "is split 2 of 3: load the first one, '" + first));
    folder.write("m-00003-of-00003.gguf", split(1, 3, 3, "c"));
    CHECK(says(read_model_headers(first).error().message(), "it is split 2 of 3: by its name it is 3 of 3"));
    folder.write("m-00003-of-00003.gguf", split(2, 3, 3, "a"));
    CHECK(says(read_model_headers(first).error().message(), "'a', which an earlier split has too"));
    folder.write("m-00003-of-00003.gguf", GgufBytes().number("split.no", 2).bytes());
    CHECK(says(read_model_headers(first).error().message(), "split.no = 2 (u32): it must be a u16"));
    folder.write("m-00003-of-00003.gguf", "GGUF");
    CHECK(says(read_model_headers(first).error().message(), "m-00003-of-00003.gguf' is cut short"));
    CHECK(says(read_model_headers(folder.write("other.gguf", split(0, 3, 3, "a"))).error().message(), "must end in"));
    CHECK_EQUAL(read_model_headers(folder.write("alone.gguf", split(0, 1, 1, "a"))).value().size(), 1U);
}

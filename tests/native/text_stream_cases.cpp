#include "check.hpp"
#include "text_oracle.hpp"
#include "text_stream.hpp"

using namespace aner;
using namespace std::string_view_literals;
using aner::testing::cut_at_stop;
using aner::testing::n_splits;
using aner::testing::pieces_of;

namespace {

using Stops = std::vector<std::string>;

struct Sample {
    std::string_view bytes;
    std::string_view text;
};

// The table and the digest are the output of `python tests/native/utf8_table.py`.
constexpr Sample k_samples[] = {
    {"A"sv, "A"sv},
    {"A\303\251B"sv, "A\303\251B"sv},
    {"\342\202\254"sv, "\342\202\254"sv},
    {"\360\237\230\200"sv, "\360\237\230\200"sv},
    {"\357\273\277A"sv, "\357\273\277A"sv},
    {"\000A"sv, "\000A"sv},
    {"\200"sv, "\357\277\275"sv},
    {"\277A"sv, "\357\277\275A"sv},
    {"\300\257"sv, "\357\277\275\357\277\275"sv},
    {"\301\277"sv, "\357\277\275\357\277\275"sv},
    {"\302"sv, "\357\277\275"sv},
    {"\302A"sv, "\357\277\275A"sv},
    {"\303\303\251"sv, "\357\277\275\303\251"sv},
    {"\340"sv, "\357\277\275"sv},
    {"\340\200"sv, "\357\277\275\357\277\275"sv},
    {"\340\200\200"sv, "\357\277\275\357\277\275\357\277\275"sv},
    {"\340\240"sv, "\357\277\275"sv},
    {"\340\240A"sv, "\357\277\275A"sv},
    {"\340\240\200"sv, "\340\240\200"sv},
    {"\355\237\277"sv, "\355\237\277"sv},
    {"\355\240\200"sv, "\357\277\275\357\277\275\357\277\275"sv},
    {"\355\277\277"sv, "\357\277\275\357\277\275\357\277\275"sv},
    {"\356\200\200"sv, "\356\200\200"sv},
    {"\342\202"sv, "\357\277\275"sv},
    {"\342\202A"sv, "\357\277\275A"sv},
    {"\342\342\202\254"sv, "\357\277\275\342\202\254"sv},
    {"\357\277\275"sv, "\357\277\275"sv},
    {"\357\277\277"sv, "\357\277\277"sv},
    {"\360"sv, "\357\277\275"sv},
    {"\360\217\200\200"sv, "\357\277\275\357\277\275\357\277\275\357\277\275"sv},
    {"\360\220\200\200"sv, "\360\220\200\200"sv},
    {"\360\237"sv, "\357\277\275"sv},
    {"\360\237\230"sv, "\357\277\275"sv},
    {"\360\237\230A"sv, "\357\277\275A"sv},
    {"\360\237\360\237\230\200"sv, "\357\277\275\360\237\230\200"sv},
    {"\360\200\200\200"sv, "\357\277\275\357\277\275\357\277\275\357\277\275"sv},
    {"\364\217\277\277"sv, "\364\217\277\277"sv},
    {"\364\220\200\200"sv, "\357\277\275\357\277\275\357\277\275\357\277\275"sv},
    {"\365\200\200\200"sv, "\357\277\275\357\277\275\357\277\275\357\277\275"sv},
    {"\376"sv, "\357\277\275"sv},
    {"\377A\377"sv, "\357\277\275A\357\277\275"sv},
    {"\370\200\200\200\200A"sv, "\357\277\275\357\277\275\357\277\275\357\277\275\357\277\275A"sv},
    {"\346\255"sv, "\357\277\275"sv},
    {"A\360\237\230\200\303\251\342\202\254B"sv, "A\360\237\230\200\303\251\342\202\254B"sv},
    {"\343\201\223\343\202\223\343\201\253"sv, "\343\201\223\343\202\223\343\201\253"sv},
    {"a\342\202\360\237\230\303b"sv, "a\357\277\275\357\277\275\357\277\275b"sv},
    {"\360\237\230\200A\360\237\230"sv, "\360\237\230\200A\357\277\275"sv},
    {"\303\251\314\201"sv, "\303\251\314\201"sv},
};
constexpr std::uint64_t k_digest = 0xBB69A19789CBE593U;

// A byte of each kind that a decoder tells apart, and the edges of each range.
constexpr std::string_view k_alphabet =
    "\x41\x7F\x80\x8F\x90\x9F\xA0\xBF\xC0\xC1\xC2\xDF\xE0\xE1\xEC\xED\xEE\xEF\xF0\xF1\xF3\xF4\xF5\xFF"sv;

struct Joined {
    std::string text;
    bool stopped = false;
    bool valid = true;  // each piece by itself
};

Joined stream(const Stops & stops, const std::vector<std::string_view> & pieces) {
    TextStream stream(stops);
    Joined out;
    const auto add = [&](const StreamedText & streamed) {
        out.text += streamed.text;
        out.stopped = streamed.stopped;
        out.valid = out.valid && is_utf8(streamed.text);
    };
    for (const std::string_view piece : pieces) {
        add(stream.push(piece));
    }
    add(stream.finish());
    return out;
}

}  // namespace

ANER_CASE("Z5", text_equals_pythons_decoding_with_replacement_for_every_split) {
    for (const Sample & sample : k_samples) {
        for (std::uint32_t split = 0; split < n_splits(sample.bytes); ++split) {
            const Joined got = stream({}, pieces_of(sample.bytes, split));
            CHECK_EQUAL(got.text, std::string(sample.text));
            CHECK(got.valid);
        }
    }
}

// Every sequence of up to four bytes of the alphabet, a byte at a time: what each byte completes, and what the end does. Only
// joined after the beginning of a surrogate, where CPython waits a byte longer than it needs.
ANER_CASE("Z5", each_byte_completes_what_it_completes_in_pythons_incremental_decoder) {
    std::uint64_t digest = 0xCBF29CE484222325U;
    const auto add = [&](std::string_view bytes) {
        for (const char c : bytes) {
            digest = (digest ^ static_cast<unsigned char>(c)) * 0x100000001B3U;
        }
    };
    std::size_t n_sequences = 1;
    for (int size = 1; size <= 4; ++size) {
        n_sequences *= k_alphabet.size();
        for (std::size_t sequence = 0; sequence < n_sequences; ++sequence) {
            std::string bytes;
            for (std::size_t place = n_sequences / k_alphabet.size(); place > 0; place /= k_alphabet.size()) {
                bytes += k_alphabet[sequence / place % k_alphabet.size()];
            }
            const bool early = bytes.find("\xED\xA0") != std::string::npos || bytes.find("\xED\xBF") != std::string::npos;
            Utf8Decoder decoder;
            std::string text;
            for (const char c : bytes) {
                decoder.push(std::string_view(&c, 1), text);
                text += early ? "" : "\xFE";
            }
            decoder.finish(text);
            add(text);
            add("\xFF");
        }
    }
    CHECK_EQUAL(digest, k_digest);
}

ANER_CASE("Z5", stop_strings_are_found_in_the_decoded_text_for_every_split) {
    const std::string replaced = "\xEF\xBF\xBD";
    const Stops choices[] = {
        {replaced}, {replaced + "A"}, {replaced + replaced, "A"}, {"\xC3\xA9"}, {"\xF0\x9F\x98\x80", "B"}, {"\xE2\x82\xAC" "B"},
    };
    int n_stopped = 0;
    for (const Stops & stops : choices) {
        for (const Sample & sample : k_samples) {
            const auto expected = cut_at_stop(std::string(sample.text), stops);
            n_stopped += expected.stopped ? 1 : 0;
            for (std::uint32_t split = 0; split < n_splits(sample.bytes); ++split) {
                const Joined got = stream(stops, pieces_of(sample.bytes, split));
                CHECK_EQUAL(got.text, expected.text);
                CHECK_EQUAL(got.stopped, expected.stopped);
                CHECK(got.valid);
            }
        }
    }
    CHECK(n_stopped > 50);
}

ANER_CASE("Z5", an_incomplete_character_waits_and_becomes_a_replacement_at_the_end) {
    TextStream text({});
    CHECK_EQUAL(text.push("a\xF0\x9F").text, "a");
    CHECK_EQUAL(text.push("\x98").text, "");
    CHECK_EQUAL(text.finish().text, "\xEF\xBF\xBD");
}

ANER_CASE("Z5", held_back_text_is_emitted_at_the_end_and_dropped_after_a_stop) {
    TextStream open({"</s>"});
    CHECK_EQUAL(open.push("one</").text, "one");
    CHECK_EQUAL(open.finish().text, "</");

    TextStream closed({"</s>"});
    CHECK_EQUAL(closed.push("one</").text, "one");
    const StreamedText last = closed.push("s> two\xE2");
    CHECK(last.stopped);
    CHECK_EQUAL(last.text, "");
    const StreamedText end = closed.finish();
    CHECK(end.stopped);
    CHECK_EQUAL(end.text, "");
}

#include "check.hpp"
#include "limits.hpp"
#include "stop_condition.hpp"
#include "text_oracle.hpp"

#include <random>

using namespace aner;
using aner::testing::could_become_a_stop;
using aner::testing::cut_at_stop;
using aner::testing::pieces_of;

namespace {

using Stops = std::vector<std::string>;

struct Run {
    std::string text;
    bool stopped = false;
};

Run run(const Stops & stops, const std::vector<std::string_view> & pieces) {
    StopMatcher matcher(stops);
    Run out;
    for (const std::string_view piece : pieces) {
        out.stopped = matcher.push(piece, out.text);
    }
    matcher.finish(out.text);
    return out;
}

std::string random_text(std::mt19937 & random, std::size_t longest, std::size_t shortest) {
    std::string text(shortest + random() % (longest - shortest + 1), ' ');
    for (char & c : text) {
        c = "ab"[random() % 2];
    }
    return text;
}

bool refused(const Stops & stops, const char * mentions) {
    const Error error = validate_stops(stops);
    return error.code() == ErrorCode::invalid_request && error.message().find(mentions) != std::string::npos;
}

}  // namespace

ANER_CASE("Z5", stop_strings_cut_random_texts_as_a_search_of_the_whole_text_does_for_every_split) {
    std::mt19937 random(11);
    int n_stopped = 0;
    for (int round = 0; round < 400; ++round) {
        Stops stops(1 + random() % 4);
        for (std::string & stop : stops) {
            stop = random_text(random, 6, 1 + round % 4);
        }
        const std::string text = random_text(random, 9, 1);
        const auto expected = cut_at_stop(text, stops);
        n_stopped += expected.stopped ? 1 : 0;
        for (std::uint32_t split = 0; split < aner::testing::n_splits(text); ++split) {
            const Run got = run(stops, pieces_of(text, split));
            CHECK_EQUAL(got.text, expected.text);
            CHECK_EQUAL(got.stopped, expected.stopped);
        }
    }
    CHECK(n_stopped > 100 && n_stopped < 300);  // both outcomes were met often
}

ANER_CASE("Z5", exactly_the_longest_suffix_that_could_become_a_stop_is_held_back) {
    std::mt19937 random(12);
    for (int round = 0; round < 2000; ++round) {
        const Stops stops{random_text(random, 8, 3), random_text(random, 8, 3)};
        const std::string text = random_text(random, 40, 40);
        StopMatcher matcher(stops);
        std::string emitted;
        std::string read;
        for (const char c : text) {
            read += c;
            if (matcher.push(std::string_view(&c, 1), emitted)) {
                break;
            }
            CHECK_EQUAL(emitted, read.substr(0, read.size() - could_become_a_stop(read, stops)));
        }
    }
}

ANER_CASE("Z5", the_earliest_stop_string_wins_in_either_order) {
    for (const Stops & stops : {Stops{"END", "\n\n"}, Stops{"\n\n", "END"}}) {
        CHECK_EQUAL(run(stops, {"one\n\ntwo END"}).text, "one");
        CHECK_EQUAL(run(stops, {"one EN", "D two\n\n"}).text, "one ");
    }
    for (const Stops & stops : {Stops{"c", "abc", "bc"}, Stops{"abc", "bc", "c"}}) {
        CHECK_EQUAL(run(stops, {"xa", "b", "c"}).text, "x");  // they end together: the one that starts first
    }
    CHECK_EQUAL(run({"abcd", "b"}, {"a", "b", "cd"}).text, "a");  // "b" is complete before the longer one could be
}

ANER_CASE("Z5", a_stop_string_over_many_tokens_is_never_emitted) {
    const Run got = run({" the end"}, {"this is", " t", "h", "e", " en", "d", " of it"});
    CHECK(got.stopped);
    CHECK_EQUAL(got.text, "this is");
}

ANER_CASE("Z5", nothing_follows_a_stop) {
    StopMatcher matcher({"."});
    std::string emitted;
    CHECK(matcher.push("a.b", emitted));
    CHECK(matcher.push("c", emitted));
    matcher.finish(emitted);
    CHECK_EQUAL(emitted, "a");
}

ANER_CASE("Z5", without_stop_strings_everything_passes_at_once) {
    StopMatcher matcher({});
    std::string emitted;
    CHECK(!matcher.push("any text", emitted));
    CHECK_EQUAL(emitted, "any text");
}

ANER_CASE("Z5", repetitive_stop_strings_of_the_largest_size_are_found) {
    Stops stops;
    for (int i = 0; i < limits::max_stop_strings; ++i) {
        stops.push_back(std::string(static_cast<std::size_t>(limits::max_stop_bytes - 1 - i), 'a') + 'b');
    }
    const std::string text(100000, 'a');
    const Run open = run(stops, {text});
    CHECK(!open.stopped);
    CHECK_EQUAL(open.text, text);
    const Run closed = run(stops, {text, "b"});
    CHECK(closed.stopped);
    CHECK_EQUAL(closed.text.size(), text.size() - static_cast<std::size_t>(limits::max_stop_bytes - 1));
}

ANER_CASE("Z7", stop_strings_out_of_range_are_refused_with_the_limit_and_the_value) {
    CHECK(!validate_stops({}).failed());
    CHECK(!validate_stops(Stops(limits::max_stop_strings, "x")).failed());
    CHECK(!validate_stops({std::string(limits::max_stop_bytes, 'x'), "\xF0\x9F\x98\x80"}).failed());
    CHECK(refused(Stops(limits::max_stop_strings + 1, "x"), "at most 16 strings, got 17"));
    CHECK(refused({"x", ""}, "stop[1] must have 1 to 1024 bytes of UTF-8, got 0"));
    CHECK(refused({std::string(limits::max_stop_bytes + 1, 'x')}, "stop[0] must have 1 to 1024 bytes of UTF-8, got 1025"));
    CHECK(refused({"\xE6\xAD"}, "stop[0] must be valid UTF-8"));
    CHECK(refused({"\xED\xA0\x80"}, "stop[0] must be valid UTF-8"));
}

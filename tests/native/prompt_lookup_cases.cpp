#include "check.hpp"
#include "prompt_lookup.hpp"

#include <algorithm>
#include <random>
#include <vector>

using namespace aner;

namespace {

// Straight from the rule: for each length from the longest, the most recent occurrence inside the window, then LZ77 copying.
std::vector<Token> oracle(const std::vector<Token> & history, std::int32_t n_wanted) {
    const auto n = static_cast<std::ptrdiff_t>(history.size());
    const std::ptrdiff_t oldest = std::max<std::ptrdiff_t>(0, n - limits::lookup_window);
    for (std::ptrdiff_t length = limits::max_ngram; length >= limits::min_ngram; --length) {
        for (std::ptrdiff_t start = n - length - 1; start >= oldest; --start) {
            if (!std::equal(history.begin() + start, history.begin() + start + length, history.end() - length)) {
                continue;
            }
            std::vector<Token> text = history;
            for (std::int32_t i = 0; i < n_wanted; ++i) {
                text.push_back(text[static_cast<std::size_t>(start + length + i)]);
            }
            return {text.begin() + n, text.end()};
        }
    }
    return {};
}

std::vector<Token> proposed(const std::vector<Token> & history, std::int32_t n_wanted) {
    const Draft draft = propose_draft(history.data(), history.size(), n_wanted);
    return {draft.tokens.begin(), draft.tokens.begin() + draft.n_tokens};
}

}  // namespace

ANER_CASE("S1", a_draft_is_what_followed_the_longest_and_most_recent_earlier_occurrence) {
    std::mt19937 random(7);
    for (int round = 0; round < 3000; ++round) {
        const int alphabet = 2 + static_cast<int>(random() % 12);
        std::vector<Token> history(random() % 200);
        for (Token & token : history) {
            token = static_cast<Token>(random() % static_cast<unsigned>(alphabet));
        }
        const auto n_wanted = static_cast<std::int32_t>(random() % 33);
        CHECK(proposed(history, n_wanted) == oracle(history, n_wanted));
    }
}

ANER_CASE("S1", a_suffix_of_one_token_or_none_gives_no_draft) {
    CHECK(proposed({}, 8).empty());
    CHECK(proposed({5}, 8).empty());
    CHECK(proposed({5, 6, 5}, 8).empty());          // one token only
    CHECK((proposed({1, 2, 3, 1, 2}, 2) == std::vector<Token>{3, 1}));
}

ANER_CASE("S1", an_occurrence_beyond_4096_tokens_is_not_seen) {
    std::vector<Token> history{1, 2, 3, 4};
    while (history.size() < 4096) {
        history.push_back(1000 + static_cast<Token>(history.size()));
    }
    history.insert(history.end(), {1, 2});
    CHECK(proposed(history, 4).empty());  // 4,098 tokens: the pair at the start is two too old
    history.erase(history.begin() + 4, history.begin() + 6);
    CHECK((proposed(history, 2) == std::vector<Token>{3, 4}));
}

ANER_CASE("S1", a_short_period_gives_a_full_draft_by_copying_from_itself) {
    CHECK((proposed({9, 1, 2, 1, 2, 1, 2}, 7) == std::vector<Token>{1, 2, 1, 2, 1, 2, 1}));
}

ANER_CASE("S1", a_match_of_eight_ends_the_search_at_the_most_recent_one) {
    std::vector<Token> history;
    for (const Token next : {70, 71}) {
        history.insert(history.end(), {1, 2, 3, 4, 5, 6, 7, 8});
        history.push_back(next);
    }
    history.insert(history.end(), {1, 2, 3, 4, 5, 6, 7, 8});
    CHECK((proposed(history, 1) == std::vector<Token>{71}));
}

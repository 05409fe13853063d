// The time of one proposal behind 4,096 tokens, on histories that make the search long. Exit status 1: one of them took longer
// than the limit. The least of a history's runs stands for it, since everything else on the machine only adds; of a kind of
// history, the slowest of 32 that take turns, so that no branch predictor learns one by heart.
#include "prompt_lookup.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <random>
#include <utility>
#include <vector>

using namespace aner;

namespace {

constexpr std::size_t k_tokens = limits::lookup_window;
constexpr double k_limit_us = 20.0;
constexpr std::size_t k_histories = 32;
constexpr int k_runs = 50;

using History = std::vector<Token>;

History filled(const std::function<Token(std::size_t)> & token_at) {
    History history(k_tokens);
    for (std::size_t i = 0; i < k_tokens; ++i) {
        history[i] = token_at(i);
    }
    return history;
}

// With a token of its own at `back` before the last: no match is longer than `back`.
History broken(History history, std::size_t back) {
    history[k_tokens - 1 - back] = 1'000'000;
    return history;
}

double slowest_microseconds(const std::function<History()> & make) {
    std::vector<History> histories(k_histories);
    std::generate(histories.begin(), histories.end(), make);
    std::vector<double> least(k_histories, 1e9);
    std::int64_t sum = 0;
    for (int run = 0; run < k_runs; ++run) {
        for (std::size_t i = 0; i < k_histories; ++i) {
            const auto before = std::chrono::steady_clock::now();
            const Draft draft = propose_draft(histories[i].data(), k_tokens, limits::max_speculative_tokens);
            const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - before;
            least[i] = std::min(least[i], took.count());
            sum += draft.tokens[0] + draft.n_tokens;
        }
    }
    return sum == -1 ? 0.0 : *std::max_element(least.begin(), least.end());  // the sum keeps the calls
}

}  // namespace

int main() {
    std::mt19937 random(5);
    const auto drawn_from = [&random](std::uint32_t kinds) {
        return filled([&](std::size_t) { return static_cast<Token>(random() % kinds); });
    };
    const History equal(k_tokens, 7);
    const std::pair<const char *, std::function<History()>> cases[] = {
        {"all tokens equal", [&] { return equal; }},
        {"no token twice", [] { return filled([](std::size_t i) { return static_cast<Token>(i); }); }},
        {"every second token the last one",
         [] { return filled([](std::size_t i) { return i % 2 == 1 ? 7 : static_cast<Token>(1000 + i); }); }},
        {"equal, matches of 2", [&] { return broken(equal, 2); }},
        {"equal, matches of 4", [&] { return broken(equal, 4); }},
        {"equal, matches of 7", [&] { return broken(equal, 7); }},
        {"49,152 kinds at random", [&] { return drawn_from(49152); }},
        {"16 kinds at random", [&] { return drawn_from(16); }},
        {"2 kinds at random, matches of at most 7", [&] { return broken(drawn_from(2), 7); }},
        {"3 kinds at random, matches of at most 7", [&] { return broken(drawn_from(3), 7); }},
    };
    bool kept = true;
    for (const auto & [name, make] : cases) {
        const double took = slowest_microseconds(make);
        kept = kept && took < k_limit_us;
        std::printf("%6.2f us  %s\n", took, name);
    }
    std::printf("limit %.0f us for %zu tokens: %s\n", k_limit_us, k_tokens, kept ? "kept" : "exceeded");
    return kept ? 0 : 1;
}

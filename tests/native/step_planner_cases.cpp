#include "step_planner.hpp"

#include "check.hpp"

#include <algorithm>
#include <map>
#include <random>

using namespace aner;

namespace {

Waiting decoding(SequenceId id) { return {id, 0, static_cast<std::uint64_t>(id)}; }
Waiting prompt(SequenceId id, std::int32_t left, std::uint64_t arrival) { return {id, left, arrival}; }

std::int32_t total(const std::vector<Share> & shares) {
    std::int32_t n = 0;
    for (const Share & share : shares) {
        n += share.n_rows;
    }
    return n;
}

}  // namespace

ANER_CASE("B3", each_row_of_the_planner_s_table) {
    struct Row {
        std::vector<Waiting> sequences;
        StepBudget budget;
        std::vector<Share> shares;
    };
    const std::vector<Row> table{
        {{}, {8}, {}},
        {{decoding(0)}, {1}, {{0, 1}}},
        {{decoding(0), decoding(3)}, {2}, {{0, 1}, {3, 1}}},
        {{prompt(0, 5, 0)}, {8}, {{0, 5}}},
        {{prompt(0, 8, 0)}, {8}, {{0, 8}}},
        {{prompt(0, 9, 0)}, {8}, {{0, 8}}},                  // no whole tile fits, so all there is
        {{prompt(0, 900, 0)}, {512}, {{0, 512}}},
        {{prompt(0, 900, 0)}, {500}, {{0, 480}}},            // whole tiles
        {{decoding(0), prompt(1, 900, 1)}, {512}, {{0, 1}, {1, 481}}},  // one row rides with the decoding ones
        {{decoding(0), prompt(1, 900, 1)}, {512, 70}, {{0, 1}, {1, 65}}},
        {{decoding(0), prompt(1, 900, 1)}, {512, 1}, {{0, 1}, {1, 1}}},
        {{decoding(0), prompt(1, 20, 1)}, {512, 70}, {{0, 1}, {1, 20}}},
        {{prompt(1, 900, 1)}, {512, 70}, {{1, 512}}},        // nobody decodes: no limit
        {{prompt(0, 900, 1), prompt(1, 900, 0)}, {512}, {{0, 384}, {1, 128}}},  // the older keeps a quarter
        {{prompt(0, 10, 1), prompt(1, 900, 0)}, {512}, {{0, 10}, {1, 480}}},
        {{prompt(0, 10, 0), prompt(1, 900, 1)}, {512}, {{0, 10}, {1, 480}}},
        {{prompt(0, 300, 2), prompt(1, 900, 0), prompt(2, 100, 1)}, {512}, {{0, 256}, {1, 128}, {2, 100}}},  // shortest first
        {{decoding(0), prompt(1, 50, 0)}, {2}, {{0, 1}, {1, 1}}},
    };
    for (const Row & row : table) {
        CHECK(plan_step(row.sequences, row.budget) == row.shares);
    }
}

ANER_CASE("B3", a_plan_serves_every_decoding_sequence_and_keeps_to_its_budget_and_the_older_prompt_s_quarter) {
    std::mt19937 random(7);
    const auto pick = [&](std::int32_t low, std::int32_t high) { return std::uniform_int_distribution<std::int32_t>(low, high)(random); };
    for (int round = 0; round < 20'000; ++round) {
        const std::int32_t n = pick(1, 12);
        StepBudget budget{pick(n, 600)};
        if (pick(0, 1) == 1) {
            budget.prefill_limit = pick(1, 200);
        }
        std::vector<Waiting> sequences;
        std::vector<std::uint64_t> arrivals(static_cast<std::size_t>(n));
        for (std::int32_t i = 0; i < n; ++i) {
            arrivals[static_cast<std::size_t>(i)] = static_cast<std::uint64_t>(i);
        }
        std::shuffle(arrivals.begin(), arrivals.end(), random);
        std::int32_t n_decoding = 0;
        for (std::int32_t i = 0; i < n; ++i) {
            const std::int32_t left = pick(0, 1) == 1 ? 0 : pick(1, 1000);
            n_decoding += left == 0 ? 1 : 0;
            sequences.push_back({2 * i, left, arrivals[static_cast<std::size_t>(i)]});
        }
        const std::vector<Share> shares = plan_step(sequences, budget);
        std::map<SequenceId, std::int32_t> rows;
        for (const Share & share : shares) {
            CHECK(rows.empty() || rows.rbegin()->first < share.id);
            CHECK(share.n_rows >= 1);
            rows[share.id] = share.n_rows;
        }
        std::int32_t rest = budget.batch_tokens - n_decoding;
        rest = n_decoding > 0 ? std::min(rest, budget.prefill_limit) : rest;
        CHECK(total(shares) <= budget.batch_tokens);
        const Waiting * oldest = nullptr;
        for (const Waiting & one : sequences) {
            if (one.n_prompt_left == 0) {
                CHECK_EQUAL(rows[one.id], 1);
            } else {
                CHECK(rows[one.id] <= one.n_prompt_left);
                oldest = oldest == nullptr || one.arrival < oldest->arrival ? &one : oldest;
            }
        }
        CHECK(total(shares) - n_decoding <= rest || oldest == nullptr);
        if (oldest != nullptr) {
            CHECK(rows[oldest->id] >= std::min(oldest->n_prompt_left, std::max(1, rest / 4)));
        }
    }
}

ANER_CASE("B3", the_oldest_prompt_is_through_within_the_bound_whatever_comes_after_it) {
    std::mt19937 random(11);
    for (int round = 0; round < 300; ++round) {
        const std::int32_t n_rows = std::uniform_int_distribution<std::int32_t>(1, 3000)(random);
        const std::int32_t budget = std::uniform_int_distribution<std::int32_t>(8, 512)(random);
        std::int32_t left = n_rows;
        std::int32_t n_steps = 0;
        std::uint64_t arrival = 1;
        while (left > 0) {
            std::vector<Waiting> sequences{decoding(0), prompt(1, left, 0)};
            for (SequenceId id = 2; id < 8; ++id) {
                sequences.push_back(prompt(id, std::uniform_int_distribution<std::int32_t>(1, 400)(random), arrival++));
            }
            for (const Share & share : plan_step(sequences, {budget})) {
                left -= share.id == 1 ? share.n_rows : 0;
            }
            ++n_steps;
        }
        const std::int32_t least = std::max(1, (budget - 1) / 4);
        CHECK(n_steps <= (n_rows + least - 1) / least);
    }
}

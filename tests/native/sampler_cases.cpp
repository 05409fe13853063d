#include "check.hpp"
#include "sampler.hpp"
#include "sampler_oracle.hpp"

#include <algorithm>
#include <cmath>
#include <random>

using namespace aner;
using namespace aner::testing;

namespace {

Sampler sampler_for(const SamplingOptions & options, std::size_t n_vocab, Tokens eog = {}) {
    return Sampler(options, std::make_shared<const Tokens>(std::move(eog)), static_cast<std::int32_t>(n_vocab));
}

Token chosen(Sampler & sampler, const Row & row, std::int32_t n_output = 0, const Tokens & history = {}) {
    const Result<Sampled> sampled = sampler.sample(row.data(), history.data(), history.size(), n_output);
    CHECK_EQUAL(sampled.error().message(), "");
    return sampled.value().token;
}

Token chosen_once(const SamplingOptions & options, const Row & row, std::int32_t n_output = 0, const Tokens & history = {},
                  const Tokens & eog = {}) {
    Sampler sampler = sampler_for(options, row.size(), eog);
    return chosen(sampler, row, n_output, history);
}

}  // namespace

ANER_CASE("Z7", tokens_equal_those_of_a_naive_sampler_with_full_sorts) {
    std::mt19937 random(2);
    for (int round = 0; round < 600; ++round) {
        const std::size_t n = round % 6 == 0 ? 3000 : 8 + random() % 300;
        Row row = random_row(random, n, round % 5 == 0 ? 0.1F : 3);  // also nearly flat ones
        row[7] = 1;                                                  // a token that nothing bans
        SamplingOptions options;
        const auto pick = [&](auto... values) {
            const float all[] = {static_cast<float>(values)...};
            return all[random() % sizeof...(values)];
        };
        options.temperature = pick(0, 1e-30, 0.3, 1, 1, 2, 100);
        options.top_k = static_cast<std::int32_t>(pick(0, 0, 1, 2, 40, 200, 5000));
        options.top_p = pick(1, 1, 1e-6, 0.3, 0.9, 0.999, 0.9999999);
        options.min_p = pick(0, 0, 0.001, 0.1, 1);
        options.repeat_penalty = pick(1, 1, 1.3, 0.5);
        options.frequency_penalty = pick(0, 0, 0.5, -1);
        options.presence_penalty = pick(0, 0, 1.5, -0.3);
        options.penalty_window = static_cast<std::int32_t>(pick(64, 0, 5, -1));
        options.ignore_eos = random() % 4 == 0;
        options.min_tokens = static_cast<std::int32_t>(random() % 20);
        options.seed = random();
        if (random() % 2 == 0) {
            options.logit_bias = {{0, 2.5F}, {2, -k_inf}, {0, -1.0F}};
            options.stop_token_ids = {3};
        }
        CHECK(!validate(options, static_cast<std::int32_t>(n)).failed());
        Tokens history(random() % 200);
        for (Token & token : history) {
            token = static_cast<Token>(random() % (random() % 2 == 0 ? n : 4));
        }
        const Tokens eog{1};
        Sampler sampler = sampler_for(options, n, eog);
        for (std::int32_t n_output = 0; n_output < 25; ++n_output) {
            const Token got = chosen(sampler, row, n_output, history);
            CHECK_EQUAL(got, expected_token(options, row, history, n_output, eog));
            history.push_back(got);
        }
    }
}

ANER_CASE("Z7", draws_follow_the_softmax_over_indexes_and_over_seeds) {
    const Row row{0, 1, -1, 2, 0.5F, -2, 1.5F, 0, 0.25F, -0.5F, 1, 2.5F};
    constexpr int n = 50000;
    SamplingOptions options;
    options.temperature = 0.7F;
    const std::vector<double> shares = softmax(row, 0.7);
    std::vector<int> by_index(row.size());
    std::vector<int> by_seed(row.size());
    Sampler sampler = sampler_for(options, row.size());
    for (int i = 0; i < n; ++i) {
        ++by_index[chosen(sampler, row, i)];
        options.seed = static_cast<std::uint64_t>(i);
        ++by_seed[chosen_once(options, row)];
    }
    constexpr double bound = 31.26;  // 11 degrees of freedom; one true distribution in a thousand is above
    CHECK(chi_square(by_index, shares, n) < bound);
    CHECK(chi_square(by_seed, shares, n) < bound);
}

ANER_CASE("Z7", consecutive_draws_and_neighbouring_seeds_are_independent) {
    const Row row(4, 0);
    constexpr int n = 50000;
    SamplingOptions options;
    options.temperature = 1;
    const std::vector<double> shares(16, 1.0 / 16);
    std::vector<int> by_index(16);
    std::vector<int> by_seed(16);
    Sampler sampler = sampler_for(options, row.size());
    for (int i = 0; i < n; ++i) {
        ++by_index[4 * chosen(sampler, row, 2 * i) + chosen(sampler, row, 2 * i + 1)];
        options.seed = static_cast<std::uint64_t>(2 * i);
        const Token even = chosen_once(options, row);
        ++options.seed;
        ++by_seed[4 * even + chosen_once(options, row)];
    }
    constexpr double bound = 37.70;  // 15 degrees of freedom, one in a thousand
    CHECK(chi_square(by_index, shares, n) < bound);
    CHECK(chi_square(by_seed, shares, n) < bound);
}

// Draw i of a seed picks one of 1024 equal tokens, by the ten highest bits of
//   M = 2**64 - 1; odd = 0x9E3779B97F4A7C15
//   def mix(x):
//       x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & M
//       x = (x ^ x >> 27) * 0x94D049BB133111EB & M
//       return x ^ x >> 31
//   [mix(mix(seed + odd & M) + (i + 1) * odd & M) >> 54 for i in (0, 1, 2, 3, 4, 1000000)]
ANER_CASE("Z7 L12", every_64_bit_seed_gives_the_same_draws_on_every_machine) {
    struct Draws {
        std::uint64_t seed;
        Token tokens[6];
    };
    const Draws table[] = {
        {0, {668, 718, 396, 672, 806, 152}},
        {1, {377, 966, 46, 796, 224, 712}},
        {42, {351, 978, 498, 68, 693, 532}},
        {~std::uint64_t{0}, {375, 758, 522, 949, 524, 472}},
    };
    const std::int32_t indexes[] = {0, 1, 2, 3, 4, 1000000};
    const Row row(1024, -3);
    for (const Draws & draws : table) {
        SamplingOptions options;
        options.temperature = 1;
        options.seed = draws.seed;
        for (std::size_t i = 0; i < std::size(indexes); ++i) {
            CHECK_EQUAL(chosen_once(options, row, indexes[i]), draws.tokens[i]);
        }
    }
}

ANER_CASE("P8 L12", a_choice_does_not_depend_on_what_the_sampler_did_before) {
    std::mt19937 random(3);
    SamplingOptions options;
    options.temperature = 1.2F;
    options.top_p = 0.95F;
    options.repeat_penalty = 1.2F;
    options.penalty_window = -1;
    options.seed = 99;
    std::vector<Row> rows;
    Tokens history;
    for (int i = 0; i < 40; ++i) {
        rows.push_back(random_row(random, 500));
        history.push_back(static_cast<Token>(random() % 500));
    }
    const auto at = [&](Sampler & sampler, std::int32_t i) {
        return chosen(sampler, rows[i], i, Tokens(history.begin(), history.begin() + i));
    };
    Sampler forward = sampler_for(options, 500);
    Tokens tokens;
    for (std::int32_t i = 0; i < 40; ++i) {
        tokens.push_back(at(forward, i));
    }
    Sampler backward = sampler_for(options, 500);
    for (std::int32_t i = 39; i >= 0; --i) {
        CHECK_EQUAL(at(backward, i), tokens[i]);
        Sampler fresh = sampler_for(options, 500);
        CHECK_EQUAL(at(fresh, i), tokens[i]);
    }
}

ANER_CASE("Z7", a_row_that_is_not_of_numbers_fails_at_any_temperature) {
    for (const float temperature : {0.0F, 1.0F}) {
        SamplingOptions options;
        options.temperature = temperature;
        Sampler sampler = sampler_for(options, 2);
        const Row bad{0, k_nan};
        CHECK(sampler.sample(bad.data(), nullptr, 0, 0).error().code() == ErrorCode::invalid_output);
    }
}

ANER_CASE("Z7", the_row_of_the_engine_is_not_changed) {
    std::mt19937 random(4);
    const Row row = random_row(random, 300);
    Row copy = row;
    SamplingOptions options;
    options.temperature = 1;
    options.logit_bias = {{5, 50.0F}};
    options.presence_penalty = 1;
    options.ignore_eos = true;
    Sampler sampler = sampler_for(options, copy.size(), {0});
    chosen(sampler, copy, 0, {1, 2, 3});
    CHECK(copy == row);
}

ANER_CASE("Z7", bias_raises_lowers_and_bans) {
    SamplingOptions options;
    const Row row{1, 3, 2, 0};
    CHECK_EQUAL(chosen_once(options, row), 1);
    options.logit_bias = {{3, 3.5F}};
    CHECK_EQUAL(chosen_once(options, row), 3);
    options.logit_bias = {{1, -k_inf}};
    CHECK_EQUAL(chosen_once(options, row), 2);
    options.logit_bias = {{1, -0.75F}, {1, -0.75F}};  // they add up
    CHECK_EQUAL(chosen_once(options, row), 2);
}

ANER_CASE("Z7", penalties_see_the_last_tokens_of_the_window) {
    SamplingOptions options;
    options.repeat_penalty = 2;
    CHECK_EQUAL(chosen_once(options, {3, 2, 1}, 0, {0}), 1);        // 3 / 2 is below 2
    CHECK_EQUAL(chosen_once(options, {-1, -1.5F, -3}, 0, {0}), 1);  // -1 * 2 is below -1.5
    options.penalty_window = 2;
    CHECK_EQUAL(chosen_once(options, {3, 2, 1}, 0, {0, 2, 2}), 0);  // token 0 has left the window
    CHECK_EQUAL(chosen_once(options, {3, 2, 1}, 0, {2, 0, 2}), 1);
    options.penalty_window = -1;
    CHECK_EQUAL(chosen_once(options, {3, 2, 1}, 0, {0, 2, 2}), 1);

    SamplingOptions counted;
    counted.frequency_penalty = 0.4F;
    CHECK_EQUAL(chosen_once(counted, {3, 2, 1}, 0, {0, 0}), 0);  // 3 - 0.8
    CHECK_EQUAL(chosen_once(counted, {3, 2, 1}, 0, {0, 0, 0}), 1);
    SamplingOptions once;
    once.presence_penalty = 0.9F;
    CHECK_EQUAL(chosen_once(once, {3, 2, 1}, 0, {0, 0, 0}), 0);
    once.presence_penalty = 1.1F;
    CHECK_EQUAL(chosen_once(once, {3, 2, 1}, 0, {0}), 1);
    CHECK_EQUAL(chosen_once(once, {3, 2, 1}, 0, {-1, 3, 1 << 30}), 0);  // ids outside the vocabulary do not count

    SamplingOptions tiny;
    tiny.repeat_penalty = std::numeric_limits<float>::denorm_min();
    CHECK_EQUAL(chosen_once(tiny, {3, 2, 1}, 0, {1}), 1);  // 2 divided by almost nothing stays a number
}

ANER_CASE("Z7", ends_of_generation_wait_for_min_tokens_and_never_come_with_ignore_eos) {
    const Row row{0, 5, 4, 3};
    const Tokens eog{1};
    SamplingOptions options;
    CHECK_EQUAL(chosen_once(options, row, 0, {}, eog), 1);
    options.min_tokens = 3;
    options.stop_token_ids = {2};
    CHECK_EQUAL(chosen_once(options, row, 2, {}, eog), 3);  // a stop token waits as well
    CHECK_EQUAL(chosen_once(options, row, 3, {}, eog), 1);
    options.ignore_eos = true;
    CHECK_EQUAL(chosen_once(options, row, 3, {}, eog), 2);  // but ignore_eos is not about stop tokens
    options.temperature = 100;
    Sampler sampler = sampler_for(options, row.size(), eog);
    for (std::int32_t i = 0; i < 200; ++i) {
        const Token token = chosen(sampler, row, i);
        CHECK(token != 1 && (i >= 3 || token != 2));
    }
}

ANER_CASE("Z7", a_request_that_bans_every_token_is_refused) {
    SamplingOptions options;
    options.ignore_eos = true;
    options.logit_bias = {{0, -k_inf}};
    Sampler sampler = sampler_for(options, 3, {1});
    const Row row{1, 2, -k_inf};
    CHECK(sampler.sample(row.data(), nullptr, 0, 0).error().code() == ErrorCode::invalid_request);
}

ANER_CASE("Z7", logprobs_are_the_log_softmax_of_the_raw_logits) {
    std::mt19937 random(5);
    for (const std::size_t n : {3U, 30U, 2000U}) {
        for (int round = 0; round < 50; ++round) {
            const Row row = random_row(random, n);
            SamplingOptions options;
            options.temperature = round % 2 == 0 ? 0.0F : 3.0F;
            options.logit_bias = {{0, 100.0F}, {1, -k_inf}};
            options.repeat_penalty = 5;
            options.n_logprobs = round % 21;
            options.seed = random();
            Sampler sampler = sampler_for(options, n);
            const Tokens history{2, 2};
            const Sampled got = sampler.sample(row.data(), history.data(), 2, 0).take();

            const std::vector<double> shares = softmax(row, 1);
            const auto close = [&](const TopLogprob & one) {
                return std::fabs(static_cast<double>(one.logprob) - std::log(shares[one.token])) < 1e-5;
            };
            CHECK(close({got.token, got.logprob}));
            Tokens order;
            for (std::size_t t = 0; t < n; ++t) {
                if (row[t] != -k_inf) {
                    order.push_back(static_cast<Token>(t));
                }
            }
            std::stable_sort(order.begin(), order.end(), [&](Token a, Token b) { return row[a] > row[b]; });
            CHECK_EQUAL(got.top.size(), std::min<std::size_t>(order.size(), options.n_logprobs));
            for (std::size_t i = 0; i < got.top.size(); ++i) {
                CHECK_EQUAL(got.top[i].token, order[i]);
                CHECK(close(got.top[i]));
            }
        }
    }
    const Row row{1, 2};
    Sampler off = sampler_for({}, 2);
    const Sampled got = off.sample(row.data(), nullptr, 0, 0).take();
    CHECK(std::isnan(got.logprob) && got.top.empty());
}

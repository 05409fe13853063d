// What the sampler cases compare with: every rule again, with full sorts and full scans.
#pragma once

#include "sampling_options.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

namespace aner::testing {

inline constexpr float k_inf = std::numeric_limits<float>::infinity();
inline constexpr float k_nan = std::numeric_limits<float>::quiet_NaN();

using Row = std::vector<float>;
using Tokens = std::vector<Token>;

// Logits in steps of a quarter, so that ties are common; some tokens cannot come.
inline Row random_row(std::mt19937 & random, std::size_t n, float spread = 3) {
    std::normal_distribution<float> normal(0, spread);
    Row row(n);
    for (float & logit : row) {
        logit = random() % 16 == 0 ? -k_inf : std::round(4 * normal(random)) / 4;
    }
    row[random() % n] = 1;
    return row;
}

// SplitMix64 as it is published: a state that grows, not an index.
inline double uniform_after(std::uint64_t seed, std::int32_t n_before) {
    std::uint64_t state = seed;
    const auto next = [&] {
        state += 0x9E3779B97F4A7C15U;
        std::uint64_t x = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9U;
        x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
        return x ^ (x >> 31);
    };
    state = next();
    for (std::int32_t i = 0; i < n_before; ++i) {
        next();
    }
    return std::ldexp(static_cast<double>(next() >> 11), -53);
}

inline Token expected_token(const SamplingOptions & o, Row row, const Tokens & history, std::int32_t n_output,
                            const Tokens & eog) {
    for (const auto & [token, bias] : o.logit_bias) {
        row[token] += bias;
    }
    const auto window = o.penalty_window < 0 ? history.size() : std::min<std::size_t>(history.size(), o.penalty_window);
    for (std::size_t t = 0; t < row.size(); ++t) {
        const auto n = std::count(history.end() - static_cast<std::ptrdiff_t>(window), history.end(), static_cast<Token>(t));
        if (n > 0) {
            row[t] = row[t] > 0 ? row[t] / o.repeat_penalty : row[t] * o.repeat_penalty;
            row[t] -= static_cast<float>(n) * o.frequency_penalty + o.presence_penalty;
        }
    }
    const bool too_short = n_output < o.min_tokens;
    for (const Token t : eog) {
        row[t] = too_short || o.ignore_eos ? -k_inf : row[t];
    }
    for (const Token t : o.stop_token_ids) {
        row[t] = too_short ? -k_inf : row[t];
    }

    Tokens order;
    for (std::size_t t = 0; t < row.size(); ++t) {
        if (std::isfinite(row[t])) {
            order.push_back(static_cast<Token>(t));
        }
    }
    std::sort(order.begin(), order.end(), [&](Token a, Token b) { return row[a] != row[b] ? row[a] > row[b] : a < b; });
    if (o.temperature == 0) {
        return order.front();
    }
    if (o.top_k > 0) {
        order.resize(std::min<std::size_t>(order.size(), o.top_k));
    }
    const double largest = static_cast<double>(row[order.front()]);
    const auto sum_by_id = [&](const std::function<double(Token)> & weight) {
        Tokens by_id = order;
        std::sort(by_id.begin(), by_id.end());
        double sum = 0;
        for (const Token t : by_id) {
            sum += weight(t);
        }
        return sum;
    };
    const auto weight = [&](Token t) { return std::exp(static_cast<double>(row[t]) - largest); };
    if (o.top_p < 1) {
        const double enough = static_cast<double>(o.top_p) * sum_by_id(weight);
        std::size_t kept = 0;
        for (double sum = 0; kept < order.size() && sum < enough; ++kept) {
            sum += weight(order[kept]);
        }
        order.resize(kept);
    }
    while (weight(order.back()) < static_cast<double>(o.min_p)) {
        order.pop_back();
    }
    const auto tempered = [&](Token t) {
        return std::exp((static_cast<double>(row[t]) - largest) / static_cast<double>(o.temperature));
    };
    const double target = uniform_after(o.seed, n_output) * sum_by_id(tempered);
    std::sort(order.begin(), order.end());
    double sum = 0;
    for (const Token t : order) {
        sum += tempered(t);
        if (sum > target) {
            return t;
        }
    }
    return -1;
}

// The distance of observed counts from expected shares; its mean is the number of cells minus 1.
inline double chi_square(const std::vector<int> & counts, const std::vector<double> & shares, int n) {
    double distance = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
        const double expected = shares[i] * n;
        distance += (counts[i] - expected) * (counts[i] - expected) / expected;
    }
    return distance;
}

inline std::vector<double> softmax(const Row & row, double temperature) {
    std::vector<double> shares;
    double total = 0;
    for (const float logit : row) {
        shares.push_back(std::exp(static_cast<double>(logit) / temperature));
        total += shares.back();
    }
    for (double & share : shares) {
        share /= total;
    }
    return shares;
}

}  // namespace aner::testing

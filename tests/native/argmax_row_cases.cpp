#include "argmax_row.hpp"
#include "check.hpp"
#include "sampler_oracle.hpp"

using namespace aner;
using namespace aner::testing;

ANER_CASE("Z7", argmax_is_the_lowest_index_of_the_largest_logit) {
    std::mt19937 random(1);
    for (std::size_t n = 1; n < 3000; n += 1 + n / 7) {
        for (int round = 0; round < 20; ++round) {
            const Row row = random_row(random, n);
            const auto expected = std::max_element(row.begin(), row.end()) - row.begin();  // the first of equals
            CHECK_EQUAL(argmax_row(row.data(), static_cast<std::int32_t>(n)).value(), expected);
        }
    }
    for (const std::size_t n : {1U, 7U, 1024U, 1025U, 2500U}) {
        for (std::size_t i = 0; i < n; i += 1 + n / 50) {
            Row row(n, -2);
            row[i] = -1;
            row[n - 1] = -1;
            CHECK_EQUAL(argmax_row(row.data(), static_cast<std::int32_t>(n)).value(), static_cast<Token>(i));
        }
    }
    const Row zeros{-1, -0.0F, 0.0F, -0.0F};
    CHECK_EQUAL(argmax_row(zeros.data(), 4).value(), 1);
}

ANER_CASE("Z7", logits_that_are_not_numbers_are_an_invalid_output) {
    for (const std::size_t n : {1U, 5U, 1024U, 3000U}) {
        for (std::size_t i = 0; i < n; i += 1 + n / 40) {
            for (const float bad : {k_nan, -k_nan, k_inf}) {
                Row row(n, 0.5F);
                row[i] = bad;
                const auto result = argmax_row(row.data(), static_cast<std::int32_t>(n));
                CHECK(result.error().code() == ErrorCode::invalid_output);
                CHECK(result.error().message().find("token " + std::to_string(i) + " ") != std::string::npos);
            }
        }
        const Row banned(n, -k_inf);
        CHECK(argmax_row(banned.data(), static_cast<std::int32_t>(n)).error().code() == ErrorCode::invalid_output);
    }
    const Row row{-k_inf, std::numeric_limits<float>::lowest(), -k_inf};
    CHECK_EQUAL(argmax_row(row.data(), 3).value(), 1);
}

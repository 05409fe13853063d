#include "check.hpp"
#include "exponentials.hpp"

#include <cmath>
#include <limits>

using aner::exponentials;

ANER_CASE("", exponentials_are_those_of_the_c_library_to_12_digits) {
    for (const double step : {1e-9, 0.001, 0.0137}) {
        std::vector<double> values;
        for (int i = 0; i < 50001; ++i) {
            values.push_back(-step * i);
        }
        std::vector<double> got = values;
        exponentials(got.data(), got.size());
        CHECK_EQUAL(got[0], 1.0);
        for (std::size_t i = 0; i < values.size(); ++i) {
            CHECK(std::fabs(got[i] / std::exp(values[i]) - 1) < 1e-12);
        }
    }
}

ANER_CASE("", exponentials_far_below_zero_are_too_small_to_count) {
    double values[] = {-700, -700.5, -1e6, -1e300, -std::numeric_limits<double>::infinity(), -0.0};
    exponentials(values, std::size(values));
    for (std::size_t i = 0; i + 1 < std::size(values); ++i) {
        CHECK(values[i] >= 0 && values[i] < 1e-300);
    }
    CHECK_EQUAL(values[5], 1.0);
}

#include "exponentials.hpp"

#include <cstdint>
#include <cstring>

namespace aner {

namespace {

// min(|x|, 700), by the bits: a comparison of floats, which could trap, keeps a loop from being vectorized. In a loop of
// its own because in the other one the compiler would branch to the constant result for -700.
void clamp(double * values, std::size_t n) noexcept {
    constexpr std::int64_t bits_of_700 = 0x4085E00000000000;
    for (std::size_t i = 0; i < n; ++i) {
        std::int64_t magnitude;
        std::memcpy(&magnitude, &values[i], sizeof magnitude);
        magnitude &= 0x7FFFFFFFFFFFFFFF;
        magnitude = magnitude < bits_of_700 ? magnitude : bits_of_700;
        std::memcpy(&values[i], &magnitude, sizeof magnitude);
    }
}

}  // namespace

void exponentials(double * values, std::size_t n) noexcept {
    clamp(values, n);
    // exp(x) = 2^k * exp(r) with k the nearest integer to x / ln 2, so that |r| <= ln 2 / 2, where the Taylor polynomial of
    // degree 10 is off by less than 4e-13. Adding 1.5 * 2^52 rounds to an integer and leaves it in the low bits.
    constexpr double to_integer = 0x1.8p52;
    constexpr double per_ln_2 = 1.4426950408889634;
    constexpr double ln_2_high = 0x1.62e42feep-1;  // so few digits that its product with k is exact
    constexpr double ln_2_low = 1.9082149292705878e-10;
    for (std::size_t i = 0; i < n; ++i) {
        const double x = -values[i];
        const double shifted = x * per_ln_2 + to_integer;
        const double k = shifted - to_integer;
        const double r = (x - k * ln_2_high) - k * ln_2_low;
        double y = 1.0 / 3628800;
        y = y * r + 1.0 / 362880;
        y = y * r + 1.0 / 40320;
        y = y * r + 1.0 / 5040;
        y = y * r + 1.0 / 720;
        y = y * r + 1.0 / 120;
        y = y * r + 1.0 / 24;
        y = y * r + 1.0 / 6;
        y = y * r + 0.5;
        y = y * r + 1;
        y = y * r + 1;
        std::uint64_t bits;
        std::uint64_t exponent;
        std::memcpy(&bits, &y, sizeof bits);
        std::memcpy(&exponent, &shifted, sizeof exponent);
        bits += exponent << 52;  // k into the exponent field
        std::memcpy(&values[i], &bits, sizeof bits);
    }
}

}  // namespace aner

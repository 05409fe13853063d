#include "argmax_row.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <string>

namespace aner {

namespace {

constexpr std::int32_t k_block = 1024;
constexpr std::int32_t k_infinity = 0x7F800000;             // the bits of infinity; above them in magnitude are only NaNs
constexpr std::int32_t k_least = -k_infinity - 1;           // key of minus infinity

// A float's bits as an integer of the same order: maximum and minimum vectorize (a float reduction may not be reordered), and
// the NaNs lie outside both infinities.
std::int32_t key_of(float value) noexcept {
    std::int32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits ^ ((bits >> 31) & 0x7FFFFFFF);
}

struct Range {
    std::int32_t least;
    std::int32_t largest;
};

Range range_of(const float * logits, std::int32_t n) noexcept {
    std::int32_t least = std::numeric_limits<std::int32_t>::max();
    std::int32_t largest = std::numeric_limits<std::int32_t>::min();
    for (std::int32_t i = 0; i < n; ++i) {
        const std::int32_t key = key_of(logits[i]);
        least = key < least ? key : least;
        largest = key > largest ? key : largest;
    }
    return {least, largest};
}

Error invalid_row(const float * logits, std::int32_t n) noexcept try {
    for (std::int32_t i = 0; i < n; ++i) {
        if (std::isnan(logits[i]) || logits[i] == std::numeric_limits<float>::infinity()) {
            return Error{ErrorCode::invalid_output, "the model's logit of token " + std::to_string(i) + " is " +
                                                        (std::isnan(logits[i]) ? "not a number" : "infinite")};
        }
    }
    return Error{ErrorCode::invalid_output, "none of the model's " + std::to_string(n) + " logits is finite"};
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::invalid_output};
}

}  // namespace

Result<Token> argmax_row(const float * logits, std::int32_t n) noexcept {
    float largest = -std::numeric_limits<float>::infinity();
    std::int32_t block = -1;  // where the largest is
    for (std::int32_t first = 0; first < n; first += k_block) {
        const Range range = range_of(logits + first, std::min(k_block, n - first));
        if (range.least < k_least || range.largest >= k_infinity) {
            return invalid_row(logits, n);
        }
        const std::int32_t bits = range.largest ^ ((range.largest >> 31) & 0x7FFFFFFF);
        float value;
        std::memcpy(&value, &bits, sizeof value);
        if (value > largest) {
            largest = value;
            block = first;
        }
    }
    if (block < 0) {
        return invalid_row(logits, n);
    }
    // Compared as floats: the two zeros are equal, though their keys are not.
    return static_cast<Token>(std::find(logits + block, logits + n, largest) - logits);
}

}  // namespace aner

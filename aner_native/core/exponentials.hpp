// The exponential of many numbers at once, for sums over a vocabulary.
#pragma once

#include <cstddef>

namespace aner {

// Replaces each value, at most 0, by its exponential, to a relative error below 1e-12. Below -700, minus infinity included, it
// is that of -700: about 1e-304, which no sum with a 1 in it notices.
//
// Written out because a compiler does not vectorize calls of std::exp, and so that no C library decides which token is drawn.
void exponentials(double * values, std::size_t n) noexcept;

}  // namespace aner

// Finds stop strings in text that arrives in pieces.
//
// The first stop string that is complete ends the text; of several that end at the same byte, the one that starts first. No
// part of it is emitted. What is held back meanwhile is the longest suffix that can still become a stop string, never more.
// Each byte costs amortized constant time for each stop string, whatever the strings are.
#pragma once

#include "errors.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace aner {

// Count, size, emptiness and UTF-8. Errors: invalid_request, with the limit and the value.
Error validate_stops(const std::vector<std::string> & stops) noexcept;

class StopMatcher {
public:
    // `stops` passed validate_stops(). None: everything passes at once.
    explicit StopMatcher(std::vector<std::string> stops);

    // Appends to `emitted` what is now certain. True when a stop string was found, in this call or before; the rest is dropped.
    bool push(std::string_view text, std::string & emitted);

    // The text is over: appends what was held back.
    void finish(std::string & emitted);

private:
    struct Pattern {
        std::string bytes;
        std::vector<std::int32_t> border;  // [n]: longest proper border of the first n bytes
        std::int32_t matched = 0;          // how many of its first bytes the text ends with

        bool advance(char byte) noexcept;  // whether all of it is there
    };

    std::vector<Pattern> patterns_;
    std::string held_;
    bool stopped_ = false;
};

}  // namespace aner

// What the text cases compare with: the rules of stop strings on a whole text, and every way to cut a text into pieces.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace aner::testing {

struct Cut {
    std::string text;  // before the stop string, or all of it
    bool stopped = false;
};

// The stop string that is complete first, and of those the one that starts first.
inline Cut cut_at_stop(const std::string & text, const std::vector<std::string> & stops) {
    for (std::size_t end = 1; end <= text.size(); ++end) {
        for (std::size_t start = 0; start < end; ++start) {
            if (std::find(stops.begin(), stops.end(), text.substr(start, end - start)) != stops.end()) {
                return {text.substr(0, start), true};
            }
        }
    }
    return {text, false};
}

// The longest suffix of `text` that is a beginning, but not the whole, of a stop string.
inline std::size_t could_become_a_stop(const std::string & text, const std::vector<std::string> & stops) {
    for (std::size_t start = 0; start < text.size(); ++start) {
        const std::string suffix = text.substr(start);
        for (const std::string & stop : stops) {
            if (suffix.size() < stop.size() && stop.compare(0, suffix.size(), suffix) == 0) {
                return suffix.size();
            }
        }
    }
    return 0;
}

// All 2^(size - 1) ways to cut `text`; bit i of `split`: a cut after byte i.
inline std::vector<std::string_view> pieces_of(std::string_view text, std::uint32_t split) {
    std::vector<std::string_view> pieces;
    std::size_t start = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (i + 1 == text.size() || (split >> i & 1U) != 0) {
            pieces.push_back(text.substr(start, i + 1 - start));
            start = i + 1;
        }
    }
    return pieces;
}

inline std::uint32_t n_splits(std::string_view text) {
    return text.empty() ? 1 : 1U << (text.size() - 1);
}

}  // namespace aner::testing

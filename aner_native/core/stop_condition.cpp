#include "stop_condition.hpp"

#include "limits.hpp"
#include "utf8_decoder.hpp"

#include <algorithm>
#include <cstddef>
#include <new>
#include <utility>

namespace aner {

namespace {

// border[n]: the longest proper prefix of the first n bytes that is also their suffix (Knuth, Morris, Pratt 1977).
std::vector<std::int32_t> borders_of(const std::string & bytes) {
    std::vector<std::int32_t> border(bytes.size() + 1, 0);
    std::int32_t length = 0;
    for (std::size_t n = 2; n <= bytes.size(); ++n) {
        while (length > 0 && bytes[length] != bytes[n - 1]) {
            length = border[length];
        }
        length += bytes[length] == bytes[n - 1] ? 1 : 0;
        border[n] = length;
    }
    return border;
}

}  // namespace

Error validate_stops(const std::vector<std::string> & stops) noexcept try {
    if (stops.size() > limits::max_stop_strings) {
        return Error{ErrorCode::invalid_request, "stop must have at most " + std::to_string(limits::max_stop_strings) +
                                                     " strings, got " + std::to_string(stops.size())};
    }
    for (std::size_t i = 0; i < stops.size(); ++i) {
        const std::string name = "stop[" + std::to_string(i) + "]";
        if (stops[i].empty() || stops[i].size() > limits::max_stop_bytes) {
            return Error{ErrorCode::invalid_request, name + " must have 1 to " + std::to_string(limits::max_stop_bytes) +
                                                         " bytes of UTF-8, got " + std::to_string(stops[i].size())};
        }
        if (!is_utf8(stops[i])) {
            return Error{ErrorCode::invalid_request, name + " must be valid UTF-8"};
        }
    }
    return {};
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

StopMatcher::StopMatcher(std::vector<std::string> stops) {
    patterns_.reserve(stops.size());
    for (std::string & stop : stops) {
        std::vector<std::int32_t> border = borders_of(stop);
        patterns_.push_back({std::move(stop), std::move(border)});
    }
}

bool StopMatcher::push(std::string_view text, std::string & emitted) {
    if (stopped_) {
        return true;
    }
    // Emitted for now: [before, unread) was held back, [unread, end) is new. What is not certain is taken off again.
    emitted += held_;
    const std::size_t unread = emitted.size();
    emitted += text;
    for (std::size_t i = unread; i < emitted.size(); ++i) {
        std::size_t found = 0;  // the longest that ends here is the one that starts first
        for (Pattern & pattern : patterns_) {
            if (pattern.advance(emitted[i])) {
                found = std::max(found, pattern.bytes.size());
            }
        }
        if (found > 0) {
            emitted.resize(i + 1 - found);
            held_.clear();
            stopped_ = true;
            return true;
        }
    }
    std::int32_t n_held = 0;
    for (const Pattern & pattern : patterns_) {
        n_held = std::max(n_held, pattern.matched);
    }
    held_.assign(emitted, emitted.size() - n_held);
    emitted.resize(emitted.size() - n_held);
    return false;
}

bool StopMatcher::Pattern::advance(char byte) noexcept {
    while (matched > 0 && bytes[matched] != byte) {
        matched = border[matched];
    }
    matched += bytes[matched] == byte ? 1 : 0;
    return static_cast<std::size_t>(matched) == bytes.size();
}

void StopMatcher::finish(std::string & emitted) {
    emitted += held_;
    held_.clear();
}

}  // namespace aner

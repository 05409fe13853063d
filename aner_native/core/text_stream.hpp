// From the bytes of token pieces to the text that a caller sees: decoded UTF-8, cut before the first stop string.
//
// The emitted pieces joined are the whole text, however the bytes were split, and each of them is valid UTF-8.
#pragma once

#include "stop_condition.hpp"
#include "utf8_decoder.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace aner {

struct StreamedText {
    std::string text;      // may be empty: nothing is certain yet
    bool stopped = false;  // a stop string was found; nothing follows
};

class TextStream {
public:
    // `stops` passed validate_stops().
    explicit TextStream(std::vector<std::string> stops);

    StreamedText push(std::string_view piece);

    // The output is over for any reason: what was held back, which can itself complete a stop string. Call it once, last.
    StreamedText finish();

private:
    Utf8Decoder decoder_;
    StopMatcher matcher_;
    std::string decoded_;
};

}  // namespace aner

// Valid UTF-8 out of any bytes in any pieces: what Python's incremental decoder gives with errors="replace".
//
// Each maximal subpart of an ill-formed sequence becomes one U+FFFD (Unicode standard, section 3.9). A character that is not
// complete yet is held until the next piece or the end.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace aner {

class Utf8Decoder {
public:
    // Appends the characters that are complete now.
    void push(std::string_view bytes, std::string & text);
    // The bytes are over: an incomplete last character becomes U+FFFD.
    void finish(std::string & text);

private:
    char pending_[4] = {};      // the incomplete character
    std::int32_t n_pending_ = 0;
    std::int32_t n_missing_ = 0;
    unsigned char lowest_ = 0x80;   // what the next continuation byte may be
    unsigned char highest_ = 0xBF;
};

[[nodiscard]] bool is_utf8(std::string_view bytes);

}  // namespace aner

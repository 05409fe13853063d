#include "utf8_decoder.hpp"

namespace aner {

namespace {

constexpr const char * k_replacement = "\xEF\xBF\xBD";  // U+FFFD

// What a lead byte asks for. The first continuation byte has a narrower range where all of 80..BF would admit overlong forms,
// surrogates, or code points above U+10FFFF.
struct Lead {
    std::int32_t n_continuation;  // 0: not a lead byte
    unsigned char lowest;
    unsigned char highest;
};

Lead lead_of(unsigned char byte) noexcept {
    if (byte < 0xC2 || byte > 0xF4) {
        return {0, 0, 0};
    }
    if (byte < 0xE0) {
        return {1, 0x80, 0xBF};
    }
    if (byte < 0xF0) {
        const unsigned char lowest = byte == 0xE0 ? 0xA0 : 0x80;
        const unsigned char highest = byte == 0xED ? 0x9F : 0xBF;
        return {2, lowest, highest};
    }
    const unsigned char lowest = byte == 0xF0 ? 0x90 : 0x80;
    const unsigned char highest = byte == 0xF4 ? 0x8F : 0xBF;
    return {3, lowest, highest};
}

}  // namespace

void Utf8Decoder::push(std::string_view bytes, std::string & text) {
    for (const char c : bytes) {
        const auto byte = static_cast<unsigned char>(c);
        if (n_missing_ > 0) {
            if (byte >= lowest_ && byte <= highest_) {
                pending_[n_pending_++] = c;
                lowest_ = 0x80;
                highest_ = 0xBF;
                if (--n_missing_ == 0) {
                    text.append(pending_, n_pending_);
                    n_pending_ = 0;
                }
                continue;
            }
            finish(text);  // the byte that does not continue the character may begin another
        }
        if (byte < 0x80) {
            text.push_back(c);
            continue;
        }
        const Lead lead = lead_of(byte);
        if (lead.n_continuation == 0) {
            text.append(k_replacement);
            continue;
        }
        pending_[n_pending_++] = c;
        n_missing_ = lead.n_continuation;
        lowest_ = lead.lowest;
        highest_ = lead.highest;
    }
}

void Utf8Decoder::finish(std::string & text) {
    if (n_missing_ > 0) {
        text.append(k_replacement);
    }
    n_pending_ = 0;
    n_missing_ = 0;
}

bool is_utf8(std::string_view bytes) {
    std::string text;
    Utf8Decoder decoder;
    decoder.push(bytes, text);
    decoder.finish(text);
    return text == bytes;  // a replacement changes the bytes, nothing else does
}

}  // namespace aner

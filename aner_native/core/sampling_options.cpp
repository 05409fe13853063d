#include "sampling_options.hpp"

#include "limits.hpp"

#include <cmath>
#include <cstdio>
#include <limits>
#include <new>
#include <string>

namespace aner {

namespace {

std::string text_of(double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.7g", value);
    return text;
}

Error refused(const char * option, const std::string & limit, double value) {
    return Error{ErrorCode::invalid_request, std::string(option) + " must be " + limit + ", got " + text_of(value)};
}

struct FloatRange {
    const char * option;
    float value;
    float least;
    float largest;
    bool above_least;  // least itself is out of range
};

Error check(const FloatRange & range) {
    // Written so that a NaN, which compares with nothing, is refused.
    const bool low_enough = range.value <= range.largest;
    const bool high_enough = range.above_least ? range.value > range.least : range.value >= range.least;
    if (low_enough && high_enough) {
        return {};
    }
    const std::string limit = (range.above_least ? "above " : "at least ") + text_of(static_cast<double>(range.least)) +
                              " and at most " + text_of(static_cast<double>(range.largest));
    return refused(range.option, limit, static_cast<double>(range.value));
}

Error check_token(const char * option, Token token, std::int32_t n_vocab) {
    if (token >= 0 && token < n_vocab) {
        return {};
    }
    return refused(option, "a token id from 0 to " + std::to_string(n_vocab - 1), token);
}

}  // namespace

Error validate(const SamplingOptions & options, std::int32_t n_vocab) noexcept try {
    const FloatRange ranges[] = {
        {"temperature", options.temperature, 0, 100, false},
        {"top_p", options.top_p, 0, 1, true},
        {"min_p", options.min_p, 0, 1, false},
        {"repeat_penalty", options.repeat_penalty, 0, 10, true},
        {"frequency_penalty", options.frequency_penalty, -2, 2, false},
        {"presence_penalty", options.presence_penalty, -2, 2, false},
    };
    for (const FloatRange & range : ranges) {
        if (Error error = check(range); error.failed()) {
            return error;
        }
    }
    if (options.top_k < 0) {
        return refused("top_k", "at least 0 (off)", options.top_k);
    }
    if (options.penalty_window < -1) {
        return refused("penalty_window", "at least -1 (all tokens)", options.penalty_window);
    }
    if (options.min_tokens < 0) {
        return refused("min_tokens", "at least 0", options.min_tokens);
    }
    if (options.n_logprobs < -1 || options.n_logprobs > limits::max_logprobs) {
        return refused("logprobs", "at least -1 (off) and at most " + std::to_string(limits::max_logprobs), options.n_logprobs);
    }
    for (const auto & [token, bias] : options.logit_bias) {
        if (Error error = check_token("a logit_bias key", token, n_vocab); error.failed()) {
            return error;
        }
        const bool ban = bias == -std::numeric_limits<float>::infinity();
        if (!ban && !(std::fabs(bias) <= 100)) {
            return refused("a logit_bias value", "-100 to 100, or -infinity to ban the token", static_cast<double>(bias));
        }
    }
    for (const Token token : options.stop_token_ids) {
        if (Error error = check_token("a stop_token_ids entry", token, n_vocab); error.failed()) {
            return error;
        }
    }
    return {};
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

}  // namespace aner

// Errors are values: a code that every layer can act on, and a message for the person who has to.
//
// A function of core that is noexcept reports memory that ran out as out_of_memory; those that are not pass std::bad_alloc on to
// one that is. A result that nobody looked at does not compile (with warnings as errors). The binding turns a code into one
// Python exception by one table; python/aner/errors.py lists the classes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>

namespace aner {

enum class ErrorCode : std::int32_t {
    ok,
    invalid_request,          // an argument of one request is out of range or of the wrong form
    configuration,            // a setting of load or of a builder is out of range
    unsupported_combination,  // each setting is fine alone, the model or the other settings forbid it
    unsupported_operation,    // this kind of lease does not have this operation
    model_not_found,          // no readable regular file at the path
    model_load,               // the file is damaged, foreign, hostile or not supported
    adapter,                  // likewise for an adapter, or it belongs to another base
    fingerprint_mismatch,     // the content is not what was expected, or changed during the load
    device_unavailable,       // not compiled in, no driver or device, or not enough memory
    out_of_memory,            // would not fit, or an allocation failed
    context_full,             // the prompt does not fit in the context
    busy,                     // at capacity: one caller per lease, or the queue is full
    reentrant_request,        // a request from a callback that could never be served
    closed,                   // the handle was closed
    forked,                   // the handle belongs to the parent process
    cancelled,                // someone cancelled the work
    timeout,                  // the request's own time ran out
    invalid_output,           // the model produced logits that are not numbers
    trim_unsupported,         // the engine cannot keep a prefix of a sequence exactly
    engine,                   // the engine failed in a call that should have worked
    internal,                 // a bug in aner
    count_                    // not a code: the number of codes, for tables and their tests
};

// The code's name as it is written above, for tables and logs.
[[nodiscard]] const char * name_of(ErrorCode code) noexcept;

class [[nodiscard]] Error {
public:
    Error() noexcept = default;
    explicit Error(ErrorCode code) noexcept : code_(code) {}
    // Where there is no memory for the message, the code stands alone.
    Error(ErrorCode code, std::string message) noexcept;
    Error(ErrorCode code, const char * message) noexcept;

    [[nodiscard]] bool failed() const noexcept { return code_ != ErrorCode::ok; }
    [[nodiscard]] ErrorCode code() const noexcept { return code_; }
    // What was asked, what was found, what to do. Empty when ok.
    [[nodiscard]] const std::string & message() const noexcept;

private:
    ErrorCode code_ = ErrorCode::ok;
    std::shared_ptr<const std::string> message_;  // shared: to copy an error takes no memory
};

// A value or the error that took its place.
template <typename T>
class [[nodiscard]] Result {
public:
    Result(T value) noexcept : content_(std::in_place_index<0>, std::move(value)) {}
    Result(Error error) noexcept : content_(std::in_place_index<1>, std::move(error)) {}

    [[nodiscard]] bool failed() const noexcept { return content_.index() == 1; }
    [[nodiscard]] Error error() const noexcept { return failed() ? std::get<1>(content_) : Error{}; }

    // Only after failed() was asked and was false.
    [[nodiscard]] T & value() noexcept { return *std::get_if<0>(&content_); }
    [[nodiscard]] const T & value() const noexcept { return *std::get_if<0>(&content_); }
    [[nodiscard]] T take() noexcept { return std::move(*std::get_if<0>(&content_)); }

    // Moves the value out, or gives the error and leaves `out` as it is.
    Error into(T & out) noexcept {
        if (failed()) {
            return error();
        }
        out = take();
        return {};
    }

private:
    std::variant<T, Error> content_;
};

}  // namespace aner

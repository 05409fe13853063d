#include "errors.hpp"

#include <new>

namespace aner {

namespace {

// Made when the library is loaded, as they are needed when there is no memory.
const std::string k_no_message;
const std::string k_no_memory = "there was not enough memory: free some, or use a smaller model, context or request";

}  // namespace

Error::Error(ErrorCode code, std::string message) noexcept : code_(code) {
    try {
        message_ = std::make_shared<const std::string>(std::move(message));
    } catch (const std::bad_alloc &) {
    }
}

Error::Error(ErrorCode code, const char * message) noexcept : code_(code) {
    try {
        message_ = std::make_shared<const std::string>(message);
    } catch (const std::bad_alloc &) {
    }
}

const std::string & Error::message() const noexcept {
    return message_ != nullptr ? *message_ : code_ == ErrorCode::out_of_memory ? k_no_memory : k_no_message;
}

const char * name_of(ErrorCode code) noexcept {
    switch (code) {
        case ErrorCode::ok: return "ok";
        case ErrorCode::invalid_request: return "invalid_request";
        case ErrorCode::configuration: return "configuration";
        case ErrorCode::unsupported_combination: return "unsupported_combination";
        case ErrorCode::unsupported_operation: return "unsupported_operation";
        case ErrorCode::model_not_found: return "model_not_found";
        case ErrorCode::model_load: return "model_load";
        case ErrorCode::adapter: return "adapter";
        case ErrorCode::fingerprint_mismatch: return "fingerprint_mismatch";
        case ErrorCode::device_unavailable: return "device_unavailable";
        case ErrorCode::out_of_memory: return "out_of_memory";
        case ErrorCode::context_full: return "context_full";
        case ErrorCode::busy: return "busy";
        case ErrorCode::reentrant_request: return "reentrant_request";
        case ErrorCode::closed: return "closed";
        case ErrorCode::forked: return "forked";
        case ErrorCode::cancelled: return "cancelled";
        case ErrorCode::timeout: return "timeout";
        case ErrorCode::invalid_output: return "invalid_output";
        case ErrorCode::trim_unsupported: return "trim_unsupported";
        case ErrorCode::engine: return "engine";
        case ErrorCode::internal: return "internal";
        case ErrorCode::count_: break;
    }
    return "unknown";
}

}  // namespace aner

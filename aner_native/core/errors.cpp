#include "errors.hpp"

namespace aner {

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

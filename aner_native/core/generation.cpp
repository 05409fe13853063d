#include "generation.hpp"

#include "stop_condition.hpp"

#include <new>

namespace aner {

namespace {

Error refuse(std::string message) { return Error{ErrorCode::invalid_request, std::move(message)}; }

Error validate_tokens(const char * name, const std::vector<Token> & tokens, std::int32_t n_vocab) {
    for (const Token token : tokens) {
        if (token < 0 || token >= n_vocab) {
            return refuse(std::string(name) + " holds " + std::to_string(token) + ": the model's vocabulary is 0.." +
                          std::to_string(n_vocab - 1));
        }
    }
    return {};
}

}  // namespace

Error validate(const GenerationRequest & request, std::int32_t n_vocab, std::int32_t context) noexcept try {
    if (request.max_tokens < 0) {
        return refuse("max_tokens is " + std::to_string(request.max_tokens) + ": it must be 0 or more");
    }
    if (request.prompt.empty()) {
        return refuse("the prompt has no tokens: give it at least one character");
    }
    if (const auto n = static_cast<std::int64_t>(request.prompt.size()); n > context - 1) {
        return Error{ErrorCode::context_full, "the prompt has " + std::to_string(n) + " tokens and the context holds " +
                                                  std::to_string(context) + ", of which one is kept for the answer: shorten the "
                                                  "prompt or load with a larger context"};
    }
    if (Error error = validate_tokens("the prompt", request.prompt, n_vocab); error.failed()) {
        return error;
    }
    if (Error error = validate_stops(request.stop); error.failed()) {
        return error;
    }
    if (request.sampling.min_tokens > request.max_tokens) {
        return refuse("min_tokens is " + std::to_string(request.sampling.min_tokens) + " and max_tokens is " +
                      std::to_string(request.max_tokens) + ": min_tokens must not be above it");
    }
    return validate(request.sampling, n_vocab);
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

Error validate_draft_sampling(const ContextSettings & settings, const GenerationRequest & request) noexcept try {
    if (settings.speculative_tokens == 0 || !(request.sampling.temperature > 0)) {
        return {};
    }
    return refuse("temperature is " + std::to_string(request.sampling.temperature) +
                  " on a lease that speculates, which is greedy only: use temperature 0, or a lease with speculative_tokens 0");
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

}  // namespace aner

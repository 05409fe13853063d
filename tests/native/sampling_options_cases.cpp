#include "check.hpp"
#include "sampler_oracle.hpp"
#include "sampling_options.hpp"

using namespace aner;
using namespace aner::testing;

namespace {

bool refused(const std::function<void(SamplingOptions &)> & change, const char * message) {
    SamplingOptions options;
    change(options);
    const Error error = validate(options, 100);
    return error.code() == ErrorCode::invalid_request && error.message() == message;
}

}  // namespace

ANER_CASE("Z7", options_out_of_range_are_refused_with_the_limit_and_the_value) {
    using O = SamplingOptions;
    CHECK(!validate(O{}, 100).failed());
    CHECK(refused([](O & o) { o.temperature = -1; }, "temperature must be at least 0 and at most 100, got -1"));
    CHECK(refused([](O & o) { o.temperature = 1e6F; }, "temperature must be at least 0 and at most 100, got 1000000"));
    CHECK(refused([](O & o) { o.temperature = k_nan; }, "temperature must be at least 0 and at most 100, got nan"));
    CHECK(refused([](O & o) { o.temperature = k_inf; }, "temperature must be at least 0 and at most 100, got inf"));
    CHECK(refused([](O & o) { o.top_p = -1; }, "top_p must be above 0 and at most 1, got -1"));
    CHECK(refused([](O & o) { o.top_p = 0; }, "top_p must be above 0 and at most 1, got 0"));
    CHECK(refused([](O & o) { o.top_p = 2; }, "top_p must be above 0 and at most 1, got 2"));
    CHECK(refused([](O & o) { o.min_p = 1.5F; }, "min_p must be at least 0 and at most 1, got 1.5"));
    CHECK(refused([](O & o) { o.top_k = -5; }, "top_k must be at least 0 (off), got -5"));
    CHECK(refused([](O & o) { o.repeat_penalty = 0; }, "repeat_penalty must be above 0 and at most 10, got 0"));
    CHECK(refused([](O & o) { o.repeat_penalty = 11; }, "repeat_penalty must be above 0 and at most 10, got 11"));
    CHECK(refused([](O & o) { o.frequency_penalty = 2.5F; }, "frequency_penalty must be at least -2 and at most 2, got 2.5"));
    CHECK(refused([](O & o) { o.presence_penalty = -3; }, "presence_penalty must be at least -2 and at most 2, got -3"));
    CHECK(refused([](O & o) { o.penalty_window = -2; }, "penalty_window must be at least -1 (all tokens), got -2"));
    CHECK(refused([](O & o) { o.min_tokens = -1; }, "min_tokens must be at least 0, got -1"));
    CHECK(refused([](O & o) { o.n_logprobs = 21; }, "logprobs must be at least -1 (off) and at most 20, got 21"));
    CHECK(refused([](O & o) { o.n_logprobs = -2; }, "logprobs must be at least -1 (off) and at most 20, got -2"));
    CHECK(refused([](O & o) { o.logit_bias = {{100, 1.0F}}; }, "a logit_bias key must be a token id from 0 to 99, got 100"));
    CHECK(refused([](O & o) { o.logit_bias = {{-1, 1.0F}}; }, "a logit_bias key must be a token id from 0 to 99, got -1"));
    for (const float bias : {101.0F, k_inf, k_nan}) {
        CHECK(refused([&](O & o) { o.logit_bias = {{1, bias}}; },
                      (std::string("a logit_bias value must be -100 to 100, or -infinity to ban the token, got ") +
                       (std::isnan(bias) ? "nan" : std::isinf(bias) ? "inf" : "101"))
                          .c_str()));
    }
    CHECK(refused([](O & o) { o.stop_token_ids = {100}; }, "a stop_token_ids entry must be a token id from 0 to 99, got 100"));

    O extreme;
    extreme.temperature = 100;
    extreme.top_p = 1e-30F;
    extreme.min_p = 1;
    extreme.repeat_penalty = 10;
    extreme.frequency_penalty = -2;
    extreme.presence_penalty = 2;
    extreme.penalty_window = -1;
    extreme.top_k = std::numeric_limits<std::int32_t>::max();
    extreme.logit_bias = {{0, -k_inf}, {99, 100.0F}};
    extreme.seed = ~std::uint64_t{0};
    extreme.n_logprobs = 20;
    CHECK(!validate(extreme, 100).failed());
}

ANER_CASE("Z7 S6", the_options_that_can_change_the_greedy_choice_are_known) {
    using O = SamplingOptions;
    const auto changes = [](const std::function<void(O &)> & change) {
        O options;
        change(options);
        return options.changes_greedy_choice();
    };
    CHECK(!changes([](O & o) { o.top_k = 5; o.top_p = 0.5F; o.min_p = 0.5F; o.seed = 1; o.n_logprobs = 3; }));
    CHECK(!changes([](O & o) { o.repeat_penalty = 2; o.penalty_window = 0; }));
    CHECK(changes([](O & o) { o.logit_bias = {{1, 1.0F}}; }));
    CHECK(changes([](O & o) { o.repeat_penalty = 2; }));
    CHECK(changes([](O & o) { o.frequency_penalty = 1; }));
    CHECK(changes([](O & o) { o.presence_penalty = -1; }));
    CHECK(changes([](O & o) { o.ignore_eos = true; }));
    CHECK(changes([](O & o) { o.min_tokens = 1; }));
}

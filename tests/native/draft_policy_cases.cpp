#include "check.hpp"
#include "draft_policy.hpp"

#include <random>

using namespace aner;

namespace {

// A staircase as measured on a CPU: a call of n rows in single steps.
CostTable staircase() { return {0, 1.0F, 1.6F, 1.75F, 1.9F, 2.2F, 2.4F, 2.55F, 2.7F, 3.0F}; }

// Tokens per unit of time of a policy on text where each proposed token is right with a chance of `rate`, against no drafts.
double speed_up(double rate, std::int32_t match_length, int n_calls) {
    const CostTable costs = staircase();
    DraftPolicy policy(8, costs);
    std::mt19937 random(11);
    std::uniform_real_distribution<double> uniform(0, 1);
    double emitted = 0;
    double time = 0;
    for (int call = 0; call < n_calls; ++call) {
        const std::int32_t k = policy.wants_draft() ? policy.choose(match_length, 8) : 0;
        std::int32_t accepted = 0;
        while (accepted < k && uniform(random) < rate) {
            ++accepted;
        }
        if (k > 0) {
            policy.observe(match_length, k, accepted);
        }
        emitted += 1 + accepted;
        time += static_cast<double>(costs[static_cast<std::size_t>(k) + 1]);
    }
    return emitted / time;
}

}  // namespace

ANER_CASE("S10", text_whose_drafts_are_never_right_costs_less_than_three_per_cent) {
    for (const std::int32_t match_length : {2, 4, 8}) {
        CHECK(speed_up(0.0, match_length, 256) > 0.95);   // a short answer pays for the first tries
        CHECK(speed_up(0.0, match_length, 2000) > 0.97);
    }
}

ANER_CASE("S10", text_that_copies_is_drafted_in_full) {
    DraftPolicy policy(7, staircase());
    for (int i = 0; i < 20; ++i) {
        CHECK(policy.wants_draft());
        CHECK(policy.choose(8, 7) > 0);
        policy.observe(8, 7, 7);
    }
    CHECK_EQUAL(policy.choose(8, 7), 7);
    CHECK(speed_up(1.0, 8, 200) > 2.5);
}

ANER_CASE("S10", the_policy_finds_text_that_begins_to_repeat_after_a_long_time_without) {
    DraftPolicy policy(8, staircase());
    for (int i = 0; i < 1000; ++i) {
        if (policy.wants_draft() && policy.choose(4, 8) > 0) {
            policy.observe(4, 8, 0);
        }
    }
    int calls = 0;
    std::int32_t k = 0;
    while (k < 7 && calls < 200) {  // the eighth place is not worth its step of the staircase without evidence
        ++calls;
        k = policy.wants_draft() ? policy.choose(4, 8) : 0;
        if (k > 0) {
            policy.observe(4, k, k);
        }
    }
    CHECK_EQUAL(k, 7);
}

ANER_CASE("S10", a_draft_never_exceeds_what_is_available_and_equal_evidence_gives_equal_drafts) {
    DraftPolicy one(32, {});
    DraftPolicy two(32, {});
    std::mt19937 random(3);
    for (int i = 0; i < 2000; ++i) {
        const auto length = static_cast<std::int32_t>(2 + random() % 7);
        const auto available = static_cast<std::int32_t>(random() % 33);
        CHECK_EQUAL(one.wants_draft(), two.wants_draft());
        const std::int32_t k = one.choose(length, available);
        CHECK_EQUAL(k, two.choose(length, available));
        CHECK(k <= available);
        const std::int32_t accepted = k > 0 ? static_cast<std::int32_t>(random() % static_cast<unsigned>(k + 1)) : 0;
        one.observe(length, k, accepted);
        two.observe(length, k, accepted);
    }
}

#include "check.hpp"
#include "kv_trim.hpp"

#include <algorithm>

using namespace aner;

namespace {

// A sequence that holds [low, high); `honest` false: it says that it removed, and lost everything.
class FakeMemory final : public SequenceMemory {
public:
    FakeMemory(Position low, Position high, Position window, bool honest = true, bool can_remove = true)
        : low_(low), high_(high), window_(window), honest_(honest), can_remove_(can_remove) {}
    [[nodiscard]] Position min_position(SequenceId) const noexcept override { return high_ > low_ ? low_ : -1; }
    [[nodiscard]] Position max_position(SequenceId) const noexcept override { return high_ > low_ ? high_ - 1 : -1; }
    [[nodiscard]] Position window() const noexcept override { return window_; }
    bool remove_from(SequenceId, Position first) noexcept override {
        ++n_removals;
        if (!can_remove_) {
            return false;
        }
        high_ = honest_ ? std::min(high_, first) : low_;
        return true;
    }
    int n_removals = 0;

private:
    Position low_, high_, window_;
    bool honest_, can_remove_;
};

ErrorCode trimmed(FakeMemory memory, Position cut) { return trim_to(memory, 0, cut).code(); }

}  // namespace

ANER_CASE("P3 S3", a_trim_keeps_what_is_below_the_cut_and_removes_the_rest) {
    FakeMemory memory(0, 100, 0);
    CHECK(!trim_to(memory, 0, 40).failed());
    CHECK_EQUAL(memory.max_position(0), 39);
    CHECK(!trim_to(memory, 0, 40).failed());
    CHECK_EQUAL(memory.n_removals, 1);  // nothing above the cut: the engine is not asked
    CHECK(!trim_to(memory, 0, 0).failed());
    CHECK_EQUAL(memory.max_position(0), -1);
    CHECK(!trim_to(memory, 0, 0).failed());
}

ANER_CASE("P13", a_cut_whose_window_is_not_whole_is_refused_before_anything_is_removed) {
    FakeMemory memory(244, 500, 32);
    CHECK(trim_to(memory, 0, 100).code() == ErrorCode::trim_unsupported);
    CHECK_EQUAL(memory.n_removals, 0);
    CHECK(trimmed(FakeMemory(244, 500, 32), 275) == ErrorCode::trim_unsupported);  // needs 243
    CHECK(trimmed(FakeMemory(244, 500, 32), 276) == ErrorCode::ok);
}

ANER_CASE("P13", an_engine_that_says_it_trimmed_and_did_not_is_found_out) {
    CHECK(trimmed(FakeMemory(0, 100, 0, false), 40) == ErrorCode::trim_unsupported);
    CHECK(trimmed(FakeMemory(0, 100, 0, true, false), 40) == ErrorCode::trim_unsupported);  // recurrent memory says no
    CHECK(trimmed(FakeMemory(0, 30, 0), 40) == ErrorCode::trim_unsupported);                // fewer than claimed
    CHECK(trimmed(FakeMemory(0, 0, 0), 1) == ErrorCode::trim_unsupported);
}

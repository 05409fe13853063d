#include "check.hpp"
#include "errors.hpp"

#include <memory>
#include <set>

using namespace aner;
using namespace aner::testing;

ANER_CASE("E1", every_error_code_has_a_name_of_its_own) {
    std::set<std::string> names;
    for (std::int32_t code = 0; code < static_cast<std::int32_t>(ErrorCode::count_); ++code) {
        const std::string name = name_of(static_cast<ErrorCode>(code));
        CHECK(name != "unknown" && !name.empty());
        CHECK(names.insert(name).second);
    }
    CHECK_EQUAL(std::string(name_of(ErrorCode::count_)), "unknown");
}

ANER_CASE("E3", an_error_keeps_its_code_and_message_through_copies_and_moves) {
    const Error error(ErrorCode::busy, std::string("at capacity"));
    Error copy = error;
    const Error moved = std::move(copy);
    copy = moved;
    for (const Error & each : {error, moved, copy}) {
        CHECK(each.failed() && each.code() == ErrorCode::busy);
        CHECK_EQUAL(each.message(), "at capacity");
    }
    CHECK(!Error().failed() && Error().message().empty());
    CHECK(!Error(ErrorCode::out_of_memory).message().empty());  // which may have no memory for one of its own
}

ANER_CASE("", a_result_is_its_value_or_its_error) {
    Result<std::unique_ptr<int>> good(std::make_unique<int>(7));
    CHECK(!good.failed() && !good.error().failed());
    std::unique_ptr<int> out;
    CHECK(!good.into(out).failed());
    CHECK_EQUAL(*out, 7);
    Result<std::unique_ptr<int>> bad(Error(ErrorCode::engine, "broken"));
    CHECK(bad.failed());
    CHECK(bad.into(out).code() == ErrorCode::engine);
    CHECK_EQUAL(*out, 7);  // left as it was
    CHECK_EQUAL(bad.error().message(), "broken");
}

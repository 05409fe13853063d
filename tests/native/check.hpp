// A case is a function with a name; pytest lists and runs each as a test of its own (tests/native/test_native.py).
//
//   ANER_CASE("P4", a_fully_cached_prompt_replays_its_last_token) { CHECK(n == 1); }
//
// The first argument names the contract ids that the case holds ("" for none). CHECK stops the case at the first failure.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace aner::testing {

struct Case {
    const char * name;
    const char * contract;
    void (*run)();
};

inline std::vector<Case> & cases() {
    static std::vector<Case> all;
    return all;
}

struct Registration {
    Registration(const char * name, const char * contract, void (*run)()) { cases().push_back({name, contract, run}); }
};

struct Failure : std::runtime_error {
    using std::runtime_error::runtime_error;
};

[[noreturn]] inline void fail(const char * file, int line, const std::string & what) {
    std::ostringstream text;
    text << file << ':' << line << ": " << what;
    throw Failure(text.str());
}

template <typename A, typename B>
void check_equal(const A & a, const B & b, const char * text, const char * file, int line) {
    if (!(a == b)) {
        std::ostringstream out;
        out << "CHECK_EQUAL(" << text << ") failed";
        if constexpr (std::is_arithmetic_v<A> || std::is_convertible_v<A, std::string>) {
            out << ": " << a << " != " << b;
        }
        fail(file, line, out.str());
    }
}

}  // namespace aner::testing

#define ANER_CASE(contract_ids, name)                                                              \
    static void name();                                                                            \
    static const ::aner::testing::Registration registered_##name(#name, contract_ids, &name);      \
    static void name()

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) ::aner::testing::fail(__FILE__, __LINE__, "CHECK(" #condition ") failed"); \
    } while (false)

#define CHECK_EQUAL(a, b) ::aner::testing::check_equal((a), (b), #a ", " #b, __FILE__, __LINE__)

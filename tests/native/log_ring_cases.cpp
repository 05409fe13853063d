#include "check.hpp"
#include "log_ring.hpp"

#include <future>
#include <thread>

using namespace aner;
using namespace aner::testing;

namespace {

std::vector<std::string> drained() {
    std::vector<std::string> texts;
    for (const LogLine & line : LogRing::drain()) {
        texts.push_back(line.text);
    }
    return texts;
}

using Texts = std::vector<std::string>;

}  // namespace

ANER_CASE("E4", log_lines_come_out_whole_once_and_in_their_order) {
    (void) LogRing::drain();
    LogRing::append(LogLevel::info, false, "one\n");
    LogRing::append(LogLevel::error, false, "two\n");
    const std::vector<LogLine> lines = LogRing::drain();
    CHECK_EQUAL(lines.size(), 2U);
    CHECK_EQUAL(lines[0].text, "one");
    CHECK(lines[0].level == LogLevel::info);
    CHECK_EQUAL(lines[1].text, "two");
    CHECK(lines[1].level == LogLevel::error);
    CHECK(LogRing::drain().empty());
}

ANER_CASE("E4", a_line_in_parts_comes_out_when_it_has_ended) {
    (void) LogRing::drain();
    LogRing::append(LogLevel::warning, false, "loading ");
    LogRing::append(LogLevel::info, false, "between\n");
    LogRing::append(LogLevel::debug, true, "..");
    CHECK(drained() == Texts{"between"});
    LogRing::append(LogLevel::debug, true, "done\n");
    const std::vector<LogLine> lines = LogRing::drain();
    CHECK_EQUAL(lines.size(), 1U);
    CHECK_EQUAL(lines[0].text, "loading ..done");
    CHECK(lines[0].level == LogLevel::warning);  // of its first part
}

ANER_CASE("E4", parts_of_lines_from_two_threads_do_not_mix) {
    (void) LogRing::drain();
    LogRing::append(LogLevel::info, false, "mine ");
    std::promise<void> begun;
    std::promise<void> may_end;
    std::thread other([&] {
        LogRing::append(LogLevel::info, false, "theirs ");
        begun.set_value();
        may_end.get_future().wait();
        LogRing::append(LogLevel::info, true, "ends\n");
    });
    begun.get_future().wait();
    LogRing::append(LogLevel::info, true, "ends\n");
    const Texts first = drained();
    may_end.set_value();
    other.join();
    CHECK(first == Texts{"mine ends"});
    CHECK(drained() == Texts{"theirs ends"});
}

ANER_CASE("E4", the_oldest_lines_make_room_and_a_long_line_is_cut) {
    (void) LogRing::drain();
    for (int i = 0; i < 3000; ++i) {
        LogRing::append(LogLevel::info, false, ("line " + std::to_string(i) + "\n").c_str());
    }
    const Texts lines = drained();
    CHECK_EQUAL(lines.size(), 1024U);
    CHECK_EQUAL(lines.front(), "line 1976");
    CHECK_EQUAL(lines.back(), "line 2999");

    const std::string part(4000, 'x');
    LogRing::append(LogLevel::info, false, part.c_str());
    for (int i = 0; i < 1000; ++i) {
        LogRing::append(LogLevel::info, true, part.c_str());
    }
    LogRing::append(LogLevel::info, true, "\n");
    LogRing::append(LogLevel::info, false, (std::string(100000, 'y') + "\n").c_str());
    const Texts cut = drained();
    CHECK_EQUAL(cut.size(), 2U);
    CHECK_EQUAL(cut[0], part);
    CHECK_EQUAL(cut[1], std::string(4096, 'y'));
}

ANER_CASE("E4", nothing_and_empty_text_are_no_line_and_an_end_alone_is_an_empty_one) {
    (void) LogRing::drain();
    LogRing::append(LogLevel::info, false, nullptr);
    LogRing::append(LogLevel::info, true, "");
    CHECK(LogRing::drain().empty());
    LogRing::append(LogLevel::info, true, "\n");
    CHECK(drained() == Texts{""});
}

ANER_CASE("E3", the_errors_since_a_mark_are_those_of_the_calling_thread_and_stay_after_a_drain) {
    LogRing::append(LogLevel::error, false, "before\n");
    const std::uint64_t mark = LogRing::mark();
    CHECK_EQUAL(LogRing::errors_since(mark), "");
    LogRing::append(LogLevel::error, false, "first\n");
    LogRing::append(LogLevel::warning, false, "no error\n");
    std::thread([] { LogRing::append(LogLevel::error, false, "of another thread\n"); }).join();
    LogRing::append(LogLevel::error, false, "second\n");
    (void) LogRing::drain();
    CHECK_EQUAL(LogRing::errors_since(mark), "first; second");
    CHECK_EQUAL(LogRing::errors_since(LogRing::mark()), "");
}

ANER_CASE("E4", many_threads_may_log_and_drain_and_no_line_is_lost_or_doubled) {
    (void) LogRing::drain();
    constexpr int n_threads = 4;
    constexpr int n_lines = 200;
    std::vector<Texts> seen(n_threads);
    std::vector<std::thread> threads;
    for (int t = 0; t < n_threads; ++t) {
        threads.emplace_back([&, t] {
            for (int i = 0; i < n_lines; ++i) {
                LogRing::append(LogLevel::info, false, "a ");
                LogRing::append(LogLevel::info, true, "line\n");
                for (const std::string & text : drained()) {
                    seen[static_cast<std::size_t>(t)].push_back(text);
                }
            }
        });
    }
    std::size_t n = 0;
    for (int t = 0; t < n_threads; ++t) {
        threads[static_cast<std::size_t>(t)].join();
    }
    for (const Texts & texts : seen) {
        for (const std::string & text : texts) {
            CHECK_EQUAL(text, "a line");
        }
        n += texts.size();
    }
    CHECK_EQUAL(n, static_cast<std::size_t>(n_threads * n_lines));
}

#include "log_ring.hpp"

#include <deque>
#include <mutex>
#include <thread>

namespace aner {

namespace {

constexpr std::size_t k_max_lines = 1024;
constexpr std::size_t k_max_line_bytes = 4096;

struct Entry {
    LogLine line;
    std::thread::id thread;
    std::uint64_t number;
    bool whole;
    bool drained;
};

struct Ring {
    std::mutex mutex;
    std::deque<Entry> entries;
    std::uint64_t next = 0;
};

// Never destroyed: the engine may log while the process exits.
Ring & ring() noexcept {
    static Ring & only = *new Ring;
    return only;
}

}  // namespace

void LogRing::append(LogLevel level, bool continues, const char * text) noexcept {
    Ring & r = ring();
    const std::lock_guard<std::mutex> lock(r.mutex);
    std::string part(text == nullptr ? "" : text);
    const bool whole = !part.empty() && part.back() == '\n';
    if (whole) {
        part.pop_back();
    }
    const auto self = std::this_thread::get_id();
    if (continues) {
        for (auto e = r.entries.rbegin(); e != r.entries.rend(); ++e) {
            if (e->thread == self && !e->whole) {
                if (e->line.text.size() + part.size() <= k_max_line_bytes) {
                    e->line.text += part;
                }
                e->whole = whole;
                return;
            }
        }
    }
    part.resize(part.size() < k_max_line_bytes ? part.size() : k_max_line_bytes);
    r.entries.push_back({{level, std::move(part)}, self, r.next++, whole, false});
    if (r.entries.size() > k_max_lines) {
        r.entries.pop_front();
    }
}

std::vector<LogLine> LogRing::drain() noexcept {
    Ring & r = ring();
    const std::lock_guard<std::mutex> lock(r.mutex);
    std::vector<LogLine> lines;
    for (Entry & e : r.entries) {
        if (!e.drained && e.whole) {
            lines.push_back(e.line);
            e.drained = true;
        }
    }
    return lines;
}

std::uint64_t LogRing::mark() noexcept {
    Ring & r = ring();
    const std::lock_guard<std::mutex> lock(r.mutex);
    return r.next;
}

std::string LogRing::errors_since(std::uint64_t mark) noexcept {
    Ring & r = ring();
    const std::lock_guard<std::mutex> lock(r.mutex);
    std::string joined;
    for (const Entry & e : r.entries) {
        if (e.number >= mark && e.line.level == LogLevel::error && e.thread == std::this_thread::get_id()) {
            joined += joined.empty() ? "" : "; ";
            joined += e.line.text;
        }
    }
    return joined;
}

}  // namespace aner

#include "log_ring.hpp"

#include <deque>
#include <mutex>
#include <new>
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
Ring & ring = *new Ring;

}  // namespace

void LogRing::append(LogLevel level, bool continues, const char * text) noexcept try {
    const std::lock_guard<std::mutex> lock(ring.mutex);
    std::string part(text == nullptr ? "" : text);
    const bool whole = !part.empty() && part.back() == '\n';
    if (whole) {
        part.pop_back();
    }
    const auto self = std::this_thread::get_id();
    if (continues) {
        for (auto e = ring.entries.rbegin(); e != ring.entries.rend(); ++e) {
            if (e->thread == self && !e->whole) {
                e->whole = whole;
                if (e->line.text.size() + part.size() <= k_max_line_bytes) {
                    e->line.text += part;
                }
                return;
            }
        }
    }
    part.resize(part.size() < k_max_line_bytes ? part.size() : k_max_line_bytes);
    ring.entries.push_back({{level, std::move(part)}, self, ring.next++, whole, false});
    if (ring.entries.size() > k_max_lines) {
        ring.entries.pop_front();
    }
} catch (const std::bad_alloc &) {
}  // the line is lost

std::vector<LogLine> LogRing::drain() noexcept {
    const std::lock_guard<std::mutex> lock(ring.mutex);
    std::vector<LogLine> lines;
    try {
        for (Entry & e : ring.entries) {
            if (!e.drained && e.whole) {
                lines.push_back(e.line);
                e.drained = true;
            }
        }
    } catch (const std::bad_alloc &) {
    }  // the others come with the next call
    return lines;
}

std::uint64_t LogRing::mark() noexcept {
    const std::lock_guard<std::mutex> lock(ring.mutex);
    return ring.next;
}

std::string LogRing::errors_since(std::uint64_t mark) noexcept {
    const std::lock_guard<std::mutex> lock(ring.mutex);
    std::string joined;
    try {
        for (const Entry & e : ring.entries) {
            if (e.number >= mark && e.line.level == LogLevel::error && e.thread == std::this_thread::get_id()) {
                joined += joined.empty() ? "" : "; ";
                joined += e.line.text;
            }
        }
    } catch (const std::bad_alloc &) {
    }  // as many as there is memory for
    return joined;
}

}  // namespace aner

// Where the engine's log lines go: a bounded ring that the binding drains into the `aner` logger. Never prints.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace aner {

enum class LogLevel : std::int32_t { debug, info, warning, error };

struct LogLine {
    LogLevel level = LogLevel::debug;
    std::string text;
};

class LogRing {
public:
    // Any thread. The oldest line makes room. `text` may be part of a line; a line ends at its '\n'.
    static void append(LogLevel level, bool continues, const char * text) noexcept;

    // Takes all whole lines, oldest first.
    [[nodiscard]] static std::vector<LogLine> drain() noexcept;

    // Lines of level `error` that the calling thread appended since `mark`, joined: the engine's only error text.
    [[nodiscard]] static std::uint64_t mark() noexcept;
    [[nodiscard]] static std::string errors_since(std::uint64_t mark) noexcept;
};

}  // namespace aner

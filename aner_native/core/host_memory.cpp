#include "host_memory.hpp"

#include "types.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace aner {

namespace {

std::int64_t number_in(const char * path) noexcept {
    FILE * file = std::fopen(path, "re");
    if (file == nullptr) {
        return k_unmeasured;
    }
    long long value = k_unmeasured;
    if (std::fscanf(file, "%lld", &value) != 1) {
        value = k_unmeasured;  // "max"
    }
    std::fclose(file);
    return value;
}

std::int64_t host_available() noexcept {
    FILE * file = std::fopen("/proc/meminfo", "re");
    if (file == nullptr) {
        return k_unmeasured;
    }
    char line[256];
    long long kib = k_unmeasured;
    while (std::fgets(line, sizeof line, file) != nullptr) {
        if (std::sscanf(line, "MemAvailable: %lld kB", &kib) == 1) {
            break;
        }
    }
    std::fclose(file);
    return kib < 0 ? k_unmeasured : kib * 1024;
}

std::int64_t group_available() noexcept {
    const std::int64_t limit = number_in("/sys/fs/cgroup/memory.max");
    const std::int64_t used = number_in("/sys/fs/cgroup/memory.current");
    return limit < 0 || used < 0 ? k_unmeasured : std::max<std::int64_t>(limit - used, 0);
}

}  // namespace

std::int64_t available_memory() noexcept {
    const std::int64_t host = host_available();
    const std::int64_t group = group_available();
    return host < 0 ? group : group < 0 ? host : std::min(host, group);
}

}  // namespace aner

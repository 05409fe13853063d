#include "profile.hpp"

#include "gguf_value.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <new>
#include <set>
#include <thread>
#include <tuple>
#include <utility>

#if defined(__linux__)
#include <sched.h>
#endif

namespace aner {

namespace {

constexpr std::array<std::pair<KvType, const char *>, 9> k_kv_types{{{KvType::f16, "f16"},
                                                                     {KvType::f32, "f32"},
                                                                     {KvType::bf16, "bf16"},
                                                                     {KvType::q8_0, "q8_0"},
                                                                     {KvType::q5_1, "q5_1"},
                                                                     {KvType::q5_0, "q5_0"},
                                                                     {KvType::q4_1, "q4_1"},
                                                                     {KvType::q4_0, "q4_0"},
                                                                     {KvType::iq4_nl, "iq4_nl"}}};
constexpr std::array<std::pair<FlashAttention, const char *>, 3> k_policies{
    {{FlashAttention::automatic, "auto"}, {FlashAttention::on, "on"}, {FlashAttention::off, "off"}}};

template <typename Table>
std::string names_in(const Table & table) {
    std::string all;
    for (const auto & [value, name] : table) {
        all += all.empty() ? "" : ", ";
        all += name;
    }
    return all;
}

template <typename T, typename Table>
Result<T> named(const Table & table, const char * setting, const std::string & name) {
    for (const auto & [value, known] : table) {
        if (name == known) {
            return value;
        }
    }
    return Error{ErrorCode::configuration, std::string(setting) + " is " + quoted(name) + ": it must be one of " + names_in(table)};
}

template <typename T, typename Table>
const char * name_in(const Table & table, T value) noexcept {
    for (const auto & [known, name] : table) {
        if (known == value) {
            return name;
        }
    }
    return "unknown";
}

Error within(const char * name, std::int64_t value, std::int64_t low, std::int64_t high) {
    if (value >= low && value <= high) {
        return {};
    }
    return Error{ErrorCode::configuration, std::string(name) + " is " + std::to_string(value) + ": it must be within " +
                                               std::to_string(low) + ".." + std::to_string(high)};
}

#if defined(__linux__)
std::int32_t affinity_cpus() noexcept {
    cpu_set_t set;
    CPU_ZERO(&set);
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
}

// The CPU quota of the control group in whole CPUs, rounded up; 0 when there is none.
std::int32_t quota_cpus() noexcept {
    long long quota = 0;
    long long period = 0;
    if (FILE * v2 = std::fopen("/sys/fs/cgroup/cpu.max", "re")) {
        if (std::fscanf(v2, "%lld %lld", &quota, &period) != 2) {
            quota = 0;  // "max"
        }
        std::fclose(v2);
    } else if (FILE * v1 = std::fopen("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "re")) {
        FILE * v1_period = std::fopen("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "re");
        if (std::fscanf(v1, "%lld", &quota) != 1 || v1_period == nullptr || std::fscanf(v1_period, "%lld", &period) != 1) {
            quota = 0;
        }
        std::fclose(v1);
        if (v1_period != nullptr) {
            std::fclose(v1_period);
        }
    }
    return quota > 0 && period > 0 ? static_cast<std::int32_t>((quota + period - 1) / period) : 0;
}

// Physical cores among the usable CPUs: two hyper-threads of one core gain nothing in these kernels. 0: not known.
std::int32_t usable_cores() noexcept try {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0) {
        return 0;
    }
    std::set<std::pair<int, int>> cores;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
        if (!CPU_ISSET(cpu, &set)) {
            continue;
        }
        std::pair<int, int> core{-1, -1};
        int * parts[] = {&core.first, &core.second};
        const char * files[] = {"physical_package_id", "core_id"};
        for (int i = 0; i < 2; ++i) {
            const std::string path = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/" + files[i];
            FILE * file = std::fopen(path.c_str(), "re");
            if (file == nullptr || std::fscanf(file, "%d", parts[i]) != 1) {
                *parts[i] = -1;
            }
            if (file != nullptr) {
                std::fclose(file);
            }
        }
        if (core.second < 0) {
            return 0;
        }
        cores.insert(core);
    }
    return static_cast<std::int32_t>(cores.size());
} catch (const std::bad_alloc &) {
    return 0;
}
#endif

}  // namespace

const char * name_of(KvType type) noexcept { return name_in(k_kv_types, type); }
const char * name_of(FlashAttention policy) noexcept { return name_in(k_policies, policy); }

Result<KvType> kv_type_named(const std::string & name) noexcept try {
    return named<KvType>(k_kv_types, "kv_cache_type", name);
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

Result<FlashAttention> flash_attention_named(const std::string & name) noexcept try {
    return named<FlashAttention>(k_policies, "flash_attention", name);
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

std::int32_t usable_cpus() noexcept {
#if defined(__linux__)
    std::int32_t n = affinity_cpus();
    const std::int32_t quota = quota_cpus();
    n = quota > 0 ? std::min(n, quota) : n;
#else
    const auto n = static_cast<std::int32_t>(std::thread::hardware_concurrency());
#endif
    return std::clamp<std::int32_t>(n, 1, limits::max_threads);
}

Error validate(const LoadSettings & settings) noexcept try {
    if (settings.reproducible && settings.device != "auto" && settings.device != "cpu") {
        return Error{ErrorCode::unsupported_combination, "reproducible=True needs the CPU's reference kernels, and device is " +
                                                             quoted(settings.device) + ": use 'cpu' or 'auto'"};
    }
    return within("context", settings.context, limits::min_context, limits::max_context);
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

Error validate(const OptimizerSettings & s, std::int32_t context) noexcept try {
    const std::int32_t cpus = usable_cpus();
    const std::tuple<const char *, std::int32_t, std::int32_t, std::int32_t> ranges[] = {
        {"threads", s.threads, 0, cpus},
        {"prefill_threads", s.prefill_threads, 0, cpus},
        {"batch_tokens", s.batch_tokens, 1, limits::max_batch_tokens},
        {"micro_batch_tokens", s.micro_batch_tokens, 1, std::min(s.batch_tokens, limits::max_batch_tokens)},
        {"prefix_cache_entries", s.prefix_cache_entries, 0, limits::max_prefix_cache_entries},
        {"prefix_cache_tokens", s.prefix_cache_tokens, 1, context},
        {"speculative_tokens", s.speculative_tokens, 0, limits::max_speculative_tokens},
    };
    for (const auto & [name, value, low, high] : ranges) {
        if (Error error = within(name, value, low, high); error.failed()) {
            return error;
        }
    }
    return {};
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

ContextSettings resolve(const LoadSettings & load, const OptimizerSettings & optimizer) noexcept {
    std::int32_t chosen = usable_cpus();
#if defined(__linux__)
    const std::int32_t cores = usable_cores();
    chosen = cores > 0 ? std::min(chosen, cores) : chosen;
#endif
    ContextSettings s;
    s.context = load.context;
    s.batch_tokens = std::min(optimizer.batch_tokens, load.context);
    s.micro_batch_tokens = std::min(optimizer.micro_batch_tokens, s.batch_tokens);
    s.speculative_tokens = optimizer.speculative_tokens;
    s.n_outputs = 1 + std::min(optimizer.speculative_tokens, s.micro_batch_tokens - 1);  // one graph: a window is rolled back whole
    s.threads = optimizer.threads > 0 ? optimizer.threads : chosen;
    s.prefill_threads = optimizer.prefill_threads > 0 ? optimizer.prefill_threads : chosen;
    s.kv_type = load.kv_type;
    s.flash_attention = load.flash_attention;
    s.reproducible = load.reproducible;
    // Without it the engine reuses the cells of positions that left the window, in an order that depends on the chunking.
    s.full_window = load.reproducible || optimizer.prefix_cache_entries > 0 || optimizer.speculative_tokens > 0;
    return s;
}

}  // namespace aner

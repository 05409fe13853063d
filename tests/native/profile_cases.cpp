#include "forked_child.hpp"
#include "profile.hpp"

#include <cstdlib>
#include <limits>
#include <set>
#include <string>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif

using namespace aner;
using namespace aner::testing;

namespace {

constexpr std::int32_t k_context = 4096;

void check_range(std::int32_t OptimizerSettings::*setting, const char * name, std::int32_t low, std::int32_t high,
                 OptimizerSettings settings = {}) {
    for (const std::int32_t good : {low, high}) {
        settings.*setting = good;
        CHECK_EQUAL(validate(settings, k_context).message(), "");
    }
    for (const std::int64_t bad : {std::int64_t{low} - 1, std::int64_t{high} + 1, std::int64_t{INT32_MIN}, std::int64_t{INT32_MAX}}) {
        settings.*setting = static_cast<std::int32_t>(bad);
        const Error error = validate(settings, k_context);
        CHECK(error.code() == ErrorCode::configuration);
        CHECK_EQUAL(error.message(), std::string(name) + " is " + std::to_string(bad) + ": it must be within " +
                                         std::to_string(low) + ".." + std::to_string(high));
    }
}

}  // namespace

ANER_CASE("L7 L8", kv_types_and_policies_have_the_names_of_the_contract_and_others_are_refused_with_the_list) {
    const std::vector<std::string> types = {"f16", "f32", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"};
    std::set<KvType> known;
    for (const std::string & name : types) {
        KvType type{};
        CHECK_EQUAL(kv_type_named(name).into(type).message(), "");
        CHECK_EQUAL(std::string(name_of(type)), name);
        known.insert(type);
    }
    CHECK_EQUAL(known.size(), types.size());
    for (const std::string name : {"auto", "on", "off"}) {
        FlashAttention policy{};
        CHECK_EQUAL(flash_attention_named(name).into(policy).message(), "");
        CHECK_EQUAL(std::string(name_of(policy)), name);
    }
    for (const std::string name : {"", "F16", "f16 ", "i32", "q8_1", "true"}) {
        const Error type = kv_type_named(name).error();
        CHECK(type.code() == ErrorCode::configuration);
        CHECK_EQUAL(type.message(), "kv_cache_type is '" + name +
                                        "': it must be one of f16, f32, bf16, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl");
        const Error policy = flash_attention_named(name).error();
        CHECK(policy.code() == ErrorCode::configuration);
        CHECK_EQUAL(policy.message(), "flash_attention is '" + name + "': it must be one of auto, on, off");
    }
    CHECK_EQUAL(std::string(name_of(static_cast<KvType>(99))), "unknown");
}

ANER_CASE("L15", a_context_is_at_least_16) {
    LoadSettings settings;
    for (const std::int32_t good : {16, 17, 4096, 1 << 24}) {
        settings.context = good;
        CHECK(!validate(settings).failed());
    }
    for (const std::int32_t bad : {-1, 0, 1, 15, (1 << 24) + 1, INT32_MAX, INT32_MIN}) {
        settings.context = bad;
        const Error error = validate(settings);
        CHECK(error.code() == ErrorCode::configuration);
        CHECK_EQUAL(error.message(), "context is " + std::to_string(bad) + ": it must be within 16..16777216");
    }
}

ANER_CASE("O3 O4", settings_outside_their_range_are_refused_with_the_limits_and_the_value) {
    CHECK(!validate(OptimizerSettings{}, k_context).failed());
    const std::int32_t cpus = usable_cpus();
    check_range(&OptimizerSettings::threads, "threads", 0, cpus);
    check_range(&OptimizerSettings::prefill_threads, "prefill_threads", 0, cpus);
    OptimizerSettings smallest;
    smallest.micro_batch_tokens = 1;
    check_range(&OptimizerSettings::batch_tokens, "batch_tokens", 1, 65536, smallest);
    OptimizerSettings batch;
    batch.batch_tokens = 100;
    check_range(&OptimizerSettings::micro_batch_tokens, "micro_batch_tokens", 1, 100, batch);
    check_range(&OptimizerSettings::prefix_cache_entries, "prefix_cache_entries", 0, 4);
    check_range(&OptimizerSettings::prefix_cache_tokens, "prefix_cache_tokens", 1, k_context);
    check_range(&OptimizerSettings::speculative_tokens, "speculative_tokens", 0, 32);
}

ANER_CASE("O3 O4", what_takes_effect_is_cut_to_the_context_and_has_threads_chosen) {
    LoadSettings load;
    load.context = 64;
    load.kv_type = KvType::q8_0;
    load.flash_attention = FlashAttention::on;
    OptimizerSettings optimizer;
    ContextSettings settings = resolve(load, optimizer);
    CHECK_EQUAL(settings.context, 64);
    CHECK_EQUAL(settings.batch_tokens, 64);
    CHECK_EQUAL(settings.micro_batch_tokens, 64);
    CHECK(settings.threads >= 1 && settings.threads <= usable_cpus());
    CHECK_EQUAL(settings.prefill_threads, settings.threads);
    CHECK(settings.kv_type == KvType::q8_0 && settings.flash_attention == FlashAttention::on);
    CHECK_EQUAL(settings.n_sequences, 1);
    CHECK_EQUAL(settings.n_outputs, 1);
    optimizer.batch_tokens = 32;
    optimizer.micro_batch_tokens = 8;
    optimizer.threads = 1;
    optimizer.prefill_threads = usable_cpus();
    settings = resolve(load, optimizer);
    CHECK_EQUAL(settings.batch_tokens, 32);
    CHECK_EQUAL(settings.micro_batch_tokens, 8);
    CHECK_EQUAL(settings.threads, 1);
    CHECK_EQUAL(settings.prefill_threads, usable_cpus());
}

ANER_CASE("P13 L12", a_sliding_window_is_kept_whole_where_positions_must_come_back) {
    LoadSettings load;
    OptimizerSettings optimizer;
    CHECK(!resolve(load, optimizer).full_window && !resolve(load, optimizer).reproducible);
    load.reproducible = true;
    CHECK(resolve(load, optimizer).full_window && resolve(load, optimizer).reproducible);
    load.reproducible = false;
    optimizer.prefix_cache_entries = 1;
    CHECK(resolve(load, optimizer).full_window);
    optimizer.prefix_cache_entries = 0;
    optimizer.speculative_tokens = 4;
    CHECK(resolve(load, optimizer).full_window);
}

#if defined(__linux__)
ANER_CASE("O3", usable_cpus_are_those_that_the_process_is_bound_to) {
    cpu_set_t all;
    CPU_ZERO(&all);
    CHECK_EQUAL(::sched_getaffinity(0, sizeof all, &all), 0);
    CHECK(usable_cpus() >= 1 && usable_cpus() <= CPU_COUNT(&all));
    check_in_child([&] {
        int first = 0;
        while (!CPU_ISSET(first, &all)) {
            ++first;
        }
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(first, &one);
        CHECK_EQUAL(::sched_setaffinity(0, sizeof one, &one), 0);
        CHECK_EQUAL(usable_cpus(), 1);
        CHECK_EQUAL(resolve(LoadSettings{}, OptimizerSettings{}).threads, 1);
        OptimizerSettings two;
        two.threads = 2;
        CHECK(validate(two, k_context).code() == ErrorCode::configuration);
    });
}
#endif

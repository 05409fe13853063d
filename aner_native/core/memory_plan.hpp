// What a lease would occupy, before anything is loaded.
#pragma once

#include "decoder.hpp"
#include "model.hpp"

namespace aner {

struct PlannedContext {
    ResolvedContext resolved;
    MemoryUse memory;
    std::int64_t written = k_unmeasured;  // of `memory.compute`, what calls ever write to; the rest stays without memory
    std::int32_t retained = 0;  // idle contexts that the lease may come to hold; a request runs in one of them
    std::int64_t tables = 0;  // host memory beside the engine's buffers: vocabulary, KV cells, what the process takes once
};

// Makes the context that a lease with these settings would make, of a model that was opened for planning, and asks it. More than
// one of `max_sequences`: the context of a batching lease. Errors: those of load, with_optimizer and with_batching for the
// settings; those of making a context.
Result<PlannedContext> plan_context(const Model & model, const LoadSettings & load, const OptimizerSettings & optimizer,
                                    std::int32_t max_sequences) noexcept;

}  // namespace aner

#include "memory_plan.hpp"

#include "kv_layout.hpp"
#include "lease.hpp"

#include <algorithm>

namespace aner {

Result<PlannedContext> plan_context(const Model & model, const LoadSettings & load, const OptimizerSettings & optimizer,
                                    std::int32_t max_sequences) noexcept {
    if (Error error = validate(load); error.failed()) {
        return error;
    }
    if (Error error = validate_kv_type(model.info().facts, load.kv_type, load.flash_attention); error.failed()) {
        return error;
    }
    if (Error error = validate(optimizer, load.context); error.failed()) {
        return error;
    }
    if (Error error = check_memory_kind(model, optimizer); error.failed()) {
        return error;
    }
    ContextSettings settings = resolve(load, optimizer);
    if (max_sequences != 1) {
        BatchingSettings batching;
        batching.max_sequences = max_sequences;
        if (Error error = batching_context(settings, optimizer, batching).into(settings); error.failed()) {
            return error;
        }
    }
    std::unique_ptr<Decoder> decoder;
    if (Error error = model.make_decoder(settings).into(decoder); error.failed()) {
        return error;
    }
    PlannedContext planned;
    planned.resolved = decoder->resolved();
    planned.memory = decoder->memory();
    planned.retained = max_sequences != 1 ? 0 : std::max(limits::default_idle_contexts, optimizer.prefix_cache_entries);
    return planned;
}

}  // namespace aner

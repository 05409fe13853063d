#include "memory_plan.hpp"

#include "kv_layout.hpp"
#include "lease.hpp"

#include <algorithm>

namespace aner {

namespace {

// As measured with the pinned engine: what a process grows by that is in none of the engine's buffers.
constexpr std::int64_t k_process_bytes = 4LL << 20;  // threads, the backend's own tables
constexpr std::int64_t k_token_bytes = 180;          // in the vocabulary's tables
constexpr std::int64_t k_merge_bytes = 180;          // byte-level BPE, which has about one for each token

std::int64_t tables_of(const Model & model, std::int64_t n_cells) {
    const std::int64_t each = k_token_bytes + (model.info().facts.vocabulary == "gpt2" ? k_merge_bytes : 0);
    return k_process_bytes + each * model.vocabulary().n_tokens() + k_kv_cell_bytes * n_cells;
}

Error ask(const Model & model, const ContextSettings & settings, ResolvedContext & resolved, MemoryUse & memory) {
    std::unique_ptr<Decoder> decoder;
    if (Error error = model.make_decoder(settings).into(decoder); error.failed()) {
        return error;
    }
    resolved = decoder->resolved();
    memory = decoder->memory();
    return {};
}

// The engine reserves for the largest graph without flash attention. Where large calls use it all the same, what is ever written
// is what those calls need with it, or the largest of the others without it.
Result<std::int64_t> written_by(const Model & model, const ContextSettings & settings, const PlannedContext & planned) {
    const std::int32_t rows = planned.resolved.flash_attention_rows;
    if (rows == 0 || settings.micro_batch_tokens < rows) {
        return planned.memory.compute;
    }
    ContextSettings large = settings;
    large.flash_attention = FlashAttention::on;
    ContextSettings small = settings;
    small.flash_attention = FlashAttention::off;
    small.micro_batch_tokens = std::min(settings.micro_batch_tokens, (rows - 1) * settings.n_sequences);
    ResolvedContext resolved;
    MemoryUse with;
    MemoryUse without;
    if (Error error = ask(model, large, resolved, with); error.failed()) {
        return error;
    }
    if (Error error = ask(model, small, resolved, without); error.failed()) {
        return error;
    }
    return std::min(planned.memory.compute, std::max(with.compute, without.compute));
}

}  // namespace

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
    PlannedContext planned;
    if (Error error = ask(model, settings, planned.resolved, planned.memory); error.failed()) {
        return error;
    }
    if (Error error = written_by(model, settings, planned).into(planned.written); error.failed()) {
        return error;
    }
    planned.retained = max_sequences != 1 ? 0 : std::max(limits::default_idle_contexts, optimizer.prefix_cache_entries);
    planned.tables = tables_of(model, static_cast<std::int64_t>(planned.resolved.cells) * std::max(1, planned.retained));
    return planned;
}

}  // namespace aner

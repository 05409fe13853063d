#include "llama_decoder.hpp"

#include "../engine_gate.hpp"
#include "../host_memory.hpp"
#include "../kv_layout.hpp"
#include "../log_ring.hpp"
#include "context_params.hpp"

#include <algorithm>
#include <exception>
#include <new>

namespace aner {

namespace {

constexpr std::int64_t k_cell_group = 256;  // the engine makes KV cells in groups of so many

std::string positions_of(const ContextSettings & s) {
    return "a context of " + std::to_string(static_cast<std::int64_t>(s.context) * s.n_sequences) + " positions";
}

Error engine_failure(const char * what, const std::string & detail) noexcept {
    return Error{ErrorCode::engine, std::string(what) + (detail.empty() ? "" : ": " + detail)};
}

}  // namespace

Result<std::unique_ptr<Decoder>> LlamaDecoder::make(std::shared_ptr<const void> keep_alive, const ContextTarget & target,
                                                    const ContextSettings & settings, std::vector<AppliedAdapter> adapters) noexcept try {
    std::unique_ptr<LlamaDecoder> decoder(new LlamaDecoder(std::move(keep_alive), target, settings, std::move(adapters)));
    if (Error error = decoder->open(); error.failed()) {
        return error;
    }
    return std::unique_ptr<Decoder>(std::move(decoder));
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

LlamaDecoder::~LlamaDecoder() {
    if (context_ != nullptr && context_.get_deleter().guard.foreign()) {
        new std::shared_ptr<ComputePool>(std::move(pool_));  // leaked: its threads are the parent's
    }
}

Error LlamaDecoder::open() noexcept {
    const EngineCall call;
    if (Error error = call.check(); error.failed()) {
        return error;
    }
    const std::uint64_t mark = LogRing::mark();
    try {
        if (Error error = check_room_for_kv(); error.failed()) {
            return error;
        }
        if (Error error = start_threads(); error.failed()) {
            return error;
        }
        context_.reset(llama_init_from_model(target_.model, context_params(settings_, target_.on_cpu)));
        if (context_ == nullptr) {
            const std::string reason = LogRing::errors_since(mark);
            if (reason.find("failed to allocate") != std::string::npos) {
                return Error{ErrorCode::out_of_memory, "not enough memory for " + positions_of(settings_) + ": " + reason};
            }
            return engine_failure("the engine could not make a context with these settings", reason);
        }
        if (llama_get_memory(context_.get()) == nullptr) {
            return Error{ErrorCode::model_load, "this model keeps no memory of past tokens: it cannot generate"};
        }
        if (!is_plan()) {
            llama_attach_threadpool(context_.get(), pool_->threads(), pool_->threads());
        }
        if (settings_.reproducible) {
            engine_private::use_reference_kernels(*context_);
        } else if (settings_.flash_attention == FlashAttention::automatic && target_.on_cpu &&
                   !engine_private::flash_attention_in_effect(*context_)) {
            resolved_.flash_attention_rows =
                engine_private::use_flash_attention_in_prefill(*context_, engine_type(settings_.kv_type));
        }
        if (Error error = check_room_for_workspace(); error.failed()) {
            return error;
        }
        if (Error error = apply_adapters(); error.failed()) {
            return error;
        }
        batch_.reset(llama_batch_ext_init(context_.get()));
    } catch (const std::bad_alloc &) {
        return Error{ErrorCode::out_of_memory, "not enough memory for " + positions_of(settings_)};
    } catch (const std::exception & error) {
        return engine_failure("the engine could not make a context", error.what());
    }
    return read_back();
}

Error LlamaDecoder::start_threads() {
    return is_plan() ? Error() : ComputePool::get(std::max(settings_.threads, settings_.prefill_threads), !target_.on_cpu).into(pool_);
}

// Positions are rounded up to whole units.
engine_private::KvBytes LlamaDecoder::kv_of_sequence(std::int64_t unit) const {
    const auto rounded = [unit](std::int64_t n) { return (n + unit - 1) / unit * unit; };
    const std::int64_t kept = static_cast<std::int64_t>(llama_model_n_swa(target_.model)) + settings_.micro_batch_tokens;
    return engine_private::kv_bytes(*target_.model, engine_type(settings_.kv_type), rounded(settings_.context),
                                    rounded(settings_.full_window ? settings_.context : std::min<std::int64_t>(settings_.context, kept)));
}

// The engine writes the whole KV at once, and what is not there then ends the process. Of a plan it takes the recurrent states.
Error LlamaDecoder::check_room_for_kv() const {
    const engine_private::KvBytes kv = kv_of_sequence(k_cell_group);
    const std::int64_t each = is_plan() ? kv.recurrent : kv.sum() + settings_.context * k_kv_cell_bytes;
    const std::int64_t needed = each * settings_.n_sequences;
    const std::int64_t available = available_memory();
    if (!target_.on_cpu || available < 0 || needed <= available) {
        return {};
    }
    return Error{ErrorCode::out_of_memory, positions_of(settings_) + " needs about " + std::to_string(needed >> 20) + " MiB and " +
                                               std::to_string(available >> 20) +
                                               " MiB are available: use a smaller context or a smaller kv_cache_type"};
}

// It is taken from the system when graphs run: too late for an error.
Error LlamaDecoder::check_room_for_workspace() const {
    const MemoryUse use = memory();
    const std::int64_t available = available_memory();
    if (is_plan() || !target_.on_cpu || available < 0 || use.compute < 0) {
        return {};
    }
    // With flash attention in prefill alone only the calls below so many rows write what grows with rows and context.
    const std::int64_t rows = std::min(resolved_.flash_attention_rows, settings_.micro_batch_tokens);
    const std::int64_t written = rows > 0 ? use.compute / settings_.micro_batch_tokens * rows : use.compute;
    if (written + use.output <= available) {
        return {};
    }
    return Error{ErrorCode::out_of_memory,
                 positions_of(settings_) + " needs " + std::to_string((written + use.output) >> 20) + " MiB to compute in beside " +
                     std::to_string(use.kv >> 20) + " MiB of KV, and " + std::to_string(available >> 20) +
                     " MiB are left: use a smaller context, fewer micro_batch_tokens, or flash_attention 'on'"};
}

Error LlamaDecoder::apply_adapters() {
    std::vector<llama_adapter_lora *> adapters;
    std::vector<float> scales;
    for (const AppliedAdapter & one : adapters_) {
        adapters.push_back(one.adapter);
        scales.push_back(one.scale);
    }
    if (adapters.empty() || llama_set_adapters_lora(context_.get(), adapters.data(), adapters.size(), scales.data()) == 0) {
        return {};
    }
    return engine_failure("the engine did not take the adapters", {});
}

// The engine changes some settings silently: what it made must be what was asked, or it is an error.
Error LlamaDecoder::read_back() noexcept {
    const llama_context * context = context_.get();
    resolved_.context = settings_.context;
    resolved_.cells = static_cast<std::int32_t>(llama_n_ctx(context));
    resolved_.batch_tokens = static_cast<std::int32_t>(llama_n_batch(context));
    resolved_.micro_batch_tokens = static_cast<std::int32_t>(llama_n_ubatch(context));
    resolved_.threads = llama_n_threads(context_.get());
    resolved_.prefill_threads = llama_n_threads_batch(context_.get());
    resolved_.flash_attention = engine_private::flash_attention_in_effect(*context);
    resolved_.unified_kv = false;
    const auto n_positions = static_cast<std::int32_t>(llama_n_ctx_seq(context));
    const auto n_sequences = static_cast<std::int32_t>(llama_n_seq_max(context));
    if (n_positions < settings_.context || n_sequences != settings_.n_sequences ||
        resolved_.batch_tokens != settings_.batch_tokens || resolved_.micro_batch_tokens != settings_.micro_batch_tokens) {
        return engine_failure("the engine made another context than was asked for",
                              std::to_string(n_positions) + " positions, " + std::to_string(n_sequences) + " sequences, batches of " +
                                  std::to_string(resolved_.batch_tokens) + " and " + std::to_string(resolved_.micro_batch_tokens));
    }
    if (block_of(settings_.kv_type).elements > 1 && !resolved_.flash_attention) {
        return Error{ErrorCode::unsupported_combination, std::string("kv_cache_type '") + name_of(settings_.kv_type) +
                                                             "' needs flash attention, which this model or device does not have: "
                                                             "use f16, bf16 or f32"};
    }
    if (settings_.flash_attention == FlashAttention::on && !resolved_.flash_attention) {
        return Error{ErrorCode::unsupported_combination, "flash_attention 'on' was asked for, and the engine has none for this model"
                                                         " on this device: use 'auto' or 'off'"};
    }
    if (!target_.on_cpu && !engine_private::memory_breakdown(*context).on_accelerator) {
        return Error{ErrorCode::device_unavailable, "nothing of the model landed on the device that was asked for"};
    }
    return {};
}

Error LlamaDecoder::check_rows(const Batch & batch) const noexcept {
    std::int32_t n_outputs = 0;
    for (const BatchRow & row : batch) {
        n_outputs += row.wants_logits ? 1 : 0;
        if (row.token < 0 || row.token >= target_.n_vocab || !is_sequence(row.sequence) || row.position < 0 ||
            row.position >= settings_.context) {
            return Error{ErrorCode::internal, "a batch row is out of range: token " + std::to_string(row.token) + ", sequence " +
                                                  std::to_string(row.sequence) + ", position " + std::to_string(row.position)};
        }
    }
    if (batch.empty() || static_cast<std::int32_t>(batch.size()) > settings_.batch_tokens || n_outputs > settings_.n_outputs) {
        return Error{ErrorCode::internal, "a batch of " + std::to_string(batch.size()) + " rows with " + std::to_string(n_outputs) +
                                              " outputs is outside the context's limits"};
    }
    return {};
}

Error LlamaDecoder::fill(const Batch & batch) noexcept {
    llama_batch_ext_clear(batch_.get());
    for (const BatchRow & row : batch) {
        const std::int32_t i = llama_batch_ext_add_token(batch_.get(), row.sequence, row.token);
        if (i < 0 || !llama_batch_ext_set_pos(batch_.get(), i, &row.position) ||
            !llama_batch_ext_set_output_logits(batch_.get(), i, row.wants_logits)) {
            return Error{ErrorCode::internal, "the engine refused a batch row that was in range"};
        }
    }
    return {};
}

Error LlamaDecoder::decode(const Batch & batch) noexcept {
    n_rows_ = 0;
    if (context_.get_deleter().guard.foreign()) {
        return Error{ErrorCode::forked, "this context belongs to the parent process"};
    }
    if (is_plan()) {
        return Error{ErrorCode::internal, "a context without memory cannot evaluate anything"};
    }
    if (Error error = check_rows(batch); error.failed()) {
        return error;
    }
    const EngineCall call;
    if (Error error = call.check(); error.failed()) {
        return error;
    }
    const std::uint64_t mark = LogRing::mark();
    try {
        if (Error error = fill(batch); error.failed()) {
            return error;
        }
        const ComputePool::Turn turn(*pool_);
        const std::int32_t code = llama_process(context_.get(), LLAMA_PROCESS_TYPE_DECODE, batch_.get());
        llama_synchronize(context_.get());
        switch (code) {
            case 0: break;
            case 1: return engine_failure("the engine found no place in a context that had room", LogRing::errors_since(mark));
            case 2: return Error{ErrorCode::cancelled, "the interpreter is shutting down"};
            case -2: return Error{ErrorCode::out_of_memory, "the engine ran out of memory: " + LogRing::errors_since(mark)};
            default: return engine_failure("the engine could not evaluate a batch", LogRing::errors_since(mark));
        }
    } catch (const std::bad_alloc &) {
        return Error{ErrorCode::out_of_memory, "not enough memory to evaluate a batch"};
    } catch (const std::exception & error) {
        return engine_failure("the engine could not evaluate a batch", error.what());
    }
    for (std::size_t i = 0; i < batch.size(); ++i) {
        const bool last_of_sequence = i + 1 == batch.size() || batch[i + 1].sequence != batch[i].sequence;
        if (last_of_sequence && max_position(batch[i].sequence) != batch[i].position) {
            return engine_failure("the engine lost positions that it evaluated", {});
        }
    }
    n_rows_ = static_cast<std::int32_t>(batch.size());
    return {};
}

const float * LlamaDecoder::logits(std::int32_t i) noexcept {
    if (i < 0 || i >= n_rows_) {
        return nullptr;
    }
    try {
        return llama_get_logits_ith(context_.get(), i);
    } catch (const std::exception &) {
        return nullptr;
    }
}

Error LlamaDecoder::clear() noexcept {
    n_rows_ = 0;
    if (context_.get_deleter().guard.foreign()) {
        return Error{ErrorCode::forked, "this context belongs to the parent process"};
    }
    llama_memory_clear(llama_get_memory(context_.get()), false);
    for (SequenceId id = 0; id < settings_.n_sequences; ++id) {
        if (max_position(id) != -1) {
            return engine_failure("the engine did not clear a sequence", std::to_string(id));
        }
    }
    return {};
}

Position LlamaDecoder::min_position(SequenceId id) const noexcept {
    return is_sequence(id) ? llama_memory_seq_pos_min(llama_get_memory(context_.get()), id) : -1;
}

Position LlamaDecoder::max_position(SequenceId id) const noexcept {
    return is_sequence(id) ? llama_memory_seq_pos_max(llama_get_memory(context_.get()), id) : -1;
}

bool LlamaDecoder::remove_from(SequenceId id, Position first) noexcept {
    return is_sequence(id) && first >= 0 && llama_memory_seq_rm(llama_get_memory(context_.get()), id, first, -1);
}

Result<std::string> LlamaDecoder::save(SequenceId id) noexcept {
    if (context_.get_deleter().guard.foreign()) {
        return Error{ErrorCode::forked, "this context belongs to the parent process"};
    }
    const EngineCall call;
    if (Error error = call.check(); error.failed()) {
        return error;
    }
    try {
        std::string bytes(is_sequence(id) ? llama_state_seq_get_size(context_.get(), id) : 0, '\0');
        const std::size_t n = llama_state_seq_get_data(context_.get(), reinterpret_cast<std::uint8_t *>(bytes.data()), bytes.size(), id);
        if (n == 0 || n != bytes.size()) {
            return engine_failure("the engine could not save a sequence", std::to_string(n) + " of " + std::to_string(bytes.size()) + " bytes");
        }
        return bytes;
    } catch (const std::bad_alloc &) {
        return Error{ErrorCode::out_of_memory};
    } catch (const std::exception & error) {
        return engine_failure("the engine could not save a sequence", error.what());
    }
}

Error LlamaDecoder::restore(SequenceId id, const std::string & bytes, std::int32_t n_positions) noexcept {
    if (context_.get_deleter().guard.foreign()) {
        return Error{ErrorCode::forked, "this context belongs to the parent process"};
    }
    const EngineCall call;
    if (Error error = call.check(); error.failed()) {
        return error;
    }
    const std::uint64_t mark = LogRing::mark();
    std::string reason;
    try {
        const std::size_t n = !is_sequence(id) ? 0
                                               : llama_state_seq_set_data(context_.get(), reinterpret_cast<const std::uint8_t *>(bytes.data()),
                                                                          bytes.size(), id);
        if (n == bytes.size() && n > 0 && max_position(id) == n_positions - 1) {
            return {};
        }
        reason = LogRing::errors_since(mark);
    } catch (const std::exception & error) {
        reason = error.what();
    }
    (void) clear();
    return engine_failure("the engine could not restore a sequence", reason);
}

MemoryUse LlamaDecoder::memory() const noexcept {
    MemoryUse use;
    try {
        const engine_private::Breakdown sum = engine_private::memory_breakdown(*context_);
        const engine_private::KvBytes payload = kv_of_sequence(1);
        const engine_private::KvBytes kinds = kv_of_sequence(k_cell_group);
        use.weights = is_plan() ? target_.planned_weights : sum.weights;
        use.kv = sum.context;
        use.kv_payload = settings_.n_sequences * (payload.attention + payload.windowed);
        if (settings_.n_sequences * kinds.sum() == sum.context) {  // else the model keeps something that is not known here
            use.kv_attention = settings_.n_sequences * kinds.attention;
            use.kv_windowed = settings_.n_sequences * kinds.windowed;
            use.kv_recurrent = settings_.n_sequences * kinds.recurrent;
        }
        use.compute = sum.compute;
        use.output = static_cast<std::int64_t>(target_.n_vocab) * static_cast<std::int64_t>(sizeof(float)) * settings_.n_outputs;
    } catch (const std::exception &) {
        return {};
    }
    return use;
}

}  // namespace aner

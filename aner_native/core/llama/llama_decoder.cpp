#include "llama_decoder.hpp"

#include "../engine_gate.hpp"
#include "../host_memory.hpp"
#include "../kv_layout.hpp"
#include "../log_ring.hpp"
#include "llama_private.hpp"

#include <algorithm>
#include <exception>
#include <new>

namespace aner {

namespace {

constexpr std::int64_t k_cell_metadata_bytes = 52;      // host memory of one KV cell beside its payload
constexpr std::int64_t k_context_overhead = 64LL << 20;  // graph workspace, logits rows, allocator

ggml_type engine_type(KvType type) noexcept {
    switch (type) {
        case KvType::f16: return GGML_TYPE_F16;
        case KvType::f32: return GGML_TYPE_F32;
        case KvType::bf16: return GGML_TYPE_BF16;
        case KvType::q8_0: return GGML_TYPE_Q8_0;
        case KvType::q5_1: return GGML_TYPE_Q5_1;
        case KvType::q5_0: return GGML_TYPE_Q5_0;
        case KvType::q4_1: return GGML_TYPE_Q4_1;
        case KvType::q4_0: return GGML_TYPE_Q4_0;
        case KvType::iq4_nl: return GGML_TYPE_IQ4_NL;
    }
    return GGML_TYPE_F16;
}

// On a CPU the engine's own choice is "on", which below 64 rows works row by row: docs/flash_attention.md has the table.
llama_flash_attn_type engine_policy(const ContextSettings & s, bool on_cpu) noexcept {
    const bool quantized = block_of(s.kv_type).elements > 1;
    switch (s.flash_attention) {
        case FlashAttention::on: return LLAMA_FLASH_ATTN_TYPE_ENABLED;
        case FlashAttention::off: return LLAMA_FLASH_ATTN_TYPE_DISABLED;
        case FlashAttention::automatic: break;
    }
    if (quantized) {
        return LLAMA_FLASH_ATTN_TYPE_ENABLED;
    }
    return on_cpu ? LLAMA_FLASH_ATTN_TYPE_DISABLED : LLAMA_FLASH_ATTN_TYPE_AUTO;
}

llama_context_params context_params(const ContextSettings & s, bool on_cpu) noexcept {
    llama_context_params p = llama_context_default_params();
    p.n_ctx = static_cast<std::uint32_t>(s.context) * static_cast<std::uint32_t>(s.n_sequences);
    p.n_batch = static_cast<std::uint32_t>(s.batch_tokens);
    p.n_ubatch = static_cast<std::uint32_t>(s.micro_batch_tokens);
    p.n_seq_max = static_cast<std::uint32_t>(s.n_sequences);
    p.n_outputs_max = static_cast<std::uint32_t>(s.n_outputs);
    p.n_threads = s.threads;
    p.n_threads_batch = s.prefill_threads;
    p.flash_attn_type = engine_policy(s, on_cpu);
    p.type_k = engine_type(s.kv_type);
    p.type_v = engine_type(s.kv_type);
    p.offload_kqv = !on_cpu;
    p.op_offload = !on_cpu;
    p.swa_full = s.full_window;
    p.kv_unified = false;
    p.abort_callback = [](void *) { return engine_gate_closed(); };
    return p;
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
    const std::int64_t positions = static_cast<std::int64_t>(settings_.context) * settings_.n_sequences;
    const std::int64_t needed = positions * (target_.kv_bytes_per_position + k_cell_metadata_bytes) + k_context_overhead;
    if (const std::int64_t available = available_memory(); target_.on_cpu && available >= 0 && needed > available) {
        return Error{ErrorCode::out_of_memory, "a context of " + std::to_string(positions) + " positions needs about " +
                                                   std::to_string(needed >> 20) + " MiB and " + std::to_string(available >> 20) +
                                                   " MiB are available: use a smaller context or a smaller kv_cache_type"};
    }
    Result<std::shared_ptr<ComputePool>> pool =
        ComputePool::get(std::max(settings_.threads, settings_.prefill_threads), !target_.on_cpu);
    if (pool.failed()) {
        return pool.error();
    }
    pool_ = pool.take();
    const std::uint64_t mark = LogRing::mark();
    try {
        context_.reset(llama_init_from_model(target_.model, context_params(settings_, target_.on_cpu)));
        if (context_ == nullptr) {
            return engine_failure("the engine could not make a context with these settings", LogRing::errors_since(mark));
        }
        if (llama_get_memory(context_.get()) == nullptr) {
            return Error{ErrorCode::model_load, "this model keeps no memory of past tokens: it cannot generate"};
        }
        llama_attach_threadpool(context_.get(), pool_->threads(), pool_->threads());
        if (settings_.reproducible) {
            engine_private::use_reference_kernels(*context_);
        } else if (settings_.flash_attention == FlashAttention::automatic && target_.on_cpu &&
                   !engine_private::flash_attention_in_effect(*context_)) {
            resolved_.flash_attention_rows =
                engine_private::use_flash_attention_in_prefill(*context_, engine_type(settings_.kv_type));
        }
        if (Error error = apply_adapters(); error.failed()) {
            return error;
        }
        batch_.reset(llama_batch_ext_init(context_.get()));
    } catch (const std::bad_alloc &) {
        return Error{ErrorCode::out_of_memory, "not enough memory for a context of " + std::to_string(positions) + " positions"};
    } catch (const std::exception & error) {
        return engine_failure("the engine could not make a context", error.what());
    }
    return read_back();
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
        use.weights = sum.weights;
        use.kv = sum.context;
        use.kv_payload = settings_.n_sequences *
                         engine_private::kv_payload(*context_, settings_.context, engine_type(settings_.kv_type), settings_.full_window);
        use.compute = sum.compute;
        use.output = static_cast<std::int64_t>(target_.n_vocab) * static_cast<std::int64_t>(sizeof(float)) * settings_.n_outputs;
    } catch (const std::exception &) {
        return {};
    }
    return use;
}

}  // namespace aner

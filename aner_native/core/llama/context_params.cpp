#include "context_params.hpp"

#include "../engine_gate.hpp"
#include "../kv_layout.hpp"

namespace aner {

namespace {

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

}  // namespace

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

}  // namespace aner

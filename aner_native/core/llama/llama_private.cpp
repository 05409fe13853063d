#include "llama_private.hpp"

#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "llama-context.h"
#include "llama-ext.h"
#include "llama-model.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

namespace aner::engine_private {

bool flash_attention_in_effect(const llama_context & context) { return context.get_cparams().flash_attn; }

std::int32_t use_flash_attention_in_prefill(llama_context & context, ggml_type kv_type) {
    constexpr std::int32_t k_tile_rows = 64;  // GGML_FA_TILE_Q: below it the kernel works row by row
    const llama_model & model = context.get_model();
    const bool tiled = kv_type == GGML_TYPE_F16 || kv_type == GGML_TYPE_F32;
    bool attends = false;
    for (std::uint32_t il = 0; il < model.hparams.n_layer(); ++il) {
        attends = attends || (model.hparams.has_kv(il) && !model.hparams.is_recr(il));
    }
    if (!attends || !tiled || model.arch == LLM_ARCH_GROK || model.hparams.is_mla()) {
        return 0;
    }
    const_cast<llama_cparams &>(context.get_cparams()).flash_attn_rows = k_tile_rows;
    return k_tile_rows;
}

Breakdown memory_breakdown(const llama_context & context) {
    Breakdown sum;
    for (const auto & [type, use] : llama_get_memory_breakdown(&context)) {
        sum.weights += static_cast<std::int64_t>(use.model);
        sum.context += static_cast<std::int64_t>(use.context);
        sum.compute += static_cast<std::int64_t>(use.compute);
        ggml_backend_dev_t device = ggml_backend_buft_get_device(type);
        const bool on_cpu = device == nullptr || ggml_backend_buft_is_host(type) ||
                            ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU;
        sum.on_accelerator = sum.on_accelerator || (!on_cpu && use.model + use.context > 0);
    }
    return sum;
}

std::int64_t planned_weights(const llama_model & model, bool mapped, const std::vector<GgufHeader> & splits) {
    std::int64_t sum = 0;
    for (const auto & [type, bytes] : model.memory_breakdown()) {
        sum += mapped && type == ggml_backend_cpu_buffer_type() ? 0 : static_cast<std::int64_t>(bytes);
    }
    if (!mapped) {
        return sum;
    }
    struct Span {
        std::uint64_t first = std::numeric_limits<std::uint64_t>::max();
        std::uint64_t last = 0;
    };
    std::map<std::pair<ggml_backend_buffer_t, std::size_t>, Span> spans;  // one for each buffer and file
    for (const auto & [name, tensor] : model.tensors_by_name) {
        if (tensor->buffer == nullptr || ggml_backend_buffer_get_type(tensor->buffer) != ggml_backend_cpu_buffer_type()) {
            continue;
        }
        for (std::size_t i = 0; i < splits.size(); ++i) {
            if (const GgufTensor * found = splits[i].find_tensor(name); found != nullptr) {
                Span & span = spans[{tensor->buffer, i}];
                const std::uint64_t begin = splits[i].data_offset + found->offset;
                span.first = std::min(span.first, begin);
                span.last = std::max<std::uint64_t>(span.last, begin + ggml_nbytes(tensor));
            }
        }
    }
    for (const auto & [place, span] : spans) {
        sum += static_cast<std::int64_t>(span.last - span.first);
    }
    return sum;
}

KvBytes kv_bytes(const llama_model & model, ggml_type type, std::int64_t n_positions, std::int64_t n_windowed) {
    const llama_hparams & h = model.hparams;
    KvBytes bytes;
    for (std::uint32_t il = 0; il < h.n_layer(); ++il) {
        if (llm_arch_is_recurrent(model.arch) || h.is_recr(il)) {
            bytes.recurrent += static_cast<std::int64_t>(sizeof(float)) * (h.n_embd_r() + h.n_embd_s());
        } else if (h.has_kv(il)) {
            const std::size_t row = ggml_row_size(type, h.n_embd_k_gqa(il)) + ggml_row_size(type, h.n_embd_v_gqa(il));
            (h.is_swa(il) ? bytes.windowed : bytes.attention) +=
                static_cast<std::int64_t>(row) * (h.is_swa(il) ? n_windowed : n_positions);
        }
    }
    return bytes;
}

void use_reference_kernels(const llama_context & context) {
    ggml_backend_sched_t scheduler = context.get_sched();
    for (int i = 0; i < ggml_backend_sched_get_n_backends(scheduler); ++i) {
        ggml_backend_t backend = ggml_backend_sched_get_backend(scheduler, i);
        if (ggml_backend_is_cpu(backend)) {
            ggml_backend_cpu_set_use_ref(backend, true);
        }
    }
}

}  // namespace aner::engine_private

// One context of the engine behind the Decoder seam: ranges are checked before the engine sees them (it aborts on most of
// them), its exceptions and return codes become errors, and what it claims is looked up afterwards.
#pragma once

#include "../decoder.hpp"
#include "../profile.hpp"
#include "compute_pool.hpp"
#include "llama_handles.hpp"
#include "llama_private.hpp"

#include <memory>
#include <vector>

namespace aner {

struct ContextTarget {
    llama_model * model;
    bool on_cpu;
    std::int32_t n_vocab;
    std::int32_t window;           // sliding window, 0: none
    std::int64_t planned_weights;  // bytes, of a model that was opened without allocation: its contexts can only be asked about
                                   // their memory; -1: a model with its weights
};

struct AppliedAdapter {
    llama_adapter_lora * adapter;
    float scale;
};

class LlamaDecoder final : public Decoder {
public:
    // Errors: out_of_memory (would not fit, or allocation failed), unsupported_combination, device_unavailable, engine.
    static Result<std::unique_ptr<Decoder>> make(std::shared_ptr<const void> keep_alive, const ContextTarget & target,
                                                 const ContextSettings & settings, std::vector<AppliedAdapter> adapters) noexcept;
    ~LlamaDecoder() override;

    Error decode(const Batch & batch) noexcept override;
    [[nodiscard]] const float * logits(std::int32_t i) noexcept override;
    Error clear() noexcept override;
    [[nodiscard]] Position min_position(SequenceId id) const noexcept override;
    [[nodiscard]] Position max_position(SequenceId id) const noexcept override;
    [[nodiscard]] Position window() const noexcept override { return target_.window; }
    bool remove_from(SequenceId id, Position first) noexcept override;
    Result<std::string> save(SequenceId id) noexcept override;
    Error restore(SequenceId id, const std::string & bytes, std::int32_t n_positions) noexcept override;
    [[nodiscard]] const ResolvedContext & resolved() const noexcept override { return resolved_; }
    [[nodiscard]] MemoryUse memory() const noexcept override;

private:
    LlamaDecoder(std::shared_ptr<const void> keep_alive, const ContextTarget & target, const ContextSettings & settings,
                 std::vector<AppliedAdapter> adapters)
        : keep_alive_(std::move(keep_alive)), target_(target), settings_(settings), adapters_(std::move(adapters)) {}

    Error open() noexcept;
    [[nodiscard]] bool is_plan() const noexcept { return target_.planned_weights >= 0; }
    [[nodiscard]] engine_private::KvBytes kv_of_sequence(std::int64_t unit) const;
    Error start_threads();
    Error check_room_for_kv() const;
    Error check_room_for_workspace() const;
    Error apply_adapters();
    Error read_back() noexcept;
    Error check_rows(const Batch & batch) const noexcept;
    Error fill(const Batch & batch) noexcept;
    [[nodiscard]] bool is_sequence(SequenceId id) const noexcept { return id >= 0 && id < settings_.n_sequences; }

    const std::shared_ptr<const void> keep_alive_;  // the model
    const ContextTarget target_;
    const ContextSettings settings_;  // holds the adapters' handles
    const std::vector<AppliedAdapter> adapters_;
    std::shared_ptr<ComputePool> pool_;
    LlamaContextPtr context_;
    LlamaBatchPtr batch_;
    std::int32_t n_rows_ = 0;  // of the last batch that succeeded
    ResolvedContext resolved_;
};

}  // namespace aner

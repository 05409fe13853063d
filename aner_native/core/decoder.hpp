// The seam to the engine: decode a batch, read a logits row, trim a sequence. Tests put a scripted decoder here.
#pragma once

#include "errors.hpp"
#include "types.hpp"

#include <string>
#include <vector>

namespace aner {

struct BatchRow {
    Token token;
    Position position;
    SequenceId sequence;
    bool wants_logits;
};

// One decode call. Rows of a sequence are in position order; callers keep rows sorted by sequence: each run of equal sequences is a
// graph of its own in the engine.
using Batch = std::vector<BatchRow>;

// Bytes; -1 where the engine did not say.
struct MemoryUse {
    std::int64_t weights = k_unmeasured;  // resident, shared by all contexts of the model
    std::int64_t kv = k_unmeasured;       // KV cells or recurrent state of this context
    std::int64_t kv_payload = k_unmeasured;  // of it, keys and values of the positions that can be asked for: no padding, no state
    std::int64_t kv_attention = k_unmeasured;  // of `kv`, in layers that attend to everything
    std::int64_t kv_windowed = k_unmeasured;   // in layers with a sliding window
    std::int64_t kv_recurrent = k_unmeasured;  // in layers that keep a state
    std::int64_t compute = k_unmeasured;  // graph workspace of this context
    std::int64_t output = k_unmeasured;   // logits rows of this context
};

// What the engine resolved when the context was made, read back from it.
struct ResolvedContext {
    std::int32_t context = 0;  // positions of one sequence, as asked; the engine's cells are padded
    std::int32_t cells = 0;    // KV cells the engine allocated, all sequences
    std::int32_t batch_tokens = 0;
    std::int32_t micro_batch_tokens = 0;
    std::int32_t threads = 0;
    std::int32_t prefill_threads = 0;
    bool flash_attention = false;
    std::int32_t flash_attention_rows = 0;  // without it: calls of so many rows use it all the same; 0: none do
    bool unified_kv = false;
};

class SequenceMemory {
public:
    virtual ~SequenceMemory() = default;
    [[nodiscard]] virtual Position min_position(SequenceId id) const noexcept = 0;  // -1: empty
    [[nodiscard]] virtual Position max_position(SequenceId id) const noexcept = 0;  // -1: empty
    [[nodiscard]] virtual Position window() const noexcept = 0;                     // 0: attends to everything
    virtual bool remove_from(SequenceId id, Position first) noexcept = 0;
};

// One context of the engine. One thread at a time; which thread may change between calls.
class Decoder : public SequenceMemory {
public:
    // Evaluates the rows. Errors: engine, out_of_memory, forked. After an error the sequences of the batch are not usable.
    virtual Error decode(const Batch & batch) noexcept = 0;

    // The logits of row `i` of the last batch, n_vocab floats, valid until the next call; nullptr if it asked for none.
    [[nodiscard]] virtual const float * logits(std::int32_t i) noexcept = 0;

    // Forgets every position of every sequence, and checks that the engine did.
    virtual Error clear() noexcept = 0;

    // The KV of a sequence as bytes that `restore` of an equal context takes back. Errors: engine, forked, out_of_memory.
    virtual Result<std::string> save(SequenceId id) noexcept = 0;

    // Replaces the KV of a sequence, whose last position must then be `n_positions` - 1; after an error the sequence is empty.
    virtual Error restore(SequenceId id, const std::string & bytes, std::int32_t n_positions) noexcept = 0;

    [[nodiscard]] virtual const ResolvedContext & resolved() const noexcept = 0;
    [[nodiscard]] virtual MemoryUse memory() const noexcept = 0;
};

}  // namespace aner

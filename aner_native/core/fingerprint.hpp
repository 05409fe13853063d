// The SHA-256 of a model's content: its identity, and the proof that what was loaded is what was digested.
#pragma once

#include "errors.hpp"
#include "types.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace aner {

// FIPS 180-4. By default on the CPU's SHA instructions, where it has them.
class Sha256 {
public:
    explicit Sha256(bool use_cpu_instructions = true) noexcept;

    void update(const void * data, std::size_t n_bytes) noexcept;
    void update(std::string_view bytes) noexcept { update(bytes.data(), bytes.size()); }

    // The digest of everything so far: 64 lower-case hex digits. More may follow.
    [[nodiscard]] std::string hex() const;

    [[nodiscard]] static bool cpu_has_instructions() noexcept;

private:
    using State = std::array<std::uint32_t, 8>;
    using Compress = void (*)(State & state, const std::uint8_t * blocks, std::size_t n_blocks) noexcept;

    static void compress_portable(State & state, const std::uint8_t * blocks, std::size_t n_blocks) noexcept;
    static void compress_native(State & state, const std::uint8_t * blocks, std::size_t n_blocks) noexcept;

    State state_;
    std::array<std::uint8_t, 64> block_ = {};  // [0, n_total_ % 64) holds bytes that are not yet compressed
    std::uint64_t n_total_ = 0;                // bytes
    Compress compress_;
};

struct Digest {
    std::string hex;
    std::int64_t bytes = 0;
    Nanoseconds duration = 0;
};

// Digests the content of `paths`, one after the other. `fraction` (may be null) goes from 0 to 1; `cancelled` (may be null) is
// looked at between reads. Errors: model_not_found, model_load (not a regular file, IO error, or its size changed
// meanwhile), cancelled, out_of_memory.
[[nodiscard]] Result<Digest> digest_files(const std::vector<std::string> & paths, std::atomic<float> * fraction,
                                          const std::atomic<bool> * cancelled) noexcept;

}  // namespace aner

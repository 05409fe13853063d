#include "fingerprint.hpp"

#include "regular_file.hpp"

#include <algorithm>
#include <new>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define ANER_SHA_X86 1
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace aner {

namespace {

constexpr std::size_t k_read_bytes = 512u << 10;  // stays in the second-level cache between read and digest

// The fractional parts of the cube roots of the first 64 primes.
alignas(16) constexpr std::uint32_t k_round[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01,
    0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc,
    0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08,
    0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

constexpr std::uint32_t rotated(std::uint32_t x, int n) noexcept {
    return (x >> n) | (x << (32 - n));
}

constexpr std::uint32_t big_endian(const std::uint8_t * at) noexcept {
    return (std::uint32_t{at[0]} << 24) | (std::uint32_t{at[1]} << 16) | (std::uint32_t{at[2]} << 8) | at[3];
}

}  // namespace

Sha256::Sha256(bool use_cpu_instructions) noexcept
    // The fractional parts of the square roots of the first 8 primes.
    : state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19},
      compress_(use_cpu_instructions && cpu_has_instructions() ? compress_native : compress_portable) {}

void Sha256::update(const void * data, std::size_t n_bytes) noexcept {
    const auto * next = static_cast<const std::uint8_t *>(data);
    const std::size_t n_held = n_total_ % 64;
    n_total_ += n_bytes;
    if (n_held > 0) {
        const std::size_t n = std::min(n_bytes, 64 - n_held);
        std::copy_n(next, n, block_.begin() + n_held);
        if (n_held + n < 64) {
            return;
        }
        compress_(state_, block_.data(), 1);
        next += n;
        n_bytes -= n;
    }
    compress_(state_, next, n_bytes / 64);
    std::copy_n(next + n_bytes / 64 * 64, n_bytes % 64, block_.begin());
}

std::string Sha256::hex() const {
    // Padding: a one bit, zeros up to 8 bytes before a block's end, the length in bits.
    Sha256 last = *this;
    std::uint8_t padding[72] = {0x80};
    const std::size_t n_zeros = (119 - n_total_ % 64) % 64;
    for (int i = 0; i < 8; ++i) {
        padding[1 + n_zeros + static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(n_total_ * 8 >> (56 - 8 * i));
    }
    last.update(padding, n_zeros + 9);

    static constexpr char digits[] = "0123456789abcdef";
    std::string text;
    text.reserve(64);
    for (const std::uint32_t word : last.state_) {
        for (int shift = 28; shift >= 0; shift -= 4) {
            text += digits[(word >> shift) & 15];
        }
    }
    return text;
}

void Sha256::compress_portable(State & state, const std::uint8_t * blocks, std::size_t n_blocks) noexcept {
    for (; n_blocks > 0; --n_blocks, blocks += 64) {
        std::uint32_t w[64];
        for (int i = 0; i < 16; ++i) {
            w[i] = big_endian(blocks + 4 * i);
        }
        for (int i = 16; i < 64; ++i) {
            const std::uint32_t s0 = rotated(w[i - 15], 7) ^ rotated(w[i - 15], 18) ^ (w[i - 15] >> 3);
            const std::uint32_t s1 = rotated(w[i - 2], 17) ^ rotated(w[i - 2], 19) ^ (w[i - 2] >> 10);
            w[i] = w[i - 16] + s0 + w[i - 7] + s1;
        }
        auto [a, b, c, d, e, f, g, h] = state;
        for (int i = 0; i < 64; ++i) {
            const std::uint32_t s1 = rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25);
            const std::uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + k_round[i] + w[i];
            const std::uint32_t s0 = rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22);
            const std::uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
            h = g;
            g = f;
            f = e;
            e = d + t1;
            d = c;
            c = b;
            b = a;
            a = t1 + t2;
        }
        const State added = {a, b, c, d, e, f, g, h};
        for (std::size_t i = 0; i < 8; ++i) {
            state[i] += added[i];
        }
    }
}

#if defined(ANER_SHA_X86)

bool Sha256::cpu_has_instructions() noexcept {
    unsigned a = 0;
    unsigned b = 0;
    unsigned c = 0;
    unsigned d = 0;
    const bool sse = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_SSSE3) != 0 && (c & bit_SSE4_1) != 0;
    return sse && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & bit_SHA) != 0;
}

// The instructions hold the state as ABEF and CDGH and do two rounds each; four rounds take four message words.
__attribute__((target("sha,ssse3,sse4.1"))) void Sha256::compress_native(State & state, const std::uint8_t * blocks,
                                                                         std::size_t n_blocks) noexcept {
    const __m128i byte_order = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    auto * words = reinterpret_cast<__m128i *>(state.data());
    const __m128i abcd = _mm_shuffle_epi32(_mm_loadu_si128(words), 0xb1);
    const __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128(words + 1), 0x1b);
    __m128i abef = _mm_alignr_epi8(abcd, efgh, 8);
    __m128i cdgh = _mm_blend_epi16(efgh, abcd, 0xf0);

    for (; n_blocks > 0; --n_blocks, blocks += 64) {
        const __m128i abef_before = abef;
        const __m128i cdgh_before = cdgh;
        __m128i w[4];
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) {
            __m128i & now = w[i % 4];
            if (i < 4) {
                now = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i *>(blocks) + i), byte_order);
            } else {
                const __m128i seven_back = _mm_alignr_epi8(w[(i + 3) % 4], w[(i + 2) % 4], 4);
                const __m128i first = _mm_add_epi32(_mm_sha256msg1_epu32(now, w[(i + 1) % 4]), seven_back);
                now = _mm_sha256msg2_epu32(first, w[(i + 3) % 4]);
            }
            const __m128i sum = _mm_add_epi32(now, _mm_load_si128(reinterpret_cast<const __m128i *>(k_round) + i));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0e));
        }
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }

    const __m128i feba = _mm_shuffle_epi32(abef, 0x1b);
    const __m128i dchg = _mm_shuffle_epi32(cdgh, 0xb1);
    _mm_storeu_si128(words, _mm_blend_epi16(feba, dchg, 0xf0));
    _mm_storeu_si128(words + 1, _mm_alignr_epi8(dchg, feba, 8));
}

#else

bool Sha256::cpu_has_instructions() noexcept {
    return false;
}

void Sha256::compress_native(State & state, const std::uint8_t * blocks, std::size_t n_blocks) noexcept {
    compress_portable(state, blocks, n_blocks);
}

#endif

Result<Digest> digest_files(const std::vector<std::string> & paths, std::atomic<float> * fraction,
                            const std::atomic<bool> * cancelled) noexcept try {
    const Clock::time_point start = Clock::now();
    std::vector<RegularFile> files;
    std::uint64_t n_total = 0;
    for (const std::string & path : paths) {
        Result<RegularFile> file = RegularFile::open(path);
        if (file.failed()) {
            return file.error();
        }
        n_total += file.value().size();
        files.push_back(file.take());
    }

    Sha256 sha;
    std::vector<char> buffer(k_read_bytes);
    std::uint64_t n_done = 0;
    for (const RegularFile & file : files) {
        for (std::uint64_t offset = 0; offset < file.size();) {
            if (cancelled != nullptr && cancelled->load(std::memory_order_relaxed)) {
                return Error{ErrorCode::cancelled, "the load was cancelled while the content was digested"};
            }
            const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), file.size() - offset));
            if (Error error = file.read_at(offset, buffer.data(), n); error.failed()) {
                return error;
            }
            sha.update(buffer.data(), n);
            offset += n;
            n_done += n;
            if (fraction != nullptr) {
                fraction->store(static_cast<float>(static_cast<double>(n_done) / static_cast<double>(n_total)),
                                std::memory_order_relaxed);
            }
        }
        if (Error error = file.check_size(); error.failed()) {
            return error;
        }
    }
    return Digest{sha.hex(), static_cast<std::int64_t>(n_total), elapsed(start, Clock::now())};
} catch (const std::bad_alloc &) {
    return Error{ErrorCode::out_of_memory};
}

}  // namespace aner

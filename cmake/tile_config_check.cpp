// Exits 0 when the compiler keeps every store to the argument of its own _tile_loadconfig. Runs on any x86-64: an assembler
// macro takes the place of the instruction and copies the 64 bytes that it would have read.
#include <cstdint>
#include <immintrin.h>

asm(R"(
.macro ldtilecfg from
    .set offset, 0
    .rept 8
        pushq offset + \from
        popq aner_seen + offset(%rip)
        .set offset, offset + 8
    .endr
.endm
)");

struct TileConfig {
    std::uint8_t palette, start_row, reserved[14];
    std::uint16_t colsb[16];
    std::uint8_t rows[16];
};

extern "C" {
extern TileConfig aner_seen;
TileConfig aner_seen;
}

__attribute__((noinline)) static void configure(int rows) {
    TileConfig config = {};
    config.palette = 1;
    for (int i = 0; i < 8; ++i) {
        config.rows[i] = static_cast<std::uint8_t>(rows);
        config.colsb[i] = static_cast<std::uint16_t>(rows * 4);
    }
    _tile_loadconfig(&config);
}

int main(int argc, char **) {
    configure(16 * argc);
    asm volatile("" ::: "memory");
    return aner_seen.palette == 1 && aner_seen.rows[7] == 16 && aner_seen.colsb[7] == 64 ? 0 : 1;
}

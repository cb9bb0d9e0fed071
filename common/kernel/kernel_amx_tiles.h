/* kernel_amx_tiles.h - how the tiles of AMX are set up by every product. */
#pragma once
#include <immintrin.h>
#include "kernel/kernel_impl.h"

/* Tiles 0, 1: activations of n0 and n1 rows, k_bytes of each; 2, 3: as much of K of KERNEL_TILE
 * columns, four bytes of a column side by side; 4 .. 7: sums, the last two of tile 1's rows if it
 * has any. */
static inline void amx_configure(uint32_t n0, uint32_t n1, uint32_t k_bytes)
{
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t column_bytes[16];
        uint8_t rows[16];
    } __attribute__((aligned(64))) c = {.palette = 1};
    const uint32_t last = n1 ? n1 : n0, k = k_bytes / 4,
                   rows[8] = {n0, n1, k, k, n0, n0, last, last};
    for (int i = 0; i < 8; i++) {
        c.rows[i] = (uint8_t)rows[i];
        c.column_bytes[i] = (uint16_t)(!rows[i] ? 0 : i < 2 ? k_bytes : 4 * KERNEL_TILE);
    }
    __asm__ volatile("" : : "r"(&c) : "memory"); // gcc 12 takes only 8 bytes of it as read
    _tile_loadconfig(&c);
}

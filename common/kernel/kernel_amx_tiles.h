/* kernel_amx_tiles.h - the configuration of the AMX tiles, the same for every product. */
#pragma once
#include <immintrin.h>
#include "kernel/kernel_impl.h"

/* The tiles:
 *   0, 1     activations of n0 and n1 rows, k_bytes of K each
 *   2, 3     weights: the same part of K of KERNEL_TILE columns, four bytes of a column together
 *   4 .. 7   sums; 6 and 7 belong to the rows of tile 1, if n1 is not 0 */
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
    __asm__ volatile("" : : "r"(&c) : "memory"); // gcc 12 assumes that only 8 bytes are read
    _tile_loadconfig(&c);
}

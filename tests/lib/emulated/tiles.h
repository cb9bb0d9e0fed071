/* tiles.h - the instructions of AMX as a model in C.
 *
 * Where a CPU would raise an exception, it prints a message and aborts: for a tile without
 * configuration, or for shapes that do not fit. Each thread has its tiles, as on a CPU.
 * Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, LDTILECFG to
 * TDPBF16PS. */
#pragma once
#include <stddef.h>
#include <stdint.h>

/* config: the 64 bytes of LDTILECFG. Clears all tiles. */
void tiles_configure(const void *config);
/* Until the next configuration no tile may be used. */
void tiles_release(void);
void tiles_zero(unsigned t);
/* Rows are `stride` bytes apart. */
void tiles_load(unsigned t, const void *from, ptrdiff_t stride);
void tiles_store(unsigned t, void *to, ptrdiff_t stride);
/* Adds the products of a's rows and b's columns. The bytes of a are signed, those of b are not if
 * b_unsigned is not 0. Four bytes of a column of b are together. */
void tiles_multiply_int8(unsigned to, unsigned a, unsigned b, int b_unsigned);
/* The same for pairs of bf16. Per instruction, even and odd products are added up separately. */
void tiles_multiply_bf16(unsigned to, unsigned a, unsigned b);

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbssd
#undef _tile_dpbsud
#undef _tile_dpbf16ps
#define _tile_loadconfig(config) tiles_configure(config)
#define _tile_release() tiles_release()
#define _tile_zero(t) tiles_zero(t)
#define _tile_loadd(t, from, stride) tiles_load(t, from, (ptrdiff_t)(stride))
#define _tile_stored(t, to, stride) tiles_store(t, to, (ptrdiff_t)(stride))
#define _tile_dpbssd(to, a, b) tiles_multiply_int8(to, a, b, 0)
#define _tile_dpbsud(to, a, b) tiles_multiply_int8(to, a, b, 1)
#define _tile_dpbf16ps(to, a, b) tiles_multiply_bf16(to, a, b)

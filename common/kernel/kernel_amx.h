/* kernel_amx.h - the loops of the AMX int8 products over groups of rows, tiles of columns and parts
 * of K.
 *
 * AMX_TILES tiles of columns are unpacked at a time, and these weights stay in L1 while all rows
 * are multiplied. A unit is the prepared activations of up to KERNEL_ROWS rows; the units of a part
 * of K stay in L2. Between two parts, the sums are in a separate array. Rows of y are often a power
 * of two apart, so sums in y would share few sets of the caches. */
#pragma once
#include "kernel/kernel_amx_tiles.h"
#include "kernel/kernel_avx512.h"
#include "kernel/kernel_int8_unpack.h"

#define AMX_GROUPS 32                // groups of rows that are multiplied by a part of K
#define AMX_UNIT_BYTES (1300u << 10) // bytes of the units of a part of K; they stay in L2
#define AMX_TILES 2                  // tiles of columns that share a tile of rows
#define AMX_FEW 4                    // up to this many groups, memory limits the speed
#define AMX_STREAMS 8                // tiles of columns that are then read side by side
#define AMX_SUMS (AMX_GROUPS * AMX_TILES)

/* Products, or sums, of a tile of rows and a tile of columns. */
typedef int32_t tile_products[KERNEL_ROWS][KERNEL_TILE] __attribute__((aligned(64)));
typedef float tile_sums[KERNEL_ROWS * KERNEL_TILE] __attribute__((aligned(64)));

/* Where the sums of a tile are loaded from, and where they are stored. */
struct place {
    const float *from; // NULL: there are no sums yet
    float *to;
    size_t from_stride, to_stride;
    uint32_t n_rows, n_store; // n_store: columns
};

/* Tiles of columns for all rows of y, `apart` columns from one another. n columns are computed,
 * from the first tile's first column on. */
struct columns {
    float *y;
    size_t y_stride;
    uint32_t apart, n, n_tiles;
    bool begun; // y holds the sums of earlier parts
};

/* Groups of rows, and a part of their K. */
struct part {
    const uint8_t *units; // of the first group; groups are group_bytes apart
    size_t group_bytes;
    uint32_t m, n_groups, n_units;
    bool whole; // the part is all of K
};

static inline uint32_t groups_of(uint32_t m)
{
    return (m + KERNEL_ROWS - 1) / KERNEL_ROWS;
}

/* Number of rows in the first n of n_groups groups of m rows. */
static inline uint32_t rows_of(uint32_t m, uint32_t n_groups, uint32_t n)
{
    return n * (m / n_groups) + MIN(n, m % n_groups);
}

/* The group of row r of m. *r becomes the number of the row in the group. */
static inline uint32_t group_of(uint32_t m, uint32_t *r)
{
    const uint32_t n_groups = groups_of(m), n_rows = m / n_groups, n_larger = m % n_groups;
    const uint32_t in_larger = n_larger * (n_rows + 1);
    const uint32_t group =
        *r < in_larger ? *r / (n_rows + 1) : n_larger + (*r - in_larger) / n_rows;
    *r -= rows_of(m, n_groups, group);
    return group;
}

/* Sets the places of the sums of group g, n_rows rows from r on, and AMX_TILES tiles of columns
 * from tile i on. is_first, is_last: the units are the first or the last ones of the part. A tile
 * beyond the last one gets no columns. */
INLINE void places_of(const struct columns *c, uint32_t i, uint32_t g, uint32_t r, uint32_t n_rows,
                      bool is_first, bool is_last, tile_sums *sums, struct place *at)
{
    for (uint32_t k = 0; k < AMX_TILES; k++) {
        const uint32_t column = (i + k) * c->apart;
        float *y = c->y + r * c->y_stride + column;
        float *sum = sums[g * c->n_tiles + i + k];
        at[k] = (struct place){sum, sum, KERNEL_TILE, KERNEL_TILE, n_rows, 0};
        if (column < c->n)
            at[k].n_store = MIN(c->n - column, KERNEL_TILE);
        if (is_first) {
            at[k].from = c->begun ? y : NULL;
            at[k].from_stride = c->y_stride;
        }
        if (is_last) {
            at[k].to = y;
            at[k].to_stride = c->y_stride;
        }
    }
}

/* Multiplies tiles of columns by a part of K. */
typedef void amx_tiles(const struct int8_type t, const uint8_t *w, size_t tile_bytes,
                       const struct part *x, const struct columns *c);

/* Calls `tiles` for all tiles of columns and parts of K. x: n_groups groups, m rows, in units of
 * n_blocks blocks of 32. A part is a multiple of unit_step units. */
INLINE void amx_walk(const struct int8_type t, amx_tiles *tiles, uint32_t n_blocks,
                     size_t unit_bytes, uint32_t unit_step, const struct kernel_mat *w,
                     const uint8_t *x, size_t group_bytes, uint32_t n_groups, uint32_t m, float *y,
                     size_t y_stride, uint32_t from, uint32_t to)
{
    const size_t tile_bytes = kernel_tile_bytes(kernel_layout(w->type), w->n_in);
    const uint32_t n_all = w->n_in / KERNEL_BLOCK / n_blocks;
    const uint32_t fit = (uint32_t)(AMX_UNIT_BYTES / unit_bytes / n_groups);
    const uint32_t most = fit / unit_step * unit_step;
    const uint32_t n_tiles = (to - from + KERNEL_TILE - 1) / KERNEL_TILE;
    const uint32_t n_side = n_groups <= AMX_FEW ? AMX_STREAMS : AMX_TILES;
    const uint32_t n_each = n_tiles / n_side, done = n_each * n_side;
    for (uint32_t u = 0; u < n_all; u += most) {
        const struct part p = {x + u * unit_bytes, group_bytes,          m,
                               n_groups,           MIN(most, n_all - u), most >= n_all};
        const uint8_t *weights = (const uint8_t *)w->data + from / KERNEL_TILE * tile_bytes +
                                 u * n_blocks / (uint32_t)t.group * int8_group_bytes(t);
        for (uint32_t i = 0; i < n_each; i++)
            tiles(t, weights + i * tile_bytes, tile_bytes, &p,
                  &(struct columns){y + from + i * KERNEL_TILE, y_stride, n_each * KERNEL_TILE,
                                    to - from - i * KERNEL_TILE, n_side, u > 0});
        if (done < n_tiles)
            tiles(t, weights + done * tile_bytes, tile_bytes, &p,
                  &(struct columns){y + from + done * KERNEL_TILE, y_stride, KERNEL_TILE,
                                    to - from - done * KERNEL_TILE, n_tiles - done, u > 0});
    }
}

/* In kernel_amx_256.c, for types of 256. x is as in amx_walk(); n_groups is at most AMX_GROUPS. */
void kernel_amx_matmul_256(const struct kernel_mat *w, const uint8_t *x, size_t group_bytes,
                           uint32_t n_groups, uint32_t m, float *y, size_t y_stride, uint32_t from,
                           uint32_t to);
void kernel_amx_prepare_256(const float *x, uint32_t n, uint32_t r, uint32_t m, void *to,
                            size_t to_bytes);

/* tiles.c - the instructions of AMX as a model in C. */
#include "lib/emulated/tiles.h"
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_TILES 8
#define MAX_ROWS 16
#define ROW_BYTES 64

static _Thread_local struct {
    uint8_t rows, row_bytes; // 0: not configured
    uint8_t data[MAX_ROWS][ROW_BYTES];
} tiles[N_TILES];

static void require(bool holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "AMX: %s\n", what);
        abort();
    }
}

void tiles_configure(const void *config)
{
    const uint8_t *c = config;
    require(c[0] == 1, "the palette is not 1");
    for (unsigned i = 1; i < 16; i++)
        require(c[i] == 0, "reserved bytes of the configuration are not 0");
    memset(tiles, 0, sizeof(tiles));
    for (unsigned t = 0; t < N_TILES; t++) {
        uint16_t row_bytes;
        memcpy(&row_bytes, c + 16 + 2 * t, 2);
        require(row_bytes <= ROW_BYTES && c[48 + t] <= MAX_ROWS, "a tile is too large");
        require(!row_bytes == !c[48 + t], "a tile has rows but no columns, or the reverse");
        tiles[t].rows = c[48 + t];
        tiles[t].row_bytes = (uint8_t)row_bytes;
    }
}

void tiles_release(void)
{
    memset(tiles, 0, sizeof(tiles));
}

static void require_tile(unsigned t)
{
    require(t < N_TILES && tiles[t].rows, "a tile that is not configured");
}

void tiles_zero(unsigned t)
{
    require_tile(t);
    memset(tiles[t].data, 0, sizeof(tiles[t].data));
}

void tiles_load(unsigned t, const void *from, ptrdiff_t stride)
{
    tiles_zero(t);
    for (unsigned r = 0; r < tiles[t].rows; r++)
        memcpy(tiles[t].data[r], (const char *)from + r * stride, tiles[t].row_bytes);
}

void tiles_store(unsigned t, void *to, ptrdiff_t stride)
{
    require_tile(t);
    for (unsigned r = 0; r < tiles[t].rows; r++)
        memcpy((char *)to + r * stride, tiles[t].data[r], tiles[t].row_bytes);
}

static void require_shapes(unsigned to, unsigned a, unsigned b)
{
    require_tile(to);
    require_tile(a);
    require_tile(b);
    require(to != a && to != b && a != b, "a product of a tile with itself");
    require(tiles[to].rows == tiles[a].rows, "sums and first operand have different rows");
    require(tiles[to].row_bytes == tiles[b].row_bytes,
            "sums and second operand have different columns");
    require(tiles[a].row_bytes == 4 * tiles[b].rows, "the operands have different K");
    require(tiles[a].row_bytes % 4 == 0 && tiles[b].row_bytes % 4 == 0, "a part of an element");
}

void tiles_multiply_int8(unsigned to, unsigned a, unsigned b, int b_unsigned)
{
    require_shapes(to, a, b);
    for (unsigned r = 0; r < tiles[to].rows; r++)
        for (unsigned n = 0; n < tiles[to].row_bytes / 4u; n++) {
            uint32_t sum;
            memcpy(&sum, &tiles[to].data[r][4 * n], 4);
            for (unsigned k = 0; k < tiles[a].row_bytes; k++) {
                const uint8_t w = tiles[b].data[k / 4][4 * n + k % 4];
                sum += (uint32_t)((int8_t)tiles[a].data[r][k] * (b_unsigned ? w : (int8_t)w));
            }
            memcpy(&tiles[to].data[r][4 * n], &sum, 4);
        }
}

static float flushed(float x)
{
    return fpclassify(x) == FP_SUBNORMAL ? copysignf(0, x) : x;
}

static float bf16_at(const uint8_t *p)
{
    uint16_t h;
    float f;
    memcpy(&h, p, 2);
    const uint32_t bits = (uint32_t)h << 16;
    memcpy(&f, &bits, 4);
    return flushed(f);
}

/* One sum of a row of a and column n of b, without that of the tile of sums. */
static float bf16_product(unsigned a, unsigned r, unsigned b, unsigned n)
{
    float even_odd[2] = {0};
    for (unsigned k = 0; k < tiles[a].row_bytes / 2u; k++) {
        const float x = bf16_at(&tiles[a].data[r][2 * k]);
        const float w = bf16_at(&tiles[b].data[k / 2][4 * n + 2 * (k % 2)]);
        even_odd[k % 2] = flushed(fmaf(x, w, even_odd[k % 2]));
    }
    return flushed(even_odd[0] + even_odd[1]);
}

void tiles_multiply_bf16(unsigned to, unsigned a, unsigned b)
{
    require_shapes(to, a, b);
    for (unsigned r = 0; r < tiles[to].rows; r++)
        for (unsigned n = 0; n < tiles[to].row_bytes / 4u; n++) {
            float sum;
            memcpy(&sum, &tiles[to].data[r][4 * n], 4);
            sum = flushed(flushed(sum) + bf16_product(a, r, b, n));
            memcpy(&tiles[to].data[r][4 * n], &sum, 4);
        }
}

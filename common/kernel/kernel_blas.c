/* kernel_blas.c - products of float matrices by OpenBLAS's sgemm. F16 and BF16 are widened panel by
 * panel, so that the weights in memory have the layout of the other kernels. */
#include <cblas.h>
#include "kernel/kernel_impl.h"

#define MIN_ROWS 128            // our own kernels take fewer rows
#define PANEL_FLOATS (1u << 20) // sgemm packs all rows per panel: half the size costs 4 %

const char *kernel_blas_init(void)
{
    openblas_set_num_threads(1); // columns are shared among the pool's threads
    return openblas_get_corename();
}

static bool is_quantised(const struct kernel_mat *w)
{
    return kernel_layout(w->type)->group;
}

static uint32_t padded_in(const struct kernel_mat *w)
{
    return kernel_padded(kernel_layout(w->type), w->n_in);
}

static uint32_t panel_columns(const struct kernel_mat *w)
{
    uint32_t n = PANEL_FLOATS / padded_in(w) / KERNEL_TILE * KERNEL_TILE;
    return w->type == KERNEL_F32 ? w->n_out : n ? n : KERNEL_TILE;
}

size_t kernel_blas_floats(const struct kernel_mat *w)
{
    return w->type == KERNEL_F32 || is_quantised(w) ? 0 : (size_t)panel_columns(w) * padded_in(w);
}

/* Widens a tile of BF16 to 16 columns of a panel (K, n_cols). */
static void widen_bf16(const uint8_t *tile, uint32_t n_in, size_t n_cols, float *panel)
{
    for (uint32_t k = 0; k < n_in; k += 2, panel += 2 * n_cols) {
        uint32_t pairs[KERNEL_TILE], even[KERNEL_TILE], odd[KERNEL_TILE];
        memcpy(pairs, tile + (size_t)k * KERNEL_TILE * sizeof(uint16_t), sizeof(pairs));
        for (int c = 0; c < KERNEL_TILE; c++) {
            even[c] = pairs[c] << 16;
            odd[c] = pairs[c] & 0xffff0000;
        }
        memcpy(panel, even, sizeof(even));
        memcpy(panel + n_cols, odd, sizeof(odd));
    }
}

/* Columns [from, to) as floats: (to - from, K); for BF16 (K, columns filled up to whole tiles). */
static const float *widen(const struct kernel *k, const struct kernel_mat *w, uint32_t from,
                          uint32_t to, float *panel)
{
    uint32_t n_in = padded_in(w), n_tiles = (to - from + KERNEL_TILE - 1) / KERNEL_TILE;
    const uint8_t *tiles = w->data;
    if (w->type == KERNEL_F32)
        return (const float *)w->data + (size_t)from * n_in;
    tiles += (size_t)from * n_in * sizeof(uint16_t);
    if (w->type == KERNEL_F16)
        k->from_f16((const uint16_t *)(const void *)tiles, n_tiles * KERNEL_TILE * n_in, panel);
    for (uint32_t t = 0; t < n_tiles && w->type == KERNEL_BF16; t++)
        widen_bf16(tiles + (size_t)t * KERNEL_TILE * n_in * sizeof(uint16_t), n_in,
                   (size_t)n_tiles * KERNEL_TILE, panel + t * KERNEL_TILE);
    return panel;
}

void kernel_blas_matmul(const struct kernel *k, const struct kernel_mat *w, const void *x,
                        size_t x_bytes, uint32_t m, float *y, size_t y_stride, uint32_t from,
                        uint32_t to, float *panel)
{
    if (m < MIN_ROWS || is_quantised(w)) {
        k->matmul(w, x, x_bytes, m, y, y_stride, from, to);
        return;
    }
    int n_in = (int)w->n_in, n_x = (int)(x_bytes / sizeof(float));
    for (uint32_t a = from, b; a < to; a = b) {
        b = to - a < panel_columns(w) ? to : a + panel_columns(w);
        const float *wide = widen(k, w, a, b, panel);
        bool turned = w->type != KERNEL_BF16;
        int n = (int)(b - a), n_tiles = (n + KERNEL_TILE - 1) / KERNEL_TILE;
        cblas_sgemm(CblasRowMajor, CblasNoTrans, turned ? CblasTrans : CblasNoTrans, (int)m, n,
                    n_in, 1, x, n_x, wide, turned ? (int)padded_in(w) : n_tiles * KERNEL_TILE, 0,
                    y + a, (int)y_stride);
    }
}

/* kernel_amx_bf16.c - x86-64 with AMX bf16: BF16 products of several rows by tiles.
 *
 * TDPBF16PS has the very order of sums that kernel.h gives BF16, so a tile of sums stays where it
 * is over all of K. Weights are read as they are packed; activations are packed for AMX_PART of K
 * at a time.
 *
 * AMX: Intel Architecture Instruction Set Extensions Programming Reference, 319433. */
#if defined(__x86_64__)
#include <immintrin.h>
#include "kernel/kernel_impl.h"

#define AMX_ROWS 16
#define AMX_MIN_ROWS 9   // fewer are faster without tiles
#define AMX_MAX_ROWS 256 // packed at a time
#define AMX_PART 512     // of K; two tiles of columns stay in L1 while all rows pass
#define AMX_AHEAD 8192   // bytes of weights to prefetch

/* AMX_PART of K of up to 16 rows. */
struct rows {
    uint16_t x[AMX_PART / 32][AMX_ROWS][32];
} __attribute__((aligned(64)));

/* Sums of a tile of rows and a tile of columns; those of a last, narrow tile take a detour. */
struct sums {
    float *y, *at;
    size_t y_stride, bytes; // bytes: from row to row at `at`
    uint32_t n_rows, n_cols;
    float narrow[AMX_ROWS][KERNEL_TILE];
} __attribute__((aligned(64)));

static void pack_rows(const uint8_t *x, size_t x_bytes, uint32_t n_k, uint32_t n, struct rows *to)
{
    for (uint32_t r = 0; r < n; r++, x += x_bytes)
        for (uint32_t k = 0; k < n_k; k += 16) {
            __m512i bits = _mm512_loadu_si512((const float *)x + k);
            _mm256_store_si256((__m256i *)&to->x[k / 32][r][k % 32],
                               _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16)));
        }
}

/* Tiles 0, 1: n0 and n1 rows; 2, 3: columns; 4, 5 and 6, 7: sums of the first and second rows. */
static void configure(uint32_t n0, uint32_t n1)
{
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t column_bytes[16];
        uint8_t rows[16];
    } __attribute__((aligned(64))) c = {.palette = 1};
    const uint32_t rows[8] = {n0, n1, AMX_ROWS, AMX_ROWS, n0, n0, n1, n1};
    for (int i = 0; i < 8; i++) {
        c.rows[i] = (uint8_t)rows[i];
        c.column_bytes[i] = rows[i] ? 64 : 0;
    }
    __asm__ volatile("" : : "r"(&c) : "memory"); // gcc 12 takes only 8 bytes of it as read
    _tile_loadconfig(&c);
}

static void sums_begin(struct sums *s, float *y, size_t y_stride, uint32_t n_rows, uint32_t n_cols)
{
    bool narrow = n_cols < KERNEL_TILE;
    s->y = y;
    s->y_stride = y_stride;
    s->n_rows = n_rows;
    s->n_cols = MIN(n_cols, KERNEL_TILE);
    s->at = narrow ? s->narrow[0] : y;
    s->bytes = (narrow ? KERNEL_TILE : y_stride) * sizeof(float);
    for (uint32_t r = 0; r < n_rows && narrow; r++)
        memcpy(s->narrow[r], y + r * y_stride, n_cols * sizeof(float));
}

static void sums_end(struct sums *s)
{
    for (uint32_t r = 0; r < s->n_rows && s->at != s->y; r++)
        memcpy(s->y + r * s->y_stride, s->narrow[r], s->n_cols * sizeof(float));
}

/* One or two tiles of rows times one or two of columns, over n of 32 of K. */
INLINE void multiply(const struct rows *x, const uint8_t *w0, const uint8_t *w1, uint32_t n,
                     struct sums s[4], bool first, const bool two_rows, const bool two_cols)
{
#define EACH_SUMS(X)                                                                               \
    X(4, 0);                                                                                       \
    if (two_cols)                                                                                  \
        X(5, 1);                                                                                   \
    if (two_rows)                                                                                  \
        X(6, 2);                                                                                   \
    if (two_rows && two_cols)                                                                      \
    X(7, 3)
#define ZERO(tile, i) _tile_zero(tile)
#define LOAD(tile, i) _tile_loadd(tile, s[i].at, s[i].bytes)
#define STORE(tile, i) _tile_stored(tile, s[i].at, s[i].bytes)
    if (first) {
        EACH_SUMS(ZERO);
    } else {
        EACH_SUMS(LOAD);
    }
    for (uint32_t k = 0; k < n; k++, w0 += 1024, w1 += 1024) {
        EACH (line, 16) {
            __builtin_prefetch(w0 + AMX_AHEAD + 64 * line);
            if (two_cols)
                __builtin_prefetch(w1 + AMX_AHEAD + 64 * line);
        }
        _tile_loadd(0, x[0].x[k], 64);
        _tile_loadd(2, w0, 64);
        _tile_dpbf16ps(4, 0, 2);
        if (two_cols) {
            _tile_loadd(3, w1, 64);
            _tile_dpbf16ps(5, 0, 3);
        }
        if (two_rows) {
            _tile_loadd(1, x[1].x[k], 64);
            _tile_dpbf16ps(6, 1, 2);
        }
        if (two_rows && two_cols)
            _tile_dpbf16ps(7, 1, 3);
    }
    EACH_SUMS(STORE);
#undef EACH_SUMS
}

/* Two tiles of rows, n0 and n1 (which may be 0), times columns [from, to), which are one or two
 * tiles. */
static void rows_times_columns(const struct kernel_mat *w, uint32_t k, uint32_t n,
                               const struct rows *x, uint32_t n0, uint32_t n1, float *y,
                               size_t y_stride, uint32_t from, uint32_t to)
{
    const size_t tile_bytes = kernel_tile_bytes(kernel_layout(KERNEL_BF16), w->n_in);
    const uint8_t *w0 = (const uint8_t *)w->data + from / KERNEL_TILE * tile_bytes +
                        (size_t)k * KERNEL_TILE * sizeof(uint16_t);
    const bool two_cols = to - from > KERNEL_TILE;
    struct sums s[4];
    for (uint32_t i = 0; i < 4; i++)
        if ((i < 2 || n1) && (i % 2 == 0 || two_cols))
            sums_begin(&s[i], y + (i / 2 ? n0 * y_stride : 0) + from + i % 2 * KERNEL_TILE,
                       y_stride, i / 2 ? n1 : n0, to - from - i % 2 * KERNEL_TILE);
        else
            s[i] = (struct sums){0};
    __asm__ volatile("" : : : "memory"); // gcc 12 does not know that tiles are loaded
    if (n1 && two_cols)
        multiply(x, w0, w0 + tile_bytes, n, s, k == 0, true, true);
    else if (n1)
        multiply(x, w0, w0, n, s, k == 0, true, false);
    else if (two_cols)
        multiply(x, w0, w0 + tile_bytes, n, s, k == 0, false, true);
    else
        multiply(x, w0, w0, n, s, k == 0, false, false);
    for (uint32_t i = 0; i < 4; i++)
        sums_end(&s[i]);
}

/* n of 32 of K from k on, for all m rows and columns [from, to). */
static void part(const struct kernel_mat *w, uint32_t k, uint32_t n, const struct rows *rows,
                 uint32_t m, float *y, size_t y_stride, uint32_t from, uint32_t to)
{
    uint32_t configured = 0;
    for (uint32_t c = from; c < to; c += 2 * KERNEL_TILE) {
        uint32_t end = MIN(to - c, 2 * KERNEL_TILE) + c;
        for (uint32_t r = 0; r < m; r += 2 * AMX_ROWS) {
            uint32_t left = m - r, n0 = MIN(left, AMX_ROWS), n1 = MIN(left - n0, AMX_ROWS);
            if (configured != n0 + n1)
                configure(n0, n1);
            configured = n0 + n1;
            rows_times_columns(w, k, n, &rows[r / AMX_ROWS], n0, n1, y + r * y_stride, y_stride, c,
                               end);
        }
    }
}

static void matmul(const struct kernel_mat *w, const uint8_t *x, size_t x_bytes, uint32_t m,
                   float *y, size_t y_stride, uint32_t from, uint32_t to)
{
    struct rows rows[AMX_MAX_ROWS / AMX_ROWS];
    const uint32_t n_in = kernel_padded(kernel_layout(KERNEL_BF16), w->n_in);
    for (uint32_t k = 0; k < n_in; k += AMX_PART) {
        uint32_t n = MIN(n_in - k, AMX_PART);
        for (uint32_t r = 0; r < m; r += AMX_ROWS)
            pack_rows(x + r * x_bytes + k * sizeof(float), x_bytes, n, MIN(m - r, AMX_ROWS),
                      &rows[r / AMX_ROWS]);
        part(w, k, n / 32, rows, m, y, y_stride, from, to);
    }
    _tile_release();
}

bool kernel_amx_bf16(const struct kernel_mat *w, const void *x, size_t x_bytes, uint32_t m,
                     float *y, size_t y_stride, uint32_t from, uint32_t to)
{
    if (m < AMX_MIN_ROWS)
        return false;
    for (uint32_t r = 0; r < m; r += AMX_MAX_ROWS)
        matmul(w, (const uint8_t *)x + r * x_bytes, x_bytes, MIN(m - r, AMX_MAX_ROWS),
               y + r * y_stride, y_stride, from, to);
    return true;
}
#endif

/* test_kernel_attn.c - attention against float64, and the same bits in every tier. The bits do not
 * depend on the placement of the positions, or on which heads and rows are taken together. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "base/rng.h"
#include "kernel/kernel_impl.h"
#include "lib/rigs/guard.h"
#include "lib/lib.h"
#include "lib/rigs/kernel_tiers.h"
#include "lib/models/weights.h"

#define MAX_POS 1100
#define MAX_ROWS 40

/* K and V of MAX_POS positions and a row's queries; position p lies in slot places[p]. */
struct scene {
    uint32_t n_group, head_dim, n_pos, n_base;
    uint32_t blocks[MAX_POS / 16 + 1], tail[MAX_POS];
    float *q;           // (MAX_ROWS, n_group, head_dim)
    const float *k, *v; // (MAX_POS, head_dim), by position
    enum kernel_kv type;
    uint32_t window;
    float *sinks; // (n_group), or NULL
    char *pool;   // (SLOTS / 16) blocks
    size_t block; // bytes
};

#define SLOTS ((MAX_POS / 16 + 1) * 16 * 2)

/* The first position that the last of n_pos sees. */
static uint32_t first_seen(const struct scene *s, uint32_t n_pos)
{
    return s->window && n_pos > s->window ? n_pos - s->window : 0;
}

/* Whole blocks of the first n_base positions in falling order; the others are scattered after
 * them. Blocks that no row with `least` positions or more sees hold NaNs. */
static void place_from(struct scene *s, uint32_t n_pos, uint32_t n_base, uint32_t salt,
                       uint32_t least)
{
    uint32_t d = s->head_dim;
    s->n_pos = n_pos;
    s->n_base = n_base;
    for (uint32_t b = 0; b * 16 < n_base; b++)
        s->blocks[b] = (MAX_POS / 16 - b + salt) % (MAX_POS / 16 + 1);
    for (uint32_t i = 0; i < n_pos - n_base; i++)
        s->tail[i] = SLOTS / 2 + (i * 7 + salt) % (SLOTS / 2);
    memset(s->pool, 0xff, SLOTS / 16 * s->block); // NaN: slots of no position
    for (uint32_t p = first_seen(s, least) / 16 * 16; p < n_pos; p++) {
        uint32_t slot = p < n_base ? s->blocks[p / 16] * 16 + p % 16 : s->tail[p - n_base];
        kernel_tier("c")->kv_put(s->type, s->k + p * d, s->v + p * d, d, slot % 16,
                                 s->pool + slot / 16 * s->block);
    }
}

static void place(struct scene *s, uint32_t n_pos, uint32_t n_base, uint32_t salt)
{
    place_from(s, n_pos, n_base, salt, n_pos);
}

static const struct kind {
    const char *name;
    enum kernel_kv type;
    uint32_t window;
    bool has_sinks;
} kinds[] = {{"F16", KERNEL_KV_F16, 0, false},
             {"F32", KERNEL_KV_F32, 0, false},
             {"INT8", KERNEL_KV_INT8, 0, false},
             {"F16, window and sinks", KERNEL_KV_F16, 100, true},
             {"F32, window and sinks", KERNEL_KV_F32, 290, true},
             {"INT8, window and sinks", KERNEL_KV_INT8, 100, true}};
static const struct kind *kind; // of the scenes

static struct scene scene_of(uint32_t n_group, uint32_t head_dim)
{
    struct scene s = {
        .n_group = n_group, .head_dim = head_dim, .type = kind->type, .window = kind->window};
    s.block = kernel_kv_bytes(kind->type, head_dim);
    s.sinks = kind->has_sinks ? weights_floats(1, n_group, 4, false) : NULL;
    s.q = weights_floats(MAX_ROWS * n_group, head_dim, 1, false);
    s.k = weights_floats(MAX_POS, head_dim, 2, false);
    s.v = weights_floats(MAX_POS, head_dim, 3, false);
    s.pool = guard_alloc(SLOTS / 16 * s.block);
    return s;
}

static void scene_done(struct scene *s)
{
    free(s->q);
    free(s->sinks);
    free((void *)s->k);
    free((void *)s->v);
    guard_free_all();
}

/* Rows [row, row + n_rows) that see `sights`, their heads [h, h + n): q and out are (rows, n_group,
 * head_dim). */
static void attend_rows(const struct kernel *k, const struct scene *s,
                        const struct kernel_sight *sights, uint32_t row, uint32_t n_rows,
                        uint32_t h, uint32_t n, float *out)
{
    uint32_t d = s->head_dim, stride = s->n_group * d;
    float *scratch = weights_alloc(KERNEL_ATTN_SCRATCH(d) * sizeof(float));
    k->attn(&(struct kernel_attn){
        .q = s->q + row * stride + h * d,
        .out = out + row * stride + h * d,
        .row_stride = stride,
        .sights = sights + row,
        .n_rows = n_rows,
        .n_heads = n,
        .head_dim = d,
        .window = s->window,
        .scale = 1 / sqrtf((float)d),
        .sinks = s->sinks ? s->sinks + h : NULL,
        .blocks = s->blocks,
        .type = s->type,
        .kv = s->pool,
        .block = s->block,
        .scratch = scratch,
    });
    free(scratch);
}

/* Heads [h, h + n) of a row that sees all positions into out (n_group, head_dim). */
static void attend(const struct kernel *k, const struct scene *s, uint32_t h, uint32_t n,
                   float *out)
{
    struct kernel_sight all = {s->n_base, s->n_pos - s->n_base, s->tail};
    attend_rows(k, s, &all, 0, 1, h, n, out);
}

/* The values of a row after storing them. */
static void keep(enum kernel_kv kept, const float *x, uint32_t n, double *to)
{
    float most = 0;
    for (uint32_t i = 0; i < n; i++)
        most = fmaxf(most, fabsf(x[i]));
    float scale = most / 127;
    for (uint32_t i = 0; i < n; i++)
        to[i] = kept == KERNEL_KV_F32   ? (double)x[i]
                : kept == KERNEL_KV_F16 ? (double)kernel_f16_to(kernel_f16_of(x[i]))
                                        : (double)scale * rint((double)(x[i] * (1 / scale)));
}

static double dot64(const double *a, const double *b, uint32_t n)
{
    double dot = 0;
    for (uint32_t i = 0; i < n; i++)
        dot += a[i] * b[i];
    return dot;
}

/* Uses the stored values. For int8, queries are rounded too, and weights are multiples of 1/32767
 * of the largest in a piece. */
static void check_float64(const struct scene *s, const float *out)
{
    uint32_t d = s->head_dim;
    static double k[MAX_POS][72], v[MAX_POS][72];
    double bound = s->type == KERNEL_KV_INT8 ? 1e-4 : 2e-6; // V is about 1; sums are short chains
    for (uint32_t p = 0; p < s->n_pos; p++) {
        keep(s->type, s->k + p * d, d, k[p]);
        keep(s->type, s->v + p * d, d, v[p]);
    }
    for (uint32_t h = 0; h < s->n_group; h++) {
        static double w[MAX_POS];
        const uint32_t first = first_seen(s, s->n_pos);
        double sum = s->sinks ? exp((double)s->sinks[h]) : 0, q[72];
        keep(s->type == KERNEL_KV_INT8 ? s->type : KERNEL_KV_F32, s->q + h * d, d, q);
        for (uint32_t p = first; p < s->n_pos; p++)
            sum += w[p] = exp(dot64(q, k[p], d) / sqrt(d));
        for (uint32_t i = 0; i < d; i++) {
            double want = 0;
            for (uint32_t p = first; p < s->n_pos; p++)
                want += w[p] / sum * v[p][i];
            if (!(fabs(out[h * d + i] - want) < bound))
                fail_msg("%u positions, head %u, %u: %g is not %g", s->n_pos, h, i, out[h * d + i],
                         want);
        }
    }
}

static const uint32_t positions[] = {1,   2,   15,  16,  17,  250,  255,
                                     256, 257, 511, 512, 513, 1025, 1100};

static void attention_agrees_with_float64(void **state)
{
    (void)state;
    for (uint32_t d = 24; d <= 72; d += 24) {
        struct scene s = scene_of(3, d);
        float *out = weights_alloc(s.n_group * d * sizeof(float));
        for (unsigned i = 0; i < sizeof(positions) / sizeof(*positions); i++) {
            place(&s, positions[i], positions[i] / 2, 5);
            attend(kernel_tier("c"), &s, 0, s.n_group, out);
            check_float64(&s, out);
        }
        free(out);
        scene_done(&s);
    }
}

static void check_tiers(uint32_t n_group, uint32_t d)
{
    const struct kernel *k[KERNEL_TIERS_MAX];
    unsigned n_tiers = kernel_tiers_here(k);
    struct scene s = scene_of(n_group, d);
    size_t bytes = n_group * d * sizeof(float);
    float *want = weights_alloc(bytes), *out = weights_alloc(bytes);
    for (unsigned i = 0; i < sizeof(positions) / sizeof(*positions); i++) {
        place(&s, positions[i], positions[i] - positions[i] / 5, i);
        attend(kernel_tier("c"), &s, 0, n_group, want);
        for (unsigned t = 0; t < n_tiers; t++) {
            memset(out, 0xff, bytes);
            attend(k[t], &s, 0, n_group, out);
            assert_memory_equal(out, want, bytes);
            memset(out, 0xff, bytes);
            for (uint32_t h = 0; h < n_group; h++)
                attend(k[t], &s, h, 1, out);
            assert_memory_equal(out, want, bytes);
        }
    }
    free(want);
    free(out);
    scene_done(&s);
}

static void tiers_and_groups_of_heads_give_the_same_bits(void **state)
{
    (void)state;
    static const uint32_t groups[] = {1, 2, 3, 4, 5, 8}, dims[] = {8, 16, 20, 64, 80, 96, 128, 256};
    bool all = getenv("TANDEM_TEST_LONG");
    for (unsigned g = 0; g < 6; g++)
        for (unsigned i = 0; i < 8; i++)
            if (all || (g + i) % ((kind->window ? 5 : 2) + kernel_tiers_step()) == 0)
                check_tiers(groups[g], dims[i]);
}

/* A path through a tree gives the bits of the chain of the same tokens, in any slots. */
static void the_slots_of_positions_change_no_bit(void **state)
{
    (void)state;
    const struct kernel *k[KERNEL_TIERS_MAX];
    unsigned n_tiers = kernel_tiers_here(k);
    struct scene s = scene_of(4, 64);
    size_t bytes = 4 * 64 * sizeof(float);
    float *want = weights_alloc(bytes), *out = weights_alloc(bytes);
    for (unsigned t = 0; t < n_tiers; t++) {
        for (unsigned i = 0; i < sizeof(positions) / sizeof(*positions); i++) {
            uint32_t n = positions[i];
            place(&s, n, n, 0);
            attend(k[t], &s, 0, 4, want);
            uint32_t bases[] = {0, 1, n / 2, n - 1, n > 20 ? n - 20 : 0, n};
            for (unsigned b = 0; b < 6; b++) {
                place(&s, n, bases[b], b);
                attend(k[t], &s, 0, 4, out);
                assert_memory_equal(out, want, bytes);
            }
        }
    }
    free(want);
    free(out);
    scene_done(&s);
}

/* ---- rows together ---- */

static uint64_t dice_state;

static uint32_t dice(uint32_t n)
{
    return (uint32_t)((dice_state = rng_splitmix64(dice_state)) % n);
}

/* The sights of rows of a pass, over s->n_base positions in blocks and over scattered slots. They
 * are the end of a chain, paths through a tree, or random. */
static void random_sights(const struct scene *s, struct kernel_sight *sights, uint32_t n_rows)
{
    uint32_t shape = dice(3), n_tails = s->n_pos - s->n_base;
    for (uint32_t r = 0; r < n_rows; r++) {
        uint32_t back = n_rows - 1 - r, at = dice(n_tails), n = dice(n_tails - at);
        struct kernel_sight chain = {s->n_base > back ? s->n_base - back : 1, 0, NULL};
        struct kernel_sight path = {s->n_base, n, s->tail + at};
        struct kernel_sight any = {1 + dice(s->n_base), n, s->tail + at};
        sights[r] = shape == 0 ? chain : shape == 1 ? path : any;
    }
}

static void check_rows(struct scene *s, uint32_t n_rows)
{
    struct kernel_sight sights[MAX_ROWS];
    size_t bytes = MAX_ROWS * s->n_group * s->head_dim * sizeof(float);
    float *want = weights_alloc(bytes), *out = weights_alloc(bytes);
    random_sights(s, sights, n_rows);
    memset(want, 0xff, bytes);
    for (uint32_t r = 0; r < n_rows; r++)
        attend_rows(kernel_tier("c"), s, sights, r, 1, 0, s->n_group, want);
    const struct kernel *tiers[KERNEL_TIERS_MAX];
    unsigned n_tiers = kernel_tiers_here(tiers);
    for (unsigned t = 0; t < n_tiers; t++) {
        const struct kernel *k = tiers[t];
        memset(out, 0xff, bytes);
        attend_rows(k, s, sights, 0, n_rows, 0, s->n_group, out);
        assert_memory_equal(out, want, bytes);
        memset(out, 0xff, bytes);
        uint32_t cut = dice(n_rows), h = dice(s->n_group);
        if (cut)
            attend_rows(k, s, sights, 0, cut, 0, s->n_group, out);
        if (h)
            attend_rows(k, s, sights, cut, n_rows - cut, 0, h, out);
        attend_rows(k, s, sights, cut, n_rows - cut, h, s->n_group - h, out);
        assert_memory_equal(out, want, bytes);
    }
    free(want);
    free(out);
}

static void rows_together_have_the_bits_of_rows_alone(void **state)
{
    (void)state;
    static const uint32_t groups[] = {1, 3, 4, 7, 33}, dims[] = {20, 64, 80, 128};
    static const uint32_t bases[] = {1, 40, 256, 300, 520, 1000};
    dice_state = 1;
    for (unsigned g = 0; g < 5; g++)
        for (unsigned d = 0; d < 4; d++) {
            struct scene s = scene_of(groups[g], dims[d]);
            for (unsigned i = 0; i < lib_amount(kind->window ? 2 : 3, 3, 60);
                 i += kernel_tiers_step()) {
                uint32_t n_base = 1 + dice(bases[dice(6)]);
                place_from(&s, n_base + 1 + dice(64), n_base, i, 1);
                check_rows(&s, groups[g] > 8 ? 1 + dice(3) : 1 + dice(MAX_ROWS));
            }
            scene_done(&s);
        }
}

/* 32 queries whose windows begin in different pieces: none writes into the sums of another. */
static void rows_far_apart_have_the_bits_of_rows_alone(void **state)
{
    (void)state;
    const struct kernel *k[KERNEL_TIERS_MAX];
    unsigned n_tiers = kernel_tiers_here(k);
    const uint32_t n_rows = 4, n_group = 8, d = 64;
    struct scene s = scene_of(n_group, d);
    const struct kernel_sight sights[] = {
        {600, 0, NULL}, {700, 0, NULL}, {90, 0, NULL}, {1000, 0, NULL}};
    const size_t bytes = n_rows * n_group * d * sizeof(float);
    float *want = weights_alloc(bytes), *out = weights_alloc(bytes);
    place_from(&s, 1000, 1000, 3, 90);
    for (unsigned t = 0; t < n_tiers; t++) {
        for (uint32_t r = 0; r < n_rows; r++)
            attend_rows(k[t], &s, sights, r, 1, 0, n_group, want);
        memset(out, 0xff, bytes);
        attend_rows(k[t], &s, sights, 0, n_rows, 0, n_group, out);
        assert_memory_equal(out, want, bytes);
    }
    free(want);
    free(out);
    scene_done(&s);
}

/* Scores of both signs, so large that exp is 0 except for the largest score. */
static void large_scores_neither_overflow_nor_vanish(void **state)
{
    (void)state;
    const struct kernel *k[KERNEL_TIERS_MAX];
    unsigned n_tiers = kernel_tiers_here(k);
    struct scene s = scene_of(2, 32);
    float *out = weights_alloc(2 * 32 * sizeof(float));
    for (uint32_t i = 0; i < 2 * 32; i++)
        s.q[i] *= 1e4f;
    place(&s, 600, 600, 0);
    for (unsigned t = 0; t < n_tiers; t++) {
        attend(k[t], &s, 0, 2, out);
        for (uint32_t i = 0; i < 2 * 32; i++)
            assert_true(fabsf(out[i]) < 4);
    }
    free(out);
    scene_done(&s);
}

/* Rows of zeros, of one value, of values near the limits of float, of NaNs and infinities; each in
 * K, in V or in both. */
static void make_extreme(float *row, uint32_t n, uint32_t values)
{
    static const float ends[] = {3e38f, -3e38f, 1e-38f, 1e-45f, -1e30f, 0x1p-126f, 1, -0.0f};
    for (uint32_t i = 0; i < n && values < 9; i++)
        row[i] = values == 8 ? 0 : i % 3 ? row[i] * ends[values] : ends[values];
    if (values == 9)
        row[n - 1] = NAN;
    if (values == 10)
        row[0] = -INFINITY;
}

/* The same in every tier and for rows together; NaNs in the same places. */
static void extreme_values_have_the_same_bits(void **state)
{
    (void)state;
    const struct kernel *k[KERNEL_TIERS_MAX];
    unsigned n_tiers = kernel_tiers_here(k);
    const uint32_t n_group = 4, d = 64, n_rows = 6, n_out = n_rows * n_group * d;
    float *want = weights_alloc(n_out * sizeof(float)), *out = weights_alloc(n_out * sizeof(float));
    for (uint32_t extreme = 0; extreme < 33; extreme++) {
        struct scene s = scene_of(n_group, d);
        struct kernel_sight sights[6];
        make_extreme((float *)s.k + 20 * d, d, extreme / 3);
        if (extreme % 3)
            make_extreme((float *)s.v + (extreme % 3 == 1 ? 20 : 290) * d, d, extreme / 3);
        place_from(&s, 310, 300, extreme, 15);
        for (uint32_t r = 0; r < n_rows; r++)
            sights[r] = (struct kernel_sight){15 + 57 * r, r == 5 ? 10 : 0, s.tail};
        for (unsigned t = 0; t < n_tiers; t++)
            for (uint32_t step = 1; step <= n_rows; step += n_rows - 1) {
                memset(out, 0xff, n_out * sizeof(float));
                for (uint32_t r = 0; r < n_rows; r += step)
                    attend_rows(k[t], &s, sights, r, step, 0, n_group, out);
                for (uint32_t i = 0; i < n_out; i++)
                    out[i] = out[i] != out[i] ? NAN : out[i];
                if (t == 0 && step == 1)
                    memcpy(want, out, n_out * sizeof(float));
                if (memcmp(out, want, n_out * sizeof(float)) != 0)
                    fail_msg("%s, values %u: other bits", k[t]->name, extreme);
            }
        assert_true(extreme < 27 || s.window || want[n_out - 1] != want[n_out - 1]);
        assert_true(want[0] == want[0]); // sees no NaN
        scene_done(&s);
    }
    free(want);
    free(out);
}

/* Earlier contents of a place and the other places of the block have no effect. */
static void a_position_is_stored_and_moved_alone(void **state)
{
    (void)state;
    const struct kernel *k[KERNEL_TIERS_MAX];
    unsigned n_tiers = kernel_tiers_here(k);
    static const uint32_t dims[] = {3, 16, 20, 64, 80};
    for (unsigned i = 0; i < 5; i++) {
        struct scene s = scene_of(1, dims[i]);
        char *a = guard_alloc(s.block), *b = guard_alloc(s.block), *c = guard_alloc(s.block);
        for (unsigned t = 0; t < n_tiers; t++) {
            memset(a, 0, s.block);
            memset(b, 0, s.block);
            memset(c, 0, s.block);
            for (uint32_t p = 0; p < 16; p++) { // in other places first, and in another order
                const float *key = s.k + p * dims[i], *value = s.v + p * dims[i];
                k[0]->kv_put(s.type, key, value, dims[i], p, a);
                k[t]->kv_put(s.type, value, key, dims[i], 15 - p, b);
            }
            for (uint32_t p = 0; p < 16; p++)
                k[t]->kv_put(s.type, s.k + p * dims[i], s.v + p * dims[i], dims[i], p, b);
            assert_memory_equal(b, a, s.block);
            for (uint32_t p = 0; p < 16; p++)
                kernel_kv_move(s.type, dims[i], a, p, c, (5 * p + 3) % 16);
            memset(b, 0, s.block);
            for (uint32_t p = 0; p < 16; p++)
                kernel_kv_move(s.type, dims[i], c, (5 * p + 3) % 16, b, p);
            for (uint32_t p = 0; p < 16; p++) // the padding is not moved
                k[t]->kv_put(s.type, s.k + p * dims[i], s.v + p * dims[i], dims[i], p, c);
            assert_memory_equal(c, a, s.block);
            memset(c, 0, s.block);
            for (uint32_t p = 0; p < 16; p++)
                kernel_kv_move(s.type, dims[i], a, p, c, p);
            assert_memory_equal(b, c, s.block);
        }
        scene_done(&s);
    }
}

int main(void)
{
    kernel_thread_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_agrees_with_float64),
        cmocka_unit_test(tiers_and_groups_of_heads_give_the_same_bits),
        cmocka_unit_test(the_slots_of_positions_change_no_bit),
        cmocka_unit_test(large_scores_neither_overflow_nor_vanish),
        cmocka_unit_test(rows_together_have_the_bits_of_rows_alone),
        cmocka_unit_test(rows_far_apart_have_the_bits_of_rows_alone),
        cmocka_unit_test(extreme_values_have_the_same_bits),
        cmocka_unit_test(a_position_is_stored_and_moved_alone),
    };
    int failed = 0;
    for (kind = kinds; kind < kinds + ARRAY_LEN(kinds); kind++)
        failed += cmocka_run_group_tests_name(kind->name, tests, NULL, NULL);
    return failed;
}

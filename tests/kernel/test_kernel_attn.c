/* test_kernel_attn.c - attention: against float64, and the same bits in every tier, for every
 * placement of the positions, for heads and for rows taken together or alone. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/rng.h"
#include "kernel/kernel_impl.h"
#include "lib/guard.h"
#include "lib/lib.h"
#include "lib/tiers.h"
#include "lib/weights.h"

#define MAX_POS 1100
#define MAX_ROWS 40

/* K and V of MAX_POS positions and a row's queries; position p lies in slot places[p]. */
struct scene {
    uint32_t n_group, head_dim, n_pos, n_base;
    uint32_t blocks[MAX_POS / 16 + 1], tail[MAX_POS];
    float *q;           // (MAX_ROWS, n_group, head_dim)
    const float *k, *v; // (MAX_POS, head_dim), by position
    uint16_t *pool;     // (SLOTS / 16, K and V, 16, head_dim)
};

#define SLOTS ((MAX_POS / 16 + 1) * 16 * 2)

/* Whole blocks of the first n_base positions in falling order, the others scattered behind them. */
static void place(struct scene *s, uint32_t n_pos, uint32_t n_base, uint32_t salt)
{
    uint32_t d = s->head_dim;
    s->n_pos = n_pos;
    s->n_base = n_base;
    for (uint32_t b = 0; b * 16 < n_base; b++)
        s->blocks[b] = (MAX_POS / 16 - b + salt) % (MAX_POS / 16 + 1);
    for (uint32_t i = 0; i < n_pos - n_base; i++)
        s->tail[i] = SLOTS / 2 + (i * 7 + salt) % (SLOTS / 2);
    memset(s->pool, 0x7e, SLOTS * 2 * d * sizeof(uint16_t)); // NaN: slots of no position
    for (uint32_t p = 0; p < n_pos; p++) {
        uint32_t slot = p < n_base ? s->blocks[p / 16] * 16 + p % 16 : s->tail[p - n_base];
        uint16_t *k = s->pool + slot / 16 * 32 * d + slot % 16 * d; // V: a block of 16 further on
        kernel_tier("c")->to_f16(s->k + p * d, d, k);
        kernel_tier("c")->to_f16(s->v + p * d, d, k + 16 * d);
    }
}

static struct scene scene_of(uint32_t n_group, uint32_t head_dim)
{
    struct scene s = {.n_group = n_group, .head_dim = head_dim};
    s.q = weights_floats(MAX_ROWS * n_group, head_dim, 1, false);
    s.k = weights_floats(MAX_POS, head_dim, 2, false);
    s.v = weights_floats(MAX_POS, head_dim, 3, false);
    s.pool = guard_alloc(SLOTS * 2 * head_dim * sizeof(uint16_t));
    return s;
}

static void scene_done(struct scene *s)
{
    free(s->q);
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
        .scale = 1 / sqrtf((float)d),
        .blocks = s->blocks,
        .k = s->pool,
        .v = s->pool + 16 * d,
        .block = 32 * d,
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

static void check_float64(const struct scene *s, const float *out)
{
    uint32_t d = s->head_dim;
    for (uint32_t h = 0; h < s->n_group; h++) {
        static double w[MAX_POS];
        double sum = 0;
        for (uint32_t p = 0; p < s->n_pos; p++) {
            double dot = 0;
            for (uint32_t i = 0; i < d; i++)
                dot += (double)s->q[h * d + i] * kernel_f16_to(kernel_f16_of(s->k[p * d + i]));
            sum += w[p] = exp(dot / sqrt(d));
        }
        for (uint32_t i = 0; i < d; i++) {
            double want = 0;
            for (uint32_t p = 0; p < s->n_pos; p++)
                want += w[p] / sum * kernel_f16_to(kernel_f16_of(s->v[p * d + i]));
            if (!(fabs(out[h * d + i] - want) <
                  2e-6)) // V is about 1; sums are short chains of floats
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
    const struct kernel *k[TIERS_MAX];
    unsigned n_tiers = tiers_here(k);
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
            if (all || (g + i) % 3 == 0)
                check_tiers(groups[g], dims[i]);
}

/* A path through a tree is the chain of the same tokens, wherever both lie. */
static void where_positions_lie_changes_no_bit(void **state)
{
    (void)state;
    const struct kernel *k[TIERS_MAX];
    unsigned n_tiers = tiers_here(k);
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

/* What rows of a pass see of s->n_base positions in blocks and of scattered slots: the end of a
 * chain, paths through a tree, or anything. */
static void random_sights(const struct scene *s, struct kernel_sight *sights, uint32_t n_rows)
{
    uint32_t kind = dice(3), n_tails = s->n_pos - s->n_base;
    for (uint32_t r = 0; r < n_rows; r++) {
        uint32_t back = n_rows - 1 - r, at = dice(n_tails), n = dice(n_tails - at);
        struct kernel_sight chain = {s->n_base > back ? s->n_base - back : 1, 0, NULL};
        struct kernel_sight path = {s->n_base, n, s->tail + at};
        struct kernel_sight any = {1 + dice(s->n_base), n, s->tail + at};
        sights[r] = kind == 0 ? chain : kind == 1 ? path : any;
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
    const struct kernel *tiers[TIERS_MAX];
    unsigned n_tiers = tiers_here(tiers);
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

static void rows_together_have_the_bits_that_each_has_alone(void **state)
{
    (void)state;
    static const uint32_t groups[] = {1, 3, 4, 7, 33}, dims[] = {20, 64, 80, 128};
    static const uint32_t bases[] = {1, 40, 256, 300, 520, 1000};
    dice_state = 1;
    for (unsigned g = 0; g < 5; g++)
        for (unsigned d = 0; d < 4; d++) {
            struct scene s = scene_of(groups[g], dims[d]);
            for (unsigned i = 0; i < (getenv("TANDEM_TEST_LONG") ? 60 : 6); i++) {
                uint32_t n_base = 1 + dice(bases[dice(6)]);
                place(&s, n_base + 1 + dice(64), n_base, i);
                check_rows(&s, groups[g] > 8 ? 1 + dice(3) : 1 + dice(MAX_ROWS));
            }
            scene_done(&s);
        }
}

static void cost_grows_with_positions_alone(void **state)
{
    (void)state;
    const struct kernel *k[TIERS_MAX];
    unsigned n_tiers = tiers_here(k);
    struct scene s = scene_of(4, 64);
    float *out = weights_alloc(4 * 64 * sizeof(float));
    place(&s, MAX_POS, MAX_POS, 0);
    for (unsigned t = 0; t < n_tiers; t++) {
        int64_t best = INT64_MAX;
        for (int i = 0; i < 20; i++) {
            int64_t start = clock_us();
            attend(k[t], &s, 0, 4, out);
            int64_t us = clock_us() - start;
            best = us < best ? us : best;
        }
        printf("%s: 4 heads of 64 over %u positions %lld us\n", k[t]->name, MAX_POS,
               (long long)best);
    }
    free(out);
    scene_done(&s);
}

/* Scores so large that exp of any but the largest is 0, and of both signs. */
static void large_scores_neither_overflow_nor_vanish(void **state)
{
    (void)state;
    const struct kernel *k[TIERS_MAX];
    unsigned n_tiers = tiers_here(k);
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

int main(void)
{
    kernel_thread_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_agrees_with_float64),
        cmocka_unit_test(tiers_and_groups_of_heads_give_the_same_bits),
        cmocka_unit_test(where_positions_lie_changes_no_bit),
        cmocka_unit_test(large_scores_neither_overflow_nor_vanish),
        cmocka_unit_test(rows_together_have_the_bits_that_each_has_alone),
        cmocka_unit_test(cost_grows_with_positions_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

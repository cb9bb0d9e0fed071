/* test_calibrate.c - which passes are timed at start-up. The passes and the clock are replaced: a
 * pass does nothing and takes as long as the test says. */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "lib/lib.h"
#include "lib/rigs/folder.h"
#include "base/err.h"
#include "base/mem.h"
#include "file/result_file.h"
#include "verifier-svc/engine/calibrate.h"

#define MAX_PASSES 200
#define MAX_ROWS 64

static const struct kv_layer layer = {.n_heads = 1, .k_dim = 4, .v_dim = 4};
static const struct kv_shape shape = {.n_layers = 1, .layers = &layer};

/* ---- a machine ---- */

static const uint32_t ids[] = {3, 9, 4, 1}; // of a text; 512 is a multiple of their number
static uint32_t next_id;

int64_t __wrap_clock_us(void);
void __wrap_forward_run(struct forward *f, const struct pass_plan *plan);

static int64_t now_us, first_us, row_us; // a pass: first_us and row_us per row
static double position_us;               // and this per position of its context, once
static unsigned delayed;                 // the number of a pass that takes a second longer
static struct {
    uint32_t rows, context;
} passes[MAX_PASSES];
static unsigned n_passes;

int64_t __wrap_clock_us(void)
{
    return now_us;
}

void __wrap_forward_run(struct forward *f, const struct pass_plan *plan)
{
    assert_null(f);
    assert_true(n_passes < MAX_PASSES && plan->n_seqs == 1);
    for (uint32_t i = 0; i < plan->n_rows; i++) {
        assert_true(plan->rows[i].wants_logits);
        assert_int_equal(plan->rows[i].token, ids[next_id++ % ARRAY_LEN(ids)]);
        assert_int_equal(plan->rows[i].pos, plan->rows[0].pos + i);
    }
    passes[n_passes].rows = plan->n_rows;
    passes[n_passes++].context = plan->rows[0].pos;
    now_us += first_us + row_us * plan->n_rows + (int64_t)(position_us * plan->rows[0].pos);
    now_us += n_passes == delayed ? 1000000 : 0;
}

/* A runner that can run max_logits rows and has n_blocks for contexts of this length. */
static struct runner *machine(uint32_t context, uint32_t max_logits, uint32_t n_blocks)
{
    struct runner *r = calloc(1, sizeof(*r));
    assert_non_null(r);
    r->context = context;
    r->max_logits = max_logits;
    assert_int_equal(kv_new(&shape, n_blocks, &r->kv), 0);
    assert_int_equal(pass_plan_init(&r->plan, MAX_ROWS, 1, context), 0);
    now_us = 12345;
    first_us = 100;
    row_us = 10;
    position_us = 0;
    delayed = n_passes = next_id = 0;
    return r;
}

static void machine_free(struct runner *r)
{
    assert_int_equal(kv_n_free(r->kv), kv_n_blocks(r->kv)); // all blocks were returned
    pass_plan_done(&r->plan);
    kv_free(r->kv);
    free(r);
}

static void must_be(double got, double expected)
{
    assert_true(fabs(got - expected) < 1e-6 * expected);
}

static double rows_us(const struct pass_time *t, uint32_t rows)
{
    return pass_time_us(t, &(struct pass_time_work){.rows = rows});
}

/* ---- tests ---- */

/* The most important sizes first. */
static const uint32_t order[] = {1, 8, 4, 16, 2, 6, 10, 32, 3, 5, 17, 7, 9, 12, 14, 20, 24, 48, 64};
static_assert(ARRAY_LEN(order) == PASS_TIME_TIMED, "each of the timed sizes once");

static void each_size_is_timed_three_times_in_turns(void **state)
{
    (void)state;
    struct runner *r = machine(4096, MAX_ROWS, 300);
    struct pass_time t;
    assert_int_equal(calibrate(r, ids, ARRAY_LEN(ids), &t), 0);
    assert_int_equal(n_passes, 1 + 3 * PASS_TIME_TIMED + 3 * 2);
    assert_true(passes[0].rows == 1 && passes[0].context == 0); // warms up
    for (unsigned i = 0; i < 3 * PASS_TIME_TIMED; i++) {
        assert_int_equal(passes[1 + i].rows, order[i % PASS_TIME_TIMED]);
        assert_int_equal(passes[1 + i].context, 0);
    }
    for (unsigned i = 0; i < 6; i++) {
        assert_int_equal(passes[1 + 3 * PASS_TIME_TIMED + i].rows, i % 2 ? 8 : 1);
        assert_int_equal(passes[1 + 3 * PASS_TIME_TIMED + i].context, 2048);
    }
    for (unsigned i = 0; i < PASS_TIME_TIMED; i++)
        must_be(rows_us(&t, pass_time_rows_at(i)), 100 + 10. * pass_time_rows_at(i));
    machine_free(r);
}

/* A position of a sequence takes half a microsecond, whatever the number of rows. */
static void the_time_of_a_context_is_measured(void **state)
{
    (void)state;
    struct runner *r = machine(4096, MAX_ROWS, 300);
    struct pass_time t;
    position_us = 0.5;
    assert_int_equal(calibrate(r, ids, ARRAY_LEN(ids), &t), 0);
    must_be(t.read_us, 0.5);
    assert_true(t.attend_us < 1e-9);
    machine_free(r);
}

static void the_fastest_pass_counts(void **state)
{
    (void)state;
    for (unsigned turn = 0; turn < 2; turn++) {
        struct runner *r = machine(4096, MAX_ROWS, 300);
        struct pass_time t;
        delayed = 2 + turn * PASS_TIME_TIMED; // of one row
        assert_int_equal(calibrate(r, ids, ARRAY_LEN(ids), &t), 0);
        must_be(rows_us(&t, 1), 110);
        machine_free(r);
    }
}

static void a_pass_may_take_a_microsecond(void **state)
{
    (void)state;
    struct runner *r = machine(4096, MAX_ROWS, 300);
    struct pass_time t;
    first_us = 1;
    row_us = 0;
    assert_int_equal(calibrate(r, ids, ARRAY_LEN(ids), &t), 0);
    must_be(rows_us(&t, 64), 1);
    machine_free(r);
}

/* No new size after 1.5 s, and no new turn with context after 0.5 s more. */
static void a_slow_machine_times_fewer_passes(void **state)
{
    (void)state;
    struct runner *r = machine(4096, MAX_ROWS, 300);
    struct pass_time t;
    first_us = 300000;
    row_us = 0;
    assert_int_equal(calibrate(r, ids, ARRAY_LEN(ids), &t), 0);
    assert_int_equal(n_passes, 1 + 4 + 2); // 0.3 s each; the first is the warm-up
    must_be(rows_us(&t, 1), 300000);
    machine_free(r);
    r = machine(4096, MAX_ROWS, 300);
    first_us = 2000000;
    assert_int_equal(calibrate(r, ids, ARRAY_LEN(ids), &t), 0);
    assert_int_equal(n_passes, 1 + 1 + 2); // one row at least
    machine_free(r);
    r = machine(4096, MAX_ROWS, 300);
    first_us = 249999;
    row_us = 0;
    assert_int_equal(calibrate(r, ids, ARRAY_LEN(ids), &t), 0);
    assert_int_equal(n_passes, 1 + 6 + 4); // the second turn begins 2 us before the limit
    machine_free(r);
    r = machine(4096, MAX_ROWS, 300);
    first_us = 250000;
    row_us = 0;
    assert_int_equal(calibrate(r, ids, ARRAY_LEN(ids), &t), 0);
    assert_int_equal(n_passes, 1 + 5 + 2); // both limits are reached exactly
    machine_free(r);
}

/* Sizes beyond max_logits and contexts beyond the limit are left out. */
static void only_passes_that_fit_are_timed(void **state)
{
    (void)state;
    struct runner *r = machine(300, 10, 300);
    struct pass_time t;
    assert_int_equal(calibrate(r, ids, ARRAY_LEN(ids), &t), 0);
    for (unsigned i = 0; i < n_passes; i++)
        assert_true(passes[i].rows <= 10);
    assert_int_equal(n_passes, 1 + 3 * 10 + 6);          // sizes 1 to 10
    assert_int_equal(passes[n_passes - 1].context, 292); // and 8 rows
    for (uint32_t rows = 1; rows <= 64; rows++)
        must_be(rows_us(&t, rows), 100 + 10. * rows);
    machine_free(r);
    r = machine(KV_BLOCK + 8, 10, 300); // a context of one block
    assert_int_equal(calibrate(r, ids, ARRAY_LEN(ids), &t), 0);
    assert_int_equal(passes[n_passes - 1].context, KV_BLOCK);
    machine_free(r);
    r = machine(KV_BLOCK + 7, 10, 300); // less
    assert_int_equal(calibrate(r, ids, ARRAY_LEN(ids), &t), 0);
    assert_int_equal(passes[n_passes - 1].context, 0);
    machine_free(r);
    r = machine(8, 10, 300);
    assert_int_equal(calibrate(r, ids, ARRAY_LEN(ids), &t), 0);
    for (unsigned i = 0; i < n_passes; i++)
        assert_true(passes[i].rows <= 8 && passes[i].context == 0);
    machine_free(r);
}

/* The pool has a block for 16 positions, and none for a long context. */
static void a_small_pool_limits_the_passes(void **state)
{
    (void)state;
    struct runner *r = machine(4096, MAX_ROWS, 1);
    struct pass_time t;
    assert_int_equal(calibrate(r, ids, ARRAY_LEN(ids), &t), 0);
    for (unsigned i = 0; i < n_passes; i++)
        assert_true(passes[i].rows <= KV_BLOCK && passes[i].context == 0);
    must_be(rows_us(&t, 16), 260);
    struct kv_seq all;
    assert_int_equal(kv_seq_init(&all, 16), 0);
    assert_int_equal(kv_grow(r->kv, &all, 16), 0);
    assert_int_equal(calibrate(r, ids, ARRAY_LEN(ids), &t), -ENOSPC);
    assert_string_equal(fail_text(), "no KV block was free to time a pass with");
    kv_seq_done(r->kv, &all);
    machine_free(r);
}

/* ---- times in a folder ---- */

static struct model model; // its digest is part of the key
static char folder[FOLDER_PATH];

static struct runner *machine_with_folder(uint32_t context)
{
    struct runner *r = machine(context, MAX_ROWS, 300);
    r->model = &model;
    r->kernel = kernel_tier("c");
    r->opt.weights_cache = folder;
    assert_int_equal(pool_new(1, false, &r->pool), 0);
    return r;
}

static void free_with_folder(struct runner *r)
{
    pool_free(r->pool);
    machine_free(r);
}

/* Passes that a calibration runs. */
static unsigned passes_of(struct runner *r, struct pass_time *t)
{
    n_passes = next_id = 0;
    assert_int_equal(calibrate(r, ids, ARRAY_LEN(ids), t), 0);
    return n_passes;
}

static void the_next_start_takes_the_kept_times(void **state)
{
    (void)state;
    static const uint32_t contexts[] = {4096, 8}; // the latter is too short to be timed
    for (unsigned i = 0; i < ARRAY_LEN(contexts); i++) {
        struct pass_time first, next;
        folder_make(folder);
        struct runner *r = machine_with_folder(contexts[i]);
        position_us = 0.5;
        assert_true(passes_of(r, &first) > 0);
        first_us = 5000; // not measured again
        assert_int_equal(passes_of(r, &next), 0);
        assert_memory_equal(&first, &next, sizeof(first));
        model.digest++;
        assert_true(passes_of(r, &next) > 0);
        free_with_folder(r);
        folder_remove(folder);
    }
}

/* Files with right checksums. */
static void impossible_times_are_measured_again(void **state)
{
    (void)state;
    struct pass_time t;
    struct pass_time_measured good, bad;
    char path[FOLDER_PATH + 256];
    folder_make(folder);
    struct runner *r = machine_with_folder(4096);
    assert_true(passes_of(r, &t) > 0);
    assert_int_equal(folder_files(folder, path), 1);
    const uint64_t key = strtoull(strrchr(path, '/') + 1, NULL, 16);
    assert_int_equal(result_file_read(folder, "times", key, &good, sizeof(good)), 0);
    for (unsigned i = 0; i < 10; i++) {
        bad = good;
        if (i < 4)
            bad.us[0] = (double[]){0, -1, (double)NAN, (double)INFINITY}[i];
        if (i == 4)
            bad.us[PASS_TIME_POINTS - 1] = -1;
        if (i == 5)
            bad.long_one_us = (double)NAN;
        if (i == 6)
            bad.long_rows_us = 1e9;
        if (i == 7)
            bad.rows = 9;
        if (i == 8)
            bad.context = 2049;
        if (i == 9)
            bad.context = 0;
        assert_int_equal(result_file_write(folder, "times", key, &bad, sizeof(bad)), 0);
        assert_true(passes_of(r, &t) > 0);
        assert_int_equal(passes_of(r, &t), 0);
    }
    r->opt.weights_cache = ""; // no folder
    assert_true(passes_of(r, &t) > 0);
    free_with_folder(r);
    folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_size_is_timed_three_times_in_turns),
        cmocka_unit_test(the_time_of_a_context_is_measured),
        cmocka_unit_test(the_fastest_pass_counts),
        cmocka_unit_test(a_pass_may_take_a_microsecond),
        cmocka_unit_test(a_slow_machine_times_fewer_passes),
        cmocka_unit_test(only_passes_that_fit_are_timed),
        cmocka_unit_test(a_small_pool_limits_the_passes),
        cmocka_unit_test(the_next_start_takes_the_kept_times),
        cmocka_unit_test(impossible_times_are_measured_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

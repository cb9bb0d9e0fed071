/* test_engine_view.c - the gauges, and the largest holders of KV blocks. No engine thread runs. */
#include <stdio.h>
#include <stdlib.h>
#include "lib/lib.h"
#include "verifier-svc/engine/engine_impl.h"

#define N_BLOCKS 200
#define N_SEQS 11

static const struct kv_layer layer = {.n_heads = 1, .k_dim = 4, .v_dim = 4};
static const struct kv_shape shape = {.n_layers = 1, .layers = &layer};
static const struct verifier_options options = {
    .max_sequences = 16, .queue_length = 16, .max_batch_rows = 64, .kv_disk = ""};
static struct stats stats;
static struct request requests[N_SEQS], paused;
static struct seq seqs[N_SEQS];

static int set_up(void **state)
{
    struct engine *e;
    stats_init(&stats);
    assert_int_equal(engine_new(&options, &stats, &e), 0);
    e->loaded = calloc(1, sizeof(*e->loaded));
    assert_non_null(e->loaded);
    assert_int_equal(kv_new(&shape, N_BLOCKS, &e->loaded->run.kv), 0);
    assert_int_equal(kv_open_index(e->loaded->run.kv, 1, kv_hash), 0);
    for (unsigned i = 0; i < N_SEQS; i++) {
        snprintf(requests[i].id, sizeof(requests[i].id), "r%u", i);
        seqs[i] = (struct seq){.req = &requests[i], .order = i, .choice = i % 3, .n = 100 + i};
        assert_int_equal(kv_seq_init(&seqs[i].kv, N_BLOCKS * KV_BLOCK), 0);
    }
    *state = e;
    return 0;
}

static int tear_down(void **state)
{
    struct engine *e = *state;
    for (unsigned i = 0; i < N_SEQS; i++)
        kv_seq_done(e->loaded->run.kv, &seqs[i].kv);
    e->running.n = e->waiting.n = 0;
    engine_free(e);
    return 0;
}

/* Sequence i runs and holds this many blocks. */
static void hold(struct engine *e, unsigned i, uint32_t n_blocks)
{
    assert_int_equal(kv_grow(e->loaded->run.kv, &seqs[i].kv, n_blocks * KV_BLOCK), 0);
    seq_list_add(&e->running, &seqs[i]);
}

static void the_eight_largest_holders_are_listed(void **state)
{
    struct engine *e = *state;
    static const uint32_t n_blocks[N_SEQS] = {5, 9, 0, 7, 9, 1, 20, 2, 3, 4, 5};
    static const unsigned expected[] = {6, 1, 4, 3, 0, 10, 9, 8}; // of equal ones, the oldest first
    struct engine_kv_view view;
    for (unsigned i = 0; i < N_SEQS; i++)
        hold(e, i, n_blocks[i]);
    engine_view_update(e);
    engine_kv(e, &view);
    assert_int_equal(view.n_holders, ENGINE_KV_HOLDERS);
    for (unsigned i = 0; i < ENGINE_KV_HOLDERS; i++) {
        const struct engine_kv_holder *h = &view.holders[i];
        assert_string_equal(h->id, requests[expected[i]].id);
        assert_int_equal(h->n_blocks, n_blocks[expected[i]]);
        assert_int_equal(h->n_tokens, 100 + expected[i]);
        assert_int_equal(h->choice, expected[i] % 3);
    }
    assert_true(view.n_blocks == N_BLOCKS && view.n_used == 65 && view.n_shared == 0);
    assert_int_equal(view.bytes, N_BLOCKS * kv_bytes_block(&shape));
}

static void a_sequence_without_blocks_is_no_holder(void **state)
{
    struct engine *e = *state;
    struct engine_kv_view view;
    hold(e, 0, 0);
    hold(e, 1, 1);
    engine_view_update(e);
    engine_kv(e, &view);
    assert_int_equal(view.n_holders, 1);
    assert_string_equal(view.holders[0].id, "r1");
    e->running.n = 0;
    engine_view_update(e);
    engine_kv(e, &view);
    assert_int_equal(view.n_holders, 0);
}

/* Two sequences share two blocks of a prefix; a third prefix has no holder. */
static void gauges_show_what_runs_and_what_is_cached(void **state)
{
    struct engine *e = *state;
    struct kv *kv = e->loaded->run.kv;
    const struct kv_root root = {NULL, 0};
    uint32_t tokens[4 * KV_BLOCK];
    for (uint32_t i = 0; i < 4 * KV_BLOCK; i++)
        tokens[i] = i;
    hold(e, 0, 3);
    kv_enter(kv, &seqs[0].kv, &root, tokens, 2 * KV_BLOCK);
    assert_int_equal(kv_match(kv, &seqs[1].kv, &root, tokens, 2 * KV_BLOCK), 2 * KV_BLOCK);
    seq_list_add(&e->running, &seqs[1]);
    tokens[0] = 77;
    assert_int_equal(kv_grow(kv, &seqs[2].kv, 4 * KV_BLOCK), 0);
    kv_enter(kv, &seqs[2].kv, &root, tokens, 4 * KV_BLOCK);
    kv_release(kv, &seqs[2].kv);
    seqs[3].req = &paused;
    atomic_store(&paused.paused, true);
    seq_list_add(&e->running, &seqs[3]);
    seq_list_add(&e->waiting, &seqs[4]);
    seq_list_add(&e->waiting, &seqs[5]);
    engine_view_update(e);
    assert_true(metrics_value(stats.running) == 3 && metrics_value(stats.waiting) == 2);
    assert_true(metrics_value(stats.paused) == 1);
    assert_true(metrics_value(stats.kv_blocks) == N_BLOCKS && metrics_value(stats.kv_used) == 3);
    assert_true(metrics_value(stats.kv_shared) == 2 && metrics_value(stats.kv_evictable) == 4);
    assert_true(metrics_value(stats.kv_used_ratio) == 3. / N_BLOCKS);
    assert_true(metrics_value(stats.kv_bytes) == (double)(N_BLOCKS * kv_bytes_block(&shape)));
}

/* Each evicted block once, also if the view is updated again. */
static void evicted_blocks_are_counted_once(void **state)
{
    struct engine *e = *state;
    struct kv *kv = e->loaded->run.kv;
    const struct kv_root root = {NULL, 0};
    static uint32_t tokens[N_BLOCKS * KV_BLOCK];
    double before = metrics_value(stats.evictions);
    assert_int_equal(kv_grow(kv, &seqs[0].kv, N_BLOCKS * KV_BLOCK), 0);
    kv_enter(kv, &seqs[0].kv, &root, tokens, N_BLOCKS * KV_BLOCK);
    kv_release(kv, &seqs[0].kv);
    hold(e, 1, 3); // evicts as many
    engine_view_update(e);
    engine_view_update(e);
    assert_true(metrics_value(stats.evictions) == before + 3);
    assert_int_equal(kv_grow(kv, &seqs[1].kv, 2 * KV_BLOCK), 0);
    engine_view_update(e);
    assert_true(metrics_value(stats.evictions) == before + 5);
}

static void the_times_of_passes_are_shown_in_seconds(void **state)
{
    struct engine *e = *state;
    const struct pass_time_measured m = {.us = {100, 150}};
    pass_time_init(&e->control.pass_time, &m);
    engine_view_update(e);
    for (unsigned i = 0; i < PASS_TIME_TIMED; i++) {
        double seconds = (50 + 50. * pass_time_rows_at(i)) / 1e6;
        double shown = metrics_value(stats.pass_estimate_s[i]);
        assert_true(shown > seconds * 0.999 && shown < seconds * 1.001);
    }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_eight_largest_holders_are_listed),
        TEST(a_sequence_without_blocks_is_no_holder),
        TEST(gauges_show_what_runs_and_what_is_cached),
        TEST(evicted_blocks_are_counted_once),
        TEST(the_times_of_passes_are_shown_in_seconds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

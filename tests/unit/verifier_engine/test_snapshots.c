/* test_snapshots.c - after which rows a state is kept. */
#include <string.h>
#include "lib/lib.h"
#include "verifier-svc/engine/snapshots.h"

#define N_BLOCKS 256

static const struct kv_layer layers[] = {{.n_state = 16, .n_logged = 4},
                                         {.n_heads = 1, .k_dim = 4, .v_dim = 4}};
static const struct kv_shape shape = {2, KERNEL_KV_F32, layers};
static const struct kv_root root = {.salt = "", .salt_len = 0};
static struct verifier_options options;
static struct loaded_model loaded;
static struct engine engine = {.options = &options, .loaded = &loaded};
static struct seq seq;
static uint32_t tokens[N_BLOCKS * KV_BLOCK];

static int set_up(void **state)
{
    (void)state;
    options.prefix_cache = true;
    loaded.run.n_states = 8;
    seq = (struct seq){.tokens = tokens, .n_prompt = 200, .n = 200};
    for (uint32_t i = 0; i < ARRAY_LEN(tokens); i++)
        tokens[i] = i;
    return kv_new(&shape, N_BLOCKS, &loaded.run.kv) < 0 || kv_open_states(loaded.run.kv, 8) < 0 ||
           kv_open_index(loaded.run.kv, 1, kv_hash) < 0 ||
           kv_seq_init(&seq.kv, ARRAY_LEN(tokens)) < 0;
}

static int tear_down(void **state)
{
    (void)state;
    kv_seq_done(loaded.run.kv, &seq.kv);
    kv_free(loaded.run.kv);
    return 0;
}

static uint32_t n_snapshots(void)
{
    return kv_figures(loaded.run.kv).n_snapshots;
}

/* Runs n rows; then the state has the position `state_len`. */
static void run_to(uint32_t n, uint32_t state_len)
{
    assert_int_equal(kv_grow(loaded.run.kv, &seq.kv, n), 0);
    seq.kv.state_len = state_len;
    kv_enter(loaded.run.kv, &seq.kv, &root, tokens, seq.kv.len);
    snapshots_keep(&engine, &seq);
}

static void a_pass_ends_at_the_last_block_of_the_prompt(void **state)
{
    (void)state;
    static const struct {
        uint32_t n_prompt, len, left;
    } cases[] = {
        {200, 0, 192},   {200, 190, 2},    {200, 192, 320},   {193, 0, 192},
        {192, 0, 176},   {64, 0, 512},     {65, 0, 64},       {2000, 0, 512},
        {2000, 500, 12}, {2000, 512, 512}, {2000, 1536, 448}, {2000, 1984, 64},
    };
    for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
        seq.n_prompt = cases[i].n_prompt;
        seq.kv.len = cases[i].len;
        assert_int_equal(snapshots_rows_left(&engine, &seq), cases[i].left);
    }
    seq.kv.len = 0;
    options.prefix_cache = false;
    assert_int_equal(snapshots_rows_left(&engine, &seq), UINT32_MAX);
    options.prefix_cache = true;
    loaded.run.n_states = 0;
    assert_int_equal(snapshots_rows_left(&engine, &seq), UINT32_MAX);
}

static void a_prompt_has_a_snapshot_at_its_last_block(void **state)
{
    (void)state;
    run_to(96, 96); // not the last block
    assert_int_equal(n_snapshots(), 0);
    run_to(96, 192);
    assert_int_equal(n_snapshots(), 1);
    snapshots_keep(&engine, &seq);
    run_to(8, 200); // not the end of a block
    assert_int_equal(n_snapshots(), 1);
}

/* The state may pass a multiple of 512 within a draft: the next end of a block counts. */
static void an_answer_has_a_snapshot_about_every_512_rows(void **state)
{
    (void)state;
    run_to(192, 192);
    run_to(325, 517);
    assert_int_equal(n_snapshots(), 1);
    run_to(11, 528);
    assert_int_equal(n_snapshots(), 2);
    run_to(16, 544);
    assert_int_equal(n_snapshots(), 2);
    run_to(480, 1024);
    assert_int_equal(n_snapshots(), 3);
}

static void without_a_prefix_cache_there_is_no_snapshot(void **state)
{
    (void)state;
    options.prefix_cache = false;
    run_to(192, 192);
    assert_int_equal(n_snapshots(), 0);
}

static void sequences_share_what_lies_before_a_snapshot(void **state)
{
    (void)state;
    assert_int_equal(snapshots_common(&engine, &seq, 1100), 1024);
    assert_int_equal(snapshots_common(&engine, &seq, 511), 192); // the end of the prompt
    assert_int_equal(snapshots_common(&engine, &seq, 192), 192);
    assert_int_equal(snapshots_common(&engine, &seq, 191), 0);
    loaded.run.n_states = 0;
    assert_int_equal(snapshots_common(&engine, &seq, 1100), 1088);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_pass_ends_at_the_last_block_of_the_prompt),
        TEST(a_prompt_has_a_snapshot_at_its_last_block),
        TEST(an_answer_has_a_snapshot_about_every_512_rows),
        TEST(without_a_prefix_cache_there_is_no_snapshot),
        TEST(sequences_share_what_lies_before_a_snapshot),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

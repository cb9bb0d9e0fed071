/* test_kv_states.c - states of recurrent layers: who has them, and which snapshots are given up. */
#include <errno.h>
#include <string.h>
#include "base/err.h"
#include "lib/lib.h"
#include "kv/kv.h"

#define N_BLOCKS 16
#define N_ROWS (4 * KV_BLOCK)

static const struct kv_layer layers[] = {{.n_state = 48, .n_logged = 8},
                                         {.n_heads = 1, .k_dim = 4, .v_dim = 4}};
static const struct kv_shape shape = {2, KERNEL_KV_F32, layers};
static const struct kv_root root = {.salt = "", .salt_len = 0};

static struct kv *kv;
static struct kv_seq a, b, c;
static uint32_t tokens[2][N_ROWS]; // two prompts

static int open_with(void **state, uint32_t n_states)
{
    (void)state;
    for (uint32_t i = 0; i < N_ROWS; i++) {
        tokens[0][i] = i;
        tokens[1][i] = 1000 + i;
    }
    return kv_new(&shape, N_BLOCKS, &kv) < 0 || kv_open_states(kv, n_states) < 0 ||
           kv_open_index(kv, 1, kv_hash) < 0 || kv_seq_init(&a, N_ROWS) < 0 ||
           kv_seq_init(&b, N_ROWS) < 0 || kv_seq_init(&c, N_ROWS) < 0;
}

static int open_pool(void **state)
{
    return open_with(state, 3);
}

static int close_pool(void **state)
{
    (void)state;
    kv_seq_done(kv, &a);
    kv_seq_done(kv, &b);
    kv_seq_done(kv, &c);
    kv_free(kv);
    return 0;
}

static void check(void)
{
    const struct kv_seq *seqs[] = {&a, &b, &c};
    if (!kv_check(kv, seqs, 3))
        fail_msg("%s", fail_text());
}

/* Runs n rows of a prompt: they are in the index, and the state is that after them. Its first float
 * says so. */
static void run(struct kv_seq *seq, unsigned prompt, uint32_t n)
{
    assert_int_equal(kv_grow(kv, seq, n), 0);
    seq->state_len = seq->len;
    kv_bytes_state_at(kv_bytes_of(kv), 0, seq->state)[0] = (float)(1000 * prompt + seq->len);
    kv_enter(kv, seq, &root, tokens[prompt], seq->len);
    check();
}

static void snapshot(const struct kv_seq *seq)
{
    kv_snapshot(kv, seq, KV_REPLACE_OLDEST, 0);
}

static float state_of(const struct kv_seq *seq)
{
    return kv_bytes_state_at(kv_bytes_of(kv), 0, seq->state)[0];
}

static void a_sequence_has_a_state_while_it_has_rows(void **state)
{
    (void)state;
    assert_false(a.has_state);
    run(&a, 0, 5);
    run(&b, 0, 5);
    run(&c, 0, 5);
    assert_true(a.has_state && a.state != b.state && b.state != c.state && a.state != c.state);
    kv_release(kv, &a);
    assert_false(a.has_state);
    check();
    run(&a, 1, 1);
    assert_true(a.has_state && state_of(&a) == 1001);
}

static float *logged(const struct kv_seq *seq, uint32_t position)
{
    return kv_bytes_logged_at(kv_bytes_of(kv), 0, seq->state, position);
}

static void there_is_nothing_before_a_new_state(void **state)
{
    (void)state;
    run(&a, 0, 5);
    for (uint32_t i = 0; i < KV_LOG; i++)
        logged(&a, i)[7] = 1;
    kv_release(kv, &a);
    assert_int_equal(kv_grow(kv, &a, 1), 0);
    for (uint32_t i = 1; i < KV_MAX_TAPS; i++)
        assert_true(logged(&a, KV_LOG - i)[7] == 0);
    assert_true(logged(&a, KV_LOG - KV_MAX_TAPS)[7] == 1); // another position's
}

/* The convolution of the next rows reads them. */
static void a_snapshot_has_the_last_logged_rows(void **state)
{
    (void)state;
    run(&a, 0, 2 * KV_BLOCK);
    for (uint32_t i = 2 * KV_BLOCK - KV_MAX_TAPS + 1; i < 2 * KV_BLOCK; i++)
        logged(&a, i)[7] = (float)i;
    snapshot(&a);
    assert_int_equal(kv_match(kv, &b, &root, tokens[0], N_ROWS), 2 * KV_BLOCK);
    for (uint32_t i = 2 * KV_BLOCK - KV_MAX_TAPS + 1; i < 2 * KV_BLOCK; i++)
        assert_true(logged(&b, i)[7] == (float)i);
}

static void no_state_is_no_space(void **state)
{
    (void)state;
    struct kv_seq d;
    assert_int_equal(kv_seq_init(&d, N_ROWS), 0);
    run(&a, 0, 1);
    run(&b, 0, 1);
    run(&c, 0, 1);
    assert_int_equal(kv_grow(kv, &d, 1), -ENOSPC);
    assert_int_equal(d.len, 0);
    kv_release(kv, &b);
    assert_int_equal(kv_grow(kv, &d, 1), 0);
    kv_seq_done(kv, &d);
}

static void draft_rows_are_dropped(void **state)
{
    (void)state;
    run(&a, 0, 20);
    assert_int_equal(kv_grow(kv, &a, 6), 0); // one committed row, five draft rows
    a.state_len = 21;
    kv_keep(kv, &a, 21, (const uint32_t[]){21, 22}, 2);
    assert_true(a.len == 23 && a.state_len == 21);
    check();
}

static void a_sequence_is_forked_at_its_states_position(void **state)
{
    (void)state;
    run(&a, 0, 20);
    assert_int_equal(kv_grow(kv, &a, 1), 0); // a row after the state
    logged(&a, 19)[7] = 19;
    assert_int_equal(kv_fork(kv, &a, 19, &b), -ENOSPC);
    assert_int_equal(kv_fork(kv, &a, 21, &b), -ENOSPC);
    assert_false(b.has_state);
    assert_int_equal(kv_fork(kv, &a, 20, &b), 0);
    assert_true(b.len == 20 && b.state_len == 20 && b.state != a.state && state_of(&b) == 20);
    assert_true(logged(&b, 19)[7] == 19);
    check();
    run(&c, 1, 1);
    kv_release(kv, &b);
    run(&b, 1, 1);
    struct kv_seq d;
    assert_int_equal(kv_seq_init(&d, N_ROWS), 0);
    assert_int_equal(kv_fork(kv, &a, 20, &d), -ENOSPC); // no state is free
    kv_seq_done(kv, &d);
}

static void one_snapshot_of_a_sequence_may_replace_another(void **state)
{
    (void)state;
    uint32_t held;
    run(&b, 1, KV_BLOCK);
    snapshot(&b);
    run(&a, 0, KV_BLOCK); // the last free state
    assert_false(kv_snapshot(kv, &a, KV_REPLACE_OWN, 0));
    kv_release(kv, &b);
    assert_true(kv_snapshot(kv, &a, KV_REPLACE_OWN, 0));
    run(&a, 0, KV_BLOCK);
    assert_true(kv_snapshot(kv, &a, KV_REPLACE_OWN, KV_BLOCK));
    assert_int_equal(kv_find(kv, &root, tokens[0], KV_BLOCK, &held), 0);
    assert_int_equal(kv_find(kv, &root, tokens[0], N_ROWS, &held), 2);
    assert_int_equal(kv_find(kv, &root, tokens[1], N_ROWS, &held), 1);
    check();
}

static void a_prefix_begins_at_its_last_snapshot(void **state)
{
    (void)state;
    uint32_t held;
    run(&a, 0, KV_BLOCK);
    snapshot(&a);
    snapshot(&a); // has one already
    run(&a, 0, KV_BLOCK + 3);
    snapshot(&a); // not the end of a block
    assert_int_equal(kv_figures(kv).n_snapshots, 1);
    assert_int_equal(kv_find(kv, &root, tokens[0], N_ROWS, &held), 1);
    assert_int_equal(held, 1);
    assert_int_equal(kv_match(kv, &b, &root, tokens[0], N_ROWS), KV_BLOCK);
    assert_true(b.state_len == KV_BLOCK && state_of(&b) == KV_BLOCK && b.state != a.state);
    check();
    assert_int_equal(kv_match(kv, &c, &root, tokens[0], KV_BLOCK - 1), 0);
    assert_false(c.has_state);
}

/* Three states: two of sequences, one snapshot. */
static void the_snapshot_used_longest_ago_is_given_up(void **state)
{
    (void)state;
    uint32_t held;
    run(&a, 0, KV_BLOCK);
    snapshot(&a);
    run(&b, 1, KV_BLOCK);
    snapshot(&b); // takes the other's
    assert_int_equal(kv_find(kv, &root, tokens[0], N_ROWS, &held), 0);
    assert_int_equal(kv_find(kv, &root, tokens[1], N_ROWS, &held), 1);
    run(&c, 0, 1); // takes that one, too
    assert_int_equal(kv_figures(kv).n_snapshots, 0);
    kv_release(kv, &a);
    kv_release(kv, &c);
    snapshot(&b);
    run(&a, 0, KV_BLOCK); // the last free one
    assert_int_equal(kv_match(kv, &c, &root, tokens[1], N_ROWS),
                     KV_BLOCK); // becomes the sequence's
    assert_true(state_of(&c) == 1000 + KV_BLOCK);
    assert_int_equal(kv_figures(kv).n_snapshots, 0);
    check();
}

static void an_evicted_block_loses_its_snapshot(void **state)
{
    (void)state;
    run(&a, 0, KV_BLOCK);
    snapshot(&a);
    kv_release(kv, &a);
    assert_int_equal(kv_figures(kv).n_snapshots, 1);
    struct kv_seq d;
    assert_int_equal(kv_seq_init(&d, N_BLOCKS * KV_BLOCK), 0);
    assert_int_equal(kv_grow(kv, &d, N_BLOCKS * KV_BLOCK), 0);
    assert_int_equal(kv_figures(kv).n_snapshots, 0);
    kv_seq_done(kv, &d);
    check();
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_pool, close_pool)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_sequence_has_a_state_while_it_has_rows),
        TEST(there_is_nothing_before_a_new_state),
        TEST(a_snapshot_has_the_last_logged_rows),
        TEST(no_state_is_no_space),
        TEST(draft_rows_are_dropped),
        TEST(a_sequence_is_forked_at_its_states_position),
        TEST(one_snapshot_of_a_sequence_may_replace_another),
        TEST(a_prefix_begins_at_its_last_snapshot),
        TEST(the_snapshot_used_longest_ago_is_given_up),
        TEST(an_evicted_block_loses_its_snapshot),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_kv_tier.c - evicted blocks are written to disk, and restored for waiting sequences. */
#include "lib/lib.h"
#include "lib/rigs/kv_tier_rig.h"

#define N_BLOCKS (2 * KV_DISK_FETCH + 10) // of the prompt: three pieces

static int set_up(void **state)
{
    struct kv_tier_rig *t = *state = kv_tier_rig_new(N_BLOCKS);
    return kv_tier_rig_open(t) && t->tier ? 0 : -1;
}

static int tear_down(void **state)
{
    kv_tier_rig_free(*state);
    return 0;
}

static void evicted_blocks_are_restored_in_pieces(void **state)
{
    struct kv_tier_rig *t = *state;
    unsigned n_pieces = 0;
    kv_tier_rig_evict(t);
    for (; kv_tier_restores(t->tier, &t->seq, 1 + n_pieces); n_pieces++)
        kv_tier_rig_take(t);
    assert_int_equal(n_pieces, 3);
    assert_int_equal(t->seq.n_restored, N_BLOCKS * KV_BLOCK);
    assert_int_equal(kv_tier_rig_found(t), N_BLOCKS);
}

/* It has no seat, or is paused: its next piece is not requested for a long time. */
static void a_pause_between_two_pieces_loses_none(void **state)
{
    struct kv_tier_rig *t = *state;
    int64_t now_us = 1;
    kv_tier_rig_evict(t);
    for (; kv_tier_restores(t->tier, &t->seq, now_us); now_us += 10 * KV_TIER_WAIT_US)
        kv_tier_rig_take(t);
    assert_int_equal(kv_tier_rig_found(t), N_BLOCKS);
}

static void a_late_disk_is_not_waited_for(void **state)
{
    struct kv_tier_rig *t = *state;
    kv_tier_rig_evict(t);
    assert_true(kv_tier_restores(t->tier, &t->seq, 1000));
    assert_true(t->seq.restore_until_us == 1000 + KV_TIER_WAIT_US);
    assert_true(kv_tier_restores(t->tier, &t->seq, 999 + KV_TIER_WAIT_US));
    assert_false(kv_tier_restores(t->tier, &t->seq, 1000 + KV_TIER_WAIT_US));
    kv_tier_rig_take(t); // too late
    assert_false(kv_tier_restores(t->tier, &t->seq, 1001 + KV_TIER_WAIT_US));
    assert_int_equal(kv_tier_rig_found(t), 0);
}

static void a_busy_disk_is_waited_for(void **state)
{
    struct kv_tier_rig *t = *state;
    struct seq others[KV_DISK_FETCHES];
    kv_tier_rig_evict(t);
    for (unsigned i = 0; i < KV_DISK_FETCHES; i++) {
        others[i] = t->seq;
        assert_true(kv_tier_restores(t->tier, &others[i], 1000));
    }
    assert_true(kv_tier_restores(t->tier, &t->seq, 2000));
    assert_true(kv_tier_restores(t->tier, &t->seq, 1999 + KV_TIER_WAIT_US));
    assert_int_equal(t->seq.restore, SEQ_RESTORE_MORE);
    for (unsigned i = 0; i < KV_DISK_FETCHES; i++)
        kv_tier_take(t->tier, queue_pop(t->fetched, -1), NULL); // their sequence is gone
    assert_true(
        kv_tier_restores(t->tier, &t->seq, 1999 + KV_TIER_WAIT_US)); // its piece has its own time
    assert_int_equal(t->seq.restore, SEQ_RESTORING);
    assert_true(kv_tier_restores(t->tier, &t->seq, 2001 + KV_TIER_WAIT_US));
    kv_tier_rig_take(t);
    assert_int_equal(kv_tier_rig_found(t), KV_DISK_FETCH);
}

static void the_wait_for_a_busy_disk_is_bounded(void **state)
{
    struct kv_tier_rig *t = *state;
    struct seq others[KV_DISK_FETCHES];
    kv_tier_rig_evict(t);
    for (unsigned i = 0; i < KV_DISK_FETCHES; i++) {
        others[i] = t->seq;
        assert_true(kv_tier_restores(t->tier, &others[i], 1000));
    }
    assert_true(kv_tier_restores(t->tier, &t->seq, 2000));
    assert_false(kv_tier_restores(t->tier, &t->seq, 2000 + KV_TIER_WAIT_US));
    for (unsigned i = 0; i < KV_DISK_FETCHES; i++)
        kv_tier_take(t->tier, queue_pop(t->fetched, -1), NULL);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(evicted_blocks_are_restored_in_pieces), TEST(a_pause_between_two_pieces_loses_none),
        TEST(a_late_disk_is_not_waited_for),         TEST(a_busy_disk_is_waited_for),
        TEST(the_wait_for_a_busy_disk_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_kv_faults.c - the second tier when any call fails: for memory, or for the file. Whatever
 * fails costs blocks and never a wrong one; what follows works. */
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "lib/failing.h"
#include "lib/faulty_vfs.h"
#include "lib/lib.h"
#include "lib/tiered.h"

#define N_BLOCKS 70 // two pieces

/* Opens, evicts, restores, closes. Returns the blocks that came back. */
static uint32_t work(struct tiered *t)
{
    if (!tiered_open(t))
        return 0;
    tiered_evict(t);
    while (tier_restores(t->tier, &t->seq, 1))
        tiered_take(t);
    uint32_t n = tiered_found(t);
    tiered_close(t);
    return n;
}

/* A new prompt comes back whole when nothing fails. */
static void must_work(struct tiered *t)
{
    tiered_fresh(t);
    assert_int_equal(work(t), N_BLOCKS);
}

static int set_up(void **state)
{
    *state = tiered_new(N_BLOCKS);
    return 0;
}

static int tear_down(void **state)
{
    tiered_free(*state);
    return 0;
}

static void any_allocation_may_fail(void **state)
{
    struct tiered *t = *state;
    bool failed = true;
    uint32_t n_less = 0;
    for (unsigned n = 1; failed; n += 1 + n / 20) {
        tiered_fresh(t);
        failing_at(n);
        uint32_t found = work(t);
        failed = failing_has_failed();
        n_less += found < N_BLOCKS;
        must_work(t);
    }
    assert_true(n_less > 10);
}

static void any_call_for_the_file_may_fail(void **state)
{
    static const int errors[] = {SQLITE_IOERR, SQLITE_FULL, SQLITE_CORRUPT};
    struct tiered *t = *state;
    uint32_t n_less = 0;
    must_work(t);
    faulty_vfs_fail(0, 0, 0);
    must_work(t);
    uint64_t n_calls = faulty_vfs_calls();
    for (uint64_t n = 1; n <= n_calls; n += 1 + n / 10) {
        for (int how = 0; how < 6; how++) {
            tiered_fresh(t);
            faulty_vfs_fail(n, errors[how / 2], how % 2);
            n_less += work(t) < N_BLOCKS;
            faulty_vfs_fail(0, 0, 0);
            must_work(t);
        }
    }
    assert_true(n_less > 10);
}

static void it_takes_the_memory_that_it_says(void **state)
{
    struct tiered *t = *state;
    struct kv_store_options o = {.max_bytes = (uint64_t)t->options.kv_disk_size << 20};
    o.block_bytes = (uint32_t)kv_block_bytes(kv_shape_of(t->served.run.kv));
    failing_at(0);
    assert_true(tiered_open(t));
    assert_in_range(failing_bytes(), kv_disk_bytes(&o) * 3 / 4, kv_disk_bytes(&o));
    tiered_close(t);
}

int main(void)
{
    failing_sqlite();
    faulty_vfs_init();
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(any_allocation_may_fail),
        TEST(any_call_for_the_file_may_fail),
        TEST(it_takes_the_memory_that_it_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_kv_disk.c - the KV disk tier and its thread: blocks are written, read back, and lost on a
 * fault. */
#include <errno.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/err.h"
#include "base/queue.h"
#include "lib/fakes/faulty_vfs.h"
#include "lib/oracles/figures.h"
#include "lib/lib.h"
#include "verifier-svc/kvdisk/kv_disk.h"

enum { BLOCK = 50000, TTL = 1000, FLUSH_US = 20000000 };

static char folder[64];
static struct kv_disk_options options;
static struct queue *fetched; // of struct kv_disk_fetch
static _Atomic int64_t time_s;

static int64_t test_now_s(void)
{
    return time_s;
}

static void take_fetched(void *owner, struct kv_disk_fetch *f)
{
    assert_int_equal(queue_push(owner, f), 0);
}

static int set_up(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/tandem-kv-XXXXXX");
    if (!mkdtemp(folder) || queue_new(8, &fetched))
        return -1;
    time_s = 1000000;
    options = (struct kv_disk_options){
        .store = {folder, KV_STORE_MIN_BYTES, TTL, 77, BLOCK},
        .fetched = take_fetched,
        .owner = fetched,
        .now_s = test_now_s,
    };
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    static const char *const files[] = {"", "-wal", "-journal"};
    char name[128];
    faulty_vfs_fail(0, 0, 0);
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        snprintf(name, sizeof(name), "%s/tandem-kv.sqlite%s", folder, files[i]);
        unlink(name);
    }
    queue_free(fetched);
    return rmdir(folder);
}

static struct kv_disk *open_disk(void)
{
    struct kv_disk *d = NULL;
    if (kv_disk_new(&options, &d))
        fail_msg("%s", fail_text());
    return d;
}

static struct kv_store_head head_of(uint64_t key)
{
    struct kv_store_head head = {.depth = 3};
    memcpy(head.name, &key, sizeof(key));
    return head;
}

static bool has(struct kv_disk *d, uint64_t key)
{
    return kv_disk_has(d, head_of(key).name);
}

static bool put(struct kv_disk *d, uint64_t key)
{
    struct kv_store_head head = head_of(key);
    struct kv_disk_block *b = kv_disk_take(d, &head, 0);
    if (!b)
        return false;
    memset(b->data, (int)key, BLOCK);
    kv_disk_put(d, b);
    return true;
}

/* Reads n blocks with the keys from `first`; returns how many were read. Checks their data. */
static uint32_t read_blocks(struct kv_disk *d, uint64_t first, uint32_t n)
{
    struct kv_disk_fetch *f = kv_disk_fetch(d);
    assert_non_null(f);
    f->owner = 42;
    f->n = n;
    for (uint32_t i = 0; i < n; i++)
        memcpy(f->names[i], head_of(first + i).name, KV_NAME);
    kv_disk_read(d, f);
    struct kv_disk_fetch *back = queue_pop(fetched, -1);
    assert_ptr_equal(back, f);
    assert_int_equal(f->owner, 42);
    for (uint32_t i = 0; i < f->n_found; i++) {
        assert_int_equal(f->data[i][0], (uint8_t)(first + i));
        assert_memory_equal(f->data[i], f->data[i] + 1, BLOCK - 1);
    }
    uint32_t n_found = f->n_found;
    kv_disk_fetched(d, f);
    return n_found;
}

static void written_blocks_are_read_after_a_restart(void **state)
{
    (void)state;
    struct kv_disk *d = open_disk();
    for (uint64_t key = 1; key <= 100; key++)
        assert_true(put(d, key));
    assert_true(has(d, 100));
    assert_false(has(d, 101));
    kv_disk_free(d, FLUSH_US);
    d = open_disk();
    assert_true(has(d, 1));
    assert_int_equal(read_blocks(d, 1, 16), 16);
    assert_int_equal(read_blocks(d, 95, 10), 6); // up to the first missing block
    assert_int_equal(kv_disk_counts(d).n_read, 22);
    assert_int_equal(kv_disk_counts(d).store.blocks, 100);
    kv_disk_free(d, FLUSH_US);
}

static void a_stored_block_is_not_written_again(void **state)
{
    (void)state;
    struct kv_disk *d = open_disk();
    assert_true(put(d, 1));
    assert_false(put(d, 1));
    kv_disk_free(d, FLUSH_US);
    d = open_disk();
    assert_false(put(d, 1));
    assert_int_equal(kv_disk_counts(d).n_dropped, 0);
    kv_disk_free(d, FLUSH_US);
}

static void a_hit_and_a_second_eviction_count_as_a_use(void **state)
{
    (void)state;
    struct kv_disk *d = open_disk();
    for (uint64_t key = 1; key <= 3; key++)
        assert_true(put(d, key));
    kv_disk_free(d, FLUSH_US);
    d = open_disk();
    time_s += TTL - 1;
    assert_int_equal(read_blocks(d, 1, 1), 1);
    assert_false(put(d, 2)); // it is stored; this counts as a use
    time_s += 1;
    assert_true(has(d, 1));
    assert_true(has(d, 2));
    assert_false(has(d, 3));
    kv_disk_free(d, FLUSH_US);
    d = open_disk(); // the keys now come from the file
    assert_true(has(d, 1));
    assert_true(has(d, 2));
    assert_false(has(d, 3));
    assert_int_equal(read_blocks(d, 1, 3), 2);
    kv_disk_free(d, FLUSH_US);
}

/* A test that holds the mutex stops the tier's thread in this callback. */
static pthread_mutex_t thread_gate = PTHREAD_MUTEX_INITIALIZER;

static void wait_then_take_fetched(void *owner, struct kv_disk_fetch *f)
{
    pthread_mutex_lock(&thread_gate);
    pthread_mutex_unlock(&thread_gate);
    assert_int_equal(queue_push(owner, f), 0);
}

static void full_buffers_drop_blocks_without_waiting(void **state)
{
    (void)state;
    options.fetched = wait_then_take_fetched;
    struct kv_disk *d = open_disk();
    pthread_mutex_lock(&thread_gate);
    struct kv_disk_fetch *f = kv_disk_fetch(d);
    f->n = 0;
    kv_disk_read(d, f);
    uint64_t n = 0;
    while (put(d, 1 + n))
        n++;
    assert_int_equal(n, KV_DISK_BUFFER_BYTES / BLOCK);
    assert_int_equal(kv_disk_counts(d).n_dropped, 1);
    assert_int_equal(kv_disk_counts(d).n_waiting, n);
    assert_int_equal(kv_disk_counts(d).n_written, 0); // reads precede writes
    assert_false(has(d, 1 + n));
    pthread_mutex_unlock(&thread_gate);
    kv_disk_fetched(d, queue_pop(fetched, -1));
    struct kv_store_head head = head_of(1 + n);
    struct kv_disk_block *b = kv_disk_take(d, &head, FLUSH_US); // with a time to wait
    assert_non_null(b);
    memset(b->data, 0, BLOCK);
    kv_disk_put(d, b);
    kv_disk_free(d, FLUSH_US);
    d = open_disk();
    assert_int_equal(kv_disk_counts(d).store.blocks, n + 1);
    kv_disk_free(d, FLUSH_US);
}

static void a_block_waiting_to_be_written_is_read(void **state)
{
    (void)state;
    options.fetched = wait_then_take_fetched;
    struct kv_disk *d = open_disk();
    pthread_mutex_lock(&thread_gate);
    struct kv_disk_fetch *held = kv_disk_fetch(d), *f = kv_disk_fetch(d);
    held->n = 0;
    kv_disk_read(d, held);
    assert_true(put(d, 1));
    memcpy(f->names[0], head_of(1).name, KV_NAME);
    f->n = 1;
    kv_disk_read(d, f); // reads precede writes
    pthread_mutex_unlock(&thread_gate);
    kv_disk_fetched(d, queue_pop(fetched, -1));
    assert_ptr_equal(queue_pop(fetched, -1), f);
    assert_int_equal(f->n_found, 1);
    assert_int_equal(f->data[0][BLOCK - 1], 1);
    assert_true(has(d, 1));
    kv_disk_fetched(d, f);
    while (kv_disk_counts(d).n_waiting)
        nap();
    assert_int_equal(kv_disk_counts(d).n_written, 1);
    kv_disk_free(d, FLUSH_US);
}

/* It may have waited for longer than its time to live. */
static void a_block_lives_from_the_time_when_it_is_written(void **state)
{
    (void)state;
    options.fetched = wait_then_take_fetched;
    struct kv_disk *d = open_disk();
    pthread_mutex_lock(&thread_gate);
    struct kv_disk_fetch *held = kv_disk_fetch(d);
    held->n = 0;
    kv_disk_read(d, held);
    assert_true(put(d, 1));
    time_s += TTL;
    assert_false(has(d, 1));
    pthread_mutex_unlock(&thread_gate);
    kv_disk_fetched(d, queue_pop(fetched, -1));
    while (kv_disk_counts(d).n_waiting)
        nap();
    assert_true(has(d, 1));
    kv_disk_free(d, FLUSH_US);
}

static void the_number_of_fetches_is_limited(void **state)
{
    (void)state;
    struct kv_disk *d = open_disk();
    struct kv_disk_fetch *f[KV_DISK_FETCHES];
    for (int i = 0; i < KV_DISK_FETCHES; i++)
        assert_non_null(f[i] = kv_disk_fetch(d));
    assert_null(kv_disk_fetch(d));
    for (int i = 0; i < KV_DISK_FETCHES; i++)
        kv_disk_fetched(d, f[i]);
    assert_non_null(kv_disk_fetch(d));
    kv_disk_free(d, 0);
}

static void a_disk_error_turns_only_the_tier_off(void **state)
{
    (void)state;
    struct kv_disk *d = open_disk();
    assert_true(put(d, 1));
    while (kv_disk_counts(d).n_written < 1)
        nap();
    faulty_vfs_fail(1, SQLITE_IOERR, 1);
    assert_true(put(d, 2));
    while (kv_disk_counts(d).on)
        nap();
    assert_false(has(d, 1));
    assert_false(put(d, 3));
    assert_int_equal(read_blocks(d, 1, 2), 0);
    assert_int_equal(kv_disk_counts(d).n_failed, 1);
    kv_disk_free(d, FLUSH_US);
}

static void a_full_disk_keeps_the_stored_blocks(void **state)
{
    (void)state;
    struct kv_disk *d = open_disk();
    assert_true(put(d, 1));
    while (kv_disk_counts(d).n_written < 1)
        nap();
    faulty_vfs_fail(1, SQLITE_FULL, 1);
    assert_true(put(d, 2));
    while (kv_disk_counts(d).n_failed < 1)
        nap();
    faulty_vfs_fail(0, 0, 0);
    assert_true(kv_disk_counts(d).on);
    assert_false(has(d, 2));
    assert_int_equal(read_blocks(d, 1, 2), 1);
    assert_true(put(d, 2)); // the disk has space again
    kv_disk_free(d, FLUSH_US);
    d = open_disk();
    assert_int_equal(read_blocks(d, 1, 2), 2);
    kv_disk_free(d, FLUSH_US);
}

static void a_damaged_file_is_replaced_three_times(void **state)
{
    (void)state;
    struct kv_disk *d = open_disk();
    uint64_t key = 1;
    for (; kv_disk_counts(d).on; key++) {
        assert_true(key < 10);
        faulty_vfs_fail(1, SQLITE_CORRUPT, 0);
        uint64_t n = kv_disk_counts(d).n_failed;
        assert_true(put(d, key));
        while (kv_disk_counts(d).n_failed == n)
            nap();
        assert_false(has(d, key));
    }
    assert_int_equal(key, 1 + 4); // the fourth damage turns the tier off
    kv_disk_free(d, FLUSH_US);
}

static void a_stop_waits_at_most_the_flush_time(void **state)
{
    (void)state;
    struct kv_disk *d = open_disk();
    for (uint64_t key = 1; key <= 500; key++)
        assert_true(put(d, key));
    kv_disk_free(d, 0);
    d = open_disk();
    assert_true(kv_disk_counts(d).store.blocks < 500);
    kv_disk_free(d, 0);
}

static int by_address(const void *a, const void *b)
{
    uint8_t *const *x = a, *const *y = b;
    return (*x > *y) - (*x < *y);
}

/* No two of n blocks of data overlap. */
static void must_be_apart(uint8_t **data, size_t n)
{
    qsort(data, n, sizeof(*data), by_address);
    for (size_t i = 1; i < n; i++)
        assert_true(data[i] - data[i - 1] >= (ptrdiff_t)options.store.block_bytes);
}

/* 64 MiB of buffers: at least 8, at most 4096. 16 MiB for a fetch: 4 to 64 blocks. */
static void memory_is_limited_for_every_block_size(void **state)
{
    (void)state;
    static const struct {
        uint32_t block_bytes, n_buffers, n_fetch;
    } cases[] = {{1000, 4096, 64},      {1 << 14, 4096, 64}, {(1 << 14) + 1, 4095, 64},
                 {1 << 18, 256, 64},    {1 << 20, 64, 16},   {4 << 20, 16, 4},
                 {(8 << 20) - 1, 8, 4}, {9 << 20, 8, 4}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        options.store.block_bytes = cases[i].block_bytes;
        struct kv_disk *d = open_disk();
        static uint8_t *data[4096 + KV_DISK_FETCHES * KV_DISK_FETCH];
        size_t n = 0;
        struct kv_disk_block *b;
        struct kv_store_head head = head_of(1);
        for (; (b = kv_disk_take(d, &head, 0)); head = head_of(1 + n)) // never put
            data[n++] = b->data;
        assert_int_equal(n, cases[i].n_buffers);
        assert_int_equal(kv_disk_counts(d).n_dropped, 1);
        for (unsigned k = 0; k < KV_DISK_FETCHES; k++) {
            const struct kv_disk_fetch *f = kv_disk_fetch(d);
            assert_int_equal(f->max, cases[i].n_fetch);
            for (uint32_t j = 0; j < f->max; j++)
                data[n++] = f->data[j];
        }
        must_be_apart(data, n);
        kv_disk_free(d, 0);
    }
}

/* By the clock of the options, or that of the system. */
static void a_block_expires_after_its_time_to_live(void **state)
{
    (void)state;
    struct kv_disk *d = open_disk();
    assert_true(put(d, 1));
    time_s += TTL - 1;
    assert_true(has(d, 1));
    time_s += 1;
    assert_false(has(d, 1));
    kv_disk_free(d, FLUSH_US);
    options.now_s = NULL;
    d = open_disk();
    assert_false(has(d, 1)); // it is decades old
    assert_true(put(d, 2));  // the thread may be removing block 1
    assert_true(has(d, 2));
    kv_disk_free(d, FLUSH_US);
}

static void limits_that_are_too_small_or_large_are_refused(void **state)
{
    (void)state;
    struct kv_disk *d = NULL;
    options.store.max_bytes = KV_STORE_MIN_BYTES - 1;
    assert_int_equal(kv_disk_new(&options, &d), -EINVAL);
    assert_string_equal(fail_text(), "a KV store needs at least 256 MiB");
    options.store.max_bytes = KV_STORE_MIN_BYTES;
    options.store.block_bytes = (16 << 20) + 1;
    assert_int_equal(kv_disk_new(&options, &d), -EINVAL);
    assert_string_equal(fail_text(), "a KV block of 16777217 bytes is too large for the KV store, "
                                     "the maximum is 16777216");
    assert_null(d);
    options.store.block_bytes = 16 << 20;
    kv_disk_free(open_disk(), 0);
}

int main(void)
{
    faulty_vfs_init();
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(written_blocks_are_read_after_a_restart),
        TEST(a_stored_block_is_not_written_again),
        TEST(a_hit_and_a_second_eviction_count_as_a_use),
        TEST(full_buffers_drop_blocks_without_waiting),
        TEST(a_block_waiting_to_be_written_is_read),
        TEST(a_block_lives_from_the_time_when_it_is_written),
        TEST(the_number_of_fetches_is_limited),
        TEST(a_disk_error_turns_only_the_tier_off),
        TEST(a_full_disk_keeps_the_stored_blocks),
        TEST(a_damaged_file_is_replaced_three_times),
        TEST(a_stop_waits_at_most_the_flush_time),
        TEST(memory_is_limited_for_every_block_size),
        TEST(a_block_expires_after_its_time_to_live),
        TEST(limits_that_are_too_small_or_large_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_kv_store.c - blocks in a file: a served block is a written one, even from a damaged file. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "base/err.h"
#include "base/rng.h"
#include "lib/fakes/failing.h"
#include "lib/fakes/faulty_vfs.h"
#include "lib/lib.h"
#include "verifier-svc/kvdisk/kv_store.h"

enum { BLOCK = 40000, TTL = 1000, NOW = 1000000 };

static char folder[64], path[96];
static struct kv_store_options options;

static int set_up(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/tandem-kv-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof(path), "%s/tandem-kv.sqlite", folder);
    options = (struct kv_store_options){.dir = folder,
                                        .max_bytes = KV_STORE_MIN_BYTES,
                                        .ttl_s = TTL,
                                        .identity = 77,
                                        .block_bytes = BLOCK};
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    static const char *const tails[] = {"", "-wal", "-journal", "-shm"};
    char name[128];
    faulty_vfs_fail(0, 0, 0);
    chmod(folder, 0700);
    for (size_t i = 0; i < ARRAY_LEN(tails); i++) {
        snprintf(name, sizeof(name), "%s%s", path, tails[i]);
        unlink(name);
    }
    return rmdir(folder);
}

static struct kv_store *must_open(void)
{
    struct kv_store *s = NULL;
    if (kv_store_open(&options, &s))
        fail_msg("%s", fail_text());
    return s;
}

/* The name of block `key`: kv_store_key(name) == key. */
static void name_of(uint64_t key, uint8_t name[KV_NAME])
{
    memcpy(name, &key, sizeof(key));
    memset(name + sizeof(key), (int)key, KV_NAME - sizeof(key));
}

/* The head and the data of block `key`. */
static void fill(uint64_t key, struct kv_store_head *h, uint64_t *data)
{
    h->depth = (uint32_t)key % 100;
    name_of(key, h->name);
    for (uint64_t i = 0; i < BLOCK / sizeof(*data); i++)
        data[i] = key * 0x9e3779b97f4a7c15u + i;
}

/* n blocks with keys from `first`, in one transaction. */
static int put(struct kv_store *s, uint64_t first, uint32_t n, int64_t now_s)
{
    struct kv_store_row rows[8];
    static uint64_t data[8][BLOCK / sizeof(uint64_t)];
    for (uint32_t i = 0; i < n; i++) {
        fill(first + i, &rows[i].head, data[i]);
        rows[i].data = data[i];
    }
    return kv_store_put(s, rows, n, now_s);
}

/* 0: found. Ends the test if the data differ. */
static int get(struct kv_store *s, uint64_t key, int64_t now_s)
{
    static uint64_t data[BLOCK / sizeof(uint64_t)], right[BLOCK / sizeof(uint64_t)];
    struct kv_store_head head;
    fill(key, &head, right);
    int err = kv_store_get(s, head.name, now_s, data);
    if (!err)
        assert_memory_equal(data, right, BLOCK);
    return err;
}

/* As another program. */
static void run_sql(const char *sql)
{
    sqlite3 *db;
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE;
    assert_int_equal(sqlite3_open_v2(path, &db, flags, "unix"), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

/* Prunes until nothing is left to prune. */
static int prune(struct kv_store *s, int64_t now_s)
{
    bool more = true;
    int err = 0;
    while (more && !err)
        err = kv_store_prune(s, now_s, &more);
    return err;
}

static void a_block_outlives_the_store(void **state)
{
    (void)state;
    struct kv_store *s = must_open();
    assert_int_equal(get(s, 5, NOW), -ENOENT);
    assert_int_equal(put(s, 5, 3, NOW), 0);
    assert_int_equal(put(s, UINT64_MAX - 1, 1, NOW), 0);
    assert_int_equal(get(s, 6, NOW), 0);
    kv_store_free(s);
    s = must_open();
    for (uint64_t key = 5; key < 8; key++)
        assert_int_equal(get(s, key, NOW), 0);
    assert_int_equal(get(s, UINT64_MAX - 1, NOW), 0);
    assert_int_equal(kv_store_counts(s).blocks, 4);
    kv_store_free(s);
}

static void a_block_is_served_for_its_time_to_live(void **state)
{
    (void)state;
    AUTO(kv_store_free) struct kv_store *s = must_open();
    assert_int_equal(put(s, 1, 3, NOW), 0);
    assert_int_equal(get(s, 1, NOW + TTL - 1), 0);
    assert_int_equal(get(s, 1, NOW + TTL), -ENOENT); // and is removed
    assert_int_equal(get(s, 1, NOW), -ENOENT);
    assert_int_equal(kv_store_touch(s, &(uint64_t){2}, 1, NOW + 10), 0);
    assert_int_equal(prune(s, NOW + TTL - 1), 0);
    assert_int_equal(kv_store_counts(s).blocks, 2);
    assert_int_equal(prune(s, NOW + TTL), 0);
    assert_int_equal(kv_store_counts(s).blocks, 1);
    assert_int_equal(get(s, 2, NOW + TTL), 0); // has been used since
    assert_int_equal(kv_store_counts(s).n_expired, 2);
}

static void blocks_from_a_clock_ahead_expire_too(void **state)
{
    (void)state;
    AUTO(kv_store_free) struct kv_store *s = must_open();
    assert_int_equal(put(s, 1, 1, NOW + 1000 * TTL), 0);
    assert_int_equal(prune(s, NOW), 0);
    assert_int_equal(get(s, 1, NOW + TTL - 1), 0);
    assert_int_equal(prune(s, NOW + TTL), 0);
    assert_int_equal(kv_store_counts(s).blocks, 0);
}

/* Opening the file counts its blocks. */
static void must_hold(uint64_t n_blocks)
{
    AUTO(kv_store_free) struct kv_store *s = must_open();
    assert_int_equal(kv_store_counts(s).blocks, n_blocks);
}

static void collect(void *owner, uint64_t key)
{
    *(uint64_t *)owner += key;
}

static void the_least_recently_used_blocks_are_evicted(void **state)
{
    (void)state;
    struct kv_store *s = must_open();
    uint64_t gone = 0, room = KV_STORE_MIN_BYTES - 2 * KV_STORE_LOG_BYTES, n = room / BLOCK;
    kv_store_on_removed(s, collect, &gone);
    for (uint64_t i = 0; i < n + 200; i += 8)
        assert_int_equal(put(s, 1 + i, 8, NOW + (int64_t)i), 0);
    struct kv_store_counts counts = kv_store_counts(s);
    assert_true(counts.bytes <= room);
    assert_true(counts.blocks > n / 2);
    assert_true(counts.n_evicted > 0);
    assert_int_equal(get(s, 1, NOW + 500), -ENOENT);
    assert_int_equal(get(s, n + 200, NOW + 500), 0);
    assert_int_equal(gone, counts.n_evicted * (counts.n_evicted + 1) / 2); // keys 1..n_evicted
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_true((uint64_t)st.st_size <= KV_STORE_MIN_BYTES);
    kv_store_free(s);
    must_hold(counts.blocks);
}

static void of_blocks_used_at_the_same_time_the_deepest_is_evicted(void **state)
{
    (void)state;
    AUTO(kv_store_free) struct kv_store *s = must_open();
    uint64_t room = KV_STORE_MIN_BYTES - 2 * KV_STORE_LOG_BYTES, n = room / BLOCK + 200;
    n -= n % 100; // depth is key % 100
    for (uint64_t i = 0; i < n; i += 4)
        assert_int_equal(put(s, i, 4, NOW), 0);
    assert_true(kv_store_counts(s).n_evicted > 0);
    for (uint64_t i = 0; i < n - 100; i += 100)
        assert_int_equal(get(s, i, NOW), 0);
    assert_int_equal(get(s, 99, NOW), -ENOENT);
}

static void a_lowered_limit_is_reached_in_short_steps(void **state)
{
    (void)state;
    options.max_bytes = 2ull * KV_STORE_MIN_BYTES;
    options.ttl_s = 100000;
    struct kv_store *s = must_open();
    for (uint64_t i = 0; i < 8000; i += 8)
        assert_int_equal(put(s, i, 8, NOW + (int64_t)i), 0);
    assert_true(kv_store_counts(s).bytes > KV_STORE_MIN_BYTES);
    kv_store_free(s);
    options.max_bytes = KV_STORE_MIN_BYTES;
    s = must_open();
    bool more = true;
    for (uint64_t before = kv_store_counts(s).blocks; more;) {
        assert_int_equal(kv_store_prune(s, NOW + 8000, &more), 0);
        assert_true(before - kv_store_counts(s).blocks <= 64);
        before = kv_store_counts(s).blocks;
    }
    assert_true(kv_store_counts(s).bytes <= KV_STORE_MIN_BYTES);
    assert_int_equal(get(s, 7999, NOW + 7999), 0); // the newest
    assert_int_equal(get(s, 0, NOW + 1), -ENOENT);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_true((uint64_t)st.st_size <= KV_STORE_MIN_BYTES);
    kv_store_free(s);
}

static void a_folder_has_one_process(void **state)
{
    (void)state;
    AUTO(kv_store_free) struct kv_store *s = must_open(), *other = NULL;
    assert_int_equal(kv_store_open(&options, &other), -EBUSY);
    assert_non_null(strstr(fail_text(), "another process uses it"));
}

static void a_folder_that_cannot_be_written_is_an_error(void **state)
{
    (void)state;
    struct kv_store *s = NULL;
    options.dir = "/proc/tandem-kv"; // also for root
    assert_true(kv_store_open(&options, &s) < 0);
    options.dir = "/sys";
    assert_true(kv_store_open(&options, &s) < 0);
    assert_null(s);
}

static void a_database_of_another_program_is_not_changed(void **state)
{
    (void)state;
    run_sql("CREATE TABLE t (a); INSERT INTO t VALUES (1)");
    size_t size, size_after;
    AUTO(mem_free) char *before = lib_read(path, &size);
    struct kv_store *s = NULL;
    assert_int_equal(kv_store_open(&options, &s), -EEXIST);
    AUTO(mem_free) char *after = lib_read(path, &size_after);
    assert_int_equal(size, size_after);
    assert_memory_equal(before, after, size);
}

static void a_file_of_another_format_is_replaced(void **state)
{
    (void)state;
    struct kv_store *s = must_open();
    assert_int_equal(put(s, 1, 1, NOW), 0);
    kv_store_free(s);
    run_sql("PRAGMA user_version = 999");
    s = must_open();
    assert_int_equal(kv_store_counts(s).n_renewed, 1);
    assert_int_equal(get(s, 1, NOW), -ENOENT);
    assert_int_equal(put(s, 1, 1, NOW), 0);
    kv_store_free(s);
}

static void of_blocks_with_one_key_the_last_is_served_by_its_name(void **state)
{
    (void)state;
    AUTO(kv_store_free) struct kv_store *s = must_open();
    static uint64_t data[BLOCK / sizeof(uint64_t)];
    struct kv_store_row row = {.data = data};
    fill(1, &row.head, data);
    row.head.name[KV_NAME - 1] ^= 1; // not part of the key
    assert_int_equal(kv_store_put(s, &row, 1, NOW), 0);
    assert_int_equal(get(s, 1, NOW), -ENOENT);
    assert_int_equal(kv_store_get(s, row.head.name, NOW, data), 0);
    assert_int_equal(put(s, 1, 1, NOW), 0);
    assert_int_equal(get(s, 1, NOW), 0);
    assert_int_equal(kv_store_get(s, row.head.name, NOW, data), -ENOENT);
    assert_int_equal(kv_store_counts(s).blocks, 1);
}

static void count_key(void *owner, uint64_t key, int64_t last_use_s)
{
    assert_int_equal(last_use_s, NOW);
    *(uint64_t *)owner += key;
}

static void only_this_models_blocks_are_listed(void **state)
{
    (void)state;
    struct kv_store *s = must_open();
    assert_int_equal(put(s, 1, 2, NOW), 0);
    kv_store_free(s);
    options.identity = 78;
    s = must_open();
    assert_int_equal(put(s, 100, 1, NOW), 0);
    uint64_t sum = 0;
    assert_int_equal(kv_store_each(s, count_key, &sum), 0);
    assert_int_equal(sum, 100);
    assert_int_equal(kv_store_counts(s).blocks, 3);
    kv_store_free(s);
}

/* Expired or oldest blocks of another model are removed without being read. */
static void larger_blocks_of_another_model_are_removed_too(void **state)
{
    (void)state;
    static uint64_t large[BLOCK];
    options.block_bytes = sizeof(large);
    struct kv_store *s = must_open();
    struct kv_store_row row = {.data = large};
    for (uint8_t i = 0; i < 100; i++) {
        row.head.name[0] = i;
        assert_int_equal(kv_store_put(s, &row, 1, NOW), 0);
    }
    kv_store_free(s);
    options.block_bytes = 4096;
    s = must_open();
    uint8_t name[KV_NAME] = {200};
    assert_int_equal(kv_store_get(s, name, NOW, large), -ENOENT);
    assert_int_equal(prune(s, NOW + TTL), 0);
    assert_int_equal(kv_store_counts(s).blocks, 0);
    assert_int_equal(kv_store_counts(s).n_expired, 100);
    kv_store_free(s);
}

static void pruning_leaves_no_large_log(void **state)
{
    (void)state;
    AUTO(kv_store_free) struct kv_store *s = must_open();
    for (uint64_t i = 0; i < 3000; i += 8)
        assert_int_equal(put(s, i, 8, NOW), 0);
    assert_int_equal(prune(s, NOW + TTL), 0);
    assert_int_equal(kv_store_counts(s).blocks, 0);
    char log[128];
    struct stat st;
    snprintf(log, sizeof(log), "%s-wal", path);
    assert_int_equal(stat(log, &st), 0);
    assert_true(st.st_size <= KV_STORE_LOG_BYTES);
}

static void remove_log(void)
{
    char log[128];
    snprintf(log, sizeof(log), "%s-wal", path);
    unlink(log);
}

/* A bit of the file is flipped, or its end is cut off. The result is an error or a missing block,
 * never a wrong one. */
static void a_damaged_file_serves_no_wrong_block(void **state)
{
    (void)state;
    struct kv_store *s = must_open();
    for (uint64_t i = 0; i < 64; i += 8)
        assert_int_equal(put(s, i, 8, NOW), 0);
    kv_store_free(s);
    run_sql("PRAGMA wal_checkpoint(TRUNCATE)"); // all in one file
    size_t size;
    AUTO(mem_free) char *good = lib_read(path, &size);
    uint32_t n_found = 0, n_tries = getenv("TANDEM_TEST_LONG") ? 1000 : LIB_SANITIZED ? 36 : 60;
    for (uint32_t i = 0; i < n_tries; i++) {
        size_t at = i < 24 ? i * 4 : rng_splitmix64(i) % size;
        bool cuts = i % 3 == 2;
        remove_log();
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fwrite(good, 1, cuts ? at : size, f);
        if (!cuts) {
            fseek(f, (long)at, SEEK_SET);
            fputc(good[at] ^ (1 << i % 8), f);
        }
        fclose(f);
        if (kv_store_open(&options, &s)) // the changed bytes identify the application
            continue;
        for (uint64_t key = 0; key < 64; key++) {
            int err = get(s, key, NOW);
            n_found += err == 0;
            if (err == -EBADMSG)
                assert_int_equal(kv_store_renew(s), 0);
            else
                assert_true(err == 0 || err == -ENOENT);
        }
        int err = put(s, 1, 1, NOW);
        if (err == -EBADMSG && kv_store_renew(s) == 0)
            err = put(s, 1, 1, NOW);
        assert_int_equal(err, 0);
        assert_int_equal(get(s, 1, NOW), 0);
        kv_store_free(s);
    }
    assert_true(n_found > 20 * n_tries); // most blocks survive most damages
}

/* The checksum of a block holds for its name only. */
static void exchanged_blocks_are_not_served(void **state)
{
    (void)state;
    struct kv_store *s = must_open();
    assert_int_equal(put(s, 1, 3, NOW), 0);
    kv_store_free(s);
    run_sql("CREATE TEMP TABLE was AS SELECT key, data, digest FROM blocks;"
            "UPDATE blocks SET data = (SELECT data FROM was WHERE was.key = 3 - blocks.key),"
            " digest = (SELECT digest FROM was WHERE was.key = 3 - blocks.key) WHERE key < 3");
    s = must_open();
    assert_int_equal(get(s, 1, NOW), -ENOENT);
    assert_int_equal(get(s, 2, NOW), -ENOENT);
    assert_int_equal(get(s, 3, NOW), 0);
    kv_store_free(s);
}

/* Blocks are added, replaced, expired and damaged, and some transactions fail. The counts must
 * equal those of the file when it is opened again. */
static void counts_equal_the_contents_of_the_file(void **state)
{
    (void)state;
    options.ttl_s = 400;
    uint64_t n_failed = 0, n_damaged = 0, n_expired = 0;
    for (uint64_t turn = 0; turn < 4; turn++) {
        struct kv_store *s = must_open();
        for (uint64_t i = 500 * (turn + 1); i < 500 * (turn + 2); i += 4) {
            int64_t now_s = NOW + (int64_t)i;
            faulty_vfs_fail(i % 64 ? 0 : 1 + i % 7, SQLITE_FULL, 1);
            n_failed += put(s, i * 7 % 5000, 1 + i % 8, now_s) != 0;
            faulty_vfs_fail(0, 0, 0);
            get(s, ((i - 100) * 7 + i % 3) % 5000, now_s);
            if (i % 100 == 0)
                assert_int_equal(kv_store_prune(s, now_s, &(bool){false}), 0);
        }
        struct kv_store_counts counts = kv_store_counts(s);
        kv_store_free(s);
        n_expired += counts.n_expired;
        n_damaged += counts.n_damaged;
        must_hold(counts.blocks);
        run_sql("UPDATE blocks SET digest = 0 WHERE key % 5 = 0");
    }
    assert_true(n_failed && n_expired && n_damaged);
}

/* Closing does not move the log into the file. The next user does. */
static void closing_is_fast(void **state)
{
    (void)state;
    struct kv_store *s = must_open();
    for (uint64_t i = 0; i < 64; i += 8)
        assert_int_equal(put(s, i, 8, NOW), 0);
    faulty_vfs_fail(0, 0, 0);
    kv_store_free(s);
    assert_in_range(faulty_vfs_calls(), 0, 8);
    s = must_open();
    for (uint64_t i = 0; i < 64; i++)
        assert_int_equal(get(s, i, NOW), 0);
    kv_store_free(s);
}

/* Opens, puts, gets, touches, prunes. Returns the first error. The next use works. */
static int use_store(void)
{
    AUTO(kv_store_free) struct kv_store *s = NULL;
    int err = kv_store_open(&options, &s);
    err = err ? err : put(s, 1, 8, NOW);
    err = err ? err : put(s, 5, 8, NOW + 1);
    err = err ? err : kv_store_touch(s, (uint64_t[]){1, 2, 3}, 3, NOW + 2);
    for (uint64_t key = 1; key < 13 && !err; key++)
        err = get(s, key, NOW + 3);
    return err ? err : prune(s, NOW + TTL);
}

static void every_file_operation_may_fail(void **state)
{
    (void)state;
    static const int errors[] = {SQLITE_IOERR, SQLITE_FULL, SQLITE_CORRUPT};
    faulty_vfs_fail(0, 0, 0);
    assert_int_equal(use_store(), 0);
    const uint64_t n_calls = faulty_vfs_calls();
    for (uint64_t n = 1; n <= n_calls; n = lib_next_call(n, 6)) {
        for (int how = 0; how < 6; how++) {
            faulty_vfs_fail(n, errors[how / 2], how % 2);
            use_store();
            faulty_vfs_fail(0, 0, 0);
            if (use_store())
                fail_msg("call %lu, error %d: %s", n, errors[how / 2], fail_text());
        }
    }
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    assert_int_equal(use_store(), 0);
    for (uint64_t n = 1;; n = lib_next_call(n, LIB_SANITIZED ? 10 : 20)) {
        failing_at(n);
        use_store();
        bool failed = failing_has_failed();
        assert_int_equal(use_store(), 0);
        if (!failed)
            return;
    }
}

/* Writes until it is killed. */
static void write_for_ever(int ready)
{
    struct kv_store *s;
    if (kv_store_open(&options, &s))
        _exit(1);
    uint64_t key = 0;
    for (bool told = false;; told = true) {
        if (put(s, key % 4000, 8, NOW + (int64_t)key) ||
            kv_store_touch(s, &(uint64_t){key / 2 % 4000}, 1, NOW + (int64_t)key))
            _exit(1);
        key += 8;
        if (!told && write(ready, "", 1) != 1)
            _exit(1);
    }
}

static void a_killed_process_leaves_a_store_that_opens(void **state)
{
    (void)state;
    uint32_t n_kills = getenv("TANDEM_TEST_LONG") ? 200 : 15, n_found = 0;
    for (uint32_t i = 0; i < n_kills; i++) {
        int ready[2];
        assert_int_equal(pipe(ready), 0);
        pid_t child = fork();
        if (child == 0)
            write_for_ever(ready[1]);
        close(ready[1]);
        assert_int_equal(read(ready[0], &(char){0}, 1), 1);
        close(ready[0]);
        nanosleep(&(struct timespec){.tv_nsec = (long)(rng_splitmix64(i) % 50000000)}, NULL);
        kill(child, SIGKILL);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status)); // it did not end before the kill
        struct kv_store *s = must_open();
        assert_int_equal(kv_store_counts(s).n_renewed, 0);
        for (uint64_t key = 0; key < 4000; key += 3) {
            int err = get(s, key, NOW);
            assert_true(err == 0 || err == -ENOENT);
            n_found += err == 0;
        }
        assert_int_equal(kv_store_counts(s).n_damaged, 0);
        kv_store_free(s);
    }
    assert_true(n_found > n_kills);
}

int main(void)
{
    failing_sqlite();
    faulty_vfs_init();
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(a_block_outlives_the_store),
        TEST(a_block_is_served_for_its_time_to_live),
        TEST(blocks_from_a_clock_ahead_expire_too),
        TEST(the_least_recently_used_blocks_are_evicted),
        TEST(of_blocks_used_at_the_same_time_the_deepest_is_evicted),
        TEST(a_lowered_limit_is_reached_in_short_steps),
        TEST(a_folder_has_one_process),
        TEST(a_folder_that_cannot_be_written_is_an_error),
        TEST(a_database_of_another_program_is_not_changed),
        TEST(a_file_of_another_format_is_replaced),
        TEST(of_blocks_with_one_key_the_last_is_served_by_its_name),
        TEST(only_this_models_blocks_are_listed),
        TEST(larger_blocks_of_another_model_are_removed_too),
        TEST(pruning_leaves_no_large_log),
        TEST(a_damaged_file_serves_no_wrong_block),
        TEST(exchanged_blocks_are_not_served),
        TEST(counts_equal_the_contents_of_the_file),
        TEST(closing_is_fast),
        TEST(every_file_operation_may_fail),
        TEST(every_allocation_may_fail),
        TEST(a_killed_process_leaves_a_store_that_opens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

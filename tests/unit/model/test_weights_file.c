/* test_weights_file.c - files of packed weights: written once, mapped later, never trusted when
 * they are damaged. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/err.h"
#include "base/rng.h"
#include "lib/lib.h"
#include "model/weights_file.h"

#define BYTES ((5u << 20) + 192) // several chunks of the checksum, and a part of one
#define DIGEST 0x1234567890abcdefu

static const struct weights_file_key key = {.source = 1, .plan = 2, .bytes = BYTES};

static struct {
    char folder[64], path[200], new_path[210];
    struct pool *pool;
} rig;

static void fill(void *data)
{
    for (size_t i = 0; i < BYTES / sizeof(uint64_t); i++)
        ((uint64_t *)data)[i] = rng_splitmix64(i);
}

static bool is_filled(const void *data)
{
    for (size_t i = 0; i < BYTES / sizeof(uint64_t); i++)
        if (((const uint64_t *)data)[i] != rng_splitmix64(i))
            return false;
    return true;
}

static void write_file(void)
{
    AUTO(weights_file_free) struct weights_file *f = NULL;
    assert_int_equal(weights_file_new(rig.folder, &key, &f), 0);
    fill(weights_file_data(f));
    assert_int_equal(weights_file_finish(f, rig.pool, DIGEST), 0);
}

static int open_file(const struct weights_file_key *k, struct weights_file **ret)
{
    uint64_t digest = 0;
    int r = weights_file_open(rig.folder, k, rig.pool, &digest, ret);
    assert_true(r < 0 || digest == DIGEST);
    return r;
}

static bool exists(const char *path)
{
    return access(path, F_OK) == 0;
}

static int set_up(void **state)
{
    (void)state;
    snprintf(rig.folder, sizeof(rig.folder), "/tmp/tandem-weights-XXXXXX");
    assert_non_null(mkdtemp(rig.folder));
    const uint64_t name = rng_splitmix64(rng_splitmix64(key.source) ^ key.plan);
    snprintf(rig.path, sizeof(rig.path), "%s/%016llx.weights", rig.folder,
             (unsigned long long)name);
    snprintf(rig.new_path, sizeof(rig.new_path), "%s.new", rig.path);
    return pool_new(2, false, &rig.pool);
}

static int tear_down(void **state)
{
    (void)state;
    unlink(rig.path);
    unlink(rig.new_path);
    pool_free(TAKE(rig.pool));
    return rmdir(rig.folder);
}

static void a_finished_file_is_mapped_by_the_next_start(void **state)
{
    (void)state;
    AUTO(weights_file_free) struct weights_file *first = NULL, *second = NULL;
    assert_int_equal(open_file(&key, &first), -ENOENT);
    write_file();
    assert_false(exists(rig.new_path));
    assert_int_equal(open_file(&key, &first), 0);
    assert_int_equal(open_file(&key, &second), 0);
    assert_true(is_filled(weights_file_data(first)) && is_filled(weights_file_data(second)));
    assert_int_equal((uintptr_t)weights_file_data(first) % 64, 0);
    assert_int_equal(weights_file_resident(rig.folder, &key), BYTES);
}

static void the_writer_sees_its_weights_after_it_finished(void **state)
{
    (void)state;
    AUTO(weights_file_free) struct weights_file *f = NULL;
    assert_int_equal(weights_file_new(rig.folder, &key, &f), 0);
    fill(weights_file_data(f));
    assert_int_equal(weights_file_finish(f, rig.pool, DIGEST), 0);
    assert_true(is_filled(weights_file_data(f)));
}

static void every_part_of_the_key_counts(void **state)
{
    (void)state;
    write_file();
    for (unsigned i = 0; i < 3; i++) {
        AUTO(weights_file_free) struct weights_file *f = NULL;
        struct weights_file_key other = key;
        other.source += i == 0;
        other.plan += i == 1;
        other.bytes += i == 2 ? 64 : 0;
        if (i == 2) // it has the name of the file, which is then in the way
            assert_int_equal(weights_file_resident(rig.folder, &key), BYTES);
        assert_int_equal(open_file(&other, &f), -ENOENT);
        assert_int_equal(weights_file_resident(rig.folder, &other), 0);
        assert_int_equal(exists(rig.path), i != 2);
    }
}

/* A file with the name of another key, whose checksums are right. */
static void a_file_of_another_key_is_not_taken(void **state)
{
    (void)state;
    AUTO(weights_file_free) struct weights_file *f = NULL;
    struct weights_file_key other = key;
    other.plan++;
    write_file();
    const uint64_t name = rng_splitmix64(rng_splitmix64(other.source) ^ other.plan);
    char path[200];
    snprintf(path, sizeof(path), "%s/%016llx.weights", rig.folder, (unsigned long long)name);
    assert_int_equal(rename(rig.path, path), 0);
    assert_int_equal(open_file(&other, &f), -ENOENT);
    assert_false(exists(path));
}

static void change_byte(long at)
{
    FILE *f = fopen(rig.path, "r+b");
    assert_non_null(f);
    fseek(f, at, SEEK_SET);
    int c = fgetc(f);
    fseek(f, at, SEEK_SET);
    fputc(c ^ 1, f);
    fclose(f);
}

static void a_damaged_file_is_deleted(void **state)
{
    (void)state;
    static const long places[] = {0,
                                  8,
                                  16,
                                  24,
                                  32,
                                  40,
                                  48,
                                  WEIGHTS_FILE_HEADER,
                                  WEIGHTS_FILE_HEADER + (1 << 20) + 5,
                                  WEIGHTS_FILE_HEADER + BYTES - 1};
    for (unsigned i = 0; i < ARRAY_LEN(places); i++) {
        AUTO(weights_file_free) struct weights_file *f = NULL;
        write_file();
        change_byte(places[i]);
        assert_int_equal(open_file(&key, &f), -ENOENT);
        assert_non_null(strstr(fail_text(), "was damaged"));
        assert_false(exists(rig.path));
    }
}

static void a_file_of_another_size_is_deleted(void **state)
{
    (void)state;
    static const long sizes[] = {0, 100, WEIGHTS_FILE_HEADER + BYTES - 1,
                                 WEIGHTS_FILE_HEADER + BYTES + 1};
    for (unsigned i = 0; i < ARRAY_LEN(sizes); i++) {
        AUTO(weights_file_free) struct weights_file *f = NULL;
        write_file();
        assert_int_equal(truncate(rig.path, sizes[i]), 0);
        assert_int_equal(open_file(&key, &f), -ENOENT);
        assert_false(exists(rig.path));
    }
}

static void chunks_that_change_places_are_damage(void **state)
{
    (void)state;
    AUTO(weights_file_free) struct weights_file *f = NULL;
    write_file();
    enum { CHUNK = 1 << 20 };
    char *a = malloc(CHUNK), *b = malloc(CHUNK);
    int fd = open(rig.path, O_RDWR);
    assert_int_equal(pread(fd, a, CHUNK, WEIGHTS_FILE_HEADER), CHUNK);
    assert_int_equal(pread(fd, b, CHUNK, WEIGHTS_FILE_HEADER + CHUNK), CHUNK);
    assert_int_equal(pwrite(fd, b, CHUNK, WEIGHTS_FILE_HEADER), CHUNK);
    assert_int_equal(pwrite(fd, a, CHUNK, WEIGHTS_FILE_HEADER + CHUNK), CHUNK);
    close(fd);
    free(a);
    free(b);
    assert_int_equal(open_file(&key, &f), -ENOENT);
}

static void one_process_writes_at_a_time(void **state)
{
    (void)state;
    AUTO(weights_file_free) struct weights_file *writer = NULL, *other = NULL;
    assert_int_equal(weights_file_new(rig.folder, &key, &writer), 0);
    assert_int_equal(weights_file_new(rig.folder, &key, &other), -EBUSY);
    assert_true(exists(rig.new_path));
    fill(weights_file_data(writer));
    assert_int_equal(weights_file_finish(writer, rig.pool, DIGEST), 0);
    /* It was finished after the other process had looked for it. */
    assert_int_equal(weights_file_new(rig.folder, &key, &other), -EBUSY);
    assert_int_equal(open_file(&key, &other), 0);
}

static void an_unfinished_file_is_deleted(void **state)
{
    (void)state;
    struct weights_file *f = NULL;
    assert_int_equal(weights_file_new(rig.folder, &key, &f), 0);
    assert_true(exists(rig.new_path));
    weights_file_free(f);
    assert_false(exists(rig.new_path) || exists(rig.path));
}

/* What a killed process left. */
static void an_abandoned_file_is_written_again(void **state)
{
    (void)state;
    AUTO(weights_file_free) struct weights_file *f = NULL;
    FILE *left = fopen(rig.new_path, "w");
    fputs("half", left);
    fclose(left);
    write_file();
    assert_int_equal(open_file(&key, &f), 0);
    assert_true(is_filled(weights_file_data(f)));
}

static void a_full_disk_is_an_error(void **state)
{
    (void)state;
    struct weights_file *f = NULL;
    struct rlimit old;
    getrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){1 << 20, old.rlim_max});
    int r = weights_file_new(rig.folder, &key, &f);
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(r, -EFBIG);
    assert_non_null(strstr(fail_text(), "cannot reserve 5 MiB"));
    assert_false(exists(rig.new_path));
}

static void folders_that_cannot_be_used_are_errors(void **state)
{
    (void)state;
    AUTO(weights_file_free) struct weights_file *f = NULL;
    uint64_t digest;
    char longest[5000];
    memset(longest, 'a', sizeof(longest));
    longest[sizeof(longest) - 1] = 0;
    assert_int_equal(weights_file_new("/nowhere", &key, &f), -ENOENT);
    assert_int_equal(weights_file_new("/dev/null", &key, &f), -ENOTDIR);
    assert_int_equal(weights_file_new(longest, &key, &f), -ENAMETOOLONG);
    assert_int_equal(weights_file_open(longest, &key, rig.pool, &digest, &f), -ENAMETOOLONG);
    assert_int_equal(weights_file_open("/dev/null", &key, rig.pool, &digest, &f), -ENOTDIR);
    assert_int_equal(weights_file_resident("/nowhere", &key), 0);
    assert_int_equal(mkdir(rig.path, 0700), 0); // it cannot be deleted: nobody waits for it
    int err = open_file(&key, &f);
    assert_true(err == -EISDIR || err == -EPERM);
    assert_int_equal(rmdir(rig.path), 0);
}

static void a_file_that_cannot_be_finished_is_deleted(void **state)
{
    (void)state;
    AUTO(weights_file_free) struct weights_file *f = NULL, *next = NULL;
    assert_int_equal(weights_file_new(rig.folder, &key, &f), 0);
    fill(weights_file_data(f));
    assert_int_equal(mkdir(rig.path, 0700), 0);
    assert_int_equal(weights_file_finish(f, rig.pool, DIGEST), -EISDIR);
    assert_true(is_filled(weights_file_data(f)));
    assert_false(exists(rig.new_path));
    assert_int_equal(rmdir(rig.path), 0);
    assert_int_equal(weights_file_new(rig.folder, &key, &next), 0); // not -EBUSY
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(a_finished_file_is_mapped_by_the_next_start),
        TEST(the_writer_sees_its_weights_after_it_finished),
        TEST(every_part_of_the_key_counts),
        TEST(a_file_of_another_key_is_not_taken),
        TEST(a_damaged_file_is_deleted),
        TEST(a_file_of_another_size_is_deleted),
        TEST(chunks_that_change_places_are_damage),
        TEST(one_process_writes_at_a_time),
        TEST(an_unfinished_file_is_deleted),
        TEST(an_abandoned_file_is_written_again),
        TEST(a_full_disk_is_an_error),
        TEST(folders_that_cannot_be_used_are_errors),
        TEST(a_file_that_cannot_be_finished_is_deleted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

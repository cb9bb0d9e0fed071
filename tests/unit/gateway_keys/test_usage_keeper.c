/* test_usage_keeper.c - the thread that saves the counts of keys. */
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/err.h"
#include "gateway/keys/usage_file.h"
#include "gateway/keys/usage_keeper.h"
#include "lib/fakes/failing.h"
#include "lib/fakes/failing_thread.h"
#include "lib/lib.h"
#include "lib/rigs/logged.h"

#define ALICE "sk-0123456789abcdef"

static char folder[64], path[80];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/tandem-test-keeper-XXXXXX");
    snprintf(path, sizeof(path), "%s/usage.sqlite", mkdtemp(folder));
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    static const char *const suffixes[] = {"", "-wal", "-shm"};
    for (size_t i = 0; i < ARRAY_LEN(suffixes); i++) {
        char name[100];
        snprintf(name, sizeof(name), "%s%s", path, suffixes[i]);
        unlink(name);
    }
    return rmdir(folder);
}

static struct auth *alice(void)
{
    static const char text[] = "alice " ALICE " rate=10";
    struct auth *a = NULL;
    if (auth_new_text("keys", text, sizeof(text) - 1, &a) < 0)
        fail_msg("%s", fail_text());
    return a;
}

static uint64_t requests_left(struct auth *a, bool counts)
{
    struct auth_guest *u;
    struct auth_levels levels;
    assert_int_equal(auth_enter(a, ALICE, counts, clock_unix_us(), &u, &levels), 0);
    auth_leave(u);
    return levels.requests.left;
}

static void the_last_counts_are_saved_at_the_end(void **state)
{
    (void)state;
    AUTO(auth_free) struct auth *a = alice();
    AUTO(auth_free) struct auth *next = alice();
    AUTO(usage_keeper_free) struct usage_keeper *k = NULL;
    assert_int_equal(usage_keeper_new(a, path, &k), 0);
    assert_int_equal(requests_left(a, true), 9);
    usage_keeper_free(TAKE(k));
    assert_int_equal(usage_keeper_new(next, path, &k), 0);
    assert_int_equal(requests_left(next, false), 9); // read before it returns
}

/* Times of saving, also by other keepers of this test. */
static _Atomic int64_t saved_us[3];
static atomic_uint n_saved;

int __real_auth_save(struct auth *a, struct usage_file *f, int64_t now_us);
int __wrap_auth_save(struct auth *a, struct usage_file *f, int64_t now_us);
int __wrap_auth_save(struct auth *a, struct usage_file *f, int64_t now_us)
{
    unsigned i = atomic_load(&n_saved);
    if (i < ARRAY_LEN(saved_us))
        atomic_store(&saved_us[i], clock_us());
    int rc = __real_auth_save(a, f, now_us);
    atomic_fetch_add(&n_saved, 1);
    return rc;
}

static void counts_are_saved_once_a_second(void **state)
{
    (void)state;
    AUTO(auth_free) struct auth *a = alice();
    AUTO(usage_keeper_free) struct usage_keeper *k = NULL;
    atomic_store(&n_saved, 0);
    assert_int_equal(usage_keeper_new(a, path, &k), 0);
    for (unsigned i = 0; i < 2000 && atomic_load(&n_saved) < ARRAY_LEN(saved_us); i++)
        poll(NULL, 0, 10);
    assert_true(atomic_load(&n_saved) >= ARRAY_LEN(saved_us));
    for (size_t i = 1; i < ARRAY_LEN(saved_us); i++)
        assert_true(atomic_load(&saved_us[i]) - atomic_load(&saved_us[i - 1]) >= 1000000);
}

static void others_see_the_counts_while_it_runs(void **state)
{
    (void)state;
    AUTO(auth_free) struct auth *a = alice();
    AUTO(auth_free) struct auth *b = alice();
    AUTO(usage_keeper_free) struct usage_keeper *of_a = NULL;
    AUTO(usage_keeper_free) struct usage_keeper *of_b = NULL;
    assert_int_equal(usage_keeper_new(a, path, &of_a), 0);
    assert_int_equal(usage_keeper_new(b, path, &of_b), 0);
    requests_left(a, true);
    for (unsigned i = 0; i < 2000 && requests_left(b, false) == 10; i++)
        poll(NULL, 0, 10);
    assert_int_equal(requests_left(b, false), 9);
}

static void a_file_that_cannot_be_opened_is_an_error(void **state)
{
    (void)state;
    AUTO(auth_free) struct auth *a = alice();
    struct usage_keeper *k = NULL;
    assert_int_equal(usage_keeper_new(a, "/nonexistent/usage.sqlite", &k), -ENOENT);
    assert_null(k);
    for (unsigned n = 1; n <= 3; n++) { // the keeper, the file, the counts
        failing_at(n);
        assert_int_equal(usage_keeper_new(a, path, &k), -ENOMEM);
        assert_true(failing_has_failed());
    }
    usage_keeper_free(NULL);
}

static void without_a_thread_the_file_is_closed(void **state)
{
    (void)state;
    AUTO(auth_free) struct auth *a = alice();
    struct usage_keeper *k = NULL;
    atomic_store(&n_saved, 0);
    failing_thread_at(1);
    int rc = usage_keeper_new(a, path, &k);
    assert_int_equal(rc, -EAGAIN);
    assert_string_equal(fail_text(), "cannot start a thread: Resource temporarily unavailable");
    assert_null(k);
    assert_int_equal(atomic_load(&n_saved), 1); // at the start only
    char wal[100];
    snprintf(wal, sizeof(wal), "%s-wal", path);
    assert_int_equal(access(wal, F_OK), -1); // SQLite removes it when it closes the file
}

static void counts_that_are_not_saved_are_a_warning(void **state)
{
    (void)state;
    AUTO(auth_free) struct auth *a = alice();
    struct usage_keeper *k = NULL;
    assert_int_equal(usage_keeper_new(a, path, &k), 0);
    logged_begin();
    failing_at(1);
    usage_keeper_free(k);
    failing_at(0);
    assert_int_equal(logged_count(logged_end(), "the keys' counts are not saved now"), 1);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(the_last_counts_are_saved_at_the_end), CASE(counts_are_saved_once_a_second),
        CASE(others_see_the_counts_while_it_runs),  CASE(a_file_that_cannot_be_opened_is_an_error),
        CASE(without_a_thread_the_file_is_closed),  CASE(counts_that_are_not_saved_are_a_warning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

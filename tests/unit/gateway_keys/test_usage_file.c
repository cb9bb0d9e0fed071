/* test_usage_file.c - the counts of keys survive restarts, other processes, and damaged files. */
#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/err.h"
#include "gateway/keys/auth.h"
#include "gateway/keys/usage_file.h"
#include "lib/lib.h"

#define ALICE "sk-0123456789abcdef"
#define DAY_US (INT64_C(86400) * 1000000)
#define NOON_US (INT64_C(20000) * DAY_US + DAY_US / 2)

static char folder[64], path[80];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/tandem-test-usage-XXXXXX");
    snprintf(path, sizeof(path), "%s/usage.sqlite", mkdtemp(folder));
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    static const char *const suffixes[] = {"", "-wal", "-shm", "-journal", ".damaged"};
    for (size_t i = 0; i < ARRAY_LEN(suffixes); i++) {
        char name[100];
        snprintf(name, sizeof(name), "%s%s", path, suffixes[i]);
        unlink(name);
    }
    return rmdir(folder);
}

static struct usage_file *opened(void)
{
    struct usage_file *f = NULL;
    if (usage_file_open(path, NOON_US, &f) < 0)
        fail_msg("%s", fail_text());
    return f;
}

static struct auth *alice(void)
{
    static const char text[] = "alice " ALICE " rate=10 tokens_per_minute=6000 tokens_per_day=9000";
    struct auth *a = NULL;
    if (auth_new_text("keys", text, sizeof(text) - 1, &a) < 0)
        fail_msg("%s", fail_text());
    return a;
}

/* A request that uses n tokens; returns what it found left. */
static struct auth_levels uses(struct auth *a, uint64_t n, int64_t now_us)
{
    static const char body[] = "{\"prompt\":[1],\"max_tokens\":999}";
    struct auth_guest *u;
    struct auth_levels found, levels;
    struct openai_request q;
    struct openai_fault fault;
    assert_int_equal(auth_enter(a, ALICE, true, now_us, &u, &found), 0);
    assert_int_equal(
        openai_request_parse(OPENAI_COMPLETION, body, sizeof(body) - 1, NULL, &q, &fault), 0);
    if (auth_bind(u, &q, now_us, &fault, &levels) < 0)
        fail_msg("%s", fault.text);
    auth_use(u, n, now_us);
    auth_leave(u);
    openai_request_done(&q);
    return found;
}

static void saves(struct auth *a, struct usage_file *f, int64_t now_us)
{
    if (auth_save(a, f, now_us) < 0)
        fail_msg("%s", fail_text());
}

static struct auth_levels levels_of(struct auth *a, int64_t now_us)
{
    struct auth_guest *u;
    struct auth_levels levels;
    assert_int_equal(auth_enter(a, ALICE, false, now_us, &u, &levels), 0);
    auth_leave(u);
    return levels;
}

static void counts_survive_the_process(void **state)
{
    (void)state;
    {
        AUTO(auth_free) struct auth *a = alice();
        AUTO(usage_file_free) struct usage_file *f = opened();
        uses(a, 500, NOON_US);
        uses(a, 700, NOON_US);
        saves(a, f, NOON_US);
    }
    AUTO(auth_free) struct auth *a = alice();
    AUTO(usage_file_free) struct usage_file *f = opened();
    struct stat s;
    assert_int_equal(stat(path, &s), 0);
    assert_int_equal(s.st_mode & 0777, 0600);
    saves(a, f, NOON_US);
    assert_int_equal(levels_of(a, NOON_US).requests.left, 8);
    assert_int_equal(levels_of(a, NOON_US).tokens.left, 4800); // of the minute
    uses(a, 800, NOON_US + 3600000000);
    saves(a, f, NOON_US + 3600000000);
    struct auth_levels levels = levels_of(a, NOON_US + DAY_US / 2 - 1);
    assert_int_equal(levels.requests.left, 10);
    assert_int_equal(levels.tokens.limit, 6000);
    uses(a, 4000, NOON_US + DAY_US / 2 - 1);
    assert_int_equal(levels_of(a, NOON_US + DAY_US / 2 - 1).tokens.left, 2000);
    uses(a, 600, NOON_US + DAY_US / 2 - 1);
    saves(a, f, NOON_US + DAY_US / 2 - 1);
    levels = levels_of(a, NOON_US + DAY_US / 2 - 1);
    assert_int_equal(levels.tokens.left, 1400); // 6,600 of the day's 9,000 are used
    assert_int_equal(levels_of(a, NOON_US + DAY_US / 2 + 60000000).tokens.left, 6000);
}

static void processes_share_the_counts(void **state)
{
    (void)state;
    AUTO(auth_free) struct auth *a = alice();
    AUTO(auth_free) struct auth *b = alice();
    AUTO(usage_file_free) struct usage_file *f = opened();
    AUTO(usage_file_free) struct usage_file *g = opened();
    uses(a, 1000, NOON_US);
    saves(a, f, NOON_US);
    uses(b, 500, NOON_US);
    saves(b, g, NOON_US);
    saves(a, f, NOON_US);
    assert_int_equal(levels_of(a, NOON_US).tokens.left, 4500);
    assert_int_equal(levels_of(b, NOON_US).tokens.left, 4500);
    assert_int_equal(levels_of(a, NOON_US).requests.left, 8);
}

static void overwrite(const char *name, long at, char byte, size_t n)
{
    FILE *f = fopen(name, "r+");
    assert_non_null(f);
    fseek(f, at, SEEK_SET);
    for (size_t i = 0; i < n; i++)
        fputc(byte, f);
    fclose(f);
}

static void a_damaged_file_is_replaced(void **state)
{
    (void)state;
    static const struct {
        long at;
        size_t n;
    } v[] = {{0, 16}, {4096, 4096}, {0, 20000}};
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        char damaged[100];
        struct stat s;
        {
            AUTO(auth_free) struct auth *a = alice();
            AUTO(usage_file_free) struct usage_file *f = opened();
            uses(a, 500, NOON_US);
            saves(a, f, NOON_US);
        }
        overwrite(path, v[i].at, (char)0xee, v[i].n);
        AUTO(auth_free) struct auth *a = alice();
        AUTO(usage_file_free) struct usage_file *f = opened();
        snprintf(damaged, sizeof(damaged), "%s.damaged", path);
        assert_int_equal(stat(damaged, &s), 0);
        unlink(damaged);
        saves(a, f, NOON_US);
        assert_int_equal(levels_of(a, NOON_US).tokens.left, 6000);
        uses(a, 500, NOON_US);
        saves(a, f, NOON_US);
        sqlite3 *db;
        assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
        assert_int_equal(sqlite3_exec(db, "DELETE FROM usage", NULL, NULL, NULL), SQLITE_OK);
        sqlite3_close(db);
    }
}

static void run(const char *sql)
{
    sqlite3 *db;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    if (sqlite3_exec(db, sql, NULL, NULL, NULL) != SQLITE_OK)
        fail_msg("%s", sqlite3_errmsg(db));
    sqlite3_close(db);
}

static void a_file_that_is_damaged_while_in_use_gets_all_counts_again(void **state)
{
    (void)state;
    AUTO(auth_free) struct auth *a = alice();
    {
        AUTO(usage_file_free) struct usage_file *f = opened();
        uses(a, 500, NOON_US);
        saves(a, f, NOON_US);
        run("PRAGMA wal_checkpoint(TRUNCATE)"); // so pages are read again
        overwrite(path, 4096, (char)0xee, 4096);
        assert_int_equal(auth_save(a, f, NOON_US), -EBADMSG);
        saves(a, f, NOON_US); // there is no change to save
    }
    AUTO(auth_free) struct auth *next = alice();
    AUTO(usage_file_free) struct usage_file *f = opened();
    saves(next, f, NOON_US);
    assert_int_equal(levels_of(next, NOON_US).tokens.left, 5500);
    assert_int_equal(levels_of(next, NOON_US).requests.left, 9);
}

static void a_foreign_database_is_refused_and_unchanged(void **state)
{
    (void)state;
    run("CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1)");
    struct usage_file *f = NULL;
    assert_int_equal(usage_file_open(path, NOON_US, &f), -EEXIST);
    assert_non_null(strstr(fail_text(), "is a database of another program"));
    run("INSERT INTO theirs VALUES (2)");
}

static void numbers_of_the_file_are_bounded(void **state)
{
    (void)state;
    AUTO(auth_free) struct auth *a = alice();
    AUTO(usage_file_free) struct usage_file *f = opened();
    uses(a, 500, NOON_US);
    saves(a, f, NOON_US);
    run("UPDATE usage SET day_tokens = -5, requests_full_us = 9223372036854775807,"
        " tokens_full_us = 9223372036854775807");
    uses(a, 1, NOON_US);
    saves(a, f, NOON_US);
    assert_int_equal(levels_of(a, NOON_US).tokens.left, 0);
    assert_true(levels_of(a, NOON_US).tokens.reset_us <= 600000000);
    run("UPDATE usage SET day_tokens = 9223372036854775807, tokens_full_us = -1, day = 'x'");
    saves(a, f, NOON_US);
    assert_int_equal(levels_of(a, NOON_US + 1200000000).tokens.left, 6000);
    run("UPDATE usage SET day_tokens = 9223372036854775807, day = 20000");
    saves(a, f, NOON_US);
    assert_int_equal(levels_of(a, NOON_US + 1200000000).tokens.left, 0);
    assert_int_equal(levels_of(a, NOON_US + DAY_US).tokens.left, 6000);
}

static void a_file_that_cannot_be_written_loses_nothing(void **state)
{
    (void)state;
    AUTO(auth_free) struct auth *a = alice();
    AUTO(usage_file_free) struct usage_file *f = opened();
    uses(a, 500, NOON_US);
    sqlite3 *other;
    assert_int_equal(sqlite3_open(path, &other), SQLITE_OK);
    assert_int_equal(sqlite3_exec(other, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(auth_save(a, f, NOON_US), -EBUSY);
    assert_non_null(strstr(fail_text(), "locked"));
    sqlite3_close(other);
    saves(a, f, NOON_US);
    AUTO(auth_free) struct auth *next = alice();
    saves(next, f, NOON_US);
    assert_int_equal(levels_of(next, NOON_US).tokens.left, 5500);
}

static void a_folder_that_does_not_exist_is_an_error(void **state)
{
    (void)state;
    struct usage_file *f = NULL;
    assert_int_equal(usage_file_open("/nonexistent/usage.sqlite", NOON_US, &f), -ENOENT);
    assert_non_null(strstr(fail_text(), "usage file /nonexistent/usage.sqlite: No such file"));
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(counts_survive_the_process),
        CASE(processes_share_the_counts),
        CASE(a_damaged_file_is_replaced),
        CASE(a_file_that_is_damaged_while_in_use_gets_all_counts_again),
        CASE(a_foreign_database_is_refused_and_unchanged),
        CASE(numbers_of_the_file_are_bounded),
        CASE(a_file_that_cannot_be_written_loses_nothing),
        CASE(a_folder_that_does_not_exist_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

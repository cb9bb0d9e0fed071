/* test_usage_file.c - the counts of keys survive restarts, other processes, and damaged files. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/err.h"
#include "gateway/keys/auth.h"
#include "gateway/keys/usage_file.h"
#include "lib/fakes/failing.h"
#include "lib/fakes/faulty_vfs.h"
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
    static const char *const suffixes[] = {"", "-wal", "-shm", "-journal", ".damaged", ".keys"};
    for (size_t i = 0; i < ARRAY_LEN(suffixes); i++) {
        char name[100];
        snprintf(name, sizeof(name), "%s%s", path, suffixes[i]);
        remove(name);
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

static void a_file_that_is_removed_while_in_use_is_written_again(void **state)
{
    (void)state;
    enum { REMOVED, REPLACED, REPLACED_BY_A_DAMAGED_ONE, N_CASES };
    for (unsigned i = 0; i < N_CASES; i++) {
        AUTO(auth_free) struct auth *a = alice(), *next = alice();
        AUTO(usage_file_free) struct usage_file *f = opened();
        uses(a, 500, NOON_US);
        saves(a, f, NOON_US);
        run("PRAGMA wal_checkpoint(TRUNCATE)"); // so the log has no pages
        assert_int_equal(remove(path), 0);
        if (i == REPLACED)
            usage_file_free(opened());
        if (i == REPLACED_BY_A_DAMAGED_ONE) {
            fclose(fopen(path, "w"));
            overwrite(path, 0, (char)0xee, 20000);
        }
        saves(a, f, NOON_US); // there is no change to save
        AUTO(usage_file_free) struct usage_file *other = opened();
        saves(next, other, NOON_US);
        assert_int_equal(levels_of(next, NOON_US).tokens.left, 5500);
        assert_int_equal(levels_of(next, NOON_US).requests.left, 9);
        uses(next, 100, NOON_US);
        saves(next, other, NOON_US);
        saves(a, f, NOON_US); // both use one file
        assert_int_equal(levels_of(a, NOON_US).tokens.left, 5400);
        assert_int_equal(remove(path), 0);
    }
}

/* Something else has its name for a while. */
static void a_file_that_cannot_be_written_again_is_tried_again(void **state)
{
    (void)state;
    AUTO(auth_free) struct auth *a = alice(), *next = alice();
    AUTO(usage_file_free) struct usage_file *f = opened();
    uses(a, 500, NOON_US);
    saves(a, f, NOON_US);
    assert_int_equal(remove(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(auth_save(a, f, NOON_US), -EISDIR);
        assert_non_null(strstr(fail_text(), "usage.sqlite: Is a directory"));
    }
    assert_int_equal(rmdir(path), 0);
    saves(a, f, NOON_US); // there is no change to save
    AUTO(usage_file_free) struct usage_file *other = opened();
    saves(next, other, NOON_US);
    assert_int_equal(levels_of(next, NOON_US).tokens.left, 5500);
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

/* The first column of the first row. */
static int64_t number(const char *sql)
{
    sqlite3 *db;
    sqlite3_stmt *st;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &st, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(st), SQLITE_ROW);
    int64_t n = sqlite3_column_int64(st, 0);
    sqlite3_finalize(st);
    sqlite3_close(db);
    return n;
}

static unsigned n_descriptors(void)
{
    unsigned n = 0;
    DIR *d = opendir("/proc/self/fd");
    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

/* Saves a used request for 500 tokens, and closes the file. */
static void save_some(void)
{
    AUTO(auth_free) struct auth *a = alice();
    AUTO(usage_file_free) struct usage_file *f = opened();
    uses(a, 500, NOON_US);
    saves(a, f, NOON_US);
}

/* What a new process finds in the file. */
static uint64_t tokens_left(void)
{
    AUTO(auth_free) struct auth *a = alice();
    AUTO(usage_file_free) struct usage_file *f = opened();
    saves(a, f, NOON_US);
    return levels_of(a, NOON_US).tokens.left;
}

static void a_file_of_another_format_is_refused(void **state)
{
    (void)state;
    struct usage_file *f = NULL;
    save_some();
    run("PRAGMA user_version = 2");
    assert_int_equal(usage_file_open(path, NOON_US, &f), -EEXIST);
    assert_non_null(strstr(fail_text(), "has format 2, expected 1"));
}

static void rows_are_removed_after_31_days(void **state)
{
    (void)state;
    static const struct {
        const char *sql;
        int64_t left;
    } v[] = {{"UPDATE usage SET day = 20000 - 31", 1}, {"UPDATE usage SET day = 20000 - 32", 0}};
    save_some();
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        run(v[i].sql);
        usage_file_free(opened());
        assert_int_equal(number("SELECT COUNT(*) FROM usage"), v[i].left);
    }
}

static void a_request_without_tokens_is_saved(void **state)
{
    (void)state;
    AUTO(auth_free) struct auth *a = alice();
    AUTO(auth_free) struct auth *next = alice();
    AUTO(usage_file_free) struct usage_file *f = opened();
    struct auth_guest *u;
    struct auth_levels levels;
    assert_int_equal(auth_enter(a, ALICE, true, NOON_US, &u, &levels), 0);
    auth_leave(u);
    saves(a, f, NOON_US);
    saves(next, f, NOON_US);
    assert_int_equal(levels_of(next, NOON_US).requests.left, 9);
}

static void files_are_closed(void **state)
{
    (void)state;
    struct usage_file *f = NULL;
    save_some(); // SQLite opens what it keeps
    unsigned before = n_descriptors();
    save_some();
    run("PRAGMA user_version = 2");
    assert_int_equal(usage_file_open(path, NOON_US, &f), -EEXIST);
    run("PRAGMA user_version = 1");
    overwrite(path, 0, (char)0xee, 20000);
    save_some(); // replaces it
    assert_int_equal(n_descriptors(), before);
}

static void a_path_that_is_too_long_is_an_error(void **state)
{
    (void)state;
    static char text[PATH_MAX + 1];
    struct usage_file *f = NULL;
    memset(text, '/', PATH_MAX);
    assert_int_equal(usage_file_open(text, NOON_US, &f), -ENAMETOOLONG);
    assert_non_null(strstr(fail_text(), "the path is too long"));
}

/* The logs of the damaged file must not become those of the new one. */
static void logs_of_a_damaged_file_are_removed(void **state)
{
    (void)state;
    static const char *const suffixes[] = {"-wal", "-shm", "-journal"};
    save_some();
    overwrite(path, 0, (char)0xee, 20000);
    for (size_t i = 0; i < ARRAY_LEN(suffixes); i++) {
        char name[100];
        snprintf(name, sizeof(name), "%s%s", path, suffixes[i]);
        FILE *log = fopen(name, "w");
        fputs("stale", log);
        fclose(log);
    }
    usage_file_free(opened());
    for (size_t i = 0; i < ARRAY_LEN(suffixes); i++) {
        char name[100];
        snprintf(name, sizeof(name), "%s%s", path, suffixes[i]);
        assert_int_equal(access(name, F_OK), -1); // the new ones are removed by the close
    }
}

static void a_damaged_file_that_cannot_be_renamed_is_an_error(void **state)
{
    (void)state;
    char name[100];
    struct usage_file *f = NULL;
    save_some();
    overwrite(path, 0, (char)0xee, 20000);
    snprintf(name, sizeof(name), "%s.damaged", path);
    assert_int_equal(mkdir(name, 0700), 0);
    assert_int_equal(usage_file_open(path, NOON_US, &f), -EISDIR);
    assert_non_null(strstr(fail_text(), "cannot be renamed"));
    assert_null(f);
}

/* Descriptor 0 is free if the service was started without a standard input. */
static void descriptor_0_is_a_descriptor(void **state)
{
    (void)state;
    int input = dup(STDIN_FILENO);
    close(STDIN_FILENO);
    save_some();
    dup2(input, STDIN_FILENO);
    close(input);
}

static void reading_needs_no_turn_to_write(void **state)
{
    (void)state;
    AUTO(auth_free) struct auth *a = alice();
    AUTO(usage_file_free) struct usage_file *f = opened();
    sqlite3 *other;
    save_some();
    assert_int_equal(sqlite3_open(path, &other), SQLITE_OK);
    assert_int_equal(sqlite3_exec(other, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    saves(a, f, NOON_US);
    assert_int_equal(levels_of(a, NOON_US).tokens.left, 5500);
    sqlite3_close(other);
}

static void *end_transaction(void *db)
{
    poll(NULL, 0, 20);
    assert_int_equal(sqlite3_exec(db, "COMMIT", NULL, NULL, NULL), SQLITE_OK);
    return NULL;
}

static void a_process_that_writes_is_waited_for(void **state)
{
    (void)state;
    AUTO(auth_free) struct auth *a = alice();
    AUTO(usage_file_free) struct usage_file *f = opened();
    pthread_t thread;
    sqlite3 *other;
    uses(a, 500, NOON_US);
    assert_int_equal(sqlite3_open(path, &other), SQLITE_OK);
    assert_int_equal(sqlite3_exec(other, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(pthread_create(&thread, NULL, end_transaction, other), 0);
    saves(a, f, NOON_US);
    pthread_join(thread, NULL);
    sqlite3_close(other);
}

/* ---- a reload while the file is written ---- */

static struct auth *reloaded; // NULL: none
static const char *reloaded_text;
static int sync_result; // < 0: nothing is written

static void write_keys(const char *text)
{
    char name[100];
    snprintf(name, sizeof(name), "%s.keys", path);
    FILE *f = fopen(name, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    chmod(name, 0600);
}

int __real_usage_file_sync(struct usage_file *f, struct usage_file_entry *entries, unsigned n,
                           int64_t now_us);
int __wrap_usage_file_sync(struct usage_file *f, struct usage_file_entry *entries, unsigned n,
                           int64_t now_us);
int __wrap_usage_file_sync(struct usage_file *f, struct usage_file_entry *entries, unsigned n,
                           int64_t now_us)
{
    int rc = sync_result < 0 ? sync_result : __real_usage_file_sync(f, entries, n, now_us);
    if (reloaded) {
        write_keys(reloaded_text);
        assert_int_equal(auth_reload(reloaded), 0);
    }
    return rc;
}

#define LINE_A "alice " ALICE " rate=10 tokens_per_minute=6000\n"
#define LINE_B "bob sk-bob-0123456789ab tokens_per_minute=6000\n"
#define LINE_C "carol sk-carol-01234567 tokens_per_minute=6000\n"

/* The key may have moved, or have been removed. */
static void counts_reach_their_key_after_a_reload(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int left; // of alice's 6000 tokens; -1: she has no key
    } v[] = {{LINE_B LINE_A, 5300},
             {LINE_C LINE_B LINE_A, 5300},
             {LINE_A, 5300},
             {LINE_B, -1},
             {LINE_B LINE_C, -1}};
    for (size_t i = 0; i < 2 * ARRAY_LEN(v); i++) {
        char name[100];
        snprintf(name, sizeof(name), "%s.keys", path);
        if (i)
            run("DELETE FROM usage");
        save_some();
        write_keys(LINE_A LINE_B);
        AUTO(auth_free) struct auth *a = NULL;
        assert_int_equal(auth_new(name, &a), 0);
        AUTO(usage_file_free) struct usage_file *f = opened();
        uses(a, 200, NOON_US);
        reloaded = a;
        reloaded_text = v[i / 2].text;
        sync_result = i % 2 ? -EIO : 0;
        assert_int_equal(auth_save(a, f, NOON_US), sync_result);
        reloaded = NULL;
        sync_result = 0;
        saves(a, f, NOON_US);
        if (v[i / 2].left >= 0)
            assert_int_equal(levels_of(a, NOON_US).tokens.left, v[i / 2].left);
    }
}

/* ---- failures; the last tests, since the VFS stays ---- */

static void a_failed_allocation_is_an_error(void **state)
{
    (void)state;
    struct usage_file *f = NULL;
    AUTO(auth_free) struct auth *a = alice();
    failing_at(1);
    assert_int_equal(usage_file_open(path, NOON_US, &f), -ENOMEM);
    f = opened();
    uses(a, 500, NOON_US);
    failing_at(1);
    assert_int_equal(auth_save(a, f, NOON_US), -ENOMEM);
    saves(a, f, NOON_US);
    usage_file_free(f);
    assert_int_equal(tokens_left(), 5500);
}

/* Each call for the file fails in turn: nothing is lost. */
static void a_faulty_disk_loses_nothing(void **state)
{
    (void)state;
    static const struct {
        int error, is_permanent, rc;
    } v[] = {{SQLITE_IOERR, 0, -EIO},
             {SQLITE_FULL, 0, -ENOSPC},
             {SQLITE_IOERR, 1, -EIO},
             {SQLITE_CORRUPT, 1, -EBADMSG},
             {SQLITE_CORRUPT, 0, -EBADMSG}};
    faulty_vfs_init();
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        unsigned n_failed = 0;
        for (uint64_t n = 1;; n++) {
            AUTO(auth_free) struct auth *a = alice();
            AUTO(usage_file_free) struct usage_file *f = opened();
            run("DELETE FROM usage");
            uses(a, 500, NOON_US);
            faulty_vfs_fail(n, v[i].error, v[i].is_permanent);
            int rc = auth_save(a, f, NOON_US);
            bool done = faulty_vfs_calls() < n;
            faulty_vfs_fail(0, 0, 0);
            n_failed += rc == v[i].rc;
            if (rc < 0)
                saves(a, f, NOON_US);
            assert_int_equal(tokens_left(), 5500);
            if (done)
                break;
        }
        assert_true(n_failed > 2);
    }
}

/* At first there is no file. Later the file must not count as damaged. */
static void a_faulty_disk_is_reported_when_the_file_is_opened(void **state)
{
    (void)state;
    char damaged[100];
    unsigned n_opened = 0;
    snprintf(damaged, sizeof(damaged), "%s.damaged", path);
    for (uint64_t n = 1; n_opened < 2; n++) {
        struct usage_file *f = NULL;
        faulty_vfs_fail(n, SQLITE_IOERR, 1);
        int rc = usage_file_open(path, NOON_US, &f);
        bool done = faulty_vfs_calls() < n;
        faulty_vfs_fail(0, 0, 0);
        assert_int_equal(rc == 0, f != NULL);
        usage_file_free(f);
        if (!done) {
            assert_true(rc < 0);
            assert_non_null(strstr(fail_text(), "usage file /tmp/"));
            assert_int_equal(access(damaged, F_OK), -1);
            continue;
        }
        n_opened++;
        n = 0;
        if (n_opened == 1)
            save_some();
        run("PRAGMA wal_checkpoint(TRUNCATE)"); // so pages are read again
        assert_int_equal(tokens_left(), 5500);
    }
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(counts_survive_the_process),
        CASE(processes_share_the_counts),
        CASE(a_damaged_file_is_replaced),
        CASE(a_file_that_is_damaged_while_in_use_gets_all_counts_again),
        CASE(a_file_that_is_removed_while_in_use_is_written_again),
        CASE(a_file_that_cannot_be_written_again_is_tried_again),
        CASE(a_foreign_database_is_refused_and_unchanged),
        CASE(numbers_of_the_file_are_bounded),
        CASE(a_file_that_cannot_be_written_loses_nothing),
        CASE(a_folder_that_does_not_exist_is_an_error),
        CASE(a_file_of_another_format_is_refused),
        CASE(rows_are_removed_after_31_days),
        CASE(a_request_without_tokens_is_saved),
        CASE(files_are_closed),
        CASE(a_path_that_is_too_long_is_an_error),
        CASE(logs_of_a_damaged_file_are_removed),
        CASE(a_damaged_file_that_cannot_be_renamed_is_an_error),
        CASE(descriptor_0_is_a_descriptor),
        CASE(reading_needs_no_turn_to_write),
        CASE(a_process_that_writes_is_waited_for),
        CASE(counts_reach_their_key_after_a_reload),
        CASE(a_failed_allocation_is_an_error),
        CASE(a_faulty_disk_loses_nothing),
        CASE(a_faulty_disk_is_reported_when_the_file_is_opened),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

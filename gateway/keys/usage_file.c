/* usage_file.c - the file in which the counts of API keys survive a restart. The only file of the
 * gateway that knows SQLite. */
#include "gateway/keys/usage_file.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/err.h"
#include "base/log.h"

#define APPLICATION_ID 0x54615573 // "TaUs"
#define FORMAT 1                  // version of the schema below
#define MAX_PAGES 4096            // 16 MiB; a row has about 150 bytes
#define MAX_VALUE_BYTES 65536     // of a value or a statement
#define BUSY_MS 1000              // wait for another process
#define KEPT_DAYS 31
#define DAY_US (INT64_C(86400) * 1000000)
#define MOST_FUTURE_US (INT64_C(600) * 1000000) // a bucket is full sooner
#define MOST_TOKENS (INT64_C(1) << 53)

enum { GET, PUT, EXPIRE, N_STATEMENTS };

static const char *const statements[N_STATEMENTS] = {
    [GET] = "SELECT day, day_tokens, requests_full_us, tokens_full_us FROM usage WHERE id = ?1",
    [PUT] = ("INSERT OR REPLACE INTO usage (id, name, day, day_tokens, requests_full_us,"
             " tokens_full_us) VALUES (?1, ?2, ?3, ?4, ?5, ?6)"),
    [EXPIRE] = "DELETE FROM usage WHERE day < ?1",
};

static const char schema[] =
    "CREATE TABLE IF NOT EXISTS usage (id BLOB PRIMARY KEY, name TEXT NOT NULL,"
    " day INTEGER NOT NULL, day_tokens INTEGER NOT NULL, requests_full_us INTEGER NOT NULL,"
    " tokens_full_us INTEGER NOT NULL) WITHOUT ROWID";

struct usage_file {
    char path[PATH_MAX];
    sqlite3 *db;
    sqlite3_stmt *st[N_STATEMENTS];
};

/* ---- errors ---- */

/* The negative errno of an SQLite result. */
static int errno_of(int rc)
{
    switch (rc & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_ERROR: // the table has another schema
    case SQLITE_MISMATCH:
    case SQLITE_CONSTRAINT:
        return -EBADMSG;
    case SQLITE_FULL:
        return -ENOSPC;
    case SQLITE_NOMEM:
        return -ENOMEM;
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_CANTOPEN:
        return -EACCES;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return -EBUSY;
    default:
        return -EIO;
    }
}

static int db_fail(const struct usage_file *f, int rc)
{
    return fail(errno_of(rc), "usage file %s: %s", f->path,
                f->db ? sqlite3_errmsg(f->db) : sqlite3_errstr(rc));
}

/* ---- opening ---- */

static void close_db(struct usage_file *f)
{
    for (int i = 0; i < N_STATEMENTS; i++) {
        sqlite3_finalize(f->st[i]);
        f->st[i] = NULL;
    }
    sqlite3_close(f->db);
    f->db = NULL;
}

static int run_sql(struct usage_file *f, const char *sql)
{
    int rc = sqlite3_exec(f->db, sql, NULL, NULL, NULL);
    return rc == SQLITE_OK ? 0 : db_fail(f, rc);
}

static int set_pragma(struct usage_file *f, const char *name, int64_t value)
{
    char sql[96];
    snprintf(sql, sizeof(sql), "PRAGMA %s = %" PRId64, name, value);
    return run_sql(f, sql);
}

static int read_pragma(struct usage_file *f, const char *name, int64_t *ret)
{
    char sql[96];
    snprintf(sql, sizeof(sql), "PRAGMA %s", name);
    sqlite3_stmt *st = NULL;
    int rc = sqlite3_prepare_v2(f->db, sql, -1, &st, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(st);
    if (rc == SQLITE_ROW)
        *ret = sqlite3_column_int64(st, 0);
    int err = rc == SQLITE_ROW ? 0 : db_fail(f, rc);
    sqlite3_finalize(st);
    return err;
}

/* Prevents a foreign file from running code, and bounds what it can make SQLite do. */
static int harden_db(struct usage_file *f)
{
    sqlite3_busy_timeout(f->db, BUSY_MS);
    sqlite3_db_config(f->db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    sqlite3_db_config(f->db, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, NULL);
    sqlite3_db_config(f->db, SQLITE_DBCONFIG_ENABLE_VIEW, 0, NULL);
    sqlite3_limit(f->db, SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES);
    return run_sql(f, "PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON;"
                      "PRAGMA mmap_size = 0; PRAGMA temp_store = MEMORY");
}

/* Refuses a database of another program before anything is written. */
static int check_owner(struct usage_file *f, bool *ret_new)
{
    int64_t schema_version, id, format;
    int err = read_pragma(f, "schema_version", &schema_version);
    err = err ? err : read_pragma(f, "application_id", &id);
    err = err ? err : read_pragma(f, "user_version", &format);
    if (err)
        return err;
    *ret_new = !schema_version;
    if (schema_version && id != APPLICATION_ID)
        return fail(-EEXIST, "usage file %s is a database of another program", f->path);
    if (schema_version && format != FORMAT)
        return fail(-EEXIST, "usage file %s has format %" PRId64 ", expected %d", f->path, format,
                    FORMAT);
    return 0;
}

static int check_pages(struct usage_file *f)
{
    sqlite3_stmt *st = NULL;
    int rc = sqlite3_prepare_v2(f->db, "PRAGMA quick_check(1)", -1, &st, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(st);
    const char *says = rc == SQLITE_ROW ? (const char *)sqlite3_column_text(st, 0) : NULL;
    int err = rc != SQLITE_ROW ? db_fail(f, rc)
              : says && strcmp(says, "ok") == 0
                  ? 0
                  : fail(-EBADMSG, "usage file %s: %.200s", f->path, says ? says : "no result");
    sqlite3_finalize(st);
    return err;
}

/* Two processes may create the table at the same time; the second finds it. */
static int create_table(struct usage_file *f)
{
    int err = run_sql(f, "BEGIN IMMEDIATE");
    err = err ? err : run_sql(f, schema);
    err = err ? err : set_pragma(f, "application_id", APPLICATION_ID);
    err = err ? err : set_pragma(f, "user_version", FORMAT);
    return err ? err : run_sql(f, "COMMIT");
}

static int prepare_statements(struct usage_file *f)
{
    for (int i = 0; i < N_STATEMENTS; i++) {
        int rc = sqlite3_prepare_v3(f->db, statements[i], -1, SQLITE_PREPARE_PERSISTENT, &f->st[i],
                                    NULL);
        if (rc != SQLITE_OK)
            return db_fail(f, rc);
    }
    return 0;
}

static int run_statement(struct usage_file *f, int which)
{
    int rc = sqlite3_step(f->st[which]);
    int err = rc == SQLITE_DONE ? 0 : db_fail(f, rc);
    sqlite3_reset(f->st[which]);
    return err;
}

static int open_db(struct usage_file *f, int64_t now_us)
{
    bool new = false;
    int rc = sqlite3_open_v2(f->path, &f->db,
                             SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE,
                             NULL);
    if (rc != SQLITE_OK)
        return db_fail(f, rc);
    int err = harden_db(f);
    err = err ? err : check_owner(f, &new);
    err = err ? err : run_sql(f, "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL");
    err = err ? err : set_pragma(f, "max_page_count", MAX_PAGES);
    err = err ? err : new ? create_table(f) : check_pages(f);
    err = err ? err : prepare_statements(f);
    if (err)
        return err;
    sqlite3_bind_int64(f->st[EXPIRE], 1, now_us / DAY_US - KEPT_DAYS);
    return run_statement(f, EXPIRE);
}

/* SQLite would create the file with mode 0644. Its log files get the mode of the file. */
static int create_file(const struct usage_file *f)
{
    int fd = open(f->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return fail(-errno, "usage file %s: %s", f->path, strerror(errno));
    close(fd);
    return 0;
}

static int replace_file(struct usage_file *f, int64_t now_us)
{
    static const char *const suffixes[] = {"-wal", "-shm", "-journal"};
    char name[PATH_MAX + 16];
    close_db(f);
    snprintf(name, sizeof(name), "%s.damaged", f->path);
    log_warn("usage file is damaged and renamed to %s, all counts of keys start from zero: %s",
             name, fail_text());
    if (rename(f->path, name))
        return fail(-errno, "usage file %s cannot be renamed: %s", f->path, strerror(errno));
    for (size_t i = 0; i < ARRAY_LEN(suffixes); i++) {
        snprintf(name, sizeof(name), "%s%s", f->path, suffixes[i]);
        unlink(name);
    }
    int err = create_file(f);
    return err ? err : open_db(f, now_us);
}

int usage_file_open(const char *path, int64_t now_us, struct usage_file **ret)
{
    AUTO(usage_file_free) struct usage_file *f = calloc(1, sizeof(*f));
    if (!f)
        return fail(-ENOMEM, "no memory for the usage file");
    if (snprintf(f->path, sizeof(f->path), "%s", path) >= (int)sizeof(f->path))
        return fail(-ENAMETOOLONG, "usage file: the path is too long");
    int err = create_file(f);
    err = err ? err : open_db(f, now_us);
    if (err == -EBADMSG)
        err = replace_file(f, now_us);
    if (err == 0)
        *ret = TAKE(f);
    return err;
}

void usage_file_free(struct usage_file *f)
{
    if (!f)
        return;
    close_db(f);
    free(f);
}

/* ---- counts ---- */

static int64_t clamp(int64_t value, int64_t most)
{
    return value < 0 ? 0 : value > most ? most : value;
}

/* ret: zeros if the file has no row for the key. The file may hold any numbers. */
static int read_row(struct usage_file *f, const unsigned char id[KEY_FILE_DIGEST], int64_t now_us,
                    struct key_budget_counts *ret)
{
    sqlite3_stmt *st = f->st[GET];
    *ret = (struct key_budget_counts){0};
    sqlite3_bind_blob(st, 1, id, KEY_FILE_DIGEST, SQLITE_STATIC);
    int rc = sqlite3_step(st);
    if (rc == SQLITE_ROW)
        *ret = (struct key_budget_counts){
            .day = sqlite3_column_int64(st, 0),
            .day_tokens = clamp(sqlite3_column_int64(st, 1), MOST_TOKENS),
            .requests_full_us = clamp(sqlite3_column_int64(st, 2), now_us + MOST_FUTURE_US),
            .tokens_full_us = clamp(sqlite3_column_int64(st, 3), now_us + MOST_FUTURE_US)};
    int err = rc == SQLITE_ROW || rc == SQLITE_DONE ? 0 : db_fail(f, rc);
    sqlite3_reset(st);
    return err;
}

static int write_row(struct usage_file *f, const unsigned char id[KEY_FILE_DIGEST],
                     const struct usage_file_entry *e)
{
    sqlite3_stmt *st = f->st[PUT];
    sqlite3_bind_blob(st, 1, id, KEY_FILE_DIGEST, SQLITE_STATIC);
    sqlite3_bind_text(st, 2, e->name, -1, SQLITE_STATIC);
    sqlite3_bind_int64(st, 3, e->after.day);
    sqlite3_bind_int64(st, 4, e->after.day_tokens);
    sqlite3_bind_int64(st, 5, e->after.requests_full_us);
    sqlite3_bind_int64(st, 6, e->after.tokens_full_us);
    return run_statement(f, PUT);
}

static bool is_changed(const struct usage_file_entry *e)
{
    return e->change.requests_us || e->change.tokens_us || e->change.day_tokens;
}

static int sync_entry(struct usage_file *f, struct usage_file_entry *e, int64_t now_us)
{
    unsigned char id[KEY_FILE_DIGEST];
    struct key_budget_counts saved;
    key_file_digest((const char *)e->digest, sizeof(e->digest), id);
    int err = read_row(f, id, now_us, &saved);
    if (err)
        return err;
    e->after = key_budget_join(&e->before, &e->change, &saved);
    return is_changed(e) ? write_row(f, id, e) : 0;
}

static int sync_entries(struct usage_file *f, struct usage_file_entry *entries, unsigned n,
                        int64_t now_us)
{
    bool writes = false;
    for (unsigned i = 0; i < n; i++)
        writes |= is_changed(&entries[i]);
    int err = run_sql(f, writes ? "BEGIN IMMEDIATE" : "BEGIN");
    for (unsigned i = 0; i < n && !err; i++)
        err = sync_entry(f, &entries[i], now_us);
    return err ? err : run_sql(f, "COMMIT");
}

int usage_file_sync(struct usage_file *f, struct usage_file_entry *entries, unsigned n,
                    int64_t now_us)
{
    if (!f->db) { // an earlier replacement has failed
        int err = create_file(f);
        err = err ? err : open_db(f, now_us);
        if (err) {
            close_db(f);
            return err;
        }
    }
    int err = sync_entries(f, entries, n, now_us);
    if (err == 0)
        return 0;
    char why[FAIL_TEXT_MAX];
    snprintf(why, sizeof(why), "%s", fail_text());
    sqlite3_exec(f->db, "ROLLBACK", NULL, NULL, NULL); // no effect if there is no transaction
    fail(err, "%s", why);
    if (err == -EBADMSG && replace_file(f, now_us) < 0)
        close_db(f);
    return err == -EBADMSG ? fail(err, "%s", why) : err;
}

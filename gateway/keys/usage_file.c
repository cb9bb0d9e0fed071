/* usage_file.c - the file in which the counts of API keys survive a restart. */
#include "gateway/keys/usage_file.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/err.h"
#include "base/log.h"
#include "db/db.h"

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
    struct db db;
    dev_t device; // of the open file
    ino_t inode;
    bool lacks_counts; // it is empty, and this process knows counts that were in an earlier file
};

/* ---- opening ---- */

/* The check also reports a page that it could not read. Then the disk has failed, and the file may
 * be whole. */
static int page_fault(const struct usage_file *f, const char *says)
{
    static const char mark[] = "unable to get the page. error code=";
    const char *at = says ? strstr(says, mark) : NULL;
    int code = at ? atoi(at + strlen(mark)) & 0xff : SQLITE_CORRUPT;
    return fail(code == SQLITE_CORRUPT ? -EBADMSG : -EIO, "usage file %s: %.200s", f->path,
                says ? says : "no result");
}

static int check_pages(struct usage_file *f)
{
    sqlite3_stmt *st = NULL;
    int rc = sqlite3_prepare_v2(f->db.handle, "PRAGMA quick_check(1)", -1, &st, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(st);
    const char *says = rc == SQLITE_ROW ? (const char *)sqlite3_column_text(st, 0) : NULL;
    int err = rc != SQLITE_ROW                  ? db_fail(&f->db, rc)
              : says && strcmp(says, "ok") == 0 ? 0
                                                : page_fault(f, says);
    sqlite3_finalize(st);
    return err;
}

/* Refuses a database of another program before anything is written. */
static int set_up_file(struct usage_file *f)
{
    int64_t format;
    bool is_new;
    int err = db_format(&f->db, APPLICATION_ID, &is_new, &format);
    if (err)
        return err;
    if (!is_new && format != FORMAT)
        return fail(-EEXIST, "usage file %s has format %" PRId64 ", expected %d", f->path, format,
                    FORMAT);
    err = db_run(&f->db, "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL");
    err = err ? err : db_set(&f->db, "max_page_count", MAX_PAGES);
    if (err)
        return err;
    return is_new ? db_create(&f->db, schema, APPLICATION_ID, FORMAT) : check_pages(f);
}

/* False: the path names no file. */
static bool find_file(const struct usage_file *f, struct stat *ret)
{
    return stat(f->path, ret) == 0 || errno != ENOENT;
}

static int open_db(struct usage_file *f, int64_t now_us)
{
    char label[PATH_MAX + 16];
    struct stat s = {0};
    find_file(f, &s);
    f->device = s.st_dev;
    f->inode = s.st_ino;
    snprintf(label, sizeof(label), "usage file %s", f->path);
    int err = db_open(&f->db, label, f->path, false, MAX_VALUE_BYTES);
    if (!err)
        sqlite3_busy_timeout(f->db.handle, BUSY_MS);
    err = err ? err : set_up_file(f);
    err = err ? err : db_prepare(&f->db, statements, N_STATEMENTS);
    if (err)
        return err;
    sqlite3_bind_int64(f->db.st[EXPIRE], 1, now_us / DAY_US - KEPT_DAYS);
    return db_step(&f->db, EXPIRE);
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
    f->lacks_counts = true;
    db_close(&f->db);
    snprintf(name, sizeof(name), "%s.damaged", f->path);
    log_warn("usage file is damaged and renamed to %s, an empty one replaces it: %s", name,
             fail_text());
    if (rename(f->path, name))
        return fail(-errno, "usage file %s cannot be renamed: %s", f->path, strerror(errno));
    for (size_t i = 0; i < ARRAY_LEN(suffixes); i++) {
        snprintf(name, sizeof(name), "%s%s", f->path, suffixes[i]);
        unlink(name);
    }
    int err = create_file(f);
    return err ? err : open_db(f, now_us);
}

/* The file at the path, or a new one if there is none or it is damaged. */
static int open_or_replace(struct usage_file *f, int64_t now_us)
{
    int err = create_file(f);
    err = err ? err : open_db(f, now_us);
    return err == -EBADMSG ? replace_file(f, now_us) : err;
}

int usage_file_open(const char *path, int64_t now_us, struct usage_file **ret)
{
    AUTO(usage_file_free) struct usage_file *f = calloc(1, sizeof(*f));
    if (!f)
        return fail(-ENOMEM, "no memory for the usage file");
    if (snprintf(f->path, sizeof(f->path), "%s", path) >= (int)sizeof(f->path))
        return fail(-ENAMETOOLONG, "usage file: the path is too long");
    int err = open_or_replace(f, now_us);
    if (err == 0)
        *ret = TAKE(f);
    return err;
}

void usage_file_free(struct usage_file *f)
{
    if (!f)
        return;
    db_close(&f->db);
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
    sqlite3_stmt *st = f->db.st[GET];
    *ret = (struct key_budget_counts){0};
    sqlite3_bind_blob(st, 1, id, KEY_FILE_DIGEST, SQLITE_STATIC);
    int rc = sqlite3_step(st);
    if (rc == SQLITE_ROW)
        *ret = (struct key_budget_counts){
            .day = sqlite3_column_int64(st, 0),
            .day_tokens = clamp(sqlite3_column_int64(st, 1), MOST_TOKENS),
            .requests_full_us = clamp(sqlite3_column_int64(st, 2), now_us + MOST_FUTURE_US),
            .tokens_full_us = clamp(sqlite3_column_int64(st, 3), now_us + MOST_FUTURE_US)};
    int err = rc == SQLITE_ROW || rc == SQLITE_DONE ? 0 : db_fail(&f->db, rc);
    sqlite3_reset(st);
    return err;
}

static int write_row(struct usage_file *f, const unsigned char id[KEY_FILE_DIGEST],
                     const struct usage_file_entry *e)
{
    sqlite3_stmt *st = f->db.st[PUT];
    sqlite3_bind_blob(st, 1, id, KEY_FILE_DIGEST, SQLITE_STATIC);
    sqlite3_bind_text(st, 2, e->name, -1, SQLITE_STATIC);
    sqlite3_bind_int64(st, 3, e->after.day);
    sqlite3_bind_int64(st, 4, e->after.day_tokens);
    sqlite3_bind_int64(st, 5, e->after.requests_full_us);
    sqlite3_bind_int64(st, 6, e->after.tokens_full_us);
    return db_step(&f->db, PUT);
}

static bool is_zero(const struct key_budget_counts *c)
{
    return !c->day_tokens && !c->requests_full_us && !c->tokens_full_us;
}

static bool must_write(const struct usage_file *f, const struct usage_file_entry *e)
{
    return e->change.requests_us || e->change.tokens_us || e->change.day_tokens ||
           (f->lacks_counts && !is_zero(&e->before));
}

static int sync_entry(struct usage_file *f, struct usage_file_entry *e, int64_t now_us)
{
    unsigned char id[KEY_FILE_DIGEST];
    struct key_budget_counts saved;
    key_file_digest((const char *)e->digest, sizeof(e->digest), id);
    int err = read_row(f, id, now_us, &saved);
    if (err)
        return err;
    e->after = key_budget_join(&e->before, &e->change, &saved, now_us);
    return must_write(f, e) ? write_row(f, id, e) : 0;
}

static int sync_entries(struct usage_file *f, struct usage_file_entry *entries, unsigned n,
                        int64_t now_us)
{
    bool writes = false;
    for (unsigned i = 0; i < n; i++)
        writes |= must_write(f, &entries[i]);
    int err = db_run(&f->db, writes ? "BEGIN IMMEDIATE" : "BEGIN");
    for (unsigned i = 0; i < n && !err; i++)
        err = sync_entry(f, &entries[i], now_us);
    err = err ? err : db_run(&f->db, "COMMIT");
    f->lacks_counts = f->lacks_counts && err;
    return err;
}

/* SQLite keeps a file open that was removed or renamed, and would write to it until the end. */
static void leave_lost_file(struct usage_file *f)
{
    struct stat s = {.st_dev = f->device, .st_ino = f->inode};
    if (find_file(f, &s) && s.st_dev == f->device && s.st_ino == f->inode)
        return;
    log_warn("usage file %s was removed or replaced, all counts of keys are written again",
             f->path);
    db_close(&f->db);
    f->lacks_counts = true;
}

int usage_file_sync(struct usage_file *f, struct usage_file_entry *entries, unsigned n,
                    int64_t now_us)
{
    if (f->db.handle)
        leave_lost_file(f);
    if (!f->db.handle) { // it was lost, or an earlier replacement has failed
        int err = open_or_replace(f, now_us);
        if (err) {
            db_close(&f->db);
            return err;
        }
    }
    int err = sync_entries(f, entries, n, now_us);
    if (err == 0)
        return 0;
    char why[FAIL_TEXT_MAX];
    snprintf(why, sizeof(why), "%s", fail_text());
    db_rollback(&f->db);
    if (err == -EBADMSG && replace_file(f, now_us) < 0)
        db_close(&f->db);
    return fail(err, "%s", why);
}

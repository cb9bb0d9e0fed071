/* kv_store.c - see kv_store.h. The only file that knows SQLite. */
#include "verifier-svc/kvdisk/kv_store.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include "base/err.h"
#include "base/log.h"

#define FILE_NAME "tandem-kv.sqlite"
#define APPLICATION_ID 0x54614b76 // "TaKv"
#define FORMAT 1                  // version of the schema below
#define PAGE_BYTES 16384
#define SPARE_PAGES 64
#define EVICT_ROWS 8     // rows removed in one step until new rows fit
#define PRUNE_ROWS 64    // rows removed in one call of kv_store_prune()
#define PRUNE_PAGES 1024 // pages released in one call, if the file is too large

enum { PUT, GET, TOUCH, REMOVE, EXPIRED, CLAMP_USE, OLDEST, EACH, COUNT, N_STATEMENTS };

static const char *const statements[N_STATEMENTS] = {
    [PUT] = ("INSERT INTO blocks (key, last_use, depth, identity, digest, name, data)"
             " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)"),
    [GET] = "SELECT last_use, digest, name, data FROM blocks WHERE key = ?1",
    [TOUCH] = "UPDATE blocks SET last_use = ?2 WHERE key = ?1",
    [REMOVE] = "DELETE FROM blocks WHERE key = ?1",
    [EXPIRED] = "SELECT key FROM blocks WHERE last_use <= ?1 LIMIT ?2",
    [CLAMP_USE] = "UPDATE blocks SET last_use = ?1 WHERE last_use > ?1", // the clock was wrong
    [OLDEST] = "SELECT key FROM blocks ORDER BY last_use, depth DESC LIMIT ?1",
    [EACH] = "SELECT key, last_use FROM blocks WHERE identity = ?1",
    [COUNT] = "SELECT count(*) FROM blocks",
};

static const char schema[] =
    "CREATE TABLE IF NOT EXISTS blocks (key INTEGER PRIMARY KEY, last_use INTEGER NOT NULL,"
    " depth INTEGER NOT NULL, identity INTEGER NOT NULL, digest INTEGER NOT NULL,"
    " name BLOB NOT NULL, data BLOB NOT NULL);"
    "CREATE INDEX IF NOT EXISTS by_use ON blocks (last_use, depth DESC);";

struct kv_store {
    struct kv_store_options options;
    int folder; // holds the lock
    char path[PATH_MAX];
    sqlite3 *db;
    sqlite3_stmt *st[N_STATEMENTS];
    void (*on_removed)(void *owner, uint64_t key);
    void *removed_owner;
    struct kv_store_counts counts;
    uint64_t blocks_before; // counts.blocks at the start of the transaction
};

/* ---- errors ---- */

/* The negative errno of an SQLite result. */
static int errno_of(int rc)
{
    switch (rc & 0xff) {
    case SQLITE_OK:
    case SQLITE_ROW:
    case SQLITE_DONE:
        return 0;
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

static int db_fail(const struct kv_store *s, int rc)
{
    return fail(errno_of(rc), "%s: %s", s->path,
                s->db ? sqlite3_errmsg(s->db) : sqlite3_errstr(rc));
}

/* ---- opening ---- */

static void close_db(struct kv_store *s)
{
    for (int i = 0; i < N_STATEMENTS; i++) {
        sqlite3_finalize(s->st[i]);
        s->st[i] = NULL;
    }
    sqlite3_close(s->db);
    s->db = NULL;
}

static int run_sql(struct kv_store *s, const char *sql)
{
    int rc = sqlite3_exec(s->db, sql, NULL, NULL, NULL);
    return rc == SQLITE_OK ? 0 : db_fail(s, rc);
}

static int set_pragma(struct kv_store *s, const char *name, int64_t value)
{
    char sql[96];
    snprintf(sql, sizeof(sql), "PRAGMA %s = %" PRId64, name, value);
    return run_sql(s, sql);
}

static int read_pragma(struct kv_store *s, const char *name, int64_t *ret)
{
    char sql[96];
    snprintf(sql, sizeof(sql), "PRAGMA %s", name);
    sqlite3_stmt *st = NULL;
    int rc = sqlite3_prepare_v2(s->db, sql, -1, &st, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(st);
    if (rc == SQLITE_ROW)
        *ret = sqlite3_column_int64(st, 0);
    int err = rc == SQLITE_ROW ? 0 : db_fail(s, rc);
    sqlite3_finalize(st);
    return err;
}

/* Prevents a foreign file from running code: triggers and views are off. No other process opens the
 * file, because the folder is locked. So SQLite locks it exclusively and needs no shared memory. */
static int harden_db(struct kv_store *s)
{
    sqlite3_db_config(s->db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    sqlite3_db_config(s->db, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, NULL);
    sqlite3_db_config(s->db, SQLITE_DBCONFIG_ENABLE_VIEW, 0, NULL);
    sqlite3_db_config(s->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL); // closes fast
    sqlite3_limit(s->db, SQLITE_LIMIT_LENGTH, (int)(KV_STORE_LOG_BYTES / 2 + (1u << 20)));
    return run_sql(
        s, "PRAGMA secure_delete = OFF; PRAGMA trusted_schema = OFF; PRAGMA cell_size_check "
           "= ON; PRAGMA mmap_size = 0;"
           "PRAGMA locking_mode = EXCLUSIVE; PRAGMA temp_store = MEMORY");
}

/* A safety limit, in case this file miscounts its bytes. A larger existing file keeps its size.
 * SPARE_PAGES: removing rows may need pages, too. */
static int limit_pages(struct kv_store *s)
{
    int64_t now = 0, limit = (int64_t)(s->options.max_bytes / PAGE_BYTES);
    int err = read_pragma(s, "page_count", &now);
    return err ? err : set_pragma(s, "max_page_count", (now > limit ? now : limit) + SPARE_PAGES);
}

static int create_table(struct kv_store *s)
{
    int err = run_sql(s, "BEGIN IMMEDIATE");
    err = err ? err : run_sql(s, schema);
    err = err ? err : set_pragma(s, "application_id", APPLICATION_ID);
    err = err ? err : set_pragma(s, "user_version", FORMAT);
    return err ? err : run_sql(s, "COMMIT");
}

/* Checks the owner and format of the file, configures it, and creates the table of a new file. The
 * schema version of a new file is 0. */
static int set_up_file(struct kv_store *s)
{
    int64_t schema_version, id, format;
    int err = read_pragma(s, "schema_version", &schema_version);
    err = err ? err : read_pragma(s, "application_id", &id);
    err = err ? err : read_pragma(s, "user_version", &format);
    if (err)
        return err;
    if (schema_version && id != APPLICATION_ID)
        return fail(-EEXIST, "%s is a database of another program", s->path);
    if (schema_version && format != FORMAT)
        return fail(-EBADMSG, "%s has format %" PRId64 ", expected %d", s->path, format, FORMAT);
    if (!schema_version) {
        err = set_pragma(s, "page_size", PAGE_BYTES);
        err = err ? err : run_sql(s, "PRAGMA auto_vacuum = INCREMENTAL");
    }
    err = err ? err : run_sql(s, "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL");
    err = err ? err : set_pragma(s, "journal_size_limit", KV_STORE_LOG_BYTES);
    err = err ? err : set_pragma(s, "wal_autocheckpoint", KV_STORE_LOG_BYTES / 4 / PAGE_BYTES);
    err = err ? err : limit_pages(s);
    return err || schema_version ? err : create_table(s);
}

static int prepare_statements(struct kv_store *s)
{
    for (int i = 0; i < N_STATEMENTS; i++) {
        int rc = sqlite3_prepare_v3(s->db, statements[i], -1, SQLITE_PREPARE_PERSISTENT, &s->st[i],
                                    NULL);
        if (rc != SQLITE_OK)
            return db_fail(s, rc);
    }
    return 0;
}

/* Limit of the used pages: the write-ahead log needs the rest of max_bytes. */
static uint64_t max_used_bytes(const struct kv_store *s)
{
    return s->options.max_bytes - 2 * (uint64_t)KV_STORE_LOG_BYTES;
}

/* Bytes of all pages in use. */
static int used_bytes(struct kv_store *s, uint64_t *ret)
{
    int64_t pages = 0, unused = 0, size = 0;
    int err = read_pragma(s, "page_count", &pages);
    err = err ? err : read_pragma(s, "freelist_count", &unused);
    err = err ? err : read_pragma(s, "page_size", &size);
    *ret = (uint64_t)(pages - unused) * (uint64_t)size;
    return err;
}

/* Sets the counts, which reads the whole index. Later, the functions that add and remove blocks
 * update them. */
static int count_blocks(struct kv_store *s)
{
    int rc = sqlite3_step(s->st[COUNT]);
    if (rc == SQLITE_ROW)
        s->counts.blocks = (uint64_t)sqlite3_column_int64(s->st[COUNT], 0);
    sqlite3_reset(s->st[COUNT]);
    return rc == SQLITE_ROW ? used_bytes(s, &s->counts.bytes) : db_fail(s, rc);
}

static int open_db(struct kv_store *s)
{
    int rc = sqlite3_open_v2(s->path, &s->db,
                             SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX |
                                 SQLITE_OPEN_PRIVATECACHE,
                             NULL);
    if (rc != SQLITE_OK)
        return db_fail(s, rc);
    int err = harden_db(s);
    err = err ? err : set_up_file(s);
    err = err ? err : prepare_statements(s);
    err = err ? err : count_blocks(s);
    return err;
}

static void remove_files(struct kv_store *s)
{
    static const char *const suffixes[] = {"", "-wal", "-shm", "-journal"};
    for (size_t i = 0; i < ARRAY_LEN(suffixes); i++) {
        char name[64];
        snprintf(name, sizeof(name), FILE_NAME "%s", suffixes[i]);
        unlinkat(s->folder, name, 0);
    }
}

int kv_store_renew(struct kv_store *s)
{
    log_warn("kv-disk %s is replaced by a new file: %s", s->path, fail_text());
    close_db(s);
    remove_files(s);
    s->counts.n_renewed++;
    return open_db(s);
}

/* The blocks are as secret as the prompts: only this user may read them. */
static int check_owner(const struct kv_store *s)
{
    struct stat st;
    if (fstat(s->folder, &st))
        return fail(-errno, "folder %s: %s", s->options.dir, strerror(errno));
    if (st.st_uid != geteuid())
        return fail(-EACCES, "folder %s belongs to user %u, not to user %u of this service",
                    s->options.dir, st.st_uid, geteuid());
    if (st.st_mode & 077)
        return fail(-EACCES,
                    "folder %s has mode %04o, so other users can reach the blocks of prompts in "
                    "it; set mode 0700",
                    s->options.dir, st.st_mode & 07777);
    return 0;
}

/* Creates and locks the folder; sets the path of the file. */
static int lock_folder(struct kv_store *s)
{
    const char *dir = s->options.dir;
    if (mkdir(dir, 0700) && errno != EEXIST)
        return fail(-errno, "cannot create folder %s: %s", dir, strerror(errno));
    s->folder = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s->folder < 0)
        return fail(-errno, "folder %s: %s", dir, strerror(errno));
    int err = check_owner(s);
    if (err < 0)
        return err;
    if (flock(s->folder, LOCK_EX | LOCK_NB))
        return fail(errno == EWOULDBLOCK ? -EBUSY : -errno, "folder %s: %s", dir,
                    errno == EWOULDBLOCK ? "another process uses it" : strerror(errno));
    if (snprintf(s->path, sizeof(s->path), "%s/" FILE_NAME, dir) >= (int)sizeof(s->path))
        return fail(-ENAMETOOLONG, "folder %s: path too long", dir);
    return 0;
}

int kv_store_open(const struct kv_store_options *o, struct kv_store **ret)
{
    if (o->max_bytes < KV_STORE_MIN_BYTES)
        return fail(-EINVAL, "a KV store needs at least %u MiB", KV_STORE_MIN_BYTES >> 20);
    if (o->block_bytes > KV_STORE_LOG_BYTES / 2)
        return fail(-EINVAL,
                    "a KV block of %u bytes is too large for the KV store, the maximum is %u",
                    o->block_bytes, KV_STORE_LOG_BYTES / 2);
    AUTO(kv_store_free) struct kv_store *s = calloc(1, sizeof(*s));
    if (!s)
        return fail(-ENOMEM, "no memory");
    s->options = *o;
    s->folder = -1;
    int err = lock_folder(s);
    if (err)
        return err;
    err = open_db(s);
    if (err == -EBADMSG)
        err = kv_store_renew(s);
    if (err)
        return err;
    *ret = TAKE(s);
    return 0;
}

void kv_store_free(struct kv_store *s)
{
    if (!s)
        return;
    close_db(s);
    if (s->folder >= 0)
        close(s->folder);
    free(s);
}

void kv_store_on_removed(struct kv_store *s, void (*fn)(void *owner, uint64_t key), void *owner)
{
    s->on_removed = fn;
    s->removed_owner = owner;
}

/* ---- blocks ---- */

static int run_statement(struct kv_store *s, int which)
{
    int rc = sqlite3_step(s->st[which]);
    int err = rc == SQLITE_DONE ? 0 : db_fail(s, rc);
    sqlite3_reset(s->st[which]);
    return err;
}

/* Runs a statement whose arguments are bound. Returns at most PRUNE_ROWS of the keys it finds. */
static int find_keys(struct kv_store *s, int which, uint64_t *ret_keys, uint32_t *ret_n)
{
    int rc;
    *ret_n = 0;
    while ((rc = sqlite3_step(s->st[which])) == SQLITE_ROW && *ret_n < PRUNE_ROWS)
        ret_keys[(*ret_n)++] = (uint64_t)sqlite3_column_int64(s->st[which], 0);
    int err = rc == SQLITE_DONE || rc == SQLITE_ROW ? 0 : db_fail(s, rc);
    sqlite3_reset(s->st[which]);
    return err;
}

/* Removes the row with this key, if there is one. */
static int remove_row(struct kv_store *s, uint64_t key)
{
    sqlite3_bind_int64(s->st[REMOVE], 1, (int64_t)key);
    int err = run_statement(s, REMOVE);
    s->counts.blocks -= err ? 0 : (uint64_t)sqlite3_changes(s->db);
    return err;
}

/* Removes rows, reports each one and adds n to *count. */
static int remove_rows(struct kv_store *s, const uint64_t *keys, uint32_t n, uint64_t *count)
{
    int err = 0;
    for (uint32_t i = 0; i < n && !err; i++) {
        err = remove_row(s, keys[i]);
        if (!err && s->on_removed)
            s->on_removed(s->removed_owner, keys[i]);
    }
    *count += err ? 0 : n;
    return err;
}

/* Removes the least recently used rows, at most max_rows. */
static int evict_rows(struct kv_store *s, uint32_t max_rows, uint32_t *ret_n)
{
    uint64_t keys[PRUNE_ROWS];
    sqlite3_bind_int64(s->st[OLDEST], 1, max_rows);
    int err = find_keys(s, OLDEST, keys, ret_n);
    return err ? err : remove_rows(s, keys, *ret_n, &s->counts.n_evicted);
}

/* Evicts rows until `need` more bytes fit, or until there are no rows. */
static int evict_until_fits(struct kv_store *s, uint64_t need)
{
    uint64_t used;
    uint32_t n = 1;
    int err;
    while (!(err = used_bytes(s, &used)) && n && used + need > max_used_bytes(s)) {
        err = evict_rows(s, EVICT_ROWS, &n);
        if (err)
            break;
    }
    return err;
}

uint64_t kv_store_key(const uint8_t name[KV_NAME])
{
    uint64_t key;
    memcpy(&key, name, sizeof(key));
    return key;
}

/* The checksum of a block. It depends on the name, so the data of another block does not match. */
static uint64_t digest_of(const struct kv_store *s, const uint8_t *name, const void *data)
{
    uint64_t seed = XXH3_64bits(name, KV_NAME);
    return XXH3_64bits_withSeed(data, s->options.block_bytes, seed);
}

static int put_row(struct kv_store *s, const struct kv_store_row *r, int64_t now_s)
{
    const struct kv_store_head *h = &r->head;
    sqlite3_stmt *st = s->st[PUT];
    const int64_t numbers[] = {(int64_t)kv_store_key(h->name), now_s, h->depth,
                               (int64_t)s->options.identity,
                               (int64_t)digest_of(s, h->name, r->data)};
    for (int i = 0; i < (int)ARRAY_LEN(numbers); i++)
        sqlite3_bind_int64(st, i + 1, numbers[i]);
    sqlite3_bind_blob(st, 6, h->name, KV_NAME, SQLITE_STATIC);
    sqlite3_bind_blob(st, 7, r->data, (int)s->options.block_bytes, SQLITE_STATIC);
    int err = remove_row(s, kv_store_key(h->name));
    err = err ? err : run_statement(s, PUT);
    s->counts.blocks += !err;
    sqlite3_clear_bindings(st);
    return err;
}

static int put_rows(struct kv_store *s, const struct kv_store_row *rows, uint32_t n, int64_t now_s)
{
    uint64_t row_bytes = s->options.block_bytes + 2 * PAGE_BYTES; // upper limit: partly used pages
    int err = evict_until_fits(s, n * row_bytes);
    for (uint32_t i = 0; i < n && !err; i++)
        err = put_row(s, &rows[i], now_s);
    return err;
}

static int begin_transaction(struct kv_store *s)
{
    s->blocks_before = s->counts.blocks;
    return run_sql(s, "BEGIN IMMEDIATE");
}

/* Ends a transaction. On an error, also of the caller (err), nothing of the transaction remains. */
static int end_transaction(struct kv_store *s, int err)
{
    if (!err)
        err = run_sql(s, "COMMIT");
    if (err && !sqlite3_get_autocommit(s->db))
        sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
    if (err)
        s->counts.blocks = s->blocks_before;
    return err ? err : used_bytes(s, &s->counts.bytes);
}

int kv_store_put(struct kv_store *s, const struct kv_store_row *rows, uint32_t n, int64_t now_s)
{
    int err = begin_transaction(s);
    return err ? err : end_transaction(s, put_rows(s, rows, n, now_s));
}

static bool is_expired(const struct kv_store *s, int64_t last_use_s, int64_t now_s)
{
    return last_use_s <= now_s - s->options.ttl_s;
}

/* The state of the row that GET has found. */
enum row_state { ROW_GOOD, ROW_OTHER_NAME, ROW_DAMAGED, ROW_EXPIRED };

static enum row_state read_row(struct kv_store *s, const uint8_t *name, int64_t now_s,
                               void *ret_data)
{
    sqlite3_stmt *st = s->st[GET];
    if (is_expired(s, sqlite3_column_int64(st, 0), now_s))
        return ROW_EXPIRED;
    const void *row_name = sqlite3_column_blob(st, 2), *data = sqlite3_column_blob(st, 3);
    if (!row_name || sqlite3_column_bytes(st, 2) != KV_NAME || !data ||
        sqlite3_column_bytes(st, 3) != (int)s->options.block_bytes)
        return ROW_DAMAGED;
    if (memcmp(row_name, name, KV_NAME) != 0)
        return ROW_OTHER_NAME;
    memcpy(ret_data, data, s->options.block_bytes);
    return (uint64_t)sqlite3_column_int64(st, 1) == digest_of(s, name, ret_data) ? ROW_GOOD
                                                                                 : ROW_DAMAGED;
}

int kv_store_get(struct kv_store *s, const uint8_t name[KV_NAME], int64_t now_s, void *ret_data)
{
    sqlite3_stmt *st = s->st[GET];
    uint64_t key = kv_store_key(name);
    sqlite3_bind_int64(st, 1, (int64_t)key);
    int rc = sqlite3_step(st);
    if (rc != SQLITE_ROW) {
        int err = rc == SQLITE_DONE ? -ENOENT : db_fail(s, rc);
        sqlite3_reset(st);
        return err;
    }
    enum row_state row = read_row(s, name, now_s, ret_data);
    sqlite3_reset(st);
    if (row == ROW_GOOD)
        return 0;
    if (row == ROW_OTHER_NAME)
        return -ENOENT;
    int err =
        remove_rows(s, &key, 1, row == ROW_EXPIRED ? &s->counts.n_expired : &s->counts.n_damaged);
    return err ? err : -ENOENT;
}

int kv_store_touch(struct kv_store *s, const uint64_t *keys, uint32_t n, int64_t now_s)
{
    int err = begin_transaction(s);
    if (err)
        return err;
    for (uint32_t i = 0; i < n && !err; i++) {
        sqlite3_stmt *st = s->st[TOUCH];
        sqlite3_bind_int64(st, 1, (int64_t)keys[i]);
        sqlite3_bind_int64(st, 2, now_s);
        err = run_statement(s, TOUCH);
    }
    return end_transaction(s, err);
}

/* Removes expired rows. If there are none, evicts rows above the limit. */
static int prune_rows(struct kv_store *s, int64_t now_s, uint32_t *ret_n)
{
    uint64_t keys[PRUNE_ROWS], used;
    sqlite3_bind_int64(s->st[CLAMP_USE], 1, now_s);
    int err = run_statement(s, CLAMP_USE);
    sqlite3_bind_int64(s->st[EXPIRED], 1, now_s - s->options.ttl_s);
    sqlite3_bind_int64(s->st[EXPIRED], 2, PRUNE_ROWS);
    err = err ? err : find_keys(s, EXPIRED, keys, ret_n);
    err = err ? err : remove_rows(s, keys, *ret_n, &s->counts.n_expired);
    err = err ? err : used_bytes(s, &used);
    if (!err && *ret_n == 0 && used > max_used_bytes(s)) // the limit was lowered
        err = evict_rows(s, PRUNE_ROWS, ret_n);
    return err;
}

/* Releases some unused pages to the file system, if the file is larger than its limit. */
static int shrink_file(struct kv_store *s, bool *ret_more)
{
    int64_t pages = 0, size = 0;
    char sql[64];
    int err = read_pragma(s, "page_count", &pages);
    err = err ? err : read_pragma(s, "page_size", &size);
    *ret_more = !err && (uint64_t)(pages * size) > s->options.max_bytes - KV_STORE_LOG_BYTES;
    if (!*ret_more)
        return err;
    snprintf(sql, sizeof(sql), "PRAGMA incremental_vacuum(%d)", PRUNE_PAGES);
    return run_sql(s, sql);
}

int kv_store_prune(struct kv_store *s, int64_t now_s, bool *ret_more)
{
    uint32_t n = 0;
    int err = begin_transaction(s);
    if (err)
        return err;
    err = end_transaction(s, prune_rows(s, now_s, &n));
    *ret_more = n > 0;
    return err || n ? err : shrink_file(s, ret_more);
}

int kv_store_each(struct kv_store *s, void (*fn)(void *owner, uint64_t key, int64_t last_use_s),
                  void *owner)
{
    sqlite3_stmt *st = s->st[EACH];
    sqlite3_bind_int64(st, 1, (int64_t)s->options.identity);
    int rc;
    while ((rc = sqlite3_step(st)) == SQLITE_ROW)
        fn(owner, (uint64_t)sqlite3_column_int64(st, 0), sqlite3_column_int64(st, 1));
    int err = rc == SQLITE_DONE ? 0 : db_fail(s, rc);
    sqlite3_reset(st);
    return err;
}

struct kv_store_counts kv_store_counts(const struct kv_store *s)
{
    return s->counts;
}

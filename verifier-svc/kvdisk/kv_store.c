/* kv_store.c - see kv_store.h. */
#include "verifier-svc/kvdisk/kv_store.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include "base/err.h"
#include "base/log.h"
#include "db/db.h"

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
    struct db db;
    void (*on_removed)(void *owner, uint64_t key);
    void *removed_owner;
    struct kv_store_counts counts;
    uint64_t blocks_before; // counts.blocks at the start of the transaction
};

/* ---- opening ---- */

/* No other process opens the file, because the folder is locked. So SQLite locks it exclusively and
 * needs no shared memory. */
static int lock_file(struct kv_store *s)
{
    sqlite3_db_config(s->db.handle, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL); // closes fast
    return db_run(&s->db, "PRAGMA secure_delete = OFF; PRAGMA locking_mode = EXCLUSIVE");
}

/* A safety limit, in case this file miscounts its bytes. A larger existing file keeps its size.
 * SPARE_PAGES: removing rows may need pages, too. */
static int limit_pages(struct kv_store *s)
{
    int64_t now = 0, limit = (int64_t)(s->options.max_bytes / PAGE_BYTES);
    int err = db_get(&s->db, "page_count", &now);
    return err ? err : db_set(&s->db, "max_page_count", (now > limit ? now : limit) + SPARE_PAGES);
}

/* Checks the owner and format of the file, configures it, and creates the table of a new
 * file. */
static int set_up_file(struct kv_store *s)
{
    int64_t format;
    bool is_new;
    int err = db_format(&s->db, APPLICATION_ID, &is_new, &format);
    if (err)
        return err;
    if (!is_new && format != FORMAT)
        return fail(-EBADMSG, "%s has format %" PRId64 ", expected %d", s->path, format, FORMAT);
    if (is_new) {
        err = db_set(&s->db, "page_size", PAGE_BYTES);
        err = err ? err : db_run(&s->db, "PRAGMA auto_vacuum = INCREMENTAL");
    }
    err = err ? err : db_run(&s->db, "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL");
    err = err ? err : db_set(&s->db, "journal_size_limit", KV_STORE_LOG_BYTES);
    err = err ? err : db_set(&s->db, "wal_autocheckpoint", KV_STORE_LOG_BYTES / 4 / PAGE_BYTES);
    err = err ? err : limit_pages(s);
    return err || !is_new ? err : db_create(&s->db, schema, APPLICATION_ID, FORMAT);
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
    int err = db_get(&s->db, "page_count", &pages);
    err = err ? err : db_get(&s->db, "freelist_count", &unused);
    err = err ? err : db_get(&s->db, "page_size", &size);
    *ret = (uint64_t)(pages - unused) * (uint64_t)size;
    return err;
}

/* Sets the counts, which reads the whole index. Later, the functions that add and remove blocks
 * update them. */
static int count_blocks(struct kv_store *s)
{
    int rc = sqlite3_step(s->db.st[COUNT]);
    if (rc == SQLITE_ROW)
        s->counts.blocks = (uint64_t)sqlite3_column_int64(s->db.st[COUNT], 0);
    sqlite3_reset(s->db.st[COUNT]);
    return rc == SQLITE_ROW ? used_bytes(s, &s->counts.bytes) : db_fail(&s->db, rc);
}

static int open_db(struct kv_store *s)
{
    int most = (int)(KV_STORE_LOG_BYTES / 2 + (1u << 20));
    int err = db_open(&s->db, s->path, s->path, true, most);
    err = err ? err : lock_file(s);
    err = err ? err : set_up_file(s);
    err = err ? err : db_prepare(&s->db, statements, N_STATEMENTS);
    return err ? err : count_blocks(s);
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
    db_close(&s->db);
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
    db_close(&s->db);
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

/* Runs a statement whose arguments are bound. Returns at most PRUNE_ROWS of the keys it finds. */
static int find_keys(struct kv_store *s, int which, uint64_t *ret_keys, uint32_t *ret_n)
{
    int rc;
    *ret_n = 0;
    while ((rc = sqlite3_step(s->db.st[which])) == SQLITE_ROW && *ret_n < PRUNE_ROWS)
        ret_keys[(*ret_n)++] = (uint64_t)sqlite3_column_int64(s->db.st[which], 0);
    int err = rc == SQLITE_DONE || rc == SQLITE_ROW ? 0 : db_fail(&s->db, rc);
    sqlite3_reset(s->db.st[which]);
    return err;
}

/* Removes the row with this key, if there is one. *ret_n: rows removed. */
static int remove_row(struct kv_store *s, uint64_t key, uint64_t *ret_n)
{
    sqlite3_bind_int64(s->db.st[REMOVE], 1, (int64_t)key);
    int err = db_step(&s->db, REMOVE);
    *ret_n = err ? 0 : (uint64_t)sqlite3_changes(s->db.handle);
    s->counts.blocks -= *ret_n;
    return err;
}

/* Removes rows that were found, reports each one and adds n to *count. -EBADMSG: a row was found
 * only in the index. It would be found again and again. */
static int remove_rows(struct kv_store *s, const uint64_t *keys, uint32_t n, uint64_t *count)
{
    uint64_t n_removed;
    int err = 0;
    for (uint32_t i = 0; i < n && !err; i++) {
        err = remove_row(s, keys[i], &n_removed);
        if (!err && !n_removed)
            err = fail(-EBADMSG, "%s: the index has a block that the table does not have", s->path);
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
    sqlite3_bind_int64(s->db.st[OLDEST], 1, max_rows);
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
    sqlite3_stmt *st = s->db.st[PUT];
    const int64_t numbers[] = {(int64_t)kv_store_key(h->name), now_s, h->depth,
                               (int64_t)s->options.identity,
                               (int64_t)digest_of(s, h->name, r->data)};
    for (int i = 0; i < (int)ARRAY_LEN(numbers); i++)
        sqlite3_bind_int64(st, i + 1, numbers[i]);
    sqlite3_bind_blob(st, 6, h->name, KV_NAME, SQLITE_STATIC);
    sqlite3_bind_blob(st, 7, r->data, (int)s->options.block_bytes, SQLITE_STATIC);
    uint64_t n_replaced;
    int err = remove_row(s, kv_store_key(h->name), &n_replaced);
    err = err ? err : db_step(&s->db, PUT);
    s->counts.blocks += !err;
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
    return db_run(&s->db, "BEGIN IMMEDIATE");
}

/* Ends a transaction. On an error, also of the caller (err), nothing of the transaction remains. */
static int end_transaction(struct kv_store *s, int err)
{
    if (!err)
        err = db_run(&s->db, "COMMIT");
    if (!err)
        return used_bytes(s, &s->counts.bytes);
    db_rollback(&s->db);
    s->counts.blocks = s->blocks_before;
    return err;
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
    sqlite3_stmt *st = s->db.st[GET];
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
    sqlite3_stmt *st = s->db.st[GET];
    uint64_t key = kv_store_key(name);
    sqlite3_bind_int64(st, 1, (int64_t)key);
    int rc = sqlite3_step(st);
    if (rc != SQLITE_ROW) {
        int err = rc == SQLITE_DONE ? -ENOENT : db_fail(&s->db, rc);
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
        sqlite3_stmt *st = s->db.st[TOUCH];
        sqlite3_bind_int64(st, 1, (int64_t)keys[i]);
        sqlite3_bind_int64(st, 2, now_s);
        err = db_step(&s->db, TOUCH);
    }
    return end_transaction(s, err);
}

/* Removes expired rows. If there are none, evicts rows above the limit. */
static int prune_rows(struct kv_store *s, int64_t now_s, uint32_t *ret_n)
{
    uint64_t keys[PRUNE_ROWS], used;
    sqlite3_bind_int64(s->db.st[CLAMP_USE], 1, now_s);
    int err = db_step(&s->db, CLAMP_USE);
    sqlite3_bind_int64(s->db.st[EXPIRED], 1, now_s - s->options.ttl_s);
    sqlite3_bind_int64(s->db.st[EXPIRED], 2, PRUNE_ROWS);
    err = err ? err : find_keys(s, EXPIRED, keys, ret_n);
    err = err ? err : remove_rows(s, keys, *ret_n, &s->counts.n_expired);
    err = err ? err : used_bytes(s, &used);
    if (!err && *ret_n == 0 && used > max_used_bytes(s)) // the limit was lowered
        err = evict_rows(s, PRUNE_ROWS, ret_n);
    return err;
}

/* Releases some unused pages to the file system, if the file is larger than its limit. A file with
 * another auto_vacuum releases none. */
static int shrink_file(struct kv_store *s, bool *ret_more)
{
    int64_t pages = 0, size = 0, pages_after = 0;
    char sql[64];
    *ret_more = false;
    int err = db_get(&s->db, "page_count", &pages);
    err = err ? err : db_get(&s->db, "page_size", &size);
    if (err || (uint64_t)(pages * size) <= s->options.max_bytes - KV_STORE_LOG_BYTES)
        return err;
    snprintf(sql, sizeof(sql), "PRAGMA incremental_vacuum(%d)", PRUNE_PAGES);
    err = db_run(&s->db, sql);
    err = err ? err : db_get(&s->db, "page_count", &pages_after);
    *ret_more = !err && pages_after < pages;
    return err;
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
    sqlite3_stmt *st = s->db.st[EACH];
    sqlite3_bind_int64(st, 1, (int64_t)s->options.identity);
    int rc;
    while ((rc = sqlite3_step(st)) == SQLITE_ROW)
        fn(owner, (uint64_t)sqlite3_column_int64(st, 0), sqlite3_column_int64(st, 1));
    int err = rc == SQLITE_DONE ? 0 : db_fail(&s->db, rc);
    sqlite3_reset(st);
    return err;
}

struct kv_store_counts kv_store_counts(const struct kv_store *s)
{
    return s->counts;
}

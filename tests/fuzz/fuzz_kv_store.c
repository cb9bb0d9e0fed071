/* fuzz_kv_store.c - hostile files of the KV disk tier. Each input damages a good file, then opens,
 * reads, writes and prunes it. A block that is read must be one that was written.
 *
 * The input is a list of steps. Those that damage the file take effect at the next opening. */
#include <fcntl.h>
#include <semaphore.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/log.h"
#include "verifier-svc/kvdisk/kv_disk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { BLOCK = 20000, SMALL_BLOCK = 500, N_BLOCKS = 6, N_SMALL = 40, TTL = 1000, NOW = 1000000 };
enum { PAGE = 16384, MAX_STEPS = 40, MAX_PRUNES = 100 };

static char folder[64], path[96], log_path[104];
static struct kv_store_options options = {.dir = folder,
                                          .max_bytes = KV_STORE_MIN_BYTES,
                                          .ttl_s = TTL,
                                          .identity = 77,
                                          .block_bytes = BLOCK};
static int64_t now_s = NOW;
static sem_t fetched;

/* ---- the input ---- */

struct input {
    const uint8_t *data;
    size_t n;
};

/* Bytes past the end are 0. */
static uint64_t take(struct input *in, size_t bytes)
{
    uint64_t value = 0;
    for (size_t i = 0; i < bytes && in->n; i++, in->n--)
        value |= (uint64_t)*in->data++ << 8 * i;
    return value;
}

/* ---- blocks ---- */

/* The head and the data of block `key`. */
static void fill(uint64_t key, struct kv_store_head *h, uint8_t data[BLOCK])
{
    h->depth = (uint32_t)key;
    memset(h->name, (int)key, KV_NAME);
    memcpy(h->name, &key, sizeof(key));
    memset(data, (int)key + 1, BLOCK);
}

static int put(struct kv_store *s, uint64_t first, uint32_t n)
{
    static uint8_t data[N_SMALL][BLOCK];
    struct kv_store_row rows[N_SMALL];
    for (uint32_t i = 0; i < n; i++) {
        fill(first + i, &rows[i].head, data[i]);
        rows[i].data = data[i];
    }
    return kv_store_put(s, rows, n, now_s);
}

static void check_data(uint64_t key, const uint8_t *data)
{
    static uint8_t right[BLOCK];
    struct kv_store_head head;
    fill(key, &head, right);
    if (memcmp(data, right, BLOCK) != 0)
        abort(); // nobody wrote this block
}

static void get(struct kv_store *s, uint64_t key)
{
    static uint8_t data[BLOCK];
    struct kv_store_head head;
    fill(key, &head, data);
    if (kv_store_get(s, head.name, now_s, data) == 0)
        check_data(key, data);
}

/* ---- files ---- */

struct image {
    uint8_t *data;
    size_t n;
};
static struct image database, write_log;

static void remove_files(void)
{
    unlink(path);
    unlink(log_path);
}

static void remove_folder(void)
{
    remove_files();
    rmdir(folder);
}

static struct image read_image(const char *from)
{
    struct stat st;
    int fd = open(from, O_RDONLY);
    if (fd < 0 || fstat(fd, &st))
        abort();
    struct image i = {malloc((size_t)st.st_size), (size_t)st.st_size};
    if (!i.data || read(fd, i.data, i.n) != (ssize_t)i.n)
        abort();
    close(fd);
    return i;
}

static void write_image(const char *to, const struct image *i)
{
    int fd = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, i->data, i->n) != (ssize_t)i->n)
        abort();
    close(fd);
}

/* As another program. A statement that fails changes nothing. */
static void run_sql(const char *sql)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *st = NULL;
    if (sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, NULL) != SQLITE_OK)
        abort();
    sqlite3_db_config(db, SQLITE_DBCONFIG_DEFENSIVE, 0, NULL);
    while (*sql && sqlite3_prepare_v2(db, sql, -1, &st, &sql) == SQLITE_OK && st) {
        while (sqlite3_step(st) == SQLITE_ROW)
            ;
        sqlite3_finalize(st);
    }
    sqlite3_close(db);
}

static void must_put(struct kv_store_options o, uint64_t first, uint32_t n)
{
    struct kv_store *s = NULL;
    if (kv_store_open(&o, &s) < 0 || put(s, first, n) < 0)
        abort();
    kv_store_free(s);
}

/* Two models' blocks. The database has those of the other model and one of this; the log has the
 * rest. */
static void make_images(void)
{
    struct kv_store_options other = options;
    other.identity = 78;
    other.block_bytes = SMALL_BLOCK;
    must_put(other, 100, N_SMALL);
    must_put(options, 0, 1);
    run_sql("PRAGMA wal_checkpoint(TRUNCATE)"); // moves all into the database
    must_put(options, 1, N_BLOCKS - 1);
    database = read_image(path);
    write_log = read_image(log_path);
    remove_files();
}

static void start(void)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof(folder), "%.32s/tandem-kv-XXXXXX", tmp ? tmp : "/tmp");
    log_init("fuzz", LOG_LEVEL_ERROR);
    if (!mkdtemp(folder) || sem_init(&fetched, 0, 0))
        abort();
    atexit(remove_folder);
    snprintf(path, sizeof(path), "%s/tandem-kv.sqlite", folder);
    snprintf(log_path, sizeof(log_path), "%s-wal", path);
    make_images();
}

/* ---- damage ---- */

static const char *which_file(uint64_t which)
{
    return which ? log_path : path;
}

static void patch(const char *file, uint64_t at, uint64_t value, size_t bytes)
{
    int fd = open(file, O_WRONLY);
    if (fd < 0)
        return; // there is no log
    if (pwrite(fd, &value, bytes, (off_t)at) < 0)
        abort();
    close(fd);
}

static void cut_file(const char *file, uint64_t bytes)
{
    struct stat st;
    if (stat(file, &st) == 0 && (uint64_t)st.st_size > bytes && truncate(file, (off_t)bytes))
        abort();
}

static void copy_page(uint64_t from, uint64_t to)
{
    uint8_t page[PAGE];
    int fd = open(path, O_RDWR);
    if (fd < 0)
        return;
    if (pread(fd, page, PAGE, (off_t)from * PAGE) == PAGE &&
        pwrite(fd, page, PAGE, (off_t)to * PAGE) < 0)
        abort();
    close(fd);
}

/* A file of n more MiB, whose header counts them as used. */
static void grow_file(uint64_t n_mib)
{
    struct stat st;
    if (stat(path, &st))
        return;
    off_t bytes = st.st_size + ((off_t)n_mib << 20);
    if (truncate(path, bytes))
        abort();
    patch(path, 28, __builtin_bswap32((uint32_t)(bytes / PAGE)), 4);
}

#define OTHER_TABLE(text)                                                                          \
    "ALTER TABLE blocks RENAME TO b; " text " INSERT INTO blocks SELECT key, last_use, depth,"     \
    " identity, digest, name, data FROM b"
#define COLUMNS "last_use, depth, identity, digest, name, data"

static const char *const tricks[] = {
    "DROP INDEX by_use",
    "DROP TABLE blocks",
    "CREATE TRIGGER t AFTER DELETE ON blocks BEGIN INSERT INTO blocks SELECT old.key + 1,"
    " old.last_use, old.depth, old.identity, old.digest, old.name, old.data; END",
    OTHER_TABLE("CREATE TABLE blocks (key, " COLUMNS ");"),
    OTHER_TABLE("CREATE TABLE blocks (key TEXT PRIMARY KEY, " COLUMNS ");"),
    OTHER_TABLE("CREATE TABLE blocks (key INTEGER PRIMARY KEY, " COLUMNS ") WITHOUT ROWID;"),
    OTHER_TABLE("CREATE TABLE blocks (key INTEGER PRIMARY KEY, last_use, depth UNIQUE ON CONFLICT"
                " REPLACE, identity, digest, name, data);"),
    OTHER_TABLE("CREATE TABLE blocks (key INTEGER PRIMARY KEY, last_use, depth CHECK (depth < 3),"
                " identity, digest, name, data);"),
    "ALTER TABLE blocks RENAME TO b; CREATE VIEW blocks AS WITH RECURSIVE r (n) AS (SELECT 1 UNION"
    " ALL SELECT n + 1 FROM r) SELECT n AS key, " COLUMNS " FROM r, b",
    "ALTER TABLE blocks ADD COLUMN more AS (randomblob(1000000000))",
    "CREATE INDEX more ON blocks (zeroblob(depth))",
    // entries of the index without rows, and rows without entries
    "CREATE TABLE kept AS SELECT * FROM sqlite_schema WHERE name = 'by_use';"
    "PRAGMA writable_schema = ON; DELETE FROM sqlite_schema WHERE name = 'by_use'",
    "DELETE FROM blocks WHERE key < 104",
    "INSERT INTO blocks SELECT key + 1000, " COLUMNS " FROM blocks WHERE key < 4",
    "PRAGMA writable_schema = ON; INSERT INTO sqlite_schema SELECT * FROM kept",
    "PRAGMA writable_schema = ON; UPDATE sqlite_schema SET rootpage = rootpage + 1",
    "PRAGMA auto_vacuum = NONE; PRAGMA journal_mode = DELETE; VACUUM",
    "PRAGMA journal_mode = DELETE; PRAGMA page_size = 512; VACUUM",
    "PRAGMA user_version = 2",
    "PRAGMA application_id = 3",
    "PRAGMA encoding = 'UTF-16le'; VACUUM",
};

/* A value of any type in any column. */
static void change_row(struct input *in)
{
    static const char *const columns[] = {"key",    "last_use", "depth", "identity",
                                          "digest", "name",     "data"};
    static const char *const values[][2] = {{"NULLIF(1, 1) + ", ""}, // NULL
                                            {"", ""},
                                            {"-", " / 3.0"},
                                            {"CAST(", " AS TEXT)"},
                                            {"-1e18 - ", ""},
                                            {"zeroblob(", " % 70000)"},
                                            {"CAST(x'ff00' || ", " AS BLOB)"}};
    char sql[256];
    const char *column = columns[take(in, 1) % ARRAY_LEN(columns)];
    const char *const *value = values[take(in, 1) % ARRAY_LEN(values)];
    long long number = (long long)take(in, 8);
    snprintf(sql, sizeof(sql), "UPDATE OR REPLACE blocks SET %s = %s(%lld)%s WHERE key = %u",
             column, value[0], number, value[1], (unsigned)take(in, 1) % 8);
    run_sql(sql);
}

static void damage(struct input *in)
{
    uint64_t a, b;
    switch (take(in, 1) % 8) {
    case 0:
        a = take(in, 1);
        b = take(in, 2);
        patch(which_file(a & 1), (a >> 1) % 32 * PAGE + b % PAGE, take(in, 1), 1);
        break;
    case 1:
        a = take(in, 1);
        b = take(in, 2);
        patch(which_file(a & 1), (a >> 1) % 32 * PAGE + b % PAGE, take(in, 4), 4);
        break;
    case 2: // the header of the database
        a = take(in, 1);
        patch(path, a % 100, take(in, 4), 4);
        break;
    case 3:
        a = take(in, 1);
        cut_file(which_file(a & 1), take(in, 2) * 64);
        break;
    case 4:
        a = take(in, 1);
        copy_page(a % 32, take(in, 1) % 32);
        break;
    case 5:
        grow_file(take(in, 1));
        break;
    case 6:
        run_sql(tricks[take(in, 1) % ARRAY_LEN(tricks)]);
        break;
    default:
        change_row(in);
    }
}

/* ---- use ---- */

static void prune(struct kv_store *s)
{
    bool more = true;
    unsigned n = 0;
    while (more && kv_store_prune(s, now_s, &more) == 0)
        if (++n > MAX_PRUNES)
            abort(); // it never ends
}

static void add_up(void *owner, uint64_t key, int64_t last_use_s)
{
    *(uint64_t *)owner += key ^ (uint64_t)last_use_s;
}

static void use(struct kv_store *s, struct input *in)
{
    uint64_t a, sum = 0;
    switch (take(in, 1) % 7) {
    case 0:
        a = take(in, 1);
        put(s, a % 8, 1 + a / 8 % 4);
        break;
    case 1:
        prune(s);
        break;
    case 2:
        a = take(in, 1) % 8;
        kv_store_touch(s, &a, 1, now_s);
        break;
    case 3:
        kv_store_each(s, add_up, &sum);
        break;
    case 4:
        now_s = NOW + (int64_t)take(in, 1) * 10;
        break;
    case 5:
        kv_store_renew(s);
        break;
    default:
        for (uint64_t key = 0; key < 8; key++)
            get(s, key);
    }
    if (kv_store_counts(s).blocks > INT32_MAX)
        abort(); // less than none
}

static void on_fetched(void *owner, struct kv_disk_fetch *f)
{
    (void)owner;
    (void)f;
    sem_post(&fetched);
}

static int64_t disk_now_s(void)
{
    return now_s;
}

/* Blocks 0 to 7 from the file, then into it. */
static void run_disk(void)
{
    const struct kv_disk_options o = {.store = options, .fetched = on_fetched, .now_s = disk_now_s};
    struct kv_store_head head;
    struct kv_disk *d = NULL;
    static uint8_t data[BLOCK];
    if (kv_disk_new(&o, &d) < 0)
        return;
    struct kv_disk_fetch *f = kv_disk_fetch(d);
    for (f->n = 0; f->n < 8; f->n++) {
        fill(f->n, &head, data);
        memcpy(f->names[f->n], head.name, KV_NAME);
    }
    kv_disk_read(d, f);
    sem_wait(&fetched);
    for (uint32_t i = 0; i < f->n_found; i++)
        check_data(i, f->data[i]);
    kv_disk_fetched(d, f);
    for (uint64_t key = 0; key < 8; key++) {
        fill(key, &head, data);
        struct kv_disk_block *b = kv_disk_take(d, &head, 0);
        if (!b)
            continue;
        memcpy(b->data, data, BLOCK);
        kv_disk_put(d, b);
    }
    kv_disk_free(d, INT64_MAX / 2);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (!database.data)
        start();
    struct input in = {data, n};
    struct kv_store *s = NULL;
    now_s = NOW;
    write_image(path, &database);
    write_image(log_path, &write_log);
    for (int i = 0; i < MAX_STEPS && in.n; i++) {
        uint64_t step = take(&in, 1) % 16;
        if (step < 8 && s) {
            use(s, &in);
        } else if (step < 8 && kv_store_open(&options, &s) < 0) {
            s = NULL;
        } else if (step >= 8) {
            kv_store_free(TAKE(s));
            if (step == 8)
                run_disk();
            else
                damage(&in);
        }
    }
    kv_store_free(s);
    remove_files();
    return 0;
}

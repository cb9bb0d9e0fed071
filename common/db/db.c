/* db.c - what our SQLite files have in common. */
#include "db/db.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include "base/err.h"

/* ---- errors ---- */

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

int db_fail(const struct db *d, int rc)
{
    return fail(errno_of(rc), "%s: %s", d->label,
                d->handle ? sqlite3_errmsg(d->handle) : sqlite3_errstr(rc));
}

/* ---- statements ---- */

int db_run(struct db *d, const char *sql)
{
    int rc = sqlite3_exec(d->handle, sql, NULL, NULL, NULL);
    return rc == SQLITE_OK ? 0 : db_fail(d, rc);
}

void db_rollback(struct db *d)
{
    if (!sqlite3_get_autocommit(d->handle))
        sqlite3_exec(d->handle, "ROLLBACK", NULL, NULL, NULL);
}

int db_set(struct db *d, const char *pragma, int64_t value)
{
    char sql[96];
    snprintf(sql, sizeof(sql), "PRAGMA %s = %" PRId64, pragma, value);
    return db_run(d, sql);
}

int db_get(struct db *d, const char *pragma, int64_t *ret)
{
    char sql[96];
    snprintf(sql, sizeof(sql), "PRAGMA %s", pragma);
    sqlite3_stmt *st = NULL;
    int rc = sqlite3_prepare_v2(d->handle, sql, -1, &st, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(st);
    if (rc == SQLITE_ROW)
        *ret = sqlite3_column_int64(st, 0);
    int err = rc == SQLITE_ROW ? 0 : db_fail(d, rc);
    sqlite3_finalize(st);
    return err;
}

int db_prepare(struct db *d, const char *const *sql, int n)
{
    assert(n <= DB_STATEMENTS_MAX);
    for (int i = 0; i < n; i++) {
        int rc =
            sqlite3_prepare_v3(d->handle, sql[i], -1, SQLITE_PREPARE_PERSISTENT, &d->st[i], NULL);
        if (rc != SQLITE_OK)
            return db_fail(d, rc);
    }
    return 0;
}

int db_step(struct db *d, int which)
{
    int rc = sqlite3_step(d->st[which]);
    int err = rc == SQLITE_DONE ? 0 : db_fail(d, rc);
    sqlite3_reset(d->st[which]);
    return err;
}

/* ---- files ---- */

/* A foreign file must not run code. */
static int make_harmless(struct db *d, int max_value)
{
    sqlite3_db_config(d->handle, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    sqlite3_db_config(d->handle, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, NULL);
    sqlite3_db_config(d->handle, SQLITE_DBCONFIG_ENABLE_VIEW, 0, NULL);
    sqlite3_limit(d->handle, SQLITE_LIMIT_LENGTH, max_value);
    return db_run(d, "PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON;"
                     "PRAGMA mmap_size = 0; PRAGMA temp_store = MEMORY");
}

int db_open(struct db *d, const char *label, const char *path, bool creates, int max_value)
{
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE |
                (creates ? SQLITE_OPEN_CREATE : 0);
    snprintf(d->label, sizeof(d->label), "%s", label);
    int rc = sqlite3_open_v2(path, &d->handle, flags, NULL);
    return rc == SQLITE_OK ? make_harmless(d, max_value) : db_fail(d, rc);
}

void db_close(struct db *d)
{
    for (int i = 0; i < DB_STATEMENTS_MAX; i++) {
        sqlite3_finalize(d->st[i]);
        d->st[i] = NULL;
    }
    sqlite3_close(d->handle);
    d->handle = NULL;
}

int db_format(struct db *d, int32_t application_id, bool *ret_new, int64_t *ret_format)
{
    int64_t schema_version, id; // the schema version of a new file is 0
    int err = db_get(d, "schema_version", &schema_version);
    err = err ? err : db_get(d, "application_id", &id);
    err = err ? err : db_get(d, "user_version", ret_format);
    if (err)
        return err;
    if (schema_version && id != application_id)
        return fail(-EEXIST, "%s is a database of another program", d->label);
    *ret_new = !schema_version;
    return 0;
}

int db_create(struct db *d, const char *schema, int32_t application_id, int32_t format)
{
    int err = db_run(d, "BEGIN IMMEDIATE");
    err = err ? err : db_run(d, schema);
    err = err ? err : db_set(d, "application_id", application_id);
    err = err ? err : db_set(d, "user_version", format);
    return err ? err : db_run(d, "COMMIT");
}

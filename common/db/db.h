/* db.h - what our SQLite files have in common: opening, owner and format, statements, errors.
 *
 * Files may be damaged or foreign. So triggers and views of a file never run, and a file of another
 * program is refused before anything is written.
 *
 * Errors have a sentence that begins with the label:
 *
 *     -EBADMSG   the file is damaged, or has other tables
 *     -ENOSPC    the disk is full, or the file has reached its limit
 *     -EACCES    the file cannot be opened or written
 *     -EBUSY     another process uses it
 *     -ENOMEM, -EIO
 *
 * Threads: one at a time for each struct db. */
#pragma once
#include <limits.h>
#include <sqlite3.h>
#include <stdbool.h>
#include <stdint.h>

#define DB_STATEMENTS_MAX 16

struct db { // zeroed: closed
    char label[PATH_MAX + 32];
    sqlite3 *handle; // NULL: closed
    sqlite3_stmt *st[DB_STATEMENTS_MAX];
};

/* The sentence and the negative errno of an SQLite result other than OK, ROW and DONE. */
int db_fail(const struct db *d, int rc);

/* Opens the file and makes it harmless. creates: a missing file is created, with mode 0644 less the
 * umask. max_value: bytes of a value or a statement. After an error db_close() is still due. */
int db_open(struct db *d, const char *label, const char *path, bool creates, int max_value);
void db_close(struct db *d); // of a closed one: no effect

/* Whose file it is: application_id is that of the PRAGMA. *ret_new: the file has no tables yet;
 * else *ret_format is the version of its tables. -EEXIST: it belongs to another program. */
int db_format(struct db *d, int32_t application_id, bool *ret_new, int64_t *ret_format);
/* Creates the tables of a new file. Two processes may do so at the same time if the schema says IF
 * NOT EXISTS. */
int db_create(struct db *d, const char *schema, int32_t application_id, int32_t format);

int db_run(struct db *d, const char *sql);
/* Undoes the transaction, if there is one. Leaves fail_text() as it is. */
void db_rollback(struct db *d);
int db_set(struct db *d, const char *pragma, int64_t value);
int db_get(struct db *d, const char *pragma, int64_t *ret);

/* Prepares d->st[0 .. n), n <= DB_STATEMENTS_MAX. */
int db_prepare(struct db *d, const char *const *sql, int n);
/* Runs d->st[which], whose arguments are bound, and which returns no rows. */
int db_step(struct db *d, int which);

/* faulty_vfs.c - a SQLite VFS that acts like a faulty disk. It counts every call, then forwards the
 * call to SQLite's default VFS. */
#include "lib/fakes/faulty_vfs.h"
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static sqlite3_vfs *real, faulty;
static _Atomic uint64_t n_calls, fail_at;
static atomic_int fail_error, fail_is_permanent;

struct file {
    sqlite3_file base;
    sqlite3_file *real; // follows this struct in memory
};

/* Counts a call; returns its error or SQLITE_OK. */
static int count_call(void)
{
    uint64_t n = atomic_fetch_add(&n_calls, 1) + 1, at = atomic_load(&fail_at);
    return at && (n == at || (n > at && fail_is_permanent)) ? fail_error : SQLITE_OK;
}

#define REAL(f) (((struct file *)(f))->real)
#define FORWARD(f, call, ...)                                                                      \
    do {                                                                                           \
        int rc_ = count_call();                                                                    \
        return rc_ ? rc_ : REAL(f)->pMethods->call(REAL(f), ##__VA_ARGS__);                        \
    } while (0)

static int file_close(sqlite3_file *f)
{
    return REAL(f)->pMethods->xClose(REAL(f));
}
static int file_read(sqlite3_file *f, void *to, int n, sqlite3_int64 at)
{
    FORWARD(f, xRead, to, n, at);
}
static int file_write(sqlite3_file *f, const void *from, int n, sqlite3_int64 at)
{
    FORWARD(f, xWrite, from, n, at);
}
static int file_truncate(sqlite3_file *f, sqlite3_int64 size)
{
    FORWARD(f, xTruncate, size);
}
static int file_sync(sqlite3_file *f, int flags)
{
    FORWARD(f, xSync, flags);
}
static int file_size(sqlite3_file *f, sqlite3_int64 *ret)
{
    FORWARD(f, xFileSize, ret);
}
static int file_lock(sqlite3_file *f, int level)
{
    FORWARD(f, xLock, level);
}
static int file_unlock(sqlite3_file *f, int level)
{
    return REAL(f)->pMethods->xUnlock(REAL(f), level);
}
static int file_is_reserved(sqlite3_file *f, int *ret)
{
    FORWARD(f, xCheckReservedLock, ret);
}
static int file_control(sqlite3_file *f, int what, void *arg)
{
    return REAL(f)->pMethods->xFileControl(REAL(f), what, arg);
}
static int file_sector(sqlite3_file *f)
{
    return REAL(f)->pMethods->xSectorSize(REAL(f));
}
static int file_traits(sqlite3_file *f)
{
    return REAL(f)->pMethods->xDeviceCharacteristics(REAL(f));
}

static const sqlite3_io_methods methods = {
    .iVersion = 1, // no shared memory, no mapping
    .xClose = file_close,
    .xRead = file_read,
    .xWrite = file_write,
    .xTruncate = file_truncate,
    .xSync = file_sync,
    .xFileSize = file_size,
    .xLock = file_lock,
    .xUnlock = file_unlock,
    .xCheckReservedLock = file_is_reserved,
    .xFileControl = file_control,
    .xSectorSize = file_sector,
    .xDeviceCharacteristics = file_traits,
};

static int vfs_open(sqlite3_vfs *v, const char *name, sqlite3_file *out, int flags, int *ret_flags)
{
    (void)v;
    struct file *f = (struct file *)out;
    f->base.pMethods = NULL;
    f->real = (sqlite3_file *)(f + 1);
    int rc = count_call();
    rc = rc ? rc : real->xOpen(real, name, f->real, flags, ret_flags);
    if (rc == SQLITE_OK)
        f->base.pMethods = &methods;
    return rc;
}

static int vfs_delete(sqlite3_vfs *v, const char *name, int sync_folder)
{
    (void)v;
    int rc = count_call();
    return rc ? rc : real->xDelete(real, name, sync_folder);
}

static int vfs_access(sqlite3_vfs *v, const char *name, int flags, int *ret)
{
    (void)v;
    int rc = count_call();
    return rc ? rc : real->xAccess(real, name, flags, ret);
}

void faulty_vfs_init(void)
{
    real = sqlite3_vfs_find(NULL);
    faulty = *real;
    faulty.zName = "faulty";
    faulty.szOsFile += (int)sizeof(struct file);
    faulty.xOpen = vfs_open;
    faulty.xDelete = vfs_delete;
    faulty.xAccess = vfs_access;
    sqlite3_vfs_register(&faulty, 1);
}

void faulty_vfs_fail(uint64_t n, int error, int is_permanent)
{
    fail_error = error;
    fail_is_permanent = is_permanent;
    n_calls = 0;
    fail_at = n;
}

uint64_t faulty_vfs_calls(void)
{
    return n_calls;
}

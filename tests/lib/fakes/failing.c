/* failing.c - makes the n-th allocation fail. */
#include <sqlite3.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include "lib/fakes/failing.h"

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
char *__real_strdup(const char *text);
char *__real_strndup(const char *text, size_t n);
void *__real_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t n);
void *__wrap_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset);

static atomic_int n_left; // calls until the one that fails, itself included
static atomic_bool has_failed;
static atomic_size_t n_bytes;

void failing_at(unsigned n)
{
    has_failed = false;
    n_bytes = 0;
    n_left = (int)n;
}

bool failing_has_failed(void)
{
    n_left = 0;
    return has_failed;
}

size_t failing_bytes(void)
{
    return n_bytes;
}

/* Counts an allocation of n bytes; true: it must fail. */
static bool must_fail(size_t n)
{
    atomic_fetch_add(&n_bytes, n);
    if (atomic_load(&n_left) <= 0 || atomic_fetch_sub(&n_left, 1) != 1)
        return false;
    has_failed = true;
    return true;
}

void *__wrap_malloc(size_t n)
{
    return must_fail(n) ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return must_fail(n * size) ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
    return must_fail(n) ? NULL : __real_realloc(p, n);
}

char *__wrap_strdup(const char *text)
{
    return must_fail(strlen(text) + 1) ? NULL : __real_strdup(text);
}

char *__wrap_strndup(const char *text, size_t n)
{
    return must_fail(strnlen(text, n) + 1) ? NULL : __real_strndup(text, n);
}

void *__wrap_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset)
{
    return must_fail(n) ? MAP_FAILED : __real_mmap(at, n, prot, flags, fd, offset);
}

/* ---- SQLite: it is a shared library, so --wrap does not replace its calls of malloc() ---- */

static sqlite3_mem_methods sqlite;

static void *sqlite_malloc(int n)
{
    return must_fail((size_t)n) ? NULL : sqlite.xMalloc(n);
}

static void *sqlite_realloc(void *p, int n)
{
    return must_fail((size_t)n) ? NULL : sqlite.xRealloc(p, n);
}

void failing_sqlite(void)
{
    sqlite3_config(SQLITE_CONFIG_GETMALLOC, &sqlite);
    sqlite3_mem_methods failing = sqlite;
    failing.xMalloc = sqlite_malloc;
    failing.xRealloc = sqlite_realloc;
    sqlite3_config(SQLITE_CONFIG_MALLOC, &failing);
}

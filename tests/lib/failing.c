/* failing.c - allocations that fail when asked to. */
#include <stddef.h>
#include <sys/mman.h>
#include "lib/failing.h"

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__real_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset);

static unsigned n_left; // calls until the one that fails, itself included
static bool has_failed;

void failing_at(unsigned n)
{
    n_left = n;
    has_failed = false;
}

bool failing_has_failed(void)
{
    n_left = 0;
    return has_failed;
}

static bool fails(void)
{
    if (!n_left || --n_left)
        return false;
    return has_failed = true;
}

void *__wrap_malloc(size_t n)
{
    return fails() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
    return fails() ? NULL : __real_realloc(p, n);
}

void *__wrap_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset)
{
    return fails() ? MAP_FAILED : __real_mmap(at, n, prot, flags, fd, offset);
}

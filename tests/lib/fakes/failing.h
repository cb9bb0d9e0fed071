/* failing.h - makes the n-th allocation fail, in programs linked with
 * --wrap for malloc, calloc, realloc, strdup, strndup and mmap (tests/CMakeLists.txt).
 *
 * Threads: any; allocations of all threads are counted. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

/* Makes the n-th allocation after this call fail, n from 1; 0: none. */
void failing_at(unsigned n);
/* Whether that allocation has failed. Later ones do not fail. */
bool failing_has_failed(void);
/* Bytes requested since failing_at(), with mappings. */
size_t failing_bytes(void);
/* Also counts SQLite's allocations and lets them fail. Call it once, before SQLite is used. */
void failing_sqlite(void);

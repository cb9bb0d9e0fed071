/* failing.h - an allocation that fails at the n-th call, for programs linked with
 * --wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=mmap (tests/CMakeLists.txt). All threads count.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

/* The n-th allocation from now on fails, n from 1; 0: none does. */
void failing_at(unsigned n);
/* Whether it has failed; from now on none does. */
bool failing_has_failed(void);
/* What was asked for since failing_at(), mappings included. */
size_t failing_bytes(void);
/* SQLite's allocations are counted and fail, too. Once, before it is used. */
void failing_sqlite(void);

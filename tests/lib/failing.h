/* failing.h - an allocation that fails at the n-th call, for programs linked with
 * --wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=mmap (tests/CMakeLists.txt). One thread. */
#pragma once
#include <stdbool.h>

/* The n-th allocation from now on fails, n from 1; 0: none does. */
void failing_at(unsigned n);
/* Whether it has failed; from now on none does. */
bool failing_has_failed(void);

/* guard.h - memory that ends at an inaccessible page. An access past its end faults, even in vector
 * code, which sanitizers do not check. */
#pragma once
#include <stddef.h>

/* Zeroed. The address is a multiple of every power of two up to a page that divides `bytes`. */
void *guard_alloc(size_t bytes);
void *guard_copy(const void *from, size_t bytes);
/* Frees all memory of guard_alloc() and guard_copy(). */
void guard_free_all(void);

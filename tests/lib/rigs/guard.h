/* guard.h - memory that ends at a page no one may touch: reading or writing past its end is a
 * fault, also by vector code that sanitizers do not see. */
#pragma once
#include <stddef.h>

/* Zeroed; as much aligned as its size is. */
void *guard_alloc(size_t bytes);
void *guard_copy(const void *from, size_t bytes);
/* Everything from guard_alloc() and guard_copy(). */
void guard_free_all(void);

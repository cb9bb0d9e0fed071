/* room.h - memory that this process may still take, asked before anything large is reserved.
 *
 * Threads: any. */
#pragma once
#include <stddef.h>

/* The lesser of MemAvailable and what the control groups of this process leave, in bytes; SIZE_MAX
 * if neither can be read. Page cache counts as available. */
size_t room_available(void);

/* -ENOMEM with both numbers if `bytes` for `what` ("the weights") exceed what is available. */
int room_check(size_t bytes, const char *what);

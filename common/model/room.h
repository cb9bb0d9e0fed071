/* room.h - memory that this process may still take, asked before anything large is reserved.
 *
 * Threads: any. */
#pragma once
#include <stddef.h>

/* The least of MemAvailable, what the control groups of this process leave (v1 or v2, parents too)
 * and what RLIMIT_AS leaves, in bytes; SIZE_MAX where none can be read. File pages count as
 * available. root: "", or a folder with a test's proc and sys. */
size_t room_available(const char *root);

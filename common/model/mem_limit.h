/* mem_limit.h - memory that this process may still take, asked before anything large is reserved.
 *
 * Threads: any. */
#pragma once
#include <stddef.h>

/* The least of MemAvailable, what the control groups of this process leave (v1 or v2, parents too)
 * and what RLIMIT_AS leaves, in bytes; SIZE_MAX where none can be read. File pages count as
 * available. What other verifiers and proposers of this machine have reserved and not touched yet,
 * as a pool of KV that fills up later, does not: of MemAvailable, and of groups that are theirs,
 * too. root: "", or a folder with a test's proc and sys. ret_promised: all of that. */
size_t mem_limit_available(const char *root, size_t *ret_promised);

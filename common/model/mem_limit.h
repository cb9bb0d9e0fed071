/* mem_limit.h - memory that this process can still allocate. Call it before large reservations.
 *
 * Threads: any. */
#pragma once
#include <stddef.h>

/* The lowest of three limits, in bytes: MemAvailable, the rest of this process's control groups (v1
 * or v2, with their parents), the rest of RLIMIT_AS. SIZE_MAX: none can be read.
 *
 * File pages count as available. Memory that other verifiers and proposers of this machine have
 * reserved but not touched does not: their KV pools fill later. Nor do packed weights that they
 * have mapped from files. Both are subtracted from MemAvailable, and from the groups that they
 * share with this process. ret_promised: the sum.
 * root: "", or a folder with a test's proc and sys. */
size_t mem_limit_available(const char *root, size_t *ret_promised);
/* Bytes of files that other verifiers and proposers have mapped; part of *ret_promised. */
size_t mem_limit_mapped(const char *root);

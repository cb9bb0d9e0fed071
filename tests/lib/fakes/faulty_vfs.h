/* faulty_vfs.h - SQLite's files on a disk that fails: the n-th call for them returns an error.
 *
 * Threads: one test's own; counts are of the whole process. */
#pragma once
#include <stdint.h>

/* All databases opened from now on are on such a disk. Once. */
void faulty_vfs_init(void);
/* The n-th call from now on (from 1) and, if `stays`, all after it return the SQLite error. 0:
 * none. */
void faulty_vfs_fail(uint64_t n, int error, int stays);
/* Calls since then. */
uint64_t faulty_vfs_calls(void);

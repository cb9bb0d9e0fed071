/* faulty_vfs.h - a SQLite VFS that acts like a faulty disk: its n-th call returns an error.
 *
 * Threads: the test's only; calls of the whole process are counted. */
#pragma once
#include <stdint.h>

/* Databases that are opened later use this VFS. Call it once. */
void faulty_vfs_init(void);
/* The n-th call after this one (from 1) returns the SQLite error. is_permanent: all later calls
 * return it, too. n 0: no call fails. */
void faulty_vfs_fail(uint64_t n, int error, int is_permanent);
/* Calls since faulty_vfs_fail(). */
uint64_t faulty_vfs_calls(void);

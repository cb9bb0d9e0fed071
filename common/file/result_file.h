/* result_file.h - results of measurements at start-up, kept in a folder, so that the next start on
 * the same CPU need not measure again.
 *
 * A result is plain data of a fixed size. Its key is a digest of all that it depends on: the caller
 * adds CPU, threads and what was measured. A file has its key and a checksum. The callers check
 * the values, because anybody who can write to the folder can write a file with a right checksum.
 *
 * Threads: any. */
#pragma once
#include <stddef.h>
#include <stdint.h>

/* Reads the result of `bytes` bytes with this name (a word for file names) and key. -ENOENT: there
 * is none, or it is damaged. */
int result_file_read(const char *folder, const char *name, uint64_t key, void *to, size_t bytes);
/* Replaces the file, in one step. Returns 0, or an error of the folder with its sentence. */
int result_file_write(const char *folder, const char *name, uint64_t key, const void *from,
                      size_t bytes);

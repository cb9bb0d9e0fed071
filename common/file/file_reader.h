/* file_reader.h - a file whose head is kept in memory, and whose rest is read on demand; private to
 * common/file.
 *
 * Nothing is mapped: if another process cuts the file short, a read fails. A mapping would raise
 * SIGBUS.
 *
 * Threads: file_reader_read() and file_reader_prefetch() from any; the others from one. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/mem.h"

struct file_reader {
    const uint8_t *head; // stays where it is; the first n_head bytes may be read
    size_t n_head, len;  // len: of the file when it was opened
    int64_t modified;    // seconds since 1970
    uint64_t identity;   // of file, size and time of modification; 0 in memory
    int fd;
    bool is_file; // else in memory of the caller, who frees it
};

/* -ENOENT, -EACCES ...; -EINVAL: empty, or not a regular file. */
int file_reader_open(const char *path, struct file_reader *ret);
void file_reader_close(struct file_reader *f); // also of a zeroed one; zeroes it

/* Extends the head to at least `to` bytes, at most len. path: for error texts. -EIO: the file is
 * shorter now. -ENOMEM. */
int file_reader_extend(struct file_reader *f, const char *path, size_t to);
/* Copies n bytes at `from`; from + n is at most len. -EIO: the file is shorter now. */
int file_reader_read(const struct file_reader *f, const char *path, uint64_t from, size_t n,
                     void *to);
/* Tells the kernel that these bytes are needed soon. */
void file_reader_prefetch(const struct file_reader *f, uint64_t from, size_t n);

/* file_map.h - a whole file mapped for reading; private to common/file.
 *
 * Threads: plain functions. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/mem.h"

struct file_map {
    const uint8_t *data;
    size_t len;
    int64_t modified; // seconds since 1970
    bool is_mapped;   // else in memory of the caller, who frees it
};

/* -ENOENT, -EACCES ...; -EINVAL: empty, or not a regular file. */
int file_map_open(const char *path, struct file_map *ret);
void file_map_close(struct file_map *map); // also of a zeroed one; zeroes it

/* file_map.c - maps a file. */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/err.h"
#include "file/file_map.h"

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
}

int file_map_open(const char *path, struct file_map *ret)
{
    struct stat st;
    // O_NONBLOCK: open() of a fifo without a writer must not block
    __attribute__((cleanup(close_fd))) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) < 0)
        return fail(-errno, "cannot open %s: %m", path);
    if (!S_ISREG(st.st_mode))
        return fail(-EINVAL, "%s: not a regular file", path);
    if (st.st_size == 0)
        return fail(-EINVAL, "%s: empty", path);
    void *data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED)
        return fail(-errno, "cannot map %s: %m", path);
    *ret = (struct file_map){data, (size_t)st.st_size, st.st_mtime, true};
    return 0;
}

void file_map_close(struct file_map *map)
{
    if (map->is_mapped)
        munmap((void *)map->data, map->len);
    *map = (struct file_map){0};
}

/* file_reader.c - reads a file into memory that is reserved for all of it. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/err.h"
#include "base/rng.h"
#include "file/file_reader.h"

#define HEAD_STEP (1u << 20) // a multiple of all page sizes

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
}

/* Changes whenever the file is written or replaced. */
static uint64_t identity_of(const struct stat *st)
{
    const uint64_t words[] = {st->st_dev, st->st_ino, (uint64_t)st->st_size,
                              (uint64_t)st->st_mtim.tv_sec, (uint64_t)st->st_mtim.tv_nsec};
    uint64_t digest = 0;
    for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++)
        digest = rng_splitmix64(digest ^ words[i]);
    return digest;
}

int file_reader_open(const char *path, struct file_reader *ret)
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
    // addresses only: memory is taken for what file_reader_extend() reads
    void *head = mmap(NULL, (size_t)st.st_size, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (head == MAP_FAILED)
        return fail(-errno, "cannot reserve addresses for %s: %m", path);
    *ret = (struct file_reader){.head = head,
                                .len = (size_t)st.st_size,
                                .modified = st.st_mtime,
                                .identity = identity_of(&st),
                                .fd = fd,
                                .is_file = true};
    fd = -1;
    return 0;
}

void file_reader_close(struct file_reader *f)
{
    if (f->is_file) {
        munmap((void *)f->head, f->len);
        close(f->fd);
    }
    *f = (struct file_reader){0};
}

int file_reader_extend(struct file_reader *f, const char *path, size_t to)
{
    assert(to <= f->len);
    if (to <= f->n_head)
        return 0;
    size_t n = f->len - f->n_head, steps = (to - f->n_head + HEAD_STEP - 1) / HEAD_STEP;
    if (n / HEAD_STEP >= steps)
        n = steps * HEAD_STEP;
    void *at = (void *)(f->head + f->n_head);
    if (mprotect(at, n, PROT_READ | PROT_WRITE) < 0)
        return fail(-ENOMEM, "%s: no memory for %zu KiB of its head", path, n >> 10);
    int r = file_reader_read(f, path, f->n_head, n, at);
    if (r == 0)
        f->n_head += n;
    return r;
}

int file_reader_read(const struct file_reader *f, const char *path, uint64_t from, size_t n,
                     void *to)
{
    assert(from <= f->len && n <= f->len - from);
    if (!f->is_file) {
        memcpy(to, f->head + from, n);
        return 0;
    }
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(f->fd, (char *)to + done, n - done, (off_t)(from + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fail(-errno, "cannot read %s: %m", path);
        if (got == 0)
            return fail(-EIO, "%s: cut short while it was read: ends at byte %llu of %zu", path,
                        (unsigned long long)(from + done), f->len);
        done += (size_t)got;
    }
    return 0;
}

void file_reader_prefetch(const struct file_reader *f, uint64_t from, size_t n)
{
    if (f->is_file)
        posix_fadvise(f->fd, (off_t)from, (off_t)n, POSIX_FADV_WILLNEED);
}

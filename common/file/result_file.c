/* result_file.c - see result_file.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include "base/err.h"
#include "file/result_file.h"

#define MAGIC "tandemR1"
#define PATH_BYTES 4096

struct header {
    char magic[8];
    uint64_t key, bytes;
    uint64_t sum; // of the fields before it and of the result
};

static struct header header_of(uint64_t key, const void *data, size_t bytes)
{
    struct header h = {.key = key, .bytes = bytes};
    memcpy(h.magic, MAGIC, sizeof(h.magic));
    h.sum = XXH3_64bits_withSeed(data, bytes, XXH3_64bits(&h, offsetof(struct header, sum)));
    return h;
}

static int set_path(const char *folder, const char *name, uint64_t key, const char *suffix,
                    char path[PATH_BYTES])
{
    int n = snprintf(path, PATH_BYTES, "%s/%016llx.%s%s", folder, (unsigned long long)key, name,
                     suffix);
    return n < PATH_BYTES ? 0 : fail(-ENAMETOOLONG, "the path of a result file is too long");
}

/* A pipe of this name must not hold the start. NULL: there is no such file. */
static FILE *open_regular(const char *path)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    bool regular = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
    FILE *f = regular ? fdopen(fd, "r") : NULL;
    if (fd >= 0 && !f)
        close(fd);
    return f;
}

int result_file_read(const char *folder, const char *name, uint64_t key, void *to, size_t bytes)
{
    char path[PATH_BYTES], more;
    struct header h;
    if (set_path(folder, name, key, "", path) < 0)
        return -ENOENT;
    FILE *f = open_regular(path);
    if (!f)
        return -ENOENT;
    bool whole = fread(&h, sizeof(h), 1, f) == 1 && fread(to, bytes, 1, f) == 1 &&
                 fread(&more, 1, 1, f) == 0;
    fclose(f);
    const struct header wanted = header_of(key, to, whole ? bytes : 0);
    return whole && memcmp(&h, &wanted, sizeof(h)) == 0 ? 0 : -ENOENT;
}

int result_file_write(const char *folder, const char *name, uint64_t key, const void *from,
                      size_t bytes)
{
    char path[PATH_BYTES], new_path[PATH_BYTES];
    char suffix[40];
    const struct header h = header_of(key, from, bytes);
    snprintf(suffix, sizeof(suffix), ".%ld", (long)getpid()); // other services write it, too
    int err = set_path(folder, name, key, "", path);
    if (!err)
        err = set_path(folder, name, key, suffix, new_path);
    if (err < 0)
        return err;
    FILE *f = fopen(new_path, "we");
    if (!f)
        return fail(-errno, "cannot write %s: %m", new_path);
    bool written = fwrite(&h, sizeof(h), 1, f) == 1 && fwrite(from, bytes, 1, f) == 1;
    if (fclose(f) == 0 && written && rename(new_path, path) == 0)
        return 0;
    err = fail(errno ? -errno : -EIO, "cannot write %s: %m", path);
    unlink(new_path);
    return err;
}

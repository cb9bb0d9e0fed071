/* weights_file.c - see weights_file.h. A new file has the suffix .new and is locked until it is
 * complete. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include "base/err.h"
#include "base/rng.h"
#include "model/weights_file.h"

#define MAGIC "tandemW1"
#define CHUNK (1u << 20) // bytes that a thread hashes at a time
#define PATH_BYTES 4096
#define PAGES 4096 // asked about at a time

struct header {
    char magic[8];
    uint64_t source, plan, bytes; // the key
    uint64_t model;               // digest of the model
    uint64_t weights;             // checksum
    uint64_t header;              // checksum of the fields before it
};

struct weights_file {
    struct weights_file_key key;
    char path[PATH_BYTES];
    char new_path[PATH_BYTES]; // "": not a new file
    int fd;
    char *at; // the header
};

void *weights_file_data(const struct weights_file *f)
{
    return f->at + WEIGHTS_FILE_HEADER;
}

static size_t file_bytes(const struct weights_file_key *key)
{
    return WEIGHTS_FILE_HEADER + key->bytes;
}

static int set_path(const char *folder, const struct weights_file_key *key, const char *suffix,
                    char path[PATH_BYTES])
{
    uint64_t name = rng_splitmix64(rng_splitmix64(key->source) ^ key->plan);
    int n = snprintf(path, PATH_BYTES, "%s/%016llx.weights%s", folder, (unsigned long long)name,
                     suffix);
    return n < PATH_BYTES ? 0 : fail(-ENAMETOOLONG, "the path of the weights_cache is too long");
}

/* ---- checksums ---- */

struct sum {
    const char *data;
    size_t bytes;
    _Atomic uint64_t of;
};

static void add_chunks(void *arg, unsigned i, unsigned n)
{
    struct sum *s = arg;
    const size_t n_chunks = (s->bytes + CHUNK - 1) / CHUNK;
    uint64_t sum = 0;
    for (size_t c = n_chunks * i / n; c < n_chunks * (i + 1) / n; c++) {
        size_t from = c * CHUNK, len = s->bytes - from < CHUNK ? s->bytes - from : CHUNK;
        sum += rng_splitmix64(XXH3_64bits(s->data + from, len) ^ rng_splitmix64(c));
    }
    atomic_fetch_add(&s->of, sum);
}

static uint64_t weights_sum(const struct weights_file *f, struct pool *pool)
{
    struct sum s = {.data = weights_file_data(f), .bytes = f->key.bytes};
    pool_run(pool, add_chunks, &s);
    return atomic_load(&s.of);
}

static struct header header_of(const struct weights_file_key *key, uint64_t model, uint64_t weights)
{
    struct header h = {.source = key->source,
                       .plan = key->plan,
                       .bytes = key->bytes,
                       .model = model,
                       .weights = weights};
    memcpy(h.magic, MAGIC, sizeof(h.magic));
    h.header = XXH3_64bits(&h, offsetof(struct header, header));
    return h;
}

/* ---- an existing file ---- */

/* A damaged file would stay in the way of a new one. */
static int discard(const struct weights_file *f)
{
    if (unlink(f->path) < 0 && errno != ENOENT)
        return fail(-errno, "%s is damaged and cannot be deleted: %m", f->path);
    return fail(-ENOENT, "%s was damaged", f->path);
}

static bool has_size(int fd, const struct weights_file_key *key)
{
    struct stat st;
    return fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size == file_bytes(key);
}

static int map_file(struct weights_file *f, int protection)
{
    void *at = mmap(NULL, file_bytes(&f->key), protection, MAP_SHARED, f->fd, 0);
    if (at == MAP_FAILED)
        return fail(-errno, "cannot map %s: %m", f->path);
    f->at = at;
    return 0;
}

static int open_file(const char *folder, const struct weights_file_key *key,
                     struct weights_file **ret)
{
    AUTO(weights_file_free) struct weights_file *f = calloc(1, sizeof(*f));
    if (!f)
        return fail(-ENOMEM, "no memory for a file of weights");
    f->key = *key;
    int err = set_path(folder, key, "", f->path);
    f->fd = err ? -1 : open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (!err && f->fd < 0)
        err = fail(-errno, "cannot open %s: %m", f->path);
    if (!err && !has_size(f->fd, key))
        err = discard(f);
    if (!err)
        err = map_file(f, PROT_READ);
    if (!err)
        *ret = TAKE(f);
    return err;
}

int weights_file_open(const char *folder, const struct weights_file_key *key, struct pool *pool,
                      uint64_t *ret_digest, struct weights_file **ret)
{
    AUTO(weights_file_free) struct weights_file *f = NULL;
    struct header h;
    int err = open_file(folder, key, &f);
    if (err < 0)
        return err;
    memcpy(&h, f->at, sizeof(h));
    const struct header wanted = header_of(key, h.model, weights_sum(f, pool));
    if (memcmp(&h, &wanted, sizeof(h)) != 0)
        return discard(f);
    *ret_digest = h.model;
    *ret = TAKE(f);
    return 0;
}

size_t weights_file_resident(const char *folder, const struct weights_file_key *key)
{
    AUTO(weights_file_free) struct weights_file *f = NULL;
    unsigned char pages[PAGES];
    size_t page = (size_t)sysconf(_SC_PAGESIZE), resident = 0;
    if (open_file(folder, key, &f) < 0)
        return 0;
    for (size_t from = 0, all = file_bytes(key); from < all; from += PAGES * page) {
        size_t len = all - from < PAGES * page ? all - from : PAGES * page;
        if (mincore(f->at + from, len, pages) < 0)
            return 0;
        for (size_t i = 0; i < (len + page - 1) / page; i++)
            resident += pages[i] & 1 ? page : 0;
    }
    return resident < key->bytes ? resident : key->bytes;
}

/* ---- a new file ---- */

/* False: another process has finished or deleted the file between our open() and our lock. */
static bool is_ours(const struct weights_file *f)
{
    struct stat now, locked;
    return access(f->path, F_OK) < 0 && fstat(f->fd, &locked) == 0 &&
           stat(f->new_path, &now) == 0 && now.st_ino == locked.st_ino &&
           now.st_dev == locked.st_dev;
}

static int lock(struct weights_file *f)
{
    int err = flock(f->fd, LOCK_EX | LOCK_NB) < 0 ? errno : 0;
    if (!err && is_ours(f))
        return 0;
    *f->new_path = 0; // nothing to delete
    errno = err;
    return err && err != EWOULDBLOCK ? fail(-err, "cannot lock %s.new: %m", f->path)
                                     : fail(-EBUSY, "another process writes %s", f->path);
}

/* Reserves the file's space, because a write to a mapping would end the process if the disk is
 * full. */
static int reserve(struct weights_file *f)
{
    int err =
        ftruncate(f->fd, 0) < 0 ? errno : posix_fallocate(f->fd, 0, (off_t)file_bytes(&f->key));
    if (err) {
        errno = err;
        return fail(-err, "cannot reserve %zu MiB for %s: %m", file_bytes(&f->key) >> 20, f->path);
    }
    return 0;
}

int weights_file_new(const char *folder, const struct weights_file_key *key,
                     struct weights_file **ret)
{
    AUTO(weights_file_free) struct weights_file *f = calloc(1, sizeof(*f));
    if (!f)
        return fail(-ENOMEM, "no memory for a file of weights");
    f->key = *key;
    f->fd = -1;
    int err = set_path(folder, key, "", f->path);
    if (!err)
        err = set_path(folder, key, ".new", f->new_path);
    if (err < 0)
        return err;
    f->fd = open(f->new_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (f->fd < 0)
        return fail(-errno, "cannot write %s: %m", f->new_path);
    err = lock(f);
    if (!err)
        err = reserve(f);
    if (!err)
        err = map_file(f, PROT_READ | PROT_WRITE);
    if (!err)
        *ret = TAKE(f);
    return err;
}

int weights_file_finish(struct weights_file *f, struct pool *pool, uint64_t digest)
{
    const struct header h = header_of(&f->key, digest, weights_sum(f, pool));
    memcpy(f->at, &h, sizeof(h));
    int err = 0;
    if (mprotect(f->at, file_bytes(&f->key), PROT_READ) < 0)
        err = fail(-errno, "cannot protect %s: %m", f->path);
    else if (rename(f->new_path, f->path) < 0)
        err = fail(-errno, "cannot rename %s: %m", f->new_path);
    if (err)
        unlink(f->new_path); // else others would wait for it as long as this process lives
    *f->new_path = 0;
    return err;
}

void weights_file_free(struct weights_file *f)
{
    if (!f)
        return;
    if (f->at)
        munmap(f->at, file_bytes(&f->key));
    if (*f->new_path && f->fd >= 0)
        unlink(f->new_path);
    if (f->fd >= 0)
        close(f->fd);
    free(f);
}

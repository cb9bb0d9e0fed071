/* gguf.c - opens and maps the parts of a model, finds tensors and metadata by name. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/err.h"
#include "base/log.h"
#include "file/gguf.h"
#include "file/gguf_parse.h"

struct gguf {
    struct gguf_part *parts;
    uint32_t n_parts;
    bool mapped;
    size_t bytes;
    int64_t modified;
    uint32_t n_tensors;
    struct gguf_tensor *tensors;        // of all parts, in the order of the files
    const struct gguf_tensor **by_name; // sorted
};

/* ---- tensors of all parts ---- */

static int name_order(const void *a, const void *b)
{
    return gguf_text_order((*(struct gguf_tensor *const *)a)->name,
                           (*(struct gguf_tensor *const *)b)->name);
}

static int check_names(const struct gguf *g)
{
    char name[96];
    for (uint32_t i = 1; i < g->n_tensors; i++)
        if (name_order(&g->by_name[i - 1], &g->by_name[i]) == 0)
            return fail(
                -EINVAL, "%s: tensor %s stands there twice", g->parts[0].file,
                log_quote(g->by_name[i]->name.data, g->by_name[i]->name.len, name, sizeof(name)));
    return 0;
}

/* Moves the parts' tables into one and sorts it. */
static int join_tensors(struct gguf *g)
{
    uint64_t n = 0;
    for (uint32_t p = 0; p < g->n_parts; p++)
        n += g->parts[p].n_tensors;
    if (n > GGUF_MAX_TENSORS)
        return fail(-EINVAL, "%s: the parts have %llu tensors; the limit is %d", g->parts[0].file,
                    (unsigned long long)n, GGUF_MAX_TENSORS);
    g->tensors = calloc(n + 1, sizeof(*g->tensors));
    g->by_name = calloc(n + 1, sizeof(*g->by_name));
    if (!g->tensors || !g->by_name)
        return fail(-ENOMEM, "%s: no memory for %llu tensors", g->parts[0].file,
                    (unsigned long long)n);
    for (uint32_t p = 0; p < g->n_parts; p++) {
        struct gguf_part *part = &g->parts[p];
        for (uint32_t i = 0; i < part->n_tensors; i++)
            g->tensors[g->n_tensors++] = part->tensors[i];
        free(TAKE(part->tensors));
    }
    for (uint32_t i = 0; i < g->n_tensors; i++)
        g->by_name[i] = &g->tensors[i];
    qsort(g->by_name, g->n_tensors, sizeof(*g->by_name), name_order);
    return check_names(g);
}

/* ---- files ---- */

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
}

static int map_file(struct gguf *g, struct gguf_part *part)
{
    struct stat st;
    // O_NONBLOCK: a fifo in the way must not hang us
    __attribute__((cleanup(close_fd))) int fd = open(part->file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) < 0)
        return fail(-errno, "cannot open %s: %m", part->file);
    if (!S_ISREG(st.st_mode))
        return fail(-EINVAL, "%s: not a regular file", part->file);
    if (st.st_size == 0)
        return fail(-EINVAL, "%s: empty", part->file);
    void *data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED)
        return fail(-errno, "cannot map %s: %m", part->file);
    part->data = data;
    part->len = (size_t)st.st_size;
    g->bytes += part->len;
    if (st.st_mtime > g->modified)
        g->modified = st.st_mtime;
    return gguf_parse(part);
}

static int add_part(struct gguf *g, const char *file)
{
    struct gguf_part *part = &g->parts[g->n_parts++];
    part->file = strdup(file);
    if (!part->file)
        return fail(-ENOMEM, "%s: no memory", file);
    return map_file(g, part);
}

static int new_with_parts(uint32_t n, struct gguf **ret)
{
    AUTO(gguf_close) struct gguf *g = calloc(1, sizeof(*g));
    if (!g || !(g->parts = calloc(n, sizeof(*g->parts))))
        return fail(-ENOMEM, "gguf: no memory for %u parts", n);
    *ret = TAKE(g);
    return 0;
}

/* ---- split files ---- */

/* split.count and split.no; 1 and 0 for a file that is not split. */
static int split_of(const struct gguf_part *part, uint64_t *ret_count, uint64_t *ret_no)
{
    *ret_count = 1;
    *ret_no = 0;
    int r = gguf_key_u64(part, "split.count", ret_count);
    if (r < 0 && r != -ENOENT)
        return r;
    r = gguf_key_u64(part, "split.no", ret_no);
    if (r < 0 && r != -ENOENT)
        return r;
    if (*ret_count > GGUF_MAX_SPLITS)
        return fail(-EINVAL, "%s: split.count is %llu; the limit is %d", part->file,
                    (unsigned long long)*ret_count, GGUF_MAX_SPLITS);
    if (*ret_count == 0) // some writers' way to say "not split"
        *ret_count = 1;
    return 0;
}

/* "dir/name-00001-of-00004.gguf" -> the name of part no (from 0); -EINVAL: not such a name. */
static int part_path(const char *first, uint32_t no, uint32_t count, char *out, size_t size)
{
    char tail[64];
    snprintf(tail, sizeof(tail), "-00001-of-%05u.gguf", count);
    size_t len = strlen(first), tail_len = strlen(tail);
    if (len < tail_len || strcmp(first + len - tail_len, tail) != 0)
        return fail(-EINVAL, "%s: part 1 of %u, but its name does not end in %s", first, count,
                    tail);
    if ((size_t)snprintf(out, size, "%.*s-%05u-of-%05u.gguf", (int)(len - tail_len), first, no + 1,
                         count) >= size)
        return fail(-ENAMETOOLONG, "%s: the name is too long", first);
    return 0;
}

static int check_part(const struct gguf_part *part, uint64_t count, uint64_t no)
{
    uint64_t its_count, its_no;
    int r = split_of(part, &its_count, &its_no);
    if (r < 0)
        return r;
    if (its_count != count || its_no != no)
        return fail(-EINVAL, "%s: says it is part %llu of %llu, not %llu of %llu", part->file,
                    (unsigned long long)its_no + 1, (unsigned long long)its_count,
                    (unsigned long long)no + 1, (unsigned long long)count);
    return 0;
}

/* The first part says how many tensors all have together; a mixture of two models shows here. */
static int check_total(const struct gguf *g)
{
    uint64_t total;
    int r = gguf_key_u64(&g->parts[0], "split.tensors.count", &total);
    if (r == -ENOENT)
        return 0;
    if (r == 0 && total != g->n_tensors)
        return fail(-EINVAL, "%s: the parts have %u tensors, but split.tensors.count is %llu",
                    g->parts[0].file, g->n_tensors, (unsigned long long)total);
    return r;
}

static int open_others(struct gguf *g, uint32_t count)
{
    char path[4096];
    struct gguf_part *parts = reallocarray(g->parts, count, sizeof(*parts));
    if (!parts)
        return fail(-ENOMEM, "gguf: no memory for %u parts", count);
    memset(parts + 1, 0, (count - 1) * sizeof(*parts));
    g->parts = parts;
    for (uint32_t no = 1; no < count; no++) {
        int r = part_path(parts[0].file, no, count, path, sizeof(path));
        if (r < 0 || (r = add_part(g, path)) < 0)
            return r;
        if ((r = check_part(&parts[no], count, no)) < 0)
            return r;
    }
    return 0;
}

/* ---- opening ---- */

int gguf_open(const char *path, struct gguf **ret)
{
    uint64_t count, no;
    AUTO(gguf_close) struct gguf *g = NULL;
    int r = new_with_parts(1, &g);
    if (r < 0)
        return r;
    g->mapped = true;
    if ((r = add_part(g, path)) < 0 || (r = split_of(&g->parts[0], &count, &no)) < 0)
        return r;
    if (no != 0)
        return fail(-EINVAL, "%s: part %llu of a split model; open the first part", path,
                    (unsigned long long)no + 1);
    if (count > 1 && (r = open_others(g, (uint32_t)count)) < 0)
        return r;
    if ((r = join_tensors(g)) < 0)
        return r;
    if (count > 1 && (r = check_total(g)) < 0)
        return r;
    *ret = TAKE(g);
    return 0;
}

int gguf_open_memory(const void *data, size_t len, struct gguf **ret)
{
    uint64_t count, no;
    AUTO(gguf_close) struct gguf *g = NULL;
    int r = new_with_parts(1, &g);
    if (r < 0)
        return r;
    g->n_parts = 1;
    g->bytes = len;
    g->parts[0] = (struct gguf_part){.file = "(memory)", .data = data, .len = len};
    if ((r = gguf_parse(&g->parts[0])) < 0 || (r = split_of(&g->parts[0], &count, &no)) < 0)
        return r;
    if (count != 1 || no != 0)
        return fail(-EINVAL, "(memory): one part of a split model");
    if ((r = join_tensors(g)) < 0)
        return r;
    *ret = TAKE(g);
    return 0;
}

void gguf_close(struct gguf *g)
{
    if (!g)
        return;
    for (uint32_t p = 0; p < g->n_parts; p++) {
        struct gguf_part *part = &g->parts[p];
        gguf_part_done(part);
        if (g->mapped) {
            if (part->data)
                munmap((void *)part->data, part->len);
            free((void *)part->file);
        }
    }
    free(g->parts);
    free(g->tensors);
    free(g->by_name);
    free(g);
}

/* ---- tensors ---- */

uint32_t gguf_n_tensors(const struct gguf *g)
{
    return g->n_tensors;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, uint32_t i)
{
    assert(i < g->n_tensors);
    return &g->tensors[i];
}

const struct gguf_tensor *gguf_find(const struct gguf *g, const char *name)
{
    const struct gguf_tensor wanted = {.name = {name, strlen(name)}}, *key = &wanted;
    const struct gguf_tensor **found =
        bsearch(&key, g->by_name, g->n_tensors, sizeof(*g->by_name), name_order);
    return found ? *found : NULL;
}

size_t gguf_bytes(const struct gguf *g)
{
    return g->bytes;
}

int64_t gguf_modified(const struct gguf *g)
{
    return g->modified;
}

void gguf_advise(const struct gguf *g, const void *at, size_t bytes, bool needed)
{
    if (!g->mapped)
        return;
    // DONTNEED only for whole pages: the ends are shared with what lies beside.
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)at, to = from + bytes;
    from = needed ? from & ~(page - 1) : (from + page - 1) & ~(page - 1);
    if (!needed)
        to &= ~(page - 1);
    if (to > from)
        madvise((void *)from, to - from, needed ? MADV_WILLNEED : MADV_DONTNEED);
}

/* ---- metadata ---- */

static const struct gguf_key *key_of(const struct gguf *g, const char *key)
{
    return gguf_part_key(&g->parts[0], key);
}

static int wrong_kind(const struct gguf *g, const char *key, const struct gguf_key *k,
                      const char *wanted)
{
    return fail(-EINVAL, "%s: %s is of kind %s, not %s", g->parts[0].file, key,
                gguf_kind_name(k->kind), wanted);
}

int gguf_u64(const struct gguf *g, const char *key, uint64_t *ret)
{
    return gguf_key_u64(&g->parts[0], key, ret);
}

int gguf_u32(const struct gguf *g, const char *key, uint32_t *ret)
{
    uint64_t value;
    int r = gguf_u64(g, key, &value);
    if (r < 0)
        return r;
    if (value > UINT32_MAX)
        return fail(-EINVAL, "%s: %s is %llu, more than 32 bits hold", g->parts[0].file, key,
                    (unsigned long long)value);
    *ret = (uint32_t)value;
    return 0;
}

int gguf_float(const struct gguf *g, const char *key, float *ret)
{
    const struct gguf_key *k = key_of(g, key);
    if (!k)
        return -ENOENT;
    if (k->kind != GGUF_FLOAT32 && k->kind != GGUF_FLOAT64)
        return wrong_kind(g, key, k, "a float");
    float value = (float)gguf_load_float(k->kind, k->value);
    if (!isfinite(value))
        return fail(-EINVAL, "%s: %s is not a finite number", g->parts[0].file, key);
    *ret = value;
    return 0;
}

int gguf_bool(const struct gguf *g, const char *key, bool *ret)
{
    const struct gguf_key *k = key_of(g, key);
    if (!k)
        return -ENOENT;
    if (k->kind != GGUF_BOOL)
        return wrong_kind(g, key, k, "a bool");
    *ret = *k->value != 0;
    return 0;
}

int gguf_str(const struct gguf *g, const char *key, struct gguf_text *ret)
{
    const struct gguf_key *k = key_of(g, key);
    if (!k)
        return -ENOENT;
    if (k->kind != GGUF_STRING)
        return wrong_kind(g, key, k, "a string");
    *ret = (struct gguf_text){(const char *)k->value, k->n};
    return 0;
}

int gguf_array(const struct gguf *g, const char *key, struct gguf_array *ret)
{
    const struct gguf_key *k = key_of(g, key);
    if (!k)
        return -ENOENT;
    if (k->kind != GGUF_ARRAY)
        return wrong_kind(g, key, k, "an array");
    *ret = (struct gguf_array){.kind = k->item, .n = k->n, .items = k->value, .index = k->index};
    return 0;
}

struct gguf_text gguf_array_text(const struct gguf_array *a, uint64_t i)
{
    assert(a->kind == GGUF_STRING && i < a->n);
    const uint8_t *at = (const uint8_t *)a->items + a->index[i];
    uint64_t len;
    memcpy(&len, at, sizeof(len));
    return (struct gguf_text){(const char *)at + sizeof(len), len};
}

int64_t gguf_array_int(const struct gguf_array *a, uint64_t i)
{
    assert((gguf_is_int(a->kind) || a->kind == GGUF_BOOL) && i < a->n);
    return gguf_load_int(a->kind, (const uint8_t *)a->items + i * gguf_kind_bytes(a->kind));
}

double gguf_array_float(const struct gguf_array *a, uint64_t i)
{
    assert((a->kind == GGUF_FLOAT32 || a->kind == GGUF_FLOAT64) && i < a->n);
    return gguf_load_float(a->kind, (const uint8_t *)a->items + i * gguf_kind_bytes(a->kind));
}

/* checkpoint.c - opens a model file in the format that its first bytes name, and reads it. */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "base/log.h"
#include "file/checkpoint_format.h"
#include "file/gguf.h"

static const struct checkpoint_format *const formats[] = {&gguf_format};

/* ---- opening ---- */

static const struct checkpoint_format *find_format(const struct file_reader *file)
{
    for (size_t i = 0; i < ARRAY_LEN(formats); i++)
        if (memcmp(file->head, formats[i]->magic, 4) == 0)
            return formats[i];
    return NULL;
}

static int open_file(const char *path, struct file_reader *file, struct checkpoint **ret)
{
    int r = file->len < 4 ? 0 : file_reader_extend(file, path, 4);
    const struct checkpoint_format *format = file->len < 4 || r < 0 ? NULL : find_format(file);
    if (format)
        return format->open(path, file, ret);
    file_reader_close(file);
    if (r < 0)
        return r;
    return fail(-EINVAL, "%s: not a GGUF file (it does not begin with GGUF)", path);
}

int checkpoint_open(const char *path, struct checkpoint **ret)
{
    struct file_reader file;
    int r = file_reader_open(path, &file);
    return r < 0 ? r : open_file(path, &file, ret);
}

int checkpoint_open_memory(const void *data, size_t len, struct checkpoint **ret)
{
    struct file_reader file = {.head = data, .n_head = len, .len = len};
    return open_file("(memory)", &file, ret);
}

void checkpoint_close(struct checkpoint *c)
{
    if (!c)
        return;
    free(c->tensors);
    free(c->by_name);
    c->format->close(c);
}

char *checkpoint_model_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *name = strdup(slash ? slash + 1 : path);
    char *dot = name ? strrchr(name, '.') : NULL;
    for (size_t i = 0; dot && dot != name && i < ARRAY_LEN(formats); i++)
        if (strcmp(dot, formats[i]->suffix) == 0)
            *dot = 0;
    return name;
}

const char *checkpoint_path(const struct checkpoint *c)
{
    return c->path;
}

int64_t checkpoint_modified(const struct checkpoint *c)
{
    return c->modified;
}

uint64_t checkpoint_identity(const struct checkpoint *c)
{
    return c->identity;
}

uint64_t checkpoint_head_digest(const struct checkpoint *c)
{
    return c->head_digest;
}

/* ---- tensors ---- */

static int name_order(const void *a, const void *b)
{
    const struct span x = (*(struct checkpoint_tensor *const *)a)->name;
    const struct span y = (*(struct checkpoint_tensor *const *)b)->name;
    int order = memcmp(x.data, y.data, x.len < y.len ? x.len : y.len);
    return order ? order : (x.len > y.len) - (x.len < y.len);
}

int checkpoint_index(struct checkpoint *c)
{
    char name[96];
    c->by_name = calloc(c->n_tensors + 1, sizeof(*c->by_name));
    if (!c->by_name)
        return fail(-ENOMEM, "%s: no memory for %u tensors", c->path, c->n_tensors);
    for (uint32_t i = 0; i < c->n_tensors; i++)
        c->by_name[i] = &c->tensors[i];
    qsort(c->by_name, c->n_tensors, sizeof(*c->by_name), name_order);
    for (uint32_t i = 1; i < c->n_tensors; i++)
        if (name_order(&c->by_name[i - 1], &c->by_name[i]) == 0)
            return fail(
                -EINVAL, "%s: two tensors have the name %s", c->path,
                log_quote(c->by_name[i]->name.data, c->by_name[i]->name.len, name, sizeof(name)));
    return 0;
}

const struct checkpoint_tensor *checkpoint_find_name(const struct checkpoint *c, const char *name)
{
    const struct checkpoint_tensor wanted = {.name = {name, strlen(name)}}, *key = &wanted;
    const struct checkpoint_tensor **found =
        bsearch(&key, c->by_name, c->n_tensors, sizeof(*c->by_name), name_order);
    return found ? *found : NULL;
}

const char *checkpoint_role_name(const struct checkpoint *c, enum checkpoint_role role,
                                 uint32_t layer)
{
    static _Thread_local char name[128];
    c->format->role_name(role, layer, name, sizeof(name));
    return name;
}

const struct checkpoint_tensor *checkpoint_find(const struct checkpoint *c,
                                                enum checkpoint_role role, uint32_t layer)
{
    return checkpoint_find_name(c, checkpoint_role_name(c, role, layer));
}

uint32_t checkpoint_n_tensors(const struct checkpoint *c)
{
    return c->n_tensors;
}

const struct checkpoint_tensor *checkpoint_tensor_at(const struct checkpoint *c, uint32_t i)
{
    assert(i < c->n_tensors);
    return &c->tensors[i];
}

int checkpoint_read(const struct checkpoint *c, const struct checkpoint_tensor *t, uint64_t from,
                    size_t n, void *to)
{
    assert(from <= t->bytes && n <= t->bytes - from);
    const char *path;
    const struct file_reader *file = c->format->file(c, t, &path);
    return file_reader_read(file, path, t->offset + from, n, to);
}

void checkpoint_prefetch(const struct checkpoint *c, const struct checkpoint_tensor *t)
{
    const char *path;
    file_reader_prefetch(c->format->file(c, t, &path), t->offset, t->bytes);
}

/* ---- parameters ---- */

const char *checkpoint_key_name(const struct checkpoint *c, const char *key)
{
    static _Thread_local char name[192];
    c->format->key_name(c, key, name, sizeof(name));
    return name;
}

static bool find_value(const struct checkpoint *c, const char *key, struct checkpoint_value *ret)
{
    return c->format->value(c, checkpoint_key_name(c, key), ret);
}

static int wrong_kind(const struct checkpoint *c, const char *key, const struct checkpoint_value *v,
                      const char *wanted)
{
    return fail(-EINVAL, "%s: %s is of kind %s, not %s", c->path, checkpoint_key_name(c, key),
                v->kind_name, wanted);
}

int checkpoint_u64(const struct checkpoint *c, const char *key, uint64_t *ret)
{
    struct checkpoint_value v;
    if (!find_value(c, key, &v))
        return -ENOENT;
    if (v.kind == CHECKPOINT_NEGATIVE)
        return fail(-EINVAL, "%s: %s is negative (%lld)", c->path, checkpoint_key_name(c, key),
                    (long long)v.integer);
    if (v.kind != CHECKPOINT_UNSIGNED)
        return wrong_kind(c, key, &v, "a whole number");
    *ret = v.integer;
    return 0;
}

int checkpoint_u32(const struct checkpoint *c, const char *key, uint32_t *ret)
{
    uint64_t value;
    int r = checkpoint_u64(c, key, &value);
    if (r < 0)
        return r;
    if (value > UINT32_MAX)
        return fail(-EINVAL, "%s: %s is %llu; the limit is %u", c->path,
                    checkpoint_key_name(c, key), (unsigned long long)value, UINT32_MAX);
    *ret = (uint32_t)value;
    return 0;
}

int checkpoint_float(const struct checkpoint *c, const char *key, float *ret)
{
    struct checkpoint_value v;
    if (!find_value(c, key, &v))
        return -ENOENT;
    if (v.kind != CHECKPOINT_FLOAT)
        return wrong_kind(c, key, &v, "a float");
    float value = (float)v.number;
    if (!isfinite(value))
        return fail(-EINVAL, "%s: %s is not a finite number", c->path, checkpoint_key_name(c, key));
    *ret = value;
    return 0;
}

int checkpoint_bool(const struct checkpoint *c, const char *key, bool *ret)
{
    struct checkpoint_value v;
    if (!find_value(c, key, &v))
        return -ENOENT;
    if (v.kind != CHECKPOINT_BOOL)
        return wrong_kind(c, key, &v, "a bool");
    *ret = v.integer != 0;
    return 0;
}

int checkpoint_text(const struct checkpoint *c, const char *key, struct span *ret)
{
    struct checkpoint_value v;
    if (!find_value(c, key, &v))
        return -ENOENT;
    if (v.kind != CHECKPOINT_TEXT)
        return wrong_kind(c, key, &v, "a string");
    *ret = v.text;
    return 0;
}

/* ---- arrays ---- */

int checkpoint_array(const struct checkpoint *c, const char *key, struct checkpoint_array *ret)
{
    struct checkpoint_value v;
    if (!find_value(c, key, &v))
        return -ENOENT;
    if (v.kind != CHECKPOINT_ARRAY)
        return wrong_kind(c, key, &v, "an array");
    *ret = v.array;
    return 0;
}

struct span checkpoint_array_text(const struct checkpoint_array *a, uint64_t i)
{
    assert(a->items == CHECKPOINT_TEXTS && i < a->n);
    const char *at = (const char *)a->data + a->index[i];
    uint64_t len;
    memcpy(&len, at, sizeof(len));
    return (struct span){at + sizeof(len), len};
}

int64_t checkpoint_array_int(const struct checkpoint_array *a, uint64_t i)
{
    assert(a->items == CHECKPOINT_INTS && i < a->n);
    uint64_t value = 0;
    memcpy(&value, (const char *)a->data + i * a->width, a->width);
    unsigned unused = 64 - 8 * a->width; // upper bits
    return a->is_signed ? (int64_t)(value << unused) >> unused : (int64_t)value;
}

double checkpoint_array_float(const struct checkpoint_array *a, uint64_t i)
{
    assert(a->items == CHECKPOINT_FLOATS && i < a->n);
    const char *at = (const char *)a->data + i * a->width;
    float single;
    double value;
    if (a->width == sizeof(value)) {
        memcpy(&value, at, sizeof(value));
        return value;
    }
    memcpy(&single, at, sizeof(single));
    return (double)single;
}

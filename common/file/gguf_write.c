/* gguf_write.c - writes GGUF v3 files in one pass. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/buf.h"
#include "base/err.h"
#include "file/gguf_parse.h"
#include "file/gguf_write.h"

struct gguf_write {
    struct buf keys, table; // as in the file
    uint64_t n_keys, n_tensors;
    uint32_t alignment;
    struct buf sizes;      // uint64_t: bytes of each tensor
    uint64_t offset;       // of the next tensor's weights
    int error;             // the first one in keys and tensors
    FILE *file;            // from gguf_write_head() on
    uint64_t tensor, done; // the tensor being written, and its bytes so far
};

int gguf_write_new(struct gguf_write **ret)
{
    struct gguf_write *w = calloc(1, sizeof(*w));
    if (!w)
        return fail(-ENOMEM, "gguf: no memory to write");
    buf_init(&w->keys, GGUF_WRITE_MAX_HEAD);
    buf_init(&w->table, GGUF_WRITE_MAX_HEAD);
    buf_init(&w->sizes, GGUF_WRITE_MAX_HEAD);
    w->alignment = GGUF_ALIGNMENT;
    *ret = w;
    return 0;
}

void gguf_write_free(struct gguf_write *w)
{
    if (!w)
        return;
    buf_done(&w->keys);
    buf_done(&w->table);
    buf_done(&w->sizes);
    free(w);
}

/* ---- keys ---- */

static void put_u32(struct buf *b, uint32_t value)
{
    buf_add(b, &value, sizeof(value));
}

static void put_u64(struct buf *b, uint64_t value)
{
    buf_add(b, &value, sizeof(value));
}

static void put_text(struct buf *b, const char *text, size_t len)
{
    put_u64(b, len);
    buf_add(b, text, len);
}

static void put_key(struct gguf_write *w, const char *key, enum gguf_kind kind)
{
    put_text(&w->keys, key, strlen(key));
    put_u32(&w->keys, kind);
    w->n_keys++;
}

void gguf_write_int(struct gguf_write *w, const char *key, enum gguf_kind kind, int64_t value)
{
    assert(gguf_is_int(kind) || kind == GGUF_BOOL);
    put_key(w, key, kind);
    buf_add(&w->keys, &value, gguf_kind_bytes(kind)); // little-endian: the low bytes
}

void gguf_write_float(struct gguf_write *w, const char *key, float value)
{
    put_key(w, key, GGUF_FLOAT32);
    buf_add(&w->keys, &value, sizeof(value));
}

void gguf_write_text(struct gguf_write *w, const char *key, const char *text, size_t len)
{
    put_key(w, key, GGUF_STRING);
    put_text(&w->keys, text, len);
}

static void put_array(struct gguf_write *w, const char *key, enum gguf_kind kind, uint64_t n)
{
    put_key(w, key, GGUF_ARRAY);
    put_u32(&w->keys, kind);
    put_u64(&w->keys, n);
}

void gguf_write_array(struct gguf_write *w, const char *key, enum gguf_kind kind, const void *items,
                      uint64_t n)
{
    assert(gguf_kind_bytes(kind) > 0);
    put_array(w, key, kind, n);
    buf_add(&w->keys, items, n * gguf_kind_bytes(kind));
}

void gguf_write_texts(struct gguf_write *w, const char *key, const struct span *items, uint64_t n)
{
    put_array(w, key, GGUF_STRING, n);
    for (uint64_t i = 0; i < n; i++)
        put_text(&w->keys, items[i].data, items[i].len);
}

void gguf_write_alignment(struct gguf_write *w, uint32_t alignment)
{
    assert(w->n_tensors == 0);
    w->alignment = alignment;
    gguf_write_int(w, "general.alignment", GGUF_U32, alignment);
}

/* ---- tensors ---- */

static uint64_t gap_after(const struct gguf_write *w, uint64_t at)
{
    return -at & (w->alignment - 1);
}

static int bytes_of(const char *name, enum gguf_type type, uint32_t n_dims, const uint64_t *shape,
                    uint64_t *ret)
{
    uint32_t block_weights, block_bytes;
    int r = gguf_type_block(type, &block_weights, &block_bytes);
    if (r < 0)
        return r;
    uint64_t n = 1;
    for (uint32_t d = 0; d < n_dims; d++)
        if (shape[d] == 0 || __builtin_mul_overflow(n, shape[d], &n))
            return fail(-EINVAL, "gguf: tensor %s has a size of 0, or of more than 64 bits", name);
    if (shape[0] % block_weights != 0)
        return fail(-EINVAL, "gguf: tensor %s has rows of %llu weights; %s needs multiples of %u",
                    name, (unsigned long long)shape[0], gguf_type_name(type), block_weights);
    if (__builtin_mul_overflow(n / block_weights, block_bytes, ret) || *ret > SIZE_MAX / 4)
        return fail(-EINVAL, "gguf: tensor %s has more bytes than 62 bits can count", name);
    return 0;
}

void gguf_write_tensor(struct gguf_write *w, const char *name, enum gguf_type type, uint32_t n_dims,
                       const uint64_t *shape)
{
    uint64_t bytes = 0;
    assert(n_dims >= 1 && n_dims <= CHECKPOINT_MAX_DIMS);
    int r = bytes_of(name, type, n_dims, shape, &bytes);
    if (r < 0 && w->error == 0)
        w->error = r;
    if (w->error < 0)
        return;
    put_text(&w->table, name, strlen(name));
    put_u32(&w->table, n_dims);
    for (uint32_t d = 0; d < n_dims; d++)
        put_u64(&w->table, shape[d]);
    put_u32(&w->table, type);
    put_u64(&w->table, w->offset);
    put_u64(&w->sizes, bytes);
    w->n_tensors++;
    w->offset += bytes + gap_after(w, bytes);
}

/* ---- writing ---- */

static int write_bytes(struct gguf_write *w, const void *data, size_t len)
{
    if (len > 0 && fwrite(data, 1, len, w->file) != len)
        return fail(errno ? -errno : -EIO, "gguf: cannot write: %m");
    return 0;
}

static int put_gap(struct gguf_write *w, uint64_t at)
{
    static const uint8_t zeros[GGUF_MAX_ALIGNMENT];
    return write_bytes(w, zeros, gap_after(w, at));
}

int gguf_write_head(struct gguf_write *w, FILE *file)
{
    struct {
        char magic[4];
        uint32_t version;
        uint64_t n_tensors, n_keys;
    } start = {{'G', 'G', 'U', 'F'}, 3, w->n_tensors, w->n_keys};
    int r = w->error;
    if (r < 0 || (r = buf_error(&w->keys)) < 0 || (r = buf_error(&w->table)) < 0 ||
        (r = buf_error(&w->sizes)) < 0)
        return r;
    w->file = file;
    if ((r = write_bytes(w, &start, sizeof(start))) < 0 ||
        (r = write_bytes(w, w->keys.data, w->keys.len)) < 0 ||
        (r = write_bytes(w, w->table.data, w->table.len)) < 0)
        return r;
    return put_gap(w, sizeof(start) + w->keys.len + w->table.len);
}

static uint64_t size_of(const struct gguf_write *w, uint64_t tensor)
{
    uint64_t bytes;
    memcpy(&bytes, w->sizes.data + tensor * sizeof(bytes), sizeof(bytes));
    return bytes;
}

int gguf_write_data(struct gguf_write *w, const void *data, size_t len)
{
    const char *at = data;
    assert(w->file);
    while (len > 0) {
        if (w->tensor == w->n_tensors)
            return fail(-EINVAL, "gguf: %zu bytes more than the tensors hold", len);
        uint64_t bytes = size_of(w, w->tensor);
        size_t n = len < bytes - w->done ? len : bytes - w->done;
        int r = write_bytes(w, at, n);
        if (r < 0)
            return r;
        at += n;
        len -= n;
        w->done += n;
        if (w->done < bytes)
            continue;
        if ((r = put_gap(w, bytes)) < 0)
            return r;
        w->tensor++;
        w->done = 0;
    }
    return 0;
}

int gguf_write_end(struct gguf_write *w)
{
    if (w->tensor < w->n_tensors)
        return fail(-EINVAL, "gguf: the weights of tensor %llu of %llu are missing",
                    (unsigned long long)w->tensor + 1, (unsigned long long)w->n_tensors);
    if (fflush(w->file) != 0)
        return fail(-errno, "gguf: cannot write: %m");
    return 0;
}

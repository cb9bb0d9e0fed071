/* gguf_parse.c - reads and checks the header of one part.
 *
 * Layout: magic, version, number of tensors and keys; the keys; the tensor table; padding to the
 * alignment; the weights. Numbers are little-endian, texts are a u64 length and bytes. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "base/log.h"
#include "file/gguf_parse.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "GGUF is read in place: little-endian machines only"
#endif

struct cursor {
    const char *file; // for error texts
    struct file_reader *from;
    const uint8_t *data;
    size_t len, at;
};

#define QUOTED 96 // bytes of a quoted name in an error text

static const char *quote(struct span text, char out[QUOTED])
{
    return log_quote(text.data, text.len, out, QUOTED);
}

/* ---- kinds ---- */

static const struct {
    const char *name;
    unsigned bytes;
} kinds[] = {
    [GGUF_U8] = {"u8", 1},       [GGUF_I8] = {"i8", 1},     [GGUF_U16] = {"u16", 2},
    [GGUF_I16] = {"i16", 2},     [GGUF_U32] = {"u32", 4},   [GGUF_I32] = {"i32", 4},
    [GGUF_FLOAT32] = {"f32", 4}, [GGUF_BOOL] = {"bool", 1}, [GGUF_STRING] = {"string", 0},
    [GGUF_ARRAY] = {"array", 0}, [GGUF_U64] = {"u64", 8},   [GGUF_I64] = {"i64", 8},
    [GGUF_FLOAT64] = {"f64", 8},
};

unsigned gguf_kind_bytes(enum gguf_kind kind)
{
    return kinds[kind].bytes;
}

const char *gguf_kind_name(enum gguf_kind kind)
{
    return kinds[kind].name;
}

bool gguf_is_int(enum gguf_kind kind)
{
    return kind <= GGUF_I32 || kind == GGUF_U64 || kind == GGUF_I64;
}

bool gguf_is_signed(enum gguf_kind kind)
{
    return kind == GGUF_I8 || kind == GGUF_I16 || kind == GGUF_I32 || kind == GGUF_I64;
}

#define LOAD(type)                                                                                 \
    ({                                                                                             \
        type value_;                                                                               \
        memcpy(&value_, at, sizeof(value_));                                                       \
        value_;                                                                                    \
    })

int64_t gguf_load_int(enum gguf_kind kind, const uint8_t *at)
{
    switch (kind) {
    case GGUF_BOOL:
    case GGUF_U8:
        return *at;
    case GGUF_I8:
        return (int8_t)*at;
    case GGUF_U16:
        return LOAD(uint16_t);
    case GGUF_I16:
        return LOAD(int16_t);
    case GGUF_U32:
        return LOAD(uint32_t);
    case GGUF_I32:
        return LOAD(int32_t);
    default:
        return LOAD(int64_t);
    }
}

double gguf_load_float(enum gguf_kind kind, const uint8_t *at)
{
    return kind == GGUF_FLOAT32 ? (double)LOAD(float) : LOAD(double);
}

/* ---- taking bytes ---- */

static int take_bytes(struct cursor *c, uint64_t n, const char *what, const uint8_t **ret)
{
    if (n > c->len - c->at)
        return fail(-EINVAL, "%s: cut short: %s at byte %zu needs %llu bytes, %zu are left",
                    c->file, what, c->at, (unsigned long long)n, c->len - c->at);
    int r = file_reader_extend(c->from, c->file, c->at + n);
    if (r < 0)
        return r;
    *ret = c->data + c->at;
    c->at += n;
    return 0;
}

static int take_u32(struct cursor *c, const char *what, uint32_t *ret)
{
    const uint8_t *at = NULL;
    *ret = 0;
    int r = take_bytes(c, sizeof(*ret), what, &at);
    if (r == 0)
        memcpy(ret, at, sizeof(*ret));
    return r;
}

static int take_u64(struct cursor *c, const char *what, uint64_t *ret)
{
    const uint8_t *at = NULL;
    *ret = 0;
    int r = take_bytes(c, sizeof(*ret), what, &at);
    if (r == 0)
        memcpy(ret, at, sizeof(*ret));
    return r;
}

static int take_text(struct cursor *c, const char *what, uint64_t max, struct span *ret)
{
    uint64_t len;
    const uint8_t *at = NULL;
    int r = take_u64(c, what, &len);
    if (r < 0)
        return r;
    if (len > max)
        return fail(-EINVAL, "%s: %s at byte %zu has %llu bytes; the limit is %llu", c->file, what,
                    c->at, (unsigned long long)len, (unsigned long long)max);
    r = take_bytes(c, len, what, &at);
    if (r == 0)
        *ret = (struct span){(const char *)at, len};
    return r;
}

static int take_name(struct cursor *c, const char *what, struct span *ret)
{
    int r = take_text(c, what, GGUF_MAX_NAME, ret);
    if (r == 0 && (ret->len == 0 || memchr(ret->data, 0, ret->len)))
        return fail(-EINVAL, "%s: %s before byte %zu is empty or has a NUL in it", c->file, what,
                    c->at);
    return r;
}

/* ---- order by name ---- */

static int text_order(struct span a, struct span b)
{
    int order = memcmp(a.data, b.data, a.len < b.len ? a.len : b.len);
    if (order != 0)
        return order;
    return (a.len > b.len) - (a.len < b.len);
}

static int key_order(const void *a, const void *b)
{
    return text_order(((const struct gguf_key *)a)->name, ((const struct gguf_key *)b)->name);
}

static int sort_keys(struct gguf_part *part)
{
    char name[QUOTED];
    if (part->n_keys > 0)
        qsort(part->keys, part->n_keys, sizeof(*part->keys), key_order);
    for (uint32_t i = 1; i < part->n_keys; i++)
        if (key_order(&part->keys[i - 1], &part->keys[i]) == 0)
            return fail(-EINVAL, "%s: two keys have the name %s", part->path,
                        quote(part->keys[i].name, name));
    return 0;
}

const struct gguf_key *gguf_part_key(const struct gguf_part *part, const char *name)
{
    struct gguf_key wanted = {.name = {name, strlen(name)}};
    if (part->n_keys == 0)
        return NULL;
    return bsearch(&wanted, part->keys, part->n_keys, sizeof(wanted), key_order);
}

int gguf_key_u64(const struct gguf_part *part, const char *name, uint64_t *ret)
{
    const struct gguf_key *k = gguf_part_key(part, name);
    if (!k)
        return -ENOENT;
    if (!gguf_is_int(k->kind))
        return fail(-EINVAL, "%s: %s is of kind %s, not a whole number", part->path, name,
                    gguf_kind_name(k->kind));
    int64_t value = gguf_load_int(k->kind, k->value);
    if (value < 0 && k->kind != GGUF_U64)
        return fail(-EINVAL, "%s: %s is negative (%lld)", part->path, name, (long long)value);
    *ret = (uint64_t)value;
    return 0;
}

/* ---- keys and their values ---- */

static int take_kind(struct cursor *c, const char *what, enum gguf_kind *ret)
{
    uint32_t kind;
    int r = take_u32(c, what, &kind);
    if (r < 0)
        return r;
    if (kind > GGUF_FLOAT64)
        return fail(-EINVAL, "%s: %s before byte %zu is %u; there are kinds 0 to %d", c->file, what,
                    c->at, kind, GGUF_FLOAT64);
    *ret = (enum gguf_kind)kind;
    return 0;
}

/* Builds the table of the texts' offsets, which the file does not have. */
static int take_texts(struct cursor *c, struct gguf_key *k)
{
    // Each text has 8 bytes of length: the file's size bounds the table.
    if (k->n > (c->len - c->at) / sizeof(uint64_t))
        return fail(-EINVAL, "%s: cut short: an array of %llu texts does not fit into %zu bytes",
                    c->file, (unsigned long long)k->n, c->len - c->at);
    k->index = malloc((k->n + !k->n) * sizeof(*k->index));
    if (!k->index)
        return fail(-ENOMEM, "%s: no memory for %llu texts", c->file, (unsigned long long)k->n);
    size_t start = c->at;
    for (uint64_t i = 0; i < k->n; i++) {
        struct span text;
        k->index[i] = c->at - start;
        int r = take_text(c, "a text", GGUF_MAX_TEXT, &text);
        if (r < 0)
            return r;
    }
    return 0;
}

static int take_array(struct cursor *c, struct gguf_key *k)
{
    char name[QUOTED];
    int r = take_kind(c, "the kind of an array's items", &k->item);
    if (r < 0 || (r = take_u64(c, "the length of an array", &k->n)) < 0)
        return r;
    if (k->item == GGUF_ARRAY)
        return fail(-ENOTSUP, "%s: key %s is an array of arrays, which is not supported", c->file,
                    quote(k->name, name));
    if (k->n > GGUF_MAX_ITEMS)
        return fail(-EINVAL, "%s: key %s has %llu items; the limit is %u", c->file,
                    quote(k->name, name), (unsigned long long)k->n, GGUF_MAX_ITEMS);
    k->value = c->data + c->at;
    if (k->item == GGUF_STRING)
        return take_texts(c, k);
    return take_bytes(c, k->n * gguf_kind_bytes(k->item), "an array", &k->value);
}

static int take_key(struct cursor *c, struct gguf_key *k)
{
    struct span text;
    char name[QUOTED];
    int r = take_name(c, "a key", &k->name);
    if (r < 0 || (r = take_kind(c, "the kind of a value", &k->kind)) < 0)
        return r;
    if (k->kind == GGUF_ARRAY)
        return take_array(c, k);
    if (k->kind == GGUF_STRING) {
        if ((r = take_text(c, "a text", GGUF_MAX_TEXT, &text)) < 0)
            return r;
        k->value = (const uint8_t *)text.data;
        k->n = text.len;
        return 0;
    }
    r = take_bytes(c, gguf_kind_bytes(k->kind), "a value", &k->value);
    if (r == 0 && k->kind == GGUF_BOOL && *k->value > 1)
        return fail(-EINVAL, "%s: key %s is a bool with the value %u", c->file,
                    quote(k->name, name), *k->value);
    return r;
}

static int take_keys(struct cursor *c, struct gguf_part *part)
{
    part->keys = calloc(part->n_keys + !part->n_keys, sizeof(*part->keys));
    if (!part->keys)
        return fail(-ENOMEM, "%s: no memory for %u keys", part->path, part->n_keys);
    for (uint32_t i = 0; i < part->n_keys; i++) {
        int r = take_key(c, &part->keys[i]);
        if (r < 0)
            return r;
    }
    return sort_keys(part);
}

static int alignment_of(const struct gguf_part *part, uint64_t *ret)
{
    *ret = GGUF_ALIGNMENT;
    int r = gguf_key_u64(part, "general.alignment", ret);
    if (r < 0 && r != -ENOENT)
        return r;
    if (*ret < 8 || *ret > GGUF_MAX_ALIGNMENT || (*ret & (*ret - 1)) != 0)
        return fail(-EINVAL, "%s: general.alignment is %llu; it must be a power of two, 8 to %d",
                    part->path, (unsigned long long)*ret, GGUF_MAX_ALIGNMENT);
    return 0;
}

/* ---- tensors ---- */

static int shape_bytes(const struct cursor *c, enum gguf_type type, struct checkpoint_tensor *t)
{
    char name[QUOTED];
    uint32_t block_weights, block_bytes;
    uint64_t n = 1, bytes;
    int r = gguf_type_block(type, &block_weights, &block_bytes);
    if (r < 0)
        return fail(r, "%s: tensor %s has type %u, which is not known", c->file,
                    quote(t->name, name), (unsigned)type);
    for (uint32_t d = 0; d < CHECKPOINT_MAX_DIMS; d++)
        if (t->shape[d] == 0 || __builtin_mul_overflow(n, t->shape[d], &n))
            return fail(-EINVAL, "%s: tensor %s has a size of 0, or of more than 64 bits", c->file,
                        quote(t->name, name));
    if (t->shape[0] % block_weights != 0)
        return fail(-EINVAL, "%s: tensor %s has rows of %llu weights; %s needs multiples of %u",
                    c->file, quote(t->name, name), (unsigned long long)t->shape[0],
                    gguf_type_name(type), block_weights);
    if (__builtin_mul_overflow(n / block_weights, block_bytes, &bytes) || bytes > SIZE_MAX / 2)
        return fail(-EINVAL, "%s: tensor %s has more bytes than 63 bits can count", c->file,
                    quote(t->name, name));
    t->bytes = bytes;
    return 0;
}

/* ret_offset: from the beginning of the weights, which is known after the table. */
static int take_tensor(struct cursor *c, struct checkpoint_tensor *t, uint64_t *ret_offset)
{
    char name[QUOTED];
    uint32_t type;
    int r = take_name(c, "a tensor's name", &t->name);
    if (r < 0 || (r = take_u32(c, "a tensor's number of dimensions", &t->n_dims)) < 0)
        return r;
    if (t->n_dims < 1 || t->n_dims > CHECKPOINT_MAX_DIMS)
        return fail(-EINVAL, "%s: tensor %s has %u dimensions; 1 to %d are possible", c->file,
                    quote(t->name, name), t->n_dims, CHECKPOINT_MAX_DIMS);
    for (uint32_t d = 0; d < CHECKPOINT_MAX_DIMS; d++) {
        t->shape[d] = 1;
        if (d < t->n_dims && (r = take_u64(c, "a tensor's shape", &t->shape[d])) < 0)
            return r;
    }
    if ((r = take_u32(c, "a tensor's type", &type)) < 0)
        return r;
    if ((r = take_u64(c, "a tensor's offset", ret_offset)) < 0)
        return r;
    r = shape_bytes(c, (enum gguf_type)type, t);
    if (r < 0)
        return r;
    t->type = gguf_type_checkpoint((enum gguf_type)type);
    t->type_name = gguf_type_name((enum gguf_type)type);
    return 0;
}

static int place_tensor(const struct gguf_part *part, struct checkpoint_tensor *t, uint64_t offset,
                        uint64_t alignment)
{
    char name[QUOTED];
    size_t weights = part->file.len - part->head_len;
    if (offset % alignment != 0)
        return fail(-EINVAL, "%s: tensor %s lies at offset %llu, which is not a multiple of %llu",
                    part->path, quote(t->name, name), (unsigned long long)offset,
                    (unsigned long long)alignment);
    if (offset > weights || t->bytes > weights - offset)
        return fail(-EINVAL,
                    "%s: cut short: tensor %s needs bytes %llu to %llu after the header, %zu are "
                    "there",
                    part->path, quote(t->name, name), (unsigned long long)offset,
                    (unsigned long long)(offset + t->bytes), weights);
    t->offset = part->head_len + offset;
    return 0;
}

static int take_tensors(struct cursor *c, struct gguf_part *part, uint64_t alignment)
{
    AUTO(mem_free) uint64_t *offsets = malloc((part->n_tensors + 1) * sizeof(*offsets));
    part->tensors = calloc(part->n_tensors + !part->n_tensors, sizeof(*part->tensors));
    if (!offsets || !part->tensors)
        return fail(-ENOMEM, "%s: no memory for %u tensors", part->path, part->n_tensors);

    for (uint32_t i = 0; i < part->n_tensors; i++) {
        int r = take_tensor(c, &part->tensors[i], &offsets[i]);
        if (r < 0)
            return r;
    }
    // A file without weights may end without the padding.
    size_t head = (c->at + alignment - 1) & ~(alignment - 1);
    part->head_len = head < part->file.len ? head : part->file.len;
    int err = file_reader_extend(c->from, c->file, part->head_len);
    if (err < 0)
        return err;
    for (uint32_t i = 0; i < part->n_tensors; i++) {
        int r = place_tensor(part, &part->tensors[i], offsets[i], alignment);
        if (r < 0)
            return r;
    }
    return 0;
}

/* ---- the header ---- */

static int take_version(struct cursor *c)
{
    const uint8_t *magic = NULL;
    uint32_t version;
    int r = take_bytes(c, 4, "the magic", &magic);
    if (r < 0)
        return r;
    if (memcmp(magic, "GGUF", 4) != 0)
        return fail(-EINVAL, "%s: not a GGUF file (it does not begin with GGUF)", c->file);
    if ((r = take_u32(c, "the version", &version)) < 0)
        return r;
    if (version != 0 && (version & 0xffff) == 0)
        return fail(-ENOTSUP, "%s: big-endian GGUF is not supported", c->file);
    if (version != 2 && version != 3)
        return fail(-ENOTSUP, "%s: GGUF version %u is not supported; versions 2 and 3 are", c->file,
                    version);
    return 0;
}

static int take_count(struct cursor *c, const char *what, uint32_t max, uint32_t *ret)
{
    uint64_t n;
    int r = take_u64(c, what, &n);
    if (r < 0)
        return r;
    if (n > max)
        return fail(-EINVAL, "%s: %s is %llu; the limit is %u", c->file, what,
                    (unsigned long long)n, max);
    *ret = (uint32_t)n;
    return 0;
}

int gguf_parse(struct gguf_part *part)
{
    struct cursor c = {
        .file = part->path, .from = &part->file, .data = part->file.head, .len = part->file.len};
    uint64_t alignment;
    int r = take_version(&c);
    if (r < 0)
        return r;
    r = take_count(&c, "the number of tensors", CHECKPOINT_MAX_TENSORS, &part->n_tensors);
    if (r < 0)
        return r;
    if ((r = take_count(&c, "the number of keys", GGUF_MAX_KEYS, &part->n_keys)) < 0)
        return r;
    if ((r = take_keys(&c, part)) < 0)
        return r;
    if ((r = alignment_of(part, &alignment)) < 0)
        return r;
    return take_tensors(&c, part, alignment);
}

void gguf_part_done(struct gguf_part *part)
{
    for (uint32_t i = 0; part->keys && i < part->n_keys; i++)
        free(part->keys[i].index);
    free(part->keys);
    free(part->tensors);
    free(part->path);
    file_reader_close(&part->file);
}

/* kv_bytes.c - the key/value blocks in this process's memory: one reservation. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "base/err.h"
#include "kv/kv_bytes.h"

#define MAX_LAYERS 65536
#define MAX_HEADS 65536
#define MAX_DIM 65536

struct layer {
    char *data;         // (n_blocks, n_heads, `head` bytes)
    size_t head, block; // bytes of a block under a head, and under all
    size_t state;       // where the layer's part of a state begins
};

struct kv_bytes {
    struct kv_shape shape; // its layers are `shapes`
    struct kv_layer *shapes;
    struct layer *layers;
    char *data;
    size_t bytes;
    char *states; // (n_states, state_bytes)
    size_t state_bytes, states_bytes;
};

static size_t head_bytes(enum kernel_kv type, const struct kv_layer *l)
{
    return kernel_kv_bytes(type, l->k_dim);
}

size_t kv_bytes_block(const struct kv_shape *s)
{
    size_t bytes = 0;
    for (uint32_t l = 0; l < s->n_layers; l++)
        bytes += s->layers[l].n_heads * head_bytes(s->type, &s->layers[l]);
    return bytes;
}

static size_t rounded(size_t bytes)
{
    return (bytes + KERNEL_ALIGN - 1) / KERNEL_ALIGN * KERNEL_ALIGN;
}

/* Of a layer: the state, then the logged rows. */
static size_t state_of_layer(const struct kv_layer *l)
{
    return rounded(l->n_state * sizeof(float)) + KV_LOG * rounded(l->n_logged * sizeof(float));
}

size_t kv_bytes_state(const struct kv_shape *s)
{
    size_t bytes = 0;
    for (uint32_t l = 0; l < s->n_layers; l++)
        bytes += state_of_layer(&s->layers[l]);
    return bytes;
}

static int check_layer(const struct kv_layer *l)
{
    if (!l->n_heads && l->n_state && l->n_logged)
        return 0;
    if (!l->n_heads || !l->k_dim || !l->v_dim || l->n_heads > MAX_HEADS || l->k_dim > MAX_DIM ||
        l->v_dim > MAX_DIM)
        return fail(-EINVAL, "kv: a layer of %u heads of %u and %u", l->n_heads, l->k_dim,
                    l->v_dim);
    if (l->k_dim != l->v_dim)
        return fail(-ENOTSUP, "kv: keys of %u and values of %u are not supported", l->k_dim,
                    l->v_dim);
    return 0;
}

static int check_shape(const struct kv_shape *s, uint32_t n_blocks)
{
    if (!s->n_layers || s->n_layers > MAX_LAYERS)
        return fail(-EINVAL, "kv: %u layers, not 1 .. %u", s->n_layers, MAX_LAYERS);
    if (!n_blocks || n_blocks > KV_MAX_BLOCKS)
        return fail(-EINVAL, "kv: %u blocks, not 1 .. %u", n_blocks, KV_MAX_BLOCKS);
    int r = 0;
    for (uint32_t l = 0; l < s->n_layers && r == 0; l++)
        r = check_layer(&s->layers[l]);
    return r;
}

static void place_layers(struct kv_bytes *b, uint32_t n_blocks)
{
    char *at = b->data;
    size_t state = 0;
    for (uint32_t l = 0; l < b->shape.n_layers; l++) {
        size_t head = head_bytes(b->shape.type, &b->shapes[l]);
        b->layers[l] = (struct layer){at, head, head * b->shapes[l].n_heads, state};
        at += b->layers[l].block * n_blocks;
        state += state_of_layer(&b->shapes[l]);
    }
}

int kv_bytes_new(const struct kv_shape *shape, uint32_t n_blocks, struct kv_bytes **ret)
{
    int r = check_shape(shape, n_blocks);
    if (r < 0)
        return r;
    AUTO(kv_bytes_free) struct kv_bytes *b = calloc(1, sizeof(*b));
    if (!b)
        return fail(-ENOMEM, "kv: no memory");
    if (__builtin_mul_overflow(kv_bytes_block(shape), n_blocks, &b->bytes))
        return fail(-ENOMEM, "kv: %u blocks do not fit in memory", n_blocks);
    b->shapes = calloc(shape->n_layers, sizeof(*b->shapes));
    b->layers = calloc(shape->n_layers, sizeof(*b->layers));
    void *data = mmap(NULL, b->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data != MAP_FAILED) {
        b->data = data;
        madvise(data, b->bytes, MADV_HUGEPAGE); // for long contexts (docs/benchmarks.md)
    }
    if (!b->shapes || !b->layers || !b->data)
        return fail(-ENOMEM, "kv: no memory for %zu MiB of blocks", b->bytes >> 20);
    memcpy(b->shapes, shape->layers, shape->n_layers * sizeof(*b->shapes));
    b->shape = (struct kv_shape){shape->n_layers, shape->type, b->shapes};
    place_layers(b, n_blocks);
    *ret = TAKE(b);
    return 0;
}

void kv_bytes_free(struct kv_bytes *b)
{
    if (!b)
        return;
    if (b->data)
        munmap(b->data, b->bytes);
    if (b->states)
        munmap(b->states, b->states_bytes);
    free(b->shapes);
    free(b->layers);
    free(b);
}

const struct kv_shape *kv_bytes_shape(const struct kv_bytes *b)
{
    return &b->shape;
}

char *kv_bytes_at(const struct kv_bytes *b, uint32_t layer, uint32_t block, uint32_t head)
{
    const struct layer *l = &b->layers[layer];
    return l->data + block * l->block + head * l->head;
}

size_t kv_bytes_stride(const struct kv_bytes *b, uint32_t layer)
{
    return b->layers[layer].block;
}

void kv_bytes_copy(struct kv_bytes *b, uint32_t from_block, uint32_t to_block)
{
    for (uint32_t l = 0; l < b->shape.n_layers; l++)
        memcpy(kv_bytes_at(b, l, to_block, 0), kv_bytes_at(b, l, from_block, 0),
               b->layers[l].block);
}

void kv_bytes_move(struct kv_bytes *b, uint32_t from_slot, uint32_t to_slot)
{
    for (uint32_t l = 0; l < b->shape.n_layers; l++)
        for (uint32_t head = 0; head < b->shapes[l].n_heads; head++)
            kernel_kv_move(b->shape.type, b->shapes[l].k_dim,
                           kv_bytes_at(b, l, from_slot / KV_BLOCK, head), from_slot % KV_BLOCK,
                           kv_bytes_at(b, l, to_slot / KV_BLOCK, head), to_slot % KV_BLOCK);
}

void kv_bytes_save(const struct kv_bytes *b, uint32_t block, void *to)
{
    char *at = to;
    for (uint32_t l = 0; l < b->shape.n_layers; at += b->layers[l++].block)
        memcpy(at, kv_bytes_at(b, l, block, 0), b->layers[l].block);
}

void kv_bytes_load(struct kv_bytes *b, uint32_t block, const void *from)
{
    const char *at = from;
    for (uint32_t l = 0; l < b->shape.n_layers; at += b->layers[l++].block)
        memcpy(kv_bytes_at(b, l, block, 0), at, b->layers[l].block);
}

/* ---- states of recurrent layers ---- */

int kv_bytes_add_states(struct kv_bytes *b, uint32_t n)
{
    b->state_bytes = kv_bytes_state(&b->shape);
    if (__builtin_mul_overflow(b->state_bytes, n, &b->states_bytes))
        return fail(-ENOMEM, "kv: %u states do not fit in memory", n);
    void *at =
        mmap(NULL, b->states_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return fail(-ENOMEM, "kv: no memory for %zu MiB of states", b->states_bytes >> 20);
    madvise(at, b->states_bytes, MADV_HUGEPAGE);
    b->states = at;
    return 0;
}

void kv_bytes_begin_state(struct kv_bytes *b, uint32_t state)
{
    for (uint32_t l = 0; l < b->shape.n_layers; l++)
        for (uint32_t i = 1; i < KV_MAX_TAPS && b->shapes[l].n_state; i++)
            memset(kv_bytes_logged_at(b, l, state, KV_LOG - i), 0,
                   b->shapes[l].n_logged * sizeof(float));
}

void kv_bytes_copy_state(struct kv_bytes *b, uint32_t from, uint32_t to, uint32_t position)
{
    for (uint32_t l = 0; l < b->shape.n_layers; l++) {
        memcpy(kv_bytes_state_at(b, l, to), kv_bytes_state_at(b, l, from),
               b->shapes[l].n_state * sizeof(float));
        for (uint32_t i = 1; i < KV_MAX_TAPS && b->shapes[l].n_state; i++) {
            const uint32_t at = position + KV_LOG - i;
            memcpy(kv_bytes_logged_at(b, l, to, at), kv_bytes_logged_at(b, l, from, at),
                   b->shapes[l].n_logged * sizeof(float));
        }
    }
}

float *kv_bytes_state_at(const struct kv_bytes *b, uint32_t layer, uint32_t state)
{
    return (float *)(void *)(b->states + state * b->state_bytes + b->layers[layer].state);
}

float *kv_bytes_logged_at(const struct kv_bytes *b, uint32_t layer, uint32_t state,
                          uint32_t position)
{
    const struct kv_layer *l = &b->shapes[layer];
    const size_t row = rounded(l->n_logged * sizeof(float));
    return (float *)(void *)((char *)kv_bytes_state_at(b, layer, state) +
                             rounded(l->n_state * sizeof(float)) + position % KV_LOG * row);
}

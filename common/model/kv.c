/* kv.c - the pool of key/value cache blocks: one reservation, a stack of free numbers, holder
 * counts. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "base/err.h"
#include "model/kv.h"

struct kv {
    struct kv_shape shape;
    uint32_t n_blocks, n_free;
    uint32_t *free_blocks; // a stack: the last one given back is handed out next, still warm
    uint32_t *holders;     // of each block
    uint16_t *data;        // (n_layers, K then V, n_blocks, n_kv_heads, KV_BLOCK, head_dim)
    size_t block;          // halfs of K of one layer of a block
    size_t plane;          // of all blocks
    size_t bytes;
};

size_t kv_block_bytes(const struct kv_shape *s)
{
    return (size_t)2 * s->n_layers * KV_BLOCK * s->n_kv_heads * s->head_dim * sizeof(uint16_t);
}

static int check_shape(const struct kv_shape *s, uint32_t n_blocks)
{
    if (!s->n_layers || !s->n_kv_heads || !s->head_dim || s->n_layers > 65536 ||
        s->n_kv_heads > 65536 || s->head_dim > 65536)
        return fail(-EINVAL, "kv: %u layers of %u heads of %u", s->n_layers, s->n_kv_heads,
                    s->head_dim);
    if (!n_blocks || n_blocks > KV_MAX_BLOCKS)
        return fail(-EINVAL, "kv: %u blocks, not 1 .. %u", n_blocks, KV_MAX_BLOCKS);
    return 0;
}

int kv_new(const struct kv_shape *shape, uint32_t n_blocks, struct kv **ret)
{
    int r = check_shape(shape, n_blocks);
    if (r < 0)
        return r;
    AUTO(kv_free) struct kv *kv = calloc(1, sizeof(*kv));
    if (!kv)
        return fail(-ENOMEM, "kv: no memory");
    kv->shape = *shape;
    kv->n_blocks = kv->n_free = n_blocks;
    kv->block = (size_t)KV_BLOCK * shape->n_kv_heads * shape->head_dim;
    kv->plane = kv->block * n_blocks;
    if (__builtin_mul_overflow(kv_block_bytes(shape), n_blocks, &kv->bytes))
        return fail(-ENOMEM, "kv: %u blocks do not fit in memory", n_blocks);
    kv->free_blocks = malloc(n_blocks * sizeof(*kv->free_blocks));
    kv->holders = calloc(n_blocks, sizeof(*kv->holders));
    void *data = mmap(NULL, kv->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data != MAP_FAILED)
        kv->data = data;
    if (!kv->free_blocks || !kv->holders || !kv->data)
        return fail(-ENOMEM, "kv: no memory for %zu MiB of blocks", kv->bytes >> 20);
    for (uint32_t i = 0; i < n_blocks; i++)
        kv->free_blocks[i] = n_blocks - 1 - i;
    *ret = TAKE(kv);
    return 0;
}

void kv_free(struct kv *kv)
{
    if (!kv)
        return;
    if (kv->data)
        munmap(kv->data, kv->bytes);
    free(kv->free_blocks);
    free(kv->holders);
    free(kv);
}

uint32_t kv_n_blocks(const struct kv *kv)
{
    return kv->n_blocks;
}

uint32_t kv_n_free(const struct kv *kv)
{
    return kv->n_free;
}

const struct kv_shape *kv_shape_of(const struct kv *kv)
{
    return &kv->shape;
}

static uint32_t blocks_of(uint32_t rows)
{
    return rows / KV_BLOCK + (rows % KV_BLOCK != 0);
}

static uint32_t take(struct kv *kv)
{
    assert(kv->n_free > 0);
    uint32_t b = kv->free_blocks[--kv->n_free];
    kv->holders[b] = 1;
    return b;
}

static void drop(struct kv *kv, uint32_t b)
{
    assert(kv->holders[b] > 0);
    if (--kv->holders[b] == 0)
        kv->free_blocks[kv->n_free++] = b;
}

/* n rows of a block from slot to slot, K and V of every layer. */
static void copy_slots(struct kv *kv, uint32_t from, uint32_t to, uint32_t n)
{
    for (size_t p = 0; p < (size_t)2 * kv->shape.n_layers; p++) {
        uint16_t *plane = kv->data + p * kv->plane;
        for (uint32_t head = 0; head < kv->shape.n_kv_heads; head++)
            memcpy(plane + kv_at(kv, to, head), plane + kv_at(kv, from, head),
                   n * kv->shape.head_dim * sizeof(uint16_t));
    }
}

int kv_seq_init(struct kv_seq *seq, uint32_t max_rows)
{
    *seq = (struct kv_seq){.cap_blocks = blocks_of(max_rows)};
    seq->blocks = calloc(seq->cap_blocks + 1u, sizeof(*seq->blocks));
    return seq->blocks ? 0
                       : fail(-ENOMEM, "kv: no memory for a table of %u blocks", seq->cap_blocks);
}

void kv_seq_done(struct kv *kv, struct kv_seq *seq)
{
    for (uint32_t i = 0; i < seq->n_blocks; i++)
        drop(kv, seq->blocks[i]);
    free(seq->blocks);
    *seq = (struct kv_seq){0};
}

/* Whether the next row would be written into a block that others hold too. */
static bool tail_is_shared(const struct kv *kv, const struct kv_seq *seq)
{
    return seq->len % KV_BLOCK && kv->holders[seq->blocks[seq->len / KV_BLOCK]] > 1;
}

int kv_grow(struct kv *kv, struct kv_seq *seq, uint32_t n)
{
    if (n == 0)
        return 0;
    if (n > (uint64_t)seq->cap_blocks * KV_BLOCK - seq->len)
        return -ENOSPC;
    uint32_t want = blocks_of(seq->len + n), own_tail = tail_is_shared(kv, seq);
    if (want - seq->n_blocks + own_tail > kv->n_free)
        return -ENOSPC;
    if (own_tail) {
        uint32_t *at = &seq->blocks[seq->len / KV_BLOCK], old = *at;
        *at = take(kv);
        copy_slots(kv, old * KV_BLOCK, *at * KV_BLOCK, seq->len % KV_BLOCK);
        drop(kv, old);
    }
    while (seq->n_blocks < want)
        seq->blocks[seq->n_blocks++] = take(kv);
    seq->len += n;
    return 0;
}

void kv_keep(struct kv *kv, struct kv_seq *seq, uint32_t base, const uint32_t *rows, uint32_t n)
{
    assert(base <= seq->len);
    for (uint32_t i = 0; i < n; i++) { // rising, so a row is read before it is overwritten
        assert(rows[i] >= base + i && rows[i] < seq->len && (i == 0 || rows[i] > rows[i - 1]));
        if (rows[i] == base + i)
            continue;
        assert(kv->holders[seq->blocks[(base + i) / KV_BLOCK]] == 1);
        copy_slots(kv, kv_slot(seq, rows[i]), kv_slot(seq, base + i), 1);
    }
    seq->len = base + n;
    while (seq->n_blocks > blocks_of(seq->len))
        drop(kv, seq->blocks[--seq->n_blocks]);
}

int kv_fork(struct kv *kv, const struct kv_seq *from, uint32_t len, struct kv_seq *to)
{
    assert(len <= from->len && to->len == 0);
    uint32_t full = len / KV_BLOCK, rest = len % KV_BLOCK;
    if (blocks_of(len) > to->cap_blocks || (rest && kv->n_free == 0))
        return -ENOSPC;
    for (uint32_t i = 0; i < full; i++) {
        to->blocks[i] = from->blocks[i];
        kv->holders[to->blocks[i]]++;
    }
    if (rest) {
        to->blocks[full] = take(kv);
        copy_slots(kv, from->blocks[full] * KV_BLOCK, to->blocks[full] * KV_BLOCK, rest);
    }
    to->n_blocks = blocks_of(len);
    to->len = len;
    return 0;
}

uint16_t *kv_k(struct kv *kv, uint32_t layer)
{
    return kv->data + (size_t)2 * layer * kv->plane;
}

uint16_t *kv_v(struct kv *kv, uint32_t layer)
{
    return kv->data + ((size_t)2 * layer + 1) * kv->plane;
}

size_t kv_block(const struct kv *kv)
{
    return kv->block;
}

size_t kv_at(const struct kv *kv, uint32_t slot, uint32_t head)
{
    const struct kv_shape *s = &kv->shape;
    size_t row = ((size_t)slot / KV_BLOCK * s->n_kv_heads + head) * KV_BLOCK + slot % KV_BLOCK;
    return row * s->head_dim;
}

static bool check_seq(const struct kv *kv, const struct kv_seq *seq, uint32_t i, uint32_t *count)
{
    if (seq->n_blocks != blocks_of(seq->len) || seq->n_blocks > seq->cap_blocks)
        return fail(-EINVAL, "kv: sequence %u has %u blocks for %u rows", i, seq->n_blocks,
                    seq->len),
               false;
    for (uint32_t j = 0; j < seq->n_blocks; j++) {
        if (seq->blocks[j] >= kv->n_blocks)
            return fail(-EINVAL, "kv: sequence %u names block %u", i, seq->blocks[j]), false;
        count[seq->blocks[j]]++;
    }
    return true;
}

bool kv_check(const struct kv *kv, const struct kv_seq *const *seqs, uint32_t n_seqs)
{
    AUTO(mem_free) uint32_t *count = calloc(kv->n_blocks, sizeof(*count));
    if (!count)
        return fail(-ENOMEM, "kv: no memory to check"), false;
    for (uint32_t i = 0; i < n_seqs; i++)
        if (!check_seq(kv, seqs[i], i, count))
            return false;
    uint32_t n_unheld = 0;
    for (uint32_t b = 0; b < kv->n_blocks; b++) {
        if (count[b] != kv->holders[b])
            return fail(-EINVAL, "kv: block %u has %u holders, counted %u", b, kv->holders[b],
                        count[b]),
                   false;
        n_unheld += count[b] == 0;
    }
    for (uint32_t i = 0; i < kv->n_free; i++) {
        if (count[kv->free_blocks[i]] != 0) // held, or listed twice
            return fail(-EINVAL, "kv: block %u is listed as free", kv->free_blocks[i]), false;
        count[kv->free_blocks[i]] = 1;
    }
    if (n_unheld != kv->n_free)
        return fail(-EINVAL, "kv: %u blocks without holder, %u free", n_unheld, kv->n_free), false;
    return true;
}

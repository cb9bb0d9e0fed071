/* kv.c - counts blocks: a stack of empty ones, the holders of each, and what happens to a block
 * without a holder. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "kv/kv.h"

struct kv {
    struct kv_bytes *bytes;
    uint32_t n_blocks, n_empty, n_shared;
    uint32_t *empty;        // a stack: the block released last is handed out next, still in caches
    uint32_t *holders;      // of each block
    uint32_t *scratch;      // (2, n_blocks), of kv_check()
    struct kv_index *index; // NULL: none
    struct kv_states *states; // NULL: no layer is recurrent
    uint64_t n_evicted;
    void (*evicted)(void *owner, uint32_t block);
    void *evicted_owner;
};

#define COUNTS 4 // per block: in `empty`, in `holders`, and two in `scratch`

size_t kv_pool_bytes(const struct kv_shape *shape, uint32_t n_blocks)
{
    return n_blocks * (kv_bytes_block(shape) + COUNTS * sizeof(uint32_t)) +
           kv_index_bytes(n_blocks);
}

int kv_new(const struct kv_shape *shape, uint32_t n_blocks, struct kv **ret)
{
    AUTO(kv_free) struct kv *kv = calloc(1, sizeof(*kv));
    if (!kv)
        return fail(-ENOMEM, "kv: no memory");
    int r = kv_bytes_new(shape, n_blocks, &kv->bytes);
    if (r < 0)
        return r;
    kv->n_blocks = kv->n_empty = n_blocks;
    kv->empty = malloc(n_blocks * sizeof(*kv->empty));
    kv->holders = calloc(n_blocks, sizeof(*kv->holders));
    kv->scratch = malloc(2 * n_blocks * sizeof(*kv->scratch));
    if (!kv->empty || !kv->holders || !kv->scratch)
        return fail(-ENOMEM, "kv: no memory for the counts of %u blocks", n_blocks);
    for (uint32_t i = 0; i < n_blocks; i++)
        kv->empty[i] = n_blocks - 1 - i;
    *ret = TAKE(kv);
    return 0;
}

int kv_open_states(struct kv *kv, uint32_t n)
{
    int r = kv_bytes_add_states(kv->bytes, n);
    return r < 0 ? r : kv_states_new(n, kv->n_blocks, &kv->states);
}

void kv_free(struct kv *kv)
{
    if (!kv)
        return;
    kv_states_free(kv->states);
    kv_bytes_free(kv->bytes);
    kv_index_free(kv->index);
    free(kv->empty);
    free(kv->holders);
    free(kv->scratch);
    free(kv);
}

uint32_t kv_n_blocks(const struct kv *kv)
{
    return kv->n_blocks;
}

static uint32_t n_idle(const struct kv *kv)
{
    return kv->index ? kv_index_n_idle(kv->index) : 0;
}

uint32_t kv_n_free(const struct kv *kv)
{
    return kv->n_empty + n_idle(kv);
}

uint32_t kv_n_own(const struct kv *kv, const struct kv_seq *seq)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < seq->n_blocks; i++)
        n += kv->holders[seq->blocks[i]] == 1;
    return n;
}

const struct kv_shape *kv_shape_of(const struct kv *kv)
{
    return kv_bytes_shape(kv->bytes);
}

struct kv_bytes *kv_bytes_of(struct kv *kv)
{
    return kv->bytes;
}

static uint32_t blocks_of(uint32_t rows)
{
    return rows / KV_BLOCK + (rows % KV_BLOCK != 0);
}

static bool is_indexed(const struct kv *kv, uint32_t b)
{
    return kv->index && kv_index_has(kv->index, b);
}

/* An empty block, or else the idle block to evict next. There is one: see kv_n_free(). */
static uint32_t take_block(struct kv *kv)
{
    uint32_t b;
    if (kv->n_empty) {
        b = kv->empty[--kv->n_empty];
    } else {
        b = kv_index_oldest(kv->index);
        if (kv->evicted)
            kv->evicted(kv->evicted_owner, b);
        kv_index_remove(kv->index, b);
        if (kv->states)
            kv_states_forget(kv->states, b);
        kv->n_evicted++;
    }
    kv->holders[b] = 1;
    return b;
}

static void hold_block(struct kv *kv, uint32_t b)
{
    if (!kv->holders[b])
        kv_index_busy(kv->index, b);
    kv->n_shared += ++kv->holders[b] == 2;
}

static void drop_block(struct kv *kv, uint32_t b)
{
    assert(kv->holders[b] > 0);
    kv->n_shared -= kv->holders[b] == 2;
    if (--kv->holders[b])
        return;
    if (is_indexed(kv, b))
        kv_index_idle(kv->index, b);
    else
        kv->empty[kv->n_empty++] = b;
}

/* Keeps the first n_blocks. The last block is released first, as kv_index.h requires. */
static void drop_blocks_after(struct kv *kv, struct kv_seq *seq, uint32_t n_blocks)
{
    while (seq->n_blocks > n_blocks)
        drop_block(kv, seq->blocks[--seq->n_blocks]);
    seq->n_indexed = seq->n_indexed < n_blocks ? seq->n_indexed : n_blocks;
}

int kv_seq_init(struct kv_seq *seq, uint32_t max_rows)
{
    *seq = (struct kv_seq){.cap_blocks = blocks_of(max_rows)};
    seq->blocks = calloc(seq->cap_blocks + 1u, sizeof(*seq->blocks));
    return seq->blocks ? 0
                       : fail(-ENOMEM, "kv: no memory for a table of %u blocks", seq->cap_blocks);
}

/* ---- states ---- */

/* False: none is free. */
static bool take_state(struct kv *kv, struct kv_seq *seq)
{
    const uint32_t state = kv_states_take(kv->states);
    if (state == KV_NO_STATE)
        return false;
    seq->has_state = true;
    seq->state = state;
    seq->state_len = 0;
    return true;
}

static void drop_state(struct kv *kv, struct kv_seq *seq)
{
    if (seq->has_state)
        kv_states_give(kv->states, seq->state);
    seq->has_state = false;
    seq->state_len = 0;
}

/* The sequence, which has rows up to the position, takes a copy of a state of that position. */
static bool copy_state(struct kv *kv, struct kv_seq *seq, uint32_t from, uint32_t position)
{
    if (!take_state(kv, seq))
        return false;
    if (seq->state != from) // else it was the only snapshot, and was given up
        kv_bytes_copy_state(kv->bytes, from, seq->state, position);
    seq->state_len = position;
    return true;
}

/* A state for a snapshot; KV_NO_STATE: none. */
static uint32_t take_for_snapshot(struct kv *kv, const struct kv_seq *seq, enum kv_replace replace,
                                  uint32_t own)
{
    if (replace == KV_REPLACE_OLDEST)
        return kv_states_take(kv->states);
    const uint32_t state = kv_states_take_free(kv->states);
    if (state != KV_NO_STATE || !own)
        return state;
    kv_states_forget(kv->states, seq->blocks[own / KV_BLOCK - 1]);
    return kv_states_take_free(kv->states);
}

bool kv_snapshot(struct kv *kv, const struct kv_seq *seq, enum kv_replace replace, uint32_t own)
{
    const uint32_t n = seq->state_len / KV_BLOCK;
    assert(own <= seq->state_len && own % KV_BLOCK == 0);
    if (!seq->has_state || !n || seq->state_len % KV_BLOCK || n > seq->n_indexed)
        return false;
    const uint32_t block = seq->blocks[n - 1];
    if (kv_states_of(kv->states, block) != KV_NO_STATE)
        return true;
    const uint32_t state = take_for_snapshot(kv, seq, replace, own);
    if (state == KV_NO_STATE)
        return false;
    kv_bytes_copy_state(kv->bytes, seq->state, state, seq->state_len);
    kv_states_keep(kv->states, block, state);
    return true;
}

/* ---- rows of sequences ---- */

void kv_seq_done(struct kv *kv, struct kv_seq *seq)
{
    drop_blocks_after(kv, seq, 0);
    drop_state(kv, seq);
    free(seq->blocks);
    *seq = (struct kv_seq){0};
}

/* True: the next row would be written into a block that other sequences may read. */
static bool tail_is_shared(const struct kv *kv, const struct kv_seq *seq)
{
    if (seq->len % KV_BLOCK == 0)
        return false;
    uint32_t tail = seq->blocks[seq->len / KV_BLOCK];
    return kv->holders[tail] > 1 || is_indexed(kv, tail);
}

int kv_grow(struct kv *kv, struct kv_seq *seq, uint32_t n)
{
    if (n == 0)
        return 0;
    if (n > (uint64_t)seq->cap_blocks * KV_BLOCK - seq->len)
        return -ENOSPC;
    uint32_t want = blocks_of(seq->len + n), own_tail = tail_is_shared(kv, seq);
    if (want - seq->n_blocks + own_tail > kv_n_free(kv))
        return -ENOSPC;
    if (kv->states && !seq->has_state) {
        if (!take_state(kv, seq))
            return -ENOSPC;
        kv_bytes_begin_state(kv->bytes, seq->state);
    }
    if (own_tail) {
        uint32_t *at = &seq->blocks[seq->len / KV_BLOCK], old = *at;
        *at = take_block(kv);
        kv_bytes_copy(kv->bytes, old, *at);
        drop_block(kv, old);
    }
    while (seq->n_blocks < want)
        seq->blocks[seq->n_blocks++] = take_block(kv);
    seq->len += n;
    return 0;
}

void kv_keep(struct kv *kv, struct kv_seq *seq, uint32_t base, const uint32_t *rows, uint32_t n)
{
    assert(base <= seq->len && (base + n >= seq->state_len || base + n == 0));
    for (uint32_t i = 0; i < n; i++) { // rising, so a row is read before it is overwritten
        assert(rows[i] >= base + i && rows[i] < seq->len && (i == 0 || rows[i] > rows[i - 1]));
        if (rows[i] == base + i)
            continue;
        assert(kv->holders[seq->blocks[(base + i) / KV_BLOCK]] == 1 &&
               !is_indexed(kv, seq->blocks[(base + i) / KV_BLOCK]));
        kv_bytes_move(kv->bytes, kv_slot(seq, rows[i]), kv_slot(seq, base + i));
    }
    seq->len = base + n;
    drop_blocks_after(kv, seq, blocks_of(seq->len));
    if (seq->n_indexed > seq->len / KV_BLOCK) // the last block is cut: kv_grow() will copy it
        seq->n_indexed = seq->len / KV_BLOCK;
    if (seq->len == 0)
        drop_state(kv, seq);
}

void kv_release(struct kv *kv, struct kv_seq *seq)
{
    kv_keep(kv, seq, 0, NULL, 0);
}

int kv_fork(struct kv *kv, const struct kv_seq *from, uint32_t len, struct kv_seq *to)
{
    assert(len <= from->len && to->len == 0);
    uint32_t full = len / KV_BLOCK, rest = len % KV_BLOCK;
    if (blocks_of(len) > to->cap_blocks || (rest && kv_n_free(kv) == 0))
        return -ENOSPC;
    if (kv->states && len && (from->state_len != len || !copy_state(kv, to, from->state, len)))
        return -ENOSPC;
    for (uint32_t i = 0; i < full; i++) {
        to->blocks[i] = from->blocks[i];
        hold_block(kv, to->blocks[i]);
    }
    if (rest) {
        to->blocks[full] = take_block(kv);
        kv_bytes_copy(kv->bytes, from->blocks[full], to->blocks[full]);
    }
    to->n_blocks = blocks_of(len);
    to->n_indexed = from->n_indexed < full ? from->n_indexed : full;
    to->len = len;
    return 0;
}

/* ---- equal prefixes ---- */

int kv_open_index(struct kv *kv, uint64_t identity, kv_hash_fn *hash)
{
    return kv_index_new(kv->n_blocks, identity, hash, &kv->index);
}

/* The block after `parent` that has the i-th KV_BLOCK tokens. */
static uint32_t find_next(const struct kv *kv, const struct kv_root *root, uint32_t parent,
                          const uint32_t *tokens, uint32_t i)
{
    return kv_index_find(kv->index, root, parent, tokens + (size_t)i * KV_BLOCK);
}

/* Whether a sequence can begin after a block of the index. */
static bool may_begin_after(const struct kv *kv, uint32_t block)
{
    return !kv->states || kv_states_of(kv->states, block) != KV_NO_STATE;
}

/* As kv_find(). ret_last: the last block found, or KV_NO_BLOCK. to: NULL, or gets the blocks. */
static uint32_t find_all(const struct kv *kv, const struct kv_root *root, const uint32_t *tokens,
                         uint32_t n_tokens, uint32_t *ret_held, uint32_t *ret_last, uint32_t *to)
{
    uint32_t n = 0, n_held = 0, b = KV_NO_BLOCK;
    *ret_held = 0;
    *ret_last = KV_NO_BLOCK;
    for (uint32_t i = 0; kv->index && i < n_tokens / KV_BLOCK; i++) {
        b = find_next(kv, root, b, tokens, i);
        if (b == KV_NO_BLOCK)
            break;
        n_held += kv->holders[b] > 0;
        if (to)
            to[i] = b;
        if (may_begin_after(kv, b)) {
            n = i + 1;
            *ret_held = n_held;
            *ret_last = b;
        }
    }
    return n;
}

uint32_t kv_find(const struct kv *kv, const struct kv_root *root, const uint32_t *tokens,
                 uint32_t n_tokens, uint32_t *ret_held)
{
    uint32_t last;
    return find_all(kv, root, tokens, n_tokens, ret_held, &last, NULL);
}

uint32_t kv_match(struct kv *kv, struct kv_seq *seq, const struct kv_root *root,
                  const uint32_t *tokens, uint32_t n_tokens)
{
    uint32_t held, last, most = n_tokens / KV_BLOCK;
    assert(seq->len == 0);
    most = most < seq->cap_blocks ? most : seq->cap_blocks;
    uint32_t n = find_all(kv, root, tokens, most * KV_BLOCK, &held, &last, seq->blocks);
    if (n && kv->states) {
        kv_states_use(kv->states, last);
        if (!copy_state(kv, seq, kv_states_of(kv->states, last), n * KV_BLOCK))
            n = 0;
    }
    for (uint32_t i = 0; i < n; i++)
        hold_block(kv, seq->blocks[i]);
    seq->n_indexed = seq->n_blocks = n;
    return seq->len = n * KV_BLOCK;
}

void kv_enter(struct kv *kv, struct kv_seq *seq, const struct kv_root *root, const uint32_t *tokens,
              uint32_t n)
{
    assert(n <= seq->len);
    for (uint32_t i = seq->n_indexed; kv->index && i < n / KV_BLOCK; i++) {
        uint32_t parent = i ? seq->blocks[i - 1] : KV_NO_BLOCK, own = seq->blocks[i];
        uint32_t there = find_next(kv, root, parent, tokens, i);
        if (there == KV_NO_BLOCK) {
            if (kv->holders[own] > 1)
                return; // other holders of the block may lack its parent
            kv_index_add(kv->index, root, parent, tokens + (size_t)i * KV_BLOCK, own);
        } else if (there != own) {
            hold_block(kv, there);
            seq->blocks[i] = there;
            drop_block(kv, own);
        }
        seq->n_indexed = i + 1;
    }
}

/* ---- a second tier ---- */

uint32_t kv_find_name(const struct kv *kv, const struct kv_root *root, const uint32_t *tokens,
                      uint32_t n_tokens, uint8_t ret_name[KV_NAME])
{
    uint32_t held, last, n = find_all(kv, root, tokens, n_tokens, &held, &last, NULL);
    if (last == KV_NO_BLOCK)
        kv_index_root_name(kv->index, root, ret_name);
    else
        memcpy(ret_name, kv_index_entry(kv->index, last).name, KV_NAME);
    return n;
}

void kv_on_evict(struct kv *kv, void (*fn)(void *owner, uint32_t block), void *owner)
{
    kv->evicted = fn;
    kv->evicted_owner = owner;
}

void kv_each_idle(const struct kv *kv, bool (*fn)(void *owner, uint32_t block), void *owner)
{
    uint32_t b = kv->index ? kv_index_newest(kv->index) : KV_NO_BLOCK;
    while (b != KV_NO_BLOCK && fn(owner, b))
        b = kv_index_older(kv->index, b);
}

struct kv_entry kv_entry_of(const struct kv *kv, uint32_t block)
{
    return kv_index_entry(kv->index, block);
}

void kv_save(const struct kv *kv, uint32_t block, void *to)
{
    kv_bytes_save(kv->bytes, block, to);
}

void kv_load(struct kv *kv, uint32_t block, const void *from)
{
    kv_bytes_load(kv->bytes, block, from);
}

struct kv_figures kv_figures(const struct kv *kv)
{
    return (struct kv_figures){.n_empty = kv->n_empty,
                               .n_idle = n_idle(kv),
                               .n_shared = kv->n_shared,
                               .n_evicted = kv->n_evicted,
                               .n_snapshots = kv->states ? kv_states_n_snapshots(kv->states) : 0};
}

/* ---- checking ---- */

static bool fail_seq(uint32_t i, const char *what, uint32_t n)
{
    fail(-EINVAL, "kv: sequence %u %s %u", i, what, n);
    return false;
}

static bool check_seq(const struct kv *kv, const struct kv_seq *seq, uint32_t i, uint32_t *count)
{
    if (seq->n_blocks != blocks_of(seq->len) || seq->n_blocks > seq->cap_blocks)
        return fail_seq(i, "has a number of blocks that does not fit its rows:", seq->n_blocks);
    if (seq->n_indexed > seq->len / KV_BLOCK)
        return fail_seq(
            i, "has fewer full blocks than its count of blocks in the index:", seq->n_indexed);
    for (uint32_t j = 0; j < seq->n_blocks; j++) {
        if (seq->blocks[j] >= kv->n_blocks)
            return fail_seq(i, "holds a block outside the pool:", seq->blocks[j]);
        count[seq->blocks[j]]++;
    }
    for (uint32_t j = 0; j < seq->n_indexed; j++) {
        uint32_t parent = j ? seq->blocks[j - 1] : KV_NO_BLOCK;
        if (!is_indexed(kv, seq->blocks[j]) ||
            kv_index_entry(kv->index, seq->blocks[j]).parent != parent)
            return fail_seq(i, "holds a block that the index does not find:", seq->blocks[j]);
    }
    return true;
}

static bool check_holders(const struct kv *kv, const uint32_t *count)
{
    uint32_t n_shared = 0;
    for (uint32_t b = 0; b < kv->n_blocks; b++) {
        if (count[b] != kv->holders[b])
            return fail(-EINVAL, "kv: block %u has %u holders, counted %u", b, kv->holders[b],
                        count[b]),
                   false;
        n_shared += count[b] > 1;
    }
    if (n_shared != kv->n_shared)
        return fail(-EINVAL, "kv: %u blocks are shared, not %u", n_shared, kv->n_shared), false;
    return true;
}

/* Every block is exactly one of: held, in the index, empty. */
static bool check_empty(const struct kv *kv, uint32_t *count)
{
    uint32_t n_unused = 0;
    for (uint32_t b = 0; b < kv->n_blocks; b++)
        n_unused += count[b] == 0 && !is_indexed(kv, b);
    for (uint32_t i = 0; i < kv->n_empty; i++) {
        if (count[kv->empty[i]] != 0 || is_indexed(kv, kv->empty[i])) // or listed twice
            return fail(-EINVAL, "kv: block %u is listed as empty", kv->empty[i]), false;
        count[kv->empty[i]] = 1;
    }
    if (n_unused != kv->n_empty)
        return fail(-EINVAL, "kv: %u blocks are empty, not %u", n_unused, kv->n_empty), false;
    return true;
}

/* Every state is exactly one of: a sequence's, a snapshot, free. */
static bool check_states(const struct kv *kv, const struct kv_seq *const *seqs, uint32_t n_seqs)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_seqs; i++) {
        n += seqs[i]->has_state;
        if (seqs[i]->state_len > seqs[i]->len || seqs[i]->has_state != (kv->states && seqs[i]->len))
            return fail_seq(i, "has a state that does not fit its rows:", seqs[i]->len);
    }
    if (kv->states && !kv_states_check(kv->states, n))
        return fail(-EINVAL, "kv: %u sequences have states, which is not counted", n), false;
    return true;
}

bool kv_check(const struct kv *kv, const struct kv_seq *const *seqs, uint32_t n_seqs)
{
    uint32_t *count = kv->scratch;
    memset(count, 0, kv->n_blocks * sizeof(*count));
    for (uint32_t i = 0; i < n_seqs; i++)
        if (!check_seq(kv, seqs[i], i, count))
            return false;
    if (!check_holders(kv, count) || !check_empty(kv, count) || !check_states(kv, seqs, n_seqs))
        return false;
    return !kv->index || kv_index_check(kv->index, kv->holders, count + kv->n_blocks);
}

/* model.c - planning what a file must hold, then packing it matrix by matrix on all threads. */
#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <xxhash.h>
#include "base/err.h"
#include "base/log.h"
#include "base/rng.h"
#include "model/arch.h"
#include "model/model.h"
#include "model/rope.h"
#include "model/weights_file.h"

/* One tensor of the file and where it goes: a packed matrix, or a vector of floats. */
struct item {
    const struct checkpoint_tensor *tensor;
    enum kernel_type type; // of the tensor
    struct kernel_mat *mat;
    const float **vec;
    uint32_t n_rows;          // of the tensor: those of the matrix, of each expert
    bool is_transposed;       // the vector has the tensor's columns one after another
    size_t bytes;             // in memory, rounded up to KERNEL_ALIGN
    uint32_t before, n_tiles; // as in model_columns()
};

struct model_store {
    const struct checkpoint *checkpoint; // until the weights are loaded
    struct item *items;
    uint32_t n_items, max_items;
    void *weights;
    struct weights_file *file; // that holds the weights; NULL: memory of this process
    float *rope_freqs;
};

struct plan {
    const struct arch *arch;
    struct model *m;
    struct model_store *store;
    int quantise;
};

#define QUANTISE_BLOCK 32 // weights of a block of Q8_0 and Q4_0
#define ITEMS_BESIDE 3

/* ---- types ---- */

/* The kernel's type, and the number that stands for it in a model's digest. Digests name KV blocks
 * on disk and appear as fingerprints. So these numbers never change. They are ggml's type
 * numbers. */
static const struct weight_type {
    bool is_supported;
    enum kernel_type kernel;
    uint32_t in_digest;
} weight_types[CHECKPOINT_TYPES] = {
    [CHECKPOINT_F32] = {true, KERNEL_F32, 0},
    [CHECKPOINT_F16] = {true, KERNEL_F16, 1},
    [CHECKPOINT_BF16] = {true, KERNEL_BF16, 30},
    [CHECKPOINT_Q4_0] = {true, KERNEL_Q4_0, 2},
    [CHECKPOINT_Q4_1] = {true, KERNEL_Q4_1, 3},
    [CHECKPOINT_Q5_0] = {true, KERNEL_Q5_0, 6},
    [CHECKPOINT_Q5_1] = {true, KERNEL_Q5_1, 7},
    [CHECKPOINT_Q8_0] = {true, KERNEL_Q8_0, 8},
    [CHECKPOINT_Q4_K] = {true, KERNEL_Q4_K, 12},
    [CHECKPOINT_Q5_K] = {true, KERNEL_Q5_K, 13},
    [CHECKPOINT_Q6_K] = {true, KERNEL_Q6_K, 14},
    [CHECKPOINT_IQ4_NL] = {true, KERNEL_IQ4_NL, 20},
    [CHECKPOINT_IQ4_XS] = {true, KERNEL_IQ4_XS, 23},
    [CHECKPOINT_MXFP4] = {true, KERNEL_MXFP4, 39},
};

int model_weight_type(const struct checkpoint_tensor *t, enum kernel_type *ret)
{
    if (!weight_types[t->type].is_supported)
        return -ENOTSUP;
    *ret = weight_types[t->type].kernel;
    return 0;
}

/* ---- planning ---- */

static int add_item(struct plan *p, struct item item, size_t bytes)
{
    struct model_store *to = p->store;
    item.bytes = (bytes + KERNEL_ALIGN - 1) / KERNEL_ALIGN * KERNEL_ALIGN;
    if (item.bytes < bytes || __builtin_add_overflow(p->m->bytes, item.bytes, &p->m->bytes) ||
        to->n_items == to->max_items)
        return fail(-ENOMEM, "model: the weights do not fit in memory");
    to->items[to->n_items++] = item;
    return 0;
}

/* Where a matrix or vector of the model comes from. */
struct source {
    enum checkpoint_role role;
    uint32_t layer;     // 0 outside the layers
    uint32_t n_experts; // whose matrices it has; 0: it has one matrix or vector
    bool as_file;       // its type stays
};

/* NULL, with a sentence: missing, or of another shape. */
static const struct checkpoint_tensor *find_tensor(const struct plan *p, struct source from,
                                                   uint32_t n_in, uint32_t n_out)
{
    const struct checkpoint *c = p->store->checkpoint;
    const struct checkpoint_tensor *t = checkpoint_find(c, from.role, from.layer);
    const char *name = checkpoint_role_name(c, from.role, from.layer);
    if (!t) {
        fail(-EINVAL, "%s: tensor %s is missing", checkpoint_path(c), name);
        return NULL;
    }
    const uint32_t want[CHECKPOINT_MAX_DIMS] = {n_in, n_out, from.n_experts ? from.n_experts : 1,
                                                1};
    for (int d = 0; d < CHECKPOINT_MAX_DIMS; d++)
        if (t->shape[d] != want[d]) {
            fail(-EINVAL, "%s: tensor %s is %llu x %llu x %llu x %llu, must be %u x %u x %u",
                 checkpoint_path(c), name, (unsigned long long)t->shape[0],
                 (unsigned long long)t->shape[1], (unsigned long long)t->shape[2],
                 (unsigned long long)t->shape[3], want[0], want[1], want[2]);
            return NULL;
        }
    return t;
}

/* Bits of a weight times 32. */
static uint32_t weight_size(enum kernel_type type)
{
    uint32_t weights, bytes;
    kernel_type_block(type, &weights, &bytes);
    return bytes * 256 / weights;
}

/* What a matrix of the file becomes: smaller, if that is wanted and its rows are whole blocks. */
static enum kernel_type packed_type(const struct plan *p, enum kernel_type from, uint32_t n_in)
{
    enum kernel_type to = (enum kernel_type)p->quantise;
    bool smaller = p->quantise != MODEL_AS_FILE && n_in % QUANTISE_BLOCK == 0 &&
                   weight_size(to) < weight_size(from);
    return smaller ? to : from;
}

static int plan_mat(struct plan *p, struct source from, uint32_t n_in, uint32_t n_out,
                    struct kernel_mat *mat)
{
    enum kernel_type type;
    uint32_t weights, bytes;
    const struct checkpoint_tensor *t = find_tensor(p, from, n_in, n_out);
    if (!t)
        return -EINVAL;
    if (model_weight_type(t, &type) < 0 || kernel_type_block(type, &weights, &bytes) < 0)
        return fail(-ENOTSUP, "%s: tensor %.*s has type %s, which is not supported",
                    checkpoint_path(p->store->checkpoint), (int)t->name.len, t->name.data,
                    t->type_name);
    if (n_in % weights)
        return fail(
            -EINVAL, "%s: tensor %.*s has rows of %u weights, which is not a multiple of %u",
            checkpoint_path(p->store->checkpoint), (int)t->name.len, t->name.data, n_in, weights);
    if (from.n_experts && n_out % KERNEL_TILE)
        return fail(-ENOTSUP, "%s: tensor %.*s has %u rows per expert, not a multiple of %u",
                    checkpoint_path(p->store->checkpoint), (int)t->name.len, t->name.data, n_out,
                    KERNEL_TILE);
    *mat = (struct kernel_mat){
        .type = from.as_file ? type : packed_type(p, type, n_in), .n_out = n_out, .n_in = n_in};
    _Static_assert((uint64_t)ARCH_MAX_WIDTH * ARCH_MAX_EXPERTS <= UINT32_MAX, "n_rows");
    const uint32_t n_rows = n_out * (from.n_experts ? from.n_experts : 1);
    p->m->params.n_weights += (uint64_t)n_in * n_rows;
    struct item item = {.tensor = t,
                        .type = type,
                        .mat = mat,
                        .n_rows = n_rows,
                        .n_tiles = (n_rows + KERNEL_TILE - 1) / KERNEL_TILE};
    return add_item(p, item, kernel_packed_bytes(mat->type, n_rows, n_in));
}

/* Vectors of n floats each. */
static int plan_vecs(struct plan *p, struct source from, uint32_t n, uint32_t n_vecs,
                     bool is_transposed, const float **vec)
{
    enum kernel_type type;
    from.n_experts = 0; // a matrix in the file
    const struct checkpoint_tensor *t = find_tensor(p, from, n, n_vecs);
    if (!t)
        return -EINVAL;
    if (model_weight_type(t, &type) < 0 ||
        (type != KERNEL_F32 && type != KERNEL_F16 && type != KERNEL_BF16))
        return fail(-ENOTSUP, "%s: tensor %.*s has type %s, not F32, F16 or BF16",
                    checkpoint_path(p->store->checkpoint), (int)t->name.len, t->name.data,
                    t->type_name);
    p->m->params.n_weights += (uint64_t)n * n_vecs;
    return add_item(
        p, (struct item){.tensor = t, .type = type, .vec = vec, .is_transposed = is_transposed},
        (size_t)n * n_vecs * sizeof(float));
}

static int plan_vec(struct plan *p, struct source from, uint32_t n, const float **vec)
{
    return plan_vecs(p, from, n, from.n_experts ? from.n_experts : 1, false, vec);
}

/* Plans a tensor of a layer, unless it is optional and missing. ret_planned: 1 or 0. */
static int plan_tensor(struct plan *p, uint32_t layer, const struct arch_tensor *t,
                       uint32_t *ret_planned)
{
    struct model_layer *l = &p->m->layers[layer];
    struct source from = {t->role, layer, t->per_expert ? l->ffn.experts.n : 0,
                          .as_file = t->as_file};
    const uint32_t n_in = arch_size(&p->m->params, l, t->n_in);
    const uint32_t n_out = arch_size(&p->m->params, l, t->n_out);
    void *to = (char *)l + t->to;
    *ret_planned = t->has == ARCH_ALWAYS || checkpoint_find(p->store->checkpoint, t->role, layer);
    if (!*ret_planned)
        return 0;
    if (t->n_out == ARCH_ONE)
        return plan_vec(p, from, n_in, to);
    if (t->is_transposed)
        return plan_vecs(p, from, n_in, n_out, true, to);
    return plan_mat(p, from, n_in, n_out, to);
}

/* A pass applies the last `n` matrices together. */
static void join_last(struct plan *p, uint32_t n)
{
    struct item *of = p->store->items + p->store->n_items - n;
    uint32_t n_tiles = 0;
    for (uint32_t i = 0; i < n; i++) {
        of[i].before = n_tiles;
        n_tiles += of[i].n_tiles;
    }
    for (uint32_t i = 0; i < n; i++)
        of[i].n_tiles = n_tiles;
}

static int plan_layer(struct plan *p, uint32_t layer)
{
    const struct arch_layer *of = p->arch->layer(&p->m->params, layer);
    uint32_t n_joined = 0, n_planned;
    for (uint32_t i = 0; i < of->n_tensors; i++) {
        int r = plan_tensor(p, layer, &of->tensors[i], &n_planned);
        if (r < 0)
            return r;
        n_joined += n_planned;
        if (of->tensors[i].joins_next)
            continue;
        if (n_joined > 1)
            join_last(p, n_joined);
        n_joined = 0;
    }
    return 0;
}

static bool is_planned(const struct plan *p, const struct checkpoint_tensor *t)
{
    for (uint32_t i = 0; i < p->store->n_items; i++)
        if (p->store->items[i].tensor == t)
            return true;
    return false;
}

/* Tensors of the layers for multi-token prediction: blk.N. with N from n_layers on. */
static bool is_skipped(const struct plan *p, const struct checkpoint_tensor *t)
{
    const struct model_params *params = &p->m->params;
    for (uint32_t l = 0; l < params->n_skipped_layers; l++) {
        char prefix[32];
        const int n = snprintf(prefix, sizeof(prefix), "blk.%u.", params->n_layers + l);
        if (t->name.len > (size_t)n && memcmp(t->name.data, prefix, (size_t)n) == 0)
            return true;
    }
    return false;
}

/* A tensor that nothing reads would change the model's output: the file is refused. */
static int refuse_others(const struct plan *p)
{
    const struct checkpoint *c = p->store->checkpoint;
    const struct checkpoint_tensor *rope_freqs = checkpoint_find(c, CHECKPOINT_ROPE_FREQS, 0);
    uint32_t n = checkpoint_n_tensors(c);
    if (n == p->store->n_items + (rope_freqs != NULL))
        return 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct checkpoint_tensor *t = checkpoint_tensor_at(c, i);
        if (t != rope_freqs && !is_planned(p, t) && !is_skipped(p, t))
            return fail(-ENOTSUP, "%s: tensor %.*s is not known in architecture %s",
                        checkpoint_path(c), (int)(t->name.len < 128 ? t->name.len : 128),
                        t->name.data, p->arch->name);
    }
    return 0;
}

/* A pass reads single rows of the embedding, and multiplies by the head. */
static int list_mats(struct plan *p)
{
    struct model *m = p->m;
    m->mats = calloc(p->store->n_items, sizeof(struct kernel_mat *));
    if (!m->mats)
        return fail(-ENOMEM, "model: no memory for a list of matrices");
    for (uint32_t i = 0; i < p->store->n_items; i++) {
        struct kernel_mat *mat = p->store->items[i].mat;
        if (mat && mat != &m->embd && mat != &m->head)
            m->mats[m->n_mats++] = mat;
    }
    m->mats[m->n_mats++] = &m->head;
    return 0;
}

static int plan_all(struct plan *p)
{
    struct model *m = p->m;
    uint32_t n_embd = m->params.n_embd, n_vocab = m->params.n_vocab;
    const struct source embd = {.role = CHECKPOINT_TOKEN_EMBD}, head = {.role = CHECKPOINT_OUTPUT},
                        norm = {.role = CHECKPOINT_OUTPUT_NORM};
    int r = plan_mat(p, embd, n_embd, n_vocab, &m->embd);
    m->head = m->embd; // tied, unless the file has a head
    if (r == 0 && checkpoint_find(p->store->checkpoint, CHECKPOINT_OUTPUT, 0))
        r = plan_mat(p, head, n_embd, n_vocab, &m->head);
    if (r == 0)
        r = plan_vec(p, norm, n_embd, &m->out_norm);
    for (uint32_t l = 0; l < m->params.n_layers && r == 0; l++)
        r = plan_layer(p, l);
    if (r == 0)
        r = list_mats(p);
    return r < 0 ? r : refuse_others(p);
}

/* ---- digest ---- */

static uint64_t mix(uint64_t digest, uint64_t word)
{
    return rng_splitmix64(digest ^ word);
}

/* Digest of rows [from, from + n) of a tensor. Those of disjoint rows are added, so that threads
 * can read a tensor in any order. XXH3: it finds every mistake and every edit, but not a file that
 * was computed to have the digest of another one. It costs 1 % of loading, SHA-256 10 %. */
static uint64_t rows_digest(const char *rows, size_t row_bytes, uint64_t from, uint64_t n)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < n; i++)
        sum +=
            rng_splitmix64(XXH3_64bits(rows + i * row_bytes, row_bytes) ^ rng_splitmix64(from + i));
    return sum;
}

static uint64_t mix_tensor(uint64_t digest, const struct checkpoint_tensor *t, uint64_t rows)
{
    digest = mix(mix(digest, weight_types[t->type].in_digest), t->bytes);
    for (size_t i = 0; i < t->name.len; i++)
        digest = mix(digest, (unsigned char)t->name.data[i]);
    return mix(digest, rows);
}

static uint64_t mix_float(uint64_t digest, float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return mix(digest, bits);
}

/* Of all that a pass depends on beside the weights. */
static uint64_t digest_of(const struct model *m)
{
    const struct model_params *p = &m->params;
    const uint32_t words[] = {p->n_layers, p->n_embd,  p->n_heads,  p->n_kv_heads, p->head_dim,
                              p->n_ff,     p->n_vocab, p->rope_dim, p->rope};
    uint64_t digest = mix_float(mix_float(0, p->norm_eps), p->rope_gain);
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        digest = mix(digest, words[i]);
    if (p->n_experts)
        digest = mix(mix(mix(digest, p->n_experts), p->n_used_experts), p->n_expert_ff);
    if (p->window)
        digest = mix(digest, p->window);
    if (p->full_every)
        digest =
            mix(mix(mix(mix(mix(digest, p->full_every), p->n_delta_k_heads), p->n_delta_v_heads),
                    p->delta_dim),
                p->n_taps);
    for (uint32_t i = 0; i < p->rope_dim / 2; i++)
        digest = mix_float(digest, m->rope_freqs[i]);
    return digest;
}

/* ---- planning and loading ---- */

static void shape_layers(struct plan *p)
{
    struct model *m = p->m;
    for (uint32_t l = 0; l < m->params.n_layers; l++) {
        arch_shape_layer(p->arch, &m->params, l, &m->layers[l]);
        const struct model_attn *a = &m->layers[l].attn;
        const struct model_delta *d = &a->delta;
        m->kv_layers[l] = (struct kv_layer){
            .n_heads = a->n_kv_heads,
            .k_dim = a->k_dim,
            .v_dim = a->v_dim,
            .window = a->window,
            .n_state = d->n_v_heads * d->dim * d->dim,
            .n_logged = model_delta_channels(d) + 2 * d->n_v_heads,
        };
    }
}

int model_plan(const struct checkpoint *c, int quantise, struct model **ret)
{
    AUTO(model_free) struct model *m = calloc(1, sizeof(*m));
    struct model_store *store = m ? m->store = calloc(1, sizeof(*store)) : NULL;
    if (!store)
        return fail(-ENOMEM, "model: no memory");
    struct plan plan = {.m = m, .store = store, .quantise = quantise};
    store->checkpoint = c;
    int r = arch_read(c, &m->params, &plan.arch);
    if (r < 0)
        return r;
    m->layers = calloc(m->params.n_layers, sizeof(*m->layers));
    m->kv_layers = calloc(m->params.n_layers, sizeof(*m->kv_layers));
    store->max_items = ITEMS_BESIDE;
    for (uint32_t l = 0; l < m->params.n_layers; l++)
        store->max_items += plan.arch->layer(&m->params, l)->n_tensors;
    store->items = calloc(store->max_items, sizeof(*store->items));
    store->rope_freqs = calloc(m->params.rope_dim / 2, sizeof(float));
    if (!m->layers || !m->kv_layers || !store->items || !store->rope_freqs)
        return fail(-ENOMEM, "model: no memory for %u layers", m->params.n_layers);
    m->rope_freqs = store->rope_freqs;
    shape_layers(&plan);
    if (m->params.n_skipped_layers)
        log_info("%s: %u layers for multi-token prediction are not loaded", checkpoint_path(c),
                 m->params.n_skipped_layers);
    r = rope_read(c, &m->params, store->rope_freqs, &m->params.rope_gain);
    if (r == 0)
        r = plan_all(&plan);
    if (r < 0)
        return r;
    m->digest = digest_of(m);
    *ret = TAKE(m);
    return 0;
}

#define BAND_BYTES (256u << 10) // of a file, read by a thread, then packed: stays in its L2 cache

struct load {
    struct model *m;
    const struct model_load_options *opt;
    const struct item *item; // being packed
    char *to;                // where
    size_t done;             // of the items before
    char *bands;             // (threads, band_bytes)
    size_t band_bytes;
    _Atomic uint64_t rows; // sum of rows_digest() of the item
    atomic_bool cancelled;
    atomic_int err;          // of the first thread that failed
    char why[FAIL_TEXT_MAX]; // its sentence
};

/* Reports the progress of loading: `bytes` of the item are done. Loading thread only. */
static void report_progress(struct load *l, double bytes)
{
    double done = (double)l->done + bytes;
    if (l->opt->progress && !l->opt->progress(l->opt->arg, (float)(done / (double)l->m->bytes)))
        atomic_store(&l->cancelled, true);
}

/* Stops all threads. Only the first one writes its sentence; they are joined before it is read. */
static void stop_load(struct load *l, int err)
{
    int none = 0;
    if (atomic_compare_exchange_strong(&l->err, &none, err))
        snprintf(l->why, sizeof(l->why), "%s", fail_text());
}

/* Rows of a matrix that a thread reads in one piece: whole tiles. */
static uint32_t band_rows(const struct item *it)
{
    uint32_t rows = (uint32_t)(BAND_BYTES / (it->tensor->bytes / it->n_rows));
    return rows < KERNEL_TILE ? KERNEL_TILE : rows / KERNEL_TILE * KERNEL_TILE;
}

/* Columns [a, b) of a matrix, whose rows in the file are given, rounded to its type on the way. */
static int pack_quantised(struct load *l, const char *rows, uint32_t a, uint32_t b)
{
    const struct kernel_mat *w = l->item->mat;
    uint32_t weights, block;
    kernel_type_block(w->type, &weights, &block);
    size_t from_bytes = l->item->tensor->bytes / l->item->n_rows;
    size_t to_bytes = (size_t)w->n_in / weights * block;
    AUTO(mem_free) float *row = malloc(w->n_in * sizeof(*row));
    AUTO(mem_free) char *band = malloc((b - a) * to_bytes);
    if (!row || !band)
        return fail(-ENOMEM, "model: no memory to quantise");
    for (uint32_t i = 0; i < b - a; i++) {
        kernel_dequant(l->item->type, rows + i * from_bytes, w->n_in, row);
        kernel_quantise(w->type, row, w->n_in, band + i * to_bytes);
    }
    kernel_pack(w->type, band, b - a, w->n_in, 0, b - a,
                l->to + kernel_packed_bytes(w->type, a, w->n_in));
    return 0;
}

/* Reads, digests and packs columns [a, b) of a matrix. */
static int pack_band(struct load *l, char *rows, uint32_t a, uint32_t b)
{
    const struct kernel_mat *w = l->item->mat;
    const struct checkpoint_tensor *t = l->item->tensor;
    size_t row_bytes = t->bytes / l->item->n_rows;
    int r = checkpoint_read(l->m->store->checkpoint, t, a * row_bytes, (b - a) * row_bytes, rows);
    if (r < 0)
        return r;
    atomic_fetch_add(&l->rows, rows_digest(rows, row_bytes, a, b - a));
    if (w->type != l->item->type)
        return pack_quantised(l, rows, a, b);
    kernel_pack(w->type, rows, b - a, w->n_in, 0, b - a,
                l->to + kernel_packed_bytes(w->type, a, w->n_in));
    return 0;
}

static void pack_share(void *arg, unsigned i, unsigned n)
{
    struct load *l = arg;
    uint32_t from, to, band = band_rows(l->item);
    model_columns(l->item->n_rows, l->item->before, l->item->n_tiles, i, n, &from, &to);
    for (uint32_t a = from, b; a < to; a = b) {
        if (atomic_load(&l->cancelled) || atomic_load(&l->err))
            return;
        b = to - a < band ? to : a + band;
        int r = pack_band(l, l->bands + i * l->band_bytes, a, b);
        if (r < 0)
            stop_load(l, r);
        if (i == 0)
            report_progress(l, (double)l->item->bytes * (b - from) / (to - from));
    }
}

static void load_vector(struct load *l)
{
    const struct item *it = l->item;
    const struct checkpoint_tensor *t = it->tensor;
    int r = checkpoint_read(l->m->store->checkpoint, t, 0, t->bytes, l->bands);
    if (r < 0)
        return stop_load(l, r);
    atomic_store(&l->rows, rows_digest(l->bands, t->bytes, 0, 1));
    const uint32_t n = (uint32_t)t->shape[0], n_vecs = (uint32_t)t->shape[1];
    float *to = (float *)(void *)l->to;
    if (!it->is_transposed) {
        kernel_dequant(it->type, l->bands, n * n_vecs, to);
        return;
    }
    AUTO(mem_free) float *row = malloc(n * sizeof(*row));
    if (!row)
        return stop_load(l, fail(-ENOMEM, "model: no memory for a vector"));
    for (uint32_t v = 0; v < n_vecs; v++) {
        kernel_dequant(it->type, l->bands + v * (t->bytes / n_vecs), n, row);
        for (uint32_t i = 0; i < n; i++)
            to[(size_t)i * n_vecs + v] = row[i];
    }
}

static void load_item(struct load *l)
{
    const struct item *it = l->item;
    atomic_store(&l->rows, 0);
    if (it->mat)
        pool_run(l->opt->pool, pack_share, l);
    else
        load_vector(l);
    l->m->digest = mix_tensor(l->m->digest, it->tensor, atomic_load(&l->rows));
}

static int load_items(struct load *l)
{
    const struct model_store *store = l->m->store;
    for (uint32_t i = 0; i < store->n_items; i++) {
        l->item = &store->items[i];
        l->to = (char *)store->weights + l->done;
        report_progress(l, 0);
        if (i + 1 < store->n_items)
            checkpoint_prefetch(store->checkpoint, store->items[i + 1].tensor);
        if (!atomic_load(&l->cancelled))
            load_item(l);
        if (atomic_load(&l->cancelled))
            return fail(-ECANCELED, "model: loading was cancelled");
        if (atomic_load(&l->err))
            return fail(atomic_load(&l->err), "%s", l->why);
        l->done += l->item->bytes;
    }
    report_progress(l, 0);
    return 0;
}

/* The most bytes that a thread reads at a time. */
static size_t largest_band(const struct model_store *store)
{
    size_t bytes, most = 0;
    for (uint32_t i = 0; i < store->n_items; i++) {
        const struct item *it = &store->items[i];
        bytes = it->tensor->bytes;
        if (it->mat)
            bytes = bytes / it->n_rows * band_rows(it);
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* Points matrices and vectors to their weights. */
static void place_items(struct model *m)
{
    const struct model_store *store = m->store;
    const char *at = store->weights;
    for (uint32_t i = 0; i < store->n_items; i++) {
        const struct item *it = &store->items[i];
        if (it->mat)
            it->mat->data = at;
        else
            *it->vec = (const float *)(const void *)at;
        at += it->bytes;
    }
    if (!m->head.data)
        m->head.data = m->embd.data;
}

/* ---- packed weights in a file ---- */

#define WAIT_NS 100000000 // between two looks at a file that another process writes

static struct weights_file_key file_key(const struct model *m)
{
    const struct model_store *store = m->store;
    uint64_t plan = mix(mix(0, KERNEL_PACKING), checkpoint_head_digest(store->checkpoint));
    for (uint32_t i = 0; i < store->n_items; i++) {
        const struct item *it = &store->items[i];
        plan = mix(mix_tensor(plan, it->tensor, it->bytes), it->mat ? it->mat->type : KERNEL_F32);
    }
    return (struct weights_file_key){checkpoint_identity(store->checkpoint), plan, m->bytes};
}

/* A model in memory has no identity, so nothing is kept of it. */
static bool has_cache(const struct model *m, const char *cache)
{
    return cache && *cache && checkpoint_identity(m->store->checkpoint);
}

size_t model_cached_bytes(const struct model *m, const char *cache)
{
    const struct weights_file_key key = file_key(m);
    return has_cache(m, cache) ? weights_file_resident(cache, &key) : 0;
}

/* The complete file, else a new one to write. ret_done: it is complete. */
static int open_file(struct load *l, bool *ret_done)
{
    struct model_store *store = l->m->store;
    const struct weights_file_key key = file_key(l->m);
    uint64_t digest;
    for (;;) {
        int r = weights_file_open(l->opt->cache, &key, l->opt->pool, &digest, &store->file);
        *ret_done = r == 0;
        if (r == 0)
            l->m->digest = digest;
        if (r == -ENOENT)
            r = weights_file_new(l->opt->cache, &key, &store->file);
        report_progress(l, 0);
        if (r != -EBUSY || atomic_load(&l->cancelled))
            return r;
        nanosleep(&(struct timespec){.tv_nsec = WAIT_NS}, NULL);
    }
}

/* Memory for the weights: a file of the cache, or this process's own. ret_done: it holds them. */
static int find_memory(struct load *l, bool *ret_done)
{
    struct model *m = l->m;
    *ret_done = false;
    if (has_cache(m, l->opt->cache)) {
        if (open_file(l, ret_done) == 0) {
            m->store->weights = weights_file_data(m->store->file);
            if (*ret_done)
                log_info("packed weights are mapped from the weights_cache");
            return 0;
        }
        log_warn("weights_cache is not used: %s", fail_text());
    }
    void *at = mmap(NULL, m->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return fail(-ENOMEM, "model: no memory for %zu MiB of weights", m->bytes >> 20);
    m->store->weights = at;
    madvise(at, m->bytes, MADV_HUGEPAGE); // a pass takes 1 to 4 % less (docs/benchmarks.md)
    return 0;
}

static int pack_all(struct load *l)
{
    struct model_store *store = l->m->store;
    l->band_bytes = largest_band(store);
    AUTO(mem_free) char *bands = reallocarray(NULL, pool_threads(l->opt->pool), l->band_bytes);
    if (!bands)
        return fail(-ENOMEM, "model: no memory to read the file");
    l->bands = bands;
    int r = load_items(l);
    if (r == 0 && store->file && weights_file_finish(store->file, l->opt->pool, l->m->digest) < 0)
        log_warn("weights_cache has no packed weights of this model: %s", fail_text());
    return r;
}

int model_load(struct model *m, const struct model_load_options *opt)
{
    struct model_store *store = m->store;
    assert(store->checkpoint);
    struct load l = {.m = m, .opt = opt};
    bool done;
    m->kernel = opt->kernel;
    int r = find_memory(&l, &done);
    if (r == 0 && !done)
        r = pack_all(&l);
    if (r < 0)
        return r;
    place_items(m);
    free(TAKE(store->items));
    store->checkpoint = NULL;
    return 0;
}

void model_free(struct model *m)
{
    if (!m)
        return;
    if (m->store) {
        if (m->store->weights && !m->store->file)
            munmap(m->store->weights, m->bytes);
        weights_file_free(m->store->file);
        free(m->store->rope_freqs);
        free(m->store->items);
    }
    free(m->store);
    free(m->mats);
    free(m->layers);
    free(m->kv_layers);
    free(m);
}

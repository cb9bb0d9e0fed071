/* model.c - planning what a file must hold, then packing it matrix by matrix on all threads. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/rng.h"
#include "model/arch.h"
#include "model/model.h"
#include "model/room.h"
#include "model/rope.h"

struct model_store {
    void *weights;
    size_t bytes;
    float *rope_freqs;
};

/* One tensor of the file and where it goes: a packed matrix, or a vector of floats. */
struct item {
    const struct gguf_tensor *tensor;
    struct kernel_mat *mat;
    const float **vec;
    size_t bytes; // in memory, rounded up to KERNEL_ALIGN
};

struct plan {
    const struct gguf *g;
    const struct arch *arch;
    struct model *m;
    struct item *items;
    uint32_t n_items, max_items;
    size_t bytes;
};

#define ITEMS_PER_LAYER 14
#define ITEMS_BESIDE 3

/* ---- planning ---- */

static int add_item(struct plan *p, struct item item, size_t bytes)
{
    item.bytes = (bytes + KERNEL_ALIGN - 1) / KERNEL_ALIGN * KERNEL_ALIGN;
    if (item.bytes < bytes || __builtin_add_overflow(p->bytes, item.bytes, &p->bytes) ||
        p->n_items == p->max_items)
        return fail(-ENOMEM, "model: the weights do not fit in memory");
    p->items[p->n_items++] = item;
    return 0;
}

/* NULL, with a sentence: missing, or of another shape. */
static const struct gguf_tensor *find_tensor(const struct plan *p, const char *name, uint32_t n_in,
                                             uint32_t n_out)
{
    const struct gguf_tensor *t = gguf_find(p->g, name);
    if (!t) {
        fail(-EINVAL, "model: tensor %s is missing", name);
        return NULL;
    }
    for (int d = 0; d < GGUF_MAX_DIMS; d++)
        if (t->shape[d] != (d == 0 ? n_in : d == 1 ? n_out : 1)) {
            fail(-EINVAL, "model: tensor %s is %llu x %llu x %llu x %llu, must be %u x %u", name,
                 (unsigned long long)t->shape[0], (unsigned long long)t->shape[1],
                 (unsigned long long)t->shape[2], (unsigned long long)t->shape[3], n_in, n_out);
            return NULL;
        }
    return t;
}

static int check_type(const struct gguf_tensor *t, const char *name, uint32_t n_in)
{
    uint32_t weights, bytes;
    if (kernel_type_block((enum kernel_type)t->type, &weights, &bytes) < 0)
        return fail(-ENOTSUP, "model: tensor %s has type %s, which is not supported", name,
                    gguf_type_name(t->type));
    if (n_in % weights)
        return fail(-EINVAL, "model: rows of %u of tensor %s are no multiple of %u", n_in, name,
                    weights);
    return 0;
}

static int plan_mat(struct plan *p, const char *name, uint32_t n_in, uint32_t n_out,
                    struct kernel_mat *mat)
{
    const struct gguf_tensor *t = find_tensor(p, name, n_in, n_out);
    if (!t)
        return -EINVAL;
    int r = check_type(t, name, n_in);
    if (r < 0)
        return r;
    *mat = (struct kernel_mat){(enum kernel_type)t->type, n_out, n_in, NULL};
    p->m->params.n_weights += (uint64_t)n_in * n_out;
    return add_item(p, (struct item){.tensor = t, .mat = mat},
                    kernel_packed_bytes(mat->type, n_out, n_in));
}

static int plan_vec(struct plan *p, const char *name, uint32_t n, const float **vec)
{
    const struct gguf_tensor *t = find_tensor(p, name, n, 1);
    if (!t)
        return -EINVAL;
    if (t->type != GGUF_F32 && t->type != GGUF_F16 && t->type != GGUF_BF16)
        return fail(-ENOTSUP, "model: tensor %s has type %s, not F32, F16 or BF16", name,
                    gguf_type_name(t->type));
    p->m->params.n_weights += n;
    return add_item(p, (struct item){.tensor = t, .vec = vec}, n * sizeof(float));
}

struct layer_mat {
    const char *name;
    uint32_t n_in, n_out;
    struct kernel_mat *mat;
};
struct layer_vec {
    const char *name;
    uint32_t n;
    const float **vec;
    enum arch_has has;
};

static int plan_layer_mats(struct plan *p, uint32_t layer, const struct layer_mat *mats, size_t n)
{
    char name[64];
    int r = 0;
    for (size_t i = 0; i < n && r == 0; i++) {
        snprintf(name, sizeof(name), "blk.%u.%s.weight", layer, mats[i].name);
        r = plan_mat(p, name, mats[i].n_in, mats[i].n_out, mats[i].mat);
    }
    return r;
}

static int plan_layer_vecs(struct plan *p, uint32_t layer, const struct layer_vec *vecs, size_t n)
{
    char name[64];
    int r = 0;
    for (size_t i = 0; i < n && r == 0; i++) {
        snprintf(name, sizeof(name), "blk.%u.%s", layer, vecs[i].name);
        if (vecs[i].has == ARCH_ALWAYS || (vecs[i].has == ARCH_MAYBE && gguf_find(p->g, name)))
            r = plan_vec(p, name, vecs[i].n, vecs[i].vec);
    }
    return r;
}

static int plan_layer(struct plan *p, uint32_t layer)
{
    const struct model_params *s = &p->m->params;
    struct model_layer *l = &p->m->layers[layer];
    uint32_t n_q = s->n_heads * s->head_dim, n_kv = s->n_kv_heads * s->head_dim;
    const struct layer_mat mats[] = {
        {"attn_q", s->n_embd, n_q, &l->q},          {"attn_k", s->n_embd, n_kv, &l->k},
        {"attn_v", s->n_embd, n_kv, &l->v},         {"attn_output", n_q, s->n_embd, &l->o},
        {"ffn_gate", s->n_embd, s->n_ff, &l->gate}, {"ffn_up", s->n_embd, s->n_ff, &l->up},
        {"ffn_down", s->n_ff, s->n_embd, &l->down},
    };
    const struct layer_vec vecs[] = {
        {"attn_norm.weight", s->n_embd, &l->attn_norm, ARCH_ALWAYS},
        {"ffn_norm.weight", s->n_embd, &l->ffn_norm, ARCH_ALWAYS},
        {"attn_q_norm.weight", s->head_dim, &l->q_norm, p->arch->qk_norm},
        {"attn_k_norm.weight", s->head_dim, &l->k_norm, p->arch->qk_norm},
        {"attn_q.bias", n_q, &l->q_bias, p->arch->qkv_bias},
        {"attn_k.bias", n_kv, &l->k_bias, p->arch->qkv_bias},
        {"attn_v.bias", n_kv, &l->v_bias, p->arch->qkv_bias},
    };
    int r = plan_layer_vecs(p, layer, vecs, ARRAY_LEN(vecs));
    return r < 0 ? r : plan_layer_mats(p, layer, mats, ARRAY_LEN(mats));
}

static bool is_planned(const struct plan *p, const struct gguf_tensor *t)
{
    for (uint32_t i = 0; i < p->n_items; i++)
        if (p->items[i].tensor == t)
            return true;
    return false;
}

/* A tensor that nobody reads would change what the model says: better refused than ignored. */
static int refuse_others(const struct plan *p)
{
    uint32_t n = gguf_n_tensors(p->g), n_known = p->n_items;
    n_known += gguf_find(p->g, "rope_freqs.weight") != NULL;
    if (n == n_known)
        return 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct gguf_tensor *t = gguf_tensor_at(p->g, i);
        if (t->name.len == 17 && memcmp(t->name.data, "rope_freqs.weight", 17) == 0)
            continue;
        if (!is_planned(p, t))
            return fail(-ENOTSUP, "model: tensor %.*s is not known in architecture %s",
                        (int)(t->name.len < 128 ? t->name.len : 128), t->name.data, p->arch->name);
    }
    return 0;
}

static int plan_all(struct plan *p)
{
    struct model *m = p->m;
    int r = plan_mat(p, "token_embd.weight", m->params.n_embd, m->params.n_vocab, &m->embd);
    if (r == 0 && gguf_find(p->g, "output.weight"))
        r = plan_mat(p, "output.weight", m->params.n_embd, m->params.n_vocab, &m->head);
    if (r == 0)
        r = plan_vec(p, "output_norm.weight", m->params.n_embd, &m->out_norm);
    for (uint32_t l = 0; l < m->params.n_layers && r == 0; l++)
        r = plan_layer(p, l);
    return r < 0 ? r : refuse_others(p);
}

/* Reads shapes and finds all tensors; m gets everything but the weights. */
static int make_plan(const struct gguf *g, struct model *m, struct plan *ret)
{
    *ret = (struct plan){.g = g, .m = m};
    int r = arch_read(g, &m->params, &ret->arch);
    if (r < 0)
        return r;
    m->layers = calloc(m->params.n_layers, sizeof(*m->layers));
    m->store = calloc(1, sizeof(*m->store));
    ret->max_items = m->params.n_layers * ITEMS_PER_LAYER + ITEMS_BESIDE;
    ret->items = calloc(ret->max_items, sizeof(*ret->items));
    if (!m->layers || !m->store || !ret->items)
        return fail(-ENOMEM, "model: no memory for %u layers", m->params.n_layers);
    m->store->rope_freqs = calloc(m->params.rope_dim / 2, sizeof(float));
    if (!m->store->rope_freqs)
        return fail(-ENOMEM, "model: no memory");
    m->rope_freqs = m->store->rope_freqs;
    r = rope_read(g, ret->arch, &m->params, m->store->rope_freqs, &m->params.rope_gain);
    return r < 0 ? r : plan_all(ret);
}

/* ---- loading ---- */

struct pack_job {
    const struct gguf_tensor *tensor;
    const struct kernel_mat *mat;
    void *to;
};

static void pack_share(void *arg, unsigned i, unsigned n)
{
    struct pack_job *j = arg;
    uint32_t from, to;
    pool_share(i, n, j->mat->n_out, KERNEL_TILE, &from, &to);
    if (from < to)
        kernel_pack(j->mat->type, j->tensor->data, j->mat->n_out, j->mat->n_in, from, to, j->to);
}

static uint64_t mix(uint64_t digest, uint64_t word)
{
    return rng_splitmix64(digest ^ word);
}

#define DIGEST_SAMPLES 64 // words of each tensor, evenly spread

static uint64_t mix_tensor(uint64_t digest, const struct gguf_tensor *t)
{
    digest = mix(mix(digest, t->type), t->bytes);
    for (size_t i = 0; i < t->name.len; i++)
        digest = mix(digest, (unsigned char)t->name.data[i]);
    size_t n_words = t->bytes / 8, n = n_words < DIGEST_SAMPLES ? n_words : DIGEST_SAMPLES;
    for (size_t i = 0; i < n; i++) {
        uint64_t word;
        memcpy(&word, (const char *)t->data + n_words / n * i * 8, sizeof(word));
        digest = mix(digest, word);
    }
    return digest;
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
    for (uint32_t i = 0; i < p->rope_dim / 2; i++)
        digest = mix_float(digest, m->rope_freqs[i]);
    return digest;
}

#define PROGRESS_US 200000

static int load_items(struct plan *p, const struct model_load_options *opt)
{
    size_t done = 0;
    int64_t told_us = 0;
    char *to = p->m->store->weights;
    for (uint32_t i = 0; i < p->n_items; i++) {
        struct item *it = &p->items[i];
        if (opt->progress && clock_us() - told_us >= PROGRESS_US) {
            if (!opt->progress(opt->arg, (float)((double)done / (double)p->bytes)))
                return fail(-ECANCELED, "model: loading was cancelled");
            told_us = clock_us();
        }
        gguf_advise(p->g, it->tensor, true);
        if (it->mat) {
            pool_run(opt->pool, pack_share, &(struct pack_job){it->tensor, it->mat, to + done});
            it->mat->data = to + done;
        } else {
            kernel_dequant((enum kernel_type)it->tensor->type, it->tensor->data,
                           (uint32_t)it->tensor->shape[0], (float *)(void *)(to + done));
            *it->vec = (const float *)(void *)(to + done);
        }
        p->m->digest = mix_tensor(p->m->digest, it->tensor);
        gguf_advise(p->g, it->tensor, false);
        done += it->bytes;
    }
    if (opt->progress)
        opt->progress(opt->arg, 1);
    return 0;
}

static int reserve(struct model *m, size_t bytes)
{
    int r = room_check(bytes, "the weights");
    if (r < 0)
        return r;
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return fail(-ENOMEM, "model: no memory for %zu MiB of weights", bytes >> 20);
    m->store->weights = at;
    m->store->bytes = m->bytes = bytes;
    return 0;
}

int model_load(const struct gguf *g, const struct model_load_options *opt, struct model **ret)
{
    AUTO(model_free) struct model *m = calloc(1, sizeof(*m));
    if (!m)
        return fail(-ENOMEM, "model: no memory");
    struct plan plan;
    int r = make_plan(g, m, &plan);
    AUTO(mem_free) struct item *items = plan.items;
    if (r < 0)
        return r;
    if ((r = reserve(m, plan.bytes)) < 0)
        return r;
    m->kernel = opt->kernel;
    m->digest = digest_of(m);
    if ((r = load_items(&plan, opt)) < 0)
        return r;
    if (!m->head.data)
        m->head = m->embd;
    *ret = TAKE(m);
    return 0;
}

void model_free(struct model *m)
{
    if (!m)
        return;
    if (m->store) {
        if (m->store->weights)
            munmap(m->store->weights, m->store->bytes);
        free(m->store->rope_freqs);
    }
    free(m->store);
    free(m->layers);
    free(m);
}

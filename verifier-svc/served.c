/* served.c - opens, loads and measures out a model. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "base/log.h"
#include "base/rng.h"
#include "model/room.h"
#include "verifier-svc/accept.h"
#include "verifier-svc/served.h"

#define ARITHMETIC 1 // changes whenever a kernel's or the forward pass's bits do
#define KV_TYPE "f16"
#define LOGITS_BYTES (64u << 20) // more rows of logits than are needed anyhow, up to this
#define MIN_BLOCKS 2             // of the KV pool
#define SHORT_CONTEXT 512        // positions that a pool without a size of its own is made for
#define BESIDE_BYTES (16u << 20)
#define BESIDE_THREAD_BYTES (2u << 20) // a MiB of the file that it packs, and pages read around it

/* "/models/tales-11m-q8_0.gguf" is called tales-11m-q8_0. */
static char *name_of(const struct options *o)
{
    if (o->name)
        return strdup(o->name);
    const char *slash = strrchr(o->model, '/');
    char *name = strdup(slash ? slash + 1 : o->model);
    char *dot = name ? strrchr(name, '.') : NULL;
    if (dot && dot != name && strcmp(dot, ".gguf") == 0)
        *dot = 0;
    return name;
}

int served_open(const struct options *o, struct served **ret)
{
    AUTO(served_free) struct served *s = calloc(1, sizeof(*s));
    if (!s)
        return fail(-ENOMEM, "no memory for a model");
    s->name = name_of(o);
    if (!s->name)
        return fail(-ENOMEM, "no memory for a model's name");
    int err = gguf_open(o->model, &s->gguf);
    if (!err)
        err = tok_new(s->gguf, &s->tok);
    if (err < 0)
        return err;
    *ret = TAKE(s);
    return 0;
}

/* The type that most bytes of the file have. */
static const char *main_type(const struct gguf *g)
{
    size_t bytes[64] = {0};
    uint32_t best = 0;
    for (uint32_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        if ((uint32_t)t->type >= 64)
            continue;
        bytes[t->type] += t->bytes;
        if (bytes[t->type] > bytes[best])
            best = t->type;
    }
    return gguf_type_name(best);
}

static void set_fingerprint(struct served *s)
{
    uint64_t d = rng_splitmix64(s->model->digest ^ ARITHMETIC);
    d = rng_splitmix64(d ^ tok_digest(s->tok));
    for (const char *c = KV_TYPE; *c; c++)
        d = rng_splitmix64(d ^ (uint8_t)*c);
    snprintf(s->fingerprint, sizeof(s->fingerprint), "fp_%016llx", (unsigned long long)d);
}

/* What is told about the file, before it is closed. */
static int keep_facts(struct served *s)
{
    struct gguf_text template;
    s->weight_type = main_type(s->gguf);
    s->created = gguf_modified(s->gguf);
    set_fingerprint(s);
    if (gguf_str(s->gguf, "tokenizer.chat_template", &template) < 0)
        return 0;
    s->chat_template = malloc(template.len + 1);
    if (!s->chat_template)
        return fail(-ENOMEM, "no memory for a chat template");
    memcpy(s->chat_template, template.data, template.len);
    s->template_len = template.len;
    return 0;
}

static uint32_t blocks_of(uint64_t positions)
{
    return (uint32_t)((positions + KV_BLOCK - 1) / KV_BLOCK);
}

static uint32_t logits_rows(const struct served *s, const struct options *o)
{
    uint32_t needed = (uint32_t)o->max_sequences + ACCEPT_MAX;
    uint32_t rows = LOGITS_BYTES / (s->model->params.n_vocab * (uint32_t)sizeof(float));
    if (rows < needed)
        rows = needed;
    return rows < o->max_batch_rows ? rows : (uint32_t)o->max_batch_rows;
}

static struct forward_options forward_options(const struct served *s, const struct options *o)
{
    return (struct forward_options){.max_rows = (uint32_t)o->max_batch_rows,
                                    .max_logits = s->max_logits};
}

static struct kv_shape kv_shape(const struct served *s)
{
    const struct model_params *p = &s->model->params;
    return (struct kv_shape){p->n_layers, p->n_kv_heads, p->head_dim};
}

/* ---- memory ---- */

size_t served_bytes(const struct served_memory *m)
{
    return m->weights + m->kv + m->activations + m->beside;
}

/* Blocks of the pool: as asked, or for all sequences within a quarter of what is left free, but for
 * a short context at least: what does not even hold that is refused. */
static uint64_t wanted_blocks(const struct served *s, const struct options *o, size_t block_bytes,
                              size_t left)
{
    if (o->kv_mib)
        return ((uint64_t)o->kv_mib << 20) / block_bytes;
    uint64_t all = (uint64_t)blocks_of(s->context) * (uint64_t)o->max_sequences;
    uint64_t quarter = left / 4 / block_bytes;
    uint64_t least = blocks_of(s->context < SHORT_CONTEXT ? s->context : SHORT_CONTEXT);
    quarter = quarter > least ? quarter : least;
    return all < quarter ? all : quarter;
}

static int measure_kv(struct served *s, const struct options *o, size_t left)
{
    struct kv_shape shape = kv_shape(s);
    size_t block_bytes = kv_block_bytes(&shape);
    s->context = s->model->params.n_ctx_train;
    if (o->context)
        s->context = (uint32_t)o->context;
    if (s->context > s->model->params.n_ctx_train)
        log_warn("context=%u is longer than the %u positions the model was trained for", s->context,
                 s->model->params.n_ctx_train);

    uint64_t blocks = wanted_blocks(s, o, block_bytes, left);
    s->n_blocks = blocks < KV_MAX_BLOCKS ? (uint32_t)blocks : KV_MAX_BLOCKS;
    if (s->n_blocks < MIN_BLOCKS)
        return fail(-ENOMEM, "the KV pool would hold %u blocks of %zu KiB, at least %d are needed",
                    s->n_blocks, block_bytes >> 10, MIN_BLOCKS);
    if (s->n_blocks < blocks_of(s->context)) { // one sequence must fit, or it could never end
        s->context = s->n_blocks * KV_BLOCK;
        log_warn("the KV pool has room for %u positions, so that is the longest context",
                 s->context);
    }
    s->memory.kv = s->n_blocks * block_bytes;
    return 0;
}

static int refuse(const struct served *s, size_t available)
{
    const struct served_memory *m = &s->memory;
    size_t all = served_bytes(m), rest_mib = (all - m->kv) >> 20, room_mib = available >> 20;
    char advice[128] = "a smaller model or type of weights is needed, or fewer max_batch_rows";
    if (rest_mib + 1 + (m->kv / s->n_blocks * MIN_BLOCKS >> 20) < room_mib)
        snprintf(advice, sizeof(advice), "kv_mib=%zu would fit", room_mib - rest_mib - 1);
    return fail(-ENOMEM,
                "not enough memory: %zu MiB needed (weights %zu, KV pool %zu, activations %zu, "
                "beside %zu), %zu MiB available; %s",
                all >> 20, m->weights >> 20, m->kv >> 20, m->activations >> 20, m->beside >> 20,
                room_mib, advice);
}

/* What the planned model and its sequences will take, against what is there. */
static int measure_out(struct served *s, const struct options *o)
{
    struct served_memory *m = &s->memory;
    size_t available = room_available("");
    s->max_logits = logits_rows(s, o);
    const struct forward_options fo = forward_options(s, o);
    m->weights = s->model->bytes;
    m->activations = forward_bytes(s->model, s->pool, &fo);
    m->beside = BESIDE_BYTES + pool_threads(s->pool) * (size_t)BESIDE_THREAD_BYTES;
    size_t taken = served_bytes(m);
    size_t left = available > taken ? available - taken : 0;
    int err = measure_kv(s, o, o->memory_check ? left : available);
    if (err < 0)
        return err;
    log_info("loading the model needed_mib=%zu weights_mib=%zu kv_mib=%zu activations_mib=%zu "
             "available_mib=%zu",
             served_bytes(m) >> 20, m->weights >> 20, m->kv >> 20, m->activations >> 20,
             available >> 20);
    return o->memory_check && served_bytes(m) > available ? refuse(s, available) : 0;
}

/* ---- loading ---- */

static int check_vocabulary(const struct served *s)
{
    if (tok_n_vocab(s->tok) <= s->model->params.n_vocab)
        return 0;
    return fail(-EINVAL, "the tokenizer has %u tokens, the model only %u", tok_n_vocab(s->tok),
                s->model->params.n_vocab);
}

/* The weights and what is told about the file, which is closed then. */
static int load_file(struct served *s, const struct model_load_options *opt)
{
    int err = model_load(s->model, opt);
    if (!err)
        err = keep_facts(s);
    if (!err)
        gguf_close(TAKE(s->gguf));
    return err;
}

int served_load(struct served *s, const struct options *o, bool (*progress)(void *arg, float done),
                void *arg)
{
    int err = kernel_init(&s->kernel);
    if (!err)
        err = pool_new((unsigned)o->threads, o->pin, &s->pool);
    if (!err)
        err = model_plan(s->gguf, &s->model);
    if (!err)
        err = check_vocabulary(s);
    if (!err)
        err = measure_out(s, o);
    if (!err)
        err = load_file(s, &(struct model_load_options){s->pool, s->kernel, progress, arg});
    if (err < 0)
        return err;

    const struct kv_shape shape = kv_shape(s);
    const struct forward_options fo = forward_options(s, o);
    err = kv_new(&shape, s->n_blocks, &s->kv);
    if (!err)
        err = forward_new(s->model, s->kv, s->pool, &fo, &s->forward);
    /* Rows beyond the vocabulary are padding and cannot be drawn. */
    return err ? err : dist_new(tok_n_vocab(s->tok), s->kernel, &s->dist);
}

void served_free(struct served *s)
{
    if (!s)
        return;
    dist_free(s->dist);
    forward_free(s->forward);
    kv_free(s->kv);
    model_free(s->model);
    pool_free(s->pool);
    tok_free(s->tok);
    gguf_close(s->gguf);
    free(s->chat_template);
    free(s->name);
    free(s);
}

/* arch.c - the table of architectures, and the shape of a model from its file's metadata. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/err.h"
#include "model/arch.h"

static const struct arch archs[] = {
    /* Llama 1 .. 3.x, Mistral, SmolLM and the like. The converter reorders the rows of Q and K so
     * that the halves of a rotation become neighbours. */
    {"llama", MODEL_ROPE_PAIRS, .qkv_bias = ARCH_MAYBE, .qk_norm = ARCH_NEVER},
    {"qwen2", MODEL_ROPE_HALVES, .qkv_bias = ARCH_ALWAYS, .qk_norm = ARCH_NEVER},
    {"qwen3", MODEL_ROPE_HALVES, .qkv_bias = ARCH_NEVER, .qk_norm = ARCH_ALWAYS},
};

#define ARCH_NAMES "llama, qwen2, qwen3"

/* NULL: not in the table. */
static const struct arch *find_arch(struct gguf_text name)
{
    for (size_t i = 0; i < ARRAY_LEN(archs); i++)
        if (name.len == strlen(archs[i].name) && memcmp(name.data, archs[i].name, name.len) == 0)
            return &archs[i];
    return NULL;
}

static const char *key_of(const struct arch *a, const char *name, char *key, size_t size)
{
    snprintf(key, size, "%s.%s", a->name, name);
    return key;
}

int arch_u32(const struct gguf *g, const struct arch *a, const char *name, uint32_t *ret)
{
    char key[128];
    return gguf_u32(g, key_of(a, name, key, sizeof(key)), ret);
}

int arch_float(const struct gguf *g, const struct arch *a, const char *name, float *ret)
{
    char key[128];
    return gguf_float(g, key_of(a, name, key, sizeof(key)), ret);
}

/* The number must be there, in [1, max]. */
static int must_u32(const struct gguf *g, const struct arch *a, const char *name, uint32_t max,
                    uint32_t *ret)
{
    int r = arch_u32(g, a, name, ret);
    if (r < 0)
        return fail(-EINVAL, "model: %s.%s is %s", a->name, name,
                    r == -ENOENT ? "missing" : "no whole number");
    if (*ret < 1 || *ret > max)
        return fail(-EINVAL, "model: %s.%s is %u, not 1 .. %u", a->name, name, *ret, max);
    return 0;
}

/* The same, but absent means what *ret already holds. */
static int may_u32(const struct gguf *g, const struct arch *a, const char *name, uint32_t max,
                   uint32_t *ret)
{
    uint32_t otherwise = *ret;
    if (arch_u32(g, a, name, ret) != -ENOENT)
        return must_u32(g, a, name, max, ret);
    *ret = otherwise;
    return 0;
}

static int may_float(const struct gguf *g, const struct arch *a, const char *name, float min,
                     float max, float *ret)
{
    float value;
    int r = arch_float(g, a, name, &value);
    if (r == -ENOENT)
        return 0;
    if (r < 0 || !(value >= min && value <= max))
        return fail(-EINVAL, "model: %s.%s is not a number of %g .. %g", a->name, name, (double)min,
                    (double)max);
    *ret = value;
    return 0;
}

static int read_heads(const struct gguf *g, const struct arch *a, struct model_params *p)
{
    int r;
    if ((r = must_u32(g, a, "attention.head_count", ARCH_MAX_HEADS, &p->n_heads)) < 0)
        return r;
    p->n_kv_heads = p->n_heads;
    if ((r = may_u32(g, a, "attention.head_count_kv", ARCH_MAX_HEADS, &p->n_kv_heads)) < 0)
        return r;
    if (p->n_heads % p->n_kv_heads)
        return fail(-EINVAL, "model: %u heads cannot share %u key/value heads", p->n_heads,
                    p->n_kv_heads);
    p->head_dim = p->n_embd / p->n_heads;
    if ((r = may_u32(g, a, "attention.key_length", ARCH_MAX_HEAD_DIM, &p->head_dim)) < 0)
        return r;
    uint32_t value_dim = p->head_dim;
    if ((r = may_u32(g, a, "attention.value_length", ARCH_MAX_HEAD_DIM, &value_dim)) < 0)
        return r;
    if (value_dim != p->head_dim)
        return fail(-ENOTSUP, "model: keys of %u and values of %u are not supported", p->head_dim,
                    value_dim);
    if (p->head_dim % 16 || p->head_dim == 0 || p->head_dim > ARCH_MAX_HEAD_DIM)
        return fail(-ENOTSUP,
                    "model: a head size of %u is not supported (multiples of 16 to %u are)",
                    p->head_dim, ARCH_MAX_HEAD_DIM);
    return 0;
}

static int read_rope(const struct gguf *g, const struct arch *a, struct model_params *p)
{
    int r;
    p->rope = a->rope;
    p->rope_dim = p->head_dim;
    if ((r = may_u32(g, a, "rope.dimension_count", ARCH_MAX_HEAD_DIM, &p->rope_dim)) < 0)
        return r;
    if (p->rope_dim % 2 || p->rope_dim > p->head_dim)
        return fail(-EINVAL, "model: %s.rope.dimension_count is %u with heads of %u", a->name,
                    p->rope_dim, p->head_dim);
    p->rope_base = 10000;
    return may_float(g, a, "rope.freq_base", 1, 1e12f, &p->rope_base);
}

static int refuse_variants(const struct gguf *g, const struct arch *a)
{
    uint32_t n_experts = 0;
    if (arch_u32(g, a, "expert_count", &n_experts) == 0 && n_experts > 0)
        return fail(-ENOTSUP, "model: %s with %u experts is not supported", a->name, n_experts);
    return 0;
}

int arch_read(const struct gguf *g, struct model_params *p, const struct arch **ret)
{
    struct gguf_text name;
    int r;
    if (gguf_str(g, "general.architecture", &name) < 0)
        return fail(-EINVAL, "model: the file does not name its architecture");
    const struct arch *a = find_arch(name);
    if (!a)
        return fail(-ENOTSUP,
                    "model: architecture '%.*s' is not supported (there are " ARCH_NAMES ")",
                    (int)(name.len < 64 ? name.len : 64), name.data);
    *p = (struct model_params){.architecture = a->name, .n_ctx_train = 1u << 20, .norm_eps = 1e-5f};
    if ((r = refuse_variants(g, a)) < 0 ||
        (r = must_u32(g, a, "block_count", ARCH_MAX_LAYERS, &p->n_layers)) < 0 ||
        (r = must_u32(g, a, "embedding_length", ARCH_MAX_WIDTH, &p->n_embd)) < 0 ||
        (r = must_u32(g, a, "feed_forward_length", ARCH_MAX_WIDTH, &p->n_ff)) < 0 ||
        (r = may_u32(g, a, "context_length", 1u << 30, &p->n_ctx_train)) < 0 ||
        (r = may_float(g, a, "attention.layer_norm_rms_epsilon", 0, 1, &p->norm_eps)) < 0 ||
        (r = read_heads(g, a, p)) < 0 || (r = read_rope(g, a, p)) < 0)
        return r;
    const struct gguf_tensor *embd = gguf_find(g, "token_embd.weight");
    if (!embd)
        return fail(-EINVAL, "model: tensor token_embd.weight is missing");
    if (embd->shape[1] < 1 || embd->shape[1] > ARCH_MAX_WIDTH)
        return fail(-EINVAL, "model: a vocabulary of %llu tokens, not 1 .. %u",
                    (unsigned long long)embd->shape[1], ARCH_MAX_WIDTH);
    p->n_vocab = (uint32_t)embd->shape[1];
    *ret = a;
    return 0;
}

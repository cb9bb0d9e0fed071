/* arch.c - the table of architectures, and the shape of a model from its parameters. */
#include <errno.h>
#include "base/err.h"
#include "model/arch.h"

static const struct arch *const archs[] = {
    &arch_gpt_oss,   &arch_llama,    &arch_qwen2,     &arch_qwen2moe, &arch_qwen3,     &arch_qwen35,
    &arch_qwen35moe, &arch_qwen3moe, &arch_qwen3next, &arch_qwen3vl,  &arch_qwen3vlmoe};

/* NULL: not in the table. */
static const struct arch *find_arch(struct span name)
{
    for (size_t i = 0; i < ARRAY_LEN(archs); i++)
        if (span_is(name, archs[i]->name))
            return archs[i];
    return NULL;
}

/* Ollama writes some models with other names of the architecture and of its tensors. */
static int refuse_arch(const struct checkpoint *c, struct span name)
{
    static const char *const of_ollama[][2] = {{"gptoss", "gpt-oss"}};
    for (size_t i = 0; i < ARRAY_LEN(of_ollama); i++)
        if (span_is(name, of_ollama[i][0]))
            return fail(-ENOTSUP,
                        "%s: '%s' is Ollama's form of %s, which is not supported; use a GGUF file "
                        "that llama.cpp's converter has written",
                        checkpoint_path(c), of_ollama[i][0], of_ollama[i][1]);
    return fail(-ENOTSUP,
                "%s: architecture '%.*s' is not supported; verifier-svc --print-models lists those "
                "that are",
                checkpoint_path(c), (int)(name.len < 64 ? name.len : 64), name.data);
}

/* ---- parameters ---- */

/* The parameter is optional: without it *ret stays. Must be in [1, max]. */
static int read_u32_or_keep(const struct checkpoint *c, const char *key, uint32_t max,
                            uint32_t *ret)
{
    uint32_t value;
    int r = checkpoint_u32(c, key, &value);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    if (value < 1 || value > max)
        return fail(-EINVAL, "%s: %s is %u, not 1 .. %u", checkpoint_path(c),
                    checkpoint_key_name(c, key), value, max);
    *ret = value;
    return 0;
}

/* The parameter is required. Must be in [1, max]. */
static int read_u32(const struct checkpoint *c, const char *key, uint32_t max, uint32_t *ret)
{
    *ret = 0;
    int r = read_u32_or_keep(c, key, max, ret);
    if (r == 0 && *ret == 0)
        return fail(-EINVAL, "%s: %s is missing", checkpoint_path(c), checkpoint_key_name(c, key));
    return r;
}

/* The parameter is optional: without it *ret stays. Must be in [min, max]. */
static int read_float_or_keep(const struct checkpoint *c, const char *key, float min, float max,
                              float *ret)
{
    float value;
    int r = checkpoint_float(c, key, &value);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    if (!(value >= min && value <= max))
        return fail(-EINVAL, "%s: %s is %g, not a number of %g .. %g", checkpoint_path(c),
                    checkpoint_key_name(c, key), (double)value, (double)min, (double)max);
    *ret = value;
    return 0;
}

static int read_heads(const struct checkpoint *c, struct model_params *p)
{
    int r;
    if ((r = read_u32(c, "attention.head_count", ARCH_MAX_HEADS, &p->n_heads)) < 0)
        return r;
    p->n_kv_heads = p->n_heads;
    r = read_u32_or_keep(c, "attention.head_count_kv", ARCH_MAX_HEADS, &p->n_kv_heads);
    if (r < 0)
        return r;
    if (p->n_heads % p->n_kv_heads)
        return fail(-EINVAL, "%s: %u heads are no multiple of %u key/value heads",
                    checkpoint_path(c), p->n_heads, p->n_kv_heads);
    p->head_dim = p->n_embd / p->n_heads;
    r = read_u32_or_keep(c, "attention.key_length", ARCH_MAX_HEAD_DIM, &p->head_dim);
    if (r < 0)
        return r;
    uint32_t value_dim = p->head_dim;
    r = read_u32_or_keep(c, "attention.value_length", ARCH_MAX_HEAD_DIM, &value_dim);
    if (r < 0)
        return r;
    if (value_dim != p->head_dim)
        return fail(-ENOTSUP, "%s: keys of %u and values of %u are not supported",
                    checkpoint_path(c), p->head_dim, value_dim);
    if (p->head_dim % 16 || p->head_dim == 0 || p->head_dim > ARCH_MAX_HEAD_DIM)
        return fail(-ENOTSUP, "%s: a head size of %u is not supported (multiples of 16 to %u are)",
                    checkpoint_path(c), p->head_dim, ARCH_MAX_HEAD_DIM);
    return 0;
}

static int read_rope(const struct checkpoint *c, const struct arch *a, struct model_params *p)
{
    static const char dim_key[] = "rope.dimension_count";
    p->rope = a->rope;
    p->rope_dim = p->head_dim;
    int r = read_u32_or_keep(c, dim_key, ARCH_MAX_HEAD_DIM, &p->rope_dim);
    if (r < 0)
        return r;
    if (p->rope_dim % 2 || p->rope_dim > p->head_dim)
        return fail(-EINVAL, "%s: %s is %u with heads of %u", checkpoint_path(c),
                    checkpoint_key_name(c, dim_key), p->rope_dim, p->head_dim);
    p->rope_base = 10000;
    return read_float_or_keep(c, "rope.freq_base", 1, 1e12f, &p->rope_base);
}

/* The number of experts; 0: a dense model. */
static int read_n_experts(const struct checkpoint *c, const struct arch *a, struct model_params *p)
{
    static const char key[] = "expert_count";
    int r = checkpoint_u32(c, key, &p->n_experts);
    if (r < 0 && r != -ENOENT)
        return r;
    if (p->n_experts && a->experts == ARCH_NO_EXPERTS)
        return fail(-ENOTSUP, "%s: %s with %u experts is not supported", checkpoint_path(c),
                    a->name, p->n_experts);
    if (p->n_experts > ARCH_MAX_EXPERTS || (!p->n_experts && a->experts == ARCH_ALL_EXPERTS))
        return fail(-EINVAL, "%s: %s is %u, not 1 .. %u", checkpoint_path(c),
                    checkpoint_key_name(c, key), p->n_experts, ARCH_MAX_EXPERTS);
    return 0;
}

/* r: what reading the parameter returned. supported: whether its value is. */
static int refuse_value(const struct checkpoint *c, const char *key, int r, bool supported)
{
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    return supported ? 0
                     : fail(-ENOTSUP, "%s: the value of %s is not supported", checkpoint_path(c),
                            checkpoint_key_name(c, key));
}

/* Routers that work in another way. */
static int refuse_routers(const struct checkpoint *c, const struct arch_layer *l)
{
    static const char gating[] = "expert_gating_func", groups[] = "expert_group_count",
                      scale[] = "expert_weights_scale", norm[] = "expert_weights_norm";
    uint32_t kind = 0, n_groups = 0;
    float factor = 0;
    bool sums_to_1 = false;
    int r = checkpoint_u32(c, gating, &kind);
    /* 1: softmax; 3: softmax over the chosen experts, so that their weights sum to 1 */
    r = refuse_value(c, gating, r, kind == 1 || (kind == 3 && l->weights_sum_to_1));
    if (r == 0) {
        r = checkpoint_u32(c, groups, &n_groups);
        r = refuse_value(c, groups, r, n_groups <= 1);
    }
    if (r == 0) {
        r = checkpoint_float(c, scale, &factor);
        r = refuse_value(c, scale, r, factor == 0 || factor == 1);
    }
    if (r == 0) {
        r = checkpoint_bool(c, norm, &sums_to_1);
        r = refuse_value(c, norm, r, sums_to_1 == l->weights_sum_to_1);
    }
    return r;
}

/* Without a width for them, experts have the dense one, of which those of Qwen are parts: as in
 * llama.cpp. */
static int read_experts(const struct checkpoint *c, const struct arch *a, struct model_params *p)
{
    static const char dense[] = "feed_forward_length";
    const struct arch_layer *l = a->layer(p, 0);
    int r = read_u32(c, "expert_used_count", p->n_experts, &p->n_used_experts);
    if (r == 0)
        r = read_u32_or_keep(c, dense, ARCH_MAX_WIDTH, &p->n_ff);
    if (r < 0)
        return r;
    p->n_expert_ff = a->experts == ARCH_SOME_EXPERTS ? p->n_ff : p->n_ff / p->n_used_experts;
    r = read_u32_or_keep(c, "expert_feed_forward_length", ARCH_MAX_WIDTH, &p->n_expert_ff);
    if (r == 0 && l->has_shared_expert)
        r = read_u32_or_keep(c, "expert_shared_feed_forward_length", ARCH_MAX_WIDTH, &p->n_ff);
    if (r == 0 && (!p->n_expert_ff || (l->has_shared_expert && !p->n_ff)))
        r = fail(-EINVAL, "%s: %s is missing", checkpoint_path(c), checkpoint_key_name(c, dense));
    return r < 0 ? r : refuse_routers(c, l);
}

static int read_widths(const struct checkpoint *c, const struct arch *a, struct model_params *p)
{
    int r = read_n_experts(c, a, p);
    if (r < 0)
        return r;
    return p->n_experts ? read_experts(c, a, p)
                        : read_u32(c, "feed_forward_length", ARCH_MAX_WIDTH, &p->n_ff);
}

/* Layers with a window alternate with layers without one. */
static int read_window(const struct checkpoint *c, const struct arch *a, struct model_params *p)
{
    static const char pattern[] = "attention.sliding_window_pattern";
    uint32_t every = 0;
    if (!a->window_every)
        return 0;
    int r = read_u32(c, "attention.sliding_window", 1u << 30, &p->window);
    if (r < 0)
        return r;
    r = checkpoint_u32(c, pattern, &every);
    return refuse_value(c, pattern, r, every == a->window_every);
}

/* Shapes of gated delta nets, in all but every full_every-th layer. */
static int read_delta(const struct checkpoint *c, const struct arch *a, struct model_params *p)
{
    static const char interval[] = "full_attention_interval", inner[] = "ssm.inner_size",
                      pattern[] = "attention.recurrent_layers";
    uint32_t n_values = 0;
    struct checkpoint_array layers;
    int r;
    if (!a->has_delta)
        return 0;
    p->full_every = 4;
    if ((r = read_u32_or_keep(c, interval, ARCH_MAX_LAYERS, &p->full_every)) < 0 ||
        (r = read_u32(c, "ssm.group_count", ARCH_MAX_HEADS, &p->n_delta_k_heads)) < 0 ||
        (r = read_u32(c, "ssm.time_step_rank", ARCH_MAX_HEADS, &p->n_delta_v_heads)) < 0 ||
        (r = read_u32(c, "ssm.state_size", ARCH_MAX_HEAD_DIM, &p->delta_dim)) < 0 ||
        (r = read_u32(c, "ssm.conv_kernel", KV_MAX_TAPS, &p->n_taps)) < 0 ||
        (r = read_u32(c, inner, ARCH_MAX_WIDTH, &n_values)) < 0)
        return r;
    if (p->full_every > p->n_layers)
        return fail(-ENOTSUP, "%s: %s is %u, so none of the %u layers has attention",
                    checkpoint_path(c), checkpoint_key_name(c, interval), p->full_every,
                    p->n_layers);
    if (checkpoint_array(c, pattern, &layers) != -ENOENT)
        return refuse_value(c, pattern, 0, false);
    if (p->n_delta_v_heads % p->n_delta_k_heads || p->delta_dim % 16)
        return fail(-ENOTSUP,
                    "%s: %u value heads of %u with %u key heads are not supported (multiples of "
                    "the key heads, of 16 values, are)",
                    checkpoint_path(c), p->n_delta_v_heads, p->delta_dim, p->n_delta_k_heads);
    if (n_values != p->n_delta_v_heads * p->delta_dim)
        return fail(-EINVAL, "%s: %s is %u, not %u heads of %u", checkpoint_path(c),
                    checkpoint_key_name(c, inner), n_values, p->n_delta_v_heads, p->delta_dim);
    return 0;
}

/* Layers for multi-token prediction come last. Their number is part of block_count. */
static int read_skipped_layers(const struct checkpoint *c, struct model_params *p)
{
    static const char key[] = "nextn_predict_layers";
    int r = checkpoint_u32(c, key, &p->n_skipped_layers);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    if (p->n_skipped_layers >= p->n_layers)
        return fail(-EINVAL, "%s: %s is %u of %u layers", checkpoint_path(c),
                    checkpoint_key_name(c, key), p->n_skipped_layers, p->n_layers);
    p->n_layers -= p->n_skipped_layers;
    return 0;
}

/* The rows of the embedding. */
static int read_n_vocab(const struct checkpoint *c, struct model_params *p)
{
    const struct checkpoint_tensor *embd = checkpoint_find(c, CHECKPOINT_TOKEN_EMBD, 0);
    if (!embd)
        return fail(-EINVAL, "%s: tensor %s is missing", checkpoint_path(c),
                    checkpoint_role_name(c, CHECKPOINT_TOKEN_EMBD, 0));
    if (embd->shape[1] < 1 || embd->shape[1] > ARCH_MAX_WIDTH)
        return fail(-EINVAL, "%s: a vocabulary of %llu tokens, not 1 .. %u", checkpoint_path(c),
                    (unsigned long long)embd->shape[1], ARCH_MAX_WIDTH);
    p->n_vocab = (uint32_t)embd->shape[1];
    return 0;
}

int arch_read(const struct checkpoint *c, struct model_params *p, const struct arch **ret)
{
    struct span name;
    int r;
    if (checkpoint_text(c, "general.architecture", &name) < 0)
        return fail(-EINVAL, "%s: the architecture is not named", checkpoint_path(c));
    const struct arch *a = find_arch(name);
    if (!a)
        return refuse_arch(c, name);
    *p = (struct model_params){.architecture = a->name, .n_ctx_train = 1u << 20, .norm_eps = 1e-5f};
    if ((r = read_widths(c, a, p)) < 0 ||
        (r = read_u32(c, "block_count", ARCH_MAX_LAYERS, &p->n_layers)) < 0 ||
        (r = read_skipped_layers(c, p)) < 0 ||
        (r = read_u32(c, "embedding_length", ARCH_MAX_WIDTH, &p->n_embd)) < 0 ||
        (r = read_u32_or_keep(c, "context_length", 1u << 30, &p->n_ctx_train)) < 0 ||
        (r = read_float_or_keep(c, "attention.layer_norm_rms_epsilon", 0, 1, &p->norm_eps)) < 0 ||
        (r = read_heads(c, p)) < 0 || (r = read_window(c, a, p)) < 0 ||
        (r = read_delta(c, a, p)) < 0 || (r = read_rope(c, a, p)) < 0 ||
        (r = read_n_vocab(c, p)) < 0)
        return r;
    *ret = a;
    return 0;
}

static struct model_attn shape_attn(const struct arch_layer *layer, const struct model_params *p)
{
    if (layer->attn == MODEL_ATTN_DELTA)
        return (struct model_attn){.kind = layer->attn,
                                   .delta = {.n_k_heads = p->n_delta_k_heads,
                                             .n_v_heads = p->n_delta_v_heads,
                                             .dim = p->delta_dim,
                                             .n_taps = p->n_taps,
                                             .is_grouped = layer->is_grouped}};
    return (struct model_attn){.kind = layer->attn,
                               .n_heads = p->n_heads,
                               .n_kv_heads = p->n_kv_heads,
                               .k_dim = p->head_dim,
                               .v_dim = p->head_dim,
                               .window = layer->has_window ? p->window : 0,
                               .has_gate = layer->has_gate};
}

void arch_shape_layer(const struct arch *a, const struct model_params *p, uint32_t l,
                      struct model_layer *to)
{
    const struct arch_layer *layer = a->layer(p, l);
    *to = (struct model_layer){.attn = shape_attn(layer, p), .ffn = {.kind = layer->ffn}};
    if (layer->ffn == MODEL_FFN_DENSE || layer->has_shared_expert)
        to->ffn.n_ff = p->n_ff;
    if (layer->ffn == MODEL_FFN_EXPERTS)
        to->ffn.experts = (struct model_experts){.n = p->n_experts,
                                                 .n_used = p->n_used_experts,
                                                 .n_ff = p->n_expert_ff,
                                                 .weights_sum_to_1 = layer->weights_sum_to_1,
                                                 .glu = layer->glu};
}

uint32_t arch_size(const struct model_params *p, const struct model_layer *l, enum arch_dim dim)
{
    const struct model_delta *d = &l->attn.delta;
    const uint32_t sizes[] = {[ARCH_ONE] = 1,
                              [ARCH_EMBD] = p->n_embd,
                              [ARCH_K_DIM] = l->attn.k_dim,
                              [ARCH_Q_ROWS] = l->attn.n_heads * l->attn.k_dim,
                              [ARCH_K_ROWS] = l->attn.n_kv_heads * l->attn.k_dim,
                              [ARCH_V_ROWS] = l->attn.n_kv_heads * l->attn.v_dim,
                              [ARCH_O_COLS] = l->attn.n_heads * l->attn.v_dim,
                              [ARCH_HEADS] = l->attn.n_heads,
                              [ARCH_GATED_Q_ROWS] = 2 * l->attn.n_heads * l->attn.k_dim,
                              [ARCH_DELTA_CHANNELS] = model_delta_channels(d),
                              [ARCH_DELTA_VALUES] = d->n_v_heads * d->dim,
                              [ARCH_DELTA_HEADS] = d->n_v_heads,
                              [ARCH_DELTA_GATES] = 2 * d->n_v_heads,
                              [ARCH_DELTA_DIM] = d->dim,
                              [ARCH_TAPS] = d->n_taps,
                              [ARCH_FF] = l->ffn.n_ff,
                              [ARCH_EXPERTS] = l->ffn.experts.n,
                              [ARCH_EXPERT_FF] = l->ffn.experts.n_ff,
                              [ARCH_ROW] = 1};
    return sizes[dim];
}

static const char *const words_of_experts[] = {
    [ARCH_NO_EXPERTS] = "no", [ARCH_SOME_EXPERTS] = "yes or no", [ARCH_ALL_EXPERTS] = "yes"};

void arch_print_table(FILE *to)
{
    fputs("| architecture | models | experts | special | drafts |\n"
          "| --- | --- | --- | --- | --- |\n",
          to);
    for (size_t i = 0; i < ARRAY_LEN(archs); i++) {
        const struct arch *a = archs[i];
        fprintf(to, "| `%s` | %s | %s | %s | %s |\n", a->name, a->models,
                words_of_experts[a->experts], a->special ? a->special : "",
                a->has_delta ? "chains" : "chains and trees");
    }
}

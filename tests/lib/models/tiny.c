/* tiny.c - random model files, and the plain forward pass over them. */
#include "lib/models/tiny.h"
#include "base/err.h"
#include "base/rng.h"
#include "file/gguf_write.h"
#include "lib/lib.h"
#include "lib/models/quantise.h"
#include "lib/models/weights.h"
#include "model/model.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GROUP (TINY_HEADS / TINY_KV_HEADS)
#define N_Q (TINY_HEADS * TINY_HEAD_DIM)
#define N_KV (TINY_KV_HEADS * TINY_HEAD_DIM)
#define ROPE_BASE 5000.0f
#define NORM_EPS 1e-4f
#define FACTOR 4.0f
#define ORIGINAL_CONTEXT 64
#define MAX_TENSORS 128
#define CHANNELS ((2 * TINY_DELTA_K_HEADS + TINY_DELTA_V_HEADS) * TINY_DELTA_DIM)
#define N_VALUES (TINY_DELTA_V_HEADS * TINY_DELTA_DIM)

static const char *const dense_names[] = {"ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"};
static const char *const shared_names[] = {"ffn_gate_shexp.weight", "ffn_up_shexp.weight",
                                           "ffn_down_shexp.weight"};

static uint32_t n_layers(const struct tiny *t)
{
    return t->n_layers ? t->n_layers : 2;
}

static uint32_t rope_dim(const struct tiny *t)
{
    return t->rope_dim ? t->rope_dim : TINY_HEAD_DIM;
}

/* Also those with experts. */
static bool is(const struct tiny *t, const char *arch)
{
    return strncmp(t->arch, arch, strlen(arch)) == 0;
}

static bool has_experts(const struct tiny *t)
{
    return strstr(t->arch, "moe") || is(t, "gpt-oss");
}

static bool has_shared_expert(const struct tiny *t)
{
    return strcmp(t->arch, "qwen2moe") == 0 || strcmp(t->arch, "qwen35moe") == 0;
}

/* ---- writing ---- */

struct tensor {
    char name[48];
    enum kernel_type type;
    uint32_t n_in, n_out; // n_out 0: a vector
    float mean, deviation;
    uint32_t n; // such matrices of experts; 0: one matrix
};

struct list {
    struct tensor v[MAX_TENSORS];
    uint32_t n;
};

static void mat(struct list *l, const char *name, enum kernel_type type, uint32_t n_in,
                uint32_t n_out, float gain)
{
    struct tensor *t = &l->v[l->n++];
    *t = (struct tensor){
        .type = type, .n_in = n_in, .n_out = n_out, .deviation = gain / sqrtf((float)n_in)};
    snprintf(t->name, sizeof(t->name), "%s", name);
}

static void vec(struct list *l, const struct tiny *o, const char *name, uint32_t n, float mean,
                float deviation)
{
    struct tensor *t = &l->v[l->n++];
    *t = (struct tensor){.type = o->halves ? KERNEL_F16 : KERNEL_F32,
                         .n_in = n,
                         .mean = mean,
                         .deviation = deviation};
    snprintf(t->name, sizeof(t->name), "%s", name);
}

static void experts(struct list *l, const char *name, enum kernel_type type, uint32_t n_in,
                    uint32_t n_out)
{
    mat(l, name, type, n_in, n_out * TINY_EXPERTS, 1);
    l->v[l->n - 1].n = TINY_EXPERTS;
}

/* A vector of each expert. */
static void expert_biases(struct list *l, const struct tiny *o, const char *name, uint32_t n)
{
    vec(l, o, name, n * TINY_EXPERTS, 0, 0.5f);
    l->v[l->n - 1].n = TINY_EXPERTS;
}

static const char *in_layer(uint32_t layer, const char *name)
{
    static char full[48];
    snprintf(full, sizeof(full), "blk.%u.%s", layer, name);
    return full;
}

static void list_feed_forward(struct list *l, const struct tiny *o, uint32_t i,
                              enum kernel_type other)
{
    const char *const *names = has_experts(o) ? shared_names : dense_names;
    const uint32_t n_ff = has_experts(o) ? TINY_SHARED_FF : TINY_FF;
    if (!has_experts(o) || has_shared_expert(o)) {
        mat(l, in_layer(i, names[0]), o->type, TINY_EMBD, n_ff, 1);
        mat(l, in_layer(i, names[1]), o->type, TINY_EMBD, n_ff, 1);
        mat(l, in_layer(i, names[2]), other, n_ff, TINY_EMBD, 1);
    }
    if (has_shared_expert(o))
        mat(l, in_layer(i, "ffn_gate_inp_shexp.weight"), KERNEL_F32, TINY_EMBD, 1, 1);
    if (!has_experts(o))
        return;
    mat(l, in_layer(i, "ffn_gate_inp.weight"), KERNEL_F32, TINY_EMBD, TINY_EXPERTS,
        o->flat_router ? 0 : 4);
    experts(l, in_layer(i, "ffn_gate_exps.weight"), o->type, TINY_EMBD, TINY_EXPERT_FF);
    experts(l, in_layer(i, "ffn_up_exps.weight"), o->type, TINY_EMBD, TINY_EXPERT_FF);
    experts(l, in_layer(i, "ffn_down_exps.weight"), other, TINY_EXPERT_FF, TINY_EMBD);
    if (!is(o, "gpt-oss"))
        return;
    vec(l, o, in_layer(i, "ffn_gate_inp.bias"), TINY_EXPERTS, 0, o->flat_router ? 0 : 1);
    expert_biases(l, o, in_layer(i, "ffn_gate_exps.bias"), TINY_EXPERT_FF);
    expert_biases(l, o, in_layer(i, "ffn_up_exps.bias"), TINY_EXPERT_FF);
    expert_biases(l, o, in_layer(i, "ffn_down_exps.bias"), TINY_EMBD);
}

static bool has_qkv_bias(const struct tiny *t)
{
    return is(t, "qwen2") || is(t, "gpt-oss");
}

static const char *ffn_norm(const struct tiny *t)
{
    return is(t, "gpt-oss") || is(t, "qwen35") ? "post_attention_norm.weight" : "ffn_norm.weight";
}

/* The output of attention has a gate for each head. */
static bool has_gate(const struct tiny *t)
{
    return is(t, "qwen35");
}

static bool has_delta(const struct tiny *t, uint32_t layer)
{
    return is(t, "qwen35") && layer % 2 == 0;
}

static void list_delta(struct list *l, const struct tiny *o, uint32_t i)
{
    mat(l, in_layer(i, "attn_qkv.weight"), o->type, TINY_EMBD, CHANNELS, 1.5f);
    mat(l, in_layer(i, "attn_gate.weight"), o->type, TINY_EMBD, N_VALUES, 1);
    mat(l, in_layer(i, "ssm_beta.weight"), o->type, TINY_EMBD, TINY_DELTA_V_HEADS, 1);
    mat(l, in_layer(i, "ssm_alpha.weight"), o->type, TINY_EMBD, TINY_DELTA_V_HEADS, 1);
    mat(l, in_layer(i, "ssm_out.weight"), o->type, N_VALUES, TINY_EMBD, 1);
    mat(l, in_layer(i, "ssm_conv1d.weight"), KERNEL_F32, TINY_TAPS, CHANNELS, 1);
    vec(l, o, in_layer(i, "ssm_dt.bias"), TINY_DELTA_V_HEADS, -1, 0.5f);
    vec(l, o, in_layer(i, "ssm_a"), TINY_DELTA_V_HEADS, -0.5f, 0.2f);
    vec(l, o, in_layer(i, "ssm_norm.weight"), TINY_DELTA_DIM, 1, 0.2f);
}

static void list_attention(struct list *l, const struct tiny *o, uint32_t i, enum kernel_type other)
{
    mat(l, in_layer(i, "attn_q.weight"), o->type, TINY_EMBD, has_gate(o) ? 2 * N_Q : N_Q, 1.5f);
    mat(l, in_layer(i, "attn_k.weight"), o->type, TINY_EMBD, N_KV, 1.5f);
    mat(l, in_layer(i, "attn_v.weight"), other, TINY_EMBD, N_KV, 1);
    mat(l, in_layer(i, "attn_output.weight"), o->type, N_Q, TINY_EMBD, 0.7f);
}

static void list_layer(struct list *l, const struct tiny *o, uint32_t i)
{
    enum kernel_type other = o->mixed ? o->head_type : o->type;
    vec(l, o, in_layer(i, "attn_norm.weight"), TINY_EMBD, 1, 0.2f);
    if (has_delta(o, i))
        list_delta(l, o, i);
    else
        list_attention(l, o, i, other);
    vec(l, o, in_layer(i, ffn_norm(o)), TINY_EMBD, 1, 0.2f);
    list_feed_forward(l, o, i, other);
    if (has_qkv_bias(o)) {
        vec(l, o, in_layer(i, "attn_q.bias"), N_Q, 0, 0.5f);
        vec(l, o, in_layer(i, "attn_k.bias"), N_KV, 0, 0.5f);
        vec(l, o, in_layer(i, "attn_v.bias"), N_KV, 0, 0.5f);
    }
    if (is(o, "gpt-oss")) {
        vec(l, o, in_layer(i, "attn_output.bias"), TINY_EMBD, 0, 0.5f);
        vec(l, o, in_layer(i, "attn_sinks.weight"), TINY_HEADS, 0, 2);
    }
    if (is(o, "qwen3") && !has_delta(o, i)) {
        vec(l, o, in_layer(i, "attn_q_norm.weight"), TINY_HEAD_DIM, 1.2f, 0.2f);
        vec(l, o, in_layer(i, "attn_k_norm.weight"), TINY_HEAD_DIM, 1.2f, 0.2f);
    }
}

static void list_all(struct list *l, const struct tiny *o)
{
    mat(l, "token_embd.weight", o->head_type, TINY_EMBD, TINY_VOCAB, 16);
    vec(l, o, "output_norm.weight", TINY_EMBD, 1, 0.2f);
    if (!o->tied)
        mat(l, "output.weight", o->head_type, TINY_EMBD, TINY_VOCAB, 4);
    for (uint32_t i = 0; i < n_layers(o); i++)
        list_layer(l, o, i);
    if (o->factors)
        l->v[l->n++] = (struct tensor){
            .name = "rope_freqs.weight", .n_in = rope_dim(o) / 2, .mean = 4, .deviation = 0.5f};
}

static void key_int(struct gguf_write *w, const struct tiny *o, const char *name, int64_t value)
{
    char key[96];
    snprintf(key, sizeof(key), "%s.%s", o->arch, name);
    gguf_write_int(w, key, GGUF_U32, value);
}

static void key_float(struct gguf_write *w, const struct tiny *o, const char *name, float value)
{
    char key[96];
    snprintf(key, sizeof(key), "%s.%s", o->arch, name);
    gguf_write_float(w, key, value);
}

static void write_keys(struct gguf_write *w, const struct tiny *o)
{
    char key[96];
    gguf_write_text(w, "general.architecture", o->arch, strlen(o->arch));
    key_int(w, o, "block_count", n_layers(o));
    key_int(w, o, "context_length", TINY_CONTEXT);
    key_int(w, o, "embedding_length", TINY_EMBD);
    key_int(w, o, "feed_forward_length", TINY_FF);
    if (has_experts(o)) {
        key_int(w, o, "expert_count", TINY_EXPERTS);
        key_int(w, o, "expert_used_count", TINY_USED_EXPERTS);
        key_int(w, o, "expert_feed_forward_length", TINY_EXPERT_FF);
    }
    if (is(o, "gpt-oss"))
        key_int(w, o, "attention.sliding_window", TINY_WINDOW);
    if (has_shared_expert(o))
        key_int(w, o, "expert_shared_feed_forward_length", TINY_SHARED_FF);
    if (is(o, "qwen35")) {
        key_int(w, o, "full_attention_interval", 2);
        key_int(w, o, "ssm.group_count", TINY_DELTA_K_HEADS);
        key_int(w, o, "ssm.time_step_rank", TINY_DELTA_V_HEADS);
        key_int(w, o, "ssm.state_size", TINY_DELTA_DIM);
        key_int(w, o, "ssm.inner_size", N_VALUES);
        key_int(w, o, "ssm.conv_kernel", TINY_TAPS);
    }
    if (o->more.name) {
        snprintf(key, sizeof(key), "%s.%s", o->arch, o->more.name);
        if (o->more.kind == GGUF_FLOAT32)
            gguf_write_float(w, key, (float)o->more.value);
        else
            gguf_write_int(w, key, o->more.kind, o->more.value);
    }
    key_int(w, o, "attention.head_count", TINY_HEADS);
    key_int(w, o, "attention.head_count_kv", TINY_KV_HEADS);
    key_int(w, o, "attention.key_length", TINY_HEAD_DIM);
    key_int(w, o, "attention.value_length", TINY_HEAD_DIM);
    key_int(w, o, "rope.dimension_count", rope_dim(o));
    key_float(w, o, "rope.freq_base", ROPE_BASE);
    key_float(w, o, "attention.layer_norm_rms_epsilon", NORM_EPS);
    if (!o->scaling)
        return;
    snprintf(key, sizeof(key), "%s.rope.scaling.type", o->arch);
    gguf_write_text(w, key, o->scaling, strlen(o->scaling));
    key_float(w, o, "rope.scaling.factor", FACTOR);
    key_int(w, o, "rope.scaling.original_context_length", ORIGINAL_CONTEXT);
}

/* SentencePiece with only bytes and fillers, so that other programs accept the file too. */
static void write_vocab(struct gguf_write *w)
{
    struct span texts[TINY_VOCAB];
    static char names[TINY_VOCAB][16];
    float scores[TINY_VOCAB];
    int32_t kinds[TINY_VOCAB];
    for (uint32_t i = 0; i < TINY_VOCAB; i++) {
        snprintf(names[i], sizeof(names[i]),
                 i == 0   ? "<unk>"
                 : i == 1 ? "<s>"
                 : i == 2 ? "</s>"
                          : "t%u",
                 i);
        texts[i] = (struct span){names[i], strlen(names[i])};
        scores[i] = -(float)i;
        kinds[i] = i == 0 ? 2 : i < 3 ? 3 : 1;
    }
    gguf_write_text(w, "tokenizer.ggml.model", "llama", 5);
    gguf_write_texts(w, "tokenizer.ggml.tokens", texts, TINY_VOCAB);
    gguf_write_array(w, "tokenizer.ggml.scores", GGUF_FLOAT32, scores, TINY_VOCAB);
    gguf_write_array(w, "tokenizer.ggml.token_type", GGUF_I32, kinds, TINY_VOCAB);
    gguf_write_int(w, "tokenizer.ggml.bos_token_id", GGUF_U32, 1);
    gguf_write_int(w, "tokenizer.ggml.eos_token_id", GGUF_U32, 2);
}

static void must(int r, const char *what)
{
    if (r < 0)
        fail_msg("%s: %s", what, fail_text());
}

static void write_vec(struct gguf_write *w, const struct tensor *t, uint64_t seed)
{
    float *x = weights_floats(1, t->n_in, seed, false);
    for (uint32_t i = 0; i < t->n_in; i++) {
        x[i] = t->mean + x[i] * t->deviation;
        if (t->type == KERNEL_F16) // written in place, after the floats that were read
            ((uint16_t *)x)[i] = kernel_f16_of(x[i]);
    }
    must(gguf_write_data(w, x, t->n_in * (t->type == KERNEL_F16 ? 2u : 4u)), t->name);
    free(x);
}

static void write_mat(struct gguf_write *w, const struct tensor *t, uint64_t seed)
{
    uint32_t per, bytes;
    must(kernel_type_block(t->type, &per, &bytes), t->name);
    void *rows = weights_random(t->type, t->n_out, t->n_in, seed, false);
    weights_scale(t->type, rows, t->n_out, t->n_in, t->deviation);
    must(gguf_write_data(w, rows, (size_t)t->n_out * (t->n_in / per) * bytes), t->name);
    free(rows);
}

static void write_file(const struct tiny *o, FILE *to)
{
    static struct list l;
    AUTO(gguf_write_free) struct gguf_write *w = NULL;
    l.n = 0;
    list_all(&l, o);
    must(gguf_write_new(&w), "gguf_write_new");
    write_keys(w, o);
    write_vocab(w);
    for (uint32_t i = 0; i < l.n; i++) {
        const struct tensor *t = &l.v[i];
        const uint32_t each = t->n ? t->n : 1;
        if (t->n_out)
            gguf_write_tensor(w, t->name, quantise_to_gguf(t->type), t->n ? 3 : 2,
                              (uint64_t[]){t->n_in, t->n_out / each, t->n});
        else
            gguf_write_tensor(w, t->name, quantise_to_gguf(t->type), t->n ? 2 : 1,
                              (uint64_t[]){t->n_in / each, t->n});
    }
    must(gguf_write_head(w, to), "gguf_write_head");
    for (uint32_t i = 0; i < l.n; i++) {
        uint64_t seed = rng_splitmix64(o->seed) + i;
        if (l.v[i].n_out)
            write_mat(w, &l.v[i], seed);
        else
            write_vec(w, &l.v[i], seed);
    }
    must(gguf_write_end(w), "gguf_write_end");
}

void *tiny_write(const struct tiny *t, size_t *ret_len)
{
    char *text = NULL;
    FILE *to = open_memstream(&text, ret_len);
    if (!to)
        fail_msg("open_memstream");
    write_file(t, to);
    fclose(to);
    void *aligned = weights_alloc(*ret_len);
    memcpy(aligned, text, *ret_len);
    free(text);
    return aligned;
}

/* ---- the plain forward pass ---- */

/* A whole tensor as floats; free it. NULL: the tensor does not exist. */
static float *tensor_of(const struct checkpoint *g, const char *name)
{
    const struct checkpoint_tensor *t = checkpoint_find_name(g, name);
    if (!t)
        return NULL;
    enum kernel_type type;
    must(model_weight_type(t, &type), name);
    uint64_t n_rows = t->shape[1] * t->shape[2];
    float *x = weights_alloc(t->shape[0] * n_rows * sizeof(float));
    size_t row_bytes = t->bytes / n_rows;
    AUTO(mem_free) char *row = weights_alloc(row_bytes);
    for (uint64_t r = 0; r < n_rows; r++) {
        must(checkpoint_read(g, t, r * row_bytes, row_bytes, row), name);
        kernel_dequant(type, row, (uint32_t)t->shape[0], x + r * t->shape[0]);
    }
    return x;
}

/* Rows [from, from + n_out) of a matrix. */
static void plain_rows(const struct checkpoint *g, const char *name, uint32_t from, const double *x,
                       uint32_t n_in, uint32_t n_out, double *y)
{
    float *w = tensor_of(g, name);
    for (uint32_t o = 0; o < n_out; o++) {
        y[o] = 0;
        for (uint32_t i = 0; i < n_in; i++)
            y[o] += (double)w[(size_t)(from + o) * n_in + i] * x[i];
    }
    free(w);
}

static void plain_apply(const struct checkpoint *g, const char *name, const char *bias,
                        const double *x, uint32_t n_in, uint32_t n_out, double *y)
{
    float *b = bias && *bias ? tensor_of(g, bias) : NULL;
    plain_rows(g, name, 0, x, n_in, n_out, y);
    for (uint32_t o = 0; o < n_out && b; o++)
        y[o] += b[o];
    free(b);
}

static void plain_norm(const struct checkpoint *g, const char *name, uint32_t n, const double *x,
                       double *y)
{
    float *w = tensor_of(g, name);
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (uint32_t i = 0; i < n; i++)
        y[i] = x[i] / sqrt(sum / n + (double)NORM_EPS) * w[i];
    free(w);
}

/* YaRN's weight of the unscaled angle of pair i. */
static double plain_ramp(const struct tiny *t, uint32_t i)
{
    uint32_t n = rope_dim(t);
    double edge[2]; // the pair with 32 turns, and with one turn, in the original context
    for (int k = 0; k < 2; k++)
        edge[k] =
            n * log(ORIGINAL_CONTEXT / ((k ? 1 : 32) * 2 * M_PI)) / (2 * log((double)ROPE_BASE));
    double low = fmax(floor(edge[0]), 0), high = fmin(ceil(edge[1]), n - 1);
    double at = (i - low) / fmax(0.001, high - low);
    return 1 - fmin(1, fmax(0, at));
}

static void plain_rotate(const struct tiny *t, const struct checkpoint *g, uint32_t pos, double *x)
{
    uint32_t n = rope_dim(t), step = is(t, "llama") ? 1 : n / 2;
    float *factors = tensor_of(g, "rope_freqs.weight");
    for (uint32_t i = 0; i < n / 2; i++) {
        double *a = is(t, "llama") ? &x[2 * i] : &x[i], u = a[0], v = a[step], gain = 1;
        double angle = pos * pow((double)ROPE_BASE, -2.0 * i / n) / (factors ? factors[i] : 1);
        if (t->scaling && strcmp(t->scaling, "linear") == 0)
            angle /= (double)FACTOR;
        if (t->scaling && strcmp(t->scaling, "yarn") == 0) {
            double mix = plain_ramp(t, i);
            angle = angle / (double)FACTOR * (1 - mix) + angle * mix;
            gain = 1 + 0.1 * log((double)FACTOR);
        }
        a[0] = (u * cos(angle) - v * sin(angle)) * gain;
        a[step] = (u * sin(angle) + v * cos(angle)) * gain;
    }
    free(factors);
}

static double as_stored(double x)
{
    return (double)kernel_f16_to(kernel_f16_of((float)x));
}

struct cache {
    double k[TINY_CONTEXT][N_KV], v[TINY_CONTEXT][N_KV];
    double inputs[TINY_CONTEXT][CHANNELS]; // of the delta net's convolution
    double states[TINY_DELTA_V_HEADS][TINY_DELTA_DIM][TINY_DELTA_DIM]; // [key][value]
};

/* Positions from `first` on. */
static void plain_attend(const double *q, const struct cache *c, uint32_t first, uint32_t pos,
                         uint32_t head, const float *sinks, double *out)
{
    uint32_t kv = head / GROUP * TINY_HEAD_DIM;
    double scores[TINY_CONTEXT], largest = sinks ? (double)sinks[head] : -INFINITY, sum = 0;
    for (uint32_t p = first; p <= pos; p++) {
        scores[p] = 0;
        for (uint32_t i = 0; i < TINY_HEAD_DIM; i++)
            scores[p] += q[head * TINY_HEAD_DIM + i] * c->k[p][kv + i];
        scores[p] /= sqrt(TINY_HEAD_DIM);
        largest = fmax(largest, scores[p]);
    }
    for (uint32_t i = 0; i < TINY_HEAD_DIM; i++)
        out[head * TINY_HEAD_DIM + i] = 0;
    if (sinks)
        sum = exp((double)sinks[head] - largest);
    for (uint32_t p = first; p <= pos; p++)
        sum += exp(scores[p] - largest);
    for (uint32_t p = first; p <= pos; p++)
        for (uint32_t i = 0; i < TINY_HEAD_DIM; i++)
            out[head * TINY_HEAD_DIM + i] += exp(scores[p] - largest) / sum * c->v[p][kv + i];
}

static void plain_attention(const struct tiny *t, const struct checkpoint *g, uint32_t layer,
                            uint32_t pos, struct cache *c, double *x)
{
    double h[TINY_EMBD], q[2 * N_Q], gates[N_Q], out[N_Q];
    char b[3][48] = {{0}};
    for (int i = 0; i < 3 && has_qkv_bias(t); i++)
        snprintf(b[i], sizeof(b[i]), "blk.%u.attn_%c.bias", layer, "qkv"[i]);
    plain_norm(g, in_layer(layer, "attn_norm.weight"), TINY_EMBD, x, h);
    plain_apply(g, in_layer(layer, "attn_q.weight"), b[0], h, TINY_EMBD,
                has_gate(t) ? 2 * N_Q : N_Q, q);
    for (uint32_t i = 0; i < N_Q && has_gate(t); i++) {
        const uint32_t head = i / TINY_HEAD_DIM * TINY_HEAD_DIM;
        q[i] = q[head + i];
        gates[i] = q[head + TINY_HEAD_DIM + i];
    }
    plain_apply(g, in_layer(layer, "attn_k.weight"), b[1], h, TINY_EMBD, N_KV, c->k[pos]);
    plain_apply(g, in_layer(layer, "attn_v.weight"), b[2], h, TINY_EMBD, N_KV, c->v[pos]);
    for (uint32_t i = 0; i < TINY_HEADS + TINY_KV_HEADS; i++) {
        double *head =
            i < TINY_HEADS ? q + i * TINY_HEAD_DIM : c->k[pos] + (i - TINY_HEADS) * TINY_HEAD_DIM;
        if (is(t, "qwen3"))
            plain_norm(
                g, in_layer(layer, i < TINY_HEADS ? "attn_q_norm.weight" : "attn_k_norm.weight"),
                TINY_HEAD_DIM, head, head);
        plain_rotate(t, g, pos, head);
    }
    for (uint32_t i = 0; i < N_KV; i++) {
        c->k[pos][i] = as_stored(c->k[pos][i]);
        c->v[pos][i] = as_stored(c->v[pos][i]);
    }
    const bool has_window = is(t, "gpt-oss") && layer % 2 == 0;
    AUTO(mem_free) float *sinks = tensor_of(g, in_layer(layer, "attn_sinks.weight"));
    for (uint32_t i = 0; i < TINY_HEADS; i++)
        plain_attend(q, c, has_window && pos >= TINY_WINDOW ? pos - TINY_WINDOW + 1 : 0, pos, i,
                     sinks, out);
    for (uint32_t i = 0; i < N_Q && has_gate(t); i++)
        out[i] /= 1 + exp(-gates[i]);
    snprintf(b[0], sizeof(b[0]), "blk.%u.attn_output.bias", layer);
    plain_apply(g, in_layer(layer, "attn_output.weight"), b[0], out, N_Q, TINY_EMBD, h);
    for (uint32_t i = 0; i < TINY_EMBD; i++)
        x[i] += h[i];
}

/* A position's queries, keys and values after the convolution. */
static void plain_convolve(const struct checkpoint *g, uint32_t layer, uint32_t pos,
                           const struct cache *c, double *y)
{
    AUTO(mem_free) float *w = tensor_of(g, in_layer(layer, "ssm_conv1d.weight"));
    for (uint32_t i = 0; i < CHANNELS; i++) {
        y[i] = 0;
        for (uint32_t j = 0; j < TINY_TAPS; j++)
            if (pos + j >= TINY_TAPS - 1)
                y[i] += (double)w[i * TINY_TAPS + j] * c->inputs[pos + j - (TINY_TAPS - 1)][i];
        y[i] /= 1 + exp(-y[i]);
    }
    for (uint32_t head = 0; head < 2 * TINY_DELTA_K_HEADS; head++) {
        double sum = 0;
        for (uint32_t i = 0; i < TINY_DELTA_DIM; i++)
            sum += y[head * TINY_DELTA_DIM + i] * y[head * TINY_DELTA_DIM + i];
        for (uint32_t i = 0; i < TINY_DELTA_DIM; i++)
            y[head * TINY_DELTA_DIM + i] /= sqrt(sum + (double)NORM_EPS);
    }
}

/* out (TINY_DELTA_DIM) of one value head. */
static void plain_delta_head(double s[][TINY_DELTA_DIM], const double *q, const double *k,
                             const double *v, double decay, double beta, double *out)
{
    for (uint32_t i = 0; i < TINY_DELTA_DIM; i++) {
        double there = 0;
        for (uint32_t j = 0; j < TINY_DELTA_DIM; j++)
            there += k[j] * decay * s[j][i];
        out[i] = 0;
        for (uint32_t j = 0; j < TINY_DELTA_DIM; j++) {
            s[j][i] = decay * s[j][i] + k[j] * beta * (v[i] - there);
            out[i] += q[j] * s[j][i] / sqrt(TINY_DELTA_DIM);
        }
    }
}

static void plain_delta(const struct checkpoint *g, uint32_t layer, uint32_t pos, struct cache *c,
                        double *x)
{
    double h[TINY_EMBD], y[CHANNELS], z[N_VALUES], out[N_VALUES];
    double beta[TINY_DELTA_V_HEADS], alpha[TINY_DELTA_V_HEADS];
    AUTO(mem_free) float *dt = tensor_of(g, in_layer(layer, "ssm_dt.bias"));
    AUTO(mem_free) float *a = tensor_of(g, in_layer(layer, "ssm_a"));
    plain_norm(g, in_layer(layer, "attn_norm.weight"), TINY_EMBD, x, h);
    plain_apply(g, in_layer(layer, "attn_qkv.weight"), NULL, h, TINY_EMBD, CHANNELS,
                c->inputs[pos]);
    plain_apply(g, in_layer(layer, "attn_gate.weight"), NULL, h, TINY_EMBD, N_VALUES, z);
    plain_apply(g, in_layer(layer, "ssm_beta.weight"), NULL, h, TINY_EMBD, TINY_DELTA_V_HEADS,
                beta);
    plain_apply(g, in_layer(layer, "ssm_alpha.weight"), NULL, h, TINY_EMBD, TINY_DELTA_V_HEADS,
                alpha);
    plain_convolve(g, layer, pos, c, y);
    for (uint32_t head = 0; head < TINY_DELTA_V_HEADS; head++) {
        const double *q = y + head % TINY_DELTA_K_HEADS * TINY_DELTA_DIM;
        double *to = out + head * TINY_DELTA_DIM;
        plain_delta_head(c->states[head], q, q + TINY_DELTA_K_HEADS * TINY_DELTA_DIM,
                         y + (2 * TINY_DELTA_K_HEADS + head) * TINY_DELTA_DIM,
                         exp((double)a[head] * log1p(exp(alpha[head] + (double)dt[head]))),
                         1 / (1 + exp(-beta[head])), to);
        plain_norm(g, in_layer(layer, "ssm_norm.weight"), TINY_DELTA_DIM, to, to);
        for (uint32_t i = 0; i < TINY_DELTA_DIM; i++) {
            const double gate = z[head * TINY_DELTA_DIM + i];
            to[i] *= gate / (1 + exp(-gate));
        }
    }
    plain_apply(g, in_layer(layer, "ssm_out.weight"), NULL, out, N_VALUES, TINY_EMBD, h);
    for (uint32_t i = 0; i < TINY_EMBD; i++)
        x[i] += h[i];
}

/* y += row e of a tensor; none if it does not exist. */
static void plain_bias(const struct checkpoint *g, const char *name, uint32_t e, uint32_t n,
                       double *y)
{
    AUTO(mem_free) float *b = tensor_of(g, name);
    for (uint32_t i = 0; i < n && b; i++)
        y[i] += (double)b[e * n + i];
}

/* The activation of gpt-oss. */
static double plain_clamped(double gate, double up)
{
    gate = fmin(gate, 7);
    up = fmin(fmax(up, -7), 7);
    return gate / (1 + exp(-1.702 * gate)) * (up + 1);
}

/* x += factor * SwiGLU(h) by matrices of these names, of expert e. With biases it is that of
 * gpt-oss. */
static void plain_swiglu(const struct checkpoint *g, uint32_t layer, const char *const names[3],
                         const char *const biases[3], uint32_t n_ff, uint32_t e, double factor,
                         const double *h, double *x)
{
    double gate[TINY_SHARED_FF], up[TINY_SHARED_FF], out[TINY_EMBD]; // the widest
    plain_rows(g, in_layer(layer, names[0]), e * n_ff, h, TINY_EMBD, n_ff, gate);
    plain_rows(g, in_layer(layer, names[1]), e * n_ff, h, TINY_EMBD, n_ff, up);
    if (biases) {
        plain_bias(g, in_layer(layer, biases[0]), e, n_ff, gate);
        plain_bias(g, in_layer(layer, biases[1]), e, n_ff, up);
    }
    for (uint32_t i = 0; i < n_ff; i++)
        gate[i] = biases ? plain_clamped(gate[i], up[i]) : gate[i] / (1 + exp(-gate[i])) * up[i];
    plain_rows(g, in_layer(layer, names[2]), e * TINY_EMBD, gate, n_ff, TINY_EMBD, out);
    if (biases)
        plain_bias(g, in_layer(layer, biases[2]), e, TINY_EMBD, out);
    for (uint32_t i = 0; i < TINY_EMBD; i++)
        x[i] += factor * out[i];
}

/* The experts of the largest probabilities. For qwen3moe, qwen35moe and gpt-oss, these are divided
 * by their sum. */
static void plain_experts(const struct tiny *t, const struct checkpoint *g, uint32_t layer,
                          const double *h, double *x)
{
    static const char *const names[] = {"ffn_gate_exps.weight", "ffn_up_exps.weight",
                                        "ffn_down_exps.weight"};
    static const char *const biases[] = {"ffn_gate_exps.bias", "ffn_up_exps.bias",
                                         "ffn_down_exps.bias"};
    const bool is_oss = is(t, "gpt-oss");
    double p[TINY_EXPERTS], sum = 0, used = 0;
    bool chosen[TINY_EXPERTS] = {false};
    plain_apply(g, in_layer(layer, "ffn_gate_inp.weight"), NULL, h, TINY_EMBD, TINY_EXPERTS, p);
    plain_bias(g, in_layer(layer, "ffn_gate_inp.bias"), 0, TINY_EXPERTS, p);
    for (uint32_t e = 0; e < TINY_EXPERTS; e++)
        sum += p[e] = exp(p[e]);
    for (uint32_t n = 0, best = 0; n < TINY_USED_EXPERTS; n++) {
        for (best = 0; chosen[best]; best++)
            ;
        for (uint32_t e = best; e < TINY_EXPERTS; e++)
            best = !chosen[e] && p[e] > p[best] ? e : best;
        chosen[best] = true;
        used += p[best];
    }
    for (uint32_t e = 0; e < TINY_EXPERTS; e++)
        if (chosen[e])
            plain_swiglu(g, layer, names, is_oss ? biases : NULL, TINY_EXPERT_FF, e,
                         p[e] / (is_oss || is(t, "qwen3") ? used : sum), h, x);
}

static void plain_ff(const struct tiny *t, const struct checkpoint *g, uint32_t layer, double *x)
{
    double h[TINY_EMBD], gate;
    plain_norm(g, in_layer(layer, ffn_norm(t)), TINY_EMBD, x, h);
    if (has_experts(t))
        plain_experts(t, g, layer, h, x);
    else
        plain_swiglu(g, layer, dense_names, NULL, TINY_FF, 0, 1, h, x);
    if (!has_shared_expert(t))
        return;
    plain_apply(g, in_layer(layer, "ffn_gate_inp_shexp.weight"), NULL, h, TINY_EMBD, 1, &gate);
    plain_swiglu(g, layer, shared_names, NULL, TINY_SHARED_FF, 0, 1 / (1 + exp(-gate)), h, x);
}

void tiny_logits(const struct tiny *t, const void *file, size_t len, const uint32_t *tokens,
                 uint32_t n, double *logits)
{
    AUTO(checkpoint_close) struct checkpoint *g = NULL;
    must(checkpoint_open_memory(file, len, &g), "checkpoint_open_memory");
    struct cache *caches = calloc(n_layers(t), sizeof(*caches));
    float *embd = tensor_of(g, "token_embd.weight");
    for (uint32_t pos = 0; pos < n; pos++) {
        double x[TINY_EMBD];
        for (uint32_t i = 0; i < TINY_EMBD; i++)
            x[i] = embd[tokens[pos] * TINY_EMBD + i];
        for (uint32_t l = 0; l < n_layers(t); l++) {
            if (has_delta(t, l))
                plain_delta(g, l, pos, &caches[l], x);
            else
                plain_attention(t, g, l, pos, &caches[l], x);
            plain_ff(t, g, l, x);
        }
        plain_norm(g, "output_norm.weight", TINY_EMBD, x, x);
        plain_apply(g, t->tied ? "token_embd.weight" : "output.weight", NULL, x, TINY_EMBD,
                    TINY_VOCAB, logits + (size_t)pos * TINY_VOCAB);
    }
    free(embd);
    free(caches);
}

/* fuzz_model.c - a small model of each architecture, written with lies, then planned, loaded and
 * run.
 *
 * The input begins with the sizes of the model: those fit together. Then follow changes of single
 * numbers of the file: kinds and values of keys, names, types, shapes and offsets of tensors. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/buf.h"
#include "base/log.h"
#include "base/minmax.h"
#include "file/gguf.h"
#include "lib/models/quantise.h"
#include "lib/models/weights.h"
#include "model/runner.h"
#include "text/tok.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define MAX_KEYS 48
#define MAX_TENSORS 64
#define MAX_VOCAB 300
#define MAX_FILE (8u << 20)
#define MAX_RUN_BYTES (128u << 20) // larger models are only planned
#define ALIGNMENT 32
#define ROWS 7

/* ---- the input ---- */

struct input {
    const uint8_t *data;
    size_t n;
};

/* Bytes past the end are 0. */
static uint64_t take(struct input *in, size_t bytes)
{
    uint64_t value = 0;
    for (size_t i = 0; i < bytes && in->n; i++, in->n--)
        value |= (uint64_t)*in->data++ << 8 * i;
    return value;
}

static uint64_t take_below(struct input *in, uint64_t n)
{
    return take(in, 1) % n;
}

/* Sizes at the edges of blocks, tiles and vectors. */
static uint32_t take_size(struct input *in)
{
    static const uint32_t sizes[] = {256, 32, 64, 96, 1, 2, 3, 15, 16, 17, 31, 33, 48, 255, 257};
    return sizes[take_below(in, ARRAY_LEN(sizes))];
}

static uint64_t take_number(struct input *in)
{
    static const uint64_t numbers[] = {0,          1,          2,
                                       16,         24,         1024,
                                       1u << 20,   1u << 30,   UINT32_MAX - 31,
                                       UINT32_MAX, 1ull << 32, UINT64_MAX - 31,
                                       UINT64_MAX, INT64_MAX};
    uint64_t which = take_below(in, ARRAY_LEN(numbers) + 2);
    if (which < ARRAY_LEN(numbers))
        return numbers[which];
    return take(in, which == ARRAY_LEN(numbers) ? 1 : 8);
}

/* ---- the file as it will be written ---- */

struct key {
    char name[64];
    uint32_t kind, item; // item: of an array
    uint64_t value;      // of a number, or the bits of a float
    uint64_t n;          // of an array or a text
    const void *payload; // of a text or an array
    size_t n_payload;    // bytes
};

struct tensor {
    char name[64];
    uint32_t n_dims, type;
    uint64_t shape[4], offset;
};

struct file {
    const char *arch;
    uint32_t n_layers, n_embd, n_heads, n_kv_heads, head_dim, n_ff, n_vocab;
    uint32_t n_experts, n_expert_ff; // 0: none
    uint32_t full_every, n_delta_k_heads, n_delta_v_heads, delta_dim, n_taps;
    enum gguf_type type; // of matrices whose rows fit it
    uint32_t version;
    uint64_t n_keys_told, n_tensors_told; // added to the true numbers
    struct key keys[MAX_KEYS];
    struct tensor tensors[MAX_TENSORS];
    uint32_t n_keys, n_tensors;
    uint64_t n_weights; // bytes of the weights
    struct buf texts;   // of the vocabulary
};

static struct key *key(struct file *f, const char *name, enum gguf_kind kind, uint64_t value)
{
    struct key *k = &f->keys[f->n_keys++];
    *k = (struct key){.kind = kind, .value = value};
    snprintf(k->name, sizeof(k->name), "%s", name);
    return k;
}

static struct key *param(struct file *f, const char *name, enum gguf_kind kind, uint64_t value)
{
    char full[64];
    snprintf(full, sizeof(full), "%s.%s", f->arch, name);
    return key(f, full, kind, value);
}

static void param_float(struct file *f, const char *name, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    param(f, name, GGUF_FLOAT32, bits);
}

static void set_text(struct key *k, const char *text)
{
    k->kind = GGUF_STRING;
    k->n = k->n_payload = strlen(text);
    k->payload = text;
}

static void array(struct file *f, const char *name, enum gguf_kind item, uint64_t n,
                  const void *payload, size_t bytes)
{
    struct key *k = key(f, name, GGUF_ARRAY, 0);
    k->item = item;
    k->n = n;
    k->payload = payload;
    k->n_payload = bytes;
}

/* Bytes of a tensor; 0: its type or its size cannot be. */
static uint64_t bytes_of(const struct tensor *t)
{
    uint32_t weights, bytes;
    uint64_t n = 1;
    if (gguf_type_block((enum gguf_type)t->type, &weights, &bytes) < 0)
        return 0;
    for (int d = 0; d < 4; d++)
        if (__builtin_mul_overflow(n, t->shape[d], &n))
            return 0;
    return n < MAX_FILE ? n / weights * bytes : 0;
}

static void tensor(struct file *f, const char *name, uint32_t n_in, uint32_t n_out)
{
    uint32_t weights, bytes;
    gguf_type_block(f->type, &weights, &bytes);
    bool is_mat = n_out > 0, fits = is_mat && n_in % weights == 0;
    struct tensor *t = &f->tensors[f->n_tensors++];
    *t = (struct tensor){.n_dims = is_mat ? 2 : 1,
                         .type = fits ? f->type : GGUF_F32,
                         .shape = {n_in, is_mat ? n_out : 1, 1, 1},
                         .offset = f->n_weights};
    snprintf(t->name, sizeof(t->name), "%s", name);
    f->n_weights += (bytes_of(t) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static void layer_tensor(struct file *f, uint32_t l, const char *name, uint32_t n_in,
                         uint32_t n_out)
{
    char full[64];
    snprintf(full, sizeof(full), "blk.%u.%s", l, name);
    tensor(f, full, n_in, n_out);
}

static bool is(const struct file *f, const char *arch)
{
    return strcmp(f->arch, arch) == 0;
}

/* A matrix of each expert. */
static void expert_tensor(struct file *f, uint32_t l, const char *name, uint32_t n_in,
                          uint32_t n_out)
{
    const uint64_t at = f->n_weights;
    layer_tensor(f, l, name, n_in, n_out);
    struct tensor *t = &f->tensors[f->n_tensors - 1];
    t->n_dims = 3;
    t->shape[2] = f->n_experts;
    f->n_weights = at + (bytes_of(t) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static void add_experts(struct file *f, uint32_t l)
{
    layer_tensor(f, l, "ffn_gate_inp.weight", f->n_embd, f->n_experts);
    expert_tensor(f, l, "ffn_gate_exps.weight", f->n_embd, f->n_expert_ff);
    expert_tensor(f, l, "ffn_up_exps.weight", f->n_embd, f->n_expert_ff);
    expert_tensor(f, l, "ffn_down_exps.weight", f->n_expert_ff, f->n_embd);
    if (is(f, "gpt-oss")) {
        layer_tensor(f, l, "ffn_gate_inp.bias", f->n_experts, 0);
        layer_tensor(f, l, "ffn_gate_exps.bias", f->n_expert_ff, f->n_experts);
        layer_tensor(f, l, "ffn_up_exps.bias", f->n_expert_ff, f->n_experts);
        layer_tensor(f, l, "ffn_down_exps.bias", f->n_embd, f->n_experts);
    }
    if (!is(f, "qwen2moe") && !is(f, "qwen35moe") && !is(f, "qwen3next"))
        return;
    layer_tensor(f, l, "ffn_gate_inp_shexp.weight", f->n_embd, 0);
    layer_tensor(f, l, "ffn_gate_shexp.weight", f->n_embd, f->n_ff);
    layer_tensor(f, l, "ffn_up_shexp.weight", f->n_embd, f->n_ff);
    layer_tensor(f, l, "ffn_down_shexp.weight", f->n_ff, f->n_embd);
}

static void add_feed_forward(struct file *f, uint32_t l)
{
    layer_tensor(f, l, "ffn_gate.weight", f->n_embd, f->n_ff);
    layer_tensor(f, l, "ffn_up.weight", f->n_embd, f->n_ff);
    layer_tensor(f, l, "ffn_down.weight", f->n_ff, f->n_embd);
}

static bool has_delta(const struct file *f)
{
    return is(f, "qwen35") || is(f, "qwen35moe") || is(f, "qwen3next");
}

static void add_delta(struct file *f, uint32_t l)
{
    const uint32_t n_values = f->n_delta_v_heads * f->delta_dim;
    const uint32_t channels = 2 * f->n_delta_k_heads * f->delta_dim + n_values;
    layer_tensor(f, l, "attn_qkv.weight", f->n_embd, channels);
    layer_tensor(f, l, "attn_gate.weight", f->n_embd, n_values);
    if (is(f, "qwen3next")) {
        layer_tensor(f, l, "ssm_ba.weight", f->n_embd, 2 * f->n_delta_v_heads);
    } else {
        layer_tensor(f, l, "ssm_beta.weight", f->n_embd, f->n_delta_v_heads);
        layer_tensor(f, l, "ssm_alpha.weight", f->n_embd, f->n_delta_v_heads);
    }
    layer_tensor(f, l, "ssm_conv1d.weight", f->n_taps, channels);
    layer_tensor(f, l, "ssm_dt.bias", f->n_delta_v_heads, 0);
    layer_tensor(f, l, "ssm_a", f->n_delta_v_heads, 0);
    layer_tensor(f, l, "ssm_norm.weight", f->delta_dim, 0);
    layer_tensor(f, l, "ssm_out.weight", n_values, f->n_embd);
}

static void plan_delta(struct file *f, struct input *in)
{
    f->full_every = 1 + (uint32_t)take_below(in, f->n_layers);
    f->n_delta_k_heads = 1 + (uint32_t)take_below(in, 3);
    f->n_delta_v_heads = f->n_delta_k_heads * (1 + (uint32_t)take_below(in, 2));
    f->delta_dim = 16 * (1 + (uint32_t)take_below(in, 3));
    f->n_taps = 1 + (uint32_t)take_below(in, KV_MAX_TAPS);
    param(f, "full_attention_interval", GGUF_U32, f->full_every);
    param(f, "ssm.group_count", GGUF_U32, f->n_delta_k_heads);
    param(f, "ssm.time_step_rank", GGUF_U32, f->n_delta_v_heads);
    param(f, "ssm.state_size", GGUF_U32, f->delta_dim);
    param(f, "ssm.inner_size", GGUF_U32, f->n_delta_v_heads * f->delta_dim);
    param(f, "ssm.conv_kernel", GGUF_U32, f->n_taps);
}

static void add_attention(struct file *f, uint32_t l)
{
    uint32_t n_q = f->n_heads * f->head_dim, n_kv = f->n_kv_heads * f->head_dim;
    layer_tensor(f, l, "attn_q.weight", f->n_embd, has_delta(f) ? 2 * n_q : n_q);
    layer_tensor(f, l, "attn_k.weight", f->n_embd, n_kv);
    layer_tensor(f, l, "attn_v.weight", f->n_embd, n_kv);
    layer_tensor(f, l, "attn_output.weight", n_q, f->n_embd);
    if (is(f, "gpt-oss")) {
        layer_tensor(f, l, "attn_output.bias", f->n_embd, 0);
        layer_tensor(f, l, "attn_sinks.weight", f->n_heads, 0);
    }
    if (is(f, "qwen2") || is(f, "qwen2moe") || is(f, "gpt-oss")) {
        layer_tensor(f, l, "attn_q.bias", n_q, 0);
        layer_tensor(f, l, "attn_k.bias", n_kv, 0);
        layer_tensor(f, l, "attn_v.bias", n_kv, 0);
    } else if (!is(f, "llama")) {
        layer_tensor(f, l, "attn_q_norm.weight", f->head_dim, 0);
        layer_tensor(f, l, "attn_k_norm.weight", f->head_dim, 0);
    }
}

static void add_layer(struct file *f, uint32_t l)
{
    const bool is_post = is(f, "gpt-oss") || has_delta(f);
    layer_tensor(f, l, "attn_norm.weight", f->n_embd, 0);
    layer_tensor(f, l, is_post ? "post_attention_norm.weight" : "ffn_norm.weight", f->n_embd, 0);
    if (has_delta(f) && (l + 1) % f->full_every)
        add_delta(f, l);
    else
        add_attention(f, l);
    if (f->n_experts)
        add_experts(f, l);
    else
        add_feed_forward(f, l);
}

static void add_vocab(struct file *f, enum tok_kind kind)
{
    static float scores[MAX_VOCAB];
    static int32_t kinds[MAX_VOCAB];
    for (uint32_t i = 0; i < f->n_vocab; i++) {
        char name[16];
        uint64_t len = (uint64_t)snprintf(name, sizeof(name), i ? "t%u" : "<unk>", i);
        buf_add(&f->texts, &len, sizeof(len));
        buf_add(&f->texts, name, len);
        kinds[i] = (int32_t)(i ? kind : TOK_UNKNOWN);
    }
    set_text(key(f, "tokenizer.ggml.model", GGUF_STRING, 0), "llama");
    array(f, "tokenizer.ggml.tokens", GGUF_STRING, f->n_vocab, f->texts.data, f->texts.len);
    array(f, "tokenizer.ggml.scores", GGUF_FLOAT32, f->n_vocab, scores,
          f->n_vocab * sizeof(*scores));
    array(f, "tokenizer.ggml.token_type", GGUF_I32, f->n_vocab, kinds, f->n_vocab * sizeof(*kinds));
    key(f, "tokenizer.ggml.bos_token_id", GGUF_U32, f->n_vocab / 2);
    key(f, "tokenizer.ggml.eos_token_id", GGUF_U32, f->n_vocab - 1);
}

static void add_rope(struct file *f, struct input *in)
{
    static const char *const kinds[] = {NULL, "none", "linear", "yarn", "longrope"};
    const char *kind = kinds[take_below(in, ARRAY_LEN(kinds))];
    uint32_t dim = f->head_dim - 2 * (uint32_t)take_below(in, f->head_dim / 2);
    param(f, "rope.dimension_count", GGUF_U32, dim);
    param_float(f, "rope.freq_base", 5000);
    if (kind) {
        set_text(param(f, "rope.scaling.type", GGUF_STRING, 0), kind);
        param_float(f, "rope.scaling.factor", 4);
        param(f, "rope.scaling.original_context_length", GGUF_U32, 64);
        param_float(f, "rope.scaling.yarn_beta_fast", 32);
        param_float(f, "rope.scaling.attn_factor", 1);
    }
    if (take(in, 1) & 1)
        tensor(f, "rope_freqs.weight", dim / 2, 0);
}

static void plan_experts(struct file *f, struct input *in)
{
    f->n_experts = 1 + (uint32_t)take_below(in, 4);
    f->n_expert_ff = take_size(in);
    param(f, "expert_count", GGUF_U32, f->n_experts);
    param(f, "expert_used_count", GGUF_U32, 1 + take_below(in, f->n_experts));
    param(f, "expert_feed_forward_length", GGUF_U32, f->n_expert_ff);
}

/* A file that is in order. */
static void plan_file(struct file *f, struct input *in)
{
    static const struct {
        const char *name;
        bool has_experts;
    } archs[] = {{"llama", false},   {"qwen2", false},   {"qwen3", false},    {"llama", true},
                 {"qwen2moe", true}, {"qwen3moe", true}, {"qwen3vl", false},  {"qwen3vlmoe", true},
                 {"gpt-oss", true},  {"qwen35", false},  {"qwen35moe", true}, {"qwen3next", true}};
    const uint64_t arch = take_below(in, ARRAY_LEN(archs));
    f->version = 3;
    f->arch = archs[arch].name;
    f->type = quantise_to_gguf(weights_types[take_below(in, WEIGHTS_TYPES)].type);
    f->n_layers = 1 + (uint32_t)take_below(in, 2);
    f->n_kv_heads = 1 + (uint32_t)take_below(in, 3);
    f->n_heads = f->n_kv_heads * (1 + (uint32_t)take_below(in, 3));
    f->head_dim = 16 * (1 + (uint32_t)take_below(in, 5));
    f->n_embd = take_size(in);
    f->n_ff = take_size(in);
    f->n_vocab = take_size(in);
    set_text(key(f, "general.architecture", GGUF_STRING, 0), f->arch);
    key(f, "general.alignment", GGUF_U32, ALIGNMENT);
    param(f, "block_count", GGUF_U32, f->n_layers);
    param(f, "context_length", GGUF_U32, 512);
    param(f, "embedding_length", GGUF_U32, f->n_embd);
    param(f, "feed_forward_length", GGUF_U32, f->n_ff);
    param(f, "attention.head_count", GGUF_U32, f->n_heads);
    param(f, "attention.head_count_kv", GGUF_U32, f->n_kv_heads);
    param(f, "attention.key_length", GGUF_U32, f->head_dim);
    param(f, "attention.value_length", GGUF_U32, f->head_dim);
    param_float(f, "attention.layer_norm_rms_epsilon", 1e-5f);
    tensor(f, "token_embd.weight", f->n_embd, f->n_vocab);
    tensor(f, "output_norm.weight", f->n_embd, 0);
    if (archs[arch].has_experts)
        plan_experts(f, in);
    if (is(f, "gpt-oss"))
        param(f, "attention.sliding_window", GGUF_U32, 1 + take_below(in, 40));
    if (has_delta(f))
        plan_delta(f, in);
    add_rope(f, in);
    add_vocab(f, (enum tok_kind)(TOK_NORMAL + take_below(in, TOK_BYTE)));
    if (take(in, 1) & 1)
        tensor(f, "output.weight", f->n_embd, f->n_vocab);
    for (uint32_t l = 0; l < f->n_layers; l++)
        add_layer(f, l);
}

/* ---- lies ---- */

static void lie_about_key(struct file *f, struct input *in)
{
    struct key *k = &f->keys[take_below(in, f->n_keys)];
    uint64_t at;
    switch (take_below(in, 7)) {
    case 0:
        k->value = take_number(in);
        break;
    case 1: // any float
        k->value = take(in, 4);
        break;
    case 2:
        k->kind = (uint32_t)take_below(in, GGUF_FLOAT64 + 2);
        break;
    case 3:
        k->item = (uint32_t)take_below(in, GGUF_FLOAT64 + 2);
        break;
    case 4:
        k->n = take_number(in);
        break;
    case 5:
        *k = f->keys[--f->n_keys];
        break;
    default:
        at = take_below(in, sizeof(k->name) - 1);
        k->name[at] = (char)take(in, 1);
    }
    f->n_keys += f->n_keys == 0; // one must stay
}

static void lie_about_tensor(struct file *f, struct input *in)
{
    struct tensor *t = &f->tensors[take_below(in, f->n_tensors)];
    uint64_t at;
    switch (take_below(in, 7)) {
    case 0:
        t->type = (uint32_t)take(in, 1);
        break;
    case 1:
        at = take_below(in, 4);
        t->shape[at] = take_number(in);
        break;
    case 2:
        t->n_dims = (uint32_t)take(in, 1);
        break;
    case 3:
        t->offset = take_number(in);
        break;
    case 4:
        t->offset = f->tensors[take_below(in, f->n_tensors)].offset;
        break;
    case 5:
        *t = f->tensors[--f->n_tensors];
        break;
    default:
        at = take_below(in, sizeof(t->name) - 1);
        t->name[at] = (char)take(in, 1);
    }
    f->n_tensors += f->n_tensors == 0;
}

static void lie(struct file *f, struct input *in)
{
    uint64_t number;
    switch (take_below(in, 6)) {
    case 0:
    case 1:
        lie_about_key(f, in);
        break;
    case 2:
    case 3:
        lie_about_tensor(f, in);
        break;
    case 4:
        number = take_number(in);
        f->n_weights = number < f->n_weights ? number : f->n_weights;
        break;
    default:
        f->n_keys_told = take(in, 1);
        f->n_tensors_told = take(in, 1);
        f->version = (uint32_t)take(in, 1);
    }
}

/* ---- writing ---- */

static void write_number(struct buf *to, uint64_t value, size_t bytes)
{
    buf_add(to, &value, bytes);
}

static void write_text(struct buf *to, const char *text)
{
    write_number(to, strlen(text), 8);
    buf_add(to, text, strlen(text));
}

static void write_key(struct buf *to, const struct key *k)
{
    static const uint8_t bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    write_text(to, k->name);
    write_number(to, k->kind, 4);
    if (k->kind == GGUF_ARRAY)
        write_number(to, k->item, 4);
    if (k->kind == GGUF_ARRAY || k->kind == GGUF_STRING)
        write_number(to, k->n, 8);
    else
        write_number(to, k->value, k->kind < sizeof(bytes) ? bytes[k->kind] : 8);
    if (k->payload)
        buf_add(to, k->payload, k->n_payload);
}

static void write_tensor(struct buf *to, const struct tensor *t)
{
    write_text(to, t->name);
    write_number(to, t->n_dims, 4);
    for (uint32_t d = 0; d < min_u32(t->n_dims, 4); d++)
        write_number(to, t->shape[d], 8);
    write_number(to, t->type, 4);
    write_number(to, t->offset, 8);
}

/* Weights of a kind: 1 as F16, small numbers as F32; nothing; NaN; huge; any bits. */
static void write_weights(struct buf *to, size_t n, unsigned kind)
{
    static const uint32_t words[] = {0x3c003c00, 0, 0xffffffff, 0x7b7b7b7b};
    uint32_t *at = buf_reserve(to, n + 4), x = 1;
    if (!at)
        abort();
    for (size_t i = 0; i < n / 4 + 1; i++) {
        x = x * 1664525 + 1013904223; // Numerical Recipes
        at[i] = kind < ARRAY_LEN(words) ? words[kind] ^ (kind ? 0 : x >> 31 << 31) : x;
    }
    to->len += n;
}

static void write_file(struct buf *to, const struct file *f, unsigned weights)
{
    buf_add(to, "GGUF", 4);
    write_number(to, f->version, 4);
    write_number(to, f->n_tensors + f->n_tensors_told, 8);
    write_number(to, f->n_keys + f->n_keys_told, 8);
    for (uint32_t i = 0; i < f->n_keys; i++)
        write_key(to, &f->keys[i]);
    for (uint32_t i = 0; i < f->n_tensors; i++)
        write_tensor(to, &f->tensors[i]);
    while (to->len % ALIGNMENT)
        buf_add(to, "", 1);
    write_weights(to, f->n_weights, weights);
}

/* ---- using it ---- */

static void pass(struct runner *r, struct kv_seq *seq, uint32_t n)
{
    const uint32_t pos = seq->len, tokens[ROWS] = {0, r->opt.n_vocab - 1};
    if (kv_grow(r->kv, seq, n) < 0)
        abort();
    pass_plan_clear(&r->plan);
    pass_plan_add_chain(&r->plan, pass_plan_add_seq(&r->plan, seq, 0), tokens, pos, n, 1);
    forward_run(r->forward, &r->plan);
}

/* Two passes, and a draw from each. */
static void run(struct runner *r)
{
    static const struct dist_params params[] = {
        {.top_p = 1, .repetition = 1},
        {.temperature = 0.8f, .top_k = 5, .top_p = 0.9f, .min_p = 0.1f, .repetition = 1}};
    struct kv_seq seq;
    if (kv_seq_init(&seq, r->context) < 0)
        abort();
    for (unsigned i = 0; i < ARRAY_LEN(params); i++) {
        uint32_t n = i ? 1 : ROWS - 1;
        pass(r, &seq, n);
        dist_set(r->dists[0], forward_logits(r->forward, n - 1), &params[i], NULL, NULL);
        if (dist_draw(r->dists[0], 1, seq.len) >= r->opt.n_vocab)
            abort();
    }
    kv_seq_done(r->kv, &seq);
}

static void use(const struct checkpoint *c, struct runner_options *opt)
{
    AUTO(tok_free) struct tok *t = NULL;
    struct runner r = {0};
    if (tok_new(c, &t) == 0) {
        opt->n_vocab = opt->context ? tok_n_vocab(t) : tok_n_used(t); // verifier or proposer
        if (runner_plan(&r, c, opt) == 0 && runner_bytes(&r.memory) <= MAX_RUN_BYTES &&
            runner_load(&r, NULL, NULL) == 0 && r.context >= ROWS)
            run(&r);
    }
    runner_done(&r);
}

static struct runner_options take_options(struct input *in)
{
    static const int quantise[] = {MODEL_AS_FILE, KERNEL_Q8_0, KERNEL_Q4_0};
    static const enum kernel_kv kv[] = {KERNEL_KV_INT8, KERNEL_KV_F16, KERNEL_KV_F32};
    struct runner_options o = {.threads = 1,
                               .memory_check = true,
                               .max_sequences = 2,
                               .max_rows = ROWS,
                               .max_pass_seqs = 1,
                               .min_logits = 1};
    o.quantise = quantise[take_below(in, ARRAY_LEN(quantise))];
    o.kv_type = kv[take_below(in, ARRAY_LEN(kv))];
    o.kv_mib = take_below(in, 3);
    o.context = (uint32_t)take_below(in, 2) * 64;
    return o;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct input in = {data, n};
    static struct file f;
    log_init("fuzz", LOG_LEVEL_ERROR);
    f = (struct file){0};
    buf_init(&f.texts, MAX_FILE);
    struct runner_options opt = take_options(&in);
    unsigned weights = (unsigned)take_below(&in, 5);
    plan_file(&f, &in);
    for (int i = 0; i < 8 && in.n; i++)
        lie(&f, &in);
    struct buf file;
    buf_init(&file, 2 * MAX_FILE);
    write_file(&file, &f, weights);
    void *exact = malloc(file.len); // ASan detects a read past the end
    struct checkpoint *c = NULL;
    if (exact && !buf_error(&file)) {
        memcpy(exact, file.data, file.len);
        if (checkpoint_open_memory(exact, file.len, &c) == 0)
            use(c, &opt);
    }
    checkpoint_close(c);
    free(exact);
    buf_done(&file);
    buf_done(&f.texts);
    return 0;
}

/* make_model.c - writes a model of a real size with random weights, for benchmarks: its speed
 * is realistic, its texts are not. The same arguments give the same bytes.
 *
 *   make_model --shape 0.1b|1b|3b|moe-a|hybrid|oss|tiny --type TYPE --out FILE [--vocab N] [--tied]
 *              [--seed N] [--layers N] [--faint-from N --eps E]
 *
 * Shapes are those of SmolLM2-135M, Llama-3.2-1B and -3B; tiny is for tests. moe-a has layers of
 * Qwen3-30B-A3B, as many as 8 GiB of q4_k_m hold; hybrid those of Qwen3.6-35B-A3B; oss is
 * gpt-oss-20b. TYPE: q8_0, q4_0, q4_1,
 * q5_0, q5_1, q4_k_m, q5_k_m, q6_k, iq4_nl, iq4_xs, mxfp4, f16, bf16 or f32. The types of head, V
 * and down are those that llama.cpp chooses for that name (except for a few V and down of iq4).
 * With mxfp4, as in the files of gpt-oss, only experts have that type, and all else q8_0. The
 * vocabulary is a SentencePiece one: bytes and generated words.
 *
 * To write a target and a draft model that agree: the draft has the first N layers of the target
 * (--layers N). In the target, the layers from N on add their output to the residual stream scaled
 * by E (--faint-from N --eps E). Each tensor has separate random numbers, so with the same seed all
 * other tensors are equal. */
#include "base/err.h"
#include "base/rng.h"
#include "file/gguf_write.h"
#include "lib/models/quantise.h"
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_SPECIAL 3 // <unk>, <s>, </s>
#define N_BYTES 256
#define MIN_VOCAB 1024
#define MAX_VOCAB 300000
#define CONTEXT 16384
#define MAX_ROW 8192
#define DELTA_TAPS 4
#define DELTA_FULL_EVERY 4

static const struct shape {
    const char *name, *arch;
    uint32_t n_embd, n_ff, n_layers, n_heads, n_kv_heads, head_dim;
    float rope_base;
    uint32_t n_experts, n_used; // of n_ff each; 0: none
    uint32_t window;            // of every second layer; 0: none
    struct {
        uint32_t n_k_heads, n_v_heads, dim; // dim 0: none
    } delta;                                // gated delta nets, but in every fourth layer
} shapes[] = {
    {"tiny", "llama", 256, 512, 2, 4, 2, 64, 10000, 0, 0, 0, {0}},
    {"0.1b", "llama", 576, 1536, 30, 9, 3, 64, 100000, 0, 0, 0, {0}},
    {"1b", "llama", 2048, 8192, 16, 32, 8, 64, 500000, 0, 0, 0, {0}},
    {"3b", "llama", 3072, 8192, 28, 24, 8, 128, 500000, 0, 0, 0, {0}},
    {"moe-a", "qwen3moe", 2048, 768, 21, 32, 4, 128, 1000000, 128, 8, 0, {0}},
    {"hybrid", "qwen35moe", 2048, 512, 12, 16, 2, 256, 10000000, 256, 8, 0, {16, 32, 128}},
    {"oss", "gpt-oss", 2880, 2880, 24, 64, 8, 64, 150000, 32, 4, 128, {0}},
};

static const struct type {
    const char *name;
    enum gguf_type type, half, head; // half: for V and down in half of the layers
    uint32_t file_type;              // general.file_type
} types[] = {
    {"q8_0", GGUF_Q8_0, GGUF_Q8_0, GGUF_Q8_0, 7},
    {"q4_0", GGUF_Q4_0, GGUF_Q4_0, GGUF_Q6_K, 2},
    {"q4_1", GGUF_Q4_1, GGUF_Q4_1, GGUF_Q6_K, 3},
    {"q5_0", GGUF_Q5_0, GGUF_Q5_0, GGUF_Q6_K, 8},
    {"q5_1", GGUF_Q5_1, GGUF_Q5_1, GGUF_Q6_K, 9},
    {"q4_k_m", GGUF_Q4_K, GGUF_Q6_K, GGUF_Q6_K, 15},
    {"q5_k_m", GGUF_Q5_K, GGUF_Q6_K, GGUF_Q6_K, 17},
    {"q6_k", GGUF_Q6_K, GGUF_Q6_K, GGUF_Q6_K, 18},
    {"iq4_nl", GGUF_IQ4_NL, GGUF_IQ4_NL, GGUF_Q6_K, 25},
    {"iq4_xs", GGUF_IQ4_XS, GGUF_IQ4_XS, GGUF_Q6_K, 30},
    {"mxfp4", GGUF_MXFP4, GGUF_MXFP4, GGUF_Q8_0, 38},
    {"f16", GGUF_F16, GGUF_F16, GGUF_F16, 1},
    {"bf16", GGUF_BF16, GGUF_BF16, GGUF_BF16, 32},
    {"f32", GGUF_F32, GGUF_F32, GGUF_F32, 0},
};

struct maker {
    const struct shape *shape;
    const struct type *type;
    uint32_t n_vocab, n_layers, faint_from;
    float eps;
    bool is_tied;
    uint64_t seed;
    const char *out;
    struct gguf_write *w;
    uint64_t bytes; // of all tensors
    float row[MAX_ROW];
    uint8_t packed[MAX_ROW * sizeof(float)];
};

/* ---- tensors: walked twice, first for their names, then for their weights ---- */

static uint64_t seed_of(const struct maker *m, const char *name)
{
    uint64_t state = rng_splitmix64(m->seed);
    for (; *name; name++)
        state = rng_splitmix64(state ^ (unsigned char)*name);
    return state;
}

/* Sum of four uniform 16-bit numbers: variance 1. */
static void random_row(uint64_t *state, float *row, uint32_t n, float deviation)
{
    for (uint32_t i = 0; i < n; i++) {
        uint64_t w = *state = *state * 6364136223846793005u + 1442695040888963407u;
        w ^= w >> 31;
        int32_t sum = (int32_t)((w & 0xffff) + (w >> 16 & 0xffff) + (w >> 32 & 0xffff) + (w >> 48));
        row[i] = (float)(sum - 2 * 65535) * (deviation * 1.7320508f / 65536);
    }
}

/* Rows that are not a multiple of 256 cannot use types with blocks of 256. llama.cpp then chooses
 * these types. */
static enum gguf_type fitting(enum gguf_type type, uint32_t n_in)
{
    if (n_in % 256 == 0)
        return type;
    return type == GGUF_Q4_K     ? GGUF_Q5_0
           : type == GGUF_Q5_K   ? GGUF_Q5_1
           : type == GGUF_Q6_K   ? GGUF_Q8_0
           : type == GGUF_IQ4_XS ? GGUF_IQ4_NL
                                 : type;
}

struct mat {
    const char *name;
    enum gguf_type type;
    uint32_t n_in, n_out;
    float gain;
    bool is_head; // no special or byte token ends or garbles the text
    uint32_t n;   // such matrices of experts; 0: one
};

static int put_mat(struct maker *m, bool names, struct mat t)
{
    uint32_t per, bytes;
    t.type = fitting(t.type, t.n_in);
    int r = gguf_type_block(t.type, &per, &bytes);
    const uint32_t n_rows = t.n_out * (t.n ? t.n : 1);
    if (names) {
        gguf_write_tensor(m->w, t.name, t.type, t.n ? 3 : 2, (uint64_t[]){t.n_in, t.n_out, t.n});
        m->bytes += (uint64_t)n_rows * (t.n_in / per * bytes);
        return r;
    }
    uint64_t state = seed_of(m, t.name);
    for (uint32_t i = 0; i < n_rows && r == 0; i++) {
        bool is_mute = t.is_head && i < N_SPECIAL + N_BYTES;
        random_row(&state, m->row, t.n_in, is_mute ? 0 : t.gain / sqrtf((float)t.n_in));
        r = gguf_write_data(m->w, m->packed,
                            quantise_row(quantise_from_gguf(t.type), m->row, t.n_in, m->packed));
    }
    return r;
}

/* Norms are 1, biases and sinks 0; decays are about exp(-0.35). */
static int put_vec(struct maker *m, bool names, const char *name, uint32_t n)
{
    if (names) {
        gguf_write_tensor(m->w, name, GGUF_F32, 1, (uint64_t[]){n});
        return 0;
    }
    for (uint32_t i = 0; i < n; i++)
        m->row[i] = strstr(name, "norm") ? 1 : strstr(name, "ssm_a") ? -0.5f : 0;
    return gguf_write_data(m->w, m->row, n * sizeof(float));
}

/* Layers whose V and down get the better type: the first and last eighth, and every third of the
 * rest. */
static bool is_better(const struct maker *m, uint32_t layer)
{
    uint32_t eighth = m->shape->n_layers / 8;
    return layer < eighth || layer >= 7 * m->shape->n_layers / 8 || (layer - eighth) % 3 == 2;
}

/* The tensors of a layer. */
struct parts {
    struct mat v[24];
    uint32_t n;
};

static void add_mat(struct parts *to, const char *name, enum gguf_type type, uint32_t n_in,
                    uint32_t n_out, float gain)
{
    to->v[to->n++] =
        (struct mat){.name = name, .type = type, .n_in = n_in, .n_out = n_out, .gain = gain};
}

static void add_vec(struct parts *to, const char *name, uint32_t n)
{
    to->v[to->n++] = (struct mat){.name = name, .n_in = n};
}

static void add_experts(struct parts *to, const char *name, enum gguf_type type, uint32_t n_in,
                        uint32_t n_out, float gain, uint32_t n)
{
    add_mat(to, name, type, n_in, n_out, gain);
    to->v[to->n - 1].n = n;
}

/* What the types and gains of a layer's tensors depend on. */
struct of_layer {
    enum gguf_type type, half; // half: of V and down
    enum gguf_type type_of_experts, half_of_experts;
    float faint;
};

static void add_attention(const struct shape *h, const struct of_layer *l, struct parts *to)
{
    const uint32_t n_q = h->n_heads * h->head_dim, n_kv = h->n_kv_heads * h->head_dim;
    add_mat(to, "attn_q", l->type, h->n_embd, h->delta.dim ? 2 * n_q : n_q, 1.6f); // and gates
    add_mat(to, "attn_k", l->type, h->n_embd, n_kv, 1.6f);
    add_mat(to, "attn_v", l->half, h->n_embd, n_kv, 1);
    add_mat(to, "attn_output", l->type, n_q, h->n_embd, l->faint);
    if (h->window) {
        add_vec(to, "attn_q.bias", n_q);
        add_vec(to, "attn_k.bias", n_kv);
        add_vec(to, "attn_v.bias", n_kv);
        add_vec(to, "attn_output.bias", h->n_embd);
        add_vec(to, "attn_sinks", h->n_heads);
    } else if (h->n_experts) {
        add_vec(to, "attn_q_norm", h->head_dim);
        add_vec(to, "attn_k_norm", h->head_dim);
    }
}

static void add_delta(const struct shape *h, const struct of_layer *l, struct parts *to)
{
    const uint32_t n_values = h->delta.n_v_heads * h->delta.dim;
    const uint32_t channels = 2 * h->delta.n_k_heads * h->delta.dim + n_values;
    add_mat(to, "attn_qkv", l->type, h->n_embd, channels, 1.6f);
    add_mat(to, "attn_gate", l->type, h->n_embd, n_values, 1);
    add_mat(to, "ssm_beta", l->type, h->n_embd, h->delta.n_v_heads, 1);
    add_mat(to, "ssm_alpha", l->type, h->n_embd, h->delta.n_v_heads, 1);
    add_mat(to, "ssm_conv1d", GGUF_F32, DELTA_TAPS, channels, 1);
    add_vec(to, "ssm_dt.bias", h->delta.n_v_heads);
    add_vec(to, "ssm_a.", h->delta.n_v_heads); // the dot: the name has no suffix
    add_vec(to, "ssm_norm", h->delta.dim);
    add_mat(to, "ssm_out", l->type, n_values, h->n_embd, l->faint);
}

static void add_feed_forward(const struct shape *h, const struct of_layer *l, struct parts *to)
{
    const uint32_t n = h->n_experts;
    if (!n || h->delta.dim) {
        const char *const dense[] = {"ffn_gate", "ffn_up", "ffn_down"};
        const char *const shared[] = {"ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"};
        const char *const *names = n ? shared : dense;
        add_mat(to, names[0], l->type, h->n_embd, h->n_ff, 1);
        add_mat(to, names[1], l->type, h->n_embd, h->n_ff, 1);
        add_mat(to, names[2], l->half, h->n_ff, h->n_embd, 0.8f * l->faint);
    }
    if (!n)
        return;
    if (h->delta.dim)
        add_vec(to, "ffn_gate_inp_shexp", h->n_embd);
    add_mat(to, "ffn_gate_inp", GGUF_F32, h->n_embd, n, 1);
    add_experts(to, "ffn_gate_exps", l->type_of_experts, h->n_embd, h->n_ff, 1, n);
    add_experts(to, "ffn_up_exps", l->type_of_experts, h->n_embd, h->n_ff, 1, n);
    add_experts(to, "ffn_down_exps", l->half_of_experts, h->n_ff, h->n_embd, 2 * l->faint, n);
    if (!h->window)
        return;
    add_vec(to, "ffn_gate_inp.bias", n);
    add_mat(to, "ffn_gate_exps.bias", GGUF_F32, h->n_ff, n, 0);
    add_mat(to, "ffn_up_exps.bias", GGUF_F32, h->n_ff, n, 0);
    add_mat(to, "ffn_down_exps.bias", GGUF_F32, h->n_embd, n, 0);
}

/* Only experts of gpt-oss have the type. */
static struct of_layer describe_layer(const struct maker *m, uint32_t layer)
{
    const enum gguf_type type = m->type->type, half = is_better(m, layer) ? m->type->half : type;
    const bool only_experts = m->shape->window > 0;
    return (struct of_layer){.type = only_experts ? m->type->head : type,
                             .half = only_experts ? m->type->head : half,
                             .type_of_experts = type,
                             .half_of_experts = half,
                             .faint = layer >= m->faint_from ? m->eps : 1};
}

static void list_layer(const struct maker *m, uint32_t layer, struct parts *to)
{
    const struct shape *h = m->shape;
    const struct of_layer l = describe_layer(m, layer);
    add_vec(to, "attn_norm", h->n_embd);
    if (h->delta.dim && (layer + 1) % DELTA_FULL_EVERY)
        add_delta(h, &l, to);
    else
        add_attention(h, &l, to);
    add_vec(to, h->window || h->delta.dim ? "post_attention_norm" : "ffn_norm", h->n_embd);
    add_feed_forward(h, &l, to);
}

static int put_layer(struct maker *m, bool names, uint32_t layer)
{
    struct parts parts = {.n = 0};
    int r = 0;
    list_layer(m, layer, &parts);
    for (size_t i = 0; i < parts.n && r == 0; i++) {
        char name[64];
        struct mat t = parts.v[i];
        int n = snprintf(name, sizeof(name), "blk.%u.%s%s", layer, t.name,
                         strchr(t.name, '.') ? "" : ".weight");
        if (name[n - 1] == '.')
            name[n - 1] = 0;
        t.name = name;
        r = t.n_out ? put_mat(m, names, t) : put_vec(m, names, name, t.n_in);
    }
    return r;
}

/* A gain of 9 makes the best token's probability mostly 0.2 to 0.9. A tied head is the embedding:
 * its rows are then small, and the first norm compensates for that. */
static int put_tensors(struct maker *m, bool names)
{
    uint32_t n = m->shape->n_embd;
    const enum gguf_type type = m->shape->window ? m->type->head : m->type->type;
    struct mat embd = {"token_embd.weight", type, n, m->n_vocab, sqrtf((float)n), false, 0};
    struct mat head = {"output.weight", m->type->head, n, m->n_vocab, 9, true, 0};
    if (m->is_tied) {
        embd = head;
        embd.name = "token_embd.weight";
    }
    int r = put_mat(m, names, embd);
    for (uint32_t l = 0; l < m->n_layers && r == 0; l++)
        r = put_layer(m, names, l);
    if (r == 0)
        r = put_vec(m, names, "output_norm.weight", n);
    return r < 0 || m->is_tied ? r : put_mat(m, names, head);
}

/* ---- keys ---- */

/* A parameter's name in the file. Static text, valid until the next call. */
static const char *arch_key(const struct shape *h, const char *name)
{
    static char key[64];
    snprintf(key, sizeof(key), "%s.%s", h->arch, name);
    return key;
}

static void put_delta_keys(struct maker *m)
{
    static const int32_t sections[] = {11, 11, 10, 0}; // of the rotation, for images
    const struct shape *h = m->shape;
    const struct {
        const char *name;
        uint32_t value;
    } keys[] = {{"full_attention_interval", DELTA_FULL_EVERY},
                {"expert_shared_feed_forward_length", h->n_ff},
                {"ssm.conv_kernel", DELTA_TAPS},
                {"ssm.state_size", h->delta.dim},
                {"ssm.group_count", h->delta.n_k_heads},
                {"ssm.time_step_rank", h->delta.n_v_heads},
                {"ssm.inner_size", h->delta.n_v_heads * h->delta.dim}};
    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        gguf_write_int(m->w, arch_key(h, keys[i].name), GGUF_U32, keys[i].value);
    gguf_write_array(m->w, arch_key(h, "rope.dimension_sections"), GGUF_I32, sections, 4);
}

static void put_keys(struct maker *m)
{
    const struct shape *h = m->shape;
    const struct {
        const char *name;
        uint32_t value;
    } general[] =
        {
            {"general.file_type", m->type->file_type}, {"general.quantization_version", 2},
            {"tokenizer.ggml.bos_token_id", 1},        {"tokenizer.ggml.eos_token_id", 2},
            {"tokenizer.ggml.unknown_token_id", 0},
        },
      of_arch[] = {
          {"vocab_size", m->n_vocab},
          {"context_length", CONTEXT},
          {"embedding_length", h->n_embd},
          {"feed_forward_length", h->n_ff},
          {"block_count", m->n_layers},
          {"attention.head_count", h->n_heads},
          {"attention.head_count_kv", h->n_kv_heads},
          {"attention.key_length", h->head_dim},
          {"attention.value_length", h->head_dim},
          {"rope.dimension_count", h->delta.dim ? h->head_dim / 4 : h->head_dim},
          {"expert_count", h->n_experts},
          {"expert_used_count", h->n_used},
          {"expert_feed_forward_length", h->n_ff},
      };
    const size_t n_of_arch = ARRAY_LEN(of_arch) - (h->n_experts ? 0 : 3);
    char name[64];
    snprintf(name, sizeof(name), "synthetic-%s-%s", h->name, m->type->name);
    gguf_write_text(m->w, "general.architecture", h->arch, strlen(h->arch));
    gguf_write_text(m->w, "general.name", name, strlen(name));
    for (size_t i = 0; i < ARRAY_LEN(general); i++)
        gguf_write_int(m->w, general[i].name, GGUF_U32, general[i].value);
    for (size_t i = 0; i < n_of_arch; i++)
        gguf_write_int(m->w, arch_key(h, of_arch[i].name), GGUF_U32, of_arch[i].value);
    gguf_write_float(m->w, arch_key(h, "rope.freq_base"), h->rope_base);
    gguf_write_float(m->w, arch_key(h, "attention.layer_norm_rms_epsilon"), 1e-5f);
    if (h->window)
        gguf_write_int(m->w, arch_key(h, "attention.sliding_window"), GGUF_U32, h->window);
    if (h->delta.dim)
        put_delta_keys(m);
}

/* A word of three or four syllables, preceded by SentencePiece's space; different for each n. */
static void word_of(uint32_t n, char to[32])
{
    static const char consonants[] = "bdfgklmnprstvz", vowels[] = "aeiou";
    char *at = stpcpy(to, "\xe2\x96\x81");
    for (int i = 0; i < 3 || n; i++) {
        *at++ = consonants[n % 14];
        *at++ = vowels[n / 14 % 5];
        n /= 70;
    }
    *at = 0;
}

static void put_vocab(struct gguf_write *w, uint32_t n)
{
    static char names[MAX_VOCAB][32];
    static struct span texts[MAX_VOCAB];
    static float scores[MAX_VOCAB];
    static int32_t kinds[MAX_VOCAB];
    static const char *const special[N_SPECIAL] = {"<unk>", "<s>", "</s>"};
    for (uint32_t i = 0; i < n; i++) {
        if (i < N_SPECIAL)
            strcpy(names[i], special[i]);
        else if (i < N_SPECIAL + N_BYTES)
            snprintf(names[i], sizeof(names[i]), "<0x%02X>", i - N_SPECIAL);
        else
            word_of(i, names[i]);
        kinds[i] = i == 0 ? 2 : i < N_SPECIAL ? 3 : i < N_SPECIAL + N_BYTES ? 6 : 1;
        scores[i] = i < N_SPECIAL + N_BYTES ? 0 : -(float)i;
        texts[i] = (struct span){names[i], strlen(names[i])};
    }
    gguf_write_text(w, "tokenizer.ggml.model", "llama", 5);
    gguf_write_texts(w, "tokenizer.ggml.tokens", texts, n);
    gguf_write_array(w, "tokenizer.ggml.scores", GGUF_FLOAT32, scores, n);
    gguf_write_array(w, "tokenizer.ggml.token_type", GGUF_I32, kinds, n);
}

/* ---- the file ---- */

static int write_to(struct maker *m, FILE *to)
{
    put_keys(m);
    put_vocab(m->w, m->n_vocab);
    int r = put_tensors(m, true);
    if (r == 0)
        r = gguf_write_head(m->w, to);
    fprintf(stderr, "writing %s: %.0f MiB\n", m->out, (double)m->bytes / 0x1p20);
    if (r == 0)
        r = put_tensors(m, false);
    return r < 0 ? r : gguf_write_end(m->w);
}

static int make(struct maker *m)
{
    FILE *to = fopen(m->out, "wbe");
    if (!to)
        return fail(-errno, "%s: %s", m->out, strerror(errno));
    int r = gguf_write_new(&m->w);
    if (r == 0)
        r = write_to(m, to);
    gguf_write_free(m->w);
    if (fclose(to) != 0 && r == 0)
        r = fail(-EIO, "%s: %s", m->out, strerror(errno));
    if (r < 0)
        remove(m->out);
    return r;
}

/* ---- options ---- */

static const struct shape *shape_named(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
        if (strcmp(shapes[i].name, name) == 0)
            return &shapes[i];
    return NULL;
}

static const struct type *type_named(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(types); i++)
        if (strcmp(types[i].name, name) == 0)
            return &types[i];
    return NULL;
}

static _Noreturn void refuse(const char *what)
{
    fprintf(stderr, "make_model: %s\n", what);
    exit(2);
}

static void read_options(int argc, char **argv, struct maker *m)
{
    static const struct option options[] = {{"shape", 1, NULL, 's'},      {"type", 1, NULL, 't'},
                                            {"out", 1, NULL, 'o'},        {"vocab", 1, NULL, 'v'},
                                            {"tied", 0, NULL, 'h'},       {"layers", 1, NULL, 'l'},
                                            {"faint-from", 1, NULL, 'f'}, {"eps", 1, NULL, 'e'},
                                            {"seed", 1, NULL, 'r'},       {0}};
    *m = (struct maker){.shape = shape_named("1b"),
                        .type = type_named("q8_0"),
                        .n_vocab = 32000,
                        .faint_from = UINT32_MAX,
                        .eps = 1,
                        .seed = 1};
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (c == 's')
            m->shape = shape_named(optarg);
        else if (c == 't')
            m->type = type_named(optarg);
        else if (c == 'o')
            m->out = optarg;
        else if (c == 'v')
            m->n_vocab = (uint32_t)strtoul(optarg, NULL, 10);
        else if (c == 'h')
            m->is_tied = true;
        else if (c == 'l')
            m->n_layers = (uint32_t)strtoul(optarg, NULL, 10);
        else if (c == 'f')
            m->faint_from = (uint32_t)strtoul(optarg, NULL, 10);
        else if (c == 'e')
            m->eps = strtof(optarg, NULL);
        else if (c == 'r')
            m->seed = strtoull(optarg, NULL, 10);
        else
            exit(2);
    }
    if (!m->shape)
        refuse("--shape is one of 0.1b 1b 3b moe-a oss tiny");
    if (!m->type)
        refuse("--type is one of q8_0 q4_0 q4_1 q5_0 q5_1 q4_k_m q5_k_m q6_k iq4_nl iq4_xs mxfp4 "
               "f16 bf16 f32");
    if (m->n_vocab < MIN_VOCAB || m->n_vocab > MAX_VOCAB)
        refuse("--vocab is 1024 .. 300000");
    if (!m->n_layers)
        m->n_layers = m->shape->n_layers;
    if (m->n_layers > m->shape->n_layers)
        refuse("--layers is at most what the shape has");
    if (!m->out)
        refuse("--out is missing");
}

int main(int argc, char **argv)
{
    static struct maker m;
    read_options(argc, argv, &m);
    if (make(&m) < 0) {
        fprintf(stderr, "make_model: %s\n", fail_text());
        return 1;
    }
    return 0;
}

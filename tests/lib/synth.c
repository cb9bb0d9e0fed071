/* synth.c - streams random weights, quantised row by row, into a model file. */
#include "lib/synth.h"
#include "base/err.h"
#include "base/rng.h"
#include "file/gguf_write.h"
#include "kernel/kernel.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_VOCAB 32000
#define N_SPECIAL 3 // <unk>, <s>, </s>
#define N_BYTES 256
#define CONTEXT 8192
#define MAX_ROW 8192

static const struct shape {
    const char *name;
    uint32_t n_embd, n_ff, n_layers, n_heads, n_kv_heads, head_dim;
    float rope_base;
} shapes[] = {
    {"0.1b", 576, 1536, 30, 9, 3, 64, 100000},
    {"1b", 2048, 8192, 16, 32, 8, 64, 500000},
    {"3b", 3072, 8192, 28, 24, 8, 128, 500000},
};

static const struct type {
    const char *name;
    enum gguf_type type;
    uint32_t file_type; // general.file_type
} types[] = {{"q8_0", GGUF_Q8_0, 7}, {"q4_0", GGUF_Q4_0, 2}, {"f16", GGUF_F16, 1}};

struct synth {
    const struct shape *shape;
    const struct type *type;
    struct gguf_write *w;
    uint64_t state;
    float row[MAX_ROW];
    uint8_t packed[MAX_ROW * 2];
};

/* ---- rows ---- */

/* Sum of four uniform 16-bit numbers: variance 1. */
static void random_row(struct synth *s, uint32_t n, float deviation)
{
    for (uint32_t i = 0; i < n; i++) {
        uint64_t w = s->state = s->state * 6364136223846793005u + 1442695040888963407u;
        w ^= w >> 31;
        int32_t sum = (int32_t)((w & 0xffff) + (w >> 16 & 0xffff) + (w >> 32 & 0xffff) + (w >> 48));
        s->row[i] = (float)(sum - 2 * 65535) * (deviation * 1.7320508f / 65536);
    }
}

static float put_scale(uint8_t *to, float d)
{
    uint16_t h = kernel_f16_of(d);
    memcpy(to, &h, sizeof(h));
    return d != 0 ? 1 / d : 0;
}

static void pack_q8_0(const float *x, uint8_t *to)
{
    float largest = 0;
    for (int i = 0; i < 32; i++)
        largest = fmaxf(largest, fabsf(x[i]));
    float inverse = put_scale(to, largest / 127);
    for (int i = 0; i < 32; i++)
        to[2 + i] = (uint8_t)(int8_t)lrintf(x[i] * inverse);
}

static void pack_q4_0(const float *x, uint8_t *to)
{
    float largest = 0;
    for (int i = 0; i < 32; i++)
        largest = fabsf(x[i]) > fabsf(largest) ? x[i] : largest;
    float inverse = put_scale(to, largest / -8);
    for (int i = 0; i < 16; i++) {
        long lo = lrintf(x[i] * inverse) + 8, hi = lrintf(x[i + 16] * inverse) + 8;
        to[2 + i] = (uint8_t)((lo < 15 ? lo : 15) | (hi < 15 ? hi : 15) << 4);
    }
}

static size_t pack_row(struct synth *s, uint32_t n)
{
    uint8_t *to = s->packed;
    for (uint32_t i = 0; i < n && s->type->type == GGUF_F16; i++, to += 2) {
        uint16_t h = kernel_f16_of(s->row[i]);
        memcpy(to, &h, sizeof(h));
    }
    for (uint32_t i = 0; i < n && s->type->type == GGUF_Q8_0; i += 32, to += 34)
        pack_q8_0(s->row + i, to);
    for (uint32_t i = 0; i < n && s->type->type == GGUF_Q4_0; i += 32, to += 18)
        pack_q4_0(s->row + i, to);
    return (size_t)(to - s->packed);
}

/* ---- tensors: walked twice, first for their names, then for their weights ---- */

static int put_mat(struct synth *s, bool names, const char *name, uint32_t n_in, uint32_t n_out,
                   float gain)
{
    if (names) {
        gguf_write_tensor(s->w, name, s->type->type, 2, (uint64_t[]){n_in, n_out});
        return 0;
    }
    bool is_head = strcmp(name, "output.weight") == 0;
    for (uint32_t r = 0; r < n_out; r++) { // no special or byte token ends or garbles the text
        random_row(s, n_in, is_head && r < N_SPECIAL + N_BYTES ? 0 : gain / sqrtf((float)n_in));
        int err = gguf_write_data(s->w, s->packed, pack_row(s, n_in));
        if (err < 0)
            return err;
    }
    return 0;
}

static int put_norm(struct synth *s, bool names, const char *name)
{
    uint32_t n = s->shape->n_embd;
    if (names) {
        gguf_write_tensor(s->w, name, GGUF_F32, 1, (uint64_t[]){n});
        return 0;
    }
    for (uint32_t i = 0; i < n; i++)
        s->row[i] = 1;
    return gguf_write_data(s->w, s->row, n * sizeof(float));
}

static int put_layer(struct synth *s, bool names, uint32_t layer)
{
    const struct shape *h = s->shape;
    uint32_t n_q = h->n_heads * h->head_dim, n_kv = h->n_kv_heads * h->head_dim;
    const struct {
        const char *name;
        uint32_t n_in, n_out; // n_out 0: a norm
        float gain;
    } parts[] = {
        {"attn_norm", 0, 0, 0},
        {"attn_q", h->n_embd, n_q, 1.6f},
        {"attn_k", h->n_embd, n_kv, 1.6f},
        {"attn_v", h->n_embd, n_kv, 1},
        {"attn_output", n_q, h->n_embd, 1},
        {"ffn_norm", 0, 0, 0},
        {"ffn_gate", h->n_embd, h->n_ff, 1},
        {"ffn_up", h->n_embd, h->n_ff, 1},
        {"ffn_down", h->n_ff, h->n_embd, 0.8f},
    };
    int r = 0;
    for (size_t i = 0; i < ARRAY_LEN(parts) && r == 0; i++) {
        char name[64];
        snprintf(name, sizeof(name), "blk.%u.%s.weight", layer, parts[i].name);
        r = parts[i].n_out ? put_mat(s, names, name, parts[i].n_in, parts[i].n_out, parts[i].gain)
                           : put_norm(s, names, name);
    }
    return r;
}

static int put_tensors(struct synth *s, bool names)
{
    int r = put_mat(s, names, "token_embd.weight", s->shape->n_embd, N_VOCAB,
                    sqrtf((float)s->shape->n_embd));
    for (uint32_t l = 0; l < s->shape->n_layers && r == 0; l++)
        r = put_layer(s, names, l);
    if (r == 0)
        r = put_norm(s, names, "output_norm.weight");
    // A gain of 9 makes the best token's probability mostly 0.2 to 0.9.
    return r < 0 ? r : put_mat(s, names, "output.weight", s->shape->n_embd, N_VOCAB, 9);
}

/* ---- keys ---- */

static void put_keys(struct synth *s)
{
    const struct shape *h = s->shape;
    const struct {
        const char *name;
        uint32_t value;
    } numbers[] = {
        {"general.file_type", s->type->file_type},
        {"general.quantization_version", 2},
        {"llama.vocab_size", N_VOCAB},
        {"llama.context_length", CONTEXT},
        {"llama.embedding_length", h->n_embd},
        {"llama.feed_forward_length", h->n_ff},
        {"llama.block_count", h->n_layers},
        {"llama.attention.head_count", h->n_heads},
        {"llama.attention.head_count_kv", h->n_kv_heads},
        {"llama.attention.key_length", h->head_dim},
        {"llama.attention.value_length", h->head_dim},
        {"llama.rope.dimension_count", h->head_dim},
        {"tokenizer.ggml.bos_token_id", 1},
        {"tokenizer.ggml.eos_token_id", 2},
        {"tokenizer.ggml.unknown_token_id", 0},
    };
    char name[64];
    snprintf(name, sizeof(name), "synthetic-%s-%s", h->name, s->type->name);
    gguf_write_text(s->w, "general.architecture", "llama", 5);
    gguf_write_text(s->w, "general.name", name, strlen(name));
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++)
        gguf_write_int(s->w, numbers[i].name, GGUF_U32, numbers[i].value);
    gguf_write_float(s->w, "llama.rope.freq_base", h->rope_base);
    gguf_write_float(s->w, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
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

static void put_vocab(struct gguf_write *w)
{
    static char names[N_VOCAB][32];
    static struct gguf_text texts[N_VOCAB];
    static float scores[N_VOCAB];
    static int32_t kinds[N_VOCAB];
    static const char *const special[N_SPECIAL] = {"<unk>", "<s>", "</s>"};
    for (uint32_t i = 0; i < N_VOCAB; i++) {
        if (i < N_SPECIAL)
            strcpy(names[i], special[i]);
        else if (i < N_SPECIAL + N_BYTES)
            snprintf(names[i], sizeof(names[i]), "<0x%02X>", i - N_SPECIAL);
        else
            word_of(i, names[i]);
        kinds[i] = i == 0 ? 2 : i < N_SPECIAL ? 3 : i < N_SPECIAL + N_BYTES ? 6 : 1;
        scores[i] = i < N_SPECIAL + N_BYTES ? 0 : -(float)i;
        texts[i] = (struct gguf_text){names[i], strlen(names[i])};
    }
    gguf_write_text(w, "tokenizer.ggml.model", "llama", 5);
    gguf_write_texts(w, "tokenizer.ggml.tokens", texts, N_VOCAB);
    gguf_write_array(w, "tokenizer.ggml.scores", GGUF_FLOAT32, scores, N_VOCAB);
    gguf_write_array(w, "tokenizer.ggml.token_type", GGUF_I32, kinds, N_VOCAB);
}

static int write_to(struct synth *s, FILE *to)
{
    put_keys(s);
    put_vocab(s->w);
    int r = put_tensors(s, true);
    if (r == 0)
        r = gguf_write_head(s->w, to);
    if (r == 0)
        r = put_tensors(s, false);
    return r < 0 ? r : gguf_write_end(s->w);
}

int synth_write(const char *path, const char *shape, const char *type, uint64_t seed)
{
    static struct synth s;
    s = (struct synth){.state = rng_splitmix64(seed)};
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
        if (strcmp(shapes[i].name, shape) == 0)
            s.shape = &shapes[i];
    for (size_t i = 0; i < ARRAY_LEN(types); i++)
        if (strcmp(types[i].name, type) == 0)
            s.type = &types[i];
    if (!s.shape || !s.type)
        return fail(-EINVAL, "%s %s: there are 0.1b, 1b, 3b of q8_0, q4_0, f16", shape, type);
    FILE *to = fopen(path, "wbe");
    if (!to)
        return fail(-errno, "%s: %s", path, strerror(errno));
    int r = gguf_write_new(&s.w);
    if (r == 0)
        r = write_to(&s, to);
    gguf_write_free(s.w);
    if (fclose(to) != 0 && r == 0)
        r = fail(-EIO, "%s: %s", path, strerror(errno));
    if (r < 0)
        remove(path);
    return r;
}

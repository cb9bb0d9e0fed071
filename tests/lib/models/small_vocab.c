/* small_vocab.c - vocabularies of a few hundred tokens. */
#include "lib/models/small_vocab.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "lib/lib.h"

#define MAX 320

struct list {
    struct span text[MAX];
    char letters[256][8];
    int32_t kinds[MAX];
    float scores[MAX];
    uint32_t n;
};

static void add(struct list *l, const char *text, enum tok_kind kind, float score)
{
    l->text[l->n] = (struct span){text, strlen(text)};
    l->kinds[l->n] = kind;
    l->scores[l->n++] = score;
}

/* GPT-2's letter for a byte, by its definition: unprintable bytes are numbered from U+0100. */
static void letter_of(unsigned byte, char out[8])
{
    unsigned n_moved = 0, code = byte;
    for (unsigned b = 0; b <= byte; b++) {
        bool stays = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        if (b == byte && !stays)
            code = 256 + n_moved;
        n_moved += !stays;
    }
    out[lib_put_utf8(code, out)] = 0;
}

static void bpe_keys(struct gguf_write *w, struct list *l)
{
    static const char *const merges[] = {
        "a b", "ab c", "\xc4\xa0 a", "b c", "l l", "h e", "he ll", "hell o", "\xc3\x83 \xc2\xa9",
    };
    static const char *const made[] = {
        "ab", "abc", "\u0120a", "bc", "ll", "he", "hell", "hello", "\xc3\x83\xc2\xa9",
    };
    struct span texts[ARRAY_LEN(merges)];
    for (unsigned b = 0; b < 256; b++) {
        letter_of(b, l->letters[b]);
        add(l, l->letters[b], TOK_NORMAL, 0);
    }
    for (size_t i = 0; i < ARRAY_LEN(merges); i++) {
        texts[i] = (struct span){merges[i], strlen(merges[i])};
        add(l, made[i], TOK_NORMAL, 0);
    }
    add(l, "<|begin|>", TOK_CONTROL, 0);
    add(l, "<|end|>", TOK_CONTROL, 0);
    add(l, "<tool>", TOK_USER, 0);
    add(l, "<tool>x", TOK_USER, 0);
    add(l, "[PAD269]", TOK_UNUSED, 0);
    gguf_write_text(w, "tokenizer.ggml.model", "gpt2", 4);
    gguf_write_texts(w, "tokenizer.ggml.merges", texts, ARRAY_LEN(merges));
    gguf_write_int(w, "tokenizer.ggml.bos_token_id", GGUF_U32, SMALL_BEGIN);
    gguf_write_int(w, "tokenizer.ggml.eos_token_id", GGUF_U32, SMALL_END);
}

static void spm_keys(struct gguf_write *w, struct list *l)
{
    static const char *const pieces[] = {
        "\xe2\x96\x81", "a", "b", "c", "\u2581a", "bc", "ab", "\u2581ab",
    };
    add(l, "<unk>", TOK_UNKNOWN, 0);
    add(l, "<s>", TOK_CONTROL, 0);
    add(l, "</s>", TOK_CONTROL, 0);
    for (unsigned b = 0; b < 256; b++) {
        snprintf(l->letters[b], sizeof(l->letters[b]), "<0x%02X>", b);
        add(l, l->letters[b], TOK_BYTE, 0);
    }
    for (size_t i = 0; i < ARRAY_LEN(pieces); i++)
        add(l, pieces[i], TOK_NORMAL, -(float)i);
    add(l, "<user>", TOK_USER, 0);
    gguf_write_text(w, "tokenizer.ggml.model", "llama", 5);
    gguf_write_array(w, "tokenizer.ggml.scores", GGUF_FLOAT32, l->scores, l->n);
}

void small_vocab_keys(struct gguf_write *w, enum small_vocab which)
{
    struct list *l = calloc(1, sizeof(*l));
    assert_non_null(l);
    if (which == SMALL_BPE)
        bpe_keys(w, l);
    else
        spm_keys(w, l);
    gguf_write_texts(w, "tokenizer.ggml.tokens", l->text, l->n);
    gguf_write_array(w, "tokenizer.ggml.token_type", GGUF_I32, l->kinds, l->n);
    free(l);
}

void *small_vocab_finish(struct gguf_write *w, size_t *ret_len)
{
    char *data = NULL;
    FILE *file = open_memstream(&data, ret_len);
    assert_int_equal(gguf_write_head(w, file), 0);
    assert_int_equal(gguf_write_end(w), 0);
    fclose(file);
    return data;
}

struct tok *small_vocab_tok(enum small_vocab which, const char *pre)
{
    AUTO(gguf_write_free) struct gguf_write *w = NULL;
    AUTO(checkpoint_close) struct checkpoint *g = NULL;
    struct tok *t = NULL;
    size_t len;
    assert_int_equal(gguf_write_new(&w), 0);
    small_vocab_keys(w, which);
    pre = pre ? pre : "gpt-2";
    gguf_write_text(w, "tokenizer.ggml.pre", pre, strlen(pre));
    AUTO(mem_free) void *data = small_vocab_finish(w, &len);
    if (checkpoint_open_memory(data, len, &g) < 0 || tok_new(g, &t) < 0)
        fail_msg("%s", fail_text());
    return t;
}

/* vocab.h - the tokens of a model: their bytes, kinds and scores, and ids by bytes. Private to tok.
 *
 * Tokens are stored as the bytes that they stand for: byte-level letters and U+2581 are converted.
 * So texts need no conversion before a lookup.
 *
 * Threads: immutable after vocab_init(). */
#pragma once
#include "file/checkpoint.h"
#include "text/tok.h"

#define VOCAB_NONE UINT32_MAX

enum vocab_model { VOCAB_BPE, VOCAB_SPM };

struct vocab_slot {
    uint32_t hash, id; // id VOCAB_NONE: empty
};

struct vocab {
    enum vocab_model model;
    uint32_t n;
    uint32_t *at; // (n + 1) offset of each token in bytes
    char *bytes;
    uint8_t *kinds;           // (n) enum tok_kind
    float *scores;            // (n); NULL: the file has none
    uint32_t max_len;         // bytes of the longest token
    struct vocab_slot *slots; // (mask + 1) tokens of kind normal, user, unused
    uint32_t mask;
    uint32_t byte_ids[256]; // tokens of kind byte; VOCAB_NONE: none
};

/* Reads tokenizer.tokens, tokenizer.scores and tokenizer.token_type. -EINVAL: missing, damaged or
 * over a limit. */
int vocab_init(struct vocab *v, const struct checkpoint *c, enum vocab_model model);
void vocab_done(struct vocab *v);

static inline struct span vocab_bytes(const struct vocab *v, uint32_t id)
{
    return (struct span){v->bytes + v->at[id], v->at[id + 1] - v->at[id]};
}

/* VOCAB_NONE: no token has these bytes. */
uint32_t vocab_find(const struct vocab *v, const char *bytes, size_t len);
/* Converts GPT-2's byte-level letters to bytes; other characters stay. out: len bytes. */
size_t vocab_letters_to_bytes(const char *text, size_t len, char *out);

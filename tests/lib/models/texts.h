/* texts.h - real texts as tokens, split where a prompt ends and an answer begins.
 *
 * Sources: ../shared/data/prompts and ../shared/models. A missing file gives no samples. */
#pragma once
#include <stdint.h>
#include "text/tok.h"

struct text_sample {
    uint32_t *tokens;
    uint32_t n, n_prompt;
};

struct texts {
    const char *name;
    unsigned n, capacity;
    struct text_sample *samples;
};

enum texts_kind {
    TEXTS_GSM8K,     // school mathematics: question and worked answer
    TEXTS_HUMANEVAL, // Python: signature with docstring, and body
    TEXTS_DOCUMENTS, // long passages of Spec-Bench (summarisation, RAG): the first quarter, the
                     // rest
    TEXTS_TALES,     // held-out chats of the embedded model's kind: request and story
    TEXTS_KINDS
};

/* At most n_max samples. */
struct texts texts_load(enum texts_kind kind, const struct tok *tok, unsigned n_max);
void texts_done(struct texts *t);
/* Frees the samples. */
void texts_add(struct texts *t, uint32_t *tokens, uint32_t n, uint32_t n_prompt);
/* Opens a vocabulary file. Ends the program if it cannot be read. */
struct tok *texts_vocabulary(const char *path);

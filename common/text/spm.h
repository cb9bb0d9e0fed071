/* spm.h - SentencePiece BPE with byte fallback: scores decide which characters are joined. Private
 * to tok.
 *
 * Threads: immutable after spm_init(). */
#pragma once
#include "text/ids.h"
#include "text/merge.h"
#include "text/vocab.h"

struct spm {
    const struct vocab *vocab;
    uint32_t unknown;         // for bytes without a token; VOCAB_NONE: they are dropped
    bool add_space_prefix;    // a space before text that follows nothing or a special token
    bool remove_extra_spaces; // runs become one, none at the ends
    bool by_words;            // no token crosses a space after a word: each word is joined alone
};

/* -EINVAL: the file has no scores. The vocabulary must outlive s. */
int spm_init(struct spm *s, const struct checkpoint *c, const struct vocab *vocab,
             uint32_t unknown);
/* Appends the ids of a text; fresh: it follows nothing or a special token. -ENOMEM. */
int spm_encode(const struct spm *s, const char *text, size_t len, bool fresh, struct merge *work,
               struct ids *to);

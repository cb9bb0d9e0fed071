/* pretok.h - cuts text into words; byte-level BPE merges inside words. Private to tok.
 *
 * A pre-tokenizer is a list of patterns. Each one in turn cuts every piece into its matches and the
 * text between them. The patterns are part of a model's definition (its tokenizer.json); a
 * checkpoint names them in tokenizer.pre.
 *
 * Threads: immutable after pretok_init(). */
#pragma once
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include "base/span.h"

#define PRETOK_MAX_PATTERNS 6

struct pretok {
    pcre2_code *codes[PRETOK_MAX_PATTERNS];
    unsigned n;
    pcre2_match_context *limits;
    bool whole_words; // a word that is a token needs no merges
    bool add_bos;     // unless the file says otherwise
};

/* -ENOTSUP: the name is not known. */
int pretok_init(struct pretok *p, struct span name);
void pretok_done(struct pretok *p);

/* Calls word() with each piece from left to right, until it returns a negative number. text must be
 * valid UTF-8. -EINVAL: a pattern reached its limits; linear patterns do not. */
int pretok_split(const struct pretok *p, const char *text, size_t len,
                 int (*word)(void *arg, const char *text, size_t len), void *arg);

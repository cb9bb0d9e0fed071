/* detok.h - incremental text of a growing token sequence: whole characters, cut at stop strings.
 *
 * Holds back the bytes of an unfinished UTF-8 character and text that may be the beginning of a
 * stop string. Invalid bytes become U+FFFD once no later byte can complete them. The text
 * does not depend on how it is divided into tokens.
 *
 * Threads: one at a time. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "text/tok.h"

#define DETOK_MAX_STOPS 16
#define DETOK_MAX_STOP_BYTES 256

struct detok_stop {
    const char *data;
    size_t len;
};

struct detok {
    const struct tok *tok;
    bool special;
    const uint32_t *shown; // (n_shown) memory of the owner
    uint32_t n_shown;
    struct detok_stop stops[DETOK_MAX_STOPS]; // memory of the owner
    unsigned n_stops;
    struct buf held; // decoded, not yet released
    size_t n_whole;  // bytes of held that are whole characters; then the beginning of one
};

/* Bytes that a token can add to the text, and bytes that can be held back. */
size_t detok_max_added(const struct tok *t);
size_t detok_max_held(const struct tok *t);
/* special: control tokens become their names. t must outlive d. */
void detok_init(struct detok *d, const struct tok *t, bool special);
/* These special tokens become their names in any case. ids must outlive d. */
void detok_show(struct detok *d, const uint32_t *ids, uint32_t n);
/* Allocates all memory that d can need. Without this call d allocates as it grows. -ENOMEM. */
int detok_reserve(struct detok *d);
void detok_done(struct detok *d);
/* stop must outlive d. -E2BIG: more than the limits above; -EINVAL: empty or not UTF-8. */
int detok_add_stop(struct detok *d, const char *stop, size_t len);

/* Feeds a token and appends to `to` the text that is now certain; it may be empty.
 *
 * Returns the index of the stop string that the text has just completed, or DETOK_NONE. Of several,
 * the one that ends first in the text counts, then the longest. The text ends before it. Nothing
 * may be fed after a stop. Errors are in buf_error(&d->held) and, if `to` has reached its maximum,
 * in buf_error(to). */
#define DETOK_NONE (-1)
int detok_feed(struct detok *d, uint32_t id, struct buf *to);
/* Whole characters that are held back. */
uint32_t detok_n_held(const struct detok *d);
/* The generation ended without a stop: appends the text that was held back. An unfinished character
 * becomes U+FFFD, which may complete a stop string. */
void detok_flush(struct detok *d, struct buf *to);

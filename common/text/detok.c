/* detok.c - incremental text with stop strings. */
#include <errno.h>
#include <string.h>
#include "base/err.h"
#include "text/detok.h"
#include "base/utf8.h"

/* In the worst case all bytes are invalid: those of the token, and those of an unfinished character
 * before it. */
size_t detok_max_added(const struct tok *t)
{
    return (tok_longest(t) + 3) * strlen(UTF8_REPLACEMENT);
}

size_t detok_max_held(const struct tok *t)
{
    return DETOK_MAX_STOP_BYTES + detok_max_added(t); // the beginning of a stop, and a token's text
}

void detok_init(struct detok *d, const struct tok *t, bool special)
{
    *d = (struct detok){.tok = t, .special = special};
    buf_init(&d->held, detok_max_held(t));
}

void detok_show(struct detok *d, const uint32_t *ids, uint32_t n)
{
    d->shown = ids;
    d->n_shown = n;
}

int detok_reserve(struct detok *d)
{
    return buf_reserve(&d->held, d->held.max) ? 0 : buf_error(&d->held);
}

void detok_done(struct detok *d)
{
    buf_done(&d->held);
}

int detok_add_stop(struct detok *d, const char *stop, size_t len)
{
    if (len == 0)
        return fail(-EINVAL, "a stop string is empty");
    if (utf8_valid(stop, len) < len) // it could begin inside a character
        return fail(-EINVAL, "a stop string is not UTF-8");
    if (d->n_stops == DETOK_MAX_STOPS)
        return fail(-E2BIG, "more than %d stop strings", DETOK_MAX_STOPS);
    if (len > DETOK_MAX_STOP_BYTES)
        return fail(-E2BIG, "a stop string of %zu bytes; the limit is %d", len,
                    DETOK_MAX_STOP_BYTES);
    d->stops[d->n_stops++] = (struct detok_stop){stop, len};
    return 0;
}

/* Appends a token's bytes. Invalid ones become U+FFFD. An unfinished character at the end stays
 * after n_whole. */
static void append_bytes(struct detok *d, struct span bytes)
{
    char cut[3];
    struct buf *held = &d->held;
    size_t n_cut = held->len - d->n_whole;
    memcpy(cut, held->data ? held->data + d->n_whole : cut, n_cut);
    held->len = d->n_whole;
    for (size_t at = 0, len = n_cut + bytes.len; at < len;) {
        enum utf8_what what;
        char window[4]; // a character may begin in cut and end in the token
        unsigned n = 0;
        for (; n < sizeof(window) && at + n < len; n++)
            window[n] = at + n < n_cut ? cut[at + n] : bytes.data[at + n - n_cut];
        n = utf8_step(window, n, &what);
        if (what == UTF8_BAD)
            buf_add(held, UTF8_REPLACEMENT, 3);
        else
            buf_add(held, window, n);
        at += n;
        if (what != UTF8_CUT)
            d->n_whole = held->len;
    }
}

/* The stop string that ends first in the text; if several end there, the longest. *ret_at: its
 * start. */
static int find_stop(const struct detok *d, size_t *ret_at)
{
    int found = DETOK_NONE;
    size_t end = d->n_whole;
    for (unsigned i = 0; i < d->n_stops; i++) {
        const struct detok_stop *stop = &d->stops[i];
        const char *at = memmem(d->held.data, end, stop->data, stop->len);
        if (!at)
            continue;
        size_t start = (size_t)(at - d->held.data);
        if (found == DETOK_NONE || start + stop->len < end || start < *ret_at) {
            found = (int)i;
            *ret_at = start;
            end = start + stop->len;
        }
    }
    return found;
}

/* The length of the longest beginning of a stop string at the end of the whole characters. */
static size_t n_stop_prefix(const struct detok *d)
{
    size_t most = 0;
    for (unsigned i = 0; i < d->n_stops; i++) {
        const struct detok_stop *stop = &d->stops[i];
        size_t n = stop->len - 1 < d->n_whole ? stop->len - 1 : d->n_whole;
        const char *end = d->held.data + d->n_whole;
        while (n > most && (*(end - n) != *stop->data || memcmp(end - n, stop->data, n) != 0))
            n--;
        most = n > most ? n : most;
    }
    return most;
}

/* Moves the first n held bytes to `to`. */
static void release_held(struct detok *d, size_t n, struct buf *to)
{
    if (n == 0)
        return;
    buf_add(to, d->held.data, n);
    buf_shift(&d->held, n);
    d->n_whole -= n;
}

static bool is_shown(const struct detok *d, uint32_t id)
{
    for (uint32_t i = 0; i < d->n_shown; i++)
        if (d->shown[i] == id)
            return true;
    return d->special;
}

int detok_feed(struct detok *d, uint32_t id, struct buf *to)
{
    size_t at = 0;
    append_bytes(d, tok_bytes(d->tok, id, is_shown(d, id)));
    if (d->n_whole == 0 || d->held.error)
        return DETOK_NONE;
    int stop = find_stop(d, &at);
    release_held(d, stop == DETOK_NONE ? d->n_whole - n_stop_prefix(d) : at, to);
    if (stop != DETOK_NONE) {
        buf_clear(&d->held);
        d->n_whole = 0;
    }
    return stop;
}

uint32_t detok_n_held(const struct detok *d)
{
    uint32_t n = 0;
    for (size_t i = 0; i < d->n_whole; i++)
        n += ((unsigned char)d->held.data[i] & 0xC0) != 0x80;
    return n;
}

void detok_flush(struct detok *d, struct buf *to)
{
    size_t at;
    if (d->held.len > d->n_whole) {
        d->held.len = d->n_whole;
        buf_add(&d->held, UTF8_REPLACEMENT, 3);
        d->n_whole = d->held.len;
    }
    if (d->n_whole > 0)
        release_held(d, find_stop(d, &at) == DETOK_NONE ? d->n_whole : at, to);
    buf_clear(&d->held);
    d->n_whole = 0;
}

/* special.c - special tokens in text: a sorted list, narrowed byte by byte. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "text/special.h"

static bool is_special(const struct vocab *v, uint32_t id)
{
    uint32_t len = v->at[id + 1] - v->at[id];
    return (v->kinds[id] == TOK_CONTROL || v->kinds[id] == TOK_USER ||
            v->kinds[id] == TOK_UNKNOWN) &&
           len > 0 && len <= SPECIAL_MAX_BYTES;
}

static int name_order(const struct vocab *v, uint32_t a, uint32_t b)
{
    struct span x = vocab_bytes(v, a), y = vocab_bytes(v, b);
    int r = memcmp(x.data, y.data, x.len < y.len ? x.len : y.len);
    return r != 0 ? r : (x.len > y.len) - (x.len < y.len);
}

/* By name. Of tokens with the same name, special_find() returns the last: a user-defined one, else
 * the one with the highest id. */
static int token_order(const void *a, const void *b, void *arg)
{
    const struct vocab *v = arg;
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    int r = name_order(v, x, y);
    if (r == 0)
        r = (v->kinds[x] == TOK_USER) - (v->kinds[y] == TOK_USER);
    return r != 0 ? r : (x > y) - (x < y);
}

int special_init(struct special *s, const struct vocab *vocab)
{
    uint32_t n = 0;
    s->vocab = vocab;
    for (uint32_t id = 0; id < vocab->n; id++)
        n += is_special(vocab, id);
    s->ids = malloc((n + 1) * sizeof(*s->ids));
    if (!s->ids)
        return fail(-ENOMEM, "tokenizer: no memory for %u special tokens", n);
    n = 0;
    for (uint32_t id = 0; id < vocab->n; id++)
        if (is_special(vocab, id))
            s->ids[n++] = id;
    qsort_r(s->ids, n, sizeof(*s->ids), token_order, (void *)vocab);
    uint32_t n_names = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = s->ids[i];
        if (i + 1 < n && name_order(vocab, id, s->ids[i + 1]) == 0)
            continue;
        s->ids[n_names++] = id;
        s->any_user |= vocab->kinds[id] == TOK_USER;
        s->first[(uint8_t)*vocab_bytes(vocab, id).data + 1]++;
    }
    for (unsigned b = 0; b < 256; b++)
        s->first[b + 1] += s->first[b];
    return 0;
}

void special_done(struct special *s)
{
    free(s->ids);
}

/* All names of ids[from..to) have the same first `depth` bytes and are longer. Returns the index of
 * the first name whose next byte is at least `byte` (0 to 256). */
static uint32_t lower_bound(const struct special *s, uint32_t from, uint32_t to, size_t depth,
                            unsigned byte)
{
    while (from < to) {
        uint32_t middle = from + (to - from) / 2;
        if ((uint8_t)vocab_bytes(s->vocab, s->ids[middle]).data[depth] < byte)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

/* The special token with the longest name at the start of text; VOCAB_NONE: none. */
static uint32_t longest_token(const struct special *s, const char *text, size_t len,
                              bool parse_special)
{
    uint32_t from = s->first[(uint8_t)*text], to = s->first[(uint8_t)*text + 1];
    uint32_t found = VOCAB_NONE;
    for (size_t depth = 1; from < to; depth++) {
        if (vocab_bytes(s->vocab, s->ids[from]).len == depth) {
            if (parse_special || s->vocab->kinds[s->ids[from]] == TOK_USER)
                found = s->ids[from];
            from++;
        }
        if (depth == len)
            break;
        from = lower_bound(s, from, to, depth, (uint8_t)text[depth]);
        to = lower_bound(s, from, to, depth, (uint8_t)text[depth] + 1u);
    }
    return found;
}

size_t special_find(const struct special *s, const char *text, size_t len, size_t at,
                    bool parse_special, uint32_t *ret_id)
{
    if (!parse_special && !s->any_user)
        return len;
    for (; at < len; at++) {
        uint8_t byte = (uint8_t)text[at];
        if (s->first[byte] == s->first[byte + 1])
            continue;
        *ret_id = longest_token(s, text + at, len - at, parse_special);
        if (*ret_id != VOCAB_NONE)
            return at;
    }
    return len;
}

/* fuzz_detok.c - any tokens with any stop strings. The output is UTF-8, contains no stop string,
 * and does not depend on the division of the text into tokens. Input: the number of stops, each
 * after its length; then token ids of one byte each (ids above 240 are tokens of several bytes). */
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "lib/models/small_vocab.h"
#include "text/detok.h"
#include "base/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

struct input {
    const uint8_t *data;
    size_t n;
};

static void add_stops(struct detok *d, struct input in)
{
    for (; in.n > 1 && in.data[0] < in.n; in.n -= in.data[0] + 1u, in.data += in.data[0] + 1u)
        detok_add_stop(d, (const char *)in.data + 1, in.data[0]);
}

static uint32_t token_of(uint8_t byte)
{
    return byte > 240 && byte - 241 < SMALL_N - 256 ? 256u + byte - 241u : byte;
}

/* by_bytes: feeds the bytes of each token separately. */
static int run(const struct tok *t, struct input stops, struct input tokens, bool by_bytes,
               struct buf *out)
{
    struct detok d;
    int stop = DETOK_NONE;
    detok_init(&d, t, true);
    add_stops(&d, stops);
    for (size_t i = 0; i < tokens.n && stop == DETOK_NONE; i++) {
        uint32_t id = token_of(tokens.data[i]);
        struct span bytes = tok_bytes(t, id, true);
        if (!by_bytes)
            stop = detok_feed(&d, id, out);
        for (size_t b = 0; by_bytes && b < bytes.len && stop == DETOK_NONE; b++)
            stop = detok_feed(&d, (uint8_t)bytes.data[b], out);
    }
    if (stop == DETOK_NONE)
        detok_flush(&d, out);
    for (unsigned s = 0; s < d.n_stops; s++)
        if (out->len > 0 && memmem(out->data, out->len, d.stops[s].data, d.stops[s].len))
            abort();
    detok_done(&d);
    return stop;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct tok *t; // kept for the life of the process
    if (!t)
        t = small_vocab_tok(SMALL_BPE, NULL);
    if (n == 0 || data[0] >= n)
        return 0;
    struct input stops = {data + 1, data[0]}, tokens = {data + 1 + data[0], n - 1 - data[0]};
    struct buf a, b;
    buf_init(&a, 1 << 22);
    buf_init(&b, 1 << 22);
    int stop_a = run(t, stops, tokens, false, &a), stop_b = run(t, stops, tokens, true, &b);
    if (stop_a != stop_b || a.len != b.len || (a.len && memcmp(a.data, b.data, a.len) != 0) ||
        utf8_valid(a.data, a.len) != a.len)
        abort();
    buf_done(&a);
    buf_done(&b);
    return 0;
}

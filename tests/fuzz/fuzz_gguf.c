/* fuzz_gguf.c - any bytes as a GGUF file: opens it, reads everything, loads its vocabulary. */
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "lib/models/checkpoint_walk.h"
#include "text/tok.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void use(const struct tok *t)
{
    static const char text[] = "Hello <|end|>, w\xc3\xb6rld 123\n";
    AUTO(mem_free) uint32_t *ids = NULL;
    AUTO(mem_free) char *back = NULL;
    size_t n_ids, len;
    if (tok_encode(t, text, sizeof(text) - 1, true, true, &ids, &n_ids) == 0 &&
        tok_decode(t, ids, n_ids, true, &back, &len) < 0)
        abort(); // a file that we wrote
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    AUTO(mem_free) void *aligned = malloc(n + !n);
    AUTO(checkpoint_close) struct checkpoint *g = NULL;
    AUTO(tok_free) struct tok *t = NULL;
    if (!aligned)
        return 0;
    memcpy(aligned, data, n);
    if (checkpoint_open_memory(aligned, n, &g) < 0)
        return 0;
    checkpoint_walk(g);
    if (tok_new(g, &t) == 0)
        use(t);
    return 0;
}

/* fuzz_tok.c - any bytes as text. The first byte chooses the tokenizer and the options. Decoding
 * the ids of byte-level BPE must return the text. */
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "lib/models/small_vocab.h"
#include "text/tok.h"
#include "base/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const char *const pres[] = {
    NULL,          "default", "gpt-2",  "llama-bpe", "dbrx",         "qwen2",
    "seed-coder",  "qwen35",  "falcon", "starcoder", "deepseek-llm", "deepseek-coder",
    "deepseek-v3", "tekken",  "gpt-4o", "bloom",
}; // NULL: SentencePiece

static const struct tok *tok_of(unsigned which)
{
    static struct tok *toks[ARRAY_LEN(pres)]; // kept for the life of the process
    which %= ARRAY_LEN(pres);
    if (!toks[which])
        toks[which] = small_vocab_tok(pres[which] ? SMALL_BPE : SMALL_SPM, pres[which]);
    return toks[which];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n == 0)
        return 0;
    const struct tok *t = tok_of(data[0] & 15);
    bool special = data[0] & 16, bos = data[0] & 32, spm = (data[0] & 15) == 0;
    const char *text = (const char *)data + 1;
    AUTO(mem_free) uint32_t *ids = NULL;
    AUTO(mem_free) char *back = NULL;
    size_t n_ids, len;
    int r = tok_encode(t, text, n - 1, special, bos, &ids, &n_ids);
    if ((r == 0) != (utf8_valid(text, n - 1) == n - 1))
        abort();
    if (r < 0)
        return 0;
    if (tok_decode(t, ids, n_ids, special, &back, &len) < 0)
        abort();
    if (!spm && !bos && (len != n - 1 || memcmp(back, text, len) != 0))
        abort();
    return 0;
}

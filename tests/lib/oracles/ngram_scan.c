/* ngram_scan.c - the reference for prop_ngram. */
#include <string.h>
#include "lib/oracles/ngram_scan.h"

/* The position after the occurrence to copy; 0: none. */
static uint32_t find_occurrence(const struct ngram_scan *how, const uint32_t *tokens, uint32_t n,
                                uint32_t k, uint32_t len)
{
    uint32_t found = 0;
    for (uint32_t end = how->n_skip + len; end < n; end++) {
        if (memcmp(tokens + end - len, tokens + n - len, len * sizeof(*tokens)) != 0)
            continue;
        if (how->earliest_full)
            return end + k <= n ? end : 0;
        found = end;
    }
    return found;
}

uint32_t ngram_scan(const struct ngram_scan *how, const uint32_t *tokens, uint32_t n, uint32_t k,
                    uint32_t *ret_tokens)
{
    for (uint32_t len = how->len_max; len >= how->len_min; len--) {
        if (how->n_skip + len >= n)
            continue;
        uint32_t from = find_occurrence(how, tokens, n, k, len);
        for (uint32_t i = 0; from && i < k; i++)
            ret_tokens[i] = from + i < n ? tokens[from + i] : ret_tokens[from + i - n];
        if (from)
            return k;
    }
    return 0;
}

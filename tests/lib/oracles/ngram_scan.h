/* ngram_scan.h - a reference for the n-gram proposer: a scan over the whole context. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct ngram_scan {
    uint32_t len_max, len_min, n_skip; // n_skip: tokens at the start that are not searched
    bool earliest_full;
};

/* Writes at most k tokens. Returns their number. */
uint32_t ngram_scan(const struct ngram_scan *how, const uint32_t *tokens, uint32_t n, uint32_t k,
                    uint32_t *ret_tokens);

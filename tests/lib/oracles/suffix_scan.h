/* suffix_scan.h - a reference for the suffix proposer: scans over both texts. */
#pragma once
#include <stdint.h>

struct suffix_scan {
    uint32_t max_depth;
    double factor, offset, min_prob;
};

struct suffix_scan_draft {
    float score;
    uint32_t n;
    uint32_t tokens[64];
    float survival[64];
};

/* Drafts at most k tokens. pool: past outputs, oldest first, each after a mark UINT32_MAX. */
struct suffix_scan_draft suffix_scan(const struct suffix_scan *how, const uint32_t *context,
                                     uint32_t n, const uint32_t *pool, uint32_t n_pool, uint32_t k);

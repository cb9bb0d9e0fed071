/* prop_ngram.h - the settings of the n-gram proposer, for tests and benchmarks; see prop_ngram.c.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "proposer-svc/props/prop.h"

#define NGRAM_LEN_MAX 16

struct prop_ngram_settings {
    int64_t ngram_max, ngram_min; // NGRAM_LEN_MAX >= max >= min >= 1
    char *ngram_match;            // "latest" or "earliest_full"
    bool prompt_lookup;
};

/* Read by open(); filled by the options table. */
extern struct prop_ngram_settings prop_ngram_settings;
extern const struct prop_ops prop_ngram;

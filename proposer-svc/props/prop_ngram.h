/* prop_ngram.h - the n-gram proposer, see prop_ngram.c. */
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

/* Filled by the options table, read by open(). Tests and benchmarks set it directly. */
extern struct prop_ngram_settings prop_ngram_settings;
extern const struct prop_ops prop_ngram;

/* prop_suffix.h - the suffix proposer, see prop_suffix.c. */
#pragma once
#include "proposer-svc/props/prop.h"

#define SUFFIX_DEPTH_MAX 64
#define SUFFIX_LOOK_MAX 32 // latest places of an n-gram that are examined

struct prop_suffix_settings {
    int64_t max_depth, pool_tokens;
    double factor, offset, min_prob;
};

/* Filled by the options table, read by open(). Tests and benchmarks set it directly. */
extern struct prop_suffix_settings prop_suffix_settings;
extern const struct prop_ops prop_suffix;

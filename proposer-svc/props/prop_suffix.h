/* prop_suffix.h - the settings of the suffix proposer, for tests and benchmarks; see prop_suffix.c.
 */
#pragma once
#include "proposer-svc/props/prop.h"

#define SUFFIX_DEPTH_MAX 64
#define SUFFIX_LOOK_MAX 32 // places of an n-gram that are looked at, the latest

struct prop_suffix_settings {
    int64_t max_depth, pool_tokens;
    double factor, offset, min_prob;
};

/* Read by open(); filled by the options table. */
extern struct prop_suffix_settings prop_suffix_settings;
extern const struct prop_ops prop_suffix;

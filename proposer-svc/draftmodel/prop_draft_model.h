/* prop_draft_model.h - the draft-model proposer, see prop_draft_model.c. */
#pragma once
#include "proposer-svc/props/prop.h"

/* Filled by the options table, read by open(). Tests set it directly. */
struct prop_draft_model_settings {
    char *model, *quantise, *float_gemm, *kv_type, *weights_cache;
    int64_t context, kv_mib, threads;
    bool pin, memory_check;
    double p_min;
    int64_t sparse_k;
};

extern struct prop_draft_model_settings prop_draft_model_settings;
extern const struct prop_ops prop_draft_model;

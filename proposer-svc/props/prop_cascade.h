/* prop_cascade.h - the cascade, a proposer that requests drafts from other proposers; see
 * prop_cascade.c. */
#pragma once
#include "proposer-svc/props/prop.h"

#define CASCADE_MEMBERS_MAX 4

struct prop_cascade_settings {
    struct conf_list members;
    char *choose; // "score" or "first"
};

/* Filled by the options table, read by open(). Tests set it directly. */
extern struct prop_cascade_settings prop_cascade_settings;
extern const struct prop_ops prop_cascade;

/* prop_cascade.h - the settings of the chain of proposers, for tests; see prop_chain.c. */
#pragma once
#include "proposer-svc/props/prop.h"

#define CASCADE_MEMBERS_MAX 4

struct prop_cascade_settings {
    struct conf_list members;
    char *choose; // "score" or "first"
};

/* Read by open(); filled by the options table. */
extern struct prop_cascade_settings prop_cascade_settings;
extern const struct prop_ops prop_cascade;

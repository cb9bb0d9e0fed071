/* prop.h - what a proposer is: a table of functions over one sequence's context.
 *
 * A guess may be wrong and costs only time; a proposer may always return an empty draft. The
 * session layer owns contexts, answers Rounds and calls these; a proposer sees token ids only.
 *
 * Threads: the functions of one sequence are called by one thread at a time, those of several
 * sequences by several at once; what a proposer shares between sequences it protects itself. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/conf.h"

#define PROP_K_MAX 64

enum prop_flags {
    PROP_NEEDS_MODEL = 1,  // wants a model file
    PROP_NEEDS_HIDDEN = 2, // wants hidden rows of the target
};

struct prop_context {
    const uint32_t *tokens; // committed tokens
    uint32_t n;
    uint32_t n_prompt; // how many of them are the prompt; 0: not known
};

struct prop_draft {
    uint32_t n;
    uint32_t tokens[PROP_K_MAX];
    int32_t parents[PROP_K_MAX]; // only if tree
    float survival[PROP_K_MAX];  // that this token and all before it are accepted, 0 .. 1
    bool tree;                   // false: a chain
};

struct prop_ops {
    const char *name;
    unsigned flags;
    size_t seq_size;                   // of one sequence's state; the caller allocates it zeroed
    const struct conf_option *options; // its settings; parsed before open()
    size_t n_options;

    int (*open)(void **ret_shared); // once per process; -EINVAL: settings that do not fit together
    void (*close)(void *shared);
    void (*seq_done)(void *shared, void *seq); // frees what the state points to

    /* Only [0, keep) of the context it knows stays valid; c still shows all of it. */
    void (*cut)(void *shared, void *seq, const struct prop_context *c, uint32_t keep);
    /* The context grew to c->n; what was known of it has not changed. -ENOMEM: the session is given
     * up. */
    int (*grow)(void *shared, void *seq, const struct prop_context *c);
    /* At most k (1 .. PROP_K_MAX) tokens that continue the context; to->n = 0 is a fine answer. */
    void (*draft)(void *shared, void *seq, const struct prop_context *c, uint32_t k,
                  struct prop_draft *to);
};

/* By name; NULL: unknown. */
const struct prop_ops *prop_find(const char *name);
/* The i-th of the table, NULL behind the last. */
const struct prop_ops *prop_at(size_t i);

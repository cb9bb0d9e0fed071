/* prop.h - what a proposer is: a table of functions over one sequence's context.
 *
 * A guess may be wrong and costs only time; a proposer may always return an empty draft. The
 * session layer owns contexts, answers Rounds and calls these; a proposer sees token ids only.
 *
 * Threads: a proposer with PROP_OWN_THREAD is opened and closed by main, and one thread calls all
 * the rest. Of others the functions of one sequence are called by one thread at a time, those of
 * several sequences by several at once; what such a proposer shares it protects itself. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/conf.h"
#include "model/constraint.h"
#include "model/dist.h"

#define PROP_K_MAX 64
#define PROP_TENANT_MAX 64  // bytes
#define PROP_BANNED_MAX 128 // tokens; the rest is ignored
#define PROP_BIAS_MAX 1024  // likewise

enum prop_flags {
    PROP_OWN_THREAD = 1,   // drafts on a thread of its own, for all Rounds that wait, together
    PROP_NEEDS_HIDDEN = 2, // wants hidden rows of the target
};

/* How a draft is drawn: QMode of proposer.proto. */
enum prop_q_mode { PROP_POINT, PROP_COUPLED, PROP_SPARSE, PROP_DENSE, PROP_Q_MODES };

struct prop_context {
    const uint32_t *tokens; // committed tokens, and maybe a draft behind them
    uint32_t n;
    uint32_t n_prompt;     // how many of them are the prompt; 0: not known
    uint32_t n_verifying;  // the last so many are a draft that is being verified now
    const uint8_t *tenant; // whose it is: nothing of it is shown to others
    uint32_t tenant_len;   // PROP_TENANT_MAX at most; 0 is a tenant too
};

struct prop_sampling {
    struct dist_params law;
    struct constraint_ban ban;
    bool ignore_eos; // the text goes on behind EOS
};

/* What the tokens of a draft were drawn from, row by row. Sparse: the rows sum to 65536. */
struct prop_q {
    uint32_t width;  // sparse: ids of a row; dense: tokens of the vocabulary, from id 0 on
    uint32_t *ids;   // sparse: (n, width)
    uint16_t *probs; // sparse: (n, width), one less than they are, in 1/65536
    float *dense;    // (n, width)
};

struct prop_draft {
    uint32_t n;
    uint32_t tokens[PROP_K_MAX];
    int32_t parents[PROP_K_MAX]; // only if tree
    float survival[PROP_K_MAX];  // that this token and all before it are accepted, 0 .. 1; of a
                                 // branch: if the token that it branches off behind was the last
    bool tree;                   // false: a chain
    enum prop_q_mode q_mode;     // PROP_POINT, or as was asked
    struct prop_q *q; // sparse and dense: one allocation, freed by who asked; else left alone
};

/* One sequence wants a draft. Behind a draft that is being verified (context.n_verifying) the
 * answer is for what may come of that: it may branch off before its end. A parent of -1 is the
 * context's last token, -2 the one before it, down to -1 - n_verifying. No way is longer than k
 * tokens, and there are PROP_K_MAX - n_verifying at most. Only with point and coupled drafts. */
struct prop_ask {
    void *seq; // its state
    struct prop_context context;
    uint32_t k; // tokens at most, 1 .. PROP_K_MAX
    enum prop_q_mode q_mode;
    struct prop_sampling sampling;
    float p_min;       // tokens are of no use from where one is less likely to survive its parent
    uint64_t draw_key; // coupled: the target's
    int64_t until_us;  // clock_us(); a later answer is of no use
    struct prop_draft *to;
    bool done;       // set by draft()
    uint32_t unread; // likewise: without tokens yet, as so many of the context are still to be read
};

/* What Describe tells. */
struct prop_about {
    const char *model;     // NULL: none
    uint64_t vocab_digest; // 0: works with any vocabulary
    uint32_t max_context;  // tokens; 0: no limit
    unsigned q_modes;      // bits 1 << enum prop_q_mode
};

struct prop_ops {
    const char *name;
    unsigned flags;
    size_t seq_size;                   // of one sequence's state; the caller allocates it zeroed
    const struct conf_option *options; // its settings; parsed before open()
    size_t n_options;

    int (*open)(void **ret_shared); // once per process; -EINVAL: settings that do not fit together
    void (*close)(void *shared);
    void (*about)(void *shared, struct prop_about *to); // NULL: point drafts for any vocabulary
    /* Frees what the state points to. c: what is known of the sequence, which has ended; NULL: it
     * is forgotten and may come back. */
    void (*seq_done)(void *shared, void *seq, const struct prop_context *c);

    /* Only [0, keep) of the context it knows stays valid; c still shows all of it. */
    void (*cut)(void *shared, void *seq, const struct prop_context *c, uint32_t keep);
    /* The context grew to c->n; what was known of it has not changed. The tokens stay where they
     * are until the next call for this sequence. -ENOMEM: the session is given up. */
    int (*grow)(void *shared, void *seq, const struct prop_context *c);
    /* Drafts for n different sequences. Each ask is done, with at most k tokens that continue its
     * context (none is a fine answer), or is asked again after the next work(), until its time is
     * up. */
    void (*draft)(void *shared, struct prop_ask *const *asks, uint32_t n);
    /* With PROP_OWN_THREAD: a short piece of what is left to do between Rounds; open asks may be
     * done after it. False: there was nothing to do. NULL: never. */
    bool (*work)(void *shared);
};

/* By name; NULL: unknown. */
const struct prop_ops *prop_find(const char *name);
/* The i-th of the table, NULL behind the last. */
const struct prop_ops *prop_at(size_t i);

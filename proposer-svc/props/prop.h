/* prop.h - the interface of a proposer: a table of functions, called with the context of a
 * sequence.
 *
 * A wrong guess costs only time, and a proposer may always return an empty draft. The session layer
 * owns contexts, answers Rounds and calls these functions. A proposer sees token ids only.
 *
 * Threads: main opens and closes a proposer with PROP_OWN_THREAD; one other thread calls all its
 * other functions. Without PROP_OWN_THREAD, calls for one sequence never overlap, but calls for
 * several sequences may. Such a proposer must protect the data that its sequences share. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/conf.h"
#include "model/constraint.h"
#include "model/dist.h"
#include "model/draft.h"

#define PROP_TENANT_MAX 64  // bytes
#define PROP_MODEL_MAX 32   // bytes
#define PROP_BANNED_MAX 128 // tokens; more are ignored
#define PROP_BIAS_MAX 1024  // tokens; more are ignored

enum prop_flags {
    PROP_OWN_THREAD = 1, // draft() runs on its own thread, for all waiting Rounds together
};

struct prop_context {
    const uint32_t *tokens; // committed tokens, then n_verifying draft tokens
    uint32_t n;             // length of `tokens`
    uint32_t n_prompt;      // tokens of the prompt, at the start; 0: unknown
    uint32_t n_verifying;   // draft tokens at the end, which the verifier is verifying
    const uint8_t *tenant;  // owner of the text; no other tenant may see any of it
    uint32_t tenant_len;    // at most PROP_TENANT_MAX; an empty name is a tenant too
    const uint8_t *model;   // fingerprint of the target; token ids mean nothing to another one
    uint32_t model_len;     // at most PROP_MODEL_MAX; 0: the verifier does not tell
};

struct prop_sampling {
    struct dist_params params;
    struct constraint_ban ban;
    bool ignore_eos; // the text continues after EOS
};

/* A request for a draft for one sequence. The draft has at most max_nodes tokens, and at most
 * max_depth tokens on one path. A draft without branches has at most max_depth tokens.
 *
 * A request with n_verifying > 0 is answered with a draft ahead, which may prepare for the
 * rejection of tokens that are being verified. There a parent of -1 is the last token of the
 * context, -2 the token before it, down to -1 - n_verifying. The survival estimates of a branch
 * then assume that its parent is the last accepted token. Drafts ahead are point or coupled
 * drafts. */
struct prop_ask {
    void *seq; // the proposer's state of the sequence
    struct prop_context context;
    uint32_t max_depth;       // 1 .. max_nodes
    uint32_t max_nodes;       // at most DRAFT_MAX_NODES - n_verifying
    enum draft_q_mode q_mode; // requested; the draft has this mode or DRAFT_POINT
    struct prop_sampling sampling;
    float p_min; // the verifier ignores tokens that survive their parent with less probability
    uint64_t draw_key; // coupled: key of the target's draws
    int64_t until_us;  // clock_us(); a later answer counts as a fault
    struct draft *to;  // the caller frees to->q, which is one allocation
    bool done;         // set by draft(): *to is the answer
    uint32_t unread;   // set by draft(): no tokens, because so many context tokens are not read yet
};

/* What Describe reports. */
struct prop_about {
    const char *model;     // NULL: none
    uint64_t vocab_digest; // 0: any vocabulary
    uint32_t max_context;  // tokens; 0: no limit
    unsigned q_modes;      // bits 1 << enum draft_q_mode
};

struct prop_ops {
    const char *name;
    unsigned flags;
    size_t seq_size;                   // of a sequence's state, which the caller allocates zeroed
    const struct conf_option *options; // its settings; set before open()
    size_t n_options;

    /* Called once per process. -EINVAL: the settings contradict each other. */
    int (*open)(void **ret_shared);
    void (*close)(void *shared);
    void (*about)(void *shared, struct prop_about *to); // NULL: point drafts for any vocabulary
    /* Frees what the state points to. c: the context of a sequence that has ended. NULL: the
     * session is dropped, and the sequence may come back. */
    void (*seq_done)(void *shared, void *seq, const struct prop_context *c);

    /* Only positions [0, keep) of the known context stay valid. *c is still the whole context. */
    void (*cut)(void *shared, void *seq, const struct prop_context *c, uint32_t keep);
    /* The context has grown to c->n; its earlier tokens are unchanged. c->tokens stays valid until
     * the next call for this sequence. -ENOMEM: the caller drops the session. */
    int (*grow)(void *shared, void *seq, const struct prop_context *c);
    /* Drafts for n different sequences. An ask that is not set to done is passed again after the
     * next work(), until its time is up. A draft without tokens is a valid answer. */
    void (*draft)(void *shared, struct prop_ask *const *asks, uint32_t n);
    /* With PROP_OWN_THREAD: does a few milliseconds of background work between Rounds. The next
     * draft() may finish open asks. False: there was no work. NULL: the proposer never has any. */
    bool (*work)(void *shared);
};

/* The table of proposers. It is defined in proposer-svc/prop_table.c, which includes every
 * proposer; it is declared here because the cascade looks its members up by name. */

/* NULL: there is no proposer with this name. */
const struct prop_ops *prop_find(const char *name);
/* The i-th entry; NULL: i is past the last one. */
const struct prop_ops *prop_at(size_t i);

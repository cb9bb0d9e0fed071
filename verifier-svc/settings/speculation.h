/* speculation.h - settings of speculation that may change while the verifier runs.
 *
 * The configuration sets them at start-up and on SIGHUP, and the call SetSpeculation changes them
 * in between. engine_speculate() applies them.
 *
 * Threads: any; plain data. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "verifier-svc/control/control.h"
#include "verifier-svc/drafts/drafts.h"

#define SPECULATION_ALLOWED_MAX 32

struct speculation {
    bool on;                        // false: no drafts are requested; proposers stay connected
    char proposer[DRAFTS_NAME_MAX]; // for requests that name no proposer; "": any
    unsigned n_targets;
    struct drafts_target targets[DRAFT_MAX_PROPOSERS];
    /* The targets that a call may name, from the configuration; '*' stands for letters, digits, '-'
     * and '_'. */
    unsigned n_allowed;
    char allowed[SPECULATION_ALLOWED_MAX][DRAFTS_TARGET_MAX];
    enum control_policy policy;
    uint32_t k;                 // 0: default of the policy
    int32_t disable_batch_size; // -1: default of the policy
};

enum {
    SPECULATION_ON = 1,
    SPECULATION_PROPOSER = 2,
    SPECULATION_TARGETS = 4,
    SPECULATION_POLICY = 8,
    SPECULATION_K = 16,
    SPECULATION_BATCH = 32,
    SPECULATION_ALLOWED = 64, // only of the configuration, whose targets need no permission
};
struct speculation_change {
    unsigned has; // SPECULATION_*: the fields of `to` that change
    struct speculation to;
};

/* True: the text may be the name of a proposer. */
bool speculation_is_name(const char *text, size_t len);

/* Adds "TARGET" or "NAME=TARGET"; "none" adds nothing. -EINVAL, with a sentence. */
int speculation_add_target(struct speculation *s, const char *text, size_t len);

/* Sets the targets that calls may name: the patterns, or s->targets if there are none. The only
 * pattern "none" allows no target. -EINVAL: a pattern is longer than a target can be. */
int speculation_allow(struct speculation *s, const char *const *patterns, unsigned n);
/* Checks the targets of a change against those that s allows. A change of the configuration passes.
 * -EACCES: the sentence names the target. */
int speculation_check_allowed(const struct speculation *s, const struct speculation_change *c);

/* -EINVAL: no such policy. */
int speculation_set_policy(struct speculation *s, const char *text, size_t len);
const char *speculation_policy(const struct speculation *s);

/* Checks that s->proposer, the default proposer, is one of the targets. A target whose name is not
 * known yet may be the one. d: knows names of connected proposers; may be NULL. Logs an old name as
 * speculation_is_default() does. -EINVAL. */
int speculation_check_default(const struct speculation *s, struct drafts *d);

/* True: a proposer of this name is the default one. If s->proposer is an old name, that is logged
 * once per process, as a warning. */
bool speculation_is_default(const struct speculation *s, const char *name);

/* The settings of the controller, with the defaults of the policy. */
struct control_options speculation_control(const struct speculation *s);

/* s with the change applied. */
struct speculation speculation_after(const struct speculation *s,
                                     const struct speculation_change *c);

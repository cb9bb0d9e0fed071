/* speculation.h - how a verifier speculates: what of its settings may change while it runs.
 *
 * The configuration says it at the start and on SIGHUP, SetSpeculation in between; the engine puts
 * it to work (engine_speculate()).
 *
 * Threads: none of its own; plain data. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "verifier-svc/control/control.h"
#include "verifier-svc/drafts/drafts.h"

struct speculation {
    bool on;                        // false: nothing is drafted, proposers stay connected
    char proposer[DRAFTS_NAME_MAX]; // asked where a request names none; "": any
    unsigned n_targets;
    struct drafts_target targets[DRAFTS_MAX];
    enum control_policy policy;
    uint32_t k;                 // 0: the policy's own
    int32_t disable_batch_size; // -1: the policy's own
};

/* What is to change. */
enum {
    SPECULATION_ON = 1,
    SPECULATION_PROPOSER = 2,
    SPECULATION_TARGETS = 4,
    SPECULATION_POLICY = 8,
    SPECULATION_K = 16,
    SPECULATION_BATCH = 32,
};
struct speculation_change {
    unsigned has; // SPECULATION_*: of these counts what `to` says
    struct speculation to;
};

/* Fit to be a proposer's name. */
bool speculation_is_name(const char *text, size_t len);
/* "TARGET" or "NAME=TARGET"; "none" adds nothing. -EINVAL, with a sentence. */
int speculation_add_target(struct speculation *s, const char *text, size_t len);
/* -EINVAL: no such policy. */
int speculation_set_policy(struct speculation *s, const char *text, size_t len);
const char *speculation_policy(const struct speculation *s);
/* -EINVAL: the proposer that is asked by default is none of the targets, and all their names are
 * known. d: who may know them; NULL: nobody. */
int speculation_check_default(const struct speculation *s, struct drafts *d);
/* With the policy's own values filled in. */
struct control_options speculation_control(const struct speculation *s);
/* The one after the change. */
struct speculation speculation_after(const struct speculation *s,
                                     const struct speculation_change *c);

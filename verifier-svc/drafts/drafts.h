/* drafts.h - the verifier's side of proposers: requests drafts and checks the answers.
 *
 * Each proposer has its own channel, stream and thread here. The engine thread only copies new
 * context into a bounded outbox. The proposer's thread connects, packs and sends. An answer is
 * checked on the thread that received it, and passed on as a struct draft_answer. The engine thread
 * never waits here. An absent, slow, stopped or lying proposer costs its drafts, 2 MiB of memory
 * and the time of the checks. It never delays a round.
 *
 * Flow (docs/protocol.md, "Draft"):
 * - At most one Round per sequence is unanswered, and two per stream.
 * - Newer state of a sequence replaces state that has not been sent.
 * - Nothing is sent while more than 1 MiB is queued.
 * - A context longer than DRAFTS_PIECE is sent in pieces, one per drafts_ask(). Its draft is
 *   requested with the last piece.
 * - The state of a sequence at the proposer is remembered here, so the engine always passes the
 *   whole context.
 *
 * Failures: the stream is cancelled after 3 missed budgets or malformed answers in a row, or if the
 * proposer reads nothing for a second. The next try is after 250 ms, doubling up to 30 s. An
 * unreachable proposer is retried in the same way.
 *
 * Proposers have places, 0 to DRAFT_MAX_PROPOSERS - 1, which are their names elsewhere in the
 * verifier. A removed proposer (drafts_set()) gets no more requests. Its place is reused when its
 * stream has ended, so no answer of it arrives after its successor was named.
 *
 * Threads:
 * - drafts_new(), drafts_free(): main.
 * - drafts_set(): any, one at a time. drafts_name_of(): the same.
 * - drafts_stats(), drafts_series(), drafts_name(), drafts_check_name(): any.
 * - All other functions: the engine thread only. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/mem.h"
#include "model/constraint.h"
#include "model/dist.h"
#include "model/draft.h"
#include "verifier-svc/drafts/proposer_series.h"

#define DRAFTS_PIECE 65536    // context tokens in one message: at most 256 KiB on the wire
#define DRAFTS_HINT_MAX 16384 // tokens; a longer hint is cut
#define DRAFTS_NAME_MAX 32    // bytes of a proposer's name, NUL included
#define DRAFTS_TARGET_MAX 256 // bytes of a target, NUL included
#define DRAFTS_TENANT_MAX 64  // bytes; a longer one is not sent
#define DRAFTS_MODEL_MAX 32   // bytes of a fingerprint

#define DRAFTS_SPARSE_MAX 256 // ids of a token's sparse q
/* Probabilities in a dense q, two bytes each: the draft is cut so that they fit into a message of
 * 1 MiB. */
#define DRAFTS_DENSE_MAX (480u << 10)

/* An answer with its checked draft. The draft has at most as many nodes as were requested, in all
 * and on each path. Its tokens are below the vocabulary's size, and its q is decoded. Survival
 * never rises from parent to child; it is 1 if the proposer gave none. base_len shows whether the
 * draft still continues the context. A proposer is trusted to have drawn from the q that it
 * sends. */
struct draft_answer {
    uint64_t seq;
    uint32_t base_len; // committed length that the draft continues
    /* Tokens of the context that the proposer still has to read; above 0 the draft is empty. */
    uint32_t unread;
    uint32_t rtt_us; // from drafts_ask() to the arrival of the answer
    unsigned proposer;
    bool ahead; // made while the tokens that it begins with were being verified
    struct draft *draft;
};

struct drafts_target {
    char name[DRAFTS_NAME_MAX];     // in requests; "": the name it reports (Describe: kind)
    char target[DRAFTS_TARGET_MAX]; // "unix:/run/tandem/proposer.sock", "dns:///host:port"
};

struct drafts_config {
    unsigned n_targets;
    struct drafts_target targets[DRAFT_MAX_PROPOSERS];
    const char *model;
    const char *fingerprint; // of the target; at most DRAFTS_MODEL_MAX bytes
    uint32_t n_vocab;
    uint64_t vocab_digest;
    uint32_t max_sequences; // that a proposer may know at the same time
    /* The engine's is engine_draft_arrived() in engine_inbox.c. On an rpc thread; must not block,
     * and must not call into here. answer->draft is freed on return, unless the callee takes it and
     * leaves NULL. */
    void (*arrived)(void *user, struct draft_answer *answer);
    /* The proposer at place i has described itself: called once, before the first request to it, on
     * its own thread. No answer of the place's previous proposer arrives after it. Returns below 0:
     * the proposer is not used, and is tried again later. NULL is fine. */
    int (*named)(void *user, unsigned i, const char *name);
    void *user;
};

/* A request for a draft of one sequence in this round. Everything is copied. */
struct drafts_wish {
    /* Results of drafts_ask(): */
    /* 90th percentile of the latency of recent drafts of this depth. 10 ms while there are none. 0:
     * no draft can arrive this round. */
    uint32_t p90_us;
    /* Positions that the proposer has to read before it drafts. 0: none, or nothing is sent. */
    uint32_t to_read;
    /* Arguments: */
    uint64_t seq;            // never reused
    const uint32_t *context; // (base_len) all committed tokens with the prompt; they never change
    uint32_t base_len;
    uint32_t prompt_len; // tokens of the context that are the prompt
    /* Limits of the draft. drafts_ask() reduces them to what the proposer can do, and max_depth to
     * max_nodes. Both are equal for a chain. In a draft ahead, max_nodes includes the tokens of
     * `verifying`, and max_depth does not. */
    uint32_t max_nodes; // tokens over all branches; 0: the wish is ignored
    uint32_t max_depth; // tokens on one path
    /* drafts_ask() replaces a mode that the proposer does not offer: dense by sparse, else by
     * point. */
    enum draft_q_mode q_mode;
    uint64_t draw_key; // coupled only
    float p_min;       // the draft may end after a token with a lower probability
    /* Up to the hint: sent with the first Round of a sequence only. */
    struct dist_params sampling;
    struct constraint_ban ban;
    bool ignore_eos;
    const char *id, *trace; // of the request, for the proposer's log; may be NULL
    const void *tenant;     // may be NULL
    size_t tenant_len;
    const uint32_t *hint; // the request's `prediction` as tokens; may be NULL
    uint32_t n_hint;
    /* A draft ahead: draft tokens after the context that are being verified now. The new draft
     * begins with them and continues from there, max_depth tokens on each path. It may be later
     * than its budget without counting as a fault (DRAFTS_AHEAD_LATE_US). */
    const uint32_t *verifying;
    uint32_t n_verifying;
};

struct drafts_stats {
    char name[DRAFTS_NAME_MAX], target[DRAFTS_TARGET_MAX];
    bool connected, benched;
    uint64_t rounds, drafts, draft_tokens, accepted_tokens, late, stale, malformed, restarts;
    uint32_t p90_us;
};

struct drafts;

/* Returns immediately; proposers are connected in the background. -ENOMEM, -EINVAL. */
int drafts_new(const struct drafts_config *c, struct drafts **ret);
/* Cancels the streams; `arrived` is not called after it. */
void drafts_free(struct drafts *d);
DEFINE_AUTO(struct drafts, drafts_free)

/* Replaces the list of proposers. Proposers that are in both lists, by target and name, stay
 * connected; the others are cancelled, or connected in the background. A proposer whose thread
 * cannot be created is left out, with a warning. -EINVAL, -ENOMEM: nothing is changed. May wait for
 * a second if more than DRAFT_MAX_PROPOSERS proposers, old and new, need a place at the same
 * time. */
int drafts_set(struct drafts *d, const struct drafts_target *targets, unsigned n);
/* "": there is no proposer at the place, or it has no configured name and has not described itself
 * yet. */
void drafts_name(struct drafts *d, unsigned i, char name[DRAFTS_NAME_MAX]);
/* The name of a target that is a proposer or could become one; "": unknown. d may be NULL. */
void drafts_name_of(struct drafts *d, const struct drafts_target *t, char name[DRAFTS_NAME_MAX]);
/* True: `name` is the name that the proposer reports, `own`, or an alias of it. For one release,
 * chain is an alias of cascade. An alias is logged as a warning. place: the setting or the field
 * that holds the name. warned: set by the first warning; later calls with it log none. */
bool drafts_is_called(const char *place, atomic_flag *warned, const char *own, const char *name);
/* -EINVAL, with the list of names: no proposer has this name, usable or not. 0 while any proposer's
 * name is unknown, and for "". d NULL: there are no proposers. An alias counts only while no
 * proposer has the name itself. It is logged once per process, as a warning. */
int drafts_check_name(struct drafts *d, const char *name);
/* Returns a usable proposer for the sequence, which has base_len committed tokens; -1: none.
 * ret_k_max: the most tokens that this proposer drafts. name: NULL or "" for any. Sequences are
 * spread over all usable proposers. A sequence stays with its proposer while three things hold: the
 * proposer is usable, has the context, and accepts the context's length. */
int drafts_pick(struct drafts *d, const char *name, uint64_t seq, uint32_t base_len, int64_t now_us,
                uint32_t *ret_k_max);

/* Requests drafts of n sequences from proposer i; an answer after budget_us is a fault. Call it
 * once per round and proposer. Returns how many of the n requests are sent and may be answered in
 * time. For the others p90_us is 0: an older answer is outstanding, or the context is being sent.
 * Their sequences can request again in the next round. */
unsigned drafts_ask(struct drafts *d, unsigned i, struct drafts_wish *wishes, unsigned n,
                    uint32_t budget_us, int64_t now_us);
/* Removes the state of the sequence here and at every proposer. ended: false if it was
 * preempted and may return. Its whole context is then sent again. */
void drafts_close(struct drafts *d, uint64_t seq, bool ended);
/* Statistics: n_tokens of proposer i's drafts were accepted. */
void drafts_accepted(struct drafts *d, unsigned i, uint32_t n_tokens);

/* False: there is no proposer at the place. */
bool drafts_stats(struct drafts *d, unsigned i, struct drafts_stats *ret);
/* The metrics that the proposer at the place has reported last; empty: none. */
void drafts_series(struct drafts *d, unsigned i, struct proposer_series_copy *ret);

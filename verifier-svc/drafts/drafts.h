/* drafts.h - the verifier's side of proposers: asks them for drafts and checks what comes back.
 *
 * Each proposer has a channel, a stream and a thread of its own here. The engine thread only copies
 * what is new into a bounded outbox and goes on; the proposer's thread connects, packs and sends;
 * an answer is checked on the thread that received it and handed on as a plain
 * struct draft_answer.
 * Nothing here waits for a proposer, so a proposer that is absent, slow, stopped or lying costs its
 * drafts and bounded memory (2 MiB and the checks), never a round.
 *
 * Flow (design: "The wire"): at most one unanswered Round per sequence and two per stream; newer
 * state replaces what has not been sent; nothing is sent while more than 1 MiB is queued; contexts
 * longer than DRAFTS_PIECE go in pieces, one per drafts_ask(), and are drafted for after the last.
 * What a proposer knows of a sequence is remembered here, so the engine always shows the whole
 * context. After 3 budgets missed (or malformed answers) in a row, or a second in which it does not
 * read what is queued, the stream is cancelled and tried again after 250 ms, doubling up to 30 s;
 * so is a proposer that cannot be reached.
 *
 * Proposers have places, 0 to DRAFTS_MAX - 1, by which everybody else calls them. One that is taken
 * out (drafts_set()) is asked no more from then on; its place is given to another when its stream
 * has ended, so that nothing of it arrives after the new one has been named.
 *
 * Threads: drafts_new() and drafts_free() by main; drafts_set() by any, one at a time;
 * drafts_name_of() by the same; drafts_stats(), drafts_name() and drafts_check_name() by any; all
 * else by the engine thread only. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/mem.h"
#include "model/constraint.h"
#include "model/dist.h"
#include "model/draft.h"
#include "verifier-svc/accept/accept.h"

#define DRAFTS_MAX DRAFT_MAX_PROPOSERS
#define DRAFTS_PIECE 65536    // context tokens in one message: at most 256 KiB on the wire
#define DRAFTS_HINT_MAX 16384 // tokens; what is longer is cut
#define DRAFTS_NAME_MAX 32    // bytes of a proposer's name, NUL included
#define DRAFTS_TARGET_MAX 256 // bytes of a target, NUL included
#define DRAFTS_TENANT_MAX 64  // bytes; a longer one is not sent

#define DRAFTS_SPARSE_MAX 256 // ids of a token's sparse q
/* Probabilities of a dense q: k is cut to what fits, in two bytes each, into a message of 1 MiB. */
#define DRAFTS_DENSE_MAX (480u << 10)

/* A checked draft: n <= the k asked for, tokens below the vocabulary's size, each parent before its
 * children. It continued the context when it was asked for; whether it still does is base_len. */
struct draft_answer {
    uint64_t seq;
    uint32_t base_len; // committed length it continues
    uint32_t n;        // 0: the proposer has nothing to say
    uint32_t tokens[DRAFT_MAX_NODES];
    int32_t parents[DRAFT_MAX_NODES]; // index into tokens, -1: the context's last token
    float survival[DRAFT_MAX_NODES]; // 0 .. 1, never rising from parent to child; 1 if not told
    bool tree;                       // false: parents are -1, 0, 1, ...
    uint32_t unread;    // of the context, which the proposer still reads, so that n is 0
    bool ahead;         // made while the tokens that it begins with were being verified
    struct accept_q *q; // (n) drawn: in one allocation with all it points to; NULL: not drawn
    unsigned proposer;
    uint32_t rtt_us; // from drafts_ask() to here
};

struct drafts_target {
    char name[DRAFTS_NAME_MAX]; // what requests call it; "": what it calls itself (Describe: kind)
    char target[DRAFTS_TARGET_MAX]; // "unix:/run/tandem/proposer.sock", "dns:///host:port"
};

struct drafts_config {
    unsigned n_targets;
    struct drafts_target targets[DRAFTS_MAX];
    const char *model;
    uint32_t n_vocab;
    uint64_t vocab_digest;
    uint32_t max_sequences; // that may be known to a proposer at once
    /* On an rpc thread; must not block and must not call into here. The draft is freed on return,
     * with its q unless that was taken. */
    void (*arrived)(void *user, struct draft_answer *draft);
    /* The proposer at place i has a name now: once, before it may be asked, on a thread of its own;
     * nothing arrives any more of one that had the place before it. Below 0: it is not used yet,
     * and tried again. NULL is fine. */
    int (*named)(void *user, unsigned i, const char *name);
    void *user;
};

/* What one sequence wants from a proposer this round. Everything is copied. */
struct drafts_wish {
    uint32_t p90_us;  // filled by drafts_ask(): nine of ten recent drafts of this k came within so
                      // many microseconds, 10 ms before the first; 0: none can come this round
    uint32_t to_read; // filled likewise: positions that the proposer has to read before it drafts;
                      // 0: none, or nothing is on its way to it now
    uint64_t seq;     // never reused
    const uint32_t *context; // all committed tokens, prompt included; only ever grows for a seq
    uint32_t base_len;       // how many
    uint32_t prompt_len;     // how many of them are the prompt
    uint32_t k; // tokens wanted, cut to what the proposer can do; 0: the wish is ignored
    enum draft_q_mode q_mode; // drafts_ask() leaves the one that was asked for: what a proposer
                              // does not offer is point, or sparse in place of dense
    uint64_t draw_key;        // coupled only
    float p_min;              // the draft ends where its proposer gives a token less
    /* What follows, as far as the hint, is sent with the first Round of a sequence. */
    struct dist_params sampling;
    struct constraint_ban ban;
    bool ignore_eos;
    const void *tenant; // may be NULL
    size_t tenant_len;
    const uint32_t *hint; // the request's `prediction` as tokens; may be NULL
    uint32_t n_hint;
    /* Draft tokens behind the context that are verified now: the draft is for what may come of
     * them, k tokens on each way from there. Late, it is no fault for a while yet. */
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

/* Returns at once; proposers are connected in the background. -ENOMEM, -EINVAL. */
int drafts_new(const struct drafts_config *c, struct drafts **ret);
/* Cancels the streams; no `arrived` after it. */
void drafts_free(struct drafts *d);
DEFINE_AUTO(struct drafts, drafts_free)

/* These are the proposers from now on. Those that are among them already, by target and name, stay
 * as they are; the others are cancelled, or connected in the background. One for which the system
 * has no thread is left out, with a warning. -EINVAL, -ENOMEM: nothing is changed. May wait for a
 * second if more than DRAFTS_MAX come and go at once. */
int drafts_set(struct drafts *d, const struct drafts_target *targets, unsigned n);
/* "": there is no proposer at the place, or one without a configured name that has not described
 * itself yet. */
void drafts_name(struct drafts *d, unsigned i, char name[DRAFTS_NAME_MAX]);
/* What the target is called, or would be if it were one of the proposers: "" if nobody knows. d may
 * be NULL. */
void drafts_name_of(struct drafts *d, const struct drafts_target *t, char name[DRAFTS_NAME_MAX]);
/* Whether a request for `name` means a proposer that calls itself `own`. For a release, chain also
 * means cascade, the proposer's present name. */
bool drafts_is_called(const char *own, const char *name);
/* -EINVAL: the name is none of the proposers', usable or not, and all their names are known; the
 * sentence has them. d NULL: there are none. "" is fine. */
int drafts_check_name(struct drafts *d, const char *name);
/* A usable proposer for the sequence, which has base_len committed tokens, or -1; and how many
 * tokens that one drafts at most. name: NULL or "" for any. Sequences spread over all that fit and
 * stay where they are while that one is usable, keeps their context and takes one so long. */
int drafts_pick(struct drafts *d, const char *name, uint64_t seq, uint32_t base_len, int64_t now_us,
                uint32_t *ret_k_max);

/* Asks proposer i for drafts for n sequences; an answer after budget_us is of no use. Once per
 * round and proposer. Returns for how many of the n an answer may be awaited (sent or about to be);
 * the others (p90_us is 0) are still owed an answer, or their context is on its way: ask again next
 * round. */
unsigned drafts_ask(struct drafts *d, unsigned i, struct drafts_wish *wishes, unsigned n,
                    uint32_t budget_us, int64_t now_us);
/* The sequence has ended or will not ask for a while: forgotten here and at every proposer. One
 * that has not ended may come back, and is told from the start then. */
void drafts_close(struct drafts *d, uint64_t seq, bool ended);
/* For the statistics: so many tokens of i's drafts were kept. */
void drafts_accepted(struct drafts *d, unsigned i, uint32_t n_tokens);

/* False: there is no proposer at the place. */
bool drafts_stats(struct drafts *d, unsigned i, struct drafts_stats *ret);

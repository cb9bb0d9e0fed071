/* seq.h - one generation: its tokens, KV rows, text, limits and figures.
 *
 *     WAITING ──admitted──▶ RUNNING ──last token, cancel, error──▶ ENDED
 *        ▲  ▲                │   ▲
 *        │  └──preempted─────┘   │ the first choice has run the prompt: its KV rows are shared
 *        └──no blocks────── BRANCH (choices 1 .. n-1 begin here)
 *
 * A preempted sequence keeps its tokens and runs them again later; the bits are the same. All
 * choices of a continued request (continuation.h) begin as WAITING, like preempted ones. So do
 * choices that found no free seat when the first one started: the next of them is in the queue.
 *
 * Threads: made by an rpc thread, handed to the engine thread with its request, freed with it.
 * After a pass, one thread of the pool at a time chooses its tokens (decide_tokens()). */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/buf.h"
#include "base/mem.h"
#include "model/constraint.h"
#include "kv/kv.h"
#include "text/detok.h"
#include "verifier-svc/accept/accept.h"
#include "verifier-svc/control/control.h"
#include "verifier-svc/engine/request.h"
#include "verifier-svc/engine/sched.h"

enum seq_state { SEQ_WAITING, SEQ_BRANCH, SEQ_RUNNING, SEQ_ENDED };
/* SEQ_CLOSED: the client of a Verify stream has closed it. */
enum seq_end { SEQ_CONTINUES, SEQ_STOP, SEQ_LENGTH, SEQ_CLOSED, SEQ_FAILED };

/* The KV blocks on disk of a waiting sequence (kv_tier.h): not looked up yet; being read; one piece
 * was read and more may follow; done. */
enum seq_restore { SEQ_RESTORE_NEW, SEQ_RESTORING, SEQ_RESTORE_MORE, SEQ_RESTORED };

/* "stop" and so on, for logs and metrics. */
const char *seq_end_name(enum seq_end end);

#define SEQ_NO_PROPOSER (-1)

struct seq {
    struct request *req; // its owner
    uint32_t choice;
    uint64_t id;    // for proposers; never reused
    uint64_t order; // of arrival
    uint64_t key;   // of its random draws
    enum seq_state state;

    uint32_t *tokens; // (max_len), from seq_open() on
    uint32_t n_prompt, n, max_len;
    struct kv_seq kv;        // rows of tokens [0, kv.len); between rounds at most n - 1
    uint32_t n_cached;       // rows of the prompt that were cached when it was admitted
    uint32_t n_restored;     // of these, rows that were read from disk for it
    uint32_t n_snapshot;     // rows before its last snapshot (snapshots.h), or that it found
    uint32_t n_own_snapshot; // the same of one that it made and may replace; 0: none
    enum seq_restore restore;
    int64_t restore_until_us;   // after it, continues without these rows; 0: not requested yet
    int64_t share_until_us;     // then starts without rows that another flow computes; 0: unset
    struct sched_passed passed; // while it waits
    uint32_t n_replayed;        // continued: committed tokens that have passed seq_commit() here
    bool replayed;              // all of them have
    struct dist_counts *counts; // NULL: no penalties
    /* Which tokens may come next. NULL: all; else points to the ban of min_tokens. */
    struct constraint *constraint;
    struct constraint_ban_state ban;
    struct detok detok;
    int stop; // the stop string that ended it, or DETOK_NONE

    /* The draft for the coming round. */
    struct draft *draft;  // owned; may be empty. NULL: none has arrived
    uint32_t n_uncut;     // nodes before control_cut() lowered draft->n; still in the arrays
    int proposer;         // of the draft, or SEQ_NO_PROPOSER
    bool wants_draft;     // from a proposer, for the coming round
    int64_t requested_us; // when a draft was requested that may still arrive; 0: no such request
    /* The longest wait for this draft: while it pays, up to 2 x p90, and within the budget. */
    int64_t await_us;
    /* A draft is being drawn. The sequence has no round until this draft arrives, or until this
     * time. 0: the sequence is not held. */
    int64_t held_until_us;
    uint32_t requested_k;   // tokens requested
    int64_t ahead_us;       // when a draft ahead was requested that may still arrive; 0: none
    int64_t ahead_until_us; // when the draft ahead is late
    struct control_seq control;
    int64_t idle_us; // Verify: since when it waits for a draft; 0: it does not wait
    bool leaving;    // has lost its blocks, and returns to the queue

    uint64_t ran; // as in struct sched_grant

    /* Its rows in the pass that runs. */
    uint32_t n_rows;             // of committed tokens
    uint32_t last_row;           // the last of these
    struct accept_result chosen; // after the pass

    /* Statistics. */
    bool started; // admitted, and the client knows it
    uint32_t n_rounds, n_drafted_rounds, n_drafted, n_accepted, n_bonus;
    /* [i]: rounds with a draft of which i tokens were accepted. */
    uint32_t accepted_histogram[DRAFT_MAX_NODES + 1];
    char last_proposer[DRAFTS_NAME_MAX];    // of the last verified draft
    int64_t admitted_us, first_us, last_us; // admission, first and last token
};

/* Choice `choice` of r, without memory for its tokens. -ENOMEM. */
int seq_new(struct request *r, uint32_t choice, const struct tok *tok, struct seq **ret);
/* At admission: allocates all memory that the sequence will need. A choice in SEQ_BRANCH copies the
 * token counts of the first one, which has no token of the answer yet. A continued sequence then
 * also has the tokens that were committed elsewhere, and needs continuation_replay(). -ENOMEM. */
int seq_open(struct seq *s);
/* The sequence must not hold KV blocks. */
void seq_free(struct seq *s);
DEFINE_AUTO(struct seq, seq_free)

/* Rows until the next token can be drawn: 1 while decoding, 0 while the sequence has to wait. */
uint32_t seq_todo(const struct seq *s);
/* True: its next pass waits for a proposer's draft. */
bool seq_waits(const struct seq *s);
/* KV blocks that the sequence needs to start, or to start again, its next row included. */
uint32_t seq_blocks(const struct seq *s);
/* All its tokens, also before seq_open(). */
const uint32_t *seq_tokens(const struct seq *s);
/* The root of the sequence's prefixes: only sequences with the same root share blocks. */
struct kv_root seq_root(const struct seq *s);
/* Tokens that may still be committed. */
uint32_t seq_left(const struct seq *s);
uint32_t seq_generated(const struct seq *s);
/* Commits a token and appends the text that is certain now. The text of a stop string, and of a
 * token that ends the generation, is left out. SEQ_FAILED: `text` is full, with fail_text(). */
enum seq_end seq_commit(struct seq *s, uint32_t token, struct buf *text);
/* After the end: appends the text that was held back. -EMSGSIZE: `text` is full. */
int seq_flush(struct seq *s, struct buf *text);
/* Draft tokens that are verified in the coming round. */
uint32_t seq_n_draft(const struct seq *s);
/* Takes a draft for the coming round, from `proposer` or SEQ_NO_PROPOSER; the sequence owns it. */
void seq_take_draft(struct seq *s, struct draft *draft, int proposer);
/* Cuts the draft as draft_trim() does. */
void seq_trim_draft(struct seq *s, uint32_t max_nodes, uint32_t max_depth);
void seq_drop_draft(struct seq *s);

/* seq.h - one generation: its tokens, KV rows, text, limits and figures.
 *
 *     WAITING ──admitted──▶ RUNNING ──last token, cancel, error──▶ ENDED
 *        ▲  ▲                │   ▲
 *        │  └──preempted─────┘   │ the first choice has run the prompt: its KV rows are shared
 *        └──no blocks────── BRANCH (choices 1 .. n-1 begin here)
 *
 * A preempted sequence keeps its tokens and runs them again later; the bits are the same.
 *
 * Threads: made by an rpc thread, handed to the engine thread with its request, freed with it. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/buf.h"
#include "base/mem.h"
#include "model/constraint.h"
#include "model/kv.h"
#include "text/detok.h"
#include "verifier-svc/accept/accept.h"
#include "verifier-svc/control/control.h"
#include "verifier-svc/engine/request.h"
#include "verifier-svc/engine/sched.h"

enum seq_state { SEQ_WAITING, SEQ_BRANCH, SEQ_RUNNING, SEQ_ENDED };
/* CLOSED: the client of a Verify stream wants no more. */
enum seq_end { SEQ_GOES_ON, SEQ_STOP, SEQ_LENGTH, SEQ_CLOSED, SEQ_FAILED };

/* Of a waiting sequence: whether its blocks have been looked for on disk, are being read, more may
 * be there, or it has what there is (tier.h). */
enum seq_restore { SEQ_RESTORE_NEW, SEQ_RESTORING, SEQ_RESTORE_MORE, SEQ_RESTORED };

/* "stop" and so on, for logs and metrics. */
const char *seq_end_name(enum seq_end end);

#define SEQ_NO_PROPOSER (-1)

struct seq {
    struct request *req; // its owner
    uint32_t choice;
    uint64_t id;    // what proposers call it; never reused
    uint64_t order; // of arrival
    uint64_t key;   // of its draws
    enum seq_state state;

    uint32_t *tokens; // (max_len), from seq_open() on
    uint32_t n_prompt, n, max_len;
    struct kv_seq kv;    // rows of tokens [0, kv.len); between rounds at most n - 1
    uint32_t n_cached;   // rows of the prompt that were there when it was admitted
    uint32_t n_restored; // of them, those that came from disk for it
    enum seq_restore restore;
    int64_t restore_until_us;   // then it goes on without; 0: it has not been asked for
    struct sched_passed passed; // while it waits
    struct dist_counts *counts; // NULL: no penalties
    /* Beside the counts. NULL: every token may come; else it points to the ban of min_tokens. */
    struct constraint *constraint;
    struct constraint_ban_state ban;
    struct detok detok;
    int stop; // the stop string that ended it, or DETOK_NONE

    /* The draft for the coming round. */
    bool has_draft;   // it came, be it empty
    uint32_t n_held;  // tokens of it
    uint32_t n_draft; // the first of them, which are verified
    uint32_t draft[ACCEPT_MAX];
    int32_t parents[ACCEPT_MAX];
    float survival[ACCEPT_MAX]; // the proposer's word
    bool draft_is_tree;
    struct accept_q *q;        // of the draft as it came, its own; NULL: not drawn
    uint8_t q_row[ACCEPT_MAX]; // which of them is a token's
    int proposer;              // whose it is, or SEQ_NO_PROPOSER
    bool wants_draft;          // from a proposer, for the coming round
    int64_t asked_us; // an answer for its present length may come since then; 0: none was asked
    int64_t await_us; // how long it is worth waiting for
    int64_t held_until_us; // a draft is being drawn for it, and it does not go on before it is here
                           // or late; 0: it goes on
    uint32_t asked_k;      // tokens wanted then
    int64_t ahead_us;      // asked for a draft ahead, which may still come; 0: not
    int64_t ahead_until_us; // when it is late
    struct control_seq control;
    int64_t idle_us; // Verify: since when it waits for a draft; 0: it does not
    bool leaving;    // its blocks were taken, it goes back into the queue

    /* Its rows in the pass that runs. */
    uint32_t first_row, n_rows;

    /* Figures. */
    bool started; // the client knows that it was admitted
    uint32_t n_rounds, n_drafted_rounds, n_drafted, n_accepted, n_bonus;
    uint32_t accepted_histogram[ACCEPT_MAX + 1]; // [i]: drafted rounds of which i tokens were kept
    char last_proposer[DRAFTS_NAME_MAX];         // whose draft was verified last
    int64_t admitted_us, first_us, last_us;      // admission, first and last token
};

/* Choice `choice` of r, without room for its tokens yet. -ENOMEM. */
int seq_new(struct request *r, uint32_t choice, const struct tok *tok, struct seq **ret);
/* At admission, the first choice first: all the memory that it will need. -ENOMEM. */
int seq_open(struct seq *s);
/* Its KV blocks were given back before. */
void seq_free(struct seq *s);
DEFINE_AUTO(struct seq, seq_free)

/* Rows until its next token can be drawn: 1 while decoding, 0 while nothing is to do for it. */
uint32_t seq_todo(const struct seq *s);
/* KV blocks that it needs to begin (or to begin again), its next row included. */
uint32_t seq_blocks(const struct seq *s);
/* All tokens until now, also before seq_open(). */
const uint32_t *seq_tokens(const struct seq *s);
/* Whose prefixes may be the same as its. */
struct kv_root seq_root(const struct seq *s);
/* Tokens that may still be committed. */
uint32_t seq_left(const struct seq *s);
uint32_t seq_generated(const struct seq *s);
/* Appends the target's token and what is certain of its text now; the text of a token that ends the
 * generation, and of a stop string, is left out. SEQ_FAILED: no room in `text`, with a sentence. */
enum seq_end seq_commit(struct seq *s, uint32_t token, struct buf *text);
/* The generation has ended: appends what was held back. -EMSGSIZE: no room in `text`. */
int seq_flush(struct seq *s, struct buf *text);
struct seq_draft {
    const uint32_t *tokens;
    const int32_t *parents;
    const float *survival;
    struct accept_q *q; // as in struct draft_answer; becomes the sequence's
    uint32_t n;         // at most ACCEPT_MAX
    int proposer;       // or SEQ_NO_PROPOSER
};
/* Takes a draft for the coming round. */
void seq_take_draft(struct seq *s, const struct seq_draft *draft);
/* Cuts it to what accept_trim() keeps. */
void seq_trim_draft(struct seq *s, uint32_t max_nodes, uint32_t max_depth);
void seq_drop_draft(struct seq *s);

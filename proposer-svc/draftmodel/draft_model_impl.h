/* draft_model_impl.h - state of the draft-model proposer, and the functions that its files share.
 * For the files draft_model_*.c and prop_draft_model.c only.
 *
 * Threads: the draft thread; main opens and closes. */
#pragma once
#include "model/runner.h"
#include "proposer-svc/props/prop.h"
#include "text/tok.h"

#define ROWS_MAX 256   // of a pass
#define GROUP_MAX 32   // sequences of a pass, and rows with logits
#define BRANCHES_MAX 6 // of a draft ahead; fewer if many sequences share the passes
#define CATCH_UP 8     // a draft may begin with so many rows missing; = ROWS_MAX / GROUP_MAX

/* One sequence. It has rows [0, kv.len); those after the context belong to draft tokens. */
struct draft_model_seq {
    struct draft_model_seq *newer, *older; // in the order of use
    struct draft_model_seq *next_fed;      // in the list of contexts to read
    struct prop_context context;
    struct kv_seq kv; // blocks NULL: no draft was requested yet
    uint64_t used;    // n_calls at its last ask
    bool is_fed;      // it is in the list of contexts to read
    bool starved;     // the pool had no space for its rows
    bool is_foreign;  // position foreign_at has a token that the model does not have
    uint32_t foreign_at;
    struct dist_counts *counts;      // for penalties; NULL: none counted yet
    uint32_t n_counted;              // tokens of the committed context in `counts`
    uint32_t counted_prompt;         // the prompt's length when they were counted
    uint32_t counts_capacity;        // different tokens
    uint32_t ahead_at;               // position of the first token of the last draft
    uint32_t ahead[DRAFT_MAX_NODES]; // tokens of the last draft
    struct branches *branches;       // of drafts ahead; NULL: there was none yet
};

/* A branch of a draft ahead, from the context or from a token that is being verified. */
struct branch {
    struct kv_seq kv; // shares rows with the sequence's
    uint32_t node;    // its last node in the draft
    uint32_t n;       // number of its nodes
    uint32_t row;     // of its last node in the pass
    bool is_open;     // it gets further nodes
};

struct branches {
    bool begun; // an ask for them is open
    struct branch v[BRANCHES_MAX];
};

struct draft_model {
    struct runner run;
    char *name;
    uint64_t vocab_digest;
    uint32_t n_eos, eos[TOK_MAX_EOS];
    uint32_t sparse_k;
    float p_min;
    float *adjusted;       // (n_vocab) a row's logits after penalties, bias and mask
    uint64_t *ban_mask;    // of the ask whose row is adjusted
    uint64_t key, n_draws; // of random numbers; n_draws is the counter, so no draw repeats
    uint64_t n_calls;      // of draft(), in which an ask was done
    struct draft_model_seq *newest, *oldest; // sequences that have a block table
    struct draft_model_seq *first_fed;
    bool is_ahead;     // the last draft() left drafts ahead unfinished
    float feed_row_us; // mean time of a row in a chunk of context; 0: unknown
    int64_t pass_us;   // duration of the last pass of a draft
    int64_t show_us;   // time of the next report on loading
};

/* ---- draft_model_rows.c ---- */

/* Marks the sequence as the most recently used. False: no memory. */
bool draft_model_rows_touch(struct draft_model *d, struct draft_model_seq *s);
/* Drops all rows but the first n. */
void draft_model_rows_keep(struct draft_model *d, struct draft_model_seq *s, uint32_t n);
/* Adds n rows, which may evict rows of idle sequences. False: the pool has no space. */
bool draft_model_rows_grow(struct draft_model *d, struct draft_model_seq *s, uint32_t n);
/* Takes over rows that another sequence of the tenant computed for the same prefix, for example the
 * last turn of a chat. Offers the sequence's own rows, all committed, to others. */
void draft_model_rows_share(struct draft_model *d, struct draft_model_seq *s);
/* Adds the rows [from, kv.len) of a sequence to the plan of the next pass. */
void draft_model_rows_add(struct draft_model *d, struct draft_model_seq *s, uint32_t from);
/* Runs the plan, and records the time of the pass. */
void draft_model_rows_pass(struct draft_model *d);
/* seq_done(), cut() and grow() of struct prop_ops. */
void draft_model_rows_seq_done(void *shared, void *seq, const struct prop_context *c);
void draft_model_rows_cut(void *shared, void *seq, const struct prop_context *c, uint32_t keep);
int draft_model_rows_seq_grow(void *shared, void *seq, const struct prop_context *c);

/* ---- draft_model_feed.c ---- */

/* Adds the sequence to the list of contexts to read between Rounds. */
void draft_model_feed_later(struct draft_model *d, struct draft_model_seq *s);
/* Removes the sequence from that list. */
void draft_model_feed_stop(struct draft_model *d, struct draft_model_seq *s);
/* Estimated time until the sequence's context is read, including those before it in the list. */
int64_t draft_model_feed_us(const struct draft_model *d, const struct draft_model_seq *s);
/* work() of struct prop_ops. */
bool draft_model_feed_work(void *shared);

/* ---- draft_model_draw.c ---- */

/* The logits of a row of the last pass, after the ask's penalties, bias and bans. parent: the row's
 * token, as in draft.parents: a node, or -1 for the last token of the context, -2 for the one
 * before it. Valid until the next call. */
const float *draft_model_draw_logits(struct draft_model *d, const struct prop_ask *ask,
                                     uint32_t row, int32_t parent);
/* Only positions [0, keep) of the context stay valid: drops counts that include others. */
void draft_model_draw_cut(struct draft_model_seq *s, uint32_t keep);
/* Sets d->run.dists[0] to these logits with the ask's temperature, top-k, top-p and min-p. */
void draft_model_draw_dist(struct draft_model *d, const struct prop_ask *ask, const float *logits);
/* Whether no token may be drafted after this one, because it ends the text. */
bool draft_model_draw_ends(const struct draft_model *d, const struct prop_ask *ask, uint32_t token);
/* Whether the confidence is at least both p_min. */
bool draft_model_draw_trusts(const struct draft_model *d, const struct prop_ask *ask,
                             float confidence);
/* Adds the token after the row with these logits. False: the draft ends. */
bool draft_model_draw_next(struct draft_model *d, struct prop_ask *ask, const float *logits);
/* Allocates the q of a draft. May reduce max_depth for a dense one. False: no memory. */
bool draft_model_draw_space(const struct draft_model *d, struct prop_ask *ask);

/* ---- draft_model_step.c ---- */

/* Drafts for the asks without n_verifying that are ready. The others are done without tokens, or
 * wait until their context is read. False: no ask is done, except those with `unread`. */
bool draft_model_step(struct draft_model *d, struct prop_ask *const *asks, uint32_t n);

/* ---- draft_model_ahead.c ---- */

/* Runs one pass for the asks with n_verifying. Runs only one, so that waiting Rounds come first.
 * Sets is_ahead if more passes are needed. */
void draft_model_ahead_draft(struct draft_model *d, struct prop_ask *const *asks, uint32_t n);
/* Drops the branches of the sequence's draft ahead. */
void draft_model_ahead_drop(struct draft_model *d, struct draft_model_seq *s);
/* Frees the branches. */
void draft_model_ahead_done(struct draft_model *d, struct draft_model_seq *s);

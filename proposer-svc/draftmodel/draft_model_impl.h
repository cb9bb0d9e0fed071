/* draft_model_impl.h - the draft-model proposer's own state, and what its files do for one another. Not
 * for other files.
 *
 * Threads: the drafter's, but for opening and closing. */
#pragma once
#include "model/runner.h"
#include "proposer-svc/props/prop.h"
#include "text/tok.h"

#define ROWS_MAX 256   // of a pass
#define GROUP_MAX 32   // sequences drafted for together
#define BRANCHES_MAX 6 // of a draft ahead; fewer if many share the passes
#define CATCH_UP 8     // rows that may lack for a draft to begin: GROUP_MAX times it is ROWS_MAX

/* One sequence. Rows [0, kv.len) are there; those behind the context are of draft tokens. */
struct draft_model_seq {
    struct draft_model_seq *newer, *older; // in the order of use
    struct draft_model_seq *next_fed;      // waits to be fed
    struct prop_context context;
    struct kv_seq kv; // blocks NULL: was never asked for
    uint64_t used;    // n_calls when it was asked for last
    bool is_fed;      // is in the list of those
    bool starved;     // there was no room for its rows
    bool is_foreign;  // from foreign_at on there are tokens that the model has not
    uint32_t foreign_at;
    struct dist_counts *counts; // for penalties; NULL: there were none yet
    uint32_t n_counted;         // of the committed context
    uint32_t counted_prompt;    // whose first so many are the prompt
    uint32_t counts_room;       // different tokens
    uint32_t ahead_at;          // position of the last draft's first token
    uint32_t ahead[PROP_K_MAX]; // its tokens
    struct branches *branches;  // of drafting ahead; NULL: it never did
};

/* One way on from tokens that are being verified. */
struct branch {
    struct kv_seq kv; // shares its rows with the sequence's
    uint32_t node;    // of the draft: its last one
    uint32_t n;       // its nodes
    uint32_t row;     // of the pass
    bool going;
};

struct branches {
    bool begun; // there is an ask for them
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
    uint64_t key, n_draws; // its own random numbers: no draw's counter comes again
    uint64_t n_calls;      // in which an ask was done
    struct draft_model_seq *newest, *oldest; // those with a table of blocks
    struct draft_model_seq *first_fed;
    bool is_ahead;     // the last draft() left some that is made ahead to be gone on with
    float feed_row_us; // what a row of a chunk takes
    int64_t pass_us;   // of the last pass of drafts
    int64_t show_us;   // when to say next how far loading is
};

/* ---- draft_rows.c ---- */

/* The sequence is asked for now. False: no memory. */
bool draft_model_rows_touch(struct draft_model *d, struct draft_model_seq *s);
/* Only the first n rows stay. */
void draft_model_rows_keep(struct draft_model *d, struct draft_model_seq *s, uint32_t n);
/* Room for n rows more, at the cost of sequences that idle. False: there is none. */
bool draft_model_rows_grow(struct draft_model *d, struct draft_model_seq *s, uint32_t n);
/* Rows of its context that another sequence of the tenant has left, as the last turn of a chat,
 * need not run again; and it leaves its own, of which all are committed, to others. */
void draft_model_rows_share(struct draft_model *d, struct draft_model_seq *s);
/* Adds the rows [from, kv.len) of a sequence, which has grown by them, to the plan of the next
 * pass. */
void draft_model_rows_add(struct draft_model *d, const struct draft_model_seq *s, uint32_t from);
/* Runs the plan, and notes how long that takes. */
void draft_model_rows_pass(struct draft_model *d);
/* Of struct prop_ops. */
void draft_model_rows_seq_done(void *shared, void *seq, const struct prop_context *c);
void draft_model_rows_cut(void *shared, void *seq, const struct prop_context *c, uint32_t keep);
int draft_model_rows_seq_grow(void *shared, void *seq, const struct prop_context *c);

/* ---- draft_feed.c ---- */

/* Its context is read between Rounds. */
void draft_model_feed_later(struct draft_model *d, struct draft_model_seq *s);
void draft_model_feed_stop(struct draft_model *d, struct draft_model_seq *s);
/* What reading takes until its turn is over, as far as is known. */
int64_t draft_model_feed_us(const struct draft_model *d, const struct draft_model_seq *s);
bool draft_model_feed_work(void *shared); // work() of struct prop_ops

/* ---- draft_draw.c ---- */

/* The logits in a row of the last pass after the ask's penalties, bias and bans. behind: what the
 * row's token is, as a parent in a draft: its node, or -1 the context's last token, and so on.
 * Valid until the next call. */
const float *draft_model_draw_logits(struct draft_model *d, const struct prop_ask *ask,
                                     uint32_t row, int32_t behind);
/* Tokens of the context are no longer valid. */
void draft_model_draw_cut(struct draft_model_seq *s, uint32_t keep);
/* What else the ask's sampling parameters do to these logits, for d->run.dist. */
void draft_model_draw_dist(struct draft_model *d, const struct prop_ask *ask, const float *logits);
/* Nothing is drafted behind the token: there is another text. */
bool draft_model_draw_ends(const struct draft_model *d, const struct prop_ask *ask, uint32_t token);
/* Is a row of this confidence drawn from? */
bool draft_model_draw_trusts(const struct draft_model *d, const struct prop_ask *ask,
                             float confidence);
/* Adds the token behind the row with these logits. False: the draft ends. */
bool draft_model_draw_next(struct draft_model *d, struct prop_ask *ask, const float *logits);
/* Room for the q of a draft; a dense one may cut k. False: no memory. */
bool draft_model_draw_space(const struct draft_model *d, struct prop_ask *ask);

/* ---- draft_step.c ---- */

/* Drafts for all asks that are ready and verify nothing; others are done without, or fed first.
 * False: none of all n is done yet. */
bool draft_model_step(struct draft_model *d, struct prop_ask *const *asks, uint32_t n);

/* ---- draft_ahead.c ---- */

/* One pass for the asks that verify something, so that Rounds that wait for their drafts come
 * first. Sets is_ahead if there is more to do. */
void draft_model_ahead_draft(struct draft_model *d, struct prop_ask *const *asks, uint32_t n);
/* What was drafted ahead is of no use any more. */
void draft_model_ahead_drop(struct draft_model *d, struct draft_model_seq *s);
/* The sequence ends. */
void draft_model_ahead_done(struct draft_model *d, struct draft_model_seq *s);

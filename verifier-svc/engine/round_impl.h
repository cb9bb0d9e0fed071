/* round_impl.h - one round, step by step.
 *
 *     round_plan.c    grants rows and blocks, packs the rows of the pass
 *     round_choose.c  chooses tokens by the logits of the pass
 *     round_accept.c  commits them, counts
 *     round_ask.c     requests drafts, takes answers
 *     round.c         the order of the steps, and the functions that they share
 *
 * Threads: the engine's. */
#pragma once
#include "verifier-svc/engine/engine_impl.h"

/* ---- round.c ---- */

/* The next token of the sequence can be drawn after one more row. */
bool round_is_decoding(const struct seq *s);
/* Draft tokens that the request, its limits and the model allow. */
uint32_t round_draft_allowed(const struct engine *e, const struct seq *s);
/* Positions that a proposer without this sequence has to read: as many as this service had to
 * run. */
uint32_t round_unread(const struct seq *s);
/* The controller's view of the sequence. n: draft tokens to request at most, or tokens of its
 * draft. */
struct control_item round_item(struct seq *s, uint32_t n);
/* The coming pass without any drafts. Prompts are assumed to get as many rows as in the last
 * pass. */
struct control_round round_without_drafts(const struct engine *e);
/* Whether the sequences that have rows to run, or wait for a draft, belong to several flows. */
bool round_is_shared(const struct engine *e);

/* ---- round_plan.c ---- */

/* The rows that a sequence wants of the pass; none is granted yet. */
struct sched_grant round_wanted(const struct seq *s);
/* Chooses the sequences of the pass with their rows and drafts, takes KV blocks for them and packs
 * the rows. Sequences without blocks are preempted. False: there is nothing to run. */
bool round_plan(struct engine *e);

/* ---- round_choose.c ---- */

/* The pass has logits after the last committed token of a sequence. */
bool round_has_logits(const struct engine *e, const struct seq *s);
/* Chooses the tokens of all sequences of the pass. The threads of the pass take part. */
void round_choose(struct engine *e);

/* ---- round_accept.c ---- */

/* Commits the tokens that were chosen. */
void round_accept(struct engine *e, int64_t now_us);

/* ---- round_ask.c ---- */

/* Requests drafts that continue the drafts of the coming pass. */
void round_ask_ahead(struct engine *e);

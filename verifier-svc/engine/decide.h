/* decide.h - one step of one sequence: which tokens are committed, by its request's rule.
 *
 * First the tokens are chosen, then they are committed. The distribution after a draft's token
 * belongs to a text that is not committed yet; meanwhile the tokens before it count for penalties
 * and min_tokens.
 *
 * Threads: decide_tokens() on any thread, one per sequence; the rest on the engine's. */
#pragma once
#include "model/dist.h"
#include "model/forward.h"
#include "verifier-svc/accept/accept.h"
#include "verifier-svc/engine/events.h"
#include "verifier-svc/engine/seq.h"

/* Sets s->chosen. Row s->last_row of the last pass is the sequence's last committed token. The rows
 * after it are its draft tokens. */
void decide_tokens(const struct forward *f, struct dist *d, struct seq *s);
/* Commits s->chosen, and shortens it if the generation ends inside the draft. The tokens go into b,
 * the summary into ev, which is the last event of b. SEQ_FAILED: with fail_text(). */
enum seq_end decide_commit(const struct forward *f, struct dist *d, struct seq *s,
                           struct event_batch *b, struct event *ev);
/* The q mode in which the sequence's drafts are requested. */
enum draft_q_mode decide_q_mode(const struct seq *s);

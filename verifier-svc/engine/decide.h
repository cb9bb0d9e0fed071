/* decide.h - one step of one sequence: which tokens are committed, by its request's rule.
 *
 * own-draw commits each token as it is drawn. The other rules (accept.h) look at p after draft
 * tokens that are not committed yet; meanwhile these tokens count for penalties and min_tokens.
 *
 * Threads: the engine's. */
#pragma once
#include "model/dist.h"
#include "model/forward.h"
#include "verifier-svc/accept/accept.h"
#include "verifier-svc/engine/events.h"
#include "verifier-svc/engine/seq.h"

/* Commits tokens of a sequence whose last committed token is row `last_row` of the last pass, and
 * whose draft tokens are the rows after it. The tokens go into b, the summary into ev, which is the
 * last event of b. SEQ_FAILED: with fail_text(). */
enum seq_end decide(const struct forward *f, struct dist *d, struct seq *s, uint32_t last_row,
                    struct event_batch *b, struct event *ev, struct accept_result *ret);
/* The q mode in which the sequence's drafts are requested. */
enum draft_q_mode decide_q_mode(const struct seq *s);

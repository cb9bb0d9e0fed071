/* drafts_book.h - what one proposer knows, what it owes, and what is to be sent to it.
 *
 * A sequence has an entry in the book from its first wish until it is closed: how much of its
 * context the proposer has. An answer is owed for what was sent, also for a sequence that has been
 * closed since: it frees the Round, or its absence tells that the proposer is late. Wishes are
 * copied into the outbox that is being filled; taking it to send makes the other one the one being
 * filled. All memory is reserved at the start.
 *
 * Threads: the caller's lock; what drafts_book_take() returned is the sender's until the next. */
#pragma once
#include "verifier-svc/drafts/drafts_wire.h"

#define DRAFTS_OUTBOX_TOKENS (256 << 10) // 1 MiB: context that may wait to be sent
#define DRAFTS_URGENT_TOKENS 4096        // more new context than this goes ahead, drafted for later
#define DRAFTS_AHEAD_LATE_US 250000      // later than its budget, a draft ahead is a fault
#define DRAFTS_FAULTS_MAX 3              // in a row
#define DRAFTS_UNASKED_MAX 1024          // answers nobody asked for, since the last good one
/* contexts of a sequence on request; then it asks this proposer no more */
#define DRAFTS_RESENDS_MAX 4
#define DRAFTS_MISS_AGAIN_US 100000 // an unanswered Round misses again after its budget or this

struct drafts_outbox {
    uint32_t n_urgent, n_pieces, n_closes, n_tokens;
    struct drafts_entry *urgent;  // k > 0: one Round
    struct drafts_entry *pieces;  // k = 0: a Round for each, after it
    uint32_t *tokens;             // of both
    struct drafts_closed *closes; // (max_sequences): there are no more that the proposer knows of
    uint32_t budget_us, late_us;  // late_us: of what may be late besides
    int64_t asked_us, due_us;     // due_us: of the first wish in it
};

struct drafts_book;

/* n_vocab: tokens of drafts are below it. -ENOMEM. */
int drafts_book_new(uint32_t max_sequences, uint32_t n_vocab, struct drafts_book **ret);
void drafts_book_free(struct drafts_book *b);
DEFINE_AUTO(struct drafts_book, drafts_book_free)

/* A new stream: the proposer knows nothing. The counts go on. */
void drafts_book_reset(struct drafts_book *b, const struct drafts_described *about);

/* Like drafts_ask(). */
unsigned drafts_book_ask(struct drafts_book *b, struct drafts_wish *wishes, unsigned n,
                         uint32_t budget_us, int64_t now_us);
void drafts_book_close(struct drafts_book *b, uint64_t seq, bool ended);
bool drafts_book_knows(const struct drafts_book *b, uint64_t seq);
/* Tokens that the proposer drafts at most for the sequence with so long a context; 0: none, as it
 * takes none so long or has lost the sequence's too often. */
uint32_t drafts_book_k_max(const struct drafts_book *b, uint64_t seq, uint32_t base_len);

/* What may be sent now: all that waits, unless it holds wishes and two Rounds are unanswered. NULL:
 * nothing. */
const struct drafts_outbox *drafts_book_take(struct drafts_book *b);
bool drafts_book_ready(const struct drafts_book *b); // there is something

/* What the answer's draft is to be checked against by drafts_check(), which takes too long for a
 * lock: only drafts_book_answer() and _reset() change it. False: there is nothing to check. */
bool drafts_book_asked(const struct drafts_book *b, const Tandem__V1__SequenceDraft *answer,
                       struct drafts_asked *ret);
/* Judges an answer with its draft, as drafts_check() filled it, and what that said. True: the draft
 * is to be handed on; it lacks the proposer's index. Its q stays the caller's. */
bool drafts_book_answer(struct drafts_book *b, const Tandem__V1__SequenceDraft *answer,
                        enum drafts_verdict v, int64_t now_us, struct draft_answer *draft);
/* Counts the budgets that have passed by now. Non-NULL: the proposer is to be given up, and why. */
const char *drafts_book_verdict(struct drafts_book *b, int64_t now_us);

uint32_t drafts_book_p90_us(const struct drafts_book *b, uint32_t k);

struct drafts_counts {
    uint64_t rounds, drafts, draft_tokens, late, stale, malformed;
    bool good; // since the last reset, one came in time
};
const struct drafts_counts *drafts_book_counts(const struct drafts_book *b);

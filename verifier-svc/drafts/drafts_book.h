/* drafts_book.h - the state of one proposer: the contexts it has, outstanding answers, the outbox.
 *
 * A sequence has an entry in the book from its first wish until it is closed. The entry says how
 * much of its context the proposer has. Every sent request is owed an answer, even if its sequence
 * has been closed since. The answer completes the Round, and its absence shows that the proposer is
 * late. There are two outboxes: wishes are copied into one, while the other one is being sent. All
 * memory is allocated at the start.
 *
 * Threads: under the caller's lock. The outbox returned by drafts_book_take() belongs to the sender
 * until the next call. */
#pragma once
#include "verifier-svc/drafts/drafts_wire.h"

#define DRAFTS_OUTBOX_TOKENS (256 << 10) // 1 MiB: context that may wait to be sent
/* More new context than this is sent alone; its draft is requested later. */
#define DRAFTS_URGENT_TOKENS 4096
#define DRAFTS_AHEAD_LATE_US 250000 // a draft ahead may be this much later than its budget
#define DRAFTS_FAULTS_MAX 3         // in a row
#define DRAFTS_UNREQUESTED_MAX 1024 // unrequested answers since the last good one
/* Times that a proposer may lose the context of a sequence; after that it gets no more requests for
 * it. */
#define DRAFTS_RESENDS_MAX 4
/* An unanswered Round counts as missed again after its budget or this. */
#define DRAFTS_MISS_AGAIN_US 100000

struct drafts_outbox {
    uint32_t n_urgent, n_pieces, n_closes, n_tokens;
    struct drafts_entry *urgent;  // with max_nodes > 0: one Round
    struct drafts_entry *pieces;  // with max_nodes = 0: a Round for each, after it
    uint32_t *tokens;             // of both
    struct drafts_closed *closes; // (max_sequences), as many as the proposer can know
    uint32_t budget_us, late_us;  // late_us: how much later than the budget answers may be
    int64_t requested_us, due_us; // due_us: of the first wish in it
};

struct drafts_book;

/* n_vocab: tokens of drafts are below it. -ENOMEM. */
int drafts_book_new(uint32_t max_sequences, uint32_t n_vocab, struct drafts_book **ret);
void drafts_book_free(struct drafts_book *b);
DEFINE_AUTO(struct drafts_book, drafts_book_free)

/* A new stream: the proposer knows no sequence. The counts continue. */
void drafts_book_reset(struct drafts_book *b, const struct drafts_described *about);

/* Like drafts_ask(). */
unsigned drafts_book_ask(struct drafts_book *b, struct drafts_wish *wishes, unsigned n,
                         uint32_t budget_us, int64_t now_us);
void drafts_book_close(struct drafts_book *b, uint64_t seq, bool ended);
bool drafts_book_knows(const struct drafts_book *b, uint64_t seq);
/* The most tokens that the proposer drafts for the sequence. 0: none, since base_len is above its
 * limit, or because it has lost the sequence's context too often. */
uint32_t drafts_book_k_max(const struct drafts_book *b, uint64_t seq, uint32_t base_len);

/* The filled outbox, to send now. NULL: it is empty, or it has wishes and two Rounds are
 * unanswered. */
const struct drafts_outbox *drafts_book_take(struct drafts_book *b);
bool drafts_book_ready(const struct drafts_book *b); // drafts_book_take() returns an outbox

/* The request that drafts_check() needs to check the answer, which takes too long to do under the
 * lock. Only drafts_book_answer() and drafts_book_reset() change it. False: there is nothing to
 * check. */
bool drafts_book_request(const struct drafts_book *b, const Tandem__V1__SequenceDraft *answer,
                         struct drafts_request *ret);
/* Records an answer, as drafts_check() filled *a, with the verdict of that. True: the draft is to
 * be passed on; *a lacks the proposer's index. The draft stays the caller's. */
bool drafts_book_answer(struct drafts_book *b, const Tandem__V1__SequenceDraft *answer,
                        enum drafts_verdict v, int64_t now_us, struct draft_answer *a);
/* Counts the budgets missed by now. Non-NULL: why the proposer is to be given up. */
const char *drafts_book_verdict(struct drafts_book *b, int64_t now_us);

uint32_t drafts_book_p90_us(const struct drafts_book *b, uint32_t k);

struct drafts_counts {
    uint64_t rounds, drafts, draft_tokens, late, stale, malformed;
    bool good; // a good answer has arrived in time since the last reset
};
const struct drafts_counts *drafts_book_counts(const struct drafts_book *b);

/* drafts_book.c - contexts at the proposer, round trips, the outboxes, Rounds and answers. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "base/minmax.h"
#include "base/rng.h"
#include "verifier-svc/drafts/drafts_book.h"

#define N_ROUNDS 2    // unanswered, per stream
#define N_RTT_KINDS 6 // k = 1, 2, 3-4, 5-8, 9-16, more
#define N_RTTS 32     // recent ones of each kind
#define RTT_UNKNOWN_US 10000
#define BIAS_WORDS (uint32_t)(sizeof(struct dist_bias) / sizeof(uint32_t))

struct known {
    uint64_t seq;
    uint64_t sent_digest; // of [0, sent_len)
    uint32_t sent_len;    // committed tokens that were sent to the proposer
    bool announced;       // a Round with it was sent, so its end must be sent too
    bool introduced;      // hint, tenant, model, ids and sampling are sent
    uint32_t n_resent;    // how often the proposer requested the context again
    bool sent_again;      // n_resent has grown, and no good answer has arrived since
    uint32_t read_len;    // longest context the proposer has answered for
    bool still_reading;   // its last answer was "still reading"
};

struct owed {
    uint64_t seq;
    struct drafts_request request;
};

struct sent_round {
    struct owed *owed; // (max_sequences)
    uint32_t n_owed;   // answers; 0: free
    int64_t requested_us, due_us;
    uint32_t budget_us;
    bool missed;
};

struct rtts {
    uint32_t n; // ever
    uint32_t us[N_RTTS];
};

struct drafts_book {
    uint32_t max_sequences, n_vocab;
    struct drafts_described about;
    uint32_t n_known;
    struct known *known; // (max_sequences)
    struct drafts_outbox outboxes[2];
    unsigned filling; // index of the outbox
    struct sent_round rounds[N_ROUNDS];
    uint32_t n_faults, n_unrequested;
    char fault[100];
    struct rtts rtts[N_RTT_KINDS];
    struct drafts_counts counts;
};

int drafts_book_new(uint32_t max_sequences, uint32_t n_vocab, struct drafts_book **ret)
{
    AUTO(drafts_book_free) struct drafts_book *b = calloc(1, sizeof(*b));
    if (!b)
        return fail(-ENOMEM, "drafts: no memory");
    b->max_sequences = max_sequences;
    b->n_vocab = n_vocab;
    b->known = calloc(max_sequences, sizeof(*b->known));
    bool complete = b->known != NULL;
    for (unsigned i = 0; i < 2; i++) {
        struct drafts_outbox *o = &b->outboxes[i];
        o->urgent = calloc(max_sequences, sizeof(*o->urgent));
        o->pieces = calloc(max_sequences, sizeof(*o->pieces));
        o->tokens = malloc(DRAFTS_OUTBOX_TOKENS * sizeof(*o->tokens));
        o->closes = calloc(max_sequences, sizeof(*o->closes));
        complete = complete && o->urgent && o->pieces && o->tokens && o->closes;
    }
    for (unsigned i = 0; i < N_ROUNDS; i++) {
        b->rounds[i].owed = calloc(max_sequences, sizeof(*b->rounds[i].owed));
        complete = complete && b->rounds[i].owed;
    }
    if (!complete)
        return fail(-ENOMEM, "drafts: no memory for %u sequences", max_sequences);
    *ret = TAKE(b);
    return 0;
}

void drafts_book_free(struct drafts_book *b)
{
    if (!b)
        return;
    for (unsigned i = 0; i < 2; i++) {
        free(b->outboxes[i].urgent);
        free(b->outboxes[i].pieces);
        free(b->outboxes[i].tokens);
        free(b->outboxes[i].closes);
    }
    for (unsigned i = 0; i < N_ROUNDS; i++)
        free(b->rounds[i].owed);
    free(b->known);
    free(b);
}

static void outbox_clear(struct drafts_outbox *o)
{
    o->n_urgent = o->n_pieces = o->n_closes = o->n_tokens = 0;
    o->due_us = 0;
}

void drafts_book_reset(struct drafts_book *b, const struct drafts_described *about)
{
    b->about = *about;
    b->n_known = 0;
    b->rounds[0].n_owed = b->rounds[1].n_owed = 0;
    outbox_clear(&b->outboxes[0]);
    outbox_clear(&b->outboxes[1]);
    b->n_faults = b->n_unrequested = 0;
    b->counts.good = false;
}

static struct known *find_known(const struct drafts_book *b, uint64_t seq)
{
    for (uint32_t i = 0; i < b->n_known; i++)
        if (b->known[i].seq == seq)
            return &b->known[i];
    return NULL;
}

bool drafts_book_knows(const struct drafts_book *b, uint64_t seq)
{
    return find_known(b, seq) != NULL;
}

/* Removes a close that has not been sent. False: there is none. */
static bool take_back_close(struct drafts_outbox *o, uint64_t seq)
{
    for (uint32_t i = 0; i < o->n_closes; i++)
        if (o->closes[i].seq == seq) {
            o->closes[i] = o->closes[--o->n_closes];
            return true;
        }
    return false;
}

uint32_t drafts_book_k_max(const struct drafts_book *b, uint64_t seq, uint32_t base_len)
{
    const struct known *s = find_known(b, seq);
    bool too_long = b->about.max_context && base_len > b->about.max_context;
    return too_long || (s && s->n_resent > DRAFTS_RESENDS_MAX) ? 0 : b->about.k_max;
}

/* The proposer has read the context of s, so a draft takes the usual time. */
static bool has_read(const struct known *s)
{
    return s->read_len && !s->still_reading;
}

static struct known *find_or_add(struct drafts_book *b, uint64_t seq)
{
    struct known *s = find_known(b, seq);
    if (s || b->n_known == b->max_sequences)
        return s;
    s = &b->known[b->n_known++];
    *s = (struct known){.seq = seq, .announced = take_back_close(&b->outboxes[b->filling], seq)};
    return s;
}

static struct owed *owed_by(const struct sent_round *r, uint64_t seq)
{
    for (uint32_t i = 0; i < r->n_owed; i++)
        if (r->owed[i].seq == seq)
            return &r->owed[i];
    return NULL;
}

/* NULL: no answer is owed for the sequence. */
static struct sent_round *round_owing(const struct drafts_book *b, uint64_t seq)
{
    for (unsigned i = 0; i < N_ROUNDS; i++)
        if (owed_by(&b->rounds[i], seq))
            return (struct sent_round *)&b->rounds[i];
    return NULL;
}

/* ---- round trips ---- */

static unsigned rtt_kind(uint32_t k)
{
    unsigned kind = 0;
    while (kind < N_RTT_KINDS - 1 && k > 1u << kind)
        kind++;
    return kind;
}

static int by_size(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

uint32_t drafts_book_p90_us(const struct drafts_book *b, uint32_t k)
{
    const struct rtts *r = &b->rtts[rtt_kind(k)];
    /* Without any of this size, use those of the longest drafts. */
    for (unsigned i = N_RTT_KINDS; i-- > 0 && !r->n;)
        r = &b->rtts[i];
    uint32_t n = min_u32(r->n, N_RTTS), sorted[N_RTTS];
    if (!n)
        return RTT_UNKNOWN_US;
    memcpy(sorted, r->us, n * sizeof(*sorted));
    qsort(sorted, n, sizeof(*sorted), by_size);
    return sorted[(n * 9 + 9) / 10 - 1];
}

/* ---- the outbox that is being filled ---- */

static void shift_tokens(struct drafts_entry *entries, uint32_t n, uint32_t above, uint32_t by)
{
    for (uint32_t i = 0; i < n; i++)
        if (entries[i].token_at > above)
            entries[i].token_at -= by;
}

static uint32_t entry_tokens(const struct drafts_entry *e)
{
    return e->base_len - e->keep + e->n_hint + e->n_verifying + e->ban.n +
           e->sampling.n_bias * BIAS_WORDS;
}

/* Removes the sequence's entry from one of the two lists, with its tokens. */
static void remove_entry(struct drafts_outbox *o, struct drafts_entry *entries, uint32_t *n,
                         uint64_t seq)
{
    for (uint32_t i = 0; i < *n; i++) {
        struct drafts_entry e = entries[i];
        if (e.seq != seq)
            continue;
        uint32_t size = entry_tokens(&e);
        memmove(&entries[i], &entries[i + 1], (*n - i - 1) * sizeof(e));
        --*n;
        if (!size)
            return;
        memmove(o->tokens + e.token_at, o->tokens + e.token_at + size,
                (o->n_tokens - e.token_at - size) * sizeof(*o->tokens));
        o->n_tokens -= size;
        shift_tokens(o->urgent, o->n_urgent, e.token_at, size);
        shift_tokens(o->pieces, o->n_pieces, e.token_at, size);
        return;
    }
}

static void outbox_remove(struct drafts_outbox *o, uint64_t seq)
{
    remove_entry(o, o->urgent, &o->n_urgent, seq);
    remove_entry(o, o->pieces, &o->n_pieces, seq);
    if (!o->n_urgent && !o->n_pieces)
        o->due_us = 0;
}

static uint32_t *put_words(uint32_t *to, const void *from, uint32_t n)
{
    if (n)
        memcpy(to, from, n * sizeof(*to));
    return to + n;
}

/* Copies the context from e->keep on, whose digest it continues, and the other words. */
static void copy_tokens(struct drafts_outbox *o, const struct drafts_wish *w, uint64_t digest,
                        struct drafts_entry *e)
{
    uint32_t *to = o->tokens + o->n_tokens;
    e->token_at = o->n_tokens;
    for (uint32_t i = e->keep; i < e->base_len; i++) {
        *to++ = w->context[i];
        digest = rng_splitmix64(digest ^ ((uint64_t)w->context[i] + 1));
    }
    e->digest = digest;
    to = put_words(to, w->hint, e->n_hint);
    to = put_words(to, w->verifying, e->n_verifying);
    to = put_words(to, w->ban.tokens, e->ban.n);
    put_words(to, w->sampling.bias, e->sampling.n_bias * BIAS_WORDS);
    e->ban.tokens = NULL; // the request owns them, and may end before the Round is sent
    e->sampling.bias = NULL;
    o->n_tokens += entry_tokens(e);
}

static struct drafts_entry entry_of(const struct known *s, const struct drafts_wish *w)
{
    struct drafts_entry e = {.seq = w->seq,
                             .keep = s->sent_len,
                             .base_len = w->base_len,
                             .prompt_len = w->prompt_len,
                             .introduced = s->introduced,
                             .q_mode = w->q_mode,
                             .draw_key = w->q_mode == DRAFT_COUPLED ? w->draw_key : 0,
                             .p_min = w->p_min};
    if (!s->introduced) {
        e.sampling = w->sampling;
        e.ban = w->ban;
        e.ignore_eos = w->ignore_eos;
        e.n_hint = min_u32(w->n_hint, DRAFTS_HINT_MAX);
        e.tenant_len = w->tenant_len <= DRAFTS_TENANT_MAX ? (uint32_t)w->tenant_len : 0;
        if (e.tenant_len)
            memcpy(e.tenant, w->tenant, e.tenant_len);
        snprintf(e.id, sizeof(e.id), "%s", w->id ? w->id : "");
        snprintf(e.trace, sizeof(e.trace), "%s", w->trace ? w->trace : "");
    }
    return e;
}

/* The requested mode, or the nearest one that the proposer offers. */
static enum draft_q_mode q_mode_offered(const struct drafts_book *b, const struct drafts_wish *w)
{
    enum draft_q_mode mode = w->q_mode;
    if (mode == DRAFT_DENSE && (!b->about.offers[mode] || b->n_vocab > DRAFTS_DENSE_MAX))
        mode = DRAFT_SPARSE;
    return b->about.offers[mode] ? mode : DRAFT_POINT;
}

/* Cuts the wish to what the proposer can do. In a draft ahead, the tokens being verified count
 * among the nodes. The k_max of the proposer then limits only the length of the paths. */
static void cut_wish(const struct drafts_book *b, struct drafts_wish *w)
{
    uint32_t fit = w->q_mode == DRAFT_DENSE ? DRAFTS_DENSE_MAX / b->n_vocab : b->about.k_max;
    fit = min_u32(fit, b->about.k_max);
    if (!w->n_verifying)
        w->max_nodes = min_u32(w->max_nodes, fit);
    fit = min_u32(fit, w->max_nodes - w->n_verifying);
    w->max_depth = min_u32(w->max_depth, fit);
}

/* True: an answer may arrive this round. */
static bool add_wish(struct drafts_book *b, struct drafts_outbox *o, struct drafts_wish *w)
{
    w->to_read = 0;
    w->q_mode = q_mode_offered(b, w); // decides whether the draw key is sent
    outbox_remove(o, w->seq);         // newer state replaces what has not been sent
    if (w->max_nodes <= w->n_verifying || !drafts_book_k_max(b, w->seq, w->base_len))
        return false;
    struct known *s = find_or_add(b, w->seq);
    if (!s || round_owing(b, w->seq) || w->base_len < s->sent_len)
        return false;
    cut_wish(b, w);
    struct drafts_entry e = entry_of(s, w);
    bool urgent = w->base_len - s->sent_len + e.n_hint <= DRAFTS_URGENT_TOKENS;
    if (w->base_len - e.keep > DRAFTS_PIECE)
        e.base_len = e.keep + DRAFTS_PIECE;
    e.n_verifying = urgent ? w->n_verifying : 0;
    if (entry_tokens(&e) > DRAFTS_OUTBOX_TOKENS - o->n_tokens)
        return false;
    e.max_nodes = urgent ? w->max_nodes : 0;
    e.max_depth = urgent ? w->max_depth : 0;
    e.more = e.base_len < w->base_len;
    w->to_read = has_read(s) ? 0 : w->base_len - s->read_len;
    copy_tokens(o, w, s->sent_digest, &e);
    if (urgent)
        o->urgent[o->n_urgent++] = e;
    else
        o->pieces[o->n_pieces++] = e;
    return urgent;
}

unsigned drafts_book_ask(struct drafts_book *b, struct drafts_wish *wishes, unsigned n,
                         uint32_t budget_us, int64_t now_us)
{
    struct drafts_outbox *o = &b->outboxes[b->filling];
    unsigned n_awaited = 0;
    uint32_t p90_us[N_RTT_KINDS] = {0};
    int64_t due_us = o->due_us;
    for (unsigned i = 0; i < n; i++) {
        bool awaited = add_wish(b, o, &wishes[i]);
        uint32_t *us = &p90_us[rtt_kind(wishes[i].max_depth)]; // most have the same
        if (awaited && !*us)
            *us = drafts_book_p90_us(b, wishes[i].max_depth);
        wishes[i].p90_us = awaited ? *us : 0;
        n_awaited += awaited;
    }
    o->budget_us = budget_us;
    o->late_us = n && wishes[0].n_verifying ? DRAFTS_AHEAD_LATE_US : 0;
    o->requested_us = now_us;
    if (o->n_urgent || o->n_pieces)
        o->due_us = due_us ? due_us : now_us + budget_us;
    return n_awaited;
}

/* ---- Rounds ---- */

void drafts_book_close(struct drafts_book *b, uint64_t seq, bool ended)
{
    struct known *s = find_known(b, seq);
    if (!s)
        return;
    struct drafts_outbox *o = &b->outboxes[b->filling];
    outbox_remove(o, seq);
    if (s->announced) { // in the book at the last take, which bounds n_closes
        assert(o->n_closes < b->max_sequences);
        o->closes[o->n_closes++] = (struct drafts_closed){seq, ended};
    }
    *s = b->known[--b->n_known];
}

static void mark_sent(struct known *s, const struct drafts_entry *e)
{
    s->sent_len = e->base_len;
    s->sent_digest = e->digest;
    s->announced = s->introduced = true;
}

static void record_round(struct drafts_book *b, const struct drafts_outbox *o)
{
    struct sent_round *r = &b->rounds[b->rounds[0].n_owed ? 1 : 0];
    *r = (struct sent_round){.owed = r->owed,
                             .n_owed = o->n_urgent,
                             .requested_us = o->requested_us,
                             .due_us = o->requested_us + o->budget_us + o->late_us,
                             .budget_us = o->budget_us};
    for (uint32_t i = 0; i < o->n_urgent; i++) {
        const struct drafts_entry *e = &o->urgent[i];
        struct known *s = find_known(b, e->seq);
        assert(s); // closing a sequence removes its entry
        mark_sent(s, e);
        r->owed[i] = (struct owed){e->seq,
                                   {.base_len = e->base_len,
                                    .max_nodes = e->max_nodes,
                                    .max_depth = e->n_verifying + e->max_depth,
                                    .ahead = e->n_verifying > 0,
                                    .n_vocab = b->n_vocab,
                                    .digest = e->digest,
                                    .q_mode = e->q_mode}};
    }
    b->counts.rounds++;
}

bool drafts_book_ready(const struct drafts_book *b)
{
    const struct drafts_outbox *o = &b->outboxes[b->filling];
    if (o->n_urgent)
        return !b->rounds[0].n_owed || !b->rounds[1].n_owed;
    return o->n_pieces || o->n_closes;
}

const struct drafts_outbox *drafts_book_take(struct drafts_book *b)
{
    if (!drafts_book_ready(b))
        return NULL;
    struct drafts_outbox *o = &b->outboxes[b->filling];
    if (o->n_urgent)
        record_round(b, o);
    for (uint32_t i = 0; i < o->n_pieces; i++) {
        struct known *s = find_known(b, o->pieces[i].seq);
        assert(s);
        mark_sent(s, &o->pieces[i]);
    }
    b->filling = !b->filling;
    outbox_clear(&b->outboxes[b->filling]);
    return o;
}

/* ---- answers ---- */

static void count_fault(struct drafts_book *b, const char *what)
{
    b->n_faults++;
    snprintf(b->fault, sizeof(b->fault), "%s", what);
}

static void add_rtt(struct drafts_book *b, uint32_t k, uint32_t rtt_us)
{
    struct rtts *r = &b->rtts[rtt_kind(k)];
    r->us[r->n++ % N_RTTS] = rtt_us ? rtt_us : 1;
}

/* The proposer has lost the context. Twice without a good answer in between is a fault. */
static void resend_context(struct drafts_book *b, struct known *s)
{
    if (s->sent_again) {
        b->counts.malformed++;
        count_fault(b, "it requests the same context repeatedly");
    }
    s->sent_again = true;
    s->n_resent++;
    s->sent_len = 0;
    s->sent_digest = 0;
    s->read_len = 0;
    s->introduced = s->still_reading = false;
    outbox_remove(&b->outboxes[b->filling], s->seq);
}

static void count_unrequested(struct drafts_book *b)
{
    b->counts.stale++;
    if (++b->n_unrequested > DRAFTS_UNREQUESTED_MAX) {
        b->n_faults = DRAFTS_FAULTS_MAX;
        snprintf(b->fault, sizeof(b->fault), "it sends unrequested answers");
    }
}

static void count_bad_draft(struct drafts_book *b, enum drafts_verdict v)
{
    *(v == DRAFTS_STALE ? &b->counts.stale : &b->counts.malformed) += 1;
    count_fault(b, fail_text());
}

static void count_good_draft(struct drafts_book *b, const struct sent_round *r,
                             const struct draft *draft)
{
    b->n_unrequested = 0;
    b->counts.drafts += draft->n > 0;
    b->counts.draft_tokens += draft->n;
    b->counts.late += r->missed;
    if (!r->missed) {
        b->n_faults = 0;
        b->counts.good = true;
    }
}

static void count_missed(struct drafts_book *b, int64_t *due_us, uint32_t budget_us, int64_t now_us)
{
    while (now_us >= *due_us && b->n_faults < DRAFTS_FAULTS_MAX) {
        count_fault(b, "it missed its budgets");
        *due_us += max_u32(budget_us, DRAFTS_MISS_AGAIN_US);
    }
}

const char *drafts_book_verdict(struct drafts_book *b, int64_t now_us)
{
    bool owes = false;
    for (unsigned i = 0; i < N_ROUNDS; i++) {
        struct sent_round *r = &b->rounds[i];
        if (!r->n_owed)
            continue;
        owes = true;
        r->missed = r->missed || now_us >= r->due_us;
        count_missed(b, &r->due_us, r->budget_us, now_us);
    }
    struct drafts_outbox *o = &b->outboxes[b->filling];
    if (!owes && o->due_us) // the proposer does not even read what is sent
        count_missed(b, &o->due_us, o->budget_us, now_us);
    return b->n_faults >= DRAFTS_FAULTS_MAX ? b->fault : NULL;
}

static bool count_draft(struct drafts_book *b, const struct sent_round *r, enum drafts_verdict v,
                        int64_t now_us, struct draft_answer *a)
{
    int64_t rtt_us = now_us - r->requested_us;
    a->rtt_us = rtt_us < 0 ? 0 : rtt_us > UINT32_MAX ? UINT32_MAX : (uint32_t)rtt_us;
    if (v == DRAFTS_GOOD)
        count_good_draft(b, r, a->draft);
    else
        count_bad_draft(b, v);
    return v == DRAFTS_GOOD;
}

/* Records the latency, unless the draft is empty or the proposer had to read context for it. */
static void time_answer(struct drafts_book *b, struct known *s,
                        const struct drafts_request *request, const struct draft_answer *a)
{
    if (request->ahead)
        return;
    if (a->draft->n && has_read(s))
        add_rtt(b, request->max_depth, a->rtt_us);
    s->still_reading = a->unread > 0;
    s->read_len = a->unread ? s->read_len : request->base_len;
}

bool drafts_book_request(const struct drafts_book *b, const Tandem__V1__SequenceDraft *answer,
                         struct drafts_request *ret)
{
    const struct sent_round *r = round_owing(b, answer->seq);
    if (!r || answer->need_context)
        return false;
    *ret = owed_by(r, answer->seq)->request;
    return true;
}

bool drafts_book_answer(struct drafts_book *b, const Tandem__V1__SequenceDraft *answer,
                        enum drafts_verdict v, int64_t now_us, struct draft_answer *a)
{
    struct known *s = find_known(b, answer->seq); // NULL: closed since
    struct sent_round *r = round_owing(b, answer->seq);
    struct owed *owed = r ? owed_by(r, answer->seq) : NULL;
    drafts_book_verdict(b, now_us); // marks the Round as missed if it is late
    bool good = false;
    if (answer->need_context && s && s->sent_len) // also for a context that was sent alone
        resend_context(b, s);
    else if (!owed)
        count_unrequested(b);
    else if (!answer->need_context)
        good = count_draft(b, r, v, now_us, a);
    if (good && s) {
        s->sent_again = false;
        time_answer(b, s, &owed->request, a);
    }
    if (owed)
        *owed = r->owed[--r->n_owed];
    return good && s;
}

const struct drafts_counts *drafts_book_counts(const struct drafts_book *b)
{
    return &b->counts;
}

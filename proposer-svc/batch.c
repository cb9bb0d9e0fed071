/* batch.c - a list of Rounds, each with its asks and answers. */
#include <assert.h>
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tandem/v1/proposer.pb-c.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/trace.h"
#include "proposer-svc/batch.h"
#include "proposer-svc/log_lines.h"
#include "rpc/rpc.h"

#define Q_BYTES (128 << 10) // of q in a message; it gets no further draft above this
#define RETURN_FRACTION 8   // 1/8 of a Round's budget is reserved for sending the answer

struct answer {
    const Tandem__V1__RoundSequence *to;
    enum session_answer kind;
    struct session *session; // busy while the answer is open
    struct prop_ask ask;
    struct draft draft;
    enum { OPEN, READY, SENT } state;
};

struct pending_round {
    struct pending_round *next;
    struct batch_origin from;
    Tandem__V1__Round *owned;
    int64_t arrived_us;
    uint32_t n_answers, n_open;
    bool answered; // false: it has no sequences, and its empty answer is not sent yet
    struct answer answers[];
};

struct batch {
    struct batch_config c;
    struct pending_round *first, **last;
    uint32_t n_open, max_open;
    struct prop_ask **asks; // (max_open) scratch for draft()
};

int batch_new(const struct batch_config *c, struct batch **ret)
{
    struct batch *b = calloc(1, sizeof(*b));
    if (!b)
        return fail(-ENOMEM, "batch: no memory");
    b->c = *c;
    b->last = &b->first;
    *ret = b;
    return 0;
}

/* Frees the Round and ends its open asks. */
static void drop_round(struct batch *b, struct pending_round *r)
{
    for (uint32_t i = 0; i < r->n_answers; i++) {
        if (r->answers[i].state == OPEN)
            sessions_end(b->c.sessions, r->answers[i].session);
        free(r->answers[i].draft.q);
    }
    b->n_open -= r->n_open;
    metrics_observe(b->c.seconds, (double)(clock_us() - r->arrived_us) / 1e6);
    if (r->from.call)
        rpc_call_unref(r->from.call);
    if (r->owned)
        tandem__v1__round__free_unpacked(r->owned, NULL);
    free(r);
}

void batch_free(struct batch *b)
{
    if (!b)
        return;
    for (struct pending_round *r = b->first, *next; r; r = next) {
        next = r->next;
        drop_round(b, r);
    }
    free(b->asks);
    free(b);
}

/* ---- asks ---- */

static int reserve_asks(struct batch *b, uint32_t n)
{
    if (b->n_open + n <= b->max_open)
        return 0;
    uint32_t max = b->n_open + n + 16;
    struct prop_ask **asks = realloc(b->asks, max * sizeof(struct prop_ask *));
    if (!asks)
        return fail(-ENOMEM, "no memory for a round of %u sequences", n);
    b->asks = asks;
    b->max_open = max;
    return 0;
}

/* Turns a draft ahead into a draft from the committed context: the tokens that are being verified
 * become its first nodes. */
static void put_verifying_first(const struct answer *a, struct draft *draft)
{
    uint32_t n = a->ask.context.n_verifying;
    for (uint32_t i = draft->n; i-- > 0;) {
        draft->tokens[i + n] = draft->tokens[i];
        draft->survival[i + n] = draft->survival[i];
        if (draft->tree)
            draft->parents[i + n] = draft->parents[i] + (int32_t)n;
    }
    for (uint32_t i = 0; i < n; i++) {
        draft->tokens[i] = a->to->verifying[i];
        draft->survival[i] = 1;
        draft->parents[i] = (int32_t)i - 1;
    }
    draft->n += n;
}

static void close_answer(struct batch *b, struct pending_round *r, struct answer *a)
{
    if (a->draft.n && a->ask.context.n_verifying)
        put_verifying_first(a, &a->draft);
    sessions_end(b->c.sessions, a->session);
    a->state = READY;
    r->n_open--;
    b->n_open--;
    metrics_add(b->c.drafts, a->draft.n > 0);
    metrics_add(b->c.tokens, a->draft.n);
}

static uint32_t list_open_asks(struct batch *b)
{
    uint32_t n = 0;
    for (struct pending_round *r = b->first; r; r = r->next)
        for (uint32_t i = 0; r->n_open && i < r->n_answers; i++)
            if (r->answers[i].state == OPEN)
                b->asks[n++] = &r->answers[i].ask;
    return n;
}

/* Closes the answers that are done, and those whose time is up at now_us. */
static void close_finished(struct batch *b, int64_t now_us)
{
    for (struct pending_round *r = b->first; r; r = r->next) {
        for (uint32_t i = 0; r->n_open && i < r->n_answers; i++) {
            struct answer *a = &r->answers[i];
            if (a->state != OPEN || (!a->ask.done && a->ask.until_us > now_us))
                continue;
            if (!a->ask.done)
                a->draft.n = 0;
            if (!a->ask.done && !a->ask.unread)
                a->ask.unread = 1; // so the verifier sends another request
            close_answer(b, r, a);
        }
    }
}

/* Closes the sequence's open ask without tokens. A sequence has at most one. */
static void close_ask_of(struct batch *b, uint64_t stream, uint64_t seq)
{
    for (struct pending_round *r = b->first; r; r = r->next) {
        for (uint32_t i = 0; r->from.stream == stream && i < r->n_answers; i++) {
            struct answer *a = &r->answers[i];
            if (a->state != OPEN || a->to->seq != seq)
                continue;
            a->draft.n = 0;
            close_answer(b, r, a);
            return;
        }
    }
}

void batch_draft(struct batch *b)
{
    uint32_t n = b->n_open ? list_open_asks(b) : 0;
    if (!n)
        return;
    b->c.ops->draft(b->c.shared, b->asks, n);
    close_finished(b, clock_us());
}

/* ---- from messages ---- */

/* Returns x if it is in low .. high, else `otherwise`, also for NaN. */
static float value_or(float x, float low, float high, float otherwise)
{
    return x >= low && x <= high ? x : otherwise;
}

static uint32_t at_most(size_t n, uint32_t max)
{
    return n < max ? (uint32_t)n : max;
}

/* bias: an array of PROP_BIAS_MAX, which the result points to. */
static struct prop_sampling sampling_of(const Tandem__V1__DraftSampling *from,
                                        struct dist_bias *bias)
{
    uint32_t n_bias = at_most(from->bias.len / sizeof(*bias), PROP_BIAS_MAX);
    if (n_bias)
        memcpy(bias, from->bias.data, n_bias * sizeof(*bias));
    return (struct prop_sampling){
        .params = {.temperature = value_or(from->temperature, 0, INFINITY, 0),
                   .top_k = from->top_k,
                   .top_p = from->top_p > 0 ? value_or(from->top_p, 0, 1, 1) : 1,
                   .min_p = value_or(from->min_p, 0, 1, 0),
                   .repetition =
                       from->repetition > 0 ? value_or(from->repetition, 0, FLT_MAX, 1) : 1,
                   .presence = value_or(from->presence, -FLT_MAX, FLT_MAX, 0),
                   .frequency = value_or(from->frequency, -FLT_MAX, FLT_MAX, 0),
                   .bias = bias,
                   .n_bias = n_bias},
        .ban = {from->banned, at_most(from->n_banned, PROP_BANNED_MAX), from->banned_until},
        .ignore_eos = from->ignore_eos};
}

static_assert((int)DRAFT_POINT == TANDEM__V1__QMODE__Q_MODE_POINT &&
                  (int)DRAFT_COUPLED == TANDEM__V1__QMODE__Q_MODE_COUPLED &&
                  (int)DRAFT_SPARSE == TANDEM__V1__QMODE__Q_MODE_SPARSE &&
                  (int)DRAFT_DENSE == TANDEM__V1__QMODE__Q_MODE_DENSE,
              "the modes have the message's numbers");

/* Point drafts replace a mode that the proposer does not offer. */
static enum draft_q_mode mode_of(const struct batch *b, Tandem__V1__QMode requested)
{
    unsigned mode = (unsigned)requested;
    return mode < DRAFT_N_Q_MODES && b->c.q_modes & 1u << mode ? (enum draft_q_mode)mode
                                                               : DRAFT_POINT;
}

/* The line by which the proposer's log can be searched for a request. */
static void log_sequence(const struct batch_origin *from, const Tandem__V1__RoundSequence *r)
{
    char id[TRACE_REQUEST_MAX + 1], trace[TRACE_ID_LEN + 1];
    trace_request(r->id.data, r->id.len, id);
    bool traced = trace_id_copy(r->trace.data, r->trace.len, trace);
    log_info("sequence id=%s%s%s stream=%llu seq=%llu prompt=%u", id, traced ? " trace=" : "",
             trace, (unsigned long long)from->stream, (unsigned long long)r->seq, r->prompt_len);
}

/* sampling: NULL for none. */
static struct session_update update_of(const struct batch *b, const Tandem__V1__RoundSequence *r,
                                       const struct prop_sampling *sampling)
{
    return (struct session_update){.seq = r->seq,
                                   .base_len = r->base_len,
                                   .keep = r->keep,
                                   .tokens = r->tokens,
                                   .n_tokens = r->n_tokens,
                                   .digest = r->digest,
                                   .k = r->k,
                                   .max_nodes = r->max_nodes,
                                   .verifying = r->verifying,
                                   .n_verifying = r->n_verifying,
                                   .prompt_len = r->prompt_len,
                                   .q_mode = mode_of(b, r->q_mode),
                                   .draw_key = r->draw_key,
                                   .p_min = value_or(r->p_min, 0, 1, 0),
                                   .tenant = r->tenant.data,
                                   .tenant_len = r->tenant.len,
                                   .model = r->model.data,
                                   .model_len = r->model.len,
                                   .hint = r->hint,
                                   .n_hint = r->n_hint,
                                   .close = r->close,
                                   .unfinished = r->unfinished,
                                   .sampling = sampling,
                                   .more = r->more};
}

/* Updates the session. If it still drafts for an earlier Round, that draft is closed first. *ret
 * receives what it answers. */
static int update_session(struct batch *b, const struct batch_origin *from,
                          const Tandem__V1__RoundSequence *r, int64_t arrived_us,
                          struct answer *ret)
{
    struct prop_sampling sampling;
    struct dist_bias bias[PROP_BIAS_MAX];
    if (r->sampling)
        sampling = sampling_of(r->sampling, bias);
    struct session_update u = update_of(b, r, r->sampling ? &sampling : NULL);
    int err = sessions_update(b->c.sessions, from->stream, &u, arrived_us, &ret->kind,
                              &ret->session, &ret->ask);
    if (err == -EBUSY) {
        close_ask_of(b, from->stream, r->seq);
        err = sessions_update(b->c.sessions, from->stream, &u, arrived_us, &ret->kind,
                              &ret->session, &ret->ask);
    }
    return err;
}

/* The answer waits for its draft. */
static void open_answer(struct batch *b, struct pending_round *round, struct answer *a,
                        int64_t until_us)
{
    a->state = OPEN;
    a->ask.until_us = until_us;
    a->ask.to = &a->draft;
    round->n_open++;
    b->n_open++;
    if (sessions_hint(a->session, &a->ask))
        close_answer(b, round, a);
}

static int take_sequence(struct batch *b, struct pending_round *round,
                         const Tandem__V1__RoundSequence *r, int64_t until_us)
{
    struct answer *a = &round->answers[round->n_answers];
    int err = update_session(b, &round->from, r, round->arrived_us, a);
    if (err == 0 && r->id.len && !r->close && log_lines_take(LOG_LINES_SEQUENCES))
        log_sequence(&round->from, r);
    if (err < 0 || a->kind == SESSION_SILENT)
        return err;
    round->n_answers++;
    a->to = r;
    a->draft.n = 0;
    a->draft.q = NULL;
    a->state = READY;
    metrics_add(b->c.needed, a->kind == SESSION_NEED_CONTEXT);
    if (a->kind == SESSION_DRAFT)
        open_answer(b, round, a, until_us);
    return 0;
}

static int new_round(struct batch *b, size_t n_sequences, struct pending_round **ret)
{
    if (n_sequences > BATCH_SEQUENCES_MAX)
        return fail(-EINVAL, "a round of %zu sequences is beyond the limit of %d", n_sequences,
                    BATCH_SEQUENCES_MAX);
    int r = reserve_asks(b, (uint32_t)n_sequences);
    if (r < 0)
        return r;
    *ret = malloc(sizeof(**ret) + n_sequences * sizeof((*ret)->answers[0]));
    return *ret ? 0 : fail(-ENOMEM, "no memory for a round of %zu sequences", n_sequences);
}

int batch_take(struct batch *b, const struct batch_origin *from, const Tandem__V1__Round *round,
               Tandem__V1__Round *owned, int64_t now_us)
{
    struct pending_round *r, **before = b->last;
    int err = new_round(b, round->n_sequences, &r);
    if (err < 0) {
        if (owned)
            tandem__v1__round__free_unpacked(owned, NULL);
        return err;
    }
    *r = (struct pending_round){
        .from = *from, .owned = owned, .arrived_us = now_us, .answered = round->n_sequences};
    if (from->call)
        rpc_call_ref(from->call);
    *b->last = r; // now, so that close_ask_of() finds the asks of this Round too
    b->last = &r->next;
    int64_t until_us = now_us + round->budget_us - round->budget_us / RETURN_FRACTION;
    for (size_t i = 0; i < round->n_sequences && err == 0; i++)
        err = take_sequence(b, r, round->sequences[i], until_us);
    metrics_add(b->c.rounds, 1);
    if (err < 0) {
        b->last = before;
        *before = NULL;
        drop_round(b, r);
    }
    return err;
}

/* ---- answers ---- */

/* A draft as a message, with the messages and arrays that it points to. */
struct packed {
    Tandem__V1__SequenceDraft draft;
    Tandem__V1__Tensor q;
    uint32_t shape[2];
};

/* Returns the size of q in bytes. */
static size_t fill_q(const struct draft *draft, struct packed *to)
{
    const struct draft_q *q = draft->q;
    size_t n = (size_t)draft->n * q->width;
    if (draft->q_mode == DRAFT_SPARSE) {
        to->draft.q_ids = rpc_data(q->ids, n * sizeof(*q->ids));
        to->draft.q_probs = rpc_data(q->probs, n * sizeof(*q->probs));
        return n * (sizeof(*q->ids) + sizeof(*q->probs));
    }
    tandem__v1__tensor__init(&to->q);
    to->shape[0] = draft->n;
    to->shape[1] = q->width;
    to->q.dtype = TANDEM__V1__TENSOR__DTYPE__F32;
    to->q.n_shape = 2;
    to->q.shape = to->shape;
    to->q.data = rpc_data(q->weights, n * sizeof(*q->weights));
    to->draft.q = &to->q;
    return to->q.data.len;
}

/* Returns the size of the draft's q in bytes. */
static size_t fill_draft(struct answer *a, struct packed *packed)
{
    Tandem__V1__SequenceDraft *to = &packed->draft;
    struct draft *draft = &a->draft;
    tandem__v1__sequence_draft__init(to);
    to->seq = a->to->seq;
    to->base_len = a->to->base_len;
    to->digest = a->to->digest;
    to->need_context = a->kind == SESSION_NEED_CONTEXT;
    to->unread = a->kind == SESSION_DRAFT && !draft->n ? a->ask.unread : 0;
    if (!draft->n)
        return 0;
    to->n_tokens = draft->n;
    to->tokens = draft->tokens;
    to->n_survival = draft->n;
    to->survival = draft->survival;
    to->n_parents = draft->tree ? draft->n : 0;
    to->parents = draft->parents;
    to->q_mode = (Tandem__V1__QMode)draft->q_mode;
    return draft->q ? fill_q(draft, packed) : 0;
}

/* Packs the answers that are ready, up to Q_BYTES of q. NULL: none is ready, or no memory. */
static struct rpc_msg *pack_ready(const struct batch *b, struct pending_round *r)
{
    uint32_t n = 0;
    size_t q_bytes = 0;
    bool slow = b->c.is_slow && b->c.is_slow(&r->from);
    Tandem__V1__Drafts msg = TANDEM__V1__DRAFTS__INIT;
    AUTO(mem_free) struct packed *drafts = calloc(r->n_answers + 1, sizeof(*drafts));
    AUTO(mem_free) Tandem__V1__SequenceDraft **to = calloc(r->n_answers + 1, sizeof(msg.drafts[0]));
    for (uint32_t i = 0; drafts && to && i < r->n_answers && q_bytes < Q_BYTES; i++) {
        struct answer *a = &r->answers[i];
        if (a->state != READY)
            continue;
        a->state = SENT;
        a->draft.n = slow && a->draft.q ? 0 : a->draft.n;
        to[n] = &drafts[n].draft;
        q_bytes += fill_draft(a, &drafts[n++]);
    }
    msg.n_drafts = n;
    msg.drafts = to;
    bool empty = !r->answered; // a Round without sequences
    r->answered = true;
    return n || empty ? rpc_pack(&msg.base) : NULL;
}

/* Removes the Round that *at points to from the list, and frees it. */
static void unlink_round(struct batch *b, struct pending_round **at)
{
    struct pending_round *r = *at;
    *at = r->next;
    if (b->last == &r->next)
        b->last = at;
    drop_round(b, r);
}

struct rpc_msg *batch_answer(struct batch *b, struct batch_origin *ret_from)
{
    for (struct pending_round **at = &b->first; *at;) {
        struct rpc_msg *msg = pack_ready(b, *at);
        *ret_from = (*at)->from;
        if (msg)
            return msg; // the Round holds its call until the next call of this
        if ((*at)->n_open)
            at = &(*at)->next;
        else
            unlink_round(b, at);
    }
    return NULL;
}

void batch_end_stream(struct batch *b, uint64_t stream)
{
    for (struct pending_round **at = &b->first; *at;) {
        if ((*at)->from.stream == stream)
            unlink_round(b, at);
        else
            at = &(*at)->next;
    }
}

uint32_t batch_n_open(const struct batch *b)
{
    return b->n_open;
}

int64_t batch_until_us(const struct batch *b)
{
    int64_t until_us = INT64_MAX;
    for (const struct pending_round *r = b->first; r; r = r->next)
        for (uint32_t i = 0; r->n_open && i < r->n_answers; i++)
            if (r->answers[i].state == OPEN && r->answers[i].ask.until_us < until_us)
                until_us = r->answers[i].ask.until_us;
    return until_us;
}

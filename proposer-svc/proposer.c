/* proposer.c - tandem.v1.Proposer over rpc: the only file here that knows its messages. */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tandem/v1/proposer.pb-c.h>
#include <tandem/v1/protocol.pb-c.h>
#include <tandem/v1/stats.pb-c.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/metrics.h"
#include "proposer-svc/proposer.h"
#include "rpc/rpc.h"

#define UNREAD_MAX (1 << 20) // bytes of answers that a verifier may leave unread
#define SEQUENCES_MAX 4096   // in a Round

struct proposer {
    struct proposer_config c;
    atomic_uint_fast64_t n_streams; // ever; names them
    struct metric *rounds, *drafts, *tokens, *needed, *seconds, *streams;
    struct metric *sessions, *context_tokens;
};

struct stream {
    uint64_t id;
};

/* ---- Describe ---- */

static void on_describe(struct rpc_call *call, struct rpc_msg *msg)
{
    const struct proposer *s = rpc_call_service(call);
    Tandem__V1__DescribeRequest *req = (Tandem__V1__DescribeRequest *)rpc_call_unpack(
        call, &tandem__v1__describe_request__descriptor, msg);
    if (!req)
        return;
    tandem__v1__describe_request__free_unpacked(req, NULL);
    Tandem__V1__QMode point = TANDEM__V1__QMODE__Q_MODE_POINT;
    Tandem__V1__DescribeReply reply = TANDEM__V1__DESCRIBE_REPLY__INIT;
    reply.protocol = TANDEM__V1__PROTOCOL__PROTOCOL_VERSION;
    reply.kind = rpc_text(s->c.name);
    reply.k_max = s->c.k_max;
    reply.max_context = s->c.max_context;
    reply.q_modes = &point;
    reply.n_q_modes = 1;
    reply.version = rpc_text(TANDEM_VERSION);
    rpc_call_reply(call, &reply.base);
}

/* ---- Draft ---- */

/* The answers to one Round, in its order. */
struct answers {
    Tandem__V1__Drafts msg;
    Tandem__V1__SequenceDraft *drafts;    // (n_sequences)
    Tandem__V1__SequenceDraft **pointers; // (n_sequences): into it
    struct prop_draft *props;             // (n_sequences): what they point to
};

static void answers_done(struct answers *a)
{
    free(a->drafts);
    free(a->pointers);
    free(a->props);
}

static int answers_init(struct answers *a, size_t n_sequences)
{
    *a = (struct answers){0};
    if (n_sequences > SEQUENCES_MAX)
        return fail(-EINVAL, "a round of %zu sequences is beyond the limit of %d", n_sequences,
                    SEQUENCES_MAX);
    tandem__v1__drafts__init(&a->msg);
    a->drafts = calloc(n_sequences + 1, sizeof(*a->drafts));
    a->pointers = calloc(n_sequences + 1, sizeof(*a->pointers));
    a->props = malloc((n_sequences + 1) * sizeof(*a->props));
    a->msg.drafts = a->pointers;
    if (!a->drafts || !a->pointers || !a->props)
        return fail(-ENOMEM, "no memory for a round of %zu sequences", n_sequences);
    return 0;
}

static void add_answer(struct answers *a, const Tandem__V1__RoundSequence *r,
                       enum session_answer kind, struct prop_draft *draft)
{
    Tandem__V1__SequenceDraft *to = &a->drafts[a->msg.n_drafts];
    a->pointers[a->msg.n_drafts++] = to;
    tandem__v1__sequence_draft__init(to);
    to->seq = r->seq;
    to->base_len = r->base_len;
    to->digest = r->digest;
    if (kind == SESSION_NEED_CONTEXT) {
        to->need_context = true;
        return;
    }
    to->n_tokens = draft->n;
    to->tokens = draft->tokens;
    to->n_survival = draft->n;
    to->survival = draft->survival;
    to->n_parents = draft->tree ? draft->n : 0;
    to->parents = draft->parents;
}

static int take_sequence(struct proposer *s, uint64_t stream, const Tandem__V1__RoundSequence *r,
                         int64_t now_us, struct answers *a)
{
    struct session_update u = {.seq = r->seq,
                               .base_len = r->base_len,
                               .keep = r->keep,
                               .tokens = r->tokens,
                               .n_tokens = r->n_tokens,
                               .digest = r->digest,
                               .k = r->k,
                               .prompt_len = r->prompt_len,
                               .close = r->close,
                               .more = r->more};
    struct prop_draft *draft = &a->props[a->msg.n_drafts];
    enum session_answer kind;
    int err = sessions_update(s->c.sessions, stream, &u, now_us, &kind, draft);
    if (err < 0 || kind == SESSION_SILENT)
        return err;
    metrics_add(s->needed, kind == SESSION_NEED_CONTEXT);
    metrics_add(s->drafts, kind == SESSION_DRAFT && draft->n);
    metrics_add(s->tokens, kind == SESSION_DRAFT ? draft->n : 0);
    add_answer(a, r, kind, draft);
    return 0;
}

int proposer_round(struct proposer *s, uint64_t stream, const Tandem__V1__Round *round,
                   struct rpc_msg **ret_answer)
{
    struct answers a;
    int64_t now_us = clock_us();
    int err = answers_init(&a, round->n_sequences);
    for (size_t i = 0; i < round->n_sequences && err == 0; i++)
        err = take_sequence(s, stream, round->sequences[i], now_us, &a);
    bool answered = err == 0 && (a.msg.n_drafts || !round->n_sequences);
    *ret_answer = answered ? rpc_pack(&a.msg.base) : NULL;
    answers_done(&a);
    metrics_add(s->rounds, 1);
    metrics_observe(s->seconds, (double)(clock_us() - now_us) / 1e6);
    return err;
}

static void on_draft_start(struct rpc_call *call, struct rpc_msg *msg)
{
    (void)msg; // a stream starts without one
    struct proposer *s = rpc_call_service(call);
    struct stream *st = calloc(1, sizeof(*st));
    if (!st) {
        rpc_call_fail(call, fail(-ENOMEM, "no memory for a stream"));
        return;
    }
    st->id = atomic_fetch_add(&s->n_streams, 1);
    rpc_call_set_user(call, st);
    metrics_add(s->streams, 1);
    log_info("verifier connected stream=%llu", (unsigned long long)st->id);
}

static void on_draft_message(struct rpc_call *call, struct rpc_msg *msg)
{
    struct proposer *s = rpc_call_service(call);
    const struct stream *st = rpc_call_user(call);
    if (!msg)
        rpc_call_finish(call, RPC_OK, NULL);
    if (!msg || !st)
        return;
    Tandem__V1__Round *round =
        (Tandem__V1__Round *)rpc_call_unpack(call, &tandem__v1__round__descriptor, msg);
    if (!round)
        return;
    struct rpc_msg *answer;
    int err = proposer_round(s, st->id, round, &answer);
    bool unread = answer && rpc_call_send(call, answer) > UNREAD_MAX;
    if (unread)
        err = fail(-ENOSPC, "more than %d bytes of drafts are left unread", UNREAD_MAX);
    if (err < 0)
        log_warn("stream ended stream=%llu: %s", (unsigned long long)st->id, fail_text());
    if (unread)
        rpc_call_abort(call, rpc_code_of(err), fail_text()); // nothing follows what nobody reads
    else if (err < 0)
        rpc_call_fail(call, err);
    tandem__v1__round__free_unpacked(round, NULL);
}

static void on_draft_end(struct rpc_call *call)
{
    struct proposer *s = rpc_call_service(call);
    struct stream *st = rpc_call_user(call);
    if (!st)
        return;
    sessions_end_stream(s->c.sessions, st->id);
    metrics_add(s->streams, -1);
    log_info("verifier gone stream=%llu", (unsigned long long)st->id);
    free(st);
}

/* ---- the service ---- */

static const struct rpc_method methods[] = {
    {.path = "/tandem.v1.Proposer/Describe", .on_start = on_describe},
    {.path = "/tandem.v1.Proposer/Draft",
     .reads_stream = true,
     .on_start = on_draft_start,
     .on_message = on_draft_message,
     .on_end = on_draft_end},
};

int proposer_new(const struct proposer_config *c, struct proposer **ret)
{
    static const double bounds[] = {.00001, .00002, .00005, .0001, .0002, .0005, .001, .01, .1, 1};
    struct proposer *s = calloc(1, sizeof(*s));
    if (!s)
        return fail(-ENOMEM, "proposer: no memory");
    s->c = *c;
    atomic_init(&s->n_streams, 1);
    s->rounds = metrics_counter("tandem_drafter_rounds_total", "Rounds taken", NULL);
    s->drafts = metrics_counter("tandem_drafter_drafts_total", "Drafts with tokens", NULL);
    s->tokens = metrics_counter("tandem_drafter_draft_tokens_total", "Tokens in them", NULL);
    s->needed = metrics_counter("tandem_drafter_contexts_needed_total",
                                "Sequences whose context was asked for again", NULL);
    s->streams = metrics_gauge("tandem_drafter_streams", "Verifiers connected", NULL);
    s->seconds = metrics_histogram("tandem_drafter_round_seconds", "Time taken by a Round", NULL,
                                   bounds, ARRAY_LEN(bounds));
    s->sessions = metrics_gauge("tandem_drafter_sessions", "Sequences known", NULL);
    s->context_tokens =
        metrics_gauge("tandem_drafter_context_tokens", "Room taken by their contexts", NULL);
    *ret = s;
    return 0;
}

void proposer_free(struct proposer *s)
{
    free(s);
}

void proposer_add(struct proposer *s, struct rpc_server *server)
{
    for (size_t i = 0; i < ARRAY_LEN(methods); i++)
        rpc_server_add(server, &methods[i], s);
}

void proposer_fill_stats(void *user, Tandem__V1__StatsReply *reply)
{
    const struct proposer *s = user;
    struct sessions_stats stats;
    sessions_stats(s->c.sessions, &stats);
    metrics_set(s->sessions, stats.n_sessions);
    metrics_set(s->context_tokens, (double)stats.n_tokens);
    reply->service = rpc_text("proposer");
    reply->instance = rpc_text(s->c.instance);
    reply->sessions = stats.n_sessions;
    reply->requests = (uint64_t)metrics_value(s->rounds);
    reply->generated_tokens = (uint64_t)metrics_value(s->tokens);
}

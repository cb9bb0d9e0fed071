/* proposer.c - the methods of tandem.v1.Proposer. */
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
#include "proposer-svc/draft_thread.h"
#include "proposer-svc/log_lines.h"
#include "proposer-svc/proposer.h"
#include "rpc/rpc.h"

/* Bytes of answers that a verifier has not read. Above the first number it gets no drafts with q,
 * which are large. Above the second one its stream ends. */
#define SLOW_BYTES (2 << 20)
#define UNREAD_MAX (3 << 20)

struct proposer {
    struct proposer_config c;
    struct prop_about about;
    struct draft_thread *draft_thread; // NULL: rpc threads process the Rounds
    atomic_uint_fast64_t n_streams;    // opened since the start; the number is the stream's id
    struct metric *rounds, *drafts, *tokens, *needed, *seconds, *streams;
    struct metric *sessions, *context_tokens;
};

struct stream {
    uint64_t id;
    struct draft_job *end; // for the draft thread; NULL without one
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
    Tandem__V1__QMode offered[DRAFT_N_Q_MODES];
    Tandem__V1__DescribeReply reply = TANDEM__V1__DESCRIBE_REPLY__INIT;
    reply.protocol = TANDEM__V1__PROTOCOL__PROTOCOL_VERSION;
    reply.kind = rpc_text(s->c.name);
    reply.k_max = s->c.k_max;
    reply.max_context = s->c.max_context;
    reply.model = rpc_text(s->about.model);
    reply.vocab_digest = s->about.vocab_digest;
    reply.q_modes = offered;
    for (unsigned i = 0; i < DRAFT_N_Q_MODES; i++)
        if (s->about.q_modes & 1u << i)
            offered[reply.n_q_modes++] = (Tandem__V1__QMode)i;
    reply.version = rpc_text(TANDEM_VERSION);
    rpc_call_reply(call, &reply.base);
}

/* ---- Draft ---- */

static void log_end(uint64_t stream)
{
    if (log_lines_take(LOG_LINES_STREAMS))
        log_warn("stream ended stream=%llu: %s", (unsigned long long)stream, fail_text());
}

static bool is_slow(const struct batch_origin *to)
{
    return rpc_call_unread(to->call) > SLOW_BYTES;
}

static void send_answer(const struct batch_origin *to, struct rpc_msg *answer)
{
    if (rpc_call_send(to->call, answer) <= UNREAD_MAX)
        return;
    int err = fail(-ENOSPC, "the verifier has not read %d bytes of drafts", UNREAD_MAX);
    log_end(to->stream);
    rpc_call_abort(to->call, rpc_code_of(err), fail_text()); // the unsent drafts are dropped
}

/* The reason is in fail_text(). */
static void round_failed(const struct batch_origin *to, int err)
{
    log_end(to->stream);
    rpc_call_fail(to->call, err);
}

static struct batch_config batch_config(const struct proposer *s)
{
    return (struct batch_config){.sessions = s->c.sessions,
                                 .ops = s->c.ops,
                                 .shared = s->c.shared,
                                 .q_modes = s->about.q_modes,
                                 .rounds = s->rounds,
                                 .drafts = s->drafts,
                                 .tokens = s->tokens,
                                 .needed = s->needed,
                                 .seconds = s->seconds,
                                 .is_slow = is_slow};
}

/* Drafts for a Round on the calling thread and answers it. */
static void answer_round(struct proposer *s, const struct batch_origin *from,
                         const Tandem__V1__Round *round)
{
    AUTO(batch_free) struct batch *b = NULL;
    const struct batch_config c = batch_config(s);
    int err = batch_new(&c, &b);
    if (!err)
        err = batch_take(b, from, round, NULL, clock_us());
    if (err < 0) {
        round_failed(from, err);
        return;
    }
    batch_draft(b);
    struct batch_origin to;
    struct rpc_msg *answer = batch_answer(b, &to);
    if (answer)
        send_answer(&to, answer);
}

static void on_draft_start(struct rpc_call *call, struct rpc_msg *msg)
{
    (void)msg; // NULL: a stream starts without a message
    struct proposer *s = rpc_call_service(call);
    struct stream *st = calloc(1, sizeof(*st));
    int err = st ? 0 : fail(-ENOMEM, "no memory for a stream");
    if (!err)
        st->id = atomic_fetch_add(&s->n_streams, 1);
    if (!err && s->draft_thread)
        err = draft_thread_begin_stream(s->draft_thread, st->id, &st->end);
    if (err < 0) {
        free(st);
        rpc_call_fail(call, err);
        return;
    }
    rpc_call_set_user(call, st);
    metrics_add(s->streams, 1);
    if (log_lines_take(LOG_LINES_STREAMS))
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
    size_t bytes;
    Tandem__V1__Round *round = (Tandem__V1__Round *)rpc_call_unpack_counted(
        call, &tandem__v1__round__descriptor, msg, &bytes);
    if (!round)
        return;
    struct batch_origin from = {st->id, call};
    if (s->draft_thread) {
        int err = draft_thread_round(s->draft_thread, &from, round, bytes);
        if (err < 0)
            round_failed(&from, err);
        return;
    }
    answer_round(s, &from, round);
    tandem__v1__round__free_unpacked(round, NULL);
}

static void on_draft_end(struct rpc_call *call)
{
    struct proposer *s = rpc_call_service(call);
    struct stream *st = rpc_call_user(call);
    if (!st)
        return;
    if (s->draft_thread)
        draft_thread_end_stream(s->draft_thread, st->end);
    else
        sessions_end_stream(s->c.sessions, st->id);
    metrics_add(s->streams, -1);
    if (log_lines_take(LOG_LINES_STREAMS))
        log_info("verifier disconnected stream=%llu", (unsigned long long)st->id);
    free(st);
}

/* ---- the service ---- */

static const struct rpc_method methods[] = {
    {.path = "/tandem.v1.Proposer/Describe", .roles = RPC_ROLE_VERIFIER, .on_start = on_describe},
    {.path = "/tandem.v1.Proposer/Draft",
     .roles = RPC_ROLE_VERIFIER,
     .reads_stream = true,
     .on_start = on_draft_start,
     .on_message = on_draft_message,
     .on_end = on_draft_end},
};

int proposer_new(const struct proposer_config *c, struct proposer **ret)
{
    AUTO(proposer_free) struct proposer *s = NULL;
    static const double bounds[] = {.00001, .00002, .00005, .0001, .0002, .0005, .001, .01, .1, 1};
    s = calloc(1, sizeof(*s));
    if (!s)
        return fail(-ENOMEM, "proposer: no memory");
    s->c = *c;
    s->about.q_modes = 1u << DRAFT_POINT;
    if (c->ops->about)
        c->ops->about(c->shared, &s->about);
    atomic_init(&s->n_streams, 1);
    s->rounds = metrics_counter("tandem_drafter_rounds_total", "Rounds received.", NULL);
    s->drafts = metrics_counter("tandem_drafter_drafts_total", "Drafts with tokens.", NULL);
    s->tokens = metrics_counter("tandem_drafter_draft_tokens_total", "Draft tokens.", NULL);
    s->needed = metrics_counter("tandem_drafter_contexts_needed_total",
                                "Requests to send a sequence's context again.", NULL);
    s->streams = metrics_gauge("tandem_drafter_streams", "Verifier streams connected.", NULL);
    s->seconds = metrics_histogram("tandem_drafter_round_seconds",
                                   "From the arrival of a Round to its last answer.", NULL, bounds,
                                   ARRAY_LEN(bounds));
    s->sessions =
        metrics_gauge("tandem_drafter_sessions", "Sequences with a stored context.", NULL);
    s->context_tokens =
        metrics_gauge("tandem_drafter_context_tokens",
                      "Tokens reserved for the contexts and predictions of all sequences.", NULL);
    const struct draft_thread_config dc = {
        .batch = batch_config(s), .send = send_answer, .failed = round_failed};
    int r = c->ops->flags & PROP_OWN_THREAD ? draft_thread_new(&dc, &s->draft_thread) : 0;
    if (r < 0)
        return r;
    *ret = TAKE(s);
    return 0;
}

void proposer_free(struct proposer *s)
{
    if (!s)
        return;
    draft_thread_free(s->draft_thread);
    free(s);
}

void proposer_expire(struct proposer *s)
{
    if (s->draft_thread)
        draft_thread_expire(s->draft_thread);
    else
        sessions_expire(s->c.sessions, clock_us());
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
    reply->sessions = stats.n_sessions;
    reply->requests = (uint64_t)metrics_value(s->rounds);
    reply->generated_tokens = (uint64_t)metrics_value(s->tokens);
}

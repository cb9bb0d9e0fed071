/* drafts.c - one thread per proposer that connects, sends and reconnects.
 *
 * The keeper thread calls Describe, opens the stream, and sends the outbox that the engine thread
 * has filled. It starts again when the stream ends or the proposer is given up. Only the keeper
 * calls rpc: other threads set a flag to give a proposer up, and wake the keeper. A lock per
 * proposer guards the book. A thread holds the lock to copy and to look up, never to pack, send,
 * check, cancel or wait. (The book is not a queue.h, because newer wishes replace older ones.)
 *
 *     free ──drafts_set()──▶ in use ──drafts_set(), drafts_free()──▶ leaving ──keeper ends──▶ free
 *
 * A leaving place still has its keeper and its memory, but gets no requests and is not shown. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/rng.h"
#include "base/thread.h"
#include "rpc/rpc.h"
#include "tandem/v1/protocol.pb-c.h"
#include "verifier-svc/drafts/drafts_book.h"
#include "verifier-svc/drafts/proposer_series.h"

#define QUEUED_MAX (1 << 20)    // bytes that may wait for a proposer to read them
#define ANSWER_MAX (1 << 20)    // bytes of one message from a proposer
#define UNREAD_LIMIT_US 1000000 // time in which the proposer must read half of them
#define DESCRIBE_TIMEOUT_US 1000000
#define BACK_OFF_MIN_US 250000
#define BACK_OFF_MAX_US 30000000
#define WHY_MAX FAIL_TEXT_MAX

enum {
    M_ROUNDS,
    M_DRAFTS,
    M_TOKENS,
    M_LATE,
    M_STALE,
    M_MALFORMED,
    M_BENCHED,
    M_UP,
    M_RTT,
    N_METRICS
};

struct peer {
    struct drafts *d;
    unsigned index;
    struct drafts_target as; // as configured
    pthread_t keeper;
    bool has_keeper;     // to be joined
    atomic_bool is_free; // no keeper, or one that ends without touching anything here
    struct metric *metrics[N_METRICS];

    struct rpc_client *client; // the keeper's
    struct drafts_packer *packer;
    struct proposer_series *series; // as long as `drafts`
    int64_t back_off_us;
    char logged[WHY_MAX]; // the reason that was logged last

    pthread_mutex_t mu; // for what follows
    pthread_cond_t changed;
    atomic_bool in_use; // changes with the lock
    struct drafts_book *book;
    struct drafts_described about;
    struct rpc_stream *stream; // NULL: not connected
    bool full;                 // no on_drain() since the last send
    bool ended;                // the stream is over
    bool benched;              // given up, until it is connected again
    char why[WHY_MAX];         // the stream ended or was given up
    uint64_t n_restarts, n_accepted;
};

struct drafts {
    struct drafts_config c;
    char *model;
    struct peer peers[DRAFT_MAX_PROPOSERS];
};

/* ---- the stream's events, on its rpc thread ---- */

/* With the lock. The keeper cancels the stream. */
static void give_up(struct peer *p, const char *why)
{
    if (p->ended || p->benched)
        return;
    p->benched = true;
    snprintf(p->why, sizeof(p->why), "%s", why);
    pthread_cond_signal(&p->changed);
}

/* With the lock: the keeper has something to send. */
static void wake(struct peer *p)
{
    if (drafts_book_ready(p->book))
        pthread_cond_signal(&p->changed);
}

/* With the lock: gives the proposer up if it has too many faults. */
static void check_faults(struct peer *p, int64_t now_us)
{
    const char *why = drafts_book_verdict(p->book, now_us);
    if (why)
        give_up(p, why);
}

static void count_answer(struct peer *p, const struct drafts_counts *before)
{
    const struct drafts_counts *now = drafts_book_counts(p->book);
    metrics_add(p->metrics[M_DRAFTS], (double)(now->drafts - before->drafts));
    metrics_add(p->metrics[M_TOKENS], (double)(now->draft_tokens - before->draft_tokens));
    metrics_add(p->metrics[M_LATE], (double)(now->late - before->late));
    metrics_add(p->metrics[M_STALE], (double)(now->stale - before->stale));
    metrics_add(p->metrics[M_MALFORMED], (double)(now->malformed - before->malformed));
}

/* The request that the answer belongs to. False: there is none. */
static bool find_request(struct peer *p, const Tandem__V1__SequenceDraft *answer,
                         struct drafts_request *ret)
{
    pthread_mutex_lock(&p->mu);
    bool r = !p->benched && drafts_book_request(p->book, answer, ret);
    pthread_mutex_unlock(&p->mu);
    return r;
}

static bool record_answer(struct peer *p, const Tandem__V1__SequenceDraft *answer,
                          enum drafts_verdict v, int64_t now_us, struct draft_answer *a)
{
    pthread_mutex_lock(&p->mu);
    struct drafts_counts before = *drafts_book_counts(p->book);
    bool good = !p->benched && drafts_book_answer(p->book, answer, v, now_us, a);
    count_answer(p, &before);
    check_faults(p, now_us);
    wake(p); // a Round may be complete
    pthread_mutex_unlock(&p->mu);
    return good;
}

static void take_answer(struct peer *p, const Tandem__V1__SequenceDraft *answer, int64_t now_us)
{
    struct draft_answer a = {0};
    struct drafts_request request;
    bool was_requested = find_request(p, answer, &request);
    enum drafts_verdict v = was_requested ? drafts_check(answer, &request, &a) : DRAFTS_STALE;
    if (record_answer(p, answer, v, now_us, &a)) {
        metrics_observe(p->metrics[M_RTT], a.rtt_us / 1e6);
        a.proposer = p->index;
        p->d->c.arrived(p->d->c.user, &a);
    }
    draft_free(a.draft);
}

static void on_message(void *user, struct rpc_msg *msg)
{
    struct peer *p = user;
    int64_t now_us = clock_us();
    Tandem__V1__Drafts *drafts =
        (Tandem__V1__Drafts *)rpc_unpack(&tandem__v1__drafts__descriptor, msg);
    if (!drafts) {
        metrics_add(p->metrics[M_MALFORMED], 1);
        pthread_mutex_lock(&p->mu);
        give_up(p, "it sent bytes that are no valid message");
        pthread_mutex_unlock(&p->mu);
        return;
    }
    for (size_t i = 0; i < drafts->n_drafts; i++)
        take_answer(p, drafts->drafts[i], now_us);
    tandem__v1__drafts__free_unpacked(drafts, NULL);
}

static void on_drain(void *user)
{
    struct peer *p = user;
    pthread_mutex_lock(&p->mu);
    p->full = false;
    pthread_cond_signal(&p->changed);
    pthread_mutex_unlock(&p->mu);
}

static void on_end(void *user, const struct rpc_status *status)
{
    struct peer *p = user;
    pthread_mutex_lock(&p->mu);
    p->ended = true;
    if (!p->benched)
        snprintf(p->why, sizeof(p->why), "%s",
                 status->text[0] ? status->text : "it ended the stream");
    pthread_cond_signal(&p->changed);
    pthread_mutex_unlock(&p->mu);
}

/* ---- the keeper ---- */

static struct rpc_status describe(struct peer *p, Tandem__V1__DescribeReply **ret)
{
    const struct drafts_config *c = &p->d->c;
    Tandem__V1__DescribeRequest req = TANDEM__V1__DESCRIBE_REQUEST__INIT;
    req.protocol = TANDEM__V1__PROTOCOL__PROTOCOL_VERSION;
    req.model.data = (uint8_t *)p->d->model;
    req.model.len = strlen(p->d->model);
    req.vocab_digest = c->vocab_digest;
    req.n_vocab = c->n_vocab;
    struct rpc_options opt = {.timeout_us = DESCRIBE_TIMEOUT_US};
    return rpc_unary(p->client, "/tandem.v1.Proposer/Describe", &opt, &req.base,
                     &tandem__v1__describe_reply__descriptor, (ProtobufCMessage **)ret);
}

/* Opens the stream if the description is acceptable; else `why` has the reason. */
static bool connect_peer(struct peer *p, char why[WHY_MAX])
{
    static const struct rpc_events events = {
        .drain_mark = QUEUED_MAX, .on_message = on_message, .on_drain = on_drain, .on_end = on_end};
    Tandem__V1__DescribeReply *reply = NULL;
    struct rpc_status st = describe(p, &reply);
    struct drafts_described about;
    if (!reply) {
        snprintf(why, WHY_MAX, "%s", st.text);
        return false;
    }
    int r = drafts_check_described(reply, p->d->c.vocab_digest, &about);
    tandem__v1__describe_reply__free_unpacked(reply, NULL);
    if (r < 0) {
        snprintf(why, WHY_MAX, "%s", fail_text());
        return false;
    }
    if (*p->as.name)
        memcpy(about.name, p->as.name, sizeof(about.name));
    if (!p->n_restarts && p->d->c.named && p->d->c.named(p->d->c.user, p->index, about.name) < 0) {
        snprintf(why, WHY_MAX, "%s", fail_text());
        return false;
    }
    pthread_mutex_lock(&p->mu);
    p->about = about;
    drafts_book_reset(p->book, &about);
    p->ended = p->benched = p->full = false;
    p->n_restarts++;
    pthread_mutex_unlock(&p->mu);
    struct rpc_stream *stream =
        rpc_stream_new(p->client, "/tandem.v1.Proposer/Draft", NULL, &events, p);
    pthread_mutex_lock(&p->mu);
    p->stream = stream; // from here on the engine thread sends wishes
    pthread_mutex_unlock(&p->mu);
    return true;
}

/* With the lock. */
static bool is_alive(const struct peer *p)
{
    return !p->ended && !p->benched && p->in_use;
}

/* Waits until the proposer has read enough. False: the stream is to end. */
static bool wait_drained(struct peer *p)
{
    struct timespec until = clock_at(clock_us() + UNREAD_LIMIT_US);
    pthread_mutex_lock(&p->mu);
    while (p->full && is_alive(p))
        if (pthread_cond_timedwait(&p->changed, &p->mu, &until) == ETIMEDOUT && p->full)
            give_up(p, "it does not read its messages");
    bool r = is_alive(p);
    pthread_mutex_unlock(&p->mu);
    return r;
}

static bool send_round(struct peer *p, const Tandem__V1__Round *round)
{
    pthread_mutex_lock(&p->mu);
    p->full = true; // before on_drain() may clear it
    pthread_mutex_unlock(&p->mu);
    return rpc_stream_send(p->stream, rpc_pack(&round->base)) <= QUEUED_MAX || wait_drained(p);
}

static void send_outbox(struct peer *p, const struct drafts_outbox *o)
{
    bool on = true;
    if (o->n_urgent) {
        metrics_add(p->metrics[M_ROUNDS], 1);
        on = send_round(p, drafts_pack(p->packer, o->urgent, o->n_urgent, o->tokens, o->budget_us));
    }
    if (on && o->n_closes)
        on = send_round(p, drafts_pack_closes(p->packer, o->closes, o->n_closes));
    for (uint32_t i = 0; on && i < o->n_pieces; i++)
        on = send_round(p, drafts_pack(p->packer, &o->pieces[i], 1, o->tokens, o->budget_us));
}

/* Sends until the stream has ended or is to end. Requests the proposer's metrics meanwhile. */
static void send_until_end(struct peer *p)
{
    int64_t poll_us = 0;
    pthread_mutex_lock(&p->mu);
    while (is_alive(p)) {
        const struct drafts_outbox *o = drafts_book_take(p->book);
        bool due = clock_us() >= poll_us;
        if (!o && !due) {
            struct timespec until = clock_at(poll_us);
            pthread_cond_timedwait(&p->changed, &p->mu, &until);
            continue;
        }
        pthread_mutex_unlock(&p->mu);
        if (o)
            send_outbox(p, o);
        if (due)
            poll_us = proposer_series_poll(p->series, p->client, clock_us());
        pthread_mutex_lock(&p->mu);
    }
    struct rpc_stream *stream = TAKE(p->stream); // the engine thread sends no more wishes
    pthread_mutex_unlock(&p->mu);
    rpc_stream_cancel(stream);
    pthread_mutex_lock(&p->mu);
    while (!p->ended)
        pthread_cond_wait(&p->changed, &p->mu);
    pthread_mutex_unlock(&p->mu);
    rpc_stream_free(stream);
    proposer_series_stop(p->series);
}

/* Waits before the next try; logs a reason once. */
static void back_off(struct peer *p, const char *why)
{
    if (strcmp(why, p->logged) != 0)
        log_warn("proposer not used target=%s: %s; continuing without it, trying again",
                 p->as.target, why);
    snprintf(p->logged, sizeof(p->logged), "%s", why);
    struct timespec until = clock_at(clock_us() + p->back_off_us);
    pthread_mutex_lock(&p->mu);
    while (p->in_use && pthread_cond_timedwait(&p->changed, &p->mu, &until) != ETIMEDOUT)
        ;
    pthread_mutex_unlock(&p->mu);
    p->back_off_us *= 2;
    if (p->back_off_us > BACK_OFF_MAX_US)
        p->back_off_us = BACK_OFF_MAX_US;
}

/* True: the stream had a good answer, or lasted longer than the last wait. */
static bool run_stream(struct peer *p, char why[WHY_MAX])
{
    int64_t since_us = clock_us();
    log_info("proposer connected target=%s name=%s k_max=%u", p->as.target, p->about.name,
             p->about.k_max);
    p->logged[0] = 0;
    metrics_add(p->metrics[M_UP], 1); // a leaving place may have the same target
    send_until_end(p);
    metrics_add(p->metrics[M_UP], -1);
    pthread_mutex_lock(&p->mu);
    metrics_add(p->metrics[M_BENCHED], p->benched);
    snprintf(why, WHY_MAX, "%s", p->why);
    bool good = drafts_book_counts(p->book)->good;
    pthread_mutex_unlock(&p->mu);
    return good || clock_us() - since_us > p->back_off_us;
}

/* Frees the keeper's objects; then the place is free. */
static void peer_close(struct peer *p)
{
    rpc_client_free(TAKE(p->client));
    drafts_packer_free(TAKE(p->packer));
    pthread_mutex_lock(&p->mu);
    struct drafts_book *book = TAKE(p->book);
    pthread_mutex_unlock(&p->mu);
    drafts_book_free(book);
    atomic_store(&p->is_free, true);
}

static void *keeper_main(void *arg)
{
    struct peer *p = arg;
    char why[WHY_MAX];
    while (p->in_use) {
        if (connect_peer(p, why) && run_stream(p, why))
            p->back_off_us = BACK_OFF_MIN_US;
        if (p->in_use)
            back_off(p, why);
    }
    peer_close(p);
    return NULL;
}

/* ---- the proposer table ---- */

static void add_metrics(struct peer *p)
{
    static const double bounds[] = {.0001, .00025, .0005, .001, .0025, .005,
                                    .01,   .025,   .05,   .1,   .25,   1};
    static const struct {
        const char *name, *help, *reason;
    } counters[] = {
        [M_ROUNDS] = {"tandem_proposer_rounds_total",
                      "Rounds with draft requests that were sent to a proposer.", NULL},
        [M_DRAFTS] = {"tandem_proposer_drafts_total",
                      "Valid drafts with tokens that were received.", NULL},
        [M_TOKENS] = {"tandem_proposer_draft_tokens_total", "Tokens in these drafts.", NULL},
        [M_LATE] = {"tandem_proposer_late_total",
                    "Valid answers that arrived after their time budget.", NULL},
        [M_STALE] = {"tandem_proposer_dropped_total", "Invalid answers, which are dropped.",
                     "stale"},
        [M_MALFORMED] = {"tandem_proposer_dropped_total", "Invalid answers, which are dropped.",
                         "malformed"},
        [M_BENCHED] = {"tandem_proposer_benched_total",
                       "Times that a proposer was benched: its stream cancelled for faults or "
                       "missed budgets.",
                       NULL},
    };
    char target[256], labels[320];
    metrics_label(target, sizeof(target), "target", p->as.target, strlen(p->as.target));
    for (int i = 0; i <= M_BENCHED; i++) {
        snprintf(labels, sizeof(labels), counters[i].reason ? "%s,reason=\"%s\"" : "%s", target,
                 counters[i].reason);
        p->metrics[i] = metrics_counter(counters[i].name, counters[i].help, labels);
    }
    p->metrics[M_UP] =
        metrics_gauge("tandem_proposer_up", "Streams in use to this target.", target);
    p->metrics[M_RTT] =
        metrics_histogram("tandem_proposer_round_trip_seconds",
                          "From requesting a draft until it is received and checked.", target,
                          bounds, ARRAY_LEN(bounds));
}

/* A new proposer's objects, made before anything is changed, because that may fail. */
struct newcomer {
    const struct drafts_target *as;
    struct drafts_book *book;
    struct drafts_packer *packer;
    struct rpc_client *client;
};

static int newcomer_init(struct newcomer *n, const struct drafts_config *c,
                         const struct drafts_target *as)
{
    struct rpc_client_options opt = {.max_message = ANSWER_MAX, .server_role = RPC_ROLE_PROPOSER};
    *n = (struct newcomer){.as = as};
    int r = drafts_book_new(c->max_sequences, c->n_vocab, &n->book);
    if (r == 0)
        r = drafts_packer_new(c->max_sequences, c->fingerprint ? c->fingerprint : "", &n->packer);
    if (r == 0)
        r = rpc_client_new(as->target, &opt, &n->client);
    return r;
}

/* Frees the objects that no place has taken. */
static void newcomer_done(struct newcomer *n)
{
    drafts_book_free(n->book);
    drafts_packer_free(n->packer);
    rpc_client_free(n->client);
}

/* Starts a newcomer at a place that is free or leaving; takes its objects. */
static void peer_start(struct peer *p, struct newcomer *n)
{
    if (p->has_keeper)
        pthread_join(p->keeper, NULL);
    p->has_keeper = false;
    p->packer = TAKE(n->packer);
    p->client = TAKE(n->client);
    p->back_off_us = BACK_OFF_MIN_US;
    p->logged[0] = 0;
    pthread_mutex_lock(&p->mu);
    p->as = *n->as;
    p->about = (struct drafts_described){0};
    memcpy(p->about.name, n->as->name, sizeof(p->about.name));
    p->book = TAKE(n->book);
    p->full = p->ended = p->benched = false;
    p->is_free = false;
    p->n_restarts = p->n_accepted = 0;
    p->in_use = true;
    pthread_mutex_unlock(&p->mu);
    add_metrics(p);
    p->has_keeper = thread_start(keeper_main, p, 0, &p->keeper) == 0;
    if (p->has_keeper)
        return;
    log_warn("proposer not used target=%s: %s; continuing without it", p->as.target, fail_text());
    p->in_use = false;
    peer_close(p);
}

static void peer_stop(struct peer *p)
{
    pthread_mutex_lock(&p->mu);
    p->in_use = false;
    pthread_cond_signal(&p->changed);
    pthread_mutex_unlock(&p->mu);
}

static bool same_target(const struct drafts_target *a, const struct drafts_target *b)
{
    return strcmp(a->name, b->name) == 0 && strcmp(a->target, b->target) == 0;
}

/* The place of this target, among the places that are not taken yet; DRAFT_MAX_PROPOSERS: there is
 * none. */
static unsigned place_of(const struct drafts *d, const struct drafts_target *t, const bool *taken)
{
    unsigned i = 0;
    while (i < DRAFT_MAX_PROPOSERS &&
           (taken[i] || !d->peers[i].in_use || !same_target(t, &d->peers[i].as)))
        i++;
    return i;
}

/* A place for a newcomer: a free one, else one that is leaving. */
static struct peer *place_for_new(struct drafts *d)
{
    struct peer *leaving = NULL;
    for (unsigned i = 0; i < DRAFT_MAX_PROPOSERS; i++) {
        if (d->peers[i].is_free)
            return &d->peers[i];
        if (!d->peers[i].in_use)
            leaving = &d->peers[i];
    }
    return leaving;
}

/* Stops the proposers that do not stay, then starts the new ones at their places. */
static void exchange(struct drafts *d, const bool *stays, struct newcomer *new, unsigned n_new)
{
    for (unsigned i = 0; i < DRAFT_MAX_PROPOSERS; i++) {
        if (d->peers[i].in_use && !stays[i])
            peer_stop(&d->peers[i]);
    }
    for (unsigned i = 0; i < n_new; i++)
        peer_start(place_for_new(d), &new[i]);
}

int drafts_set(struct drafts *d, const struct drafts_target *targets, unsigned n)
{
    struct newcomer new[DRAFT_MAX_PROPOSERS];
    bool stays[DRAFT_MAX_PROPOSERS] = {false};
    unsigned n_new = 0;
    int err = 0;
    if (n > DRAFT_MAX_PROPOSERS)
        return fail(-EINVAL, "%u proposers are more than %d", n, DRAFT_MAX_PROPOSERS);
    for (unsigned t = 0; t < n && !err; t++) {
        unsigned i = place_of(d, &targets[t], stays);
        if (i < DRAFT_MAX_PROPOSERS)
            stays[i] = true;
        else
            err = newcomer_init(&new[n_new++], &d->c, &targets[t]);
    }
    if (!err)
        exchange(d, stays, new, n_new);
    for (unsigned i = 0; i < n_new; i++)
        newcomer_done(&new[i]);
    return err;
}

static int peer_init(struct drafts *d, unsigned i)
{
    struct peer *p = &d->peers[i];
    pthread_mutex_init(&p->mu, NULL);
    clock_cond_init(&p->changed);
    p->d = d;
    p->index = i;
    p->is_free = true;
    return proposer_series_new(&p->series);
}

int drafts_new(const struct drafts_config *c, struct drafts **ret)
{
    AUTO(drafts_free) struct drafts *d = calloc(1, sizeof(*d));
    if (!d)
        return fail(-ENOMEM, "drafts: no memory");
    d->c = *c;
    int err = 0;
    for (unsigned i = 0; i < DRAFT_MAX_PROPOSERS; i++) {
        int r = peer_init(d, i); // of all: drafts_free() ends all
        err = r < 0 ? r : err;
    }
    d->model = strdup(c->model ? c->model : "");
    if (!d->model)
        return fail(-ENOMEM, "drafts: no memory");
    if (err < 0)
        return err;
    err = drafts_set(d, c->targets, c->n_targets);
    if (err < 0)
        return err;
    *ret = TAKE(d);
    return 0;
}

static void peer_done(struct peer *p)
{
    if (p->has_keeper)
        pthread_join(p->keeper, NULL);
    proposer_series_free(p->series);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->mu);
}

void drafts_free(struct drafts *d)
{
    if (!d)
        return;
    for (unsigned i = 0; i < DRAFT_MAX_PROPOSERS; i++)
        peer_stop(&d->peers[i]);
    for (unsigned i = 0; i < DRAFT_MAX_PROPOSERS; i++)
        peer_done(&d->peers[i]);
    free(d->model);
    free(d);
}

void drafts_name(struct drafts *d, unsigned i, char name[DRAFTS_NAME_MAX])
{
    struct peer *p = &d->peers[i];
    pthread_mutex_lock(&p->mu);
    snprintf(name, DRAFTS_NAME_MAX, "%s", p->in_use ? p->about.name : "");
    pthread_mutex_unlock(&p->mu);
}

void drafts_name_of(struct drafts *d, const struct drafts_target *t, char name[DRAFTS_NAME_MAX])
{
    static const bool none_taken[DRAFT_MAX_PROPOSERS];
    unsigned i = d ? place_of(d, t, none_taken) : DRAFT_MAX_PROPOSERS;
    if (i < DRAFT_MAX_PROPOSERS)
        drafts_name(d, i, name);
    else
        memcpy(name, t->name, DRAFTS_NAME_MAX);
}

bool drafts_is_called(const char *place, atomic_flag *warned, const char *own, const char *name)
{
    if (strcmp(own, name) == 0)
        return true;
    if (strcmp(name, "chain") != 0 || strcmp(own, "cascade") != 0)
        return false;
    if (!atomic_flag_test_and_set(warned))
        log_warn("%s: %s is now called %s; please use the new name", place, name, own);
    return true;
}

static bool has_name(struct drafts *d, unsigned i, const char *name)
{
    char own[DRAFTS_NAME_MAX];
    drafts_name(d, i, own);
    return *own && strcmp(own, name) == 0;
}

/* The name that the proposers of a request for `name` report. An alias counts only while no
 * proposer has the name itself. */
static const char *reported_name(struct drafts *d, const char *name)
{
    if (!name || strcmp(name, "chain") != 0)
        return name;
    for (unsigned i = 0; d && i < DRAFT_MAX_PROPOSERS; i++) {
        if (has_name(d, i, name))
            return name;
    }
    return "cascade";
}

int drafts_check_name(struct drafts *d, const char *name)
{
    static atomic_flag warned = ATOMIC_FLAG_INIT;
    char names[DRAFT_MAX_PROPOSERS * (DRAFTS_NAME_MAX + 2)] = "", own[DRAFTS_NAME_MAX];
    if (!*name)
        return 0;
    bool alias = reported_name(d, name) != name;
    for (unsigned i = 0; d && i < DRAFT_MAX_PROPOSERS; i++) {
        if (!d->peers[i].in_use)
            continue;
        drafts_name(d, i, own);
        if (!*own || strcmp(own, name) == 0 ||
            (alias && drafts_is_called("speculative.proposer", &warned, own, name)))
            return 0;
        size_t len = strlen(names);
        snprintf(names + len, sizeof(names) - len, "%s%s", len ? ", " : "", own);
    }
    return fail(-EINVAL, "speculative.proposer names none of this server's proposers: %s",
                *names ? names : "it has none");
}

/* ---- the engine's side ---- */

static bool usable(struct peer *p, int64_t now_us)
{
    if (p->stream)
        check_faults(p, now_us);
    return p->stream && is_alive(p);
}

/* The most tokens of a draft that p can make; 0: p is not usable. *ret_knows: p has the
 * sequence. */
static uint32_t k_max_of(struct peer *p, uint64_t seq, uint32_t base_len, int64_t now_us,
                         bool *ret_knows)
{
    pthread_mutex_lock(&p->mu);
    uint32_t k_max = usable(p, now_us) ? drafts_book_k_max(p->book, seq, base_len) : 0;
    *ret_knows = k_max && drafts_book_knows(p->book, seq);
    pthread_mutex_unlock(&p->mu);
    return k_max;
}

int drafts_pick(struct drafts *d, const char *name, uint64_t seq, uint32_t base_len, int64_t now_us,
                uint32_t *ret_k_max)
{
    unsigned fit[DRAFT_MAX_PROPOSERS], n_fit = 0;
    uint32_t k_max[DRAFT_MAX_PROPOSERS];
    bool knows = false;
    name = reported_name(d, name);
    for (unsigned i = 0; i < DRAFT_MAX_PROPOSERS && !knows; i++) {
        if (!d->peers[i].in_use || (name && *name && !has_name(d, i, name)))
            continue;
        k_max[i] = k_max_of(&d->peers[i], seq, base_len, now_us, &knows);
        if (k_max[i])
            fit[n_fit++] = i;
    }
    if (!n_fit)
        return -1;
    unsigned i = fit[knows ? n_fit - 1 : rng_splitmix64(seq) % n_fit];
    *ret_k_max = k_max[i];
    return (int)i;
}

unsigned drafts_ask(struct drafts *d, unsigned i, struct drafts_wish *wishes, unsigned n,
                    uint32_t budget_us, int64_t now_us)
{
    struct peer *p = &d->peers[i];
    unsigned n_awaited = 0;
    for (unsigned w = 0; w < n; w++)
        wishes[w].p90_us = wishes[w].to_read = 0;
    pthread_mutex_lock(&p->mu);
    if (usable(p, now_us)) {
        n_awaited = drafts_book_ask(p->book, wishes, n, budget_us, now_us);
        wake(p);
    }
    pthread_mutex_unlock(&p->mu);
    return n_awaited;
}

void drafts_close(struct drafts *d, uint64_t seq, bool ended)
{
    for (unsigned i = 0; i < DRAFT_MAX_PROPOSERS; i++) {
        struct peer *p = &d->peers[i];
        if (!p->in_use)
            continue;
        pthread_mutex_lock(&p->mu);
        if (p->in_use) {
            drafts_book_close(p->book, seq, ended);
            wake(p);
        }
        pthread_mutex_unlock(&p->mu);
    }
}

void drafts_accepted(struct drafts *d, unsigned i, uint32_t n_tokens)
{
    struct peer *p = &d->peers[i];
    pthread_mutex_lock(&p->mu);
    p->n_accepted += n_tokens;
    pthread_mutex_unlock(&p->mu);
}

bool drafts_stats(struct drafts *d, unsigned i, struct drafts_stats *ret)
{
    struct peer *p = &d->peers[i];
    pthread_mutex_lock(&p->mu);
    bool there = p->in_use;
    if (there) {
        const struct drafts_counts *c = drafts_book_counts(p->book);
        *ret = (struct drafts_stats){.connected = p->stream && !p->ended,
                                     .benched = p->benched,
                                     .rounds = c->rounds,
                                     .drafts = c->drafts,
                                     .draft_tokens = c->draft_tokens,
                                     .accepted_tokens = p->n_accepted,
                                     .late = c->late,
                                     .stale = c->stale,
                                     .malformed = c->malformed,
                                     .restarts = p->n_restarts ? p->n_restarts - 1 : 0,
                                     .p90_us = drafts_book_p90_us(p->book, 8)};
        memcpy(ret->name, p->about.name, sizeof(ret->name));
        memcpy(ret->target, p->as.target, sizeof(ret->target));
    }
    pthread_mutex_unlock(&p->mu);
    return there;
}

void drafts_series(struct drafts *d, unsigned i, struct proposer_series_copy *ret)
{
    proposer_series_copy(d->peers[i].series, ret);
}

/* proposer_series.c - one GetStats call at a time, and the last answer. */
#include "verifier-svc/drafts/proposer_series.h"
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "tandem/v1/stats.pb-c.h"

#define INTERVAL_US 2000000
#define TIMEOUT_US 1000000

struct proposer_series {
    int64_t next_us;
    struct rpc_stream *stream; // NULL: no call

    pthread_mutex_t mu; // for what follows
    pthread_cond_t changed;
    bool ended; // the call
    struct proposer_series_copy last;
};

int proposer_series_new(struct proposer_series **ret)
{
    struct proposer_series *s = calloc(1, sizeof(*s));
    if (!s)
        return fail(-ENOMEM, "drafts: no memory");
    pthread_mutex_init(&s->mu, NULL);
    pthread_cond_init(&s->changed, NULL);
    *ret = s;
    return 0;
}

void proposer_series_free(struct proposer_series *s)
{
    if (!s)
        return;
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->mu);
    free(s);
}

/* ---- the answer, on the client's rpc thread ---- */

static void on_message(void *user, struct rpc_msg *msg)
{
    struct proposer_series *s = user;
    Tandem__V1__StatsReply *r =
        (Tandem__V1__StatsReply *)rpc_unpack(&tandem__v1__stats_reply__descriptor, msg);
    if (!r)
        return;
    pthread_mutex_lock(&s->mu);
    struct proposer_series_copy *to = &s->last;
    bool fits = r->prometheus.len <= sizeof(to->text) && r->instance.len <= sizeof(to->instance);
    to->n_text = fits ? r->prometheus.len : 0;
    to->n_instance = fits ? r->instance.len : 0;
    if (to->n_text)
        memcpy(to->text, r->prometheus.data, to->n_text);
    if (to->n_instance)
        memcpy(to->instance, r->instance.data, to->n_instance);
    pthread_mutex_unlock(&s->mu);
    tandem__v1__stats_reply__free_unpacked(r, NULL);
}

static void on_end(void *user, const struct rpc_status *status)
{
    struct proposer_series *s = user;
    (void)status; // after an error the last answer stays
    pthread_mutex_lock(&s->mu);
    s->ended = true;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->mu);
}

/* ---- the keeper ---- */

static void start_call(struct proposer_series *s, struct rpc_client *client)
{
    static const struct rpc_events events = {.on_message = on_message, .on_end = on_end};
    const struct rpc_options opt = {.timeout_us = TIMEOUT_US};
    Tandem__V1__GetStatsRequest request = TANDEM__V1__GET_STATS_REQUEST__INIT;
    s->ended = false; // no call runs
    s->stream = rpc_stream_new(client, "/tandem.v1.Stats/GetStats", &opt, &events, s);
    rpc_stream_send(s->stream, rpc_pack(&request.base));
    rpc_stream_close(s->stream);
}

int64_t proposer_series_poll(struct proposer_series *s, struct rpc_client *client, int64_t now_us)
{
    if (now_us < s->next_us)
        return s->next_us;
    pthread_mutex_lock(&s->mu);
    bool running = s->stream && !s->ended;
    pthread_mutex_unlock(&s->mu);
    s->next_us = now_us + INTERVAL_US;
    if (running)
        return s->next_us;
    rpc_stream_free(s->stream);
    start_call(s, client);
    return s->next_us;
}

void proposer_series_stop(struct proposer_series *s)
{
    struct rpc_stream *stream = TAKE(s->stream);
    s->next_us = 0;
    if (stream)
        rpc_stream_cancel(stream);
    pthread_mutex_lock(&s->mu);
    while (stream && !s->ended)
        pthread_cond_wait(&s->changed, &s->mu);
    s->last.n_text = s->last.n_instance = 0;
    pthread_mutex_unlock(&s->mu);
    rpc_stream_free(stream);
}

void proposer_series_copy(struct proposer_series *s, struct proposer_series_copy *ret)
{
    pthread_mutex_lock(&s->mu);
    *ret = s->last;
    pthread_mutex_unlock(&s->mu);
}

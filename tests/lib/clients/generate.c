/* generate.c - Generate calls from a test. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "lib/lib.h"
#include "base/minmax.h"
#include "lib/clients/generate.h"

#define END_WITHIN_S 120

static void append_text(struct answer *a, ProtobufCBinaryData text)
{
    if (a->text_len + text.len >= sizeof(a->text))
        return;
    if (text.len)
        memcpy(a->text + a->text_len, text.data, text.len);
    a->text_len += text.len;
    a->text[a->text_len] = 0;
}

static void add_counts(struct answer *a, const Tandem__V1__TokenRun *run)
{
    a->runs.rounds = run->round;
    a->runs.drafted += run->drafted;
    a->runs.most_drafted = max_u32(run->drafted, a->runs.most_drafted);
    if (run->proposer.len)
        snprintf(a->runs.proposer, sizeof(a->runs.proposer), "%.*s", (int)run->proposer.len,
                 (char *)run->proposer.data);
    for (size_t i = 0; i < run->n_tokens; i++) {
        Tandem__V1__TokenOrigin origin = run->tokens[i]->origin;
        a->runs.accepted += origin == TANDEM__V1__TOKEN_ORIGIN__TOKEN_ORIGIN_ACCEPTED;
        a->runs.bonus += origin == TANDEM__V1__TOKEN_ORIGIN__TOKEN_ORIGIN_BONUS;
    }
}

static size_t n_chars(const char *text, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++)
        n += ((unsigned char)text[i] & 0xC0) != 0x80;
    return n;
}

static void add_run(struct answer *a, const Tandem__V1__TokenRun *run)
{
    add_counts(a, run);
    for (size_t i = 0; i < run->n_tokens && a->n < ANSWER_MAX_TOKENS; i++) {
        const Tandem__V1__Token *t = run->tokens[i];
        a->ids[a->n] = t->id;
        a->logprobs[a->n] = t->logprob;
        a->offsets[a->n] = n_chars(a->text, a->text_len) + t->held;
        for (size_t k = 0; k < t->n_top && k < ANSWER_MAX_TOP; k++)
            a->top[a->n][k] = t->top[k]->token;
        a->n++;
        append_text(a, t->text);
    }
}

static void set_finished(struct answer *a, const Tandem__V1__Finished *f)
{
    append_text(a, f->text);
    a->reason = f->reason;
    if (!f->speculation)
        return;
    a->drafted = f->speculation->drafted;
    a->accepted = f->speculation->accepted;
    a->rounds = f->speculation->rounds;
    a->bonus = f->speculation->bonus;
    snprintf(a->rule, sizeof(a->rule), "%.*s", (int)f->speculation->rule.len,
             (char *)f->speculation->rule.data);
}

/* FNV-1a over ids. */
static void hash_run(struct answer *a, uint32_t choice, const Tandem__V1__TokenRun *run)
{
    for (size_t i = 0; i < run->n_tokens; i++)
        a->hashes[choice] = (a->hashes[choice] ^ run->tokens[i]->id) * 0x100000001b3;
}

static void on_message(void *user, struct rpc_msg *msg)
{
    struct generation *g = user;
    ProtobufCMessage *m = rpc_unpack(&tandem__v1__generate_event__descriptor, msg);
    pthread_mutex_lock(&g->mu);
    Tandem__V1__GenerateEvent *e = (Tandem__V1__GenerateEvent *)m;
    if (e && e->event_case == TANDEM__V1__GENERATE_EVENT__EVENT_RUN)
        hash_run(g->answer, e->choice % ANSWER_MAX_CHOICES, e->run);
    if (e && e->choice == 0) {
        if (e->event_case == TANDEM__V1__GENERATE_EVENT__EVENT_RUN)
            add_run(g->answer, e->run);
        if (e->event_case == TANDEM__V1__GENERATE_EVENT__EVENT_FINISHED)
            set_finished(g->answer, e->finished);
        if (e->event_case == TANDEM__V1__GENERATE_EVENT__EVENT_STARTED) {
            g->answer->seed = e->started->seed;
            g->answer->prompt_tokens = e->started->prompt_tokens;
            g->answer->max_tokens = e->started->max_tokens;
            g->answer->cached_tokens = e->started->cached_tokens;
        }
    }
    g->n_events++;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->mu);
    protobuf_c_message_free_unpacked(m, NULL);
}

static void on_end(void *user, const struct rpc_status *status)
{
    struct generation *g = user;
    pthread_mutex_lock(&g->mu);
    g->status = *status;
    g->ended = true;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->mu);
}

void generation_start(struct generation *g, struct rpc_client *c,
                      const Tandem__V1__GenerateRequest *req, struct answer *answer)
{
    static const struct rpc_events events = {.on_message = on_message, .on_end = on_end};
    memset(g, 0, sizeof(*g));
    memset(answer, 0, sizeof(*answer));
    pthread_mutex_init(&g->mu, NULL);
    pthread_cond_init(&g->changed, NULL);
    g->answer = answer;
    g->stream = rpc_stream_new(c, "/tandem.v1.Verifier/Generate", NULL, &events, g);
    rpc_stream_send(g->stream, rpc_pack(&req->base));
    rpc_stream_close(g->stream);
}

/* The caller holds the lock. False: time is up. */
static bool wait_change(struct generation *g, const struct timespec *until)
{
    return pthread_cond_timedwait(&g->changed, &g->mu, until) != ETIMEDOUT;
}

static struct timespec last_moment(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_sec += END_WITHIN_S;
    return t;
}

void generation_wait_tokens(struct generation *g, unsigned n)
{
    struct timespec until = last_moment();
    bool in_time = true;
    pthread_mutex_lock(&g->mu);
    while (g->answer->n < n && !g->ended && in_time)
        in_time = wait_change(g, &until);
    pthread_mutex_unlock(&g->mu);
    assert_true(in_time);
}

void generation_end(struct generation *g)
{
    struct timespec until = last_moment();
    bool in_time = true;
    pthread_mutex_lock(&g->mu);
    while (!g->ended && in_time)
        in_time = wait_change(g, &until);
    pthread_mutex_unlock(&g->mu);
    if (!in_time)
        fail_msg("the call does not end within %d s", END_WITHIN_S);
    rpc_stream_free(g->stream);
    pthread_cond_destroy(&g->changed);
    pthread_mutex_destroy(&g->mu);
}

void generation_run(struct rpc_client *c, const Tandem__V1__GenerateRequest *req,
                    struct answer *answer)
{
    struct generation g;
    generation_start(&g, c, req, answer);
    generation_end(&g);
    if (g.status.code != RPC_OK)
        fail_msg("%s: %s", rpc_code_name(g.status.code), g.status.text);
}

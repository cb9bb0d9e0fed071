/* verifier_rig.c - a verifier and its clients. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "lib/lib.h"
#include "base/mem.h"
#include "lib/rigs/verifier_rig.h"

#define WITHIN_S 60

struct service verifier;
struct rpc_client *client;

const char *const plain_args[] = {"--model", MODEL, "--log-level", "debug", NULL};

int start_verifier(void **state)
{
    (void)state;
    service_start(&verifier, "verifier-svc", plain_args);
    assert_int_equal(rpc_client_new(verifier.target, NULL, &client), 0);
    return 0;
}

int stop_verifier(void **state)
{
    (void)state;
    rpc_client_free(client);
    service_stop(&verifier);
    return 0;
}

void write_model(const char *name, const char *file, size_t len, char path[200])
{
    snprintf(path, 200, "%s/%s.gguf", service_dir(), name);
    FILE *to = fopen(path, "wb");
    assert_non_null(to);
    assert_int_equal(fwrite(file, 1, len, to), len);
    assert_int_equal(fclose(to), 0);
}

/* ---- requests ---- */

ProtobufCBinaryData text_of(const char *s)
{
    return (ProtobufCBinaryData){strlen(s), (uint8_t *)s};
}

void wish_init(struct wish *w, const char *text, uint32_t max_tokens)
{
    tandem__v1__generate_request__init(&w->msg);
    tandem__v1__sampling__init(&w->sampling);
    w->msg.sampling = &w->sampling;
    w->sampling.has_temperature_case = TANDEM__V1__SAMPLING__HAS_TEMPERATURE_TEMPERATURE;
    w->sampling.has_seed_case = TANDEM__V1__SAMPLING__HAS_SEED_SEED;
    w->sampling.seed = 42;
    w->msg.prompt_case = TANDEM__V1__GENERATE_REQUEST__PROMPT_TEXT;
    w->msg.text = text_of(text);
    w->msg.parse_special = true;
    w->msg.has_max_tokens_case = TANDEM__V1__GENERATE_REQUEST__HAS_MAX_TOKENS_MAX_TOKENS;
    w->msg.max_tokens = max_tokens;
}

void must_refuse(struct rpc_client *c, const request *msg, enum rpc_code code, const char *sentence)
{
    struct generation g;
    AUTO(mem_free) struct answer *a = calloc(1, sizeof(*a));
    generation_start(&g, c, msg, a);
    generation_end(&g);
    if (g.status.code != code || !strstr(g.status.text, sentence))
        fail_msg("got %s: %s", rpc_code_name(g.status.code), g.status.text);
}

void same_answer(const struct answer *a, const struct answer *b)
{
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->ids, b->ids, a->n * sizeof(a->ids[0]));
    assert_memory_equal(a->logprobs, b->logprobs, a->n * sizeof(a->logprobs[0]));
    assert_int_equal(a->text_len, b->text_len);
    assert_memory_equal(a->text, b->text, a->text_len);
    assert_int_equal(a->reason, b->reason);
}

struct answer *answers_new(unsigned n)
{
    struct answer *a = calloc(n, sizeof(*a));
    assert_non_null(a);
    return a;
}
/* ---- answers that another verifier has begun ---- */

Tandem__V1__ModelInfo *must_get_model(struct rpc_client *c)
{
    Tandem__V1__GetModelRequest req = TANDEM__V1__GET_MODEL_REQUEST__INIT;
    ProtobufCMessage *reply;
    struct rpc_status st = rpc_unary(c, "/tandem.v1.Verifier/GetModel", NULL, &req.base,
                                     &tandem__v1__model_info__descriptor, &reply);
    assert_int_equal(st.code, RPC_OK);
    return (Tandem__V1__ModelInfo *)reply;
}

void rest_init(struct rest *c, request *msg, const Tandem__V1__ModelInfo *info,
               const struct answer *a, unsigned n)
{
    tandem__v1__continuation__init(&c->msg);
    c->msg.fingerprint = info->fingerprint;
    c->msg.seed = a->seed;
    c->msg.max_tokens = a->max_tokens;
    c->msg.choices = c->list;
    c->msg.n_choices = msg->n ? msg->n : 1;
    assert_true(c->msg.n_choices <= REST_MAX_CHOICES);
    for (unsigned i = 0; i < c->msg.n_choices; i++) {
        tandem__v1__choice_so_far__init(&c->choices[i]);
        c->choices[i].finished = i > 0;
        c->list[i] = &c->choices[i];
    }
    c->choices[0].n_tokens = n;
    c->choices[0].tokens = (uint32_t *)(uintptr_t)a->ids;
    msg->continuation = &c->msg;
}

/* ---- Verify ---- */

static void take_commit(struct verify *v, const Tandem__V1__VerifyCommit *c)
{
    v->n_commits++;
    v->base_len = c->base_len;
    v->accepted = c->accepted;
    v->round = c->run->round;
    v->drafted = c->run->drafted;
    v->n_run = (unsigned)c->run->n_tokens;
    for (unsigned i = 0; i < v->n_run; i++) {
        v->run[i] = c->run->tokens[i]->id;
        v->origins[i] = c->run->tokens[i]->origin;
        v->logprobs[i] = c->run->tokens[i]->logprob;
    }
    v->reason = c->finished ? c->finished->reason : 0;
}

static void verify_message(void *user, struct rpc_msg *msg)
{
    struct verify *v = user;
    ProtobufCMessage *m = rpc_unpack(&tandem__v1__verify_reply__descriptor, msg);
    Tandem__V1__VerifyReply *r = (Tandem__V1__VerifyReply *)m;
    pthread_mutex_lock(&v->mu);
    if (r && r->message_case == TANDEM__V1__VERIFY_REPLY__MESSAGE_STARTED) {
        v->started = true;
        v->base_len = v->prompt_len = r->started->prompt_tokens;
    }
    if (r && r->message_case == TANDEM__V1__VERIFY_REPLY__MESSAGE_COMMIT)
        take_commit(v, r->commit);
    pthread_cond_broadcast(&v->changed);
    pthread_mutex_unlock(&v->mu);
    protobuf_c_message_free_unpacked(m, NULL);
}

static void verify_end(void *user, const struct rpc_status *status)
{
    struct verify *v = user;
    pthread_mutex_lock(&v->mu);
    v->ended = true;
    v->status = *status;
    pthread_cond_broadcast(&v->changed);
    pthread_mutex_unlock(&v->mu);
}

void verify_wait(struct verify *v, unsigned n_commits, bool end)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += WITHIN_S;
    pthread_mutex_lock(&v->mu);
    int r = 0;
    while (r == 0 && !v->ended && (end || !v->started || v->n_commits < n_commits))
        r = pthread_cond_timedwait(&v->changed, &v->mu, &until);
    pthread_mutex_unlock(&v->mu);
    assert_int_equal(r, 0);
}

void verify_send(struct verify *v, const request *open, const Tandem__V1__VerifyDraft *draft)
{
    Tandem__V1__VerifyRequest msg = TANDEM__V1__VERIFY_REQUEST__INIT;
    msg.message_case =
        open ? TANDEM__V1__VERIFY_REQUEST__MESSAGE_OPEN : TANDEM__V1__VERIFY_REQUEST__MESSAGE_DRAFT;
    if (open)
        msg.open = (request *)open;
    else
        msg.draft = (Tandem__V1__VerifyDraft *)draft;
    rpc_stream_send(v->stream, rpc_pack(&msg.base));
}

void verify_start(struct verify *v, struct rpc_client *c, const char *path,
                  const struct rpc_options *opt)
{
    static const struct rpc_events events = {.on_message = verify_message, .on_end = verify_end};
    memset(v, 0, sizeof(*v));
    pthread_mutex_init(&v->mu, NULL);
    pthread_cond_init(&v->changed, NULL);
    v->stream = rpc_stream_new(c, path, opt, &events, v);
}

void verify_open_at(struct rpc_client *c, struct verify *v, const request *open)
{
    verify_start(v, c, "/tandem.v1.Verifier/Verify", NULL);
    if (!open)
        return;
    verify_send(v, open, NULL);
    verify_wait(v, 0, false);
}

void verify_open(struct verify *v, const request *open)
{
    verify_open_at(client, v, open);
}

void verify_draft(struct verify *v, const uint32_t *tokens, const int32_t *parents, uint32_t n)
{
    Tandem__V1__VerifyDraft d = TANDEM__V1__VERIFY_DRAFT__INIT;
    d.base_len = v->base_len;
    d.tokens = (uint32_t *)tokens;
    d.n_tokens = n;
    d.parents = (int32_t *)parents;
    d.n_parents = parents ? n : 0;
    unsigned n_commits = v->n_commits; // read before the next one can come
    verify_send(v, NULL, &d);
    verify_wait(v, n_commits + 1, false);
}

struct rpc_status verify_close(struct verify *v)
{
    rpc_stream_close(v->stream);
    verify_wait(v, 0, true);
    rpc_stream_free(v->stream);
    pthread_cond_destroy(&v->changed);
    pthread_mutex_destroy(&v->mu);
    return v->status;
}

void verify_must_end(struct verify *v, enum rpc_code code, const char *sentence)
{
    verify_wait(v, 0, true);
    if (v->status.code != code || !strstr(v->status.text, sentence))
        fail_msg("got %s: %s", rpc_code_name(v->status.code), v->status.text);
    verify_close(v);
}

const struct answer *story(void)
{
    static struct answer *a;
    if (!a) {
        struct wish w;
        a = answers_new(1);
        wish_init(&w, STORY, 900);
        generation_run(client, &w.msg, a);
        assert_int_equal(a->reason, TANDEM__V1__FINISH_REASON__FINISH_REASON_STOP);
        assert_true(a->n > 40);
    }
    return a;
}

/* test_verifier.c - the real verifier service over a unix socket: streams, drafts of clients,
 * limits, bad input, shortage, cancelling, draining. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "lib/lib.h"
#include "base/clock.h"
#include "base/mem.h"
#include "file/gguf.h"
#include "lib/figures.h"
#include "lib/generate.h"
#include "lib/services.h"
#include "model/kv.h"
#include "verifier-svc/accept.h"

#define MODEL SOURCE_DIR "/models/tales-1m-q8_0.gguf"
#define STORY "<|begin|><|user|>Tell me a story about a dog named Max.<|end|><|assistant|>"
#define WITHIN_S 60

typedef Tandem__V1__GenerateRequest request;

static struct service verifier; // of most tests
static struct rpc_client *client;

static const char *const plain_args[] = {"--model", MODEL, "--log-level", "debug", NULL};

static int start_verifier(void **state)
{
    (void)state;
    service_start(&verifier, "verifier-svc", plain_args);
    assert_int_equal(rpc_client_new(verifier.target, NULL, &client), 0);
    return 0;
}

static int stop_verifier(void **state)
{
    (void)state;
    rpc_client_free(client);
    service_stop(&verifier);
    return 0;
}

/* ---- requests ---- */

struct wish {
    request msg;
    Tandem__V1__Sampling sampling;
};

static ProtobufCBinaryData text_of(const char *s)
{
    return (ProtobufCBinaryData){strlen(s), (uint8_t *)s};
}

/* Greedy, so many tokens. */
static void wish_init(struct wish *w, const char *text, uint32_t max_tokens)
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

static void must_refuse(struct rpc_client *c, const request *msg, enum rpc_code code,
                        const char *sentence)
{
    struct generation g;
    AUTO(mem_free) struct answer *a = calloc(1, sizeof(*a));
    generation_start(&g, c, msg, a);
    generation_end(&g);
    if (g.status.code != code || !strstr(g.status.text, sentence))
        fail_msg("got %s: %s", rpc_code_name(g.status.code), g.status.text);
}

static void same_answer(const struct answer *a, const struct answer *b)
{
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->ids, b->ids, a->n * sizeof(a->ids[0]));
    assert_memory_equal(a->logprobs, b->logprobs, a->n * sizeof(a->logprobs[0]));
    assert_int_equal(a->text_len, b->text_len);
    assert_memory_equal(a->text, b->text, a->text_len);
    assert_int_equal(a->reason, b->reason);
}

static struct answer *answers_new(unsigned n)
{
    struct answer *a = calloc(n, sizeof(*a));
    assert_non_null(a);
    return a;
}

/* ---- Generate ---- */

static void greedy_tokens_come_in_order_with_their_text(void **state)
{
    (void)state;
    struct wish w;
    AUTO(mem_free) struct answer *a = answers_new(2);
    wish_init(&w, STORY, 60);
    generation_run(client, &w.msg, &a[0]);
    assert_int_equal(a[0].n, 60);
    assert_int_equal(a[0].reason, TANDEM__V1__FINISH_REASON__FINISH_REASON_LENGTH);

    Tandem__V1__DetokenizeRequest req = TANDEM__V1__DETOKENIZE_REQUEST__INIT;
    req.ids = a[0].ids;
    req.n_ids = a[0].n;
    ProtobufCMessage *reply;
    struct rpc_status st = rpc_unary(client, "/tandem.v1.Verifier/Detokenize", NULL, &req.base,
                                     &tandem__v1__detokenize_reply__descriptor, &reply);
    assert_int_equal(st.code, RPC_OK);
    ProtobufCBinaryData text = ((Tandem__V1__DetokenizeReply *)reply)->text;
    assert_int_equal(text.len, a[0].text_len);
    assert_memory_equal(text.data, a[0].text, text.len);
    protobuf_c_message_free_unpacked(reply, NULL);

    generation_run(client, &w.msg, &a[1]);
    same_answer(&a[0], &a[1]);
}

static void neighbours_change_nothing(void **state)
{
    (void)state;
    static const char *const prompts[] = {STORY,  "Once",      "The cat", "One day, a big red",
                                          "Lily", "<|begin|>", "A",       "<|begin|>Tom and the"};
    enum { N = ARRAY_LEN(prompts) };
    struct wish w[N];
    struct generation g[N];
    AUTO(mem_free) struct answer *alone = answers_new(N), *together = answers_new(N);
    for (unsigned i = 0; i < N; i++) {
        wish_init(&w[i], prompts[i], 20 + 10 * i);
        w[i].sampling.temperature = i % 2 ? 0.9F : 0;
        w[i].sampling.seed = i;
        w[i].msg.logprobs = true;
        w[i].msg.top_logprobs = 3;
        generation_run(client, &w[i].msg, &alone[i]);
    }
    for (unsigned i = 0; i < N; i++)
        generation_start(&g[i], client, &w[i].msg, &together[i]);
    for (unsigned i = 0; i < N; i++) {
        generation_end(&g[i]);
        assert_int_equal(g[i].status.code, RPC_OK);
        same_answer(&alone[i], &together[i]);
    }
}

static void the_first_choice_is_what_one_choice_would_be(void **state)
{
    (void)state;
    struct wish w;
    AUTO(mem_free) struct answer *a = answers_new(2);
    wish_init(&w, STORY, 40);
    w.sampling.temperature = 0.8F;
    generation_run(client, &w.msg, &a[0]);
    w.msg.n = 4;
    generation_run(client, &w.msg, &a[1]);
    same_answer(&a[0], &a[1]);
}

static void a_greedy_tokens_logprob_is_the_best(void **state)
{
    (void)state;
    struct wish w;
    AUTO(mem_free) struct answer *a = answers_new(1);
    wish_init(&w, STORY, 20);
    w.msg.logprobs = true;
    w.msg.top_logprobs = 5;
    generation_run(client, &w.msg, a);
    for (unsigned i = 0; i < a->n; i++) {
        assert_true(a->logprobs[i] <= 0 && a->logprobs[i] > -20);
        assert_int_equal(a->top[i][0], a->ids[i]);
    }
}

static void a_seed_is_reported_and_repeats_the_answer(void **state)
{
    (void)state;
    struct wish w;
    AUTO(mem_free) struct answer *a = answers_new(2);
    wish_init(&w, STORY, 40);
    w.sampling.temperature = 1;
    w.sampling.has_seed_case = TANDEM__V1__SAMPLING__HAS_SEED__NOT_SET;
    generation_run(client, &w.msg, &a[0]);
    w.sampling.has_seed_case = TANDEM__V1__SAMPLING__HAS_SEED_SEED;
    w.sampling.seed = a[0].seed;
    generation_run(client, &w.msg, &a[1]);
    same_answer(&a[0], &a[1]);
}

static void min_tokens_keeps_the_end_away(void **state)
{
    (void)state;
    struct wish w;
    AUTO(mem_free) struct answer *a = answers_new(2);
    wish_init(&w, "<|begin|><|user|>Hello<|end|><|assistant|>", 200);
    generation_run(client, &w.msg, &a[0]);
    assert_int_equal(a[0].reason, TANDEM__V1__FINISH_REASON__FINISH_REASON_STOP);
    w.msg.min_tokens = a[0].n + 10;
    generation_run(client, &w.msg, &a[1]);
    assert_true(a[1].n >= a[0].n + 10);
}

static void a_stop_string_is_cut_and_ends_the_answer(void **state)
{
    (void)state;
    struct wish w;
    AUTO(mem_free) struct answer *a = answers_new(2);
    wish_init(&w, STORY, 60);
    generation_run(client, &w.msg, &a[0]);
    char word[8] = {0}; // from inside the answer, across tokens
    memcpy(word, a[0].text + 30, 7);
    ProtobufCBinaryData stop = text_of(word);
    w.msg.stop = &stop;
    w.msg.n_stop = 1;
    generation_run(client, &w.msg, &a[1]);
    assert_int_equal(a[1].reason, TANDEM__V1__FINISH_REASON__FINISH_REASON_STOP);
    const char *first = strstr(a[0].text, word);
    assert_int_equal(a[1].text_len, first - a[0].text);
    assert_memory_equal(a[1].text, a[0].text, a[1].text_len);
}

/* ---- Verify ---- */

struct verify {
    struct rpc_stream *stream;
    pthread_mutex_t mu;
    pthread_cond_t changed;
    bool started, ended;
    struct rpc_status status;
    uint32_t prompt_len;
    unsigned n_commits;
    uint32_t base_len, accepted; // of the last commit
    unsigned n_run;
    uint32_t run[ACCEPT_MAX + 1];
    Tandem__V1__TokenOrigin origins[ACCEPT_MAX + 1];
    float logprobs[ACCEPT_MAX + 1];
    Tandem__V1__FinishReason reason;
};

static void take_commit(struct verify *v, const Tandem__V1__VerifyCommit *c)
{
    v->n_commits++;
    v->base_len = c->base_len;
    v->accepted = c->accepted;
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

/* Until the stream has started and has so many commits, or has ended. */
static void verify_wait(struct verify *v, unsigned n_commits, bool end)
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

static void verify_send(struct verify *v, const request *open, const Tandem__V1__VerifyDraft *draft)
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

static void verify_open_at(struct rpc_client *c, struct verify *v, const request *open)
{
    static const struct rpc_events events = {.on_message = verify_message, .on_end = verify_end};
    memset(v, 0, sizeof(*v));
    pthread_mutex_init(&v->mu, NULL);
    pthread_cond_init(&v->changed, NULL);
    v->stream = rpc_stream_new(c, "/tandem.v1.Verifier/Verify", NULL, &events, v);
    if (!open)
        return;
    verify_send(v, open, NULL);
    verify_wait(v, 0, false);
}

static void verify_open(struct verify *v, const request *open)
{
    verify_open_at(client, v, open);
}

/* Sends a draft that continues what is committed and waits for the commit, or the end. */
static void verify_draft(struct verify *v, const uint32_t *tokens, const int32_t *parents,
                         uint32_t n)
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

static struct rpc_status verify_close(struct verify *v)
{
    rpc_stream_close(v->stream);
    verify_wait(v, 0, true);
    rpc_stream_free(v->stream);
    pthread_cond_destroy(&v->changed);
    pthread_mutex_destroy(&v->mu);
    return v->status;
}

/* What the target says to STORY, greedily, up to its own end. */
static const struct answer *story(void)
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

static void drafts_are_kept_wholly_partly_or_not_at_all(void **state)
{
    (void)state;
    const uint32_t *ids = story()->ids;
    struct wish w;
    struct verify v;
    wish_init(&w, STORY, 40);
    verify_open(&v, &w.msg);
    uint32_t base = v.prompt_len;

    verify_draft(&v, NULL, NULL, 0); // empty
    assert_int_equal(v.n_run, 1);
    assert_int_equal(v.run[0], ids[0]);
    assert_int_equal(v.origins[0], TANDEM__V1__TOKEN_ORIGIN__TOKEN_ORIGIN_TARGET);

    verify_draft(&v, ids + 1, NULL, 4); // all
    assert_int_equal(v.accepted, 4);
    assert_int_equal(v.n_run, 5);
    assert_memory_equal(v.run, ids + 1, 5 * sizeof(uint32_t));
    assert_int_equal(v.origins[3], TANDEM__V1__TOKEN_ORIGIN__TOKEN_ORIGIN_ACCEPTED);
    assert_int_equal(v.origins[4], TANDEM__V1__TOKEN_ORIGIN__TOKEN_ORIGIN_BONUS);

    verify_draft(&v, (uint32_t[]){ids[6], ids[7], ids[8] + 1, ids[9]}, NULL, 4); // partly
    assert_int_equal(v.accepted, 2);
    assert_memory_equal(v.run, ids + 6, 3 * sizeof(uint32_t));
    assert_int_equal(v.origins[2], TANDEM__V1__TOKEN_ORIGIN__TOKEN_ORIGIN_CORRECTION);

    verify_draft(&v, (uint32_t[]){ids[9] + 1, ids[10]}, NULL, 2); // none
    assert_int_equal(v.accepted, 0);
    assert_int_equal(v.n_run, 1);
    assert_int_equal(v.run[0], ids[9]);
    assert_int_equal(v.base_len, base + 10);
    assert_int_equal(verify_close(&v).code, RPC_OK);
}

static void a_trees_right_branch_is_found(void **state)
{
    (void)state;
    const uint32_t *ids = story()->ids;
    struct wish w;
    struct verify v;
    wish_init(&w, STORY, 40);
    verify_open(&v, &w.msg);
    uint32_t x = ids[0] == 7 ? 8 : 7;
    const uint32_t tokens[] = {x, ids[0], ids[1], ids[1] + 1, ids[1], ids[2], ids[3]};
    const int32_t parents[] = {-1, -1, 0, 1, 1, 4, 5};
    for (uint32_t at = 0; at < 2; at++) { // again with what the tree left behind
        const uint32_t *next = ids + 5 * at;
        const uint32_t t[] = {x, next[0], next[1], next[1] + 1, next[1], next[2], next[3]};
        verify_draft(&v, at ? t : tokens, parents, 7);
        assert_int_equal(v.accepted, 4);
        assert_int_equal(v.n_run, 5);
        assert_memory_equal(v.run, next, 5 * sizeof(uint32_t));
    }
    verify_close(&v);
}

static void rollbacks_leave_the_bits_alone(void **state)
{
    (void)state;
    struct wish w;
    struct verify v[3];
    AUTO(mem_free) struct answer *a = answers_new(1);
    wish_init(&w, STORY, 60);
    w.msg.logprobs = true;
    w.msg.ignore_eos = true;
    generation_run(client, &w.msg, a);
    unsigned at[3] = {0};
    for (unsigned i = 0; i < 3; i++)
        verify_open(&v[i], &w.msg);
    for (unsigned step = 0; at[0] < 50 || at[1] < 50 || at[2] < 50; step++) {
        unsigned i = step % 3, right = (step * 7 + i) % 5, n = right + 3;
        uint32_t draft[8];
        for (unsigned k = 0; k < n; k++)
            draft[k] = k < right ? a->ids[at[i] + k] : (a->ids[at[i] + k] + 1 + k) % 4096;
        if (at[i] >= 50)
            continue;
        verify_draft(&v[i], draft, NULL, n);
        assert_true(v[i].accepted >= right);
        assert_memory_equal(v[i].run, a->ids + at[i], v[i].n_run * sizeof(uint32_t));
        assert_memory_equal(v[i].logprobs, a->logprobs + at[i], v[i].n_run * sizeof(float));
        at[i] += v[i].n_run;
    }
    for (unsigned i = 0; i < 3; i++)
        verify_close(&v[i]);
}

/* Commits the story up to `at` tokens before its end. */
static void verify_open_before_the_end(struct verify *v, const request *msg, unsigned at)
{
    const struct answer *a = story();
    verify_open(v, msg);
    for (unsigned done = 0; done < a->n - at; done += v->n_run) {
        unsigned n = a->n - at - done - 1;
        verify_draft(v, a->ids + done, NULL, n < ACCEPT_MAX ? n : ACCEPT_MAX);
        assert_memory_equal(v->run, a->ids + done, v->n_run * sizeof(uint32_t));
    }
}

static void eos_inside_a_draft_ends_it_there(void **state)
{
    (void)state;
    const struct answer *a = story();
    struct wish w;
    struct verify v;
    wish_init(&w, STORY, 900);
    verify_open_before_the_end(&v, &w.msg, 5);
    uint32_t draft[8];
    memcpy(draft, a->ids + a->n - 5, 5 * sizeof(uint32_t)); // the last of them is EOS
    memcpy(draft + 5, a->ids, 3 * sizeof(uint32_t));
    verify_draft(&v, draft, NULL, 8);
    assert_int_equal(v.n_run, 5);
    assert_int_equal(v.accepted, 5);
    assert_int_equal(v.reason, TANDEM__V1__FINISH_REASON__FINISH_REASON_STOP);
    assert_int_equal(v.origins[4], TANDEM__V1__TOKEN_ORIGIN__TOKEN_ORIGIN_ACCEPTED);
    assert_int_equal(verify_close(&v).code, RPC_OK);
}

static void max_tokens_inside_a_draft_ends_it_there(void **state)
{
    (void)state;
    const uint32_t *ids = story()->ids;
    struct wish w;
    struct verify v;
    wish_init(&w, STORY, 3);
    verify_open(&v, &w.msg);
    verify_draft(&v, ids, NULL, 8);
    assert_int_equal(v.n_run, 3);
    assert_memory_equal(v.run, ids, 3 * sizeof(uint32_t));
    assert_int_equal(v.reason, TANDEM__V1__FINISH_REASON__FINISH_REASON_LENGTH);
    verify_close(&v);
}

static void a_stop_string_inside_a_draft_ends_it_there(void **state)
{
    (void)state;
    const struct answer *a = story();
    struct wish w;
    struct verify v;
    AUTO(mem_free) struct answer *stopped = answers_new(1);
    char word[6] = {0};
    memcpy(word, a->text + 20, 5);
    ProtobufCBinaryData stop = text_of(word);
    wish_init(&w, STORY, 40);
    w.msg.stop = &stop;
    w.msg.n_stop = 1;
    generation_run(client, &w.msg, stopped);
    assert_true(stopped->n < 20);
    verify_open(&v, &w.msg);
    verify_draft(&v, a->ids, NULL, 20);
    assert_int_equal(v.n_run, stopped->n);
    assert_int_equal(v.reason, TANDEM__V1__FINISH_REASON__FINISH_REASON_STOP);
    verify_close(&v);
}

static void a_draft_before_the_close_is_still_verified(void **state)
{
    (void)state;
    const struct answer *want = story();
    struct wish w;
    struct verify v;
    wish_init(&w, STORY, 100);
    Tandem__V1__VerifyDraft d = TANDEM__V1__VERIFY_DRAFT__INIT;
    d.base_len = want->prompt_tokens;
    d.tokens = (uint32_t *)want->ids;
    d.n_tokens = 3;
    verify_open_at(client, &v, NULL);
    verify_send(&v, &w.msg, NULL);
    verify_send(&v, NULL, &d);
    assert_int_equal(verify_close(&v).code, RPC_OK);
    assert_int_equal(v.n_commits, 1);
    assert_int_equal(v.n_run, 4);
    assert_memory_equal(v.run, want->ids, 4 * sizeof(uint32_t));
    wait_load(client, 0, 0);
}

static void a_closed_stream_is_a_good_end(void **state)
{
    (void)state;
    const char *closed = "tandem_request_success_total{finished_reason=\"closed\"}";
    double n_closed = metric_of(client, closed);
    double n_failed = metric_of(client, "tandem_request_failed_total");
    struct wish w;
    struct verify v;
    wish_init(&w, STORY, 100);
    w.msg.id = text_of("to-be-closed");
    verify_open(&v, &w.msg);
    assert_int_equal(verify_close(&v).code, RPC_OK); // before any draft
    verify_open(&v, &w.msg);
    verify_draft(&v, story()->ids, NULL, 3);
    assert_int_equal(verify_close(&v).code, RPC_OK);
    assert_true(metric_of(client, closed) == n_closed + 2);
    assert_true(metric_of(client, "tandem_request_failed_total") == n_failed);
    assert_true(service_said(&verifier, "request done id=to-be-closed"));
}

static void a_stream_without_drafts_ends(void **state)
{
    (void)state;
    struct service s = {0};
    struct rpc_client *c;
    struct wish w;
    struct verify v;
    service_start(&s, "verifier-svc",
                  (const char *[]){"--model", MODEL, "--verify-timeout", "1", NULL});
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    wish_init(&w, STORY, 40);
    verify_open_at(c, &v, &w.msg);
    verify_draft(&v, NULL, NULL, 0);
    verify_wait(&v, 0, true);
    assert_int_equal(v.status.code, RPC_DEADLINE_EXCEEDED);
    assert_string_equal(v.status.text, "no draft came for 1 s");
    verify_close(&v);
    wait_load(c, 0, 0);
    assert_true(metric_of(c, "tandem_kv_cache_usage_ratio") == 0);
    rpc_client_free(c);
    service_stop(&s);
}

static void verify_must_end(struct verify *v, enum rpc_code code, const char *sentence)
{
    verify_wait(v, 0, true);
    if (v->status.code != code || !strstr(v->status.text, sentence))
        fail_msg("got %s: %s", rpc_code_name(v->status.code), v->status.text);
    verify_close(v);
}

static void drafts_that_do_not_fit_end_their_stream_only(void **state)
{
    (void)state;
    struct wish w;
    struct verify good, v;
    const uint32_t foreign = 4096;
    wish_init(&w, STORY, 40);
    verify_open(&good, &w.msg);

    Tandem__V1__VerifyDraft d = TANDEM__V1__VERIFY_DRAFT__INIT;
    verify_open(&v, &w.msg);
    d.base_len = v.base_len + 2;
    verify_send(&v, NULL, &d);
    char sentence[80];
    snprintf(sentence, sizeof(sentence), "continues a length of %u, %u tokens are committed",
             d.base_len, v.base_len);
    verify_must_end(&v, RPC_FAILED_PRECONDITION, sentence);

    verify_open(&v, NULL);
    verify_send(&v, NULL, &d); // nothing was opened
    verify_must_end(&v, RPC_FAILED_PRECONDITION, "before `open`");

    verify_open(&v, &w.msg);
    d.base_len = v.base_len;
    d.tokens = (uint32_t *)&foreign;
    d.n_tokens = 1;
    verify_send(&v, NULL, &d);
    verify_must_end(&v, RPC_INVALID_ARGUMENT, "vocabulary");

    uint32_t many[ACCEPT_MAX + 1] = {0};
    verify_open(&v, &w.msg);
    d.tokens = many;
    d.n_tokens = ACCEPT_MAX + 1;
    verify_send(&v, NULL, &d);
    verify_must_end(&v, RPC_INVALID_ARGUMENT, "65 tokens, at most 64");

    verify_open(&v, &w.msg);
    rpc_stream_send(v.stream, rpc_msg_of("\x12\xff\xff\xff", 4));
    verify_must_end(&v, RPC_INVALID_ARGUMENT, "VerifyRequest");

    verify_draft(&good, NULL, NULL, 0);
    assert_int_equal(good.run[0], story()->ids[0]);
    verify_close(&good);
    wait_load(client, 0, 0);
}

/* ---- bad input ---- */

static void bad_requests_are_refused_in_a_sentence(void **state)
{
    (void)state;
    struct wish w;
    AUTO(mem_free) char *long_text = malloc(8001);
    for (int i = 0; i < 2000; i++)
        memcpy(long_text + 4 * i, " the", 5);
    wish_init(&w, long_text, 10);
    must_refuse(client, &w.msg, RPC_INVALID_ARGUMENT,
                "the prompt has 2000 tokens; the context holds 1024");
    wish_init(&w, "abc\xff", 10);
    must_refuse(client, &w.msg, RPC_INVALID_ARGUMENT, "UTF-8");
    wish_init(&w, "", 10);
    must_refuse(client, &w.msg, RPC_INVALID_ARGUMENT, "the prompt is empty");
    wish_init(&w, "x", 0);
    must_refuse(client, &w.msg, RPC_INVALID_ARGUMENT, "max_tokens is 0");
    wish_init(&w, "x", 10);
    w.sampling.temperature = NAN;
    must_refuse(client, &w.msg, RPC_INVALID_ARGUMENT, "temperature is nan");
    w.sampling.temperature = -1e30F;
    must_refuse(client, &w.msg, RPC_INVALID_ARGUMENT, "temperature is -1e+30");
    wish_init(&w, "x", 10);
    w.msg.n = 4000000000U;
    must_refuse(client, &w.msg, RPC_INVALID_ARGUMENT, "n is 4000000000");
    wish_init(&w, "x", 10);
    w.msg.model = text_of("other");
    must_refuse(client, &w.msg, RPC_NOT_FOUND, "model 'other' is not served");
}

static void a_message_past_any_legal_request_is_refused(void **state)
{
    (void)state;
    struct wish w;
    wish_init(&w, "x", 1);
    AUTO(mem_free) char *text = calloc(1, 17 << 20);
    w.msg.text = (ProtobufCBinaryData){9 << 20, (uint8_t *)text};
    must_refuse(client, &w.msg, RPC_INVALID_ARGUMENT, "at most 8388608 are allowed");
    w.msg.text.len = 17 << 20;
    must_refuse(client, &w.msg, RPC_RESOURCE_EXHAUSTED, "");
}

static void detokenized_text_has_its_limit(void **state)
{
    (void)state;
    Tandem__V1__TokenizeRequest ask = TANDEM__V1__TOKENIZE_REQUEST__INIT;
    ProtobufCMessage *reply;
    ask.text = text_of("<|assistant|>");
    ask.parse_special = true;
    assert_int_equal(rpc_unary(client, "/tandem.v1.Verifier/Tokenize", NULL, &ask.base,
                               &tandem__v1__tokenize_reply__descriptor, &reply)
                         .code,
                     RPC_OK);
    const Tandem__V1__TokenizeReply *one = (const Tandem__V1__TokenizeReply *)reply;
    assert_int_equal(one->n_ids, 1);
    Tandem__V1__DetokenizeRequest req = TANDEM__V1__DETOKENIZE_REQUEST__INIT;
    req.n_ids = 1 << 20;
    AUTO(mem_free) uint32_t *ids = malloc(req.n_ids * sizeof(*ids));
    for (size_t i = 0; i < req.n_ids; i++)
        ids[i] = one->ids[0];
    protobuf_c_message_free_unpacked(reply, NULL);
    req.ids = ids;
    req.render_special = true;
    struct rpc_status st = rpc_unary(client, "/tandem.v1.Verifier/Detokenize", NULL, &req.base,
                                     &tandem__v1__detokenize_reply__descriptor, &reply);
    assert_int_equal(st.code, RPC_INVALID_ARGUMENT);
    assert_string_equal(st.text, "the text would have 13631488 bytes, at most 8388608 are allowed");
}

static void a_malformed_message_is_refused(void **state)
{
    (void)state;
    struct verify v;
    static const struct rpc_events events = {.on_message = verify_message, .on_end = verify_end};
    memset(&v, 0, sizeof(v));
    pthread_mutex_init(&v.mu, NULL);
    pthread_cond_init(&v.changed, NULL);
    v.stream = rpc_stream_new(client, "/tandem.v1.Verifier/Generate", NULL, &events, &v);
    rpc_stream_send(v.stream, rpc_msg_of("\x1a\xff\xff\xff\xff", 5));
    verify_must_end(&v, RPC_INVALID_ARGUMENT, "GenerateRequest");
}

/* ---- cancel, deadline, back-pressure ---- */

static void a_cancelled_request_leaves_within_a_round(void **state)
{
    (void)state;
    struct wish w;
    struct generation g;
    AUTO(mem_free) struct answer *a = answers_new(1);
    wish_init(&w, STORY, 1000);
    w.msg.ignore_eos = true;
    w.msg.id = text_of("to-be-cancelled");
    generation_start(&g, client, &w.msg, a);
    generation_wait_tokens(&g, 5);
    rpc_stream_cancel(g.stream);
    generation_end(&g);
    assert_int_equal(g.status.code, RPC_CANCELLED);
    assert_true(a->n < 1000);
    wait_load(client, 0, 0);
    assert_true(service_said(&verifier, "request cancelled id=to-be-cancelled"));
}

static void a_deadline_ends_the_request(void **state)
{
    (void)state;
    struct wish w;
    struct verify v;
    static const struct rpc_events events = {.on_message = verify_message, .on_end = verify_end};
    memset(&v, 0, sizeof(v));
    pthread_mutex_init(&v.mu, NULL);
    pthread_cond_init(&v.changed, NULL);
    wish_init(&w, STORY, 1000);
    w.msg.ignore_eos = true;
    w.msg.n = 32; // long enough for any machine
    w.sampling.temperature = 1;
    struct rpc_options opt = {.timeout_us = 50000};
    v.stream = rpc_stream_new(client, "/tandem.v1.Verifier/Generate", &opt, &events, &v);
    rpc_stream_send(v.stream, rpc_pack(&w.msg.base));
    rpc_stream_close(v.stream);
    verify_must_end(&v, RPC_DEADLINE_EXCEEDED, "");
    wait_load(client, 0, 0);
}

static void a_client_that_does_not_read_is_waited_for(void **state)
{
    (void)state;
    struct wish w;
    struct generation g;
    AUTO(mem_free) struct answer *a = answers_new(2);
    wish_init(&w, STORY, 900);
    w.msg.ignore_eos = true;
    w.msg.logprobs = true;
    w.msg.top_logprobs = 20; // half a kilobyte a token
    w.msg.n = 16;
    generation_run(client, &w.msg, &a[0]);
    generation_start(&g, client, &w.msg, &a[1]);
    rpc_stream_pause(g.stream);
    wait_metric(client, "tandem_num_requests_paused", 16);
    assert_true(service_said(&verifier, "answer paused"));
    rpc_stream_resume(g.stream);
    generation_end(&g);
    assert_int_equal(g.status.code, RPC_OK);
    same_answer(&a[0], &a[1]);
}

static void a_client_that_never_reads_is_given_up(void **state)
{
    (void)state;
    struct service s = {0};
    struct rpc_client *c, *slow;
    struct wish w;
    struct generation g;
    AUTO(mem_free) struct answer *a = answers_new(1);
    service_start(&s, "verifier-svc",
                  (const char *[]){"--model", MODEL, "--reader-timeout", "1", NULL});
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    assert_int_equal(rpc_client_new(s.target, NULL, &slow), 0);
    wish_init(&w, STORY, 900);
    w.msg.ignore_eos = true;
    w.msg.logprobs = true;
    w.msg.top_logprobs = 20;
    w.msg.n = 16;
    generation_start(&g, slow, &w.msg, a);
    rpc_stream_pause(g.stream);
    while (metric_of(c, "tandem_request_failed_total") == 0)
        nap();
    rpc_stream_resume(g.stream);
    generation_end(&g);
    assert_int_equal(g.status.code, RPC_RESOURCE_EXHAUSTED);
    assert_string_equal(g.status.text, "more than 256 KiB of the answer were not read for 1 s");
    wait_load(c, 0, 0);
    rpc_client_free(slow);
    rpc_client_free(c);
    service_stop(&s);
}

/* ---- shortage ---- */

static void a_full_queue_refuses_the_next(void **state)
{
    (void)state;
    struct service s = {0};
    struct rpc_client *c;
    static const char *const args[] = {"--model", MODEL, "--max-sequences", "1", "--queue-length",
                                       "1",       NULL};
    service_start(&s, "verifier-svc", args);
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    struct wish w;
    struct generation g[2];
    AUTO(mem_free) struct answer *a = answers_new(2);
    wish_init(&w, STORY, 1000);
    w.msg.ignore_eos = true;
    generation_start(&g[0], c, &w.msg, &a[0]);
    generation_wait_tokens(&g[0], 1);
    generation_start(&g[1], c, &w.msg, &a[1]);
    wait_load(c, 1, 1);
    must_refuse(c, &w.msg, RPC_RESOURCE_EXHAUSTED, "the queue is full: 1 requests wait already");
    rpc_stream_cancel(g[0].stream);
    generation_end(&g[0]);
    generation_wait_tokens(&g[1], 1); // its turn has come
    rpc_stream_cancel(g[1].stream);
    generation_end(&g[1]);
    rpc_client_free(c);
    service_stop(&s);
}

static void a_small_pool_preempts_and_changes_nothing(void **state)
{
    (void)state;
    enum { N = 16 };
    struct service s = {0};
    struct rpc_client *c;
    static const char *const args[] = {"--model", MODEL, "--kv-mib", "1", NULL}; // 1365 positions
    service_start(&s, "verifier-svc", args);
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    struct wish w[N];
    struct generation g[N];
    AUTO(mem_free) struct answer *alone = answers_new(N), *together = answers_new(N);
    for (unsigned i = 0; i < N; i++) {
        wish_init(&w[i], STORY, 200);
        w[i].sampling.temperature = 0.9F;
        w[i].sampling.seed = i;
        w[i].msg.ignore_eos = true;
        w[i].msg.logprobs = true;
        generation_run(client, &w[i].msg, &alone[i]); // at the server with room
    }
    for (unsigned i = 0; i < N; i++)
        generation_start(&g[i], c, &w[i].msg, &together[i]);
    for (unsigned i = 0; i < N; i++) {
        generation_end(&g[i]);
        assert_int_equal(g[i].status.code, RPC_OK);
        same_answer(&alone[i], &together[i]);
    }
    wait_load(c, 0, 0);
    assert_true(metric_of(c, "tandem_num_preemptions_total") > 0);
    assert_true(metric_of(c, "tandem_kv_cache_usage_ratio") == 0); // all blocks came back
    rpc_client_free(c);
    service_stop(&s);
}

static void a_waiting_verify_stream_gives_way_and_comes_back(void **state)
{
    (void)state;
    enum { N = 12 };
    struct service s = {0};
    struct rpc_client *c;
    static const char *const args[] = {"--model",          MODEL, "--kv-mib", "1",
                                       "--verify-timeout", "600", NULL};
    service_start(&s, "verifier-svc", args);
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    struct wish w, others;
    struct verify v;
    struct generation g[N];
    AUTO(mem_free) struct answer *a = answers_new(1 + N);
    AUTO(mem_free) char *text = malloc(2401);
    for (int i = 0; i < 600; i++)
        memcpy(text + 4 * i, i % 3 ? " the" : " cat", 5);
    wish_init(&w, text, 20);
    w.msg.logprobs = true;
    w.msg.ignore_eos = true;
    generation_run(client, &w.msg, &a[0]);
    verify_open_at(c, &v, &w.msg);
    verify_draft(&v, a[0].ids, NULL, 2);
    assert_int_equal(v.n_run, 3);

    wish_init(&others, STORY, 150);
    others.msg.ignore_eos = true;
    others.sampling.temperature = 0.9F; // equal answers would share their blocks
    for (unsigned i = 0; i < N; i++) {
        others.sampling.seed = i;
        generation_start(&g[i], c, &others.msg, &a[1 + i]);
    }
    for (unsigned i = 0; i < N; i++) {
        generation_end(&g[i]);
        assert_int_equal(g[i].status.code, RPC_OK);
    }
    assert_true(metric_of(c, "tandem_num_preemptions_total") > 0);
    verify_draft(&v, a[0].ids + 3, NULL, 4);
    assert_int_equal(v.accepted, 4);
    assert_memory_equal(v.run, a[0].ids + 3, 5 * sizeof(uint32_t));
    assert_memory_equal(v.logprobs, a[0].logprobs + 3, 5 * sizeof(float));
    assert_int_equal(verify_close(&v).code, RPC_OK);
    rpc_client_free(c);
    service_stop(&s);
}

static void idle_verify_streams_are_bounded(void **state)
{
    (void)state;
    enum { SEQS = 2, QUEUED = 3, N = SEQS + 2 * QUEUED };
    struct service s = {0};
    struct rpc_client *c;
    static const char *const args[] = {
        "--model", MODEL, "--max-sequences", "2", "--queue-length", "3", "--verify-timeout",
        "600",     NULL};
    service_start(&s, "verifier-svc", args);
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    struct wish w;
    struct verify v[N];
    wish_init(&w, "A", 20);
    for (unsigned i = 0; i < SEQS + QUEUED; i++)
        verify_open_at(c, &v[i], &w.msg); // each takes an idle one's seat
    for (unsigned i = SEQS + QUEUED; i < N; i++) {
        verify_open_at(c, &v[i], NULL);
        verify_send(&v[i], &w.msg, NULL);
    }
    wait_load(c, SEQS, N - SEQS);
    must_refuse(c, &w.msg, RPC_RESOURCE_EXHAUSTED, "the queue is full: 3 requests wait already");
    verify_draft(&v[0], NULL, NULL, 0); // the oldest has not lost its place
    assert_int_equal(v[0].n_run, 1);
    for (unsigned i = 0; i < N; i++) {
        verify_wait(&v[i], 0, false); // its turn comes with the ends of those before it
        assert_int_equal(verify_close(&v[i]).code, RPC_OK);
    }
    wait_load(c, 0, 0);
    rpc_client_free(c);
    service_stop(&s);
}

static void choices_that_have_not_begun_are_preempted_with_the_first(void **state)
{
    (void)state;
    struct service s = {0};
    struct rpc_client *c;
    static const char *const args[] = {"--model",         MODEL, "--kv-mib", "1",
                                       "--prefill-chunk", "1",   NULL}; // 85 blocks
    service_start(&s, "verifier-svc", args);
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    struct wish older, w;
    struct generation g[3];
    AUTO(mem_free) struct answer *a = answers_new(4);
    AUTO(mem_free) char *text = malloc(2401);
    for (int i = 0; i < 600; i++)
        memcpy(text + 4 * i, i % 3 ? " the" : " cat", 5);
    wish_init(&w, text, 5);
    w.msg.ignore_eos = true;
    w.msg.n = 24; // owed a tail and a row each
    generation_run(client, &w.msg, &a[3]);
    wish_init(&older, "Once", 900);
    older.msg.ignore_eos = true;
    for (unsigned tries = 0; metric_of(c, "tandem_num_preemptions_total") == 0; tries++) {
        assert_true(tries < 10); // the last one came too late to be let in beside the others
        memset(a, 0, 3 * sizeof(*a));
        for (unsigned i = 0; i < 3; i++)
            generation_start(&g[i], c, i < 2 ? &older.msg : &w.msg, &a[i]);
        for (unsigned i = 0; i < 3; i++) {
            generation_end(&g[i]);
            assert_int_equal(g[i].status.code, RPC_OK);
        }
        same_answer(&a[2], &a[3]);
    }
    wait_load(c, 0, 0);
    rpc_client_free(c);
    service_stop(&s);
}

static void chunks_of_a_prompt_change_nothing(void **state)
{
    (void)state;
    struct service s = {0};
    struct rpc_client *c;
    static const char *const args[] = {"--model", MODEL, "--prefill-chunk", "7", "--max-batch-rows",
                                       "64",      NULL};
    service_start(&s, "verifier-svc", args);
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    struct wish w;
    AUTO(mem_free) struct answer *a = answers_new(2);
    AUTO(mem_free) char *text = malloc(2001);
    for (int i = 0; i < 500; i++)
        memcpy(text + 4 * i, i % 3 ? " the" : " cat", 5);
    wish_init(&w, text, 50);
    w.msg.logprobs = true;
    generation_run(client, &w.msg, &a[0]);
    generation_run(c, &w.msg, &a[1]);
    same_answer(&a[0], &a[1]);
    rpc_client_free(c);
    service_stop(&s);
}

/* ---- errors inside ---- */

#define BROKEN_TOKEN 3000

static void write_model(const char *name, const char *file, size_t len, char path[200])
{
    snprintf(path, 200, "%s/%s.gguf", service_dir(), name);
    FILE *to = fopen(path, "wb");
    assert_non_null(to);
    assert_int_equal(fwrite(file, 1, len, to), len);
    assert_int_equal(fclose(to), 0);
}

/* A copy of the model in which one token's embedding is not a number. */
static void write_broken_model(char path[200])
{
    struct gguf *g;
    size_t len;
    AUTO(mem_free) char *file = lib_read(MODEL, &len);
    assert_int_equal(gguf_open_memory(file, len, &g), 0);
    const struct gguf_tensor *t = gguf_find(g, "token_embd.weight");
    assert_true(t && t->type == GGUF_Q8_0);
    size_t row_bytes = t->bytes / t->shape[1]; // blocks of an f16 scale and 32 weights
    memcpy((char *)t->data + BROKEN_TOKEN * row_bytes, "\x00\x7e", 2);
    gguf_close(g);
    write_model("broken", file, len, path);
}

static void an_error_inside_ends_its_own_sequence_only(void **state)
{
    (void)state;
    struct service s = {0};
    struct rpc_client *c;
    char path[200];
    write_broken_model(path);
    service_start(&s, "verifier-svc", (const char *[]){"--model", path, NULL});
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    struct wish good, bad;
    struct generation g;
    AUTO(mem_free) struct answer *a = answers_new(1);
    wish_init(&good, STORY, 800);
    good.msg.ignore_eos = true;
    generation_start(&g, c, &good.msg, a);
    generation_wait_tokens(&g, 3);

    uint32_t ids[] = {5, BROKEN_TOKEN, 6};
    Tandem__V1__TokenIds tokens = TANDEM__V1__TOKEN_IDS__INIT;
    tokens.ids = ids;
    tokens.n_ids = 3;
    wish_init(&bad, "", 10);
    bad.msg.prompt_case = TANDEM__V1__GENERATE_REQUEST__PROMPT_TOKENS;
    bad.msg.tokens = &tokens;
    bad.msg.n = 3;
    must_refuse(c, &bad.msg, RPC_INTERNAL, "the model gave no usable logits");
    generation_end(&g);
    assert_int_equal(g.status.code, RPC_OK);
    assert_int_equal(a->n, 800);
    wait_load(c, 0, 0);
    assert_true(metric_of(c, "tandem_kv_cache_usage_ratio") == 0);
    rpc_client_free(c);
    service_stop(&s);
}

/* ---- proposers ---- */

static void a_proposer_changes_nothing_but_the_rounds(void **state)
{
    (void)state;
    struct service p = {0}, s = {0};
    struct rpc_client *c;
    service_spawn(&p, "proposer-svc", (const char *[]){"--proposer", "ngram", NULL});
    service_start(
        &s, "verifier-svc",
        (const char *[]){"--model", MODEL, "--policy", "fixed", "--proposers", p.target, NULL});
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    wait_proposers(c);
    struct wish w;
    AUTO(mem_free) struct answer *a = answers_new(2);
    unsigned accepted = 0;
    for (int i = 0; i < 4; i++) {
        wish_init(&w, STORY, 300);
        w.msg.ignore_eos = true;
        w.msg.logprobs = true;
        w.sampling.temperature = i % 2 ? 0.8F : 0;
        w.sampling.repetition_penalty = 1.1F;
        w.sampling.has_repetition_case =
            i / 2 ? TANDEM__V1__SAMPLING__HAS_REPETITION_REPETITION_PENALTY : 0;
        generation_run(client, &w.msg, &a[0]);
        generation_run(c, &w.msg, &a[1]);
        same_answer(&a[0], &a[1]);
        accepted += a[1].accepted;
    }
    assert_true(accepted > 20);
    service_kill(&p); // and without it
    generation_run(c, &w.msg, &a[1]);
    same_answer(&a[0], &a[1]);
    rpc_client_free(c);
    service_stop(&s);
}

enum { N_ALIKE = 8 };

/* Two verifiers, each with the same two proposers. */
struct square {
    struct service proposers[2], verifiers[2];
    struct rpc_client *clients[2];
    struct wish wishes[N_ALIKE];
    struct answer *plain; // (N_ALIKE) without a proposer
};

static void square_open(struct square *q)
{
    memset(q, 0, sizeof(*q));
    for (unsigned i = 0; i < 2; i++)
        service_spawn(&q->proposers[i], "proposer-svc", NULL);
    const char *const args[] = {"--model",     MODEL,
                                "--proposers", q->proposers[0].target,
                                "--proposers", q->proposers[1].target,
                                "--policy",    "fixed",
                                NULL};
    for (unsigned i = 0; i < 2; i++) {
        service_start(&q->verifiers[i], "verifier-svc", args);
        assert_int_equal(rpc_client_new(q->verifiers[i].target, NULL, &q->clients[i]), 0);
        wait_proposers(q->clients[i]);
    }
    q->plain = answers_new(N_ALIKE);
    for (unsigned i = 0; i < N_ALIKE; i++) {
        struct wish *w = &q->wishes[i];
        wish_init(w, STORY, 400);
        w->msg.ignore_eos = true;
        w->msg.logprobs = true;
        w->sampling.temperature = i % 2 ? 0.8F : 0;
        w->sampling.seed = i;
        generation_run(client, &w->msg, &q->plain[i]);
    }
}

static void square_close(struct square *q)
{
    for (unsigned i = 0; i < 2; i++) {
        rpc_client_free(q->clients[i]);
        service_stop(&q->verifiers[i]);
        service_stop(&q->proposers[i]);
    }
    free(q->plain);
}

/* All requests at once on both verifiers; proposer `dying`, if there is one, is killed under them.
 */
static void square_run(struct square *q, struct service *dying)
{
    struct generation g[2 * N_ALIKE];
    AUTO(mem_free) struct answer *a = answers_new(2 * N_ALIKE);
    for (unsigned i = 0; i < 2 * N_ALIKE; i++)
        generation_start(&g[i], q->clients[i % 2], &q->wishes[i / 2].msg, &a[i]);
    if (dying) {
        generation_wait_tokens(&g[0], 50);
        generation_wait_tokens(&g[1], 50);
        service_kill(dying);
    }
    for (unsigned i = 0; i < 2 * N_ALIKE; i++) {
        generation_end(&g[i]);
        assert_int_equal(g[i].status.code, RPC_OK);
        same_answer(&q->plain[i / 2], &a[i]);
    }
}

static void two_verifiers_share_two_proposers(void **state)
{
    (void)state;
    struct square q;
    uint64_t before[2];
    square_open(&q);
    square_run(&q, NULL);
    for (unsigned v = 0; v < 2; v++) {
        assert_true(drafts_of(q.clients[v], 0) > 0);
        assert_true(drafts_of(q.clients[v], 1) > 0);
    }
    square_run(&q, &q.proposers[0]);
    for (unsigned v = 0; v < 2; v++)
        before[v] = drafts_of(q.clients[v], 1);
    square_run(&q, NULL); // the other one goes on for both
    for (unsigned v = 0; v < 2; v++)
        assert_true(drafts_of(q.clients[v], 1) > before[v]);
    square_close(&q);
}

/* The places at the proposer are for the sequences that run. */
static void a_preempted_sequence_gives_up_its_place_at_the_proposer(void **state)
{
    (void)state;
    struct service p = {0}, s = {0};
    struct rpc_client *c;
    struct wish w;
    struct generation slow;
    AUTO(mem_free) struct answer *a = answers_new(3);
    service_spawn(&p, "proposer-svc", NULL);
    service_start(&s, "verifier-svc",
                  (const char *[]){"--model", MODEL, "--policy", "fixed", "--proposers", p.target,
                                   "--max-sequences", "4", NULL});
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    wait_proposers(c);
    wish_init(&w, STORY, 900);
    w.msg.ignore_eos = true;
    w.msg.logprobs = true;
    w.msg.top_logprobs = 20;
    w.msg.n = 4;
    generation_run(client, &w.msg, &a[0]);
    generation_start(&slow, c, &w.msg, &a[1]);
    rpc_stream_pause(slow.stream);
    wait_metric(c, "tandem_num_requests_paused", 4);
    wish_init(&w, STORY, 300);
    w.msg.ignore_eos = true;
    uint64_t before = drafts_of(c, 0);
    generation_run(c, &w.msg, &a[2]);
    assert_true(drafts_of(c, 0) > before);
    rpc_stream_resume(slow.stream);
    generation_end(&slow);
    assert_int_equal(slow.status.code, RPC_OK);
    same_answer(&a[0], &a[1]);
    rpc_client_free(c);
    service_stop(&s);
    service_stop(&p);
}

static uint32_t blocks_of(struct rpc_client *c)
{
    Tandem__V1__StatsReply *s = stats_of(c);
    uint32_t n = (uint32_t)s->cache->blocks_total;
    tandem__v1__stats_reply__free_unpacked(s, NULL);
    return n;
}

/* Sequences that fill the pool to the last block when they end; drafts take what is left before. */
static void a_draft_gives_way_where_blocks_run_out(void **state)
{
    (void)state;
    enum { N = 5 };
    struct service p = {0}, s = {0};
    struct rpc_client *c;
    service_spawn(&p, "proposer-svc", (const char *[]){"--proposer", "ngram", NULL});
    service_start(&s, "verifier-svc",
                  (const char *[]){"--model", MODEL, "--kv-mib", "1", "--policy", "fixed", "--k",
                                   "20", "--proposers", p.target, NULL});
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    wait_proposers(c);
    struct wish w[N];
    struct generation g[N];
    AUTO(mem_free) struct answer *alone = answers_new(N), *together = answers_new(N);
    unsigned drafted = 0;
    for (unsigned i = 0; i < N; i++) {
        wish_init(&w[i], STORY, 1);
        generation_run(client, &w[i].msg, &alone[i]); // how long the prompt is
        w[i].msg.max_tokens = blocks_of(c) / N * KV_BLOCK + 1 - alone[i].prompt_tokens;
        w[i].sampling.seed = i;
        w[i].msg.ignore_eos = true;
        w[i].msg.logprobs = true;
        memset(&alone[i], 0, sizeof(alone[i]));
        generation_run(client, &w[i].msg, &alone[i]);
    }
    for (unsigned i = 0; i < N; i++)
        generation_start(&g[i], c, &w[i].msg, &together[i]);
    for (unsigned i = 0; i < N; i++) {
        generation_end(&g[i]);
        assert_int_equal(g[i].status.code, RPC_OK);
        same_answer(&alone[i], &together[i]);
        drafted += together[i].drafted;
    }
    assert_true(drafted > 0);
    assert_true(metric_of(c, "tandem_num_preemptions_total") == 0);
    assert_true(metric_of(c, "tandem_request_failed_total") == 0);
    rpc_client_free(c);
    service_stop(&s);
    service_stop(&p);
}

static void a_draft_gives_way_where_the_context_ends(void **state)
{
    (void)state;
    struct service p = {0}, s = {0};
    struct rpc_client *c;
    service_spawn(&p, "proposer-svc", (const char *[]){"--proposer", "ngram", NULL});
    service_start(&s, "verifier-svc",
                  (const char *[]){"--model", MODEL, "--context", "200", "--policy", "fixed", "--k",
                                   "20", "--proposers", p.target, NULL});
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    wait_proposers(c);
    struct wish w;
    AUTO(mem_free) struct answer *a = answers_new(2);
    AUTO(mem_free) char *text = malloc(601);
    for (int i = 0; i < 150; i++)
        memcpy(text + 4 * i, i % 3 ? " the" : " cat", 5);
    wish_init(&w, text, 1000);
    w.msg.ignore_eos = true;
    w.msg.logprobs = true;
    generation_run(c, &w.msg, &a[1]);
    assert_int_equal(a[1].prompt_tokens + a[1].n, 200);
    assert_int_equal(a[1].reason, TANDEM__V1__FINISH_REASON__FINISH_REASON_LENGTH);
    assert_true(a[1].drafted > 0);
    w.msg.max_tokens = a[1].n;
    generation_run(client, &w.msg, &a[0]);
    same_answer(&a[0], &a[1]);
    rpc_client_free(c);
    service_stop(&s);
    service_stop(&p);
}

/* ---- beginning and end ---- */

static void requests_wait_for_the_model(void **state)
{
    (void)state;
    struct service s = {0};
    struct rpc_client *c;
    struct wish w;
    struct generation g;
    AUTO(mem_free) struct answer *a = answers_new(1);
    service_spawn(&s, "verifier-svc", plain_args);
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    struct rpc_options opt = {.wait_for_ready = true, .timeout_us = WITHIN_S * INT64_C(1000000)};
    Tandem__V1__GetModelRequest ask = TANDEM__V1__GET_MODEL_REQUEST__INIT;
    ProtobufCMessage *reply;
    struct rpc_status st = rpc_unary(c, "/tandem.v1.Verifier/GetModel", &opt, &ask.base,
                                     &tandem__v1__model_info__descriptor, &reply);
    assert_int_equal(st.code, RPC_OK); // the port is open before the model is there
    protobuf_c_message_free_unpacked(reply, NULL);
    wish_init(&w, STORY, 5);
    generation_start(&g, c, &w.msg, a);
    generation_end(&g);
    assert_int_equal(g.status.code, RPC_OK);
    rpc_client_free(c);
    service_stop(&s);
}

static struct rpc_status get_model(struct rpc_client *c, uint32_t protocol, uint32_t *ret_protocol)
{
    Tandem__V1__GetModelRequest ask = TANDEM__V1__GET_MODEL_REQUEST__INIT;
    ProtobufCMessage *m = NULL;
    ask.protocol = protocol;
    struct rpc_status st = rpc_unary(c, "/tandem.v1.Verifier/GetModel", NULL, &ask.base,
                                     &tandem__v1__model_info__descriptor, &m);
    const Tandem__V1__ModelInfo *info = (const Tandem__V1__ModelInfo *)m;
    *ret_protocol = info ? info->protocol : 0;
    if (m)
        protobuf_c_message_free_unpacked(m, NULL);
    return st;
}

static void every_version_is_served_as_version_1(void **state)
{
    (void)state;
    struct service s = {0};
    struct rpc_client *c;
    uint32_t protocol;
    service_start(&s, "verifier-svc", plain_args);
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    for (uint32_t theirs = 0; theirs < 3; theirs++) { // 0: not told
        assert_int_equal(get_model(c, theirs, &protocol).code, RPC_OK);
        assert_int_equal(protocol, 1);
    }
    rpc_client_free(c);
    service_stop(&s);
}

/* What GetModel says of a verifier with these settings. */
static void ask_float_gemm(const char *const *args, char gemm[8], char fingerprint[32])
{
    struct service s = {0};
    struct rpc_client *c;
    ProtobufCMessage *m;
    Tandem__V1__GetModelRequest ask = TANDEM__V1__GET_MODEL_REQUEST__INIT;
    service_start(&s, "verifier-svc", args);
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    struct rpc_status st = rpc_unary(c, "/tandem.v1.Verifier/GetModel", NULL, &ask.base,
                                     &tandem__v1__model_info__descriptor, &m);
    assert_int_equal(st.code, RPC_OK);
    const Tandem__V1__ModelInfo *info = (const Tandem__V1__ModelInfo *)m;
    snprintf(gemm, 8, "%.*s", (int)info->float_gemm.len, (char *)info->float_gemm.data);
    snprintf(fingerprint, 32, "%.*s", (int)info->fingerprint.len, (char *)info->fingerprint.data);
    protobuf_c_message_free_unpacked(m, NULL);
    rpc_client_free(c);
    assert_int_equal(service_said(&s, "may get other tokens"), strcmp(gemm, "blas") == 0);
    service_stop(&s);
}

static void openblas_is_told_and_has_its_own_fingerprint(void **state)
{
    (void)state;
    char gemm[8], own[32], blas[32];
    ask_float_gemm(plain_args, gemm, own);
    assert_string_equal(gemm, "own");
    ask_float_gemm((const char *[]){"--model", MODEL, "--float-gemm", "blas", NULL}, gemm, blas);
    assert_string_equal(gemm, "blas");
    assert_string_not_equal(own, blas);
}

/* GetModel's answer as it is on the wire, malloc'ed. */
static uint8_t *model_of(struct rpc_client *c, size_t *ret_len)
{
    Tandem__V1__GetModelRequest ask = TANDEM__V1__GET_MODEL_REQUEST__INIT;
    ProtobufCMessage *m;
    struct rpc_status st = rpc_unary(c, "/tandem.v1.Verifier/GetModel", NULL, &ask.base,
                                     &tandem__v1__model_info__descriptor, &m);
    assert_int_equal(st.code, RPC_OK);
    assert_true(((const Tandem__V1__ModelInfo *)m)->chat_template.len > 0);
    uint8_t *bytes = malloc(protobuf_c_message_get_packed_size(m));
    *ret_len = protobuf_c_message_pack(m, bytes);
    protobuf_c_message_free_unpacked(m, NULL);
    return bytes;
}

static void a_loaded_models_file_may_go(void **state)
{
    (void)state;
    struct service s = {0};
    struct rpc_client *c;
    struct wish w;
    char path[200];
    size_t len, before_len, after_len;
    AUTO(mem_free) struct answer *a = answers_new(2);
    AUTO(mem_free) char *file = lib_read(MODEL, &len);
    write_model("going", file, len, path);
    service_start(&s, "verifier-svc", (const char *[]){"--model", path, NULL});
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    wish_init(&w, STORY, 50);
    w.msg.logprobs = true;
    w.msg.top_logprobs = 5;
    AUTO(mem_free) uint8_t *before = model_of(c, &before_len);
    generation_run(c, &w.msg, &a[0]);
    write_model("going", "", 0, path); // the same file, now empty
    AUTO(mem_free) uint8_t *after = model_of(c, &after_len);
    generation_run(c, &w.msg, &a[1]);
    assert_int_equal(after_len, before_len);
    assert_memory_equal(after, before, before_len);
    same_answer(&a[0], &a[1]);
    rpc_client_free(c);
    service_stop(&s);
}

static void a_drain_finishes_what_was_accepted(void **state)
{
    (void)state;
    struct service s = {0};
    struct rpc_client *c, *late;
    struct wish w;
    struct generation g;
    AUTO(mem_free) struct answer *a = answers_new(1);
    service_start(&s, "verifier-svc", plain_args);
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    assert_int_equal(rpc_client_new(s.target, NULL, &late), 0);
    wish_init(&w, STORY, 1000);
    w.msg.ignore_eos = true;
    generation_start(&g, c, &w.msg, a);
    generation_wait_tokens(&g, 3);
    service_signal(&s, SIGTERM);
    generation_end(&g);
    assert_int_equal(g.status.code, RPC_OK);
    assert_int_equal(a->n, 1000);
    must_refuse(late, &w.msg, RPC_UNAVAILABLE, "");
    rpc_client_free(c);
    rpc_client_free(late);
    service_stop(&s); // its exit status must be 0
}

static void a_drain_has_its_limit(void **state)
{
    (void)state;
    struct service s = {0};
    struct rpc_client *c;
    struct wish w;
    struct generation g;
    AUTO(mem_free) struct answer *a = answers_new(1);
    static const char *const args[] = {"--model", MODEL, "--drain-timeout", "0", NULL};
    service_start(&s, "verifier-svc", args);
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    wish_init(&w, STORY, 1000);
    w.msg.ignore_eos = true;
    w.msg.n = 32;
    generation_start(&g, c, &w.msg, a);
    generation_wait_tokens(&g, 3);
    service_signal(&s, SIGTERM);
    generation_end(&g);
    assert_int_equal(g.status.code, RPC_UNAVAILABLE);
    assert_non_null(strstr(g.status.text, "stopping"));
    rpc_client_free(c);
    service_stop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_tokens_come_in_order_with_their_text),
        cmocka_unit_test(neighbours_change_nothing),
        cmocka_unit_test(the_first_choice_is_what_one_choice_would_be),
        cmocka_unit_test(a_greedy_tokens_logprob_is_the_best),
        cmocka_unit_test(a_seed_is_reported_and_repeats_the_answer),
        cmocka_unit_test(min_tokens_keeps_the_end_away),
        cmocka_unit_test(a_stop_string_is_cut_and_ends_the_answer),
        cmocka_unit_test(drafts_are_kept_wholly_partly_or_not_at_all),
        cmocka_unit_test(a_trees_right_branch_is_found),
        cmocka_unit_test(rollbacks_leave_the_bits_alone),
        cmocka_unit_test(eos_inside_a_draft_ends_it_there),
        cmocka_unit_test(max_tokens_inside_a_draft_ends_it_there),
        cmocka_unit_test(a_stop_string_inside_a_draft_ends_it_there),
        cmocka_unit_test(a_draft_before_the_close_is_still_verified),
        cmocka_unit_test(a_closed_stream_is_a_good_end),
        cmocka_unit_test(a_stream_without_drafts_ends),
        cmocka_unit_test(drafts_that_do_not_fit_end_their_stream_only),
        cmocka_unit_test(bad_requests_are_refused_in_a_sentence),
        cmocka_unit_test(a_message_past_any_legal_request_is_refused),
        cmocka_unit_test(detokenized_text_has_its_limit),
        cmocka_unit_test(a_malformed_message_is_refused),
        cmocka_unit_test(a_cancelled_request_leaves_within_a_round),
        cmocka_unit_test(a_deadline_ends_the_request),
        cmocka_unit_test(a_client_that_does_not_read_is_waited_for),
        cmocka_unit_test(a_client_that_never_reads_is_given_up),
        cmocka_unit_test(a_full_queue_refuses_the_next),
        cmocka_unit_test(a_small_pool_preempts_and_changes_nothing),
        cmocka_unit_test(a_waiting_verify_stream_gives_way_and_comes_back),
        cmocka_unit_test(idle_verify_streams_are_bounded),
        cmocka_unit_test(choices_that_have_not_begun_are_preempted_with_the_first),
        cmocka_unit_test(chunks_of_a_prompt_change_nothing),
        cmocka_unit_test(an_error_inside_ends_its_own_sequence_only),
        cmocka_unit_test(a_proposer_changes_nothing_but_the_rounds),
        cmocka_unit_test(two_verifiers_share_two_proposers),
        cmocka_unit_test(a_preempted_sequence_gives_up_its_place_at_the_proposer),
        cmocka_unit_test(a_draft_gives_way_where_blocks_run_out),
        cmocka_unit_test(a_draft_gives_way_where_the_context_ends),
        cmocka_unit_test(requests_wait_for_the_model),
        cmocka_unit_test(every_version_is_served_as_version_1),
        cmocka_unit_test(openblas_is_told_and_has_its_own_fingerprint),
        cmocka_unit_test(a_loaded_models_file_may_go),
        cmocka_unit_test(a_drain_finishes_what_was_accepted),
        cmocka_unit_test(a_drain_has_its_limit),
    };
    return cmocka_run_group_tests(tests, start_verifier, stop_verifier);
}

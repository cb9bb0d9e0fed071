/* test_waiting.c - calls that wait for a loading model, or for texts that take long to tokenize.
 * The verifier runs inside the test's process, so a test decides how long loading and tokenizing
 * take. The gateway runs as a separate process. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "lib/lib.h"
#include "base/clock.h"
#include "base/err.h"
#include "lib/fakes/failing.h"
#include "lib/rigs/child.h"
#include "lib/clients/generate.h"
#include "lib/clients/http_client.h"
#include "lib/rigs/rpc_rig.h"
#include "verifier-svc/edge/verifier_service_impl.h"

#define WITHIN_US 60000000
#define LOADED 0.42F
#define QUEUE_LENGTH 5
#define SLOW "a text that takes long"
#define LONG (VERIFIER_SERVICE_SHORT_JOB + 1) // bytes of a text that only one thread runs
#define MODEL SOURCE_DIR "/models/tales-1m-q8_0.gguf"
#define CHAT                                                                                       \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}],\"max_tokens\":3,"                  \
    "\"model\":\"tales-1m-q8_0\"}"

typedef Tandem__V1__GenerateRequest request;

/* ---- gates; the linker hands our calls of model_load() and tok_encode() to these ---- */

struct gate {
    pthread_mutex_t mu;
    pthread_cond_t changed;
    bool closed, has_waiter;
};

static struct gate load_gate = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, false};
static struct gate text_gate = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, false};
static struct gate long_gate = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, false};

static void gate_close(struct gate *g, bool closed)
{
    pthread_mutex_lock(&g->mu);
    g->closed = closed;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->mu);
}

static void gate_pass(struct gate *g)
{
    pthread_mutex_lock(&g->mu);
    g->has_waiter = g->closed;
    pthread_cond_broadcast(&g->changed);
    while (g->closed)
        pthread_cond_wait(&g->changed, &g->mu);
    g->has_waiter = false;
    pthread_mutex_unlock(&g->mu);
}

static void gate_await(struct gate *g)
{
    pthread_mutex_lock(&g->mu);
    while (!g->has_waiter)
        pthread_cond_wait(&g->changed, &g->mu);
    pthread_mutex_unlock(&g->mu);
}

static atomic_bool is_broken; // loading fails
static char tokenized[32];    // the texts of two bytes, in their order

int __real_model_load(struct model *m, const struct model_load_options *o);
int __wrap_model_load(struct model *m, const struct model_load_options *o);
int __real_tok_encode(const struct tok *t, const char *text, size_t len, bool parse_special,
                      bool add_bos, uint32_t **ret_ids, size_t *ret_n);
int __wrap_tok_encode(const struct tok *t, const char *text, size_t len, bool parse_special,
                      bool add_bos, uint32_t **ret_ids, size_t *ret_n);

int __wrap_model_load(struct model *m, const struct model_load_options *o)
{
    o->progress(o->arg, LOADED);
    gate_pass(&load_gate);
    if (atomic_load(&is_broken))
        return fail(-EIO, "the disk is broken");
    return __real_model_load(m, o);
}

int __wrap_tok_encode(const struct tok *t, const char *text, size_t len, bool parse_special,
                      bool add_bos, uint32_t **ret_ids, size_t *ret_n)
{
    if (len == strlen(SLOW) && memcmp(text, SLOW, len) == 0)
        gate_pass(&text_gate);
    if (len == LONG)
        gate_pass(&long_gate);
    if (len == 2)
        strncat(tokenized, text, 2); // on one thread, since the other one is at the long gate
    return __real_tok_encode(t, text, len, parse_special, add_bos, ret_ids, ret_n);
}

/* Waits until a condition is true that another thread makes true soon. */
#define AWAIT(what)                                                                                \
    for (int64_t until_us_ = clock_us() + WITHIN_US; !(what); sched_yield())                       \
    assert_true(clock_us() < until_us_)

static atomic_bool no_draft; // no memory for one

struct draft *__real_draft_new(void);
struct draft *__wrap_draft_new(void);
struct draft *__wrap_draft_new(void)
{
    return atomic_load(&no_draft) ? NULL : __real_draft_new();
}

/* The last call of rpc_call_after(). */
static _Atomic(struct rpc_call *) timed_call;
static void (*timed_fn)(struct rpc_call *c); // valid if timed_call is set

void __real_rpc_call_after(struct rpc_call *c, unsigned ms, void (*fn)(struct rpc_call *c));
void __wrap_rpc_call_after(struct rpc_call *c, unsigned ms, void (*fn)(struct rpc_call *c));
void __wrap_rpc_call_after(struct rpc_call *c, unsigned ms, void (*fn)(struct rpc_call *c))
{
    __real_rpc_call_after(c, ms, fn);
    timed_fn = fn;
    atomic_store(&timed_call, c);
}

/* A client that reads nothing until too much is unread; then it reads before the sender thread
 * knows. */
static _Atomic(struct rpc_stream *) late_reader;

ssize_t __real_rpc_call_send(struct rpc_call *c, struct rpc_msg *msg);
ssize_t __wrap_rpc_call_send(struct rpc_call *c, struct rpc_msg *msg);
ssize_t __wrap_rpc_call_send(struct rpc_call *c, struct rpc_msg *msg)
{
    struct request *r = rpc_call_user(c);
    unsigned before = r ? atomic_load(&r->n_drains) : 0; // only Generate and Verify have one
    ssize_t unread = __real_rpc_call_send(c, msg);
    if (unread <= (ssize_t)VERIFIER_SERVICE_UNREAD_MAX)
        return unread;
    struct rpc_stream *reader = atomic_exchange(&late_reader, NULL);
    if (reader) {
        rpc_stream_unpause(reader);
        AWAIT(atomic_load(&r->n_drains) != before);
    }
    return unread;
}

/* ---- the verifier ---- */

static char folder[] = "/tmp/tandem-waiting-XXXXXX", target[64];
static struct stats stats;
static struct verifier_options options;
static struct engine *engine;
static struct verifier_service *service;
static struct rpc_server *server;
static struct rpc_client *client, *other_client; // by the unix socket, and by TCP on loopback

static unsigned max_calls;                   // of the server; 0: the default
static unsigned own_role = RPC_ROLE_GATEWAY; // of the client

static void start_verifier(int load_wait_s)
{
    options = (struct verifier_options){.model = MODEL,
                                        .kv_disk = "",
                                        .k = 5,
                                        .max_sequences = 4,
                                        .queue_length = QUEUE_LENGTH,
                                        .max_batch_rows = 64,
                                        .prefill_chunk = 64,
                                        .prefix_cache = true,
                                        .max_pass_ms = 100,
                                        .threads = 1,
                                        .verify_streams = 4,
                                        .verify_timeout_s = 30,
                                        .reader_timeout_s = 60,
                                        .load_wait_s = load_wait_s};
    struct rpc_server_options opt = {.max_message = VERIFIER_SERVICE_MAX_MESSAGE, // one thread
                                     .max_calls = max_calls,
                                     .own_role = own_role};
    assert_int_equal(engine_new(&options, &stats, &engine), 0);
    assert_int_equal(verifier_service_new(&options, engine, &stats, &service), 0);
    assert_int_equal(rpc_server_new(&opt, &server), 0);
    verifier_service_add(service, server);
    assert_int_equal(engine_start(engine), 0);
    assert_int_equal(verifier_service_start(service), 0);
    assert_int_equal(rpc_server_listen(server, target), 1);
    int port = rpc_server_listen(server, "127.0.0.1:0");
    assert_true(port > 0);
    char tcp[32];
    snprintf(tcp, sizeof(tcp), "127.0.0.1:%d", port);
    assert_int_equal(rpc_server_start(server), 0);
    assert_int_equal(rpc_client_new(target, NULL, &client), 0);
    assert_int_equal(rpc_client_new(tcp, NULL, &other_client), 0);
}

static int stop_verifier(void **state)
{
    (void)state;
    gate_close(&load_gate, false);
    gate_close(&text_gate, false);
    gate_close(&long_gate, false);
    rpc_client_free(client);
    rpc_client_free(other_client);
    rpc_server_stop(server, 1000);
    engine_stop(engine);
    verifier_service_stop(service);
    verifier_service_free(service);
    engine_free(engine);
    return 0;
}

static int start_loading(void **state)
{
    (void)state;
    gate_close(&load_gate, true);
    start_verifier(60);
    gate_await(&load_gate);
    return 0;
}

static int start_with_two_slots(void **state)
{
    max_calls = 2;
    start_loading(state);
    max_calls = 0;
    return 0;
}

static int start_for_a_client(void **state)
{
    own_role = RPC_ROLE_CLIENT;
    start_loading(state);
    own_role = RPC_ROLE_GATEWAY;
    return 0;
}

static int start_for_an_operator(void **state)
{
    own_role = RPC_ROLE_OPERATOR;
    start_loading(state);
    own_role = RPC_ROLE_GATEWAY;
    return 0;
}

static int start_loaded(void **state)
{
    (void)state;
    start_verifier(60);
    return 0;
}

/* Waits until n calls wait. */
static void wait_n_jobs(uint32_t n)
{
    int64_t until_us = clock_us() + WITHIN_US;
    for (bool there = false; !there;) {
        pthread_mutex_lock(&service->mu);
        there = service->n_jobs == n;
        pthread_mutex_unlock(&service->mu);
        assert_true(clock_us() < until_us);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

static request prompt_of(const char *text, size_t len)
{
    request r = TANDEM__V1__GENERATE_REQUEST__INIT;
    r.prompt_case = TANDEM__V1__GENERATE_REQUEST__PROMPT_TEXT;
    r.text = (ProtobufCBinaryData){len, (uint8_t *)text};
    r.has_max_tokens_case = TANDEM__V1__GENERATE_REQUEST__HAS_MAX_TOKENS_MAX_TOKENS;
    r.max_tokens = 20;
    r.ignore_eos = true;
    return r;
}

static struct answer *start(struct generation *g, const request *r)
{
    struct answer *a = calloc(1, sizeof(*a));
    assert_non_null(a);
    generation_start(g, client, r, a);
    return a;
}

static void end(struct generation *g, enum rpc_code code, const char *sentence)
{
    generation_end(g);
    if (g->status.code != code || !strstr(g->status.text, sentence))
        fail_msg("got %s: %s", rpc_code_name(g->status.code), g->status.text);
}

/* ---- while the model loads ---- */

static void a_request_waits_for_the_model_and_is_served(void **state)
{
    (void)state;
    struct generation g;
    request r = prompt_of("Once", 4);
    AUTO(mem_free) struct answer *a = start(&g, &r);
    wait_n_jobs(1);
    gate_close(&load_gate, false);
    end(&g, RPC_OK, "");
    assert_int_equal(a->n, 20);
}

static const char *ask_text, *ask_flow; // of tokenize()

static void *tokenize(void *ret_code)
{
    Tandem__V1__TokenizeRequest ask = TANDEM__V1__TOKENIZE_REQUEST__INIT;
    ProtobufCMessage *reply;
    ask.text = rpc_text(ask_text);
    ask.flow = rpc_text(ask_flow);
    *(enum rpc_code *)ret_code = rpc_unary(client, "/tandem.v1.Verifier/Tokenize", NULL, &ask.base,
                                           &tandem__v1__tokenize_reply__descriptor, &reply)
                                     .code;
    if (reply)
        protobuf_c_message_free_unpacked(reply, NULL);
    return NULL;
}

static void ignore_message(void *user, struct rpc_msg *msg)
{
    (void)user;
    (void)msg;
}

static void verify_ended(void *user, const struct rpc_status *status)
{
    atomic_int *code = user;
    atomic_store(code, (int)status->code);
}

static void tokenize_and_verify_wait_too(void **state)
{
    (void)state;
    pthread_t thread;
    enum rpc_code code = RPC_UNKNOWN;
    ask_text = "Once";
    ask_flow = "";
    assert_int_equal(pthread_create(&thread, NULL, tokenize, &code), 0);
    static const struct rpc_events events = {.on_message = ignore_message, .on_end = verify_ended};
    atomic_int verify_code = -1;
    struct rpc_stream *stream =
        rpc_stream_new(client, "/tandem.v1.Verifier/Verify", NULL, &events, &verify_code);
    request r = prompt_of("Once", 4);
    Tandem__V1__VerifyRequest open = TANDEM__V1__VERIFY_REQUEST__INIT;
    open.message_case = TANDEM__V1__VERIFY_REQUEST__MESSAGE_OPEN;
    open.open = &r;
    rpc_stream_send(stream, rpc_pack(&open.base));
    rpc_stream_close(stream); // processed after `open`
    wait_n_jobs(2);
    gate_close(&load_gate, false);
    pthread_join(thread, NULL);
    assert_int_equal(code, RPC_OK);
    int64_t until_us = clock_us() + WITHIN_US;
    while (atomic_load(&verify_code) < 0)
        assert_true(clock_us() < until_us);
    assert_int_equal(atomic_load(&verify_code), RPC_OK);
    rpc_stream_free(stream);
}

static void a_bad_request_for_the_model_is_refused(void **state)
{
    (void)state;
    static const struct rpc_events events = {.on_message = ignore_message, .on_end = verify_ended};
    atomic_int code = -1;
    struct rpc_stream *stream =
        rpc_stream_new(client, "/tandem.v1.Verifier/GetModel", NULL, &events, &code);
    rpc_stream_send(stream, rpc_msg_of("\xff\xff", 2));
    AWAIT(atomic_load(&code) >= 0);
    assert_int_equal(atomic_load(&code), RPC_INVALID_ARGUMENT);
    rpc_stream_free(stream);
}

static void a_request_that_waits_too_long_gets_the_progress_of_loading(void **state)
{
    (void)state;
    struct generation g;
    request r = prompt_of("Once", 4);
    options.load_wait_s = 1;
    AUTO(mem_free) struct answer *a = start(&g, &r);
    end(&g, RPC_UNAVAILABLE, "the model is being loaded (42 %)");
    wait_n_jobs(0);
}

static void a_cancelled_request_no_longer_waits(void **state)
{
    (void)state;
    struct generation g[2];
    request r = prompt_of("Once", 4);
    AUTO(mem_free) struct answer *first = start(&g[0], &r), *second = start(&g[1], &r);
    wait_n_jobs(2);
    rpc_stream_cancel(g[0].stream);
    end(&g[0], RPC_CANCELLED, "");
    wait_n_jobs(1);
    gate_close(&load_gate, false);
    end(&g[1], RPC_OK, "");
}

static const struct rpc_events counting = {.on_message = rpc_tally_message,
                                           .on_end = rpc_tally_end};

static void other_cancelled_calls_no_longer_wait(void **state)
{
    (void)state;
    static const char *const paths[] = {"/tandem.v1.Verifier/Tokenize",
                                        "/tandem.v1.Verifier/Detokenize",
                                        "/tandem.v1.Verifier/SetSpeculation"};
    for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
        struct rpc_tally t = {0};
        struct rpc_stream *s = rpc_stream_new(client, paths[i], NULL, &counting, &t);
        rpc_stream_send(s, rpc_msg_of("", 0));
        wait_n_jobs(1);
        rpc_stream_cancel(s);
        rpc_rig_finish(s, &t, RPC_CANCELLED);
        wait_n_jobs(0);
        AWAIT(rpc_server_n_calls(server) == 0);
    }
}

static void a_request_that_runs_is_not_ended_by_its_time_limit_for_loading(void **state)
{
    (void)state;
    struct generation g;
    request slow = prompt_of(SLOW, strlen(SLOW));
    gate_close(&text_gate, true);
    atomic_store(&timed_call, NULL);
    AUTO(mem_free) struct answer *a = start(&g, &slow);
    AWAIT(atomic_load(&timed_call));
    gate_close(&load_gate, false);
    gate_await(&text_gate);
    timed_fn(atomic_load(&timed_call));
    gate_close(&text_gate, false);
    end(&g, RPC_OK, "");
    assert_int_equal(a->n, 20);
}

static void without_a_model_waiting_and_later_requests_get_the_reason(void **state)
{
    (void)state;
    static const char *const reason = "the model could not be loaded: the disk is broken";
    struct generation g[3];
    request r = prompt_of("Once", 4);
    AUTO(mem_free) struct answer *first = start(&g[0], &r), *second = start(&g[1], &r);
    wait_n_jobs(2);
    atomic_store(&is_broken, true);
    gate_close(&load_gate, false);
    end(&g[0], RPC_UNAVAILABLE, reason);
    end(&g[1], RPC_UNAVAILABLE, reason);
    AUTO(mem_free) struct answer *third = start(&g[2], &r);
    end(&g[2], RPC_UNAVAILABLE, reason);
    atomic_store(&is_broken, false);
}

static void waiting_requests_are_bounded_in_number(void **state)
{
    (void)state;
    enum { N = 5 };
    struct generation g[N + 1];
    struct answer *a[N + 1];
    request r = prompt_of("Once", 4);
    for (unsigned i = 0; i < N; i++)
        a[i] = start(&g[i], &r);
    wait_n_jobs(N);
    a[N] = start(&g[N], &r);
    end(&g[N], RPC_RESOURCE_EXHAUSTED, "the queue is full: 5 requests wait already");
    gate_close(&load_gate, false);
    for (unsigned i = 0; i < N; i++)
        end(&g[i], RPC_OK, "");
    for (unsigned i = 0; i <= N; i++)
        free(a[i]);
}

static void a_full_queue_has_a_place_for_another_flow(void **state)
{
    (void)state;
    enum { N = 5 };
    struct generation g[N + 1];
    struct answer *a[N + 1];
    request r = prompt_of("Once", 4), other = r;
    r.flow = rpc_text("burst");
    other.flow = rpc_text("other");
    for (unsigned i = 0; i < N; i++) {
        a[i] = start(&g[i], &r);
        wait_n_jobs(i + 1);
    }
    a[N] = start(&g[N], &other);
    end(&g[N - 1], RPC_RESOURCE_EXHAUSTED, ENGINE_DISPLACED); // the newest of the burst
    wait_n_jobs(N);
    gate_close(&load_gate, false);
    for (unsigned i = 0; i <= N; i++)
        if (i != N - 1)
            end(&g[i], RPC_OK, "");
    for (unsigned i = 0; i <= N; i++)
        free(a[i]);
}

static void get_model_answers_when_all_slots_are_taken(void **state)
{
    (void)state;
    struct generation g[3];
    request r = prompt_of("Once", 4);
    AUTO(mem_free) struct answer *first = start(&g[0], &r), *second = start(&g[1], &r);
    wait_n_jobs(2);
    AUTO(mem_free) struct answer *third = start(&g[2], &r);
    end(&g[2], RPC_RESOURCE_EXHAUSTED, "too many calls");
    Tandem__V1__GetModelRequest ask = TANDEM__V1__GET_MODEL_REQUEST__INIT;
    ProtobufCMessage *reply;
    assert_int_equal(rpc_unary(client, "/tandem.v1.Verifier/GetModel", NULL, &ask.base,
                               &tandem__v1__model_info__descriptor, &reply)
                         .code,
                     RPC_OK);
    protobuf_c_message_free_unpacked(reply, NULL);
    gate_close(&load_gate, false);
    end(&g[0], RPC_OK, "");
    end(&g[1], RPC_OK, "");
}

static char id_of(const struct job *j)
{
    return (char)((const request *)j->msg)->id.data[0];
}

/* Starts a call named by a letter. Afterwards the waiting calls must be `turns`, in their order. */
static struct answer *start_named(struct generation *g, request r, const char *letter,
                                  const char *turns)
{
    r.id = (ProtobufCBinaryData){1, (uint8_t *)letter};
    struct answer *a = start(g, &r);
    wait_n_jobs((uint32_t)strlen(turns));
    char seen[8] = "";
    size_t n = 0;
    pthread_mutex_lock(&service->mu);
    for (const struct job *j = service->jobs; j && n < sizeof(seen) - 1; j = j->next)
        seen[n++] = id_of(j);
    pthread_mutex_unlock(&service->mu);
    assert_string_equal(seen, turns);
    return a;
}

/* A full queue of requests whose ids are 0 to 4. */
static void fill_queue(struct generation *g, struct answer **a)
{
    request r = prompt_of("Once", 4);
    for (unsigned i = 0; i < QUEUE_LENGTH; i++) {
        r.id = (ProtobufCBinaryData){1, (uint8_t *)&"01234"[i]};
        a[i] = start(&g[i], &r);
        wait_n_jobs(i + 1);
    }
}

/* An answer that a verifier with another fingerprint has begun. */
static request resumed_of(Tandem__V1__Continuation *c)
{
    static Tandem__V1__ChoiceSoFar choice = TANDEM__V1__CHOICE_SO_FAR__INIT;
    static Tandem__V1__ChoiceSoFar *choices[] = {&choice};
    tandem__v1__continuation__init(c);
    c->n_choices = 1;
    c->choices = choices;
    request r = prompt_of("Once", 4);
    r.continuation = c;
    return r;
}

static void a_full_queue_has_places_for_resumed_answers(void **state)
{
    (void)state;
    enum { N = QUEUE_LENGTH };
    struct generation g[N + 1];
    struct answer *a[N + 1];
    Tandem__V1__Continuation c;
    request r = resumed_of(&c);
    fill_queue(g, a);
    a[N] = start_named(&g[N], r, "r", "r01234"); // it is the next one
    gate_close(&load_gate, false);
    end(&g[N], RPC_FAILED_PRECONDITION, "another fingerprint"); // it was tried
    for (unsigned i = 0; i < N; i++)
        end(&g[i], RPC_OK, "");
    for (unsigned i = 0; i <= N; i++)
        free(a[i]);
}

static void a_client_cannot_pass_the_queue_with_continuations(void **state)
{
    (void)state;
    enum { N = QUEUE_LENGTH };
    struct generation g[N + 1];
    struct answer *a[N + 1];
    Tandem__V1__Continuation c;
    request r = resumed_of(&c);
    fill_queue(g, a);
    a[N] = start(&g[N], &r);
    end(&g[N], RPC_RESOURCE_EXHAUSTED, "the queue is full: 5 requests wait already");
    gate_close(&load_gate, false);
    for (unsigned i = 0; i < N; i++)
        end(&g[i], RPC_OK, "");
    for (unsigned i = 0; i <= N; i++)
        free(a[i]);
}

static void a_client_that_is_no_gateway_has_one_flow(void **state)
{
    (void)state;
    enum { N = QUEUE_LENGTH };
    struct generation g[N + 1];
    struct answer *a[N + 1];
    request r = prompt_of("Once", 4);
    r.flow = rpc_text("burst");
    for (unsigned i = 0; i < N; i++) {
        a[i] = calloc(1, sizeof(*a[i]));
        generation_start(&g[i], other_client, &r, a[i]);
        wait_n_jobs(i + 1);
    }
    r.flow = rpc_text("other");
    a[N] = calloc(1, sizeof(*a[N]));
    generation_start(&g[N], other_client, &r, a[N]);
    end(&g[N], RPC_RESOURCE_EXHAUSTED, "the queue is full: 5 requests wait already");
    r.flow = rpc_text("");
    struct generation of_gateway;
    AUTO(mem_free) struct answer *b = start(&of_gateway, &r);
    end(&g[N - 1], RPC_RESOURCE_EXHAUSTED, ENGINE_DISPLACED); // another flow than a gateway's
    gate_close(&load_gate, false);
    end(&of_gateway, RPC_OK, "");
    for (unsigned i = 0; i + 1 < N; i++)
        end(&g[i], RPC_OK, "");
    for (unsigned i = 0; i <= N; i++)
        free(a[i]);
}

/* Sends the prompt; `cached` tokens of it must be known to the tenant. */
static void ask_as(struct rpc_client *c, const char *tenant, unsigned cached)
{
    static const char *text =
        "Once upon a time there was a little dog. The dog had a red ball, and "
        "the ball was round. One day the dog lost the ball in the park.";
    AUTO(mem_free) struct answer *a = calloc(1, sizeof(*a));
    request r = prompt_of(text, strlen(text));
    r.tenant = rpc_text(tenant);
    generation_run(c, &r, a);
    assert_int_equal(a->cached_tokens, cached);
}

static void a_client_cannot_read_which_prompts_a_gateways_tenant_has_sent(void **state)
{
    (void)state;
    enum { BLOCKS = 32 }; // tokens of the whole blocks that the prompt has
    static const char *const tenants[] = {"", "alice"};
    for (unsigned i = 0; i < ARRAY_LEN(tenants); i++) {
        ask_as(client, tenants[i], 0);
        ask_as(client, tenants[i], BLOCKS);
        ask_as(other_client, tenants[i], 0);
        ask_as(other_client, tenants[i], BLOCKS); // its own tenants, one for each name
    }
}

static void waiting_requests_are_bounded_in_bytes(void **state)
{
    (void)state;
    enum { N = 4, LEN = 15 << 20 };
    struct generation g[N + 1];
    struct answer *a[N + 1];
    AUTO(mem_free) char *text = calloc(1, LEN);
    request r = prompt_of(text, LEN);
    for (unsigned i = 0; i < N; i++)
        a[i] = start(&g[i], &r);
    wait_n_jobs(N);
    a[N] = start(&g[N], &r);
    end(&g[N], RPC_RESOURCE_EXHAUSTED, "the queue is full: 64 MiB of requests wait already");
    free(a[N]);
    for (unsigned i = 0; i < N; i++) {
        rpc_stream_cancel(g[i].stream);
        end(&g[i], RPC_CANCELLED, "");
    }
    wait_n_jobs(0);
    a[N] = start(&g[N], &r); // all bytes are free again
    wait_n_jobs(1);
    rpc_stream_cancel(g[N].stream);
    end(&g[N], RPC_CANCELLED, "");
    for (unsigned i = 0; i <= N; i++)
        free(a[i]);
}

static void a_queue_full_of_bytes_has_a_place_for_another_flow(void **state)
{
    (void)state;
    enum { N = 4, LEN = 15 << 20 };
    struct generation g[N + 1];
    struct answer *a[N + 1];
    AUTO(mem_free) char *text = calloc(1, LEN);
    request r = prompt_of(text, LEN);
    for (unsigned i = 0; i < N; i++) {
        a[i] = start(&g[i], &r);
        wait_n_jobs(i + 1);
    }
    r.flow = (ProtobufCBinaryData){5, (uint8_t *)"other"};
    a[N] = start(&g[N], &r);
    end(&g[N - 1], RPC_RESOURCE_EXHAUSTED, ENGINE_DISPLACED); // the newest of the other flow
    wait_n_jobs(N);
    for (unsigned i = 0; i <= N; i++) {
        if (i == N - 1)
            continue;
        rpc_stream_cancel(g[i].stream);
        end(&g[i], RPC_CANCELLED, "");
    }
    wait_n_jobs(0);
    for (unsigned i = 0; i <= N; i++)
        free(a[i]);
}

static void waiting_requests_are_counted_with_their_size_in_memory(void **state)
{
    (void)state;
    enum { N = 50000 };
    struct generation g;
    request r = prompt_of("Once", 4);
    Tandem__V1__Sampling sampling = TANDEM__V1__SAMPLING__INIT;
    static Tandem__V1__LogitBias bias = TANDEM__V1__LOGIT_BIAS__INIT;
    static Tandem__V1__LogitBias *biases[N]; // each takes four bytes in the message
    bias.token = 1;
    for (size_t i = 0; i < N; i++)
        biases[i] = &bias;
    sampling.n_logit_bias = N;
    sampling.logit_bias = biases;
    r.sampling = &sampling;
    AUTO(mem_free) struct answer *a = start(&g, &r);
    wait_n_jobs(1);
    pthread_mutex_lock(&service->mu);
    assert_true(service->jobs->place.bytes >= N * sizeof(bias));
    pthread_mutex_unlock(&service->mu);
    gate_close(&load_gate, false);
    end(&g, RPC_INVALID_ARGUMENT, "");
}

/* Parsing takes much more memory than the message has. */
static void a_request_is_bounded_in_memory(void **state)
{
    (void)state;
    enum { N = 700000, LEN = 12 << 20 };
    struct generation g;
    AUTO(mem_free) char *text = calloc(1, LEN);
    AUTO(mem_free) Tandem__V1__LogitBias **biases = calloc(N, sizeof(*biases));
    request r = prompt_of(text, LEN);
    Tandem__V1__Sampling sampling = TANDEM__V1__SAMPLING__INIT;
    Tandem__V1__LogitBias bias = TANDEM__V1__LOGIT_BIAS__INIT;
    for (size_t i = 0; i < N; i++)
        biases[i] = &bias;
    sampling.n_logit_bias = N;
    sampling.logit_bias = biases;
    r.sampling = &sampling;
    AUTO(mem_free) struct answer *a = start(&g, &r);
    end(&g, RPC_INVALID_ARGUMENT, " MiB of memory, at most 64 are allowed");
    wait_n_jobs(0);
}

static struct child start_gateway(const char *verifiers, const char *load_wait, unsigned *ret_port)
{
    const char *args[] = {"--listen",    "127.0.0.1:0", "--verifiers", verifiers,
                          "--load-wait", load_wait,     NULL};
    struct child c = child_start(BINARY_DIR "/gateway", args);
    AUTO(mem_free) char *rest = child_wait_log(&c, "listening on 127.0.0.1:");
    *ret_port = (unsigned)atoi(rest);
    free(child_wait_log(&c, "verifier loading"));
    return c;
}

/* Checks that a request waits at the gateway until the gate opens. */
static void must_wait_for_the_model(unsigned port)
{
    struct http_client c = http_client_open(port);
    http_client_print(&c,
                      "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
                      "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                      strlen(CHAT), CHAT);
    assert_false(http_client_wait_close(&c, 100)); // no other sign of waiting
    gate_close(&load_gate, false);
    struct http_answer a = http_client_read(&c, WITHIN_US / 1000);
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(a.body, "\"completion_tokens\":3"));
    http_answer_done(&a);
    http_client_close(&c);
}

static void the_gateway_waits_for_the_model(void **state)
{
    (void)state;
    unsigned port;
    struct child gateway = start_gateway(target, "60", &port);
    must_wait_for_the_model(port);
    child_stop(&gateway);
}

static void the_gateway_waits_for_one_model_while_another_is_ready(void **state)
{
    (void)state;
    unsigned port;
    char other[80], both[160];
    snprintf(other, sizeof(other), "unix:%s/other.sock", folder);
    snprintf(both, sizeof(both), "%s,%s", target, other);
    const char *args[] = {"--listen", other, "--model", MODEL, "--name", "other", NULL};
    struct child ready = child_start(BINARY_DIR "/verifier-svc", args);
    struct child gateway = start_gateway(both, "60", &port);
    free(child_wait_log(&gateway, "verifier ready"));
    must_wait_for_the_model(port);
    child_stop(&gateway);
    child_stop(&ready);
}

static void the_gateway_reports_the_progress_of_loading(void **state)
{
    (void)state;
    unsigned port;
    struct child gateway = start_gateway(target, "0.1", &port);
    struct http_answer a = http_call(port, "POST", "/v1/chat/completions", CHAT);
    assert_int_equal(a.status, 503);
    assert_non_null(strstr(a.body, "loading (42 %)"));
    http_answer_done(&a);
    child_stop(&gateway);
}

/* ---- while tokenizing a text takes long ---- */

/* Occupies the thread that runs all texts. */
static struct answer *start_long(struct generation *g)
{
    static char text[LONG];
    memset(text, 'x', LONG);
    request r = prompt_of(text, LONG);
    gate_close(&long_gate, true);
    struct answer *a = start(g, &r);
    gate_await(&long_gate);
    return a;
}

static void end_long(struct generation *g)
{
    gate_close(&long_gate, false);
    end(g, RPC_INVALID_ARGUMENT, "the context holds");
}

static void a_short_text_waits_for_no_long_one(void **state)
{
    (void)state;
    struct generation g[3];
    request quick = prompt_of("Once", 4);
    AUTO(mem_free) struct answer *long_one = start_long(&g[0]);
    static char text[LONG + 1];
    memset(text, 'x', LONG + 1);
    request r = prompt_of(text, LONG + 1);
    AUTO(mem_free) struct answer *next_long = start(&g[1], &r);
    wait_n_jobs(1);
    AUTO(mem_free) struct answer *a = start(&g[2], &quick);
    end(&g[2], RPC_OK, "");
    assert_int_equal(a->n, 20);
    wait_n_jobs(1); // the other thread takes no long text
    end_long(&g[0]);
    end(&g[1], RPC_INVALID_ARGUMENT, "the context holds");
}

static void tokenizing_a_long_text_delays_no_stream(void **state)
{
    (void)state;
    struct generation g[5];
    request quick = prompt_of("Once", 4), slow = prompt_of(SLOW, strlen(SLOW));
    quick.max_tokens = 1000;
    AUTO(mem_free) struct answer *stream = start(&g[0], &quick);
    generation_wait_tokens(&g[0], 1);
    AUTO(mem_free) struct answer *long_one = start_long(&g[4]);
    gate_close(&text_gate, true);
    AUTO(mem_free) struct answer *slow_one = start(&g[1], &slow);
    gate_await(&text_gate);
    AUTO(mem_free) struct answer *next = start(&g[2], &quick), *cancelled = start(&g[3], &quick);
    wait_n_jobs(2);
    end(&g[0], RPC_OK, ""); // the whole answer arrived meanwhile
    assert_int_equal(stream->n, 1000);
    rpc_stream_cancel(g[3].stream);
    end(&g[3], RPC_CANCELLED, "");
    wait_n_jobs(1);
    gate_close(&text_gate, false);
    end_long(&g[4]);
    end(&g[1], RPC_OK, "");
    end(&g[2], RPC_OK, "");
    assert_int_equal(slow_one->n, 20);
    assert_int_equal(next->n, 1000);
}

static void short_texts_pass_long_ones_for_a_limited_time(void **state)
{
    (void)state;
    enum { LEN = 1 << 20 };
    struct generation g[5], first;
    request quick = prompt_of("Once", 4), slow = prompt_of(SLOW, strlen(SLOW));
    AUTO(mem_free) struct answer *long_one = start_long(&first);
    AUTO(mem_free) char *text = malloc(LEN);
    memset(text, 'x', LEN);
    request longer = prompt_of(text, LEN);
    gate_close(&text_gate, true);
    AUTO(mem_free) struct answer *running = start(&g[0], &slow);
    gate_await(&text_gate);
    AUTO(mem_free) struct answer *l = start_named(&g[1], longer, "L", "L");
    AUTO(mem_free) struct answer *a = start_named(&g[2], quick, "a", "aL");
    AUTO(mem_free) struct answer *b = start_named(&g[3], quick, "b", "abL");
    pthread_mutex_lock(&service->mu);
    for (struct job *j = service->jobs; j; j = j->next)
        j->arrived_us -= 3600 * INT64_C(1000000);
    pthread_mutex_unlock(&service->mu);
    AUTO(mem_free) struct answer *c = start_named(&g[4], quick, "c", "abLc");
    gate_close(&text_gate, false);
    end_long(&first);
    end(&g[1], RPC_INVALID_ARGUMENT, "the context holds");
    for (unsigned i = 0; i < ARRAY_LEN(g); i++)
        if (i != 1)
            end(&g[i], RPC_OK, "");
}

static void texts_of_different_flows_take_turns(void **state)
{
    (void)state;
    static const char *const texts[] = {SLOW, "A1", "A2", "A3"};
    struct generation g[ARRAY_LEN(texts)], first;
    struct answer *a[ARRAY_LEN(texts)];
    AUTO(mem_free) struct answer *long_one = start_long(&first);
    tokenized[0] = 0;
    gate_close(&text_gate, true);
    for (unsigned i = 0; i < ARRAY_LEN(texts); i++) {
        request r = prompt_of(texts[i], strlen(texts[i]));
        r.flow = rpc_text("A");
        a[i] = start(&g[i], &r);
        if (i == 0)
            gate_await(&text_gate);
        wait_n_jobs(i);
    }
    pthread_mutex_lock(&service->mu);
    for (struct job *j = service->jobs; j; j = j->next)
        j->arrived_us -= 3600 * INT64_C(1000000); // B1 does not pass them as the shorter job
    pthread_mutex_unlock(&service->mu);
    pthread_t thread;
    enum rpc_code code = RPC_UNKNOWN;
    ask_text = "B1";
    ask_flow = "B";
    assert_int_equal(pthread_create(&thread, NULL, tokenize, &code), 0);
    wait_n_jobs(ARRAY_LEN(texts));
    gate_close(&text_gate, false);
    pthread_join(thread, NULL);
    assert_int_equal(code, RPC_OK);
    for (unsigned i = 0; i < ARRAY_LEN(texts); i++) {
        end(&g[i], RPC_OK, "");
        free(a[i]);
    }
    assert_string_equal(tokenized, "A1B1A2A3");
    end_long(&first);
}

/* The newest answer of the first flow waits meanwhile, and loses no bit. */
static void a_flow_with_all_seats_delays_no_other(void **state)
{
    (void)state;
    enum { N = 4, LONG_ANSWER = 1000 };
    struct generation g[N], other;
    struct answer *a[N];
    request r = prompt_of("Once", 4);
    Tandem__V1__Sampling sampling = TANDEM__V1__SAMPLING__INIT;
    sampling.has_seed_case = TANDEM__V1__SAMPLING__HAS_SEED_SEED;
    r.sampling = &sampling;
    r.max_tokens = LONG_ANSWER;
    r.flow = rpc_text("A");
    for (unsigned i = 0; i < N; i++) {
        a[i] = start(&g[i], &r);
        generation_wait_tokens(&g[i], 1);
    }
    r.max_tokens = 3;
    r.flow = rpc_text("B");
    AUTO(mem_free) struct answer *b = start(&other, &r);
    end(&other, RPC_OK, "");
    assert_int_equal(b->n, 3);
    for (unsigned i = 0; i < N; i++)
        assert_false(g[i].ended);
    for (unsigned i = 0; i < N; i++) {
        end(&g[i], RPC_OK, "");
        assert_int_equal(a[i]->n, LONG_ANSWER);
        assert_memory_equal(a[i]->ids, a[0]->ids, LONG_ANSWER * sizeof(a[0]->ids[0]));
        assert_memory_equal(a[i]->logprobs, a[0]->logprobs,
                            LONG_ANSWER * sizeof(a[0]->logprobs[0]));
    }
    for (unsigned i = 0; i < N; i++)
        free(a[i]);
}

static void a_request_cancelled_while_tokenizing_ends(void **state)
{
    (void)state;
    struct generation g[2];
    request quick = prompt_of("Once", 4), slow = prompt_of(SLOW, strlen(SLOW));
    AUTO(mem_free) struct answer *first = start(&g[0], &quick);
    end(&g[0], RPC_OK, "");
    gate_close(&text_gate, true);
    slow.max_tokens = 1000;
    AUTO(mem_free) struct answer *second = start(&g[1], &slow);
    gate_await(&text_gate);
    rpc_stream_cancel(g[1].stream);
    end(&g[1], RPC_CANCELLED, "");
    gate_close(&text_gate, false);
    int64_t until_us = clock_us() + WITHIN_US;
    while (rpc_server_n_calls(server))
        assert_true(clock_us() < until_us);
    assert_int_equal(engine_n_requests(engine), 0);
}

/* ---- while the model is loaded ---- */

/* The engine may have seen that the answer must pause, and the client has read already. */
static void a_client_that_reads_in_time_gets_its_whole_answer(void **state)
{
    (void)state;
    struct generation g;
    request slow = prompt_of(SLOW, strlen(SLOW));
    slow.max_tokens = 900;
    slow.logprobs = true;
    slow.top_logprobs = 20; // half a kilobyte per token
    slow.n = 4;
    gate_close(&text_gate, true);
    AUTO(mem_free) struct answer *a = start(&g, &slow);
    gate_await(&text_gate);
    rpc_stream_pause(g.stream);
    atomic_store(&late_reader, g.stream);
    gate_close(&text_gate, false);
    end(&g, RPC_OK, "");
    assert_null(atomic_load(&late_reader));
    assert_int_equal(a->n, 900);
}

static void a_draft_without_memory_ends_its_stream(void **state)
{
    (void)state;
    struct rpc_tally t = {0};
    struct rpc_stream *s =
        rpc_stream_new(client, "/tandem.v1.Verifier/Verify", NULL, &counting, &t);
    request r = prompt_of("Once", 4);
    uint32_t token = 5;
    Tandem__V1__VerifyRequest msg = TANDEM__V1__VERIFY_REQUEST__INIT;
    msg.message_case = TANDEM__V1__VERIFY_REQUEST__MESSAGE_OPEN;
    msg.open = &r;
    rpc_stream_send(s, rpc_pack(&msg.base));
    rpc_rig_await(&t.messages, 1);
    Tandem__V1__VerifyDraft draft = TANDEM__V1__VERIFY_DRAFT__INIT;
    draft.n_tokens = 1;
    draft.tokens = &token;
    msg.message_case = TANDEM__V1__VERIFY_REQUEST__MESSAGE_DRAFT;
    msg.draft = &draft;
    atomic_store(&no_draft, true);
    rpc_stream_send(s, rpc_pack(&msg.base));
    rpc_rig_finish(s, &t, RPC_RESOURCE_EXHAUSTED);
    assert_string_equal(t.status.text, "no memory for a draft");
    atomic_store(&no_draft, false);
    AWAIT(engine_n_requests(engine) == 0);
}

static void a_request_for_an_engine_that_has_stopped_gets_the_reason(void **state)
{
    (void)state;
    struct generation g[2];
    request r = prompt_of("Once", 4);
    AUTO(mem_free) struct answer *first = start(&g[0], &r);
    end(&g[0], RPC_OK, "");
    engine_stop(engine);
    AUTO(mem_free) struct answer *second = start(&g[1], &r);
    end(&g[1], RPC_UNAVAILABLE, "the server is stopping");
}

/* ---- the start ---- */

static void without_memory_there_is_no_service(void **state)
{
    (void)state;
    struct verifier_service *s = NULL;
    int err = -ENOMEM;
    for (unsigned n = 1; err < 0; n++) {
        failing_at(n);
        err = verifier_service_new(&options, NULL, &stats, &s);
        assert_true(err == (failing_has_failed() ? -ENOMEM : 0));
        assert_true(n < 20);
    }
    verifier_service_free(s);
    verifier_service_free(NULL);
}

/* ---- */

static int make_folder(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(target, sizeof(target), "unix:%s/v.sock", folder);
    stats_init(&stats);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    return rmdir(folder);
}

#define LOADING(f) cmocka_unit_test_setup_teardown(f, start_loading, stop_verifier)
#define READY(f) cmocka_unit_test_setup_teardown(f, start_loaded, stop_verifier)

int main(void)
{
    const struct CMUnitTest tests[] = {
        LOADING(a_request_waits_for_the_model_and_is_served),
        LOADING(tokenize_and_verify_wait_too),
        LOADING(a_bad_request_for_the_model_is_refused),
        LOADING(a_request_that_waits_too_long_gets_the_progress_of_loading),
        LOADING(a_cancelled_request_no_longer_waits),
        cmocka_unit_test_setup_teardown(other_cancelled_calls_no_longer_wait, start_for_an_operator,
                                        stop_verifier),
        LOADING(a_request_that_runs_is_not_ended_by_its_time_limit_for_loading),
        LOADING(without_a_model_waiting_and_later_requests_get_the_reason),
        LOADING(waiting_requests_are_bounded_in_number),
        cmocka_unit_test_setup_teardown(get_model_answers_when_all_slots_are_taken,
                                        start_with_two_slots, stop_verifier),
        LOADING(a_full_queue_has_a_place_for_another_flow),
        LOADING(a_full_queue_has_places_for_resumed_answers),
        cmocka_unit_test_setup_teardown(a_client_cannot_pass_the_queue_with_continuations,
                                        start_for_a_client, stop_verifier),
        LOADING(a_client_that_is_no_gateway_has_one_flow),
        READY(a_client_cannot_read_which_prompts_a_gateways_tenant_has_sent),
        LOADING(waiting_requests_are_bounded_in_bytes),
        LOADING(a_queue_full_of_bytes_has_a_place_for_another_flow),
        LOADING(waiting_requests_are_counted_with_their_size_in_memory),
        LOADING(a_request_is_bounded_in_memory),
        LOADING(the_gateway_waits_for_the_model),
        LOADING(the_gateway_waits_for_one_model_while_another_is_ready),
        LOADING(the_gateway_reports_the_progress_of_loading),
        READY(a_short_text_waits_for_no_long_one),
        READY(tokenizing_a_long_text_delays_no_stream),
        READY(short_texts_pass_long_ones_for_a_limited_time),
        READY(texts_of_different_flows_take_turns),
        READY(a_request_cancelled_while_tokenizing_ends),
        READY(a_flow_with_all_seats_delays_no_other),
        READY(a_client_that_reads_in_time_gets_its_whole_answer),
        READY(a_draft_without_memory_ends_its_stream),
        READY(a_request_for_an_engine_that_has_stopped_gets_the_reason),
        cmocka_unit_test(without_memory_there_is_no_service),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

/* test_verifier_shortage.c - a verifier whose queue, KV blocks or sequences run out. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "lib/lib.h"
#include "base/clock.h"
#include "base/mem.h"
#include "lib/oracles/figures.h"
#include "lib/rigs/rpc_rig.h"
#include "lib/rigs/verifier_rig.h"

/* ---- shortage ---- */

/* A verifier without vector instructions: its long answers do not end while a test fills the
 * queue. */
static void start_slow(struct service *s, const char *const *args)
{
    assert_int_equal(setenv("TANDEM_CPU", "c", 1), 0);
    service_start(s, "verifier-svc", args);
    assert_int_equal(unsetenv("TANDEM_CPU"), 0);
}

static void a_full_queue_refuses_the_next_request(void **state)
{
    (void)state;
    struct service s = {0};
    struct rpc_client *c;
    static const char *const args[] = {"--model", MODEL, "--max-sequences", "1", "--queue-length",
                                       "1",       NULL};
    start_slow(&s, args);
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    struct wish w;
    struct generation g[2];
    AUTO(mem_free) struct answer *a = answers_new(2);
    wish_init(&w, STORY, 1000);
    w.msg.ignore_eos = true;
    generation_start(&g[0], c, &w.msg, &a[0]);
    generation_wait_tokens(&g[0], 1);
    generation_start(&g[1], c, &w.msg, &a[1]);
    wait_requests(c, 1, 1);
    must_refuse(c, &w.msg, RPC_RESOURCE_EXHAUSTED, "the queue is full: 1 requests wait already");
    rpc_stream_cancel(g[0].stream);
    generation_end(&g[0]);
    generation_wait_tokens(&g[1], 1); // the queued request runs now
    rpc_stream_cancel(g[1].stream);
    generation_end(&g[1]);
    rpc_client_free(c);
    service_stop(&s);
}

static void a_full_queue_has_a_place_for_a_resumed_answer(void **state)
{
    (void)state;
    struct service s = {0};
    struct rpc_client *c;
    static const char *const args[] = {"--model", MODEL, "--max-sequences", "1", "--queue-length",
                                       "1",       NULL};
    start_slow(&s, args);
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0); // the own user: a gateway
    struct wish w, begun;
    struct rest rest;
    struct generation g[3];
    AUTO(mem_free) struct answer *a = answers_new(4);
    Tandem__V1__ModelInfo *info = must_get_model(c);
    wish_init(&begun, STORY, 20);
    begun.msg.ignore_eos = true;
    generation_run(c, &begun.msg, &a[3]);
    rest_init(&rest, &begun.msg, info, &a[3], 10);
    wish_init(&w, STORY, 1000);
    w.msg.ignore_eos = true;
    generation_start(&g[0], c, &w.msg, &a[0]);
    generation_wait_tokens(&g[0], 1);
    generation_start(&g[1], c, &w.msg, &a[1]);
    wait_requests(c, 1, 1);
    must_refuse(c, &w.msg, RPC_RESOURCE_EXHAUSTED, "the queue is full: 1 requests wait already");
    generation_start(&g[2], c, &begun.msg, &a[2]);
    wait_requests(c, 1, 2);
    rpc_stream_cancel(g[0].stream);
    generation_end(&g[0]);
    generation_end(&g[2]); // runs before the request that waits longer
    assert_int_equal(g[2].status.code, RPC_OK);
    assert_int_equal(a[2].n, 10);
    assert_memory_equal(a[2].ids, a[3].ids + 10, 10 * sizeof(*a[2].ids));
    rpc_stream_cancel(g[1].stream);
    generation_end(&g[1]);
    assert_true(a[1].n < 1000);
    tandem__v1__model_info__free_unpacked(info, NULL);
    rpc_client_free(c);
    service_stop(&s);
}

static ProtobufCBinaryData flow_of(const char *name)
{
    return (ProtobufCBinaryData){strlen(name), (uint8_t *)(uintptr_t)name};
}

/* The ids of the service's finished requests in their order; each is one letter. */
static void read_order(const struct service *s, char *ret_order, size_t size)
{
    char line[512];
    size_t n = 0;
    FILE *log = fopen(s->log, "r");
    assert_non_null(log);
    while (fgets(line, sizeof(line), log)) {
        const char *id = strstr(line, "request done id=");
        if (id && n + 1 < size)
            ret_order[n++] = id[strlen("request done id=")];
    }
    fclose(log);
    ret_order[n] = 0;
}

/* One sequence runs at a time, so the order of ends is that of the queue. */
static void a_burst_of_one_flow_does_not_starve_another(void **state)
{
    (void)state;
    enum { BURST = 10, N = BURST + 2 };
    struct service s = {0};
    struct rpc_client *c;
    static const char *const args[] = {"--model", MODEL, "--max-sequences", "1", NULL};
    service_start(&s, "verifier-svc", args);
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    struct wish w;
    struct generation g[N];
    AUTO(mem_free) struct answer *a = answers_new(N);
    wish_init(&w, STORY, 900);
    w.msg.ignore_eos = true;
    for (unsigned i = 0; i < N; i++) {
        w.msg.flow = flow_of(i < BURST ? "burst" : "single");
        w.msg.id = flow_of(i < BURST ? "b" : "s");
        generation_start(&g[i], c, &w.msg, &a[i]);
    }
    for (unsigned i = 0; i < N; i++) {
        generation_end(&g[i]);
        assert_int_equal(g[i].status.code, RPC_OK);
        same_answer(&a[0], &a[i]); // the order changes no bit
    }
    char order[N + 1];
    read_order(&s, order, sizeof(order));
    assert_int_equal(strlen(order), N);
    /* The first request of the burst runs when the others come: "bsbsbb..." is expected. Two more
     * requests of the burst may have run before, on a busy machine. */
    assert_true(strchr(order, 's') - order <= 3);
    assert_true(strrchr(order, 's') - order <= 5);
    rpc_client_free(c);
    service_stop(&s);
}

static void a_full_queue_has_a_place_for_another_flow(void **state)
{
    (void)state;
    enum { QUEUED = 4, N = 1 + QUEUED };
    struct service s = {0};
    struct rpc_client *c;
    static const char *const args[] = {"--model", MODEL, "--max-sequences", "1", "--queue-length",
                                       "4",       NULL};
    start_slow(&s, args);
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    struct wish w, other;
    struct generation g[N], another;
    AUTO(mem_free) struct answer *a = answers_new(N + 1);
    wish_init(&w, STORY, 1000);
    w.msg.ignore_eos = true;
    w.msg.flow = flow_of("burst");
    other = w;
    other.msg.sampling = &other.sampling;
    other.msg.flow = flow_of("other");
    other.msg.max_tokens = 5;
    for (unsigned i = 0; i < N; i++) {
        generation_start(&g[i], c, &w.msg, &a[i]);
        generation_wait_tokens(&g[i], i == 0);
        wait_requests(c, 1, i);
    }
    must_refuse(c, &w.msg, RPC_RESOURCE_EXHAUSTED, "the queue is full: 4 requests wait already");
    generation_start(&another, c, &other.msg, &a[N]);
    generation_end(&g[N - 1]); // the newest of the burst
    assert_int_equal(g[N - 1].status.code, RPC_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(g[N - 1].status.text, "your key has the largest part"));
    assert_true(metric_of(c, "tandem_request_refused_total") == 2);
    assert_true(metric_of(c, "tandem_request_failed_total") == 0);
    rpc_stream_cancel(g[0].stream);
    generation_end(&another);
    assert_int_equal(another.status.code, RPC_OK);
    assert_int_equal(a[N].n, 5);
    for (unsigned i = 0; i < N - 1; i++) {
        rpc_stream_cancel(g[i].stream);
        generation_end(&g[i]);
    }
    wait_requests(c, 0, 0);
    generation_run(c, &other.msg, &a[N]); // and every place is free again
    rpc_client_free(c);
    service_stop(&s);
}

/* The first n_of_first requests are of one flow, the others of another one. */
static void check_preempted(unsigned n_of_first)
{
    enum { N = 16 };
    struct service s = {0};
    struct rpc_client *c;
    static const char *const args[] = {"--model", MODEL, "--kv-mib", "1", NULL}; // 2416 positions
    service_start(&s, "verifier-svc", args);
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    struct wish w[N];
    struct generation g[N];
    AUTO(mem_free) struct answer *alone = answers_new(N), *together = answers_new(N);
    for (unsigned i = 0; i < N; i++) {
        wish_init(&w[i], i < n_of_first ? STORY : STORY " He was", 200); // other block edges
        w[i].sampling.temperature = 0.9F;
        w[i].sampling.seed = i;
        w[i].msg.ignore_eos = true;
        w[i].msg.logprobs = true;
        w[i].msg.flow = rpc_text(i < n_of_first ? "A" : "B");
        generation_run(client, &w[i].msg, &alone[i]); // on the verifier with a large pool
    }
    for (unsigned i = 0; i < N; i++)
        generation_start(&g[i], c, &w[i].msg, &together[i]);
    for (unsigned i = 0; i < N; i++) {
        generation_end(&g[i]);
        assert_int_equal(g[i].status.code, RPC_OK);
        same_answer(&alone[i], &together[i]);
    }
    wait_requests(c, 0, 0);
    assert_true(metric_of(c, "tandem_num_preemptions_total") > 0);
    assert_true(metric_of(c, "tandem_kv_cache_usage_ratio") == 0); // all blocks are free again
    rpc_client_free(c);
    service_stop(&s);
}

static void preemption_in_a_small_pool_changes_no_answer(void **state)
{
    (void)state;
    check_preempted(16);
}

/* Older sequences lose their blocks to newer ones of the smaller flow. */
static void preemption_of_a_large_flow_changes_no_answer(void **state)
{
    (void)state;
    check_preempted(12);
}

static void a_waiting_verify_stream_is_preempted_and_resumed(void **state)
{
    (void)state;
    enum { N = 16 };
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

/* Another flow takes the place of the newest one. */
static void idle_verify_streams_are_bounded(void **state)
{
    (void)state;
    enum { SEQS = 2, QUEUED = 6, STARTED = SEQS + QUEUED, N = STARTED + QUEUED };
    struct service s = {0};
    struct rpc_client *c;
    static const char *const args[] = {
        "--model", MODEL, "--max-sequences", "2", "--queue-length", "6", "--verify-timeout",
        "600",     NULL};
    service_start(&s, "verifier-svc", args);
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    struct wish w, other;
    struct verify v[N], last;
    wish_init(&w, "A", 20);
    wish_init(&other, "B", 20);
    other.msg.flow = flow_of("other");
    for (unsigned i = 0; i < STARTED; i++)
        verify_open_at(c, i < STARTED - 1 ? &v[i] : &last, &w.msg); // takes a seat of an idle one
    AUTO(mem_free) struct answer *a = calloc(1, sizeof(*a));
    generation_run(c, &other.msg, a);
    verify_wait(&last, 0, true);
    assert_int_equal(verify_close(&last).code, RPC_RESOURCE_EXHAUSTED);
    assert_string_equal(
        last.status.text,
        "your answers had most places of this verifier, and a client with fewer needed one");
    for (unsigned i = STARTED - 1; i < N; i++) {
        verify_open_at(c, &v[i], NULL);
        verify_send(&v[i], &w.msg, NULL);
        if (i >= STARTED)
            wait_requests(c, SEQS, i + 1 - SEQS); // they wait in this order
        else
            verify_wait(&v[i], 0, false);
    }
    must_refuse(c, &w.msg, RPC_RESOURCE_EXHAUSTED, "the queue is full: 6 requests wait already");
    verify_draft(&v[0], NULL, NULL, 0); // the oldest stream can still run
    assert_int_equal(v[0].n_run, 1);
    for (unsigned i = 0; i < N; i++) {
        verify_wait(&v[i], 0, false); // runs when earlier streams have ended
        assert_int_equal(verify_close(&v[i]).code, RPC_OK);
    }
    wait_requests(c, 0, 0);
    rpc_client_free(c);
    service_stop(&s);
}

/* A stream that has ended; n: none has. */
static unsigned first_ended(struct verify *v, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        pthread_mutex_lock(&v[i].mu);
        bool ended = v[i].ended;
        pthread_mutex_unlock(&v[i].mu);
        if (ended)
            return i;
    }
    return n;
}

static void must_answer_get_model(struct rpc_client *c)
{
    Tandem__V1__GetModelRequest ask = TANDEM__V1__GET_MODEL_REQUEST__INIT;
    ProtobufCMessage *reply;
    struct rpc_status st = rpc_unary(c, "/tandem.v1.Verifier/GetModel", NULL, &ask.base,
                                     &tandem__v1__model_info__descriptor, &reply);
    assert_int_equal(st.code, RPC_OK);
    protobuf_c_message_free_unpacked(reply, NULL);
}

static void streams_without_open_end_and_shut_nobody_out(void **state)
{
    (void)state;
    enum { PLACES = 3, N = PLACES + 1 }; // of clients
    struct service s = {0};
    struct rpc_client *c;
    static const char *const args[] = {
        "--model", MODEL,      "--verify-streams", "4", "--verify-timeout",
        "3",       "--listen", "127.0.0.1:0",      NULL};
    service_start(&s, "verifier-svc", args);
    service_client_on_tcp(&s, &c);
    struct wish w;
    struct verify v[N];
    AUTO(mem_free) struct answer *a = answers_new(1);
    wish_init(&w, STORY, 5);
    for (unsigned i = 0; i < N; i++)
        verify_open_at(c, &v[i], NULL);
    unsigned displaced;
    while ((displaced = first_ended(v, N)) == N) { // ends when streams time out
        must_answer_get_model(c);
        nap(); // more than 250 calls per second would end the connection
    }
    assert_true(rpc_rig_health(c, "tandem.v1.Verifier") == 1);
    generation_run(c, &w.msg, a);
    assert_int_equal(a->n, 5);
    for (unsigned i = 0; i < N; i++) {
        if (i == displaced)
            verify_must_end(&v[i], RPC_RESOURCE_EXHAUSTED, "no message arrived on this stream");
        else
            verify_must_end(&v[i], RPC_DEADLINE_EXCEEDED, "no `open` arrived for 3 s");
    }
    verify_open_at(c, &v[0], &w.msg);
    verify_draft(&v[0], a->ids, NULL, 2);
    assert_int_equal(v[0].accepted, 2);
    assert_int_equal(verify_close(&v[0]).code, RPC_OK);
    rpc_client_free(c);
    service_stop(&s);
}

static void streams_without_open_give_way_to_others(void **state)
{
    (void)state;
    enum { PLACES = 3, N = PLACES + 1 }; // of clients
    struct service s = {0};
    struct rpc_client *c;
    static const char *const args[] = {"--model",     MODEL, "--verify-streams", "4", "--listen",
                                       "127.0.0.1:0", NULL};
    service_start(&s, "verifier-svc", args);
    service_client_on_tcp(&s, &c);
    struct wish w;
    struct verify idle[N], v;
    AUTO(mem_free) struct answer *a = answers_new(1);
    wish_init(&w, STORY, 5);
    generation_run(c, &w.msg, a);
    for (unsigned i = 0; i < N; i++)
        verify_open_at(c, &idle[i], NULL);
    while (first_ended(idle, N) == N) // then all of them have reached the verifier
        must_answer_get_model(c);
    verify_open_at(c, &v, &w.msg);
    verify_draft(&v, a->ids, NULL, 2);
    assert_int_equal(v.accepted, 2);
    assert_int_equal(verify_close(&v).code, RPC_OK);
    for (unsigned i = 0; i < N; i++) {
        rpc_stream_cancel(idle[i].stream);
        verify_close(&idle[i]);
    }
    rpc_client_free(c);
    service_stop(&s);
}

static void choices_that_have_not_started_are_preempted_with_the_first(void **state)
{
    (void)state;
    enum { OLDER = 3, N = OLDER + 1 };
    struct service s = {0};
    struct rpc_client *c;
    static const char *const args[] = {"--model",         MODEL, "--kv-mib", "1",
                                       "--prefill-chunk", "1",   NULL}; // 151 blocks
    service_start(&s, "verifier-svc", args);
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    struct wish older, w;
    struct generation g[N];
    AUTO(mem_free) struct answer *a = answers_new(N + 1);
    AUTO(mem_free) char *text = malloc(2401);
    for (int i = 0; i < 600; i++)
        memcpy(text + 4 * i, i % 3 ? " the" : " cat", 5);
    wish_init(&w, text, 5);
    w.msg.ignore_eos = true;
    w.msg.n = 24; // each choice needs a partial block and a row
    generation_run(client, &w.msg, &a[N]);
    wish_init(&older, "Once", 900);
    older.msg.ignore_eos = true;
    older.sampling.temperature = 0.9F; // equal answers would share their blocks
    for (unsigned tries = 0; metric_of(c, "tandem_num_preemptions_total") == 0; tries++) {
        assert_true(tries < 10); // retries where the last one was admitted too late
        memset(a, 0, N * sizeof(*a));
        for (unsigned i = 0; i < N; i++) {
            older.sampling.seed = i;
            generation_start(&g[i], c, i < OLDER ? &older.msg : &w.msg, &a[i]);
        }
        for (unsigned i = 0; i < N; i++) {
            generation_end(&g[i]);
            assert_int_equal(g[i].status.code, RPC_OK);
        }
        same_answer(&a[OLDER], &a[N]);
    }
    wait_requests(c, 0, 0);
    rpc_client_free(c);
    service_stop(&s);
}

/* The others of the flow leave two seats, so six of eight choices start when seats become free.
 * They count the prompt for penalties themselves. Another flow takes the two seats meanwhile. */
static void choices_that_start_late_have_the_same_answers(void **state)
{
    (void)state;
    enum { SEATS = 8, OLDER = 6, CHOICES = 8 };
    struct service s = {0};
    struct rpc_client *c;
    static const char *const args[] = {"--model", MODEL, "--max-sequences", "8", NULL};
    service_start(&s, "verifier-svc", args);
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    struct wish older, w, other;
    struct generation g[OLDER + 2];
    AUTO(mem_free) struct answer *a = answers_new(OLDER + 2), *alone = answers_new(1);
    wish_init(&w, STORY, 30);
    w.msg.n = CHOICES;
    w.sampling.temperature = 0.8F;
    w.sampling.has_seed_case = TANDEM__V1__SAMPLING__HAS_SEED_SEED;
    w.sampling.seed = 7;
    w.sampling.has_repetition_case = TANDEM__V1__SAMPLING__HAS_REPETITION_REPETITION_PENALTY;
    w.sampling.repetition_penalty = 1.3F;
    generation_run(client, &w.msg, alone);
    for (unsigned i = 1; i < CHOICES; i++)
        assert_true(alone->hashes[i] != alone->hashes[0]);
    wish_init(&older, "Once", 300);
    older.msg.ignore_eos = true;
    for (unsigned i = 0; i < OLDER; i++) {
        generation_start(&g[i], c, &older.msg, &a[i]);
        generation_wait_tokens(&g[i], 1);
    }
    generation_start(&g[OLDER], c, &w.msg, &a[OLDER]);
    wait_requests(c, SEATS, 1); // the next choice
    generation_wait_tokens(&g[OLDER], 1);
    wish_init(&other, "Once", 20);
    other.msg.n = 4;
    other.msg.flow = flow_of("other");
    generation_start(&g[OLDER + 1], c, &other.msg, &a[OLDER + 1]);
    for (unsigned i = 0; i <= OLDER + 1; i++) {
        generation_end(&g[i]);
        assert_int_equal(g[i].status.code, RPC_OK);
    }
    assert_memory_equal(a[OLDER].hashes, alone->hashes, sizeof(alone->hashes));
    assert_true(metric_of(c, "tandem_num_preemptions_total") >= 4);
    rpc_client_free(c);
    service_stop(&s);
}

/* Requests of three flows take seats and blocks from each other. */
static void choices_of_many_requests_have_the_same_answers(void **state)
{
    (void)state;
    enum { N = 24, TURNS = 3 };
    static const char *const flows[] = {"A", "B", "C"};
    struct service s = {0};
    struct rpc_client *c;
    static const char *const args[] = {
        "--model", MODEL, "--max-sequences", "4", "--queue-length", "32", "--kv-mib", "1", NULL};
    service_start(&s, "verifier-svc", args);
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    struct wish w[N];
    struct generation g[N];
    AUTO(mem_free) struct answer *a = answers_new(N), *alone = answers_new(N);
    for (unsigned i = 0; i < N; i++) {
        wish_init(&w[i], i % 2 ? "Once upon a time" : STORY, 20 + i % 5 * 60);
        w[i].msg.ignore_eos = true;
        w[i].msg.n = 1 + i % 4;
        w[i].msg.flow = flow_of(flows[i % 3]);
        w[i].sampling.temperature = 0.8F;
        w[i].sampling.has_seed_case = TANDEM__V1__SAMPLING__HAS_SEED_SEED;
        w[i].sampling.seed = (int)i;
        generation_run(client, &w[i].msg, &alone[i]);
    }
    for (unsigned turn = 0; turn < TURNS; turn++) {
        for (unsigned i = 0; i < N; i++) {
            generation_start(&g[i], c, &w[i].msg, &a[i]);
            nap();
        }
        for (unsigned i = 0; i < N; i++) {
            generation_end(&g[i]);
            assert_int_equal(g[i].status.code, RPC_OK);
            assert_memory_equal(a[i].hashes, alone[i].hashes, sizeof(a[i].hashes));
        }
    }
    assert_true(metric_of(c, "tandem_num_preemptions_total") > 0);
    wait_requests(c, 0, 0);
    rpc_client_free(c);
    service_stop(&s);
}

static void prefill_in_chunks_changes_no_answer(void **state)
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

static unsigned lines_with(const char *path, const char *mark)
{
    char line[1024];
    unsigned n = 0;
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    while (fgets(line, sizeof(line), f))
        n += strstr(line, mark) != NULL;
    fclose(f);
    return n;
}

static void many_refusals_have_few_log_lines(void **state)
{
    enum { LOGGED = 200 };
    (void)state;
    struct service s = {0};
    struct rpc_client *c;
    static const char *const args[] = {"--model", MODEL, NULL};
    service_start(&s, "verifier-svc", args);
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    struct wish w;
    wish_init(&w, STORY, 5);
    w.msg.n = 1000;
    int64_t begun_us = clock_us();
    for (int i = 0; i < LOGGED + 50; i++)
        must_refuse(c, &w.msg, RPC_INVALID_ARGUMENT, "1000");
    unsigned n_periods = 1 + (unsigned)((clock_us() - begun_us) / 10000000);
    assert_in_range(lines_with(s.log, "request refused"), LOGGED, n_periods * LOGGED);
    rpc_client_free(c);
    service_stop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_queue_refuses_the_next_request),
        cmocka_unit_test(a_full_queue_has_a_place_for_a_resumed_answer),
        cmocka_unit_test(a_burst_of_one_flow_does_not_starve_another),
        cmocka_unit_test(a_full_queue_has_a_place_for_another_flow),
        cmocka_unit_test(preemption_in_a_small_pool_changes_no_answer),
        cmocka_unit_test(preemption_of_a_large_flow_changes_no_answer),
        cmocka_unit_test(a_waiting_verify_stream_is_preempted_and_resumed),
        cmocka_unit_test(idle_verify_streams_are_bounded),
        cmocka_unit_test(streams_without_open_end_and_shut_nobody_out),
        cmocka_unit_test(streams_without_open_give_way_to_others),
        cmocka_unit_test(choices_that_have_not_started_are_preempted_with_the_first),
        cmocka_unit_test(choices_that_start_late_have_the_same_answers),
        cmocka_unit_test(choices_of_many_requests_have_the_same_answers),
        cmocka_unit_test(prefill_in_chunks_changes_no_answer),
        cmocka_unit_test(many_refusals_have_few_log_lines),
    };
    return cmocka_run_group_tests(tests, start_verifier, stop_verifier);
}

/* test_completions.c - the steps of a request before its calls, and the errors of each. Templates
 * and calls are fakes (--wrap); the choice of a verifier is the real one. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "gateway/http/http_request.h"
#include "gateway/serve/completion.h"
#include "gateway/serve/template.h"
#include "gateway/upstream/upstream_impl.h"
#include "lib/fakes/failing.h"
#include "lib/lib.h"
#include "lib/rigs/logged.h"
#include "lib/rigs/reader_hold.h"

#define MEMORY (64u << 10)
#define LARGE (65u << 10) // of a body that the reader reads
#define CALLS_MAX 4

/* ---- fakes ---- */

static struct {
    struct upstream_call *calls[CALLS_MAX];
    unsigned n_calls;
    template_done *rendered; // NULL: no template waits
    void *user;
    int template_error; // of template_render()
    bool hangs_up;      // the client, just before its chat waits
    unsigned n_cancels;
} played;

void __wrap_upstream_call_begin(struct upstream_call *a);
int __wrap_template_render(struct template *t, const char *payer, const void *source, size_t len,
                           const char *vars, int64_t now, template_done *done, void *user);
void __wrap_template_cancel(struct template *t, const void *user);
const char *__wrap_http_field(const struct http_request *r, const char *name);
static void hang_up(void);

void __wrap_upstream_call_begin(struct upstream_call *a)
{
    assert_true(played.n_calls < CALLS_MAX);
    played.calls[played.n_calls++] = a;
}

int __wrap_template_render(struct template *t, const char *payer, const void *source, size_t len,
                           const char *vars, int64_t now, template_done *done, void *user)
{
    (void)t, (void)payer, (void)source, (void)now;
    assert_true(len > 0 && *vars == '{');
    if (played.template_error)
        return fail(played.template_error, "as you asked");
    if (played.hangs_up)
        hang_up();
    played.rendered = done;
    played.user = user;
    return 0;
}

const char *__wrap_http_field(const struct http_request *r, const char *name)
{
    (void)r, (void)name;
    return NULL;
}

/* As if the chat waited. */
void __wrap_template_cancel(struct template *t, const void *user)
{
    (void)t;
    played.n_cancels++;
    if (!played.rendered)
        return;
    assert_ptr_equal(user, played.user);
    TAKE(played.rendered)(played.user, -ECANCELED, 0, "cancelled", strlen("cancelled"));
}

/* ---- a gateway with one verifier, and a request ---- */

static struct upstream u;
static struct http_server server;
static struct http_request *r;
static struct reader *reader;
static struct completions *g;
static struct upstream_patience patience;
static Tandem__V1__ModelInfo info;
static struct { // as a snapshot of upstream.c
    struct upstream_model model;
    atomic_uint n_refs;
    void *unused;
} snapshot;

static struct http_request *new_request(void)
{
    struct http_request *new = calloc(1, sizeof(*new));
    *new = (struct http_request){.s = &server, .path = strdup("/v1/x"), .id = "r1"};
    atomic_init(&new->n_refs, 1);
    pthread_mutex_init(&new->mu, NULL);
    buf_init(&new->body, 1 << 20);
    return new;
}

static void hang_up(void)
{
    http_notify_close(r);
}

static int start(void **state)
{
    (void)state;
    memset(&played, 0, sizeof(played));
    tandem__v1__model_info__init(&info);
    info.name = rpc_text("model");
    info.chat_template = rpc_text("a template");
    info.context_length = 100000;
    snapshot.model.info = &info;
    atomic_init(&snapshot.n_refs, 1);
    u = (struct upstream){.n = 1, .mu = PTHREAD_MUTEX_INITIALIZER};
    u.verifiers[0] = (struct verifier){
        .u = &u, .target = (char *)"unix:/v", .state = UPSTREAM_READY, .model = &snapshot.model};
    server = (struct http_server){.o = {.max_unread = 1000}};
    patience = (struct upstream_patience){0};
    assert_int_equal(request_memory_new(MEMORY, &server.memory), 0);
    assert_int_equal(reader_new(&reader), 0);
    assert_int_equal(completions_new(&u, NULL, reader, 0, 600000000, &patience, "auto", &g), 0);
    r = new_request();
    return 0;
}

/* The connection has ended. All that the request held is released. */
static void end_request(void)
{
    http_notify_close(r);
    assert_null(g->all);
    assert_int_equal(atomic_load(&r->n_refs), 1);
    http_unref(r);
    assert_int_equal(request_memory_used(server.memory), 0);
    assert_int_equal(atomic_load(&u.verifiers[0].n_requests), 0);
    assert_int_equal(atomic_load(&snapshot.n_refs), 1);
    r = NULL;
}

static int end(void **state)
{
    (void)state;
    if (r)
        end_request();
    reader_free(reader);
    completions_free(g);
    request_memory_free(server.memory);
    return 0;
}

static void begin(enum openai_kind kind, const char *body)
{
    buf_puts(&r->body, body);
    completions_begin(g, r, kind);
}

#define CHAT "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}"

static void render(int err, const char *text, size_t len)
{
    template_done *done = TAKE(played.rendered);
    assert_non_null(done);
    done(played.user, err, 1, text, len);
}

/* The answer is an error of this status. */
static void refused(int status, const char *part)
{
    reader_await(reader);
    if (r->answer != REPLY || r->status != status ||
        !memmem(r->out.data, r->out.len, part, strlen(part)))
        fail_msg("not %d '%s', but %d %.*s", status, part, r->status, (int)r->out.len, r->out.data);
    assert_int_equal(played.n_calls, 0);
}

static void end_calls_with(enum rpc_code code, const char *text)
{
    unsigned n = played.n_calls;
    played.n_calls = 0;
    for (unsigned i = 0; i < n; i++) {
        struct upstream_call *a = played.calls[i];
        a->status.code = code;
        snprintf(a->status.text, sizeof(a->status.text), "%s", text);
        if (code == RPC_RESOURCE_EXHAUSTED)
            assert_false(a->events->on_full(a));
        a->events->on_done(a);
    }
}

static void end_calls(void)
{
    end_calls_with(RPC_INTERNAL, "no memory at the verifier");
}

static void next_request(void)
{
    end_request();
    r = new_request();
}

/* ---- templates ---- */

static void errors_of_a_rendering_have_a_status(void **state)
{
    (void)state;
    static const struct {
        int err, status;
        const char *says;
    } v[] = {{-EINVAL, 400, "chat template: why"},     {-ETIMEDOUT, 429, "\"message\":\"why\""},
             {-EDQUOT, 429, "\"message\":\"why\""},    {-EBUSY, 503, "\"message\":\"why\""},
             {-ECANCELED, 503, "\"message\":\"why\""}, {-EIO, 500, "\"message\":\"why\""}};
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        begin(OPENAI_CHAT, CHAT);
        render(v[i].err, "why", 3);
        refused(v[i].status, v[i].says);
        next_request();
    }
}

static void a_rendering_that_is_not_taken_has_a_status(void **state)
{
    (void)state;
    static const struct {
        int err, status;
    } v[] = {{-EDQUOT, 429}, {-EAGAIN, 503}, {-EPIPE, 503}, {-EMSGSIZE, 413}, {-ENOMEM, 500}};
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        played.template_error = v[i].err;
        begin(OPENAI_CHAT, CHAT);
        refused(v[i].status, "as you asked");
        next_request();
    }
}

static void a_chat_whose_client_hangs_up_is_cancelled(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        played.hangs_up = i;
        played.n_cancels = 0;
        logged_begin();
        begin(OPENAI_CHAT, CHAT);
        http_notify_close(r);
        const char *log = logged_end();
        assert_int_equal(played.n_cancels, i + 1);
        assert_null(played.rendered);
        assert_int_equal(logged_count(log, "status=499"), 1);
        assert_int_equal(r->answer, NONE);
        next_request();
    }
}

static void a_chat_that_does_not_wait_for_its_template_is_not_cancelled(void **state)
{
    (void)state;
    begin(OPENAI_CHAT, CHAT);
    render(0, "Hi", 2);
    http_notify_close(r);
    end_calls();
    next_request();
    begin(OPENAI_COMPLETION, "{\"prompt\":\"x\"}");
    http_notify_close(r);
    end_calls();
    assert_int_equal(played.n_cancels, 0);
}

/* ---- memory for requests ---- */

static char *text_of(size_t n)
{
    char *text = malloc(n + 1);
    memset(text, 'a', n);
    text[n] = 0;
    return text;
}

#define TOO_LARGE "one client may use 0 MiB, half of max_bodies_mib"

/* A response repeats the instructions, so they count twice. */
/* While its model loads. */
static void a_request_whose_client_hangs_up_waits_for_no_model(void **state)
{
    (void)state;
    g->load_wait_us = 600000000;
    u.verifiers[0].state = UPSTREAM_LOADING;
    begin(OPENAI_COMPLETION, "{\"prompt\":\"x\"}");
    assert_int_equal(u.waiters.n, 1);
    logged_begin();
    http_notify_close(r);
    assert_int_equal(logged_count(logged_end(), "status=499"), 1);
    assert_int_equal(u.waiters.n, 0);
    assert_int_equal(r->answer, NONE);
}

static void a_request_that_finds_no_place_to_wait_gets_503(void **state)
{
    (void)state;
    static struct upstream_waiter waiters[UPSTREAM_WAITING_MAX];
    struct upstream_waiter *displaced;
    for (unsigned i = 0; i < UPSTREAM_WAITING_MAX; i++) {
        char payer[16];
        snprintf(payer, sizeof(payer), "p%u", i);
        assert_int_equal(upstream_waiters_add(&u.waiters, &waiters[i], payer, &displaced), 0);
    }
    g->load_wait_us = 600000000;
    u.verifiers[0].state = UPSTREAM_LOADING;
    begin(OPENAI_COMPLETION, "{\"prompt\":\"x\"}");
    refused(503, "1024 requests already wait for the model to load; try again");
    while (u.waiters.first)
        upstream_waiters_remove(&u.waiters, &u.waiters.first);
}

static void a_gateway_that_drains_refuses_requests(void **state)
{
    (void)state;
    completions_drain(g);
    begin(OPENAI_COMPLETION, "{\"prompt\":\"x\"}");
    refused(503, COMPLETION_STOPPING);
}

static void a_request_that_loses_its_place_gets_503(void **state)
{
    (void)state;
    g->load_wait_us = 600000000;
    u.verifiers[0].state = UPSTREAM_LOADING;
    begin(OPENAI_COMPLETION, "{\"prompt\":\"x\"}");
    struct upstream_waiter *w = upstream_waiters_remove(&u.waiters, &u.waiters.first);
    w->fn(w->user, upstream_waiters_full());
    free(w);
    refused(503, "1024 requests already wait for the model to load; try again");
}

/* Some calls are refused first. Few of the tries are enough, unless the machine is very slow. */
static void a_full_queue_is_not_asked_again_and_again(void **state)
{
    (void)state;
    unsigned n = 0;
    for (; n < 1000 && (begin(OPENAI_COMPLETION, "{\"prompt\":\"x\"}"), played.n_calls); n++) {
        end_calls_with(RPC_RESOURCE_EXHAUSTED, "the queue is full: 7 wait");
        refused(429, "the queue is full: 7 wait");
        next_request();
    }
    assert_in_range(n, FULL_QUEUES_MAX, 999);
    refused(429, "the queue is full: 7 wait");
    assert_true(r->delay_until_us > 0);
    assert_int_equal(request_memory_used(server.memory), 0); // it keeps none while it waits
}

static void a_request_larger_than_its_body_is_charged(void **state)
{
    (void)state;
    AUTO(mem_free) char *text = text_of(20 << 10), *body = NULL;
    assert_true(asprintf(&body, "{\"input\":\"x\",\"instructions\":\"%s\"}", text) > 0);
    begin(OPENAI_RESPONSES, body);
    refused(413, TOO_LARGE);
}

static void a_template_is_charged(void **state)
{
    (void)state;
    AUTO(mem_free) char *text = text_of(MEMORY);
    info.chat_template = rpc_text(text);
    begin(OPENAI_CHAT, CHAT);
    refused(413, TOO_LARGE);
    assert_null(played.rendered);
}

static void a_rendering_is_charged(void **state)
{
    (void)state;
    AUTO(mem_free) char *text = text_of(MEMORY);
    begin(OPENAI_CHAT, CHAT);
    render(0, text, MEMORY);
    refused(413, TOO_LARGE);
}

static void ids_of_an_answer_are_charged_before_its_call(void **state)
{
    (void)state;
    g->patience.resume_us = 1;
    info.continues = true;
    begin(OPENAI_COMPLETION, "{\"prompt\":\"x\",\"max_tokens\":90000}");
    refused(413, TOO_LARGE);
}

/* ---- failed allocations ---- */

/* The whole way of a request whose body is there. */
static void serve(enum openai_kind kind)
{
    completions_begin(g, r, kind);
    if (played.rendered)
        render(0, "Hi", 2);
    end_calls();
}

static void a_request_without_memory_is_500(void **state)
{
    (void)state;
    static const struct {
        enum openai_kind kind;
        const char *body;
    } v[] = {{OPENAI_COMPLETION, "{\"prompt\":\"x\"}"}, {OPENAI_CHAT, CHAT}};
    logged_begin();
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        unsigned n = 0;
        for (bool failed = true; failed;) {
            buf_puts(&r->body, v[i].body);
            failing_at(++n);
            serve(v[i].kind);
            failed = failing_has_failed();
            assert_int_equal(r->answer, REPLY);
            assert_int_equal(r->status, 500);
            next_request();
        }
        assert_true(n > 10);
    }
    logged_end();
}

static void a_gateway_without_memory_is_an_error(void **state)
{
    (void)state;
    struct completions *none = NULL;
    failing_at(1);
    assert_int_equal(completions_new(&u, NULL, reader, 0, 1, &patience, "auto", &none), -ENOMEM);
    assert_true(failing_has_failed());
    assert_null(none);
}

/* ---- large bodies ---- */

static void begin_large(void)
{
    AUTO(mem_free) char *text = text_of(LARGE);
    begin(OPENAI_COMPLETION, text);
}

static void a_large_body_is_read_by_the_reader(void **state)
{
    (void)state;
    reader_hold(reader, "other");
    begin_large();
    assert_int_equal(r->answer, NONE);
    reader_let_go();
    reader_await(reader);
    refused(413, TOO_LARGE);
}

static void large_requests_that_wait_are_limited(void **state)
{
    (void)state;
    reader_hold(reader, "other");
    reader_fill(reader, READER_MAX_WAITING);
    begin_large();
    refused(503, "too many large requests wait to be read; try again");
}

static void a_large_request_is_not_read_after_its_end(void **state)
{
    (void)state;
    reader_hold(reader, "other");
    begin_large();
    http_notify_close(r);
    reader_let_go();
    reader_await(reader);
    assert_int_equal(r->answer, NONE);
}

static void a_large_request_is_refused_when_the_gateway_stops(void **state)
{
    (void)state;
    pthread_mutex_lock(&g->mu);
    g->stopping = true;
    pthread_mutex_unlock(&g->mu);
    begin_large();
    reader_stop(reader);
    refused(503, COMPLETION_STOPPING);
    next_request();
    begin_large(); // completions_drain() was not called
    refused(503, COMPLETION_STOPPING);
}

/* ---- streams ---- */

static void send_event(Tandem__V1__GenerateEvent__EventCase which, const char *text)
{
    struct upstream_call *a = played.calls[0];
    Tandem__V1__GenerateEvent e = TANDEM__V1__GENERATE_EVENT__INIT;
    Tandem__V1__Started started = TANDEM__V1__STARTED__INIT;
    Tandem__V1__TokenRun run = TANDEM__V1__TOKEN_RUN__INIT;
    Tandem__V1__Token token = TANDEM__V1__TOKEN__INIT, *tokens[] = {&token};
    token.text = rpc_text(text);
    run.tokens = tokens;
    run.n_tokens = 1;
    e.event_case = which;
    if (which == TANDEM__V1__GENERATE_EVENT__EVENT_STARTED)
        e.started = &started;
    else if (which == TANDEM__V1__GENERATE_EVENT__EVENT_RUN)
        e.run = &run;
    a->events->on_event(a, &e);
}

static void a_stream_that_nobody_reads_is_dropped_once(void **state)
{
    (void)state;
    AUTO(mem_free) char *text = text_of(600);
    begin(OPENAI_COMPLETION, "{\"prompt\":\"x\",\"stream\":true}");
    assert_int_equal(played.n_calls, 1);
    send_event(TANDEM__V1__GENERATE_EVENT__EVENT_STARTED, "");
    assert_int_equal(r->answer, STREAM);
    logged_begin();
    for (unsigned i = 0; i < 10; i++)
        send_event(TANDEM__V1__GENERATE_EVENT__EVENT_RUN, text);
    const char *log = logged_end();
    assert_true(r->overrun);
    assert_int_equal(logged_count(log, "request dropped id=r1: its reader is too slow"), 1);
    end_calls();
}

static void events_of_a_newer_verifier_are_ignored(void **state)
{
    (void)state;
    begin(OPENAI_COMPLETION, "{\"prompt\":\"x\",\"stream\":true}");
    send_event(TANDEM__V1__GENERATE_EVENT__EVENT_STARTED, "");
    send_event(TANDEM__V1__GENERATE_EVENT__EVENT_RUN, "abc");
    size_t len = r->out.len;
    send_event(TANDEM__V1__GENERATE_EVENT__EVENT__NOT_SET, "");
    assert_int_equal(r->out.len, len);
    end_calls();
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, start, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(errors_of_a_rendering_have_a_status),
        CASE(a_rendering_that_is_not_taken_has_a_status),
        CASE(a_chat_whose_client_hangs_up_is_cancelled),
        CASE(a_chat_that_does_not_wait_for_its_template_is_not_cancelled),
        CASE(a_request_whose_client_hangs_up_waits_for_no_model),
        CASE(a_request_that_finds_no_place_to_wait_gets_503),
        CASE(a_gateway_that_drains_refuses_requests),
        CASE(a_request_that_loses_its_place_gets_503),
        CASE(a_full_queue_is_not_asked_again_and_again),
        CASE(a_request_larger_than_its_body_is_charged),
        CASE(a_template_is_charged),
        CASE(a_rendering_is_charged),
        CASE(ids_of_an_answer_are_charged_before_its_call),
        CASE(a_request_without_memory_is_500),
        CASE(a_gateway_without_memory_is_an_error),
        CASE(a_large_body_is_read_by_the_reader),
        CASE(large_requests_that_wait_are_limited),
        CASE(a_large_request_is_not_read_after_its_end),
        CASE(a_large_request_is_refused_when_the_gateway_stops),
        CASE(a_stream_that_nobody_reads_is_dropped_once),
        CASE(events_of_a_newer_verifier_are_ignored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

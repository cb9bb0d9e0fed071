/* All prompts of a request are sent, and it is answered, at whatever time their calls end. The
 * calls are fakes (--wrap=upstream_call_begin). They end just after the lock of the request is
 * released (--wrap=pthread_mutex_unlock), as they could on another thread. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "gateway/openai/openai_writer.h"
#include "gateway/serve/completion.h"
#include "gateway/http/http_request.h"
#include "gateway/upstream/upstream_impl.h"
#include "lib/fakes/failing.h"
#include "lib/lib.h"

#define N_PROMPTS 5

static struct {
    pthread_mutex_t *mu;
    unsigned after, left; // releases of the lock until a call ends: in total, and left
    struct upstream_call *calls[N_PROMPTS];
    unsigned n, n_ended, most; // most: at a time
    bool overdue, begun;       // how calls end that have no verifier in time
} played;

void __wrap_upstream_call_begin(struct upstream_call *a);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *mu);
int __real_pthread_mutex_unlock(pthread_mutex_t *mu);

void __wrap_upstream_call_begin(struct upstream_call *a)
{
    played.calls[played.n++] = a;
    played.left = played.after;
    if (played.n - played.n_ended > played.most)
        played.most = played.n - played.n_ended;
}

static void end_one(void)
{
    struct upstream_call *a = played.calls[played.n_ended++];
    Tandem__V1__GenerateEvent e = TANDEM__V1__GENERATE_EVENT__INIT;
    Tandem__V1__Finished finished = TANDEM__V1__FINISHED__INIT;
    e.event_case = TANDEM__V1__GENERATE_EVENT__EVENT_FINISHED;
    e.finished = &finished;
    played.left = played.after;
    if (played.overdue) {
        a->overdue = true;
        a->begun = played.begun;
        a->status.code = played.begun ? RPC_UNAVAILABLE : RPC_CANCELLED;
        a->events->on_done(a);
        return;
    }
    a->committed.choices[0].finished = true;
    a->events->on_event(a, &e);
    a->events->on_done(a);
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *mu)
{
    int rc = __real_pthread_mutex_unlock(mu);
    if (mu == played.mu && played.n_ended < played.n && !played.left--)
        end_one();
    return rc;
}

/* A request in the state in which completions.c calls completion_send(). */
static struct completion *generation_as(struct completions *g, struct http_request *http,
                                        unsigned max_running, const struct openai_reply_head *head)
{
    static Tandem__V1__ModelInfo info = TANDEM__V1__MODEL_INFO__INIT;
    static const struct upstream_model model = {.info = &info};
    static const struct output_parser_rules rules;
    struct completion *x = calloc(1, sizeof(*x));
    *x = (struct completion){.g = g, .http = http_ref(http), .model = &model};
    x->log.kind = head->kind;
    x->q = (struct openai_request){.kind = head->kind,
                                   .prompts = calloc(head->n, sizeof(*x->q.prompts)),
                                   .n_prompts = head->n,
                                   .max_running = max_running};
    atomic_init(&x->n_refs, 1);
    pthread_mutex_init(&x->mu, NULL);
    pthread_mutex_init(&x->answer_mu, NULL);
    g->all = x;
    assert_int_equal(openai_reply_init(&x->reply, head), 0);
    assert_int_equal(completion_prepare(x, &rules), 0);
    x->model = NULL; // not to be freed
    return x;
}

static struct completion *generation_of(struct completions *g, struct http_request *http,
                                        unsigned max_running)
{
    static const struct openai_reply_head head = {
        .kind = OPENAI_COMPLETION, .id = "r1", .n = N_PROMPTS, .n_each = 1};
    return generation_as(g, http, max_running, &head);
}

static struct http_request *new_http(void)
{
    static struct http_server server;
    struct http_request *http = calloc(1, sizeof(*http));
    *http = (struct http_request){.s = &server};
    atomic_init(&http->n_refs, 1);
    pthread_mutex_init(&http->mu, NULL);
    return http;
}

/* The status of the answer if calls end after `after` releases of the lock. */
static int answer(unsigned max_running, unsigned after)
{
    static struct upstream upstream = {.n = 1};
    static struct completions g = {.upstream = &upstream, .mu = PTHREAD_MUTEX_INITIALIZER};
    struct http_request *http = new_http();
    struct completion *x = generation_of(&g, http, max_running);
    played.n = played.n_ended = played.most = 0;
    played.after = after;
    played.mu = &x->mu;
    completion_send(x);
    while (played.n_ended < played.n)
        end_one();
    played.mu = NULL;
    int status = http->status;
    http_unref(http);
    return status;
}

static void every_prompt_is_sent_whenever_earlier_calls_end(void **state)
{
    (void)state;
    for (unsigned max_running = 1; max_running <= 3; max_running++)
        for (unsigned after = 0; after < 12; after++) {
            int status = answer(max_running, after);
            if (status != 200 || played.n != N_PROMPTS || played.most > max_running)
                fail_msg("%u at once, ended after %u: status %d, %u asked, %u at a time",
                         max_running, after, status, played.n, played.most);
        }
}

static void one_call_runs_until_the_first_event(void **state)
{
    static struct upstream upstream = {.n = 1};
    static struct completions g = {.upstream = &upstream, .mu = PTHREAD_MUTEX_INITIALIZER};
    (void)state;
    struct http_request *http = new_http();
    struct completion *x = generation_of(&g, http, N_PROMPTS);
    played.n = played.n_ended = 0;
    completion_send(x);
    assert_int_equal(played.n, 1);
    end_one(); // its event comes first
    assert_int_equal(played.n, N_PROMPTS);
    while (played.n_ended < played.n)
        end_one();
    assert_int_equal(http->status, 200);
    http_unref(http);
}

/* Those that were made run on. */
static void further_calls_wait_while_the_queue_is_full(void **state)
{
    static struct upstream upstream = {.n = 1};
    static struct completions g = {.upstream = &upstream, .mu = PTHREAD_MUTEX_INITIALIZER};
    static const ProtobufCBinaryData none;
    (void)state;
    struct http_request *http = new_http();
    struct completion *x = generation_of(&g, http, N_PROMPTS);
    full_queues_init(&g.full);
    for (unsigned i = 0; i <= FULL_QUEUES_MAX; i++)
        full_queues_note(&g.full, "", none, "full", clock_us() + 3600000000); // an hour is enough
    x->begun = true;
    played.n = played.n_ended = 0;
    completion_send(x);
    assert_int_equal(played.n, 1);
    end_one(); // FULL_QUEUES_MAX refusals are left
    assert_int_equal(played.n, 2);
    end_one();
    assert_int_equal(played.n, N_PROMPTS);
    while (played.n_ended < played.n)
        end_one();
    assert_int_equal(http->status, 200);
    http_unref(http);
    full_queues_done(&g.full);
}

/* Only a request that has not begun ends for them. */
static void refusals_of_calls_are_noted(void **state)
{
    static struct upstream upstream = {.n = 1};
    static struct completions g = {.upstream = &upstream, .mu = PTHREAD_MUTEX_INITIALIZER};
    static const ProtobufCBinaryData none;
    (void)state;
    full_queues_init(&g.full);
    for (unsigned begun = 0; begun < 2; begun++) {
        struct http_request *http = new_http();
        struct completion *x = generation_of(&g, http, 1);
        x->begun = begun;
        memset(g.full.entries, 0, sizeof(g.full.entries));
        played.n = played.n_ended = 0;
        completion_send(x);
        for (unsigned i = 0; i < FULL_QUEUES_MAX; i++) {
            assert_false(full_queues_is_full(&g.full, "", none, clock_us()));
            assert_true(played.calls[0]->events->may_retry(played.calls[0]));
            assert_int_equal(played.calls[0]->events->on_full(played.calls[0]), begun);
        }
        assert_true(full_queues_is_full(&g.full, "", none, clock_us()));
        assert_false(played.calls[0]->events->may_retry(played.calls[0]));
        while (played.n_ended < played.n)
            end_one();
        assert_false(full_queues_is_full(&g.full, "", none, clock_us()));
        assert_int_equal(http->status, 200);
        http_unref(http);
    }
    full_queues_done(&g.full);
}

/* Another request of the client has all places of further prompts. */
static void a_request_that_fails_waits_for_no_place(void **state)
{
    static struct upstream upstream = {.n = 1};
    static struct completions g = {.upstream = &upstream, .mu = PTHREAD_MUTEX_INITIALIZER};
    (void)state;
    struct http_request *http = new_http();
    struct completion *x = generation_of(&g, http, N_PROMPTS);
    struct prompt_places_request other = {0};
    assert_int_equal(prompt_places_join(&g.places, &other, ""), 0);
    for (unsigned i = 0; i < PROMPT_PLACES_OF_PAYER; i++)
        assert_true(prompt_places_take(&g.places, &other));
    x->begun = true;
    played.n = 0;
    completion_send(x);
    assert_int_equal(played.n, 1);
    assert_true(x->waits);
    played.calls[0]->status.code = RPC_INTERNAL;
    played.calls[0]->events->on_done(played.calls[0]);
    assert_int_equal(http->status, 500);
    assert_null(g.all);
    for (unsigned i = 0; i < PROMPT_PLACES_OF_PAYER; i++)
        assert_null(prompt_places_give(&g.places, &other));
    prompt_places_leave(&g.places, &other);
    http_unref(http);
}

/* An answer that has begun has lost its verifier; then the queue is not the reason. */
static void only_a_request_that_has_not_begun_waits_in_a_queue(void **state)
{
    (void)state;
    played.overdue = true;
    played.begun = false;
    assert_int_equal(answer(1, 0), 429);
    played.begun = true;
    assert_int_equal(answer(1, 0), 503);
    played.overdue = false;
}

void __wrap_template_stop(struct template *t);
void __wrap_template_stop(struct template *t)
{
    (void)t; // there is none
}

/* No stream of such a call ends, so no callback ends the call. */
static void calls_that_wait_for_a_verifier_end_with_the_gateway(void **state)
{
    static struct upstream upstream = {.n = 1};
    static struct completions g = {.upstream = &upstream, .mu = PTHREAD_MUTEX_INITIALIZER};
    (void)state;
    struct http_request *http = new_http();
    struct completion *x = generation_of(&g, http, N_PROMPTS);
    x->begun = true;
    played.n = played.n_ended = 0;
    completion_send(x);
    for (unsigned i = 0; i < N_PROMPTS; i++)
        played.calls[i]->lost_us = 1;
    completions_abort(&g);
    assert_null(g.all);
    assert_int_equal(http->status, 503);
    http_unref(http);
}

/* ---- memory for token ids ---- */

#define MEMORY (256u << 10)

/* A request for this many tokens per prompt that is admitted. */
static struct completion *admitted(struct completions *g, struct http_server *server,
                                   int max_tokens)
{
    struct http_request *http = calloc(1, sizeof(*http));
    *http = (struct http_request){.s = server};
    atomic_init(&http->n_refs, 1);
    pthread_mutex_init(&http->mu, NULL);
    struct completion *x = generation_of(g, http, N_PROMPTS);
    Tandem__V1__ModelInfo info = TANDEM__V1__MODEL_INFO__INIT;
    const struct upstream_model model = {.info = &info};
    info.context_length = 100000;
    info.continues = true;
    x->q.max_tokens = (struct openai_int){.set = true, .value = max_tokens};
    x->model = &model;
    assert_int_equal(completion_charge(x), 0);
    x->model = NULL;
    http_unref(http);
    return x;
}

/* Another client takes what is left; then each call is asked for its ids. Returns how many of them
 * have found memory. */
static unsigned find_memory_when_it_is_full(int max_tokens, size_t bytes, size_t *ret_counted)
{
    static struct upstream upstream = {.n = 1};
    static struct completions g = {
        .upstream = &upstream, .mu = PTHREAD_MUTEX_INITIALIZER, .patience.resume_us = 1};
    struct http_server server = {0};
    size_t counted = 0;
    unsigned n = 0;
    assert_int_equal(request_memory_new(MEMORY, &server.memory), 0);
    struct completion *x = admitted(&g, &server, max_tokens);
    *ret_counted = request_memory_used(server.memory);
    struct request_memory_client *other = request_memory_join(server.memory, "other");
    assert_true(request_memory_grow(server.memory, other, MEMORY - *ret_counted, &counted));
    for (unsigned i = 0; i < N_PROMPTS; i++)
        n += x->calls[i].events->on_hold(&x->calls[i], bytes);
    assert_false(x->calls[0].events->on_hold(&x->calls[0], bytes));
    request_memory_set(server.memory, other, 0, &counted);
    request_memory_leave(server.memory, other);
    completion_unref(x);
    assert_int_equal(request_memory_used(server.memory), 0);
    request_memory_free(server.memory);
    return n;
}

static void ids_of_a_running_answer_have_their_memory_when_it_is_full(void **state)
{
    (void)state;
    size_t counted;
    assert_int_equal(find_memory_when_it_is_full(1000, 4096, &counted), N_PROMPTS);
}

static void only_ids_of_16384_tokens_are_charged_before_they_come(void **state)
{
    (void)state;
    size_t counted;
    assert_int_equal(find_memory_when_it_is_full(90000, 16 << 10, &counted), 4);
    assert_in_range(counted, 64 << 10, 72 << 10);
}

/* The bytes that a request counts which reserves no ids, and whose answer keeps so many bytes. */
static size_t counted_with(size_t n_kept, size_t *ret_request)
{
    static struct upstream upstream = {.n = 1};
    static struct completions g = {.upstream = &upstream, .mu = PTHREAD_MUTEX_INITIALIZER};
    struct http_server server = {0};
    struct http_request *http = calloc(1, sizeof(*http));
    *http = (struct http_request){.s = &server};
    atomic_init(&http->n_refs, 1);
    pthread_mutex_init(&http->mu, NULL);
    assert_int_equal(request_memory_new(MEMORY, &server.memory), 0);
    struct completion *x = generation_of(&g, http, N_PROMPTS);
    x->q.user = strdup("somebody");
    *ret_request = openai_request_bytes(&x->q);
    if (n_kept) {
        x->reply.echoed = malloc(n_kept);
        memset(x->reply.echoed, 'e', n_kept - 1);
        x->reply.echoed[n_kept - 1] = 0;
    }
    assert_int_equal(completion_charge(x), 0);
    size_t counted = request_memory_used(server.memory);
    http_unref(http);
    completion_unref(x);
    assert_int_equal(request_memory_used(server.memory), 0);
    request_memory_free(server.memory);
    return counted;
}

static void a_request_counts_what_stays_of_it(void **state)
{
    (void)state;
    size_t request, counted = counted_with(0, &request);
    assert_true(request > 0);
    assert_int_equal(counted, request);
    counted = counted_with(1000, &request);
    assert_int_equal(counted, request + 1000);
}

/* The bytes of ids that a request of this kind reserves for each of its prompts. */
static size_t ids_reserved(enum openai_kind kind, int max_tokens, int64_t resume_us, bool continues)
{
    static struct upstream upstream = {.n = 1};
    struct completions g = {
        .upstream = &upstream, .mu = PTHREAD_MUTEX_INITIALIZER, .patience.resume_us = resume_us};
    struct http_server server = {0};
    struct http_request *http = calloc(1, sizeof(*http));
    Tandem__V1__ModelInfo info = TANDEM__V1__MODEL_INFO__INIT;
    const struct upstream_model model = {.info = &info};
    *http = (struct http_request){.s = &server};
    atomic_init(&http->n_refs, 1);
    pthread_mutex_init(&http->mu, NULL);
    assert_int_equal(request_memory_new(MEMORY, &server.memory), 0);
    struct completion *x = generation_of(&g, http, N_PROMPTS);
    info.context_length = 1000;
    info.continues = continues;
    x->q.kind = kind;
    x->q.max_tokens = (struct openai_int){max_tokens > 0, max_tokens};
    x->model = &model;
    assert_int_equal(completion_charge(x), 0);
    x->model = NULL;
    size_t reserved = x->reserved;
    http_unref(http);
    completion_unref(x);
    request_memory_free(server.memory);
    assert_int_equal(reserved % N_PROMPTS, 0);
    return reserved / N_PROMPTS;
}

static void ids_are_reserved_if_the_answer_may_be_continued(void **state)
{
    (void)state;
    static const struct {
        enum openai_kind kind;
        int max_tokens; // 0: not set
        int64_t resume_us;
        bool continues;
        size_t tokens;
    } v[] = {{OPENAI_COMPLETION, 100, 1, true, 128},   {OPENAI_COMPLETION, 100, 0, true, 0},
             {OPENAI_COMPLETION, 100, 1, false, 0},    {OPENAI_COMPLETION, 0, 1, true, 64},
             {OPENAI_CHAT, 0, 1, true, 1024},          {OPENAI_COMPLETION, 5000, 1, true, 1024},
             {OPENAI_COMPLETION, 1000, 1, true, 1024}, {OPENAI_COMPLETION, 64, 1, true, 64},
             {OPENAI_COMPLETION, 65, 1, true, 128}};
    for (size_t i = 0; i < ARRAY_LEN(v); i++)
        assert_int_equal(ids_reserved(v[i].kind, v[i].max_tokens, v[i].resume_us, v[i].continues),
                         v[i].tokens * sizeof(uint32_t));
}

/* ---- memory for answers ---- */

/* The call's verifier sends a token. */
static void say_text(struct completion *x, unsigned call, const char *text, size_t n)
{
    Tandem__V1__GenerateEvent e = TANDEM__V1__GENERATE_EVENT__INIT;
    Tandem__V1__TokenRun run = TANDEM__V1__TOKEN_RUN__INIT;
    Tandem__V1__Token token = TANDEM__V1__TOKEN__INIT, *tokens[] = {&token};
    token.text = (ProtobufCBinaryData){n, (uint8_t *)text};
    run.tokens = tokens;
    run.n_tokens = 1;
    e.event_case = TANDEM__V1__GENERATE_EVENT__EVENT_RUN;
    e.run = &run;
    x->calls[call].events->on_event(&x->calls[call], &e);
}

/* ... of n bytes. */
static void say(struct completion *x, unsigned call, size_t n)
{
    AUTO(mem_free) char *text = malloc(n);
    memset(text, 'a', n);
    say_text(x, call, text, n);
}

/* A request whose calls run. The other requests of its client take `others` bytes. */
static struct completion *running(struct completions *g, struct http_server *server, size_t others,
                                  size_t *counted)
{
    struct http_request *http = calloc(1, sizeof(*http));
    *http = (struct http_request){.s = server};
    atomic_init(&http->n_refs, 1);
    pthread_mutex_init(&http->mu, NULL);
    assert_int_equal(request_memory_new(4 * MEMORY, &server->memory), 0);
    http_set_payer(http, "writer");
    assert_true(request_memory_grow(server->memory, http->payer, others, counted));
    struct completion *x = generation_of(g, http, N_PROMPTS);
    assert_int_equal(completion_charge(x), 0);
    played.n = played.n_ended = played.most = 0;
    played.after = 1000;
    completion_send(x);
    return x;
}

static void end_running(struct completion *x, size_t others, size_t *counted, int status)
{
    struct http_request *http = x->http; // the caller has a reference
    struct http_server *server = http->s;
    while (played.n_ended < played.n)
        end_one();
    assert_int_equal(http->status, status);
    assert_int_equal(*counted, others);
    assert_int_equal(request_memory_set(server->memory, http->payer, 0, counted), 0);
    http_unref(http);
    assert_int_equal(request_memory_used(server->memory), 0);
    request_memory_free(server->memory);
}

static void an_answer_counts_until_it_is_sent(void **state)
{
    static struct upstream upstream = {.n = 1};
    static struct completions g = {.upstream = &upstream, .mu = PTHREAD_MUTEX_INITIALIZER};
    struct http_server server = {0};
    size_t counted = 0;
    (void)state;
    struct completion *x = running(&g, &server, 0, &counted);
    struct http_request *http = x->http;
    size_t request = request_memory_used(server.memory);
    say(x, 0, 1000);
    assert_int_equal(request_memory_used(server.memory), request); // little is free of charge
    say(x, 1, 30000);
    assert_in_range(request_memory_used(server.memory), request, request + 1); // less than a step
    say(x, 1, 30000);
    assert_in_range(request_memory_used(server.memory), request + 65536, request + 131072);
    while (played.n_ended < played.n)
        end_one();
    assert_int_equal(http->status, 200);
    assert_int_equal(request_memory_used(server.memory), request + 65536); // what is to be read
    size_t freed = request_memory_freed(server.memory);
    http_unref(http);
    assert_int_equal(request_memory_used(server.memory), 0);
    assert_true(request_memory_freed(server.memory) >= freed + 65536);
    request_memory_free(server.memory);
}

static void an_answer_that_finds_no_memory_ends_its_request(void **state)
{
    static struct upstream upstream = {.n = 1};
    static struct completions g = {.upstream = &upstream, .mu = PTHREAD_MUTEX_INITIALIZER};
    static const struct {
        size_t others, text; // bytes of the client's other requests, and of each token
        int status;
        bool at_end; // the tokens find memory, the object does not
    } v[] = {{0, 300000, 413, false},
             {300000, 150000, 429, false},
             {0, 140000, 413, true},
             {0, 30000, 200, false}};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        struct http_server server = {0};
        size_t counted = 0, of_neighbour = 0;
        struct completion *x = running(&g, &server, v[i].others, &counted);
        say(x, 0, v[i].text);
        say(x, 1, v[i].text);
        assert_int_equal(x->failing, v[i].status != 200 && !v[i].at_end);
        size_t used = request_memory_used(server.memory);
        say(x, 2, v[i].text);
        if (x->failing)
            assert_int_equal(request_memory_used(server.memory), used);
        struct request_memory_client *n = request_memory_join(server.memory, "neighbour");
        assert_int_equal(request_memory_set(server.memory, n, 1 << 14, &of_neighbour), 0);
        assert_int_equal(request_memory_set(server.memory, n, 0, &of_neighbour), 0);
        request_memory_leave(server.memory, n);
        end_running(x, v[i].others, &counted, v[i].status);
    }
}

/* ---- streams ---- */

/* A stream of this kind that nobody reads, and whose call runs. The other requests of its client
 * take `others` bytes. */
static struct completion *streaming(struct completions *g, struct http_server *server,
                                    enum openai_kind kind, size_t others, size_t *counted)
{
    struct openai_reply_head head = {.kind = kind,
                                     .stream = true,
                                     .rules.format = TOOLS_HERMES,
                                     .id = "r1",
                                     .n = 1,
                                     .n_each = 1};
    struct http_request *http = calloc(1, sizeof(*http));
    server->o.max_unread = 1 << 30;
    *http = (struct http_request){.s = server};
    atomic_init(&http->n_refs, 1);
    pthread_mutex_init(&http->mu, NULL);
    assert_int_equal(request_memory_new(4 * MEMORY, &server->memory), 0);
    http_set_payer(http, "writer");
    assert_true(request_memory_grow(server->memory, http->payer, others, counted));
    head.echoed = kind == OPENAI_RESPONSES ? strdup("\"a\":1") : NULL;
    struct completion *x = generation_as(g, http, 1, &head);
    assert_int_equal(completion_charge(x), 0);
    played.n = played.n_ended = played.most = 0;
    played.after = 1000;
    completion_send(x);
    Tandem__V1__GenerateEvent e = TANDEM__V1__GENERATE_EVENT__INIT;
    Tandem__V1__Started started = TANDEM__V1__STARTED__INIT;
    e.event_case = TANDEM__V1__GENERATE_EVENT__EVENT_STARTED;
    e.started = &started;
    assert_false(http->keeps_place);
    x->calls[0].events->on_event(&x->calls[0], &e);
    assert_true(http->keeps_place);
    return x;
}

static void end_streaming(struct http_request *http, size_t *counted)
{
    struct http_server *server = http->s;
    assert_int_equal(request_memory_set(server->memory, http->payer, 0, counted), 0);
    http_unref(http);
    assert_int_equal(request_memory_used(server->memory), 0);
    request_memory_free(server->memory);
}

static bool has_sent(const struct http_request *http, const char *part)
{
    return memmem(http->out.data, http->out.len, part, strlen(part)) != NULL;
}

/* Whether each event that was sent is whole. */
static bool events_are_whole(const struct http_request *http)
{
    unsigned n_begun = 0, n_ended = 0;
    for (char *at = http->out.data; (at = strstr(at, "data: ")); at++)
        n_begun++;
    for (char *at = http->out.data; (at = strstr(at, "}\n\n")); at++)
        n_ended++;
    return n_begun == n_ended + has_sent(http, "[DONE]");
}

static void a_stream_that_lacks_a_token_ends_with_an_error(void **state)
{
    static struct upstream upstream = {.n = 1};
    static struct completions g = {.upstream = &upstream, .mu = PTHREAD_MUTEX_INITIALIZER};
    bool failed = true;
    (void)state;
    for (unsigned n = 2; failed; n++) { // the first one is say()'s
        struct http_server server = {0};
        size_t counted = 0;
        struct completion *x = streaming(&g, &server, OPENAI_CHAT, 0, &counted);
        struct http_request *http = x->http;
        buf_reserve(&http->out, 1 << 16); // the server's memory is not the matter
        failing_at(n);
        say(x, 0, 1000);
        failed = failing_has_failed();
        while (played.n_ended < played.n)
            end_one();
        assert_true(events_are_whole(http));
        if (has_sent(http, "\"error\"") != failed)
            fail_msg("%u: %s", n, http->out.data);
        end_streaming(http, &counted);
    }
}

/* A tool call whose arguments have n bytes. */
static void say_call(struct completion *x, int n)
{
    AUTO(mem_free) char *text = NULL;
    int len = asprintf(
        &text, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"%0*d\"}}</tool_call>", n, 0);
    assert_true(len > n);
    say_text(x, 0, text, (size_t)len);
}

/* The reader takes all that was sent. */
static void read_all(struct http_request *http)
{
    size_t max = http->out.max;
    buf_done(&http->out);
    buf_init(&http->out, max);
    request_memory_set(http->s->memory, http->payer, 0, &http->out_counted);
}

static void end_calls(void)
{
    while (played.n_ended < played.n)
        end_one();
}

/* Its events have sent the call; the end is short. */
static void a_complete_stream_ends_although_its_share_is_full(void **state)
{
    static struct upstream upstream = {.n = 1};
    static struct completions g = {.upstream = &upstream, .mu = PTHREAD_MUTEX_INITIALIZER};
    struct http_server server = {0};
    size_t counted = 0;
    (void)state;
    struct completion *x = streaming(&g, &server, OPENAI_CHAT, 250000, &counted);
    struct http_request *http = x->http;
    say_call(x, 120000);
    assert_int_equal(http_charge(http, http_charged(http) + 131072), -EDQUOT);
    end_calls();
    assert_true(has_sent(http, "[DONE]"));
    assert_false(has_sent(http, "error"));
    end_streaming(http, &counted);
}

/* The object repeats what the response echoes. Beside the request it finds no memory, or it is
 * charged until it is sent. */
static void what_the_end_repeats_is_charged(void **state)
{
    static struct upstream upstream = {.n = 1};
    static struct completions g = {.upstream = &upstream, .mu = PTHREAD_MUTEX_INITIALIZER};
    (void)state;
    for (int refused = 0; refused < 2; refused++) {
        struct http_server server = {0};
        size_t counted = 0;
        struct completion *x = running(&g, &server, 0, &counted);
        struct http_request *http = x->http;
        x->reply.echoed = calloc(1, 150001);
        memset(x->reply.echoed, 'e', 150000);
        assert_int_equal(completion_charge(x), 0);
        size_t request = request_memory_used(server.memory);
        say(x, 0, refused ? 130000 : 70000);
        end_calls();
        assert_int_equal(http->status, refused ? 413 : 200);
        size_t used = request_memory_used(server.memory);
        if (refused)
            assert_int_equal(used, request);
        else
            assert_in_range(used, request + http->out.cap - 65535, request + http->out.cap);
        end_streaming(http, &counted);
    }
}

/* The last event of a response that fails repeats its items, except if it has failed for them. */
static void what_a_failed_response_repeats_is_charged(void **state)
{
    static struct upstream upstream = {.n = 1};
    static struct completions g = {.upstream = &upstream, .mu = PTHREAD_MUTEX_INITIALIZER};
    (void)state;
    for (int refused = 0; refused < 2; refused++) {
        struct http_server server = {0};
        size_t counted = 0;
        struct completion *x = streaming(&g, &server, OPENAI_RESPONSES, 100000, &counted);
        struct http_request *http = x->http;
        for (int n = 0; n < (refused ? 100 : 7) && !x->failing; n++) {
            say_call(x, 30000);
            read_all(http);
        }
        assert_int_equal(x->failing, refused);
        played.overdue = played.begun = true;
        end_calls();
        played.overdue = played.begun = false;
        assert_true(has_sent(http, "response.failed"));
        assert_int_equal(has_sent(http, "\"output\":[]"), refused);
        assert_true(http->out.cap - http->out_counted < 65536);
        end_streaming(http, &counted);
    }
}

/* The text of the 500 that an answer with this error becomes. */
static void answer_with_error_says(int error, const char *part)
{
    static struct upstream upstream = {.n = 1};
    static struct completions g = {.upstream = &upstream, .mu = PTHREAD_MUTEX_INITIALIZER};
    struct http_request *http = new_http();
    struct completion *x = generation_of(&g, http, N_PROMPTS);
    x->reply.choices[1].text.error = error;
    played.n = played.n_ended = played.most = played.after = 0;
    completion_send(x);
    while (played.n_ended < played.n)
        end_one();
    assert_int_equal(http->status, 500);
    assert_non_null(memmem(http->out.data, http->out.len, part, strlen(part)));
    http_unref(http);
}

static void an_answer_that_cannot_be_written_is_500(void **state)
{
    (void)state;
    answer_with_error_says(-ENOMEM, "no memory for the answer");
    answer_with_error_says(-EMSGSIZE, "the answer is too large: at most 64 MiB for a choice");
}

static int start(void **state)
{
    (void)state;
    access_log_init();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_prompt_is_sent_whenever_earlier_calls_end),
        cmocka_unit_test(one_call_runs_until_the_first_event),
        cmocka_unit_test(further_calls_wait_while_the_queue_is_full),
        cmocka_unit_test(refusals_of_calls_are_noted),
        cmocka_unit_test(a_request_that_fails_waits_for_no_place),
        cmocka_unit_test(only_a_request_that_has_not_begun_waits_in_a_queue),
        cmocka_unit_test(calls_that_wait_for_a_verifier_end_with_the_gateway),
        cmocka_unit_test(ids_of_a_running_answer_have_their_memory_when_it_is_full),
        cmocka_unit_test(a_request_counts_what_stays_of_it),
        cmocka_unit_test(ids_are_reserved_if_the_answer_may_be_continued),
        cmocka_unit_test(an_answer_that_cannot_be_written_is_500),
        cmocka_unit_test(an_answer_counts_until_it_is_sent),
        cmocka_unit_test(an_answer_that_finds_no_memory_ends_its_request),
        cmocka_unit_test(only_ids_of_16384_tokens_are_charged_before_they_come),
        cmocka_unit_test(a_complete_stream_ends_although_its_share_is_full),
        cmocka_unit_test(what_the_end_repeats_is_charged),
        cmocka_unit_test(what_a_failed_response_repeats_is_charged),
        cmocka_unit_test(a_stream_that_lacks_a_token_ends_with_an_error),
    };
    return cmocka_run_group_tests(tests, start, NULL);
}

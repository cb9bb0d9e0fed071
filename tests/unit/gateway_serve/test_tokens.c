/* test_tokens.c - /tokenize and /detokenize. The verifier's answers are made here
 * (--wrap=upstream_unary). */
#include <stdlib.h>
#include <string.h>
#include "gateway/http/http_request.h"
#include "gateway/keys/auth.h"
#include "gateway/serve/tokens.h"
#include "gateway/upstream/upstream_impl.h"
#include "lib/fakes/failing.h"
#include "lib/lib.h"
#include "lib/rigs/reader_hold.h"

#define MEMORY 4000              // of requests; one may use half of it
#define LARGE (READER_BYTES + 1) // bytes of a body or of a reply
#define LARGE_MEMORY (8u << 20)

/* ---- fakes ---- */

static struct {
    unsigned n, verifier;
    char path[64];
    bool parse_special, add_bos, render_special;
    char text[64], flow[80];
    uint32_t ids[4];
    size_t n_ids;
    unary_calls_done *done;
    void *user;
} asked;

void __wrap_upstream_unary(struct verifier *v, const char *path, int64_t timeout_us,
                           const ProtobufCMessage *request, const ProtobufCMessageDescriptor *reply,
                           unary_calls_done *done, void *user);
void __wrap_upstream_unary(struct verifier *v, const char *path, int64_t timeout_us,
                           const ProtobufCMessage *request, const ProtobufCMessageDescriptor *reply,
                           unary_calls_done *done, void *user)
{
    asked.verifier = upstream_index(v);
    assert_int_equal(timeout_us, 10000000);
    asked.n++;
    asked.done = done;
    asked.user = user;
    snprintf(asked.path, sizeof(asked.path), "%s", path);
    if (reply == &tandem__v1__tokenize_reply__descriptor) {
        const Tandem__V1__TokenizeRequest *m = (const Tandem__V1__TokenizeRequest *)request;
        asked.parse_special = m->parse_special;
        asked.add_bos = m->add_bos;
        snprintf(asked.flow, sizeof(asked.flow), "%.*s", (int)m->flow.len, (char *)m->flow.data);
        snprintf(asked.text, sizeof(asked.text), "%.*s", (int)m->text.len, (char *)m->text.data);
    } else {
        const Tandem__V1__DetokenizeRequest *m = (const Tandem__V1__DetokenizeRequest *)request;
        assert_ptr_equal(reply, &tandem__v1__detokenize_reply__descriptor);
        asked.render_special = m->render_special;
        snprintf(asked.flow, sizeof(asked.flow), "%.*s", (int)m->flow.len, (char *)m->flow.data);
        asked.n_ids = m->n_ids;
        memcpy(asked.ids, m->ids, m->n_ids * sizeof(*m->ids));
    }
}

/* ---- a gateway with one verifier ---- */

static struct gateway g;
static struct upstream u;
static struct http_server server;
static struct http_request *r;
static Tandem__V1__ModelInfo info;
static struct { // as a snapshot of upstream.c
    struct upstream_model model;
    atomic_uint n_refs;
    void *unused;
} snapshot;

static int start(void **state)
{
    (void)state;
    asked.n = 0;
    tandem__v1__model_info__init(&info);
    info.name = rpc_text("m");
    snapshot.model.info = &info;
    atomic_init(&snapshot.n_refs, 1);
    u = (struct upstream){.n = 1, .mu = PTHREAD_MUTEX_INITIALIZER};
    u.verifiers[0] = (struct verifier){
        .u = &u, .target = (char *)"unix:/a", .state = UPSTREAM_READY, .model = &snapshot.model};
    g = (struct gateway){.upstream = &u};
    assert_int_equal(reader_new(&g.reader), 0);
    assert_int_equal(request_memory_new(MEMORY, &server.memory), 0);
    r = calloc(1, sizeof(*r));
    *r = (struct http_request){.s = &server, .id = "id-1"};
    atomic_init(&r->n_refs, 1);
    pthread_mutex_init(&r->mu, NULL);
    buf_init(&r->body, 1 << 16);
    return 0;
}

static int end(void **state)
{
    (void)state;
    reader_free(g.reader);
    assert_int_equal(atomic_load(&r->n_refs), 1);
    assert_int_equal(atomic_load(&snapshot.n_refs), 1);
    assert_int_equal(atomic_load(&u.verifiers[0].n_requests), 0);
    http_unref(r);
    assert_int_equal(request_memory_used(server.memory), 0);
    request_memory_free(server.memory);
    return 0;
}

static void encode(const char *body)
{
    r->answer = NONE;
    buf_init(&r->body, 1 << 16);
    buf_puts(&r->body, body);
    tokens_encode(&g, r);
    assert_null(r->body.data); // freed once it is parsed
}

static void decode(const char *body)
{
    r->answer = NONE;
    buf_init(&r->body, 1 << 16);
    buf_puts(&r->body, body);
    tokens_decode(&g, r);
}

static void replies(const ProtobufCMessage *m)
{
    struct rpc_msg *msg = rpc_pack(m);
    ProtobufCMessage *copy = rpc_unpack(m->descriptor, msg);
    rpc_msg_free(msg);
    asked.done(asked.user, &(struct rpc_status){.code = RPC_OK}, copy);
}

static void is(int status, const char *part)
{
    assert_int_equal(r->status, status);
    if (!memmem(r->out.data, r->out.len, part, strlen(part)))
        fail_msg("no %s in %.*s", part, (int)r->out.len, r->out.data);
}

/* ---- tests ---- */

static void every_id_is_written_in_full(void **state)
{
    (void)state;
    static uint32_t ids[] = {0, 9, 10, 99, 100, 4294967295u, 1};
    Tandem__V1__TokenizeReply m = TANDEM__V1__TOKENIZE_REPLY__INIT;
    m.ids = ids;
    m.n_ids = ARRAY_LEN(ids);
    encode("{\"prompt\":\"some text\"}");
    assert_string_equal(asked.path, "/tandem.v1.Verifier/Tokenize");
    assert_string_equal(asked.text, "some text");
    assert_true(asked.parse_special);
    assert_true(asked.add_bos);
    assert_int_equal(r->status, 0);
    replies(&m.base);
    is(200, "{\"count\":7,\"tokens\":[0,9,10,99,100,4294967295,1]}\n");
    encode("{\"prompt\":\"x\",\"add_special_tokens\":false}");
    assert_false(asked.add_bos);
    replies(&m.base);
    encode("{\"prompt\":\"x\",\"add_special_tokens\":true,\"model\":\"m\"}");
    assert_true(asked.add_bos);
    m.n_ids = 0;
    replies(&m.base);
    is(200, "{\"count\":0,\"tokens\":[]}\n");
}

static void ids_become_text(void **state)
{
    (void)state;
    Tandem__V1__DetokenizeReply m = TANDEM__V1__DETOKENIZE_REPLY__INIT;
    m.text = rpc_text("a \"b\"");
    decode("{\"tokens\":[5,6,7]}");
    assert_string_equal(asked.path, "/tandem.v1.Verifier/Detokenize");
    assert_int_equal(asked.n_ids, 3);
    assert_int_equal(asked.ids[2], 7);
    assert_true(asked.render_special);
    replies(&m.base);
    is(200, "{\"prompt\":\"a \\\"b\\\"\"}\n");
}

static void calls_have_the_flow_of_their_key(void **state)
{
    (void)state;
    static const char text[] = "alice sk-0123456789abcdef\n";
    Tandem__V1__TokenizeReply ids = TANDEM__V1__TOKENIZE_REPLY__INIT;
    Tandem__V1__DetokenizeReply piece = TANDEM__V1__DETOKENIZE_REPLY__INIT;
    AUTO(auth_free) struct auth *keys = NULL;
    struct auth_guest *guest;
    struct auth_levels levels;
    struct openai_request q = {0};
    assert_int_equal(auth_new_text("keys", text, strlen(text), &keys), 0);
    assert_int_equal(auth_enter(keys, "sk-0123456789abcdef", true, 1, &guest, &levels), 0);
    assert_int_equal(auth_bind_flow(guest, "", &q, NULL), 0);
    encode("{\"prompt\":\"x\"}");
    replies(&ids.base);
    assert_int_equal(strlen(asked.flow), 64); // without keys: that of the address
    assert_string_not_equal(asked.flow, q.flow);
    r->attached = guest;
    encode("{\"prompt\":\"x\"}");
    replies(&ids.base);
    assert_int_equal(strlen(asked.flow), 64);
    assert_string_equal(asked.flow, q.flow);
    asked.flow[0] = 0;
    decode("{\"tokens\":[5]}");
    replies(&piece.base);
    assert_string_equal(asked.flow, q.flow);
    r->attached = NULL;
    auth_leave(guest);
    openai_request_done(&q);
}

static void errors_have_their_status(void **state)
{
    (void)state;
    encode("{}");
    is(400, "prompt is missing");
    encode("{\"prompt\":\"x\",\"model\":\"no\"}");
    is(404, "\"param\":\"model\",\"code\":\"model_not_found\"");
    u.verifiers[0].state = UPSTREAM_DOWN;
    encode("{\"prompt\":\"x\"}");
    is(503, "\"param\":null");
    decode("{\"tokens\":[1]}");
    is(503, UPSTREAM_UNREACHED);
    u.verifiers[0].state = UPSTREAM_READY;
    assert_int_equal(asked.n, 0);
    encode("{\"prompt\":\"x\"}");
    asked.done(asked.user, &(struct rpc_status){RPC_INVALID_ARGUMENT, "as you asked"}, NULL);
    is(400, "as you asked");
    encode("{\"prompt\":\"x\"}");
    asked.done(asked.user, &(struct rpc_status){RPC_UNAVAILABLE, "socket 7"}, NULL);
    is(503, UPSTREAM_UNREACHED);
    assert_null(memmem(r->out.data, r->out.len, "socket", 6));
}

/* Each of the same model is asked once. The third one serves another model, whose ids differ. */
static void a_lost_request_is_asked_of_other_verifiers(void **state)
{
    (void)state;
    const struct rpc_status lost = {RPC_UNAVAILABLE, "gone"};
    struct Tandem__V1__ModelInfo other = info;
    other.name = rpc_text("other");
    static struct upstream_model others = {0};
    others.info = &other;
    for (unsigned i = 1; i < 3; i++)
        u.verifiers[i] = (struct verifier){.u = &u,
                                           .target = (char *)"unix:/b",
                                           .state = UPSTREAM_READY,
                                           .model = i == 1 ? &snapshot.model : &others};
    u.n = 3;
    for (int all = 0; all < 2; all++) {
        asked.n = 0;
        encode(all ? "{\"prompt\":\"x\"}" : "{\"prompt\":\"x\",\"model\":\"m\"}");
        assert_int_equal(asked.verifier, 0);
        asked.done(asked.user, &lost, NULL);
        assert_int_equal(asked.verifier, 1);
        assert_string_equal(asked.text, "x");
        assert_int_equal(r->answer, NONE);
        assert_true(request_memory_used(server.memory) > 0); // the request is kept
        asked.done(asked.user, &lost, NULL);
        is(503, UPSTREAM_UNREACHED);
        assert_int_equal(asked.n, 2);
    }
    decode("{\"tokens\":[3,4]}");
    asked.done(asked.user, &lost, NULL);
    assert_int_equal(asked.ids[1], 4);
    asked.done(asked.user, &(struct rpc_status){RPC_INVALID_ARGUMENT, "as you asked"}, NULL);
    is(400, "as you asked");
}

/* Ids and their JSON take 8 times the reply; more than half of the memory is refused. */
static void an_answer_must_find_memory(void **state)
{
    (void)state;
    static uint32_t ids[300];
    Tandem__V1__TokenizeReply m = TANDEM__V1__TOKENIZE_REPLY__INIT;
    m.ids = ids;
    m.n_ids = MEMORY / 2 / 8 - 3; // 3 more bytes of the message
    encode("{\"prompt\":\"x\"}");
    replies(&m.base);
    is(200, "\"count\":247");
    m.n_ids++;
    encode("{\"prompt\":\"x\"}");
    replies(&m.base);
    is(413, "half of max_bodies_mib");
}

static void a_request_without_memory_is_500(void **state)
{
    (void)state;
    failing_at(1);
    tokens_encode(&g, r);
    assert_true(failing_has_failed());
    is(500, "no memory for this request");
}

/* ---- large bodies and answers ---- */

static int start_large(void **state)
{
    start(state);
    request_memory_free(server.memory);
    return request_memory_new(LARGE_MEMORY, &server.memory);
}

/* Sets a body of n bytes. */
static void put_body(size_t n)
{
    static const char head[] = "{\"prompt\":\"", tail[] = "\"}";
    buf_init(&r->body, 2 * LARGE);
    buf_puts(&r->body, head);
    while (r->body.len < n - strlen(tail))
        buf_puts(&r->body, "a");
    buf_puts(&r->body, tail);
}

static void a_large_body_is_read_by_the_reader(void **state)
{
    (void)state;
    Tandem__V1__TokenizeReply m = TANDEM__V1__TOKENIZE_REPLY__INIT;
    put_body(LARGE);
    reader_hold(g.reader, "other");
    tokens_encode(&g, r);
    assert_non_null(r->body.data);
    assert_int_equal(asked.n, 0);
    reader_let_go();
    reader_await(g.reader);
    assert_null(r->body.data);
    assert_int_equal(asked.n, 1);
    replies(&m.base);
    is(200, "{\"count\":0,\"tokens\":[]}\n");
}

static void a_large_body_may_find_no_place(void **state)
{
    (void)state;
    put_body(LARGE);
    reader_hold(g.reader, "other");
    reader_fill(g.reader, READER_MAX_WAITING);
    tokens_encode(&g, r);
    is(503, "too many large requests wait to be read; try again");
}

static void a_large_body_that_waits_at_the_end_is_refused(void **state)
{
    (void)state;
    put_body(LARGE);
    reader_hold(g.reader, "other");
    tokens_encode(&g, r);
    reader_stop(g.reader);
    is(503, READER_STOPPING);
    assert_int_equal(asked.n, 0);
}

static void a_large_answer_is_written_by_the_reader(void **state)
{
    (void)state;
    static uint32_t ids[LARGE];
    Tandem__V1__TokenizeReply m = TANDEM__V1__TOKENIZE_REPLY__INIT;
    m.ids = ids;
    m.n_ids = LARGE;
    encode("{\"prompt\":\"x\"}");
    reader_hold(g.reader, "other");
    replies(&m.base);
    assert_int_equal(r->answer, NONE);
    reader_let_go();
    reader_await(g.reader);
    is(200, "{\"count\":8193,\"tokens\":[0,0,");
    encode("{\"prompt\":\"x\"}");
    reader_stop(g.reader);
    replies(&m.base); // is written all the same
    is(200, "{\"count\":8193,\"tokens\":[0,0,");
}

static void up_to_8_kib_are_not_for_the_reader(void **state)
{
    (void)state;
    static uint32_t ids[READER_BYTES];
    Tandem__V1__TokenizeReply m = TANDEM__V1__TOKENIZE_REPLY__INIT;
    m.ids = ids;
    m.n_ids = READER_BYTES - 3; // 3 more bytes of the message
    assert_int_equal(protobuf_c_message_get_packed_size(&m.base), READER_BYTES);
    put_body(READER_BYTES);
    reader_hold(g.reader, "other");
    tokens_encode(&g, r);
    assert_int_equal(asked.n, 1);
    replies(&m.base);
    is(200, "{\"count\":8189,\"tokens\":[0,0,");
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, start, end)
#define LARGE_CASE(name) cmocka_unit_test_setup_teardown(name, start_large, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(every_id_is_written_in_full),
        CASE(ids_become_text),
        CASE(calls_have_the_flow_of_their_key),
        CASE(errors_have_their_status),
        CASE(a_lost_request_is_asked_of_other_verifiers),
        CASE(an_answer_must_find_memory),
        CASE(a_request_without_memory_is_500),
        LARGE_CASE(a_large_body_is_read_by_the_reader),
        LARGE_CASE(a_large_body_may_find_no_place),
        LARGE_CASE(a_large_body_that_waits_at_the_end_is_refused),
        LARGE_CASE(a_large_answer_is_written_by_the_reader),
        LARGE_CASE(up_to_8_kib_are_not_for_the_reader),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

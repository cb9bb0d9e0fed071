/* test_rpc_reflection.c - a client that knows only the reflection service. */
#include <poll.h>
#include <string.h>
#include "base/clock.h"
#include "grpc/reflection/v1alpha/reflection.pb-c.h"
#include "lib/rigs/rpc_rig.h"
#include "rpc/rpc_reflection.h"

typedef Grpc__Reflection__V1alpha__ServerReflectionRequest Question;
typedef Grpc__Reflection__V1alpha__ServerReflectionResponse Answer;
#define ASKED(x) GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_##x
#define ANSWERED(x) GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_##x

#define MAX_ANSWERS 8
#define INFO "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"

static int n_pauses; // calls of rpc_call_pause(), which the linker hands to this

void __real_rpc_call_pause(struct rpc_call *c);
void __wrap_rpc_call_pause(struct rpc_call *c);
void __wrap_rpc_call_pause(struct rpc_call *c)
{
    __real_rpc_call_pause(c);
    rpc_rig_bump(&n_pauses);
}

struct reader {
    struct rpc_tally t;
    Answer *answers[MAX_ANSWERS]; // one per message
};

static void reader_message(void *user, struct rpc_msg *msg)
{
    struct reader *x = user;
    int n = rpc_rig_count(&x->t.messages);
    if (n < MAX_ANSWERS)
        x->answers[n] = (Answer *)rpc_unpack(
            &grpc__reflection__v1alpha__server_reflection_response__descriptor, msg);
    rpc_tally_message(&x->t, msg);
}

static Answer *reflect(struct rpc_stream *s, struct reader *x, int kind, const char *text)
{
    Question q = GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_REQUEST__INIT;
    q.message_request_case =
        (Grpc__Reflection__V1alpha__ServerReflectionRequest__MessageRequestCase)kind;
    q.list_services =
        (char *)(uintptr_t)text; // all strings of the union share this member's address
    q.host = "here";
    int n = rpc_rig_count(&x->t.messages);
    rpc_stream_send(s, rpc_pack(&q.base));
    rpc_rig_await(&x->t.messages, n + 1);
    Answer *a = x->answers[n];
    assert_non_null(a);
    assert_string_equal(a->valid_host, "here");
    assert_int_equal(a->original_request->message_request_case, kind);
    return a;
}

static void check_reflection(struct rpc_rig *r, const char *path)
{
    static const struct rpc_events events = {.on_message = reader_message, .on_end = rpc_tally_end};
    struct reader x = {0};
    struct rpc_stream *s = rpc_stream_new(r->client, path, NULL, &events, &x);
    Answer *a = reflect(s, &x, ASKED(LIST_SERVICES), "*");
    assert_int_equal(a->message_response_case, ANSWERED(LIST_SERVICES_RESPONSE));
    assert_int_equal(a->list_services_response->n_service, 2);
    assert_string_equal(a->list_services_response->service[0]->name, "tandem.v1.Verifier");

    a = reflect(s, &x, ASKED(FILE_BY_FILENAME), "tandem/v1/stats.proto");
    assert_int_equal(a->message_response_case, ANSWERED(FILE_DESCRIPTOR_RESPONSE));
    ProtobufCBinaryData by_name = a->file_descriptor_response->file_descriptor_proto[0];
    static const char begin[] = "\x0a\x15tandem/v1/stats.proto\x12\x09tandem.v1";
    assert_memory_equal(by_name.data, begin, sizeof(begin) - 1);
    size_t len = by_name.len;

    a = reflect(s, &x, ASKED(FILE_CONTAINING_SYMBOL), "tandem.v1.Stats.GetStats");
    assert_int_equal(a->message_response_case, ANSWERED(FILE_DESCRIPTOR_RESPONSE));
    assert_int_equal(a->file_descriptor_response->file_descriptor_proto[0].len, len);

    a = reflect(s, &x, ASKED(FILE_CONTAINING_SYMBOL), "tandem.v1.Unknown");
    assert_int_equal(a->message_response_case, ANSWERED(ERROR_RESPONSE));
    assert_int_equal(a->error_response->error_code, RPC_NOT_FOUND);
    a = reflect(s, &x, ASKED(ALL_EXTENSION_NUMBERS_OF_TYPE), "tandem.v1.Tensor");
    assert_int_equal(a->message_response_case, ANSWERED(ERROR_RESPONSE));
    a = reflect(s, &x, ASKED(_NOT_SET), NULL);
    assert_int_equal(a->message_response_case, ANSWERED(ERROR_RESPONSE));
    assert_int_equal(a->error_response->error_code, RPC_UNIMPLEMENTED);

    rpc_stream_close(s);
    rpc_rig_await(&x.t.ends, 1);
    assert_int_equal(x.t.status.code, RPC_OK);
    rpc_stream_free(s);
    assert_int_equal(x.t.messages, 6);
    for (int i = 0; i < x.t.messages; i++)
        protobuf_c_message_free_unpacked(&x.answers[i]->base, NULL);
}

static void reflection_describes_services_files_and_symbols(void **state)
{
    struct rpc_rig *r = *state;
    check_reflection(r, INFO);
    check_reflection(r, "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo");
}

static void a_bad_question_ends_its_stream(void **state)
{
    struct rpc_rig *r = *state;
    struct rpc_tally t;
    struct rpc_stream *s = rpc_rig_open(r, INFO, &t);
    rpc_stream_send(s, rpc_msg_of("\xff\xff", 2));
    rpc_rig_await_end(&t, RPC_INVALID_ARGUMENT);
    assert_string_equal(t.status.text, "the request is not a valid "
                                       "grpc.reflection.v1alpha.ServerReflectionRequest");
    rpc_stream_free(s);
}

/* The answer repeats the question, and the client need not read it. */
static void a_large_question_ends_its_stream(void **state)
{
    struct rpc_rig *r = *state;
    static char name[5000];
    for (int large = 0; large < 2; large++) {
        struct rpc_tally t;
        struct rpc_stream *s = rpc_rig_open(r, INFO, &t);
        Grpc__Reflection__V1alpha__ServerReflectionRequest q =
            GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_REQUEST__INIT;
        memset(name, 'x', 4093 + large); // with 3 bytes of tag and length
        name[4093 + large] = 0;
        q.message_request_case = ASKED(FILE_BY_FILENAME);
        q.file_by_filename = name;
        rpc_stream_send(s, rpc_pack(&q.base));
        rpc_stream_close(s);
        rpc_rig_await_end(&t, large ? RPC_INVALID_ARGUMENT : RPC_OK);
        assert_int_equal(t.messages, !large);
        rpc_stream_free(s);
    }
}

/* Of 16 places, a connection has a quarter. */
static void few_streams_of_a_connection_ask_together(void **state)
{
    enum { N = 5 };
    struct rpc_rig *r = *state;
    struct rpc_tally t[N];
    struct rpc_stream *s[N];
    Question q = GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_REQUEST__INIT;
    q.message_request_case = ASKED(LIST_SERVICES);
    q.list_services = (char *)(uintptr_t) "";
    for (int i = 0; i < N; i++) {
        s[i] = rpc_rig_open(r, INFO, &t[i]);
        rpc_stream_send(s[i], rpc_pack(&q.base));
        if (i < N - 1)
            rpc_rig_await(&t[i].messages, 1);
    }
    rpc_rig_finish(s[N - 1], &t[N - 1], RPC_RESOURCE_EXHAUSTED);
    for (int i = 0; i < N - 1; i++) {
        rpc_stream_close(s[i]);
        rpc_rig_finish(s[i], &t[i], RPC_OK);
    }
}

static void while_answers_are_unread_no_questions_are_read(void **state)
{
    enum { N = 100, PAUSE_US = 20000 }; // each answer has more than 4 KiB
    struct rpc_rig *r = *state;
    struct rpc_tally t;
    Question q = GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_REQUEST__INIT;
    q.message_request_case = ASKED(FILE_BY_FILENAME);
    q.file_by_filename = (char *)(uintptr_t) "tandem/v1/verifier.proto";
    struct rpc_stream *s = rpc_rig_open(r, INFO, &t);
    rpc_stream_pause(s);
    int before = rpc_rig_count(&n_pauses); // one after each answer
    int64_t begun_us = clock_us();
    for (int i = 0; i < N; i++)
        rpc_stream_send(s, rpc_pack(&q.base));
    rpc_stream_close(s);
    rpc_rig_await(&n_pauses, before + 10);
    poll(NULL, 0, N * PAUSE_US / 1000);
    assert_in_range(rpc_rig_count(&n_pauses), before + 10, before + N - 1);
    rpc_stream_unpause(s);
    rpc_rig_await_end(&t, RPC_OK);
    assert_true(clock_us() - begun_us >= (N - 1) * PAUSE_US);
    assert_int_equal(t.messages, N);
    assert_true(t.bytes > N * (4 << 10));
    rpc_stream_free(s);
}

static void symbols_of_every_kind_are_found(void **state)
{
    (void)state;
    static const struct {
        const char *symbol, *file;
    } cases[] = {
        {"tandem.v1.Proposer", "tandem/v1/proposer.proto"},
        {"tandem.v1.Proposer.Draft", "tandem/v1/proposer.proto"},
        {"tandem.v1.Tensor.Dtype", "tandem/v1/proposer.proto"},
        {"tandem.v1.QMode", "tandem/v1/proposer.proto"},
        {"tandem.v1.GenerateRequest", "tandem/v1/verifier.proto"},
        {"tandem.v1.GenerateRequest.text", "tandem/v1/verifier.proto"},
        {"tandem.v1.GenerateRequest.prompt", "tandem/v1/verifier.proto"},
        {"grpc.health.v1.Health.Watch", "grpc/health/v1/health.proto"},
        {"tandem.v1", NULL},
        {"tandem.v1.", NULL},
        {"tandem", NULL},
        {"", NULL},
        {"tandem.v1.Proposers", NULL},
        {"tandem.v1.Propose", NULL},
        {"tandem.v1.Proposer.Draft.x", NULL},
        {"tandem.v1.Tensor..Dtype", NULL},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        size_t n = 0, m = 0;
        const uint8_t *at = rpc_reflection_symbol(cases[i].symbol, &n);
        if (cases[i].file)
            assert_ptr_equal(at, rpc_reflection_file(cases[i].file, &m));
        else
            assert_null(at);
        assert_int_equal(n, m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RPC_RIG_TEST(reflection_describes_services_files_and_symbols),
        RPC_RIG_TEST(a_bad_question_ends_its_stream),
        RPC_RIG_TEST(a_large_question_ends_its_stream),
        RPC_RIG_TEST(few_streams_of_a_connection_ask_together),
        RPC_RIG_TEST(while_answers_are_unread_no_questions_are_read),
        cmocka_unit_test(symbols_of_every_kind_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

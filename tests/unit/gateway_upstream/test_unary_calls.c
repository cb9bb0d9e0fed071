/* test_unary_calls.c - calls with one answer. The streams are fakes (--wrap). */
#include <errno.h>
#include <string.h>
#include "base/mem.h"
#include "gateway/upstream/unary_calls.h"
#include "lib/fakes/failing.h"
#include "lib/lib.h"
#include "tandem/v1/verifier.pb-c.h"

struct rpc_stream {
    const struct rpc_events *events;
    void *user;
    int64_t timeout_us;
    bool closed, cancelled, freed;
};

static struct rpc_stream streams[8];
static unsigned n_streams;
static bool ends_early; // within rpc_stream_new()
static struct unary_calls *calls;
static char prompt[2]; // of the request; its owner may free it when the call has ended
static struct {
    unsigned n;
    void *user;
    struct rpc_status status;
    uint32_t id; // of the reply; 0: none
} heard;

struct rpc_stream *__wrap_rpc_stream_new(struct rpc_client *c, const char *path,
                                         const struct rpc_options *opt, const struct rpc_events *ev,
                                         void *user);
ssize_t __wrap_rpc_stream_send(struct rpc_stream *s, struct rpc_msg *msg);
void __wrap_rpc_stream_close(struct rpc_stream *s);
void __wrap_rpc_stream_cancel(struct rpc_stream *s);
void __wrap_rpc_stream_free(struct rpc_stream *s);

static void ends(unsigned i, enum rpc_code code)
{
    struct rpc_status status = {.code = code, .text = "as you asked"};
    streams[i].events->on_end(streams[i].user, &status);
}

struct rpc_stream *__wrap_rpc_stream_new(struct rpc_client *c, const char *path,
                                         const struct rpc_options *opt, const struct rpc_events *ev,
                                         void *user)
{
    assert_null(c);
    assert_string_equal(path, "/a.B/C");
    streams[n_streams] =
        (struct rpc_stream){.events = ev, .user = user, .timeout_us = opt->timeout_us};
    if (ends_early)
        ends(n_streams, RPC_UNAVAILABLE);
    return &streams[n_streams++];
}

ssize_t __wrap_rpc_stream_send(struct rpc_stream *s, struct rpc_msg *msg)
{
    (void)s;
    Tandem__V1__TokenizeRequest *m =
        (Tandem__V1__TokenizeRequest *)rpc_unpack(&tandem__v1__tokenize_request__descriptor, msg);
    assert_int_equal(m->text.len, 1);
    assert_int_equal(m->text.data[0], 'x');
    tandem__v1__tokenize_request__free_unpacked(m, NULL);
    rpc_msg_free(msg);
    return 0;
}

void __wrap_rpc_stream_close(struct rpc_stream *s)
{
    s->closed = true;
}

void __wrap_rpc_stream_cancel(struct rpc_stream *s)
{
    assert_false(s->freed);
    s->cancelled = true;
}

void __wrap_rpc_stream_free(struct rpc_stream *s)
{
    assert_true(s->closed);
    assert_false(s->freed);
    s->freed = true;
}

static void on_done(void *user, const struct rpc_status *status, ProtobufCMessage *reply)
{
    prompt[0] = 0;
    heard.n++;
    heard.user = user;
    heard.status = *status;
    heard.id = reply ? ((Tandem__V1__TokenizeReply *)reply)->ids[0] : 0;
    if (reply)
        protobuf_c_message_free_unpacked(reply, NULL);
}

static int start(void **state)
{
    (void)state;
    n_streams = 0;
    ends_early = false;
    heard.n = 0;
    memset(streams, 0, sizeof(streams));
    return unary_calls_new(&calls);
}

static int end(void **state)
{
    (void)state;
    for (unsigned i = 0; i < n_streams; i++)
        assert_true(streams[i].freed);
    unary_calls_free(calls);
    unary_calls_free(NULL);
    return 0;
}

static void make(void *user)
{
    Tandem__V1__TokenizeRequest m = TANDEM__V1__TOKENIZE_REQUEST__INIT;
    prompt[0] = 'x';
    m.text = rpc_text(prompt);
    unary_calls_make(calls, NULL, "/a.B/C", 77, &m.base, &tandem__v1__tokenize_reply__descriptor,
                     on_done, user);
}

static void replies(unsigned i, uint32_t id)
{
    Tandem__V1__TokenizeReply m = TANDEM__V1__TOKENIZE_REPLY__INIT;
    m.ids = &id;
    m.n_ids = 1;
    struct rpc_msg *msg = rpc_pack(&m.base);
    streams[i].events->on_message(streams[i].user, msg);
    rpc_msg_free(msg);
}

/* What was heard of the call since the last time. */
static void hears(void *user, enum rpc_code code, const char *text, uint32_t id)
{
    assert_int_equal(heard.n, 1);
    assert_ptr_equal(heard.user, user);
    assert_int_equal(heard.status.code, code);
    assert_string_equal(heard.status.text, text);
    assert_int_equal(heard.id, id);
    heard.n = 0;
}

static void the_first_message_is_the_reply(void **state)
{
    make(state);
    assert_int_equal(streams[0].timeout_us, 77);
    assert_false(streams[0].freed);
    replies(0, 5);
    replies(0, 6);
    assert_int_equal(heard.n, 0);
    ends(0, RPC_OK);
    hears(state, RPC_OK, "as you asked", 5);
}

static void ok_without_a_reply_is_an_error(void **state)
{
    for (unsigned i = 0; i < 2; i++) {
        make(state);
        if (i) {
            struct rpc_msg *msg = rpc_msg_of("\xFF", 1);
            streams[i].events->on_message(streams[i].user, msg);
            rpc_msg_free(msg);
        }
        ends(i, RPC_OK);
        hears(state, RPC_INTERNAL, "the verifier's answer is malformed", 0);
    }
}

static void an_error_has_no_reply(void **state)
{
    make(state);
    replies(0, 5);
    ends(0, RPC_UNAVAILABLE);
    hears(state, RPC_UNAVAILABLE, "as you asked", 0);
}

static void a_call_may_end_before_its_stream_is_known(void **state)
{
    ends_early = true;
    make(state);
    hears(state, RPC_UNAVAILABLE, "as you asked", 0);
    assert_true(streams[0].freed);
}

static void a_verifier_that_cancels_a_call_is_lost(void **state)
{
    make(state);
    ends(0, RPC_CANCELLED);
    hears(state, RPC_UNAVAILABLE, "as you asked", 0);
}

static void a_stop_cancels_the_calls_that_run(void **state)
{
    char users[5];
    (void)state;
    for (unsigned i = 0; i < 5; i++)
        make(&users[i]);
    static const unsigned ended[] = {2, 4, 0}; // the middle, the newest, the oldest
    for (size_t i = 0; i < ARRAY_LEN(ended); i++) {
        ends(ended[i], RPC_CANCELLED);
        hears(&users[ended[i]], RPC_UNAVAILABLE, "as you asked", 0); // not stopped yet
    }
    unary_calls_stop(calls, "stopping");
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(streams[i].cancelled, i % 2);
    ends(1, RPC_CANCELLED);
    hears(&users[1], RPC_CANCELLED, "stopping", 0);
    ends(3, RPC_UNAVAILABLE); // it was quicker
    hears(&users[3], RPC_UNAVAILABLE, "as you asked", 0);
    make(&users[0]); // too late
    assert_true(streams[5].cancelled);
    ends(5, RPC_CANCELLED);
    hears(&users[0], RPC_CANCELLED, "stopping", 0);
}

static void without_memory_there_is_no_call(void **state)
{
    struct unary_calls *other = NULL;
    failing_at(1);
    assert_int_equal(unary_calls_new(&other), -ENOMEM);
    failing_at(1);
    make(state);
    assert_true(failing_has_failed());
    hears(state, RPC_INTERNAL, "no memory", 0); // not a code of a busy verifier
    assert_int_equal(n_streams, 0);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, start, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(the_first_message_is_the_reply),
        CASE(ok_without_a_reply_is_an_error),
        CASE(an_error_has_no_reply),
        CASE(a_call_may_end_before_its_stream_is_known),
        CASE(a_verifier_that_cancels_a_call_is_lost),
        CASE(a_stop_cancels_the_calls_that_run),
        CASE(without_memory_there_is_no_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

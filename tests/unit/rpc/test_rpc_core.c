/* test_rpc_core.c - what rpc passes to gRPC core, the queue of unsent messages, and the memory of
 * unpacked ones. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <tandem/v1/proposer.pb-c.h>
#include <unistd.h>
#include "lib/fakes/failing.h"
#include "lib/rigs/logged.h"
#include "lib/rigs/rpc_rig.h"
#include "rpc/rpc_base.h"

/* ---- settings of gRPC core ---- */

static grpc_arg passed[32];
static size_t n_passed;

grpc_server *__real_grpc_server_create(const grpc_channel_args *args, void *reserved);
grpc_server *__wrap_grpc_server_create(const grpc_channel_args *args, void *reserved);
grpc_channel *__real_grpc_channel_create(const char *target, grpc_channel_credentials *creds,
                                         const grpc_channel_args *args);
grpc_channel *__wrap_grpc_channel_create(const char *target, grpc_channel_credentials *creds,
                                         const grpc_channel_args *args);

static void keep_args(const grpc_channel_args *args)
{
    assert_true(args->num_args <= ARRAY_LEN(passed));
    n_passed = args->num_args;
    memcpy(passed, args->args, n_passed * sizeof(passed[0]));
}

grpc_server *__wrap_grpc_server_create(const grpc_channel_args *args, void *reserved)
{
    keep_args(args);
    return __real_grpc_server_create(args, reserved);
}

grpc_channel *__wrap_grpc_channel_create(const char *target, grpc_channel_credentials *creds,
                                         const grpc_channel_args *args)
{
    keep_args(args);
    return __real_grpc_channel_create(target, creds, args);
}

struct setting {
    const char *key;
    int value;
};

static void must_be_passed(const struct setting *want, size_t n)
{
    assert_int_equal(n_passed, n);
    for (size_t i = 0; i < n; i++) {
        size_t at = 0;
        while (at < n && strcmp(passed[at].key, want[i].key) != 0)
            at++;
        if (at == n || passed[at].type != GRPC_ARG_INTEGER)
            fail_msg("%s is not passed", want[i].key);
        if (passed[at].value.integer != want[i].value)
            fail_msg("%s is %d", want[i].key, passed[at].value.integer);
    }
}

static void server_settings(const struct rpc_server_options *opt, int max_message, int ping_ms,
                            int timeout_ms)
{
    const struct setting want[] = {{GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, max_message},
                                   {GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 1048576},
                                   {GRPC_ARG_HTTP2_BDP_PROBE, 0},
                                   {GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1},
                                   {GRPC_ARG_MAX_CONCURRENT_STREAMS, 8192},
                                   {GRPC_ARG_KEEPALIVE_TIME_MS, ping_ms},
                                   {GRPC_ARG_KEEPALIVE_TIMEOUT_MS, timeout_ms},
                                   {GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000},
                                   {GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1},
                                   {GRPC_ARG_MAX_CONNECTION_IDLE_MS, 600000},
                                   {GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10000},
                                   {GRPC_ARG_ALLOW_REUSEPORT, 0}};
    struct rpc_server *s;
    assert_int_equal(rpc_server_new(opt, &s), 0);
    must_be_passed(want, ARRAY_LEN(want));
    rpc_server_stop(s, 0);
}

static void a_server_pings_after_30_s_and_takes_64_mib(void **state)
{
    (void)state;
    server_settings(&(struct rpc_server_options){0}, 64 << 20, 30000, 10000);
    server_settings(&(struct rpc_server_options){.max_message = 1000, .keepalive_ms = 900}, 1000,
                    900, 300);
}

static unsigned quota_bytes;

void __real_grpc_resource_quota_resize(grpc_resource_quota *quota, size_t bytes);
void __wrap_grpc_resource_quota_resize(grpc_resource_quota *quota, size_t bytes);
void __wrap_grpc_resource_quota_resize(grpc_resource_quota *quota, size_t bytes)
{
    quota_bytes = (unsigned)bytes;
    __real_grpc_resource_quota_resize(quota, bytes);
}

/* The last setting: the messages of the server have a limit together. It is taken out. */
static void must_have_quota(void)
{
    assert_string_equal(passed[--n_passed].key, GRPC_ARG_RESOURCE_QUOTA);
    assert_int_equal(passed[n_passed].type, GRPC_ARG_POINTER);
    assert_non_null(passed[n_passed].value.pointer.p);
    assert_int_equal(quota_bytes, 192 << 20);
}

static void client_settings(const struct rpc_client_options *opt, int max_message, int ping_ms,
                            int timeout_ms)
{
    const struct setting want[] = {{GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, max_message},
                                   {GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 1048576},
                                   {GRPC_ARG_HTTP2_BDP_PROBE, 0},
                                   {GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1},
                                   {GRPC_ARG_ENABLE_HTTP_PROXY, 0},
                                   {GRPC_ARG_ENABLE_RETRIES, 0},
                                   {GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1},
                                   {GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1},
                                   {GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100},
                                   {GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500},
                                   {GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2000},
                                   {GRPC_ARG_KEEPALIVE_TIME_MS, ping_ms},
                                   {GRPC_ARG_KEEPALIVE_TIMEOUT_MS, timeout_ms},
                                   {GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0},
                                   {GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1}};
    struct rpc_client *c;
    assert_int_equal(rpc_client_new("unix:/tmp/tandem-nobody.sock", opt, &c), 0);
    must_have_quota();
    must_be_passed(want, ARRAY_LEN(want));
    rpc_client_free(c);
}

static void a_client_pings_after_10_s_and_reconnects_within_500_ms(void **state)
{
    (void)state;
    client_settings(NULL, 64 << 20, 10000, 5000);
    client_settings(&(struct rpc_client_options){.max_message = 1000, .keepalive_ms = 900}, 1000,
                    900, 450);
}

/* ---- threads ---- */

static unsigned n_created, failing_thread; // the n-th one fails; 0: none

int __real_pthread_create(pthread_t *t, const pthread_attr_t *attr, void *(*run)(void *),
                          void *arg);
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *attr, void *(*run)(void *),
                          void *arg);
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *attr, void *(*run)(void *), void *arg)
{
    n_created++;
    if (n_created != failing_thread)
        return __real_pthread_create(t, attr, run, arg);
    *t = pthread_self(); // glibc sets it, too
    return EAGAIN;
}

static void threads_of(unsigned n_threads, unsigned want)
{
    struct rpc_server *s;
    n_created = failing_thread = 0;
    assert_int_equal(rpc_server_new(&(struct rpc_server_options){.n_threads = n_threads}, &s), 0);
    assert_int_equal(n_created, want);
    rpc_server_stop(s, 0);
}

/* As many more are for the service's own user and operators. */
static void a_server_has_one_thread_or_as_many_as_requested(void **state)
{
    (void)state;
    threads_of(0, 2);
    threads_of(1, 2);
    threads_of(3, 6);
}

static void must_lack_a_thread(int r)
{
    assert_int_equal(r, -EAGAIN);
    assert_string_equal(fail_text(), "cannot start a thread: Resource temporarily unavailable");
}

static void without_a_thread_there_is_no_server_and_no_client(void **state)
{
    (void)state;
    struct rpc_server *s;
    struct rpc_client *c;
    for (failing_thread = 1; failing_thread <= 6; failing_thread++) {
        n_created = 0;
        must_lack_a_thread(rpc_server_new(&(struct rpc_server_options){.n_threads = 3}, &s));
    }
    n_created = 0;
    failing_thread = 1;
    must_lack_a_thread(rpc_client_new("unix:/tmp/tandem-nobody.sock", NULL, &c));
    n_created = 0;
    failing_thread = 3; // the one that accepts connections
    char folder[] = "/tmp/tandem-test-rpc-XXXXXX", target[64];
    assert_non_null(mkdtemp(folder));
    snprintf(target, sizeof(target), "unix:%s/s.sock", folder);
    assert_int_equal(rpc_server_new(&(struct rpc_server_options){0}, &s), 0);
    assert_int_equal(rpc_server_listen(s, target), 1);
    must_lack_a_thread(rpc_server_start(s));
    rpc_server_stop(s, 0);
    assert_int_equal(rmdir(folder), 0);
    failing_thread = 0;
}

/* ---- TLS ---- */

static void the_three_files_of_tls_are_set_together(void **state)
{
    (void)state;
    for (unsigned set = 0; set < 8; set++) { // bit i: the i-th one is set
        char nowhere[] = "/nowhere/x.pem";
        struct rpc_tls paths = {.cert = set & 1 ? nowhere : NULL,
                                .key = set & 2 ? nowhere : NULL,
                                .ca = set & 4 ? nowhere : NULL};
        int r = rpc_tls_init(&paths, NULL);
        assert_int_equal(r, set == 0 ? 0 : set == 7 ? -ENOENT : -EINVAL);
        if (r == -EINVAL)
            assert_string_equal(fail_text(), "rpc_tls_cert, rpc_tls_key and rpc_tls_ca must be set "
                                             "together: one is missing");
        assert_false(rpc_tls_on());
    }
}

static void tls_roles_must_name_roles(void **state)
{
    (void)state;
    const struct conf_list tls_roles = {.n = 1, .v = {(char *)"x=nobody"}};
    assert_int_equal(rpc_tls_init(&(struct rpc_tls){0}, &tls_roles), -EINVAL);
    assert_non_null(strstr(fail_text(), "nobody"));
    assert_false(rpc_tls_on());
}

/* ---- mistakes in our code, and no memory ---- */

#define METHODS 65

/* Adds n methods with these roles; the path of the last one may be that of the first one. */
static void add_methods(struct rpc_server *s, unsigned n, unsigned roles, bool same_path)
{
    static char paths[METHODS][24];
    static struct rpc_method methods[METHODS];
    for (unsigned i = 0; i < n; i++) {
        snprintf(paths[i], sizeof(paths[i]), "/test/%u", same_path && i == n - 1 ? 0 : i);
        methods[i] = (struct rpc_method){.path = paths[i], .roles = roles};
        rpc_server_add(s, &methods[i], NULL);
    }
}

/* Whether abort() ends the process. */
static bool is_aborted(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

/* Whether that ends a process. */
static bool add_aborts(unsigned n, unsigned roles, bool same_path)
{
    struct rpc_server *s;
    assert_int_equal(rpc_server_new(&(struct rpc_server_options){0}, &s), 0);
    pid_t pid = fork();
    if (!pid) {
        signal(SIGABRT, SIG_DFL);
        add_methods(s, n, roles, same_path);
        _exit(0);
    }
    bool aborted = is_aborted(pid);
    rpc_server_stop(s, 0);
    return aborted;
}

static bool limit_aborts(bool during_drain)
{
    const struct rpc_method m = {
        .path = "/test/m", .roles = RPC_ROLE_ANY, .during_drain = during_drain};
    struct rpc_server *s;
    assert_int_equal(rpc_server_new(&(struct rpc_server_options){0}, &s), 0);
    rpc_server_add(s, &m, NULL);
    pid_t pid = fork();
    if (!pid) {
        signal(SIGABRT, SIG_DFL);
        rpc_server_limit(s, &m, 1);
        _exit(0);
    }
    bool aborted = is_aborted(pid);
    rpc_server_stop(s, 0);
    return aborted;
}

static void a_second_limit_of_a_method_ends_the_process(void **state)
{
    (void)state;
    assert_false(limit_aborts(false));
    assert_true(limit_aborts(true)); // it has one by rpc_server_add()
}

static void methods_that_cannot_be_served_end_the_process(void **state)
{
    (void)state;
    assert_false(add_aborts(64, RPC_ROLE_ANY, false));
    assert_true(add_aborts(65, RPC_ROLE_ANY, false));
    assert_true(add_aborts(1, 0, false)); // nobody may call it
    assert_true(add_aborts(2, RPC_ROLE_ANY, true));
}

static void without_memory_for_a_call_the_process_ends(void **state)
{
    (void)state;
    logged_begin();
    pid_t pid = fork();
    if (!pid) {
        signal(SIGABRT, SIG_DFL);
        failing_at(1);
        free(rpc_alloc(1, 8));
        _exit(0);
    }
    bool aborted = is_aborted(pid);
    assert_int_equal(logged_count(logged_end(), "rpc: out of memory"), 1);
    assert_true(aborted);
}

/* ---- unsent messages ---- */

static size_t push(struct rpc_sendq *q, size_t len, size_t mark)
{
    static const uint8_t zeros[1000];
    return rpc_sendq_push(q, rpc_bytes(rpc_msg_of(zeros, len)), mark);
}

static void unsent_messages_keep_their_order(void **state)
{
    (void)state;
    struct rpc_sendq q = {0};
    size_t first = 1, next = 1, n_bytes = 0;
    for (unsigned turn = 0; turn < 40; turn++) {
        for (unsigned i = 0; i < 1 + turn % 7; i++) {
            n_bytes += next;
            assert_int_equal(push(&q, next++, SIZE_MAX), n_bytes);
        }
        for (unsigned i = 0; i < 1 + turn % 5 && q.n; i++) {
            grpc_byte_buffer *b = rpc_sendq_next(&q);
            assert_int_equal(grpc_byte_buffer_length(b), first);
            n_bytes -= first++;
            assert_false(rpc_sendq_sent(&q, SIZE_MAX));
            assert_int_equal(q.n_bytes, n_bytes);
        }
        assert_int_equal(q.n, next - first);
        assert_true(q.cap >= 8 && (q.cap & (q.cap - 1)) == 0 && q.cap < 2 * (q.n + 8));
    }
    while (rpc_sendq_next(&q))
        rpc_sendq_sent(&q, SIZE_MAX);
    assert_int_equal(q.n_bytes, 0);
    assert_null(rpc_sendq_next(&q));
    rpc_sendq_done(&q);
}

/* Two messages. on_drain is due after the first one, after the second one, or never. */
static void must_drain(size_t a, size_t b, size_t mark, bool after_first, bool after_second)
{
    struct rpc_sendq q = {0};
    push(&q, a, mark);
    push(&q, b, mark);
    rpc_sendq_next(&q);
    assert_int_equal(rpc_sendq_sent(&q, mark), after_first);
    assert_false(rpc_sendq_sent(&q, mark)); // once
    rpc_sendq_next(&q);
    assert_int_equal(rpc_sendq_sent(&q, mark), after_second);
    rpc_sendq_done(&q);
}

static void on_drain_is_due_when_half_of_the_mark_is_left(void **state)
{
    (void)state;
    must_drain(50, 50, 100, false, false); // never above it
    must_drain(51, 50, 100, true, false);
    must_drain(50, 51, 100, false, true);
    must_drain(70, 34, 100, true, false);
    must_drain(0, 1, 0, false, true);
}

static void the_message_in_flight_outlives_a_clear(void **state)
{
    (void)state;
    struct rpc_sendq q = {0};
    for (unsigned i = 0; i < 3; i++)
        push(&q, 10, 5);
    assert_non_null(rpc_sendq_next(&q));
    rpc_sendq_clear(&q);
    assert_int_equal(q.n, 0);
    assert_int_equal(q.n_bytes, 10);
    assert_true(rpc_sendq_sent(&q, 5));
    assert_int_equal(q.n_bytes, 0);
    push(&q, 10, 5); // freed by this:
    rpc_sendq_done(&q);
}

/* ---- unpacking ---- */

/* A Round of n empty sequences: two bytes each. */
static struct rpc_msg *round_of(size_t n)
{
    uint8_t bytes[2000] = {0};
    assert_true(2 * n <= sizeof(bytes));
    for (size_t i = 0; i < n; i++)
        bytes[2 * i] = 0x0a;
    return rpc_msg_of(bytes, 2 * n);
}

/* What n <= 48 sequences allocate: the Round, the array of its sequences, and they. protobuf-c also
 * allocates 32 entries of 32 bytes for the fields after the 16th. malloc() needs 16 bytes more for
 * each. */
static size_t cost_of(size_t n)
{
    size_t list = n ? n * sizeof(void *) + 16 : 0, fields = n > 16 ? 32 * 32 + 16 : 0;
    return sizeof(Tandem__V1__Round) + 16 + list + fields +
           n * (sizeof(Tandem__V1__RoundSequence) + 16);
}

static void a_message_may_take_64_bytes_of_memory_per_byte_and_4_kib(void **state)
{
    (void)state;
    size_t n_unpacked = 0, n_refused = 0;
    for (size_t n = 0; n <= 48; n++) {
        struct rpc_msg *msg = round_of(n);
        size_t spent = 77, budget = 64 * 2 * n + 4096;
        ProtobufCMessage *m = rpc_unpack_counted(&tandem__v1__round__descriptor, msg, &spent);
        assert_int_equal(m != NULL, cost_of(n) <= budget);
        if (m) {
            assert_int_equal(spent, cost_of(n));
            assert_int_equal(((Tandem__V1__Round *)m)->n_sequences, n);
            protobuf_c_message_free_unpacked(m, NULL);
        }
        n_unpacked += m != NULL;
        n_refused += m == NULL;
        rpc_msg_free(msg);
    }
    assert_true(n_unpacked > 5 && n_refused > 5);
}

static void no_message_is_not_unpacked(void **state)
{
    (void)state;
    size_t spent = 77;
    assert_null(rpc_unpack(&tandem__v1__round__descriptor, NULL));
    assert_null(rpc_unpack_counted(&tandem__v1__round__descriptor, NULL, &spent));
    assert_int_equal(spent, 0);
}

static void a_joined_message_has_the_fields_of_both(void **state)
{
    (void)state;
    for (size_t a = 0; a < 3; a++) {
        for (size_t b = 0; b < 3; b++) {
            struct rpc_msg *first = round_of(a), *second = round_of(b);
            struct rpc_msg *both = rpc_msg_joined(first, second), *shared = rpc_msg_share(both);
            rpc_msg_free(first);
            rpc_msg_free(second);
            rpc_msg_free(both);
            assert_int_equal(rpc_msg_len(shared), 2 * (a + b));
            Tandem__V1__Round *m =
                (Tandem__V1__Round *)rpc_unpack(&tandem__v1__round__descriptor, shared);
            assert_non_null(m);
            assert_int_equal(m->n_sequences, a + b);
            tandem__v1__round__free_unpacked(m, NULL);
            rpc_msg_free(shared);
        }
    }
}

static void every_code_has_its_name(void **state)
{
    (void)state;
    static const char *const names[] = {"OK",
                                        "CANCELLED",
                                        "UNKNOWN",
                                        "INVALID_ARGUMENT",
                                        "DEADLINE_EXCEEDED",
                                        "NOT_FOUND",
                                        "ALREADY_EXISTS",
                                        "PERMISSION_DENIED",
                                        "RESOURCE_EXHAUSTED",
                                        "FAILED_PRECONDITION",
                                        "ABORTED",
                                        "OUT_OF_RANGE",
                                        "UNIMPLEMENTED",
                                        "INTERNAL",
                                        "UNAVAILABLE",
                                        "DATA_LOSS",
                                        "UNAUTHENTICATED"};
    for (unsigned i = 0; i < ARRAY_LEN(names); i++)
        assert_string_equal(rpc_code_name((enum rpc_code)i), names[i]);
    assert_string_equal(rpc_code_name((enum rpc_code)ARRAY_LEN(names)), "UNKNOWN");
    assert_string_equal(rpc_code_name((enum rpc_code) - 1), "UNKNOWN");
}

int main(void)
{
    rpc_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_server_pings_after_30_s_and_takes_64_mib),
        cmocka_unit_test(a_client_pings_after_10_s_and_reconnects_within_500_ms),
        cmocka_unit_test(a_server_has_one_thread_or_as_many_as_requested),
        cmocka_unit_test(without_a_thread_there_is_no_server_and_no_client),
        cmocka_unit_test(the_three_files_of_tls_are_set_together),
        cmocka_unit_test(tls_roles_must_name_roles),
        cmocka_unit_test(a_second_limit_of_a_method_ends_the_process),
        cmocka_unit_test(methods_that_cannot_be_served_end_the_process),
        cmocka_unit_test(without_memory_for_a_call_the_process_ends),
        cmocka_unit_test(unsent_messages_keep_their_order),
        cmocka_unit_test(on_drain_is_due_when_half_of_the_mark_is_left),
        cmocka_unit_test(the_message_in_flight_outlives_a_clear),
        cmocka_unit_test(a_message_may_take_64_bytes_of_memory_per_byte_and_4_kib),
        cmocka_unit_test(no_message_is_not_unpacked),
        cmocka_unit_test(a_joined_message_has_the_fields_of_both),
        cmocka_unit_test(every_code_has_its_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

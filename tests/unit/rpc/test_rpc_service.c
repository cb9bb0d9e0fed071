/* test_rpc_service.c - the common part of the gRPC services. */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "grpc/health/v1/health.pb-c.h"
#include "base/log.h"
#include "lib/fakes/failing.h"
#include "lib/rigs/logged.h"
#include "lib/rigs/manager.h"
#include "lib/rigs/rpc_rig.h"
#include "rpc/rpc_service.h"

#define SERVING GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING
#define NOT_SERVING GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING

static atomic_bool no_memory; // for the text of the next statistics

static void fill_stats(void *user, Tandem__V1__StatsReply *reply)
{
    if (atomic_exchange(&no_memory, false))
        failing_at(1);
    reply->service = (ProtobufCBinaryData){4, (uint8_t *)"test"};
    reply->running = *(uint32_t *)user;
}

static void a_service_has_health_reflection_and_stats(void **state)
{
    (void)state;
    char folder[] = "/tmp/tandem-test-rpc-XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "unix:%s/s.sock", folder);
    struct conf_list listen = {.n = 1, .v = {path}};
    uint32_t running = 3;
    struct rpc_service_options opt = {.name = "tandem.v1.Verifier",
                                      .listen = &listen,
                                      .stats_roles = RPC_ROLE_CLIENT,
                                      .fill_stats = fill_stats,
                                      .user = &running};
    struct rpc_service *s;
    assert_int_equal(rpc_service_new(&opt, &s), 0);
    assert_int_equal(rpc_service_start(s), 0);
    struct rpc_client *c;
    assert_int_equal(rpc_client_new(path, NULL, &c), 0);
    assert_int_equal(rpc_rig_health(c, "tandem.v1.Verifier"), NOT_SERVING);
    rpc_service_serving(s, true);
    assert_int_equal(rpc_rig_health(c, "tandem.v1.Verifier"), SERVING);

    Tandem__V1__GetStatsRequest req = TANDEM__V1__GET_STATS_REQUEST__INIT;
    ProtobufCMessage *m;
    struct rpc_status st = rpc_unary(c, "/tandem.v1.Stats/GetStats", NULL, &req.base,
                                     &tandem__v1__stats_reply__descriptor, &m);
    assert_int_equal(st.code, RPC_OK);
    Tandem__V1__StatsReply *reply = (Tandem__V1__StatsReply *)m;
    assert_int_equal(reply->running, 3);
    assert_memory_equal(reply->service.data, "test", 4);
    assert_non_null(memmem(reply->instance.data, reply->instance.len, path + 5, strlen(path + 5)));
    protobuf_c_message_free_unpacked(m, NULL);
    rpc_client_free(c);
    rpc_service_stop(s, 1000);
    assert_int_equal(rmdir(folder), 0);
}

static void a_service_without_an_address_does_not_start(void **state)
{
    (void)state;
    struct conf_list listen = {0};
    struct rpc_service_options opt = {.name = "tandem.v1.Verifier",
                                      .listen = &listen,
                                      .stats_roles = RPC_ROLE_CLIENT,
                                      .fill_stats = fill_stats};
    struct rpc_service *s;
    assert_int_equal(rpc_service_new(&opt, &s), 0);
    assert_int_equal(rpc_service_start(s), -EINVAL);
    rpc_service_stop(s, 0);
}

static void stopping_requests_time_for_the_drain_and_the_threads(void **state)
{
    (void)state;
    struct conf_list listen = {0};
    struct rpc_service_options opt = {.name = "tandem.v1.Verifier",
                                      .listen = &listen,
                                      .stats_roles = RPC_ROLE_CLIENT,
                                      .fill_stats = fill_stats};
    struct rpc_service *s;
    assert_int_equal(rpc_service_new(&opt, &s), 0);
    rpc_service_stop(s, 200000);
    assert_string_equal(manager_message(), "STOPPING=1\nEXTEND_TIMEOUT_USEC=230000000");
    assert_string_equal(manager_message(), "STATUS=draining, 0 running calls");
    rpc_service_stop(NULL, 0);
}

/* ---- addresses ---- */

static char folder[48], unix_path[96], admin_path[96];
static uint32_t one = 1;

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/tandem-test-rpc-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(unix_path, sizeof(unix_path), "unix:%s/s.sock", folder);
    snprintf(admin_path, sizeof(admin_path), "unix:%s/admin.sock", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    return rmdir(folder); // the sockets are gone
}

/* A service that listens on the addresses; its log. *ret: 0, or why it has not started. */
static const char *start_on(const struct conf_list *listen, const char *instance,
                            const struct rpc_roles_settings *access, int *ret,
                            struct rpc_service **ret_service)
{
    struct rpc_service_options opt = {.name = "tandem.v1.Verifier",
                                      .instance = instance,
                                      .listen = listen,
                                      .access = access,
                                      .stats_roles = RPC_ROLE_CLIENT | RPC_ROLE_OPERATOR,
                                      .fill_stats = fill_stats,
                                      .user = &one};
    log_init("test", LOG_LEVEL_INFO);
    logged_begin();
    *ret = rpc_service_new(&opt, ret_service);
    if (*ret == 0)
        *ret = rpc_service_start(*ret_service);
    const char *log = logged_end();
    log_init("test", LOG_LEVEL_WARN);
    return log;
}

static Tandem__V1__StatsReply *stats_over(const char *target)
{
    struct rpc_client *c;
    ProtobufCMessage *m = NULL;
    Tandem__V1__GetStatsRequest req = TANDEM__V1__GET_STATS_REQUEST__INIT;
    assert_int_equal(rpc_client_new(target, NULL, &c), 0);
    struct rpc_status st = rpc_unary(c, "/tandem.v1.Stats/GetStats", NULL, &req.base,
                                     &tandem__v1__stats_reply__descriptor, &m);
    assert_int_equal(st.code, RPC_OK);
    rpc_client_free(c);
    return (Tandem__V1__StatsReply *)m;
}

static void bad_requests_for_stats_and_a_lack_of_memory_are_refused(void **state)
{
    (void)state;
    struct rpc_service *s;
    struct rpc_client *c;
    struct rpc_tally t = {0};
    int r;
    struct conf_list listen = {.n = 1, .v = {unix_path}};
    static const struct rpc_events events = {.on_message = rpc_tally_message,
                                             .on_end = rpc_tally_end};
    start_on(&listen, NULL, NULL, &r, &s);
    assert_int_equal(r, 0);
    assert_int_equal(rpc_client_new(unix_path, NULL, &c), 0);
    struct rpc_stream *bad = rpc_stream_new(c, "/tandem.v1.Stats/GetStats", NULL, &events, &t);
    rpc_stream_send(bad, rpc_msg_of("\xff\xff", 2));
    rpc_rig_finish(bad, &t, RPC_INVALID_ARGUMENT);
    assert_string_equal(t.status.text, "the request is not a valid tandem.v1.GetStatsRequest");
    t = (struct rpc_tally){0};
    atomic_store(&no_memory, true);
    struct rpc_stream *good = rpc_stream_new(c, "/tandem.v1.Stats/GetStats", NULL, &events, &t);
    rpc_stream_send(good, rpc_msg_of("", 0));
    rpc_rig_finish(good, &t, RPC_RESOURCE_EXHAUSTED);
    assert_true(failing_has_failed());
    assert_string_equal(t.status.text, "no memory for 0 bytes");
    rpc_client_free(c);
    protobuf_c_message_free_unpacked(&stats_over(unix_path)->base, NULL);
    rpc_service_stop(s, 1000);
}

static bool ends_with(ProtobufCBinaryData text, const char *end)
{
    size_t n = strlen(end);
    return text.len >= n && memcmp(text.data + text.len - n, end, n) == 0;
}

static void the_first_address_names_the_instance(void **state)
{
    (void)state;
    struct rpc_service *s;
    char port[16], tcp[32];
    int r;
    struct conf_list listen = {.n = 2, .v = {(char *)"127.0.0.1:0", unix_path}};
    const char *log = start_on(&listen, NULL, NULL, &r, &s);
    assert_int_equal(r, 0);
    assert_int_equal(logged_count(log, "listening address=127.0.0.1:0 port="), 1);
    assert_int_equal(logged_count(log, unix_path), 1);
    assert_int_equal(logged_count(log, "\n"), 2);
    snprintf(port, sizeof(port), ":%d", atoi(strstr(log, "port=") + 5));
    snprintf(tcp, sizeof(tcp), "127.0.0.1%s", port);
    Tandem__V1__StatsReply *over_unix = stats_over(unix_path), *over_tcp = stats_over(tcp);
    assert_true(ends_with(over_unix->instance, port)); // the actual port
    assert_true(ends_with(over_tcp->instance, port));
    assert_true(over_tcp->uptime_s >= 0 && over_tcp->uptime_s < 60);
    assert_non_null(memmem(over_tcp->prometheus.data, over_tcp->prometheus.len,
                           "tandem_rpc_refused_calls_total", 30));
    protobuf_c_message_free_unpacked(&over_unix->base, NULL);
    protobuf_c_message_free_unpacked(&over_tcp->base, NULL);
    rpc_service_stop(s, 1000);

    listen = (struct conf_list){.n = 2, .v = {unix_path, (char *)"127.0.0.1:0"}};
    start_on(&listen, "given", NULL, &r, &s);
    assert_int_equal(r, 0);
    over_unix = stats_over(unix_path);
    assert_int_equal(over_unix->instance.len, 5);
    assert_true(ends_with(over_unix->instance, "given"));
    protobuf_c_message_free_unpacked(&over_unix->base, NULL);
    rpc_service_stop(s, 1000);
}

static void an_address_that_fails_ends_the_start(void **state)
{
    (void)state;
    struct rpc_service *s;
    int r;
    struct conf_list listen = {.n = 3, .v = {unix_path, (char *)"nowhere", (char *)"127.0.0.1:0"}};
    const char *log = start_on(&listen, NULL, NULL, &r, &s);
    assert_int_equal(r, -EINVAL);
    assert_int_equal(logged_count(log, "\n"), 1);
    rpc_service_stop(s, 0);
}

static void insecure_addresses_are_warned_of(void **state)
{
    (void)state;
    struct rpc_service *s;
    int r;
    struct rpc_roles_settings access = {.insecure_listen = true};
    struct conf_list listen = {.n = 3,
                               .v = {(char *)"0.0.0.0:0", (char *)"127.0.0.1:0", unix_path}};
    const char *log = start_on(&listen, NULL, &access, &r, &s);
    assert_int_equal(r, 0);
    assert_int_equal(logged_count(log, "insecure_listen: any client that can connect to 0.0.0.0:0"),
                     1);
    assert_int_equal(logged_count(log, "insecure_listen:"), 1);
    assert_int_equal(logged_count(log, "\n"), 4);
    rpc_service_stop(s, 0);
    access.insecure_listen = false;
    start_on(&listen, NULL, &access, &r, &s);
    assert_int_equal(r, -EPERM);
    rpc_service_stop(s, 0);
}

static void the_admin_socket_is_for_operators(void **state)
{
    (void)state;
    struct rpc_service *s;
    int r;
    struct rpc_roles_settings access = {.admin_listen = admin_path};
    struct conf_list listen = {.n = 1, .v = {unix_path}};
    const char *log = start_on(&listen, NULL, &access, &r, &s);
    char line[160];
    assert_int_equal(r, 0);
    snprintf(line, sizeof(line), "listening address=%s role=operator\n", admin_path);
    assert_int_equal(logged_count(log, line), 1);
    protobuf_c_message_free_unpacked(&stats_over(admin_path)->base, NULL);
    rpc_service_stop(s, 1000);
    access.admin_listen = (char *)"127.0.0.1:0";
    log = start_on(&listen, NULL, &access, &r, &s);
    assert_int_equal(r, -EINVAL);
    assert_int_equal(logged_count(log, "role=operator"), 0);
    rpc_service_stop(s, 0);
}

static void a_bad_role_or_no_memory_makes_no_service(void **state)
{
    (void)state;
    struct rpc_service *s = NULL;
    struct rpc_roles_settings access = {.tls_roles = {.n = 1, .v = {(char *)"x=nobody"}}};
    struct rpc_service_options opt = {
        .name = "tandem.v1.Verifier", .access = &access, .fill_stats = fill_stats};
    assert_int_equal(rpc_service_new(&opt, &s), -EINVAL);
    opt.access = NULL;
    for (unsigned n = 1; n <= 3; n++) { // the service, its health and its stats
        failing_at(n);
        assert_int_equal(rpc_service_new(&opt, &s), -ENOMEM);
        assert_true(failing_has_failed());
        assert_string_equal(fail_text(), "rpc: no memory for a service");
    }
    assert_null(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_service_has_health_reflection_and_stats),
        cmocka_unit_test(a_service_without_an_address_does_not_start),
        cmocka_unit_test_setup_teardown(the_first_address_names_the_instance, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(bad_requests_for_stats_and_a_lack_of_memory_are_refused,
                                        make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(an_address_that_fails_ends_the_start, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(insecure_addresses_are_warned_of, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(the_admin_socket_is_for_operators, make_folder,
                                        remove_folder),
        cmocka_unit_test(a_bad_role_or_no_memory_makes_no_service),
        cmocka_unit_test_setup_teardown(stopping_requests_time_for_the_drain_and_the_threads,
                                        manager_open, manager_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

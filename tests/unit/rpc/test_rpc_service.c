/* test_rpc_service.c - the common part of the gRPC services. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "grpc/health/v1/health.pb-c.h"
#include "lib/rigs/manager.h"
#include "lib/rigs/rpc_rig.h"
#include "rpc/rpc_service.h"

#define SERVING GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING
#define NOT_SERVING GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING

static void fill_stats(void *user, Tandem__V1__StatsReply *reply)
{
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
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_service_has_health_reflection_and_stats),
        cmocka_unit_test(a_service_without_an_address_does_not_start),
        cmocka_unit_test_setup_teardown(stopping_requests_time_for_the_drain_and_the_threads,
                                        manager_open, manager_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

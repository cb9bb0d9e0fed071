/* test_rpc_watchdog.c - the watchdog is fed while all threads of rpc are alive. */
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include "base/svc.h"
#include "lib/rigs/manager.h"
#include "lib/rigs/rpc_rig.h"

#define LIMIT_US 200000

static sem_t begun, may_end;

static void hang_start(struct rpc_call *c, struct rpc_msg *req)
{
    (void)req;
    sem_post(&begun);
    sem_wait(&may_end);
    rpc_call_finish(c, RPC_OK, NULL);
}

static const struct rpc_method hang = {
    .path = "/test/Hang", .roles = RPC_ROLE_ANY, .on_start = hang_start};

static void a_callback_that_hangs_stops_the_feeding(void **state)
{
    (void)state;
    char target[32];
    struct rpc_server *server;
    struct rpc_client *client;
    struct rpc_tally tally = {0};
    static const struct rpc_events events = {.on_message = rpc_tally_message,
                                             .on_end = rpc_tally_end};
    snprintf(target, sizeof(target), "%d", LIMIT_US);
    setenv("WATCHDOG_USEC", target, 1);
    svc_init();
    sem_init(&begun, 0, 0);
    sem_init(&may_end, 0, 0);
    assert_int_equal(rpc_server_new(&(struct rpc_server_options){0}, &server), 0);
    rpc_server_add(server, &hang, NULL);
    snprintf(target, sizeof(target), "127.0.0.1:%d", rpc_server_listen(server, "127.0.0.1:0"));
    assert_int_equal(rpc_server_start(server), 0);
    assert_int_equal(rpc_client_new(target, NULL, &client), 0);

    svc_wait_signal(LIMIT_US + LIMIT_US / 4);
    manager_await_feeding(); // idle threads wake to call svc_awake()
    struct rpc_stream *s = rpc_stream_new(client, hang.path, NULL, &events, &tally);
    rpc_stream_send(s, rpc_rig_ids(1, 1));
    rpc_stream_close(s);
    sem_wait(&begun);
    assert_false(manager_is_fed_after(LIMIT_US + LIMIT_US / 4));
    assert_false(manager_is_fed_after(LIMIT_US / 4));
    sem_post(&may_end);
    rpc_rig_await(&tally.ends, 1);
    manager_await_feeding();
    rpc_stream_free(s);
    rpc_client_free(client);
    rpc_server_stop(server, 1000);
    assert_true(manager_is_fed_after(LIMIT_US + LIMIT_US / 4)); // an ended thread is not watched
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_callback_that_hangs_stops_the_feeding, manager_open,
                                        manager_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

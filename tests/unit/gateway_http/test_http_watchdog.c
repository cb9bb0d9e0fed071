/* test_http_watchdog.c - the watchdog is fed while the threads of the HTTP server are alive. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include "base/svc.h"
#include "gateway/http/http.h"
#include "gateway/http/listen.h"
#include "lib/clients/http_client.h"
#include "lib/lib.h"
#include "lib/rigs/manager.h"

#define LIMIT_US 400000 // the server's watcher wakes every 100 ms

static sem_t begun, may_end;

static void hang(void *user, struct http_request *r)
{
    struct buf body;
    (void)user;
    sem_post(&begun);
    sem_wait(&may_end);
    buf_init(&body, 16);
    http_reply(r, 200, "text/plain", &body);
}

static unsigned port_of(int fd)
{
    struct sockaddr_in a;
    socklen_t len = sizeof(a);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    return ntohs(a.sin_port);
}

static void a_handler_that_hangs_stops_the_feeding(void **state)
{
    (void)state;
    int fd;
    char limit[32];
    struct http_options o = {.n_threads = 1,
                             .max_connections = 8,
                             .max_body = 1000,
                             .max_header = 1000,
                             .max_unread = 1000,
                             .reader_us = 60000000,
                             .request_us = 60000000,
                             .idle_us = 60000000,
                             .ping_us = 60000000};
    AUTO(http_free) struct http_server *server = NULL;
    snprintf(limit, sizeof(limit), "%d", LIMIT_US);
    setenv("WATCHDOG_USEC", limit, 1);
    svc_init();
    sem_init(&begun, 0, 0);
    sem_init(&may_end, 0, 0);
    assert_int_equal(listen_open("127.0.0.1:0", &fd), 0);
    assert_int_equal(http_new(&o, fd, hang, NULL, &server), 0);
    struct http_client c = http_client_open(port_of(fd));

    svc_wait_signal(LIMIT_US + LIMIT_US / 4);
    manager_await_feeding(); // without requests
    http_client_print(&c, "GET /x HTTP/1.1\r\nHost: x\r\n\r\n");
    sem_wait(&begun);
    assert_false(manager_is_fed_after(LIMIT_US + LIMIT_US / 4));
    assert_false(manager_is_fed_after(LIMIT_US / 4));
    sem_post(&may_end);
    struct http_answer a = http_client_read(&c, 10000);
    assert_int_equal(a.status, 200);
    manager_await_feeding();
    http_answer_done(&a);
    http_client_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_handler_that_hangs_stops_the_feeding, manager_open,
                                        manager_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

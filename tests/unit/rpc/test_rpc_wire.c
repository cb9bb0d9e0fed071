/* test_rpc_wire.c - connections whose peer sends endless headers end, on both sides. */
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "base/mem.h"
#include "base/metrics.h"
#include "lib/clients/http2_client.h"
#include "lib/rigs/rpc_rig.h"
#include "rpc/rpc_accept.h"
#include "rpc/rpc_frames.h"
#include "rpc/rpc_peers.h"
#include "rpc/rpc_rate.h"
#include "rpc/rpc_wire.h"

/* ---- the time, and the user at the other end of a socket; the linker hands calls to these ---- */

static atomic_int_fast64_t ahead_us;   // of the clock
static atomic_int_fast64_t stopped_us; // the time of the clock if it stands; 0: it runs
static atomic_uint other_user;         // 0: it is the own user

int64_t __real_clock_us(void);
int64_t __wrap_clock_us(void);
int64_t __wrap_clock_us(void)
{
    int64_t stopped = atomic_load(&stopped_us);
    return stopped ? stopped : __real_clock_us() + atomic_load(&ahead_us);
}

int __real_getsockopt(int fd, int level, int name, void *value, socklen_t *len);
int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *len);
int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *len)
{
    int rc = __real_getsockopt(fd, level, name, value, len);
    if (rc == 0 && level == SOL_SOCKET && name == SO_PEERCRED && atomic_load(&other_user))
        ((struct ucred *)value)->uid = geteuid() + atomic_load(&other_user);
    return rc;
}

static int ended(void)
{
    return (int)metrics_value(
        metrics_counter("tandem_rpc_ended_connections_total", "", "reason=\"frames\""));
}

/* ---- what clients send ---- */

static void an_endless_header_ends_its_connection(void **state)
{
    struct rpc_rig *r = *state;
    int before = ended();
    for (int i = 0; i < 3; i++) {
        struct http2_client c = http2_client_open(r->path), good = http2_client_open(r->path);
        http2_client_endless_headers(&c, 16 << 20);
        http2_client_await_end(&c);
        http2_client_close(&c);
        assert_int_equal(ended(), before + i + 1);
        http2_client_call(&good, "/test/Echo");
        assert_true(http2_client_await(&good, 1));
        http2_client_close(&good);
        assert_int_equal(rpc_rig_echo(r->client, NULL, 7).code, RPC_OK);
    }
}

/* Some versions of gRPC core abort when they refuse them (CVE-2023-1428). */
static void headers_that_are_wrong_and_too_large_are_refused(void **state)
{
    static const char *const wrong[][2] = {
        {"te", "x"}, {":scheme", "x"}, {"grpclb_client_stats", "x"}, {":method", "x"}};
    struct rpc_rig *r = *state;
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        struct http2_client c = http2_client_open(r->path);
        http2_client_call(&c, "/test/Echo");
        assert_true(http2_client_await(&c, 1));
        http2_client_confirm(&c);
        http2_client_large_headers(&c, wrong[i][0], wrong[i][1], 15000);
        http2_client_call(&c, "/test/Echo");
        assert_true(http2_client_await(&c, 2)); // large headers have no answer, but a reset
        http2_client_close(&c);
        assert_int_equal(rpc_rig_echo(r->client, NULL, 7).code, RPC_OK);
    }
}

/* The next connection with its descriptor is another one. */
static void a_closed_connection_is_forgotten(void **state)
{
    struct rpc_rig *r = *state;
    int before = ended();
    for (int i = 0; i < 4; i++) {
        struct http2_client c = http2_client_open(r->path);
        http2_client_endless_headers(&c, 1); // unfinished
        http2_client_close(&c);
        struct http2_client next = http2_client_open(r->path);
        http2_client_call(&next, "/test/Echo");
        assert_true(http2_client_await(&next, 1));
        http2_client_close(&next);
    }
    assert_int_equal(ended(), before);
}

/* Makes calls until the connection ends, at most `most`. Returns their number. */
static int call_until_end(const struct rpc_rig *r, int most)
{
    enum { EACH = 64 };
    struct http2_client c = http2_client_open(r->path);
    int n = 0;
    bool open = true;
    for (; open && n < most; n += EACH) {
        for (int i = 0; i < EACH; i++)
            http2_client_call(&c, "/test/Echo");
        open = http2_client_await(&c, (unsigned)(n + EACH));
    }
    http2_client_close(&c);
    return n;
}

/* Ends the next connection of this user after `calls`. */
static void user_has(const struct rpc_rig *r, unsigned user, int calls)
{
    int before = ended();
    atomic_store(&other_user, user);
    assert_in_range(call_until_end(r, 2 * calls), calls, calls + 64);
    assert_int_equal(ended(), before + 1);
}

/* All connections of the user count together. The own user has no limit. */
static void calls_of_another_user_have_a_rate(void **state)
{
    enum { BURST = RPC_WIRE_ALL_BURST + RPC_WIRE_SHARES_BURST };
    struct rpc_rig *r = *state;
    int before = ended();
    atomic_store(&stopped_us, __real_clock_us());
    assert_true(call_until_end(r, 4 * BURST) >= 4 * BURST);
    atomic_store(&other_user, 1);
    assert_true(call_until_end(r, BURST / 2) >= BURST / 2);
    assert_int_equal(ended(), before);
    user_has(r, 1, BURST / 2);
    user_has(r, 2, RPC_WIRE_SHARES_BURST / 2); // the rate of all is used up
    user_has(r, 3, RPC_WIRE_SHARES_BURST / 3);
    before = ended();
    atomic_store(&other_user, 1);
    atomic_fetch_add(&stopped_us, 2 * RPC_PEERS_BAN_US); // many of these calls were cut off
    assert_true(call_until_end(r, BURST / 2) >= BURST / 2);
    assert_int_equal(ended(), before);
    atomic_store(&other_user, 0);
    atomic_store(&ahead_us, 4 * RPC_PEERS_BAN_US);
    atomic_store(&stopped_us, 0);
}

/* Users that were here more than a second ago have no part. */
static void absent_users_have_no_share(void **state)
{
    struct rpc_rig *r = *state;
    atomic_store(&stopped_us, __real_clock_us() + 8 * RPC_PEERS_BAN_US);
    user_has(r, 1, RPC_WIRE_ALL_BURST + RPC_WIRE_SHARES_BURST);
    user_has(r, 2, RPC_WIRE_SHARES_BURST / 2);
    atomic_fetch_add(&stopped_us, RPC_RATE_PRESENT_US + 1);
    atomic_store(&other_user, 3);
    int calls = RPC_WIRE_ALL_BURST + RPC_WIRE_SHARES_BURST;
    assert_in_range(call_until_end(r, 2 * calls), calls, calls + 64);
    atomic_store(&other_user, 0);
    atomic_store(&ahead_us, 12 * RPC_PEERS_BAN_US);
    atomic_store(&stopped_us, 0);
}

static int refused(void)
{
    return (int)metrics_value(
        metrics_counter("tandem_rpc_refused_connections_total", "", "reason=\"descriptors\""));
}

static void another_user_leaves_descriptors_to_the_own_one(void **state)
{
    enum { FEW = 400, N = 180 };
    struct rpc_rig *r = *state;
    struct rlimit limit, few;
    struct http2_client c[N];
    int n_served = 0, before = refused();
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    few = (struct rlimit){.rlim_cur = FEW, .rlim_max = limit.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    atomic_store(&other_user, 1);
    for (int i = 0; i < N; i++) {
        c[i] = http2_client_open(r->path);
        http2_client_call(&c[i], "/test/Echo");
        n_served += http2_client_await(&c[i], 1);
    }
    atomic_store(&other_user, 0);
    assert_in_range(n_served, 1, FEW * 3 / 4 / 2); // each takes two of this process
    assert_in_range(refused(), before + 1, before + N - n_served);
    struct http2_client own = http2_client_open(r->path);
    http2_client_call(&own, "/test/Echo");
    assert_true(http2_client_await(&own, 1));
    http2_client_close(&own);
    for (int i = 0; i < N; i++)
        http2_client_close(&c[i]);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

/* Opens connections until one is refused. Returns their number. */
static int connect_too_fast(const struct rpc_rig *r)
{
    int n = 0;
    for (bool served = true; served && n < 2 * RPC_ACCEPT_BURST; n += served) {
        struct http2_client c = http2_client_open(r->path);
        http2_client_call(&c, "/test/Echo");
        served = http2_client_await(&c, 1);
        http2_client_close(&c);
    }
    return n;
}

static void another_user_connects_at_a_rate(void **state)
{
    struct rpc_rig *r = *state;
    atomic_store(&stopped_us, __real_clock_us() + 16 * RPC_PEERS_BAN_US);
    atomic_store(&other_user, 7);
    assert_int_equal(connect_too_fast(r), RPC_ACCEPT_BURST);
    atomic_store(&other_user, 8); // the first one does not delay others
    struct http2_client c = http2_client_open(r->path);
    http2_client_call(&c, "/test/Echo");
    assert_true(http2_client_await(&c, 1));
    http2_client_close(&c);
    atomic_store(&other_user, 0);
    assert_int_equal(connect_too_fast(r), 2 * RPC_ACCEPT_BURST);
    atomic_store(&ahead_us, 20 * RPC_PEERS_BAN_US);
    atomic_store(&stopped_us, 0);
}

/* ---- what servers send ---- */

struct hostile {
    char path[96], target[112];
    int listener, fd; // fd: its connection
};

static void hostile_init(struct hostile *h, const struct rpc_rig *r)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(h->path, sizeof(h->path), "%s/hostile", r->folder);
    snprintf(h->target, sizeof(h->target), "unix:%s", h->path);
    snprintf(a.sun_path, sizeof(a.sun_path), "%s", h->path);
    h->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(h->listener, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(listen(h->listener, 8), 0);
}

static void hostile_done(struct hostile *h)
{
    close(h->fd);
    close(h->listener);
    unlink(h->path);
}

static void send_frames(struct hostile *h, const char *frame, size_t len, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        (void)!send(h->fd, frame, len, MSG_NOSIGNAL);
}

static void read_all(const struct hostile *h, void *to, size_t n)
{
    if (n)
        assert_int_equal(recv(h->fd, to, n, MSG_WAITALL), n);
}

/* The client's call has begun. */
static void await_call(const struct hostile *h)
{
    uint8_t data[16384], head[9] = {0};
    read_all(h, data, strlen("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"));
    while (head[3] != 1) { // HEADERS
        read_all(h, head, sizeof(head));
        assert_int_equal(head[0], 0);
        read_all(h, data, (size_t)head[1] << 8 | head[2]);
    }
}

/* Its client has read all, or has closed the connection. */
static void await_end(const struct hostile *h)
{
    char data[4096];
    ssize_t n;
    struct timeval limit = {.tv_sec = RPC_RIG_WAIT_US / 1000000};
    assert_int_equal(setsockopt(h->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
    while ((n = recv(h->fd, data, sizeof(data), 0)) > 0)
        ;
    assert_true(n == 0 || errno == ECONNRESET);
}

#define SETTINGS "\0\0\0\x04\0\0\0\0\0"
/* Of the first call: a field of the name "a", and a value of 8 MiB that is never complete. */
#define HEADERS                                                                                    \
    "\0\0\x08\x01\0\0\0\0\x01"                                                                     \
    "\0\x01"                                                                                       \
    "a\x7f\x80\x80\x80\x04"
#define PART                                                                                       \
    "\0\0\x01\x09\0\0\0\0\x01"                                                                     \
    "a"

/* A stream of a new client has reached the server. */
static struct rpc_stream *call_hostile(struct hostile *h, struct rpc_client **ret,
                                       struct rpc_tally *t)
{
    assert_int_equal(rpc_client_new(h->target, NULL, ret), 0);
    struct rpc_rig to = {.client = *ret};
    struct rpc_stream *s = rpc_rig_open(&to, "/test/Chat", t);
    h->fd = accept(h->listener, NULL, NULL);
    assert_true(h->fd >= 0);
    send_frames(h, SETTINGS, 9, 1);
    await_call(h);
    return s;
}

/* While the client of another server is served. */
static void a_server_with_an_endless_header_loses_its_client(void **state)
{
    struct rpc_rig *r = *state;
    struct hostile h;
    struct rpc_client *c;
    struct rpc_tally t;
    int before = ended();
    hostile_init(&h, r);
    struct rpc_stream *s = call_hostile(&h, &c, &t);
    send_frames(&h, HEADERS, 17, 1);
    send_frames(&h, PART, 10, RPC_FRAMES_PARTS_MAX);
    assert_int_equal(rpc_rig_echo(r->client, NULL, 7).code, RPC_OK);
    assert_int_equal(ended(), before);
    send_frames(&h, PART, 10, 1);
    await_end(&h);
    rpc_rig_finish(s, &t, RPC_UNAVAILABLE);
    assert_int_equal(ended(), before + 1);
    assert_int_equal(rpc_rig_echo(r->client, NULL, 7).code, RPC_OK);
    rpc_client_free(c);
    hostile_done(&h);
}

/* With retries, gRPC core 1.51 aborts the process. */
static void an_answer_without_a_status_is_an_error(void **state)
{
    static const char nothing[] = "\0\0\0\x01\x05\0\0\0\x01"; // headers that end the stream
    struct rpc_rig *r = *state;
    struct hostile h;
    struct rpc_client *c;
    struct rpc_tally t;
    hostile_init(&h, r);
    struct rpc_stream *s = call_hostile(&h, &c, &t);
    send_frames(&h, nothing, 9, 1);
    rpc_rig_finish(s, &t, RPC_UNKNOWN);
    rpc_client_free(c);
    hostile_done(&h);
}

/* ---- other sockets ---- */

static void other_bytes_pass(void **state)
{
    (void)state;
    char text[] = "PRI * HTTP/2.0, but not quite; and then some more than forty bytes", got[80];
    int fds[2];
    struct iovec part = {got, sizeof(got)};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(send(fds[0], text, sizeof(text), 0), sizeof(text));
        assert_int_equal(recvmsg(fds[1], &m, 0), sizeof(text));
        assert_memory_equal(got, text, sizeof(text));
    }
    close(fds[0]);
    assert_int_equal(recvmsg(fds[1], &m, 0), 0);
    close(fds[1]);
    assert_int_equal(recvmsg(fds[1], &m, 0), -1);
    assert_int_equal(errno, EBADF);
}

static void a_socket_without_a_peer_passes_nothing(void **state)
{
    (void)state;
    char text[] = "x", got[8];
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct iovec part = {got, sizeof(got)};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &(socklen_t){sizeof(a)}), 0);
    assert_int_equal(sendto(fd, text, 1, 0, (struct sockaddr *)&a, sizeof(a)), 1);
    assert_int_equal(recvmsg(fd, &m, 0), 0); // of a byte that was sent
    close(fd);
}

static void what_is_no_socket_has_no_bytes(void **state)
{
    (void)state;
    assert_int_equal(rpc_wire_received(-1), 0);
    assert_int_equal(rpc_wire_received(STDERR_FILENO), 0);
    rpc_wire_settled(-1, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RPC_RIG_TEST(an_endless_header_ends_its_connection),
        RPC_RIG_TEST(headers_that_are_wrong_and_too_large_are_refused),
        RPC_RIG_TEST(a_closed_connection_is_forgotten),
        RPC_RIG_TEST(calls_of_another_user_have_a_rate),
        RPC_RIG_TEST(absent_users_have_no_share),
        RPC_RIG_TEST(another_user_leaves_descriptors_to_the_own_one),
        RPC_RIG_TEST(another_user_connects_at_a_rate),
        RPC_RIG_TEST(a_server_with_an_endless_header_loses_its_client),
        RPC_RIG_TEST(an_answer_without_a_status_is_an_error),
        cmocka_unit_test(other_bytes_pass),
        cmocka_unit_test(a_socket_without_a_peer_passes_nothing),
        cmocka_unit_test(what_is_no_socket_has_no_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

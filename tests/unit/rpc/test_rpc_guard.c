/* test_rpc_guard.c - TCP clients that abuse a server lose their connection; others are served. */
#include <dirent.h>
#include <errno.h>
#include <malloc.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/metrics.h"
#include "lib/clients/http2_client.h"
#include "lib/rigs/rpc_rig.h"
#include "rpc/rpc_base.h"
#include "rpc/rpc_guard.h"
#include "rpc/rpc_peers.h"
#include "rpc/rpc_wire.h"

#define MAX_UNEXPLAINED (2 << 20)
#define DESCRIPTORS 64

/* ---- calls of the guard; the linker hands them to these ---- */

static atomic_int n_failing_dups;             // calls of dup3() that fail
static atomic_int n_failing_looks;            // calls of getsockopt() of a connection that fail
static atomic_int_fast64_t ahead_us, jump_us; // of the clock; of its jump after the next poll()
static atomic_int_fast64_t stopped_us;        // the time of the clock if it stands; 0: it runs
static atomic_int_fast64_t look_us;           // that a look at a connection takes
static atomic_bool other_user;                // is at the other end of unix sockets
static int n_polls;                           // with a time limit ...
static atomic_int poll_ms;                    // ... which the last one had

int __real_dup3(int from, int to, int flags);
int __wrap_dup3(int from, int to, int flags);
int __wrap_dup3(int from, int to, int flags)
{
    if (atomic_load(&n_failing_dups) == 0)
        return __real_dup3(from, to, flags);
    atomic_fetch_sub(&n_failing_dups, 1);
    errno = EBADF; // as if another thread had closed it
    return -1;
}

int64_t __real_clock_us(void);
int64_t __wrap_clock_us(void);
int64_t __wrap_clock_us(void)
{
    int64_t stopped = atomic_load(&stopped_us);
    return stopped ? stopped : __real_clock_us() + atomic_load(&ahead_us);
}

static atomic_size_t grown; // bytes of small pieces; sanitizers have another malloc()

struct mallinfo2 __real_mallinfo2(void);
struct mallinfo2 __wrap_mallinfo2(void);
struct mallinfo2 __wrap_mallinfo2(void)
{
    struct mallinfo2 m = __real_mallinfo2();
    m.uordblks += atomic_load(&grown);
    return m;
}

int __real_poll(struct pollfd *p, nfds_t n, int timeout_ms);
int __wrap_poll(struct pollfd *p, nfds_t n, int timeout_ms);
int __wrap_poll(struct pollfd *p, nfds_t n, int timeout_ms)
{
    int r = __real_poll(p, n, timeout_ms);
    if (timeout_ms > 0) {
        atomic_fetch_add(&ahead_us, atomic_exchange(&jump_us, 0));
        atomic_store(&poll_ms, timeout_ms);
        rpc_rig_bump(&n_polls);
    }
    return r;
}

int __real_getsockopt(int fd, int level, int name, void *value, socklen_t *len);
int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *len);
int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *len)
{
    if (level == IPPROTO_TCP)
        atomic_fetch_add(&ahead_us, atomic_load(&look_us));
    if (level == IPPROTO_TCP && atomic_load(&n_failing_looks) > 0) {
        atomic_fetch_sub(&n_failing_looks, 1);
        errno = EBADF;
        return -1;
    }
    int rc = __real_getsockopt(fd, level, name, value, len);
    if (rc == 0 && level == SOL_SOCKET && name == SO_PEERCRED && atomic_load(&other_user))
        ((struct ucred *)value)->uid = geteuid() + 1;
    return rc;
}

static void await_scans(int n)
{
    rpc_rig_await(&n_polls, rpc_rig_count(&n_polls) + n);
}

/* ---- a server ---- */

/* A server on TCP, and a good client that has a stream. */
struct guard_rig {
    struct rpc_rig r; // without a unix socket
    uint16_t port;
    struct rpc_stream *stream; // of Chat
    struct rpc_tally tally;
};

static int ended(const char *reason)
{
    char label[32];
    snprintf(label, sizeof(label), "reason=\"%s\"", reason);
    return (int)metrics_value(metrics_counter("tandem_rpc_ended_connections_total", "", label));
}

static int all_ended(void)
{
    return ended("resets") + ended("calls") + ended("refused") + ended("bytes") + ended("stall") +
           ended("crowd") + ended("ban") + ended("frames");
}

/* The good client's stream has an answer: it was not ended, and the server serves it. */
static void stream_is_served(struct guard_rig *g)
{
    int before = rpc_rig_count(&g->tally.messages);
    assert_true(rpc_stream_send(g->stream, rpc_rig_ids(1, 1)) >= 0);
    rpc_rig_await(&g->tally.messages, before + 1);
}

/* The clock advances by 1.5 s. A single jump would look like a process that was stopped. The idle
 * thread, which serves the own user, leaves gRPC core between the jumps. */
static void let_time_pass(void)
{
    for (int i = 0; i < 5; i++) {
        poll(NULL, 0, RPC_GUARD_BEAT_MS + 100);
        atomic_store(&jump_us, RPC_PEERS_STALL_US * 3 / 10);
        await_scans(1);
    }
    await_scans(2);
}

static void slow_start(struct rpc_call *c, struct rpc_msg *req)
{
    (void)req;
    let_time_pass();
    rpc_call_finish(c, RPC_OK, NULL);
}

static const struct rpc_method slow = {
    .path = "/test/Slow", .roles = RPC_ROLE_ANY, .on_start = slow_start};

static void refuse_start(struct rpc_call *c, struct rpc_msg *req)
{
    (void)req;
    rpc_call_finish(c, RPC_INVALID_ARGUMENT, "no");
}

static const struct rpc_method refuse = {
    .path = "/test/Refuse", .roles = RPC_ROLE_ANY, .on_start = refuse_start};

/* A socket that listens on a free port, like one of a service manager. */
static int listening_socket(uint16_t *ret_port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(listen(fd, 64), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &(socklen_t){sizeof(a)}), 0);
    *ret_port = ntohs(a.sin_port);
    return fd;
}

static void init_with(struct guard_rig *g, bool passed_socket, const struct rpc_server_options *opt)
{
    char target[32];
    atomic_fetch_add(&ahead_us, RPC_PEERS_BAN_US); // what tests before did no longer counts
    memset(&rpc_rig_seen, 0, sizeof(rpc_rig_seen));
    *g = (struct guard_rig){.r = {.health = rpc_health_new()}};
    g->r.server = rpc_rig_server(opt, g->r.health);
    rpc_server_add(g->r.server, &slow, NULL);
    rpc_server_add(g->r.server, &refuse, NULL);
    if (passed_socket)
        assert_int_equal(rpc_server_listen_fd(g->r.server, listening_socket(&g->port), false), 0);
    else
        g->port = (uint16_t)rpc_server_listen(g->r.server, "127.0.0.1:0");
    assert_int_equal(rpc_server_start(g->r.server), 0);
    snprintf(target, sizeof(target), "127.0.0.1:%u", g->port);
    assert_int_equal(rpc_client_new(target, NULL, &g->r.client), 0);
    g->stream = rpc_rig_open(&g->r, "/test/Chat", &g->tally);
    stream_is_served(g);
}

static void init(struct guard_rig *g, bool passed_socket)
{
    init_with(g, passed_socket, &(struct rpc_server_options){.max_unexplained = MAX_UNEXPLAINED});
}

static void done(struct guard_rig *g)
{
    rpc_stream_close(g->stream);
    rpc_rig_finish(g->stream, &g->tally, RPC_OK);
    rpc_client_free(g->r.client);
    rpc_server_stop(g->r.server, 1000);
    rpc_health_free(g->r.health);
}

/* A guard of a server whose only thread stays in gRPC core, and a connection that sends to the
 * server. */
struct bare_rig {
    struct rpc_guard *guard;
    struct rpc_worker worker;
    int listener, server, client;
};

static void bare_init(struct bare_rig *b, size_t client_bytes)
{
    uint16_t port;
    b->listener = listening_socket(&port);
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    b->client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(b->client, (struct sockaddr *)&a, sizeof(a)), 0);
    b->server = accept(b->listener, NULL, NULL);
    assert_true(b->server >= 0);
    atomic_init(&b->worker.in_core_us, clock_us());
    assert_int_equal(rpc_guard_new(&b->worker, 1, client_bytes, &b->guard), 0);
    rpc_guard_watch(b->guard, port);
    assert_int_equal(rpc_guard_start(b->guard), 0);
}

static void bare_send(struct bare_rig *b, size_t n_bytes)
{
    static char data[1 << 14];
    for (size_t i = 0; i < n_bytes; i += sizeof(data)) {
        assert_int_equal(send(b->client, data, sizeof(data), MSG_NOSIGNAL), sizeof(data));
        assert_int_equal(recv(b->server, data, sizeof(data), MSG_WAITALL), sizeof(data));
    }
}

static void bare_done(struct bare_rig *b)
{
    rpc_guard_free(b->guard);
    close(b->listener);
    close(b->server);
    close(b->client);
}

static void a_long_scan_hides_no_stall(void **state)
{
    enum { SCANS = 10 };
    (void)state;
    struct bare_rig b;
    int before = ended("stall");
    atomic_store(&look_us, RPC_PEERS_STALL_US / 2 + 1);
    bare_init(&b, 0);
    bare_send(&b, RPC_PEERS_STALL_BYTES * 3 / 2);
    for (int i = 0; i < SCANS && ended("stall") == before; i++)
        await_scans(1);
    assert_int_equal(ended("stall"), before + 1);
    atomic_store(&look_us, 0);
    bare_done(&b);
}

/* They may soon have too many. */
static void connections_with_many_bytes_are_seen_often(void **state)
{
    enum { MAX = RPC_PEERS_STALL_BYTES / 2 };
    (void)state;
    struct bare_rig b;
    bare_init(&b, MAX);
    await_scans(2);
    int usual_ms = atomic_load(&poll_ms);
    bare_send(&b, MAX / 2);
    await_scans(2);
    assert_in_range(atomic_load(&poll_ms), 1, usual_ms / 4);
    bare_done(&b);
}

static void a_client_that_makes_the_process_grow_is_ended(void **state)
{
    (void)state;
    struct bare_rig b;
    int before = ended("bytes");
    bare_init(&b, 0);
    atomic_store(&b.worker.in_core_us, INT64_MAX); // it is not stalled
    bare_send(&b, RPC_PEERS_STALL_BYTES * 3 / 2);
    await_scans(2);
    atomic_store(&grown, RPC_PEERS_GROWTH_MAX / 8 * 9);
    await_scans(2);
    atomic_store(&grown, 0);
    assert_int_equal(ended("bytes"), before + 1);
    bare_done(&b);
}

/* gRPC core closes it, or closed it and opened another one, between two looks of the guard. */
static void a_connection_that_tells_no_counts_is_not_ended(void **state)
{
    (void)state;
    struct bare_rig b;
    int before = all_ended();
    bare_init(&b, 0);
    bare_send(&b, RPC_PEERS_STALL_BYTES / 2); // does not stall a thread
    await_scans(2);
    atomic_store(&n_failing_looks, 1);
    let_time_pass();
    assert_int_equal(atomic_load(&n_failing_looks), 0);
    assert_int_equal(all_ended(), before);
    bare_done(&b);
}

/* What the guard says about a call of the connection with this descriptor. */
static int call_of_descriptor(struct bare_rig *b, int fd, struct rpc_peer **ret)
{
    char peer[16];
    snprintf(peer, sizeof(peer), "fd:%d", fd);
    return rpc_guard_call(b->guard, peer, &(struct rpc_peer_call){0}, ret);
}

static void reset_now(int fd)
{
    const struct linger none = {.l_onoff = 1};
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none)), 0);
    close(fd);
}

static void a_call_of_a_connection_that_is_over_is_void(void **state)
{
    (void)state;
    struct bare_rig b;
    struct rpc_peer *p;
    bare_init(&b, 0);
    assert_int_equal(call_of_descriptor(&b, b.server, &p), 0);
    assert_non_null(p);
    rpc_guard_done(b.guard, p);
    reset_now(b.client);
    assert_int_equal(call_of_descriptor(&b, b.server, &p), -ECONNABORTED);
    assert_null(p);
    b.client = -1;
    bare_done(&b);
}

static void a_call_of_a_unix_socket_is_not_watched(void **state)
{
    (void)state;
    struct bare_rig b;
    struct rpc_peer *p;
    int fds[2];
    bare_init(&b, 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    assert_int_equal(call_of_descriptor(&b, fds[0], &p), 0);
    assert_null(p);
    close(fds[1]); // the client is gone
    assert_int_equal(call_of_descriptor(&b, fds[0], &p), 0);
    assert_null(p);
    close(fds[0]);
    bare_done(&b);
}

static int n_sockets(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        char target[8] = "";
        n += readlinkat(dirfd(d), e->d_name, target, 7) == 7 && strcmp(target, "socket:") == 0;
    }
    closedir(d);
    return n;
}

/* The guard relies on it: gRPC core names such a connection by its descriptor. */
static void a_connection_keeps_its_descriptor_while_it_has_a_call(void **state)
{
    (void)state;
    struct guard_rig g;
    init(&g, true);
    int before = n_sockets();
    struct http2_client c = http2_client_open_tcp(g.port);
    http2_client_call(&c, "/test/Keep");
    rpc_rig_await(&rpc_rig_seen.starts, 1);
    struct rpc_call *kept = rpc_rig_seen.kept;
    rpc_call_ref(kept);
    reset_now(c.fd);
    rpc_rig_await(&rpc_rig_seen.cancels, 1);
    stream_is_served(&g);
    assert_int_equal(n_sockets(), before + 1);
    rpc_call_unref(kept);
    for (int i = 0; i < 100 && n_sockets() > before; i++)
        stream_is_served(&g);
    assert_int_equal(n_sockets(), before);
    done(&g);
}

static void ignored_frames_end_a_connection(void **state)
{
    (void)state;
    struct guard_rig g;
    int before = all_ended();
    init(&g, false);
    struct http2_client c = http2_client_open_tcp(g.port);
    http2_client_pad(&c, 2 * MAX_UNEXPLAINED);
    http2_client_await_end(&c);
    http2_client_close(&c);
    stream_is_served(&g);
    assert_int_equal(all_ended(), before + 1); // by its bytes, or because they stalled the thread
    done(&g);
}

/* At a unix socket. The own user may be a gateway, which passes on what its clients send. */
static void ignored_frames_of_another_user_end_its_connection(void **state)
{
    (void)state;
    struct rpc_rig r;
    int before = all_ended();
    rpc_rig_init(&r, &(struct rpc_server_options){.max_unexplained = MAX_UNEXPLAINED});
    struct http2_client own = http2_client_open(r.path);
    http2_client_pad(&own, 2 * MAX_UNEXPLAINED);
    http2_client_call(&own, "/test/Echo");
    assert_true(http2_client_await(&own, 1));
    atomic_store(&other_user, true);
    struct http2_client c = http2_client_open(r.path);
    http2_client_pad(&c, 2 * MAX_UNEXPLAINED);
    http2_client_await_end(&c);
    atomic_store(&other_user, false);
    http2_client_call(&own, "/test/Echo");
    assert_true(http2_client_await(&own, 2));
    assert_int_equal(all_ended(), before + 1);
    http2_client_close(&c);
    http2_client_close(&own);
    rpc_rig_done(&r);
}

/* The calls have few bytes, but gRPC core does not tell how few. */
static void unfinished_messages_beside_many_calls_end_a_connection(void **state)
{
    enum { PART = 16000, N_CALLS = 10, MAX = 12 << 20 }; // fewer calls than have a rate
    (void)state;
    struct guard_rig g;
    int before = ended("bytes");
    init(&g, false);
    struct http2_client c = http2_client_open_tcp(g.port);
    size_t sent = 0;
    while (sent < MAX && http2_client_part(&c, "/test/Chat", PART)) {
        for (int i = 0; i < N_CALLS; i++)
            http2_client_call(&c, "/test/Echo");
        if (!http2_client_await(&c, c.n_headers + N_CALLS))
            break;
        sent += PART;
    }
    http2_client_close(&c);
    stream_is_served(&g);
    assert_true(sent < MAX);
    assert_int_equal(ended("bytes"), before + 1);
    done(&g);
}

/* Of methods that cost nothing. */
static void a_client_that_makes_too_many_calls_is_ended(void **state)
{
    enum { MAX = 2 * RPC_PEERS_CHEAP_BURST, EACH = 50 };
    (void)state;
    struct guard_rig g;
    int before = ended("calls");
    init(&g, false);
    struct http2_client c = http2_client_open_tcp(g.port);
    int n = 0;
    do {
        for (int i = 0; i < EACH; i++)
            http2_client_call(&c, n % 2 ? "/unknown" : "/grpc.health.v1.Health/Check");
        n++;
        atomic_fetch_add(&ahead_us, EACH * 1000000 / RPC_WIRE_SHARES_PER_S); // not faster
    } while (n * EACH < MAX * 20 && http2_client_await(&c, c.n_headers + EACH));
    assert_in_range(n * EACH, RPC_PEERS_CHEAP_BURST, MAX * 20 - 1);
    assert_int_equal(ended("calls"), before + 1);
    http2_client_close(&c);
    stream_is_served(&g);
    done(&g);
}

/* It may be a gateway over TCP without TLS, which passes on what its users send. */
static void a_client_whose_requests_are_refused_is_not_ended(void **state)
{
    enum { CALLS = 2 * RPC_PEERS_CHEAP_BURST, EACH = 50 };
    (void)state;
    struct guard_rig g;
    int before = all_ended();
    init(&g, false);
    struct http2_client c = http2_client_open_tcp(g.port);
    for (int n = 0; n < CALLS; n += EACH) {
        for (int i = 0; i < EACH; i++)
            http2_client_call(&c, "/test/Refuse");
        assert_true(http2_client_await(&c, c.n_headers + EACH));
    }
    assert_int_equal(all_ended(), before);
    http2_client_close(&c);
    stream_is_served(&g);
    done(&g);
}

/* Short connections, of 60 calls each; some more calls than pass. */
static void make_short_connections(const struct guard_rig *g)
{
    enum { EACH = 60, N = (RPC_WIRE_ALL_BURST + RPC_WIRE_SHARES_BURST) / EACH + 10 };
    int before = ended("frames");
    for (int i = 0; i < N; i++) {
        struct http2_client c = http2_client_open_tcp(g->port);
        for (int k = 0; k < EACH; k++)
            http2_client_call(&c, "/test/Echo");
        http2_client_await(&c, EACH); // or its end
        http2_client_close(&c);
    }
    assert_true(ended("frames") > before);
}

/* A gateway over TCP without TLS, and clients with its address. */
static void a_settled_connection_does_not_pay_for_others(void **state)
{
    enum { CALLS = 400, TURNS = 3 };
    (void)state;
    struct guard_rig g;
    init(&g, false);
    struct http2_client c = http2_client_open_tcp(g.port);
    http2_client_call(&c, "/test/Echo");
    assert_true(http2_client_await(&c, 1));
    atomic_fetch_add(&ahead_us, RPC_PEERS_SETTLED_US);
    await_scans(3); // one has begun after that
    atomic_store(&stopped_us, clock_us());
    for (int turn = 0; turn < TURNS; turn++) {
        make_short_connections(&g);
        for (int i = 0; i < CALLS; i++)
            http2_client_call(&c, "/test/Echo");
        assert_true(http2_client_await(&c, c.n_headers + CALLS));
        stream_is_served(&g);
        atomic_fetch_add(&stopped_us, 1500000);
    }
    atomic_fetch_add(&ahead_us, TURNS * 1500000);
    atomic_store(&stopped_us, 0);
    http2_client_close(&c);
    done(&g);
}

/* Each of which makes few. */
static void calls_of_many_connections_count_together(void **state)
{
    enum { EACH = 40, N = (RPC_WIRE_ALL_BURST + RPC_WIRE_SHARES_BURST) / EACH + 20 };
    (void)state;
    struct guard_rig g;
    struct http2_client c[N];
    int before = ended("frames");
    init(&g, false);
    for (int i = 0; i < N; i++)
        c[i] = http2_client_open_tcp(g.port);
    atomic_store(&stopped_us, clock_us());
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < EACH; k++)
            http2_client_call(&c[i], "/test/Echo");
        http2_client_await(&c[i], EACH); // or its end
        http2_client_close(&c[i]);
    }
    assert_true(ended("frames") > before);
    assert_true(ended("frames") < before + N / 2);
    atomic_store(&stopped_us, 0);
    stream_is_served(&g);
    done(&g);
}

static void resets(const char *path, bool passed_socket)
{
    struct guard_rig g;
    int before = all_ended();
    init(&g, passed_socket);
    struct http2_client c = http2_client_open_tcp(g.port);
    http2_client_reset(&c, path, RPC_PEERS_RESETS_BURST / 2 * 3);
    http2_client_await_end(&c);
    http2_client_close(&c);
    stream_is_served(&g);
    assert_int_equal(all_ended(), before + 1);
    done(&g);
}

static void reset_calls_end_a_connection(void **state)
{
    (void)state;
    resets("/test/Keep", false);
    resets("/test/Chat", false);
    resets("/unknown", false);
}

static void reset_calls_end_a_connection_of_a_passed_socket(void **state)
{
    (void)state;
    resets("/test/Keep", true);
}

static void a_client_that_cancels_a_thousand_calls_is_not_ended(void **state)
{
    enum { N = 1000 };
    (void)state;
    struct guard_rig g;
    struct rpc_stream *s[N];
    struct rpc_tally t[N];
    int before = all_ended();
    init(&g, false);
    for (int i = 0; i < N; i++)
        s[i] = rpc_rig_call(&g.r, "/test/Keep", 1, 1, &t[i]);
    for (int i = 0; i < N; i++)
        rpc_stream_cancel(s[i]);
    for (int i = 0; i < N; i++)
        rpc_rig_finish(s[i], &t[i], RPC_CANCELLED);
    stream_is_served(&g);
    assert_int_equal(all_ended(), before);
    done(&g);
}

static void a_connection_that_cannot_be_held_is_ended_in_a_later_scan(void **state)
{
    (void)state;
    atomic_store(&n_failing_dups, 2);
    resets("/test/Keep", false);
    assert_int_equal(atomic_load(&n_failing_dups), 0);
}

static void calls_of_a_banned_client_are_not_served(void **state)
{
    enum { N = 10 }; // the first scan may precede a call
    (void)state;
    struct guard_rig g;
    init(&g, false);
    for (int i = 0; i < 2; i++) {
        struct http2_client c = http2_client_open_tcp(g.port);
        http2_client_reset(&c, "/test/Chat", RPC_PEERS_RESETS_BURST / 2 * 3);
        http2_client_await_end(&c);
        http2_client_close(&c);
        atomic_fetch_add(&ahead_us, 1000000); // so that all these calls pass
    }
    int before = ended("ban");
    for (int i = 0; i < N; i++) {
        struct http2_client c = http2_client_open_tcp(g.port);
        http2_client_call(&c, "/test/Keep");
        http2_client_await_end(&c);
        http2_client_close(&c);
    }
    assert_int_equal(ended("ban"), before + N);
    assert_int_equal(rpc_rig_count(&rpc_rig_seen.starts), 0);
    stream_is_served(&g);
    done(&g);
}

/* With `insecure`, clients over TCP have the server's own_role. */
static void a_gateway_is_not_banned(void **state)
{
    (void)state;
    struct guard_rig g;
    int before = all_ended(), by_bytes = ended("bytes") + ended("stall");
    init_with(&g, false,
              &(struct rpc_server_options){.max_unexplained = MAX_UNEXPLAINED / RPC_PEERS_ALL_TIMES,
                                           .own_role = RPC_ROLE_GATEWAY,
                                           .insecure = true});
    for (int i = 0; i < 3; i++) {
        struct http2_client c = http2_client_open_tcp(g.port);
        http2_client_call(&c, "/unknown");
        assert_true(http2_client_await(&c, 1));
        http2_client_pad(&c, 2 * MAX_UNEXPLAINED);
        http2_client_await_end(&c);
        http2_client_close(&c);
    }
    stream_is_served(&g);
    assert_int_equal(all_ended(), before + 3);
    assert_int_equal(ended("bytes") + ended("stall"), by_bytes + 3);
    done(&g);
}

static void a_process_that_was_stopped_has_no_stalled_threads(void **state)
{
    (void)state;
    struct guard_rig g;
    int before = all_ended();
    init(&g, false);
    struct http2_client c = http2_client_open_tcp(g.port);
    http2_client_pad(&c, RPC_PEERS_STALL_BYTES * 3 / 2); // what a stall is blamed for
    stream_is_served(&g);
    await_scans(2);
    atomic_store(&jump_us, 10 * RPC_PEERS_STALL_US);
    await_scans(3);
    assert_int_equal(atomic_load(&jump_us), 0);
    assert_int_equal(all_ended(), before);
    http2_client_close(&c);
    stream_is_served(&g);
    done(&g);
}

static void a_slow_callback_is_no_stall(void **state)
{
    (void)state;
    struct guard_rig g;
    struct rpc_tally t;
    int before = all_ended();
    init(&g, false);
    struct http2_client c = http2_client_open_tcp(g.port);
    http2_client_pad(&c, RPC_PEERS_STALL_BYTES * 3 / 2); // what a stall is blamed for
    stream_is_served(&g);
    await_scans(2);
    struct rpc_stream *s = rpc_rig_call(&g.r, "/test/Slow", 1, 1, &t);
    rpc_rig_finish(s, &t, RPC_OK);
    assert_int_equal(all_ended(), before);
    http2_client_close(&c);
    stream_is_served(&g);
    done(&g);
}

/* The number of the next descriptor. */
static int next_descriptor(void)
{
    int fd = eventfd(0, 0);
    assert_true(fd >= 0);
    close(fd);
    return fd;
}

/* A guard needs four descriptors, and a server one more. */
static void without_descriptors_there_is_no_guard_and_no_server(void **state)
{
    (void)state;
    struct rlimit limit, few;
    int first = next_descriptor(), n_failed = 0, r = -1;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    few = (struct rlimit){.rlim_cur = (rlim_t)first, .rlim_max = limit.rlim_max};
    for (; r < 0; few.rlim_cur += r < 0, n_failed += r < 0) {
        struct rpc_guard *g = NULL;
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
        r = rpc_guard_new(&(struct rpc_worker){0}, 1, 0, &g);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
        assert_true(r == 0 || r == -EMFILE);
        if (r < 0)
            assert_string_equal(fail_text(), "cannot watch connections by /proc/self/fd: "
                                             "Too many open files");
        rpc_guard_free(g);
        assert_int_equal(next_descriptor(), first);
    }
    assert_true(n_failed >= 3);
    struct rpc_server *s;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    r = rpc_server_new(&(struct rpc_server_options){0}, &s);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_int_equal(r, -EMFILE);
    assert_string_equal(fail_text(), "eventfd: Too many open files");
    assert_int_equal(next_descriptor(), first);
}

static void large_messages_do_not_end_a_connection(void **state)
{
    (void)state;
    struct guard_rig g;
    int before = all_ended();
    init(&g, false);
    for (int i = 0; i < 4; i++) {
        int n = rpc_rig_count(&g.tally.messages);
        rpc_stream_send(g.stream, rpc_rig_ids(1, MAX_UNEXPLAINED - 1000)); // a byte each
        rpc_rig_await(&g.tally.messages, n + 1);
    }
    assert_int_equal(all_ended(), before);
    done(&g);
}

/* With the limit, 40 unexplained bytes per call would end it. */
static void many_calls_and_large_answers_do_not_end_a_connection(void **state)
{
    enum { ROUNDS = 100, N = 32, LARGE = 20000 };
    (void)state;
    struct guard_rig g;
    struct rpc_stream *s[N];
    struct rpc_tally t[N];
    int before = all_ended();
    init_with(&g, false, &(struct rpc_server_options){.max_unexplained = 128 << 10});
    for (int k = 0; k < ROUNDS; k++) {
        for (int i = 0; i < N; i++)
            s[i] = rpc_rig_call(&g.r, i % 2 ? "/test/Chat" : "/test/Count", LARGE, i % 2 ? 1 : 3,
                                &t[i]);
        for (int i = 0; i < N; i++)
            rpc_rig_finish(s[i], &t[i], RPC_OK);
    }
    await_scans(3);
    assert_int_equal(all_ended(), before);
    stream_is_served(&g);
    done(&g);
}

static bool is_closed(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLRDHUP};
    return poll(&p, 1, 0) == 1;
}

static void silent_connections_leave_half_of_the_descriptors(void **state)
{
    enum { N = DESCRIPTORS / 2 + 8 };
    (void)state;
    struct guard_rig g;
    struct rlimit limit, few;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    few = (struct rlimit){.rlim_cur = DESCRIPTORS, .rlim_max = limit.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    init(&g, false);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0); // the clients' are in this process, too
    struct http2_client c[N];
    for (int i = 0; i < N; i++)
        c[i] = http2_client_open_tcp(g.port);
    http2_client_await_end(&c[0]); // the oldest
    stream_is_served(&g);
    int n_open = 0;
    for (int i = 0; i < N; i++) {
        n_open += !is_closed(c[i].fd);
        http2_client_close(&c[i]);
    }
    assert_true(n_open > 0);
    done(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ignored_frames_end_a_connection),
        cmocka_unit_test(ignored_frames_of_another_user_end_its_connection),
        cmocka_unit_test(unfinished_messages_beside_many_calls_end_a_connection),
        cmocka_unit_test(a_client_that_makes_too_many_calls_is_ended),
        cmocka_unit_test(a_client_whose_requests_are_refused_is_not_ended),
        cmocka_unit_test(a_settled_connection_does_not_pay_for_others),
        cmocka_unit_test(calls_of_many_connections_count_together),
        cmocka_unit_test(reset_calls_end_a_connection),
        cmocka_unit_test(reset_calls_end_a_connection_of_a_passed_socket),
        cmocka_unit_test(a_client_that_cancels_a_thousand_calls_is_not_ended),
        cmocka_unit_test(a_connection_that_cannot_be_held_is_ended_in_a_later_scan),
        cmocka_unit_test(calls_of_a_banned_client_are_not_served),
        cmocka_unit_test(a_gateway_is_not_banned),
        cmocka_unit_test(a_process_that_was_stopped_has_no_stalled_threads),
        cmocka_unit_test(a_slow_callback_is_no_stall),
        cmocka_unit_test(a_long_scan_hides_no_stall),
        cmocka_unit_test(connections_with_many_bytes_are_seen_often),
        cmocka_unit_test(a_client_that_makes_the_process_grow_is_ended),
        cmocka_unit_test(a_connection_that_tells_no_counts_is_not_ended),
        cmocka_unit_test(a_call_of_a_connection_that_is_over_is_void),
        cmocka_unit_test(a_call_of_a_unix_socket_is_not_watched),
        cmocka_unit_test(a_connection_keeps_its_descriptor_while_it_has_a_call),
        cmocka_unit_test(without_descriptors_there_is_no_guard_and_no_server),
        cmocka_unit_test(large_messages_do_not_end_a_connection),
        cmocka_unit_test(many_calls_and_large_answers_do_not_end_a_connection),
        cmocka_unit_test(silent_connections_leave_half_of_the_descriptors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

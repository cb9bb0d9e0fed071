/* test_connections.c - the places for connections, the time limits of their phases, hang-ups. The
 * server, the requests and the clock are fakes (--wrap). */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/metrics.h"
#include "gateway/http/connections.h"
#include "gateway/http/handshakes.h"
#include "gateway/http/http_watch.h"
#include "lib/fakes/failing.h"
#include "lib/fakes/failing_thread.h"
#include "lib/lib.h"
#include "lib/rigs/logged.h"

#define PLACES 4
#define RESERVE 32
#define S INT64_C(1000000)
#define TICKS_MS 350 // some ticks of the watcher

/* ---- fakes ---- */

static _Atomic int64_t ahead_us; // of the real clock
static _Atomic int64_t still_us; // the time, which stands still; 0: it does not
static atomic_uint n_hung_up, n_abandoned, n_ticks, n_woken;
static atomic_bool drops; // what http_watch_tick() returns

int64_t __real_clock_us(void);
int64_t __wrap_clock_us(void);
void __wrap_http_watch_hung_up(struct http_request *r);
bool __wrap_http_watch_tick(struct http_request *r, int64_t now_us);
bool __wrap_http_watch_gives_way(struct http_request *r, int64_t now_us, bool unbegun);
void __wrap_http_watch_abandon(struct http_request *r);
void __wrap_http_watch_wake(struct MHD_Connection *c);
struct http_request *__wrap_http_ref(struct http_request *r);
void __wrap_http_unref(struct http_request *r);

int64_t __wrap_clock_us(void)
{
    int64_t us = atomic_load(&still_us);
    return us ? us : __real_clock_us() + atomic_load(&ahead_us);
}

void __wrap_http_watch_hung_up(struct http_request *r)
{
    assert_non_null(r);
    atomic_fetch_add(&n_hung_up, 1);
}

bool __wrap_http_watch_tick(struct http_request *r, int64_t now_us)
{
    (void)r, (void)now_us;
    atomic_fetch_add(&n_ticks, 1);
    return atomic_load(&drops);
}

void __wrap_http_watch_abandon(struct http_request *r)
{
    assert_non_null(r);
    atomic_fetch_add(&n_abandoned, 1);
}

void __wrap_http_watch_wake(struct MHD_Connection *c)
{
    assert_non_null(c);
    atomic_fetch_add(&n_woken, 1);
}

struct http_request *__wrap_http_ref(struct http_request *r)
{
    return r;
}

void __wrap_http_unref(struct http_request *r)
{
    (void)r;
}

static struct http_request *const request = (struct http_request *)&n_ticks; // never looked into
static struct http_request *const unread = (struct http_request *)&drops;    // it gives way

static struct http_request *const not_begun = (struct http_request *)&n_woken; // no work has begun

bool __wrap_http_watch_gives_way(struct http_request *r, int64_t now_us, bool unbegun)
{
    (void)now_us;
    assert_non_null(r);
    return r == unread || (r == not_begun && unbegun);
}

/* The thread of handshakes: the test ends them. */
static struct {
    handshakes_done_fn *done;
    handshakes_failed_fn *failed;
    void *user;
    struct {
        int fd;
        struct address peer;
        void *client;
        struct handshake *k;
        atomic_bool ends;
    } v[8];
    atomic_uint n;
    atomic_bool fails; // to begin one
    unsigned rest;     // the first of those that handshakes_stop() ends; 0: none
} shaking;

int __wrap_handshakes_new(handshakes_done_fn *done, handshakes_failed_fn *failed, void *user,
                          struct handshakes **ret);
void __wrap_handshakes_stop(struct handshakes *h);
void __wrap_handshakes_free(struct handshakes *h);
void __wrap_handshakes_end(struct handshakes *h, struct handshake *k);
int __wrap_handshakes_add(struct handshakes *h, struct handshake *k, int fd,
                          const struct address *a, void *client);

int __wrap_handshakes_new(handshakes_done_fn *done, handshakes_failed_fn *failed, void *user,
                          struct handshakes **ret)
{
    shaking.done = done;
    shaking.failed = failed;
    shaking.user = user;
    *ret = (struct handshakes *)&shaking;
    return 0;
}

void __wrap_handshakes_stop(struct handshakes *h)
{
    assert_ptr_equal(h, &shaking);
    for (unsigned i = shaking.rest; i && i < shaking.n; i++)
        shaking.failed(shaking.user, shaking.v[i].client);
    shaking.rest = 0;
}

void __wrap_handshakes_end(struct handshakes *h, struct handshake *k)
{
    assert_ptr_equal(h, &shaking);
    for (unsigned i = 0; i < shaking.n; i++)
        if (shaking.v[i].k == k)
            atomic_store(&shaking.v[i].ends, true);
}

void __wrap_handshakes_free(struct handshakes *h)
{
    (void)h;
}

int __wrap_handshakes_add(struct handshakes *h, struct handshake *k, int fd,
                          const struct address *a, void *client)
{
    unsigned n = atomic_load(&shaking.n);
    assert_ptr_equal(h, &shaking);
    if (atomic_load(&shaking.fails))
        return -ENOMEM;
    shaking.v[n].ends = false;
    shaking.v[n].fd = fd;
    shaking.v[n].peer = *a;
    shaking.v[n].client = client;
    shaking.v[n].k = k;
    atomic_store(&shaking.n, n + 1);
    return 0;
}

/* ---- connections that are accepted and not opened ---- */

static int kept; // the accepted descriptor of keep()

/* As libmicrohttpd without memory: it has taken the connection, and closes it in silence. */
static bool lose(void *user, int fd, const struct sockaddr *a, socklen_t len,
                 struct http_tls_session *session)
{
    (void)user, (void)a, (void)len, (void)session;
    close(fd);
    return true;
}

/* As libmicrohttpd when it is busy: it will open the connection later. */
static bool keep(void *user, int fd, const struct sockaddr *a, socklen_t len,
                 struct http_tls_session *session)
{
    (void)user, (void)a, (void)len, (void)session;
    kept = fd;
    return true;
}

/* As libmicrohttpd with too many connections. */
static bool refuse_shaken(void *user, int fd, const struct sockaddr *a, socklen_t len,
                          struct http_tls_session *session)
{
    assert_non_null(session);
    return !lose(user, fd, a, len, session);
}

static struct connections *listening(connections_accept_fn *take, struct sockaddr_in *ret)
{
    const struct http_options o = {.max_connections = PLACES,
                                   .max_per_ip = PLACES,
                                   .idle_us = 600000000,
                                   .request_us = 600000000};
    struct connections *s = NULL;
    socklen_t len = sizeof(*ret);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    *ret = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_int_equal(bind(fd, (struct sockaddr *)ret, len), 0);
    assert_int_equal(listen(fd, 64), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)ret, &len), 0);
    assert_int_equal(connections_new(&o, &s), 0);
    connections_listen(s, fd, take, NULL);
    return s;
}

static int connect_to(const struct sockaddr_in *to)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)to, sizeof(*to)), 0);
    return fd;
}

static bool becomes_open(struct connections *s, unsigned n)
{
    for (unsigned i = 0; i < 6000 && connections_n_open(s) != n; i++)
        poll(NULL, 0, 10);
    return connections_n_open(s) == n;
}

/* Waits until the other side has closed it. */
static void await_close(int fd)
{
    char byte;
    assert_int_equal(read(fd, &byte, 1), 0);
    close(fd);
}

/* Connects, and waits until the server has closed the connection. */
static void connect_and_lose(const struct sockaddr_in *at)
{
    await_close(connect_to(at));
}

static void connections_that_are_lost_before_they_open_free_their_places(void **state)
{
    (void)state;
    struct sockaddr_in at;
    struct connections *s = listening(lose, &at);
    int fd[PLACES];
    for (unsigned i = 0; i < PLACES; i++)
        fd[i] = connect_to(&at);
    for (unsigned i = 0; i < PLACES; i++)
        await_close(fd[i]);
    assert_true(becomes_open(s, 0));
    connections_stop(s);
    connections_unlisten(s);
    connections_free(s);
}

/* Another file has got the number of the lost socket. It must not be shut down. */
static void a_number_that_is_used_again_is_left_alone(void **state)
{
    (void)state;
    struct sockaddr_in at;
    struct connections *s = listening(lose, &at);
    int fd = connect_to(&at), other[3][2];
    await_close(fd);
    connections_stop(s);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, other[i]), 0);
    connections_unlisten(s);
    connections_end(s, 20000000);
    assert_int_equal(connections_n_open(s), 0);
    for (unsigned i = 0; i < 6; i++)
        assert_int_equal(send(other[i / 2][i % 2], "x", 1, MSG_NOSIGNAL), 1);
    for (unsigned i = 0; i < 6; i++)
        close(other[i / 2][i % 2]);
    connections_free(s);
}

/* The clock is set back, so that the watcher has no further tick. */
static void the_end_does_not_wait_for_a_lost_connection(void **state)
{
    (void)state;
    struct sockaddr_in at;
    struct connections *s = listening(lose, &at);
    connect_and_lose(&at);
    assert_true(becomes_open(s, 0));
    atomic_store(&ahead_us, -1000 * S);
    connect_and_lose(&at);
    connections_stop(s);
    assert_int_equal(connections_n_open(s), 1);
    connections_unlisten(s);
    connections_end(s, 20 * S);
    assert_int_equal(connections_n_open(s), 0);
    connections_free(s);
    atomic_store(&ahead_us, 0);
}

/* libmicrohttpd closes what it refuses. */
static bool turn_away(void *user, int fd, const struct sockaddr *a, socklen_t len,
                      struct http_tls_session *session)
{
    (void)user, (void)a, (void)len, (void)session;
    close(fd);
    return false;
}

static void a_connection_that_libmicrohttpd_refuses_frees_its_place(void **state)
{
    (void)state;
    struct sockaddr_in at;
    struct connections *s = listening(turn_away, &at);
    atomic_store(&ahead_us, -1000 * S); // no tick removes it
    for (unsigned i = 0; i < 2 * PLACES; i++)
        connect_and_lose(&at);
    assert_true(becomes_open(s, 0));
    connections_stop(s);
    connections_unlisten(s);
    connections_free(s);
    atomic_store(&ahead_us, 0);
}

static void a_connection_that_opens_late_keeps_its_place(void **state)
{
    (void)state;
    struct sockaddr_in at;
    struct connections *s = listening(keep, &at);
    int fd = connect_to(&at);
    assert_true(becomes_open(s, 1));
    poll(NULL, 0, 250); // some ticks of the watcher
    assert_int_equal(connections_n_open(s), 1);
    struct connection *k = connections_open(s, kept, NULL);
    assert_non_null(k);
    connections_close(s, k);
    assert_int_equal(connections_n_open(s), 0);
    close(kept);
    close(fd);
    connections_stop(s);
    connections_unlisten(s);
    connections_free(s);
}

/* ---- places ---- */

static struct connections *conns;
static struct sockaddr_in where;
static _Atomic int accepted = -1; // the last accepted descriptor

static bool accept_it(void *user, int fd, const struct sockaddr *a, socklen_t len,
                      struct http_tls_session *session)
{
    (void)session;
    assert_ptr_equal(user, &accepted);
    assert_int_equal(a->sa_family, AF_INET);
    assert_int_equal(len, sizeof(struct sockaddr_in));
    atomic_store(&accepted, fd);
    return true;
}

static const struct http_options usual = {
    .max_connections = PLACES, .max_per_ip = 2, .idle_us = 100 * S, .request_us = 50 * S};

static void serve_with(const struct http_options *o, connections_accept_fn *take, void *user)
{
    socklen_t len = sizeof(where);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    where = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_int_equal(bind(fd, (struct sockaddr *)&where, len), 0);
    assert_int_equal(listen(fd, 64), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&where, &len), 0);
    assert_int_equal(connections_new(o, &conns), 0);
    atomic_store(&ahead_us, 0);
    atomic_store(&still_us, 0);
    atomic_store(&n_hung_up, 0);
    atomic_store(&n_abandoned, 0);
    atomic_store(&drops, false);
    connections_listen(conns, fd, take, user);
}

static void serve(const struct http_options *o)
{
    serve_with(o, accept_it, &accepted);
}

/* A connection of both sides. */
struct both {
    int client, server;
    struct connection *k;
};

/* Connects from 127.0.0.`host`. */
static int connect_from(unsigned host)
{
    struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7F000000 | host)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&from, sizeof(from)), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&where, sizeof(where)), 0);
    return fd;
}

static struct both open_from(unsigned host)
{
    struct both b = {.client = -1};
    atomic_store(&accepted, -1);
    b.client = connect_from(host);
    for (unsigned i = 0; i < 20000 && atomic_load(&accepted) < 0; i++)
        poll(NULL, 0, 1);
    b.server = atomic_load(&accepted);
    assert_true(b.server >= 0);
    b.k = connections_open(conns, b.server, (struct MHD_Connection *)&accepted);
    assert_non_null(b.k);
    struct address a = connections_peer(b.k);
    assert_int_equal(a.ip[15], host);
    return b;
}

static void close_both(struct both *b)
{
    connections_close(conns, b->k);
    close(b->server);
    if (b->client >= 0)
        close(b->client);
    *b = (struct both){.client = -1, .server = -1};
}

static void set_phase(struct both *b, enum connection_phase phase, struct http_request *r)
{
    connections_set_phase(conns, b->k, phase, r);
}

/* Whether the server has shut it down; waits up to 20 s if it should be. */
static bool is_ended(const struct both *b, bool wanted)
{
    struct pollfd p = {b->client, POLLIN, 0};
    return poll(&p, 1, wanted ? 20000 : 0) == 1;
}

static void finish(void)
{
    connections_stop(conns);
    connections_unlisten(conns);
    assert_int_equal(connections_n_open(conns), 0);
    assert_int_equal(connections_n_active(conns), 0);
    connections_free(conns);
    connections_free(NULL);
}

/* The number that the metric shows. */
static unsigned n_refused(void)
{
    AUTO(buf_done) struct buf text = {0};
    unsigned n = 0;
    buf_init(&text, 1 << 20);
    metrics_render(&text);
    const char *at = strstr(text.data, "\ntandem_gateway_connections_refused_total ");
    assert_non_null(at);
    sscanf(strchr(at, ' '), "%u", &n);
    return n;
}

/* It is counted after the close. */
static void await_refusals(unsigned n)
{
    for (unsigned i = 0; i < 20000 && n_refused() != n; i++)
        poll(NULL, 0, 1);
    assert_int_equal(n_refused(), n);
}

/* ---- TLS handshakes ---- */

static struct cert_files *const certs = (struct cert_files *)&n_ticks; // never
static struct http_tls_session *const session =
    (struct http_tls_session *)&n_hung_up; // looked into

/* Takes a connection of HTTPS. */
static bool accept_shaken(void *user, int fd, const struct sockaddr *a, socklen_t len,
                          struct http_tls_session *with)
{
    assert_ptr_equal(with, session);
    return accept_it(user, fd, a, len, NULL);
}

static void serve_tls(connections_accept_fn *take)
{
    struct http_options o = usual;
    o.certs = certs;
    shaking.n = 0;
    serve_with(&o, take, &accepted);
}

/* The client of a connection that shakes hands. */
static int connect_to_shake(unsigned host)
{
    unsigned n = atomic_load(&shaking.n);
    int fd = connect_from(host);
    for (unsigned i = 0; i < 20000 && atomic_load(&shaking.n) == n; i++)
        poll(NULL, 0, 1);
    assert_int_equal(shaking.n, n + 1);
    assert_int_equal(shaking.v[n].peer.ip[15], host);
    return fd;
}

static void a_connection_opens_after_its_handshake(void **state)
{
    (void)state;
    serve_tls(accept_shaken);
    struct both b = {.client = connect_to_shake(1)};
    assert_int_equal(connections_n_open(conns), 1);
    atomic_store(&accepted, -1);
    poll(NULL, 0, TICKS_MS);
    assert_int_equal(atomic_load(&accepted), -1);
    shaking.done(shaking.user, shaking.v[0].client, session);
    b.server = atomic_load(&accepted);
    assert_int_equal(b.server, shaking.v[0].fd);
    b.k = connections_open(conns, b.server, (struct MHD_Connection *)&accepted);
    assert_ptr_equal(b.k, shaking.v[0].client);
    assert_false(is_ended(&b, false));
    close_both(&b);
    finish();
}

static void a_handshake_that_fails_frees_its_place(void **state)
{
    (void)state;
    serve_tls(accept_shaken);
    int client = connect_to_shake(1);
    shaking.failed(shaking.user, shaking.v[0].client);
    await_close(client);
    assert_int_equal(connections_n_open(conns), 0);
    shaking.fails = true; // they cannot even begin
    client = connect_from(1);
    await_close(client);
    assert_true(becomes_open(conns, 0));
    shaking.fails = false;
    finish();
}

/* The thread of handshakes closes them then. */
static void handshakes_give_their_places_and_have_a_time_limit(void **state)
{
    (void)state;
    serve_tls(accept_shaken);
    struct both first = {.client = connect_to_shake(1)};
    atomic_fetch_add(&ahead_us, 1000);
    struct both second = {.client = connect_to_shake(1)};
    atomic_fetch_add(&ahead_us, 1000);
    struct both third = {.client = connect_to_shake(1)}; // an address may have two
    assert_true(is_ended(&first, true));
    assert_false(is_ended(&second, false) || is_ended(&third, false));
    assert_true(shaking.v[0].ends && !shaking.v[1].ends && !shaking.v[2].ends);
    shaking.failed(shaking.user, shaking.v[0].client);
    atomic_fetch_add(&ahead_us, usual.request_us);
    assert_true(is_ended(&second, true) && is_ended(&third, true));
    assert_true(shaking.v[1].ends && shaking.v[2].ends);
    for (unsigned i = 1; i < 3; i++)
        shaking.failed(shaking.user, shaking.v[i].client);
    assert_int_equal(connections_n_open(conns), 0);
    close(first.client);
    close(second.client);
    close(third.client);
    finish();
}

/* A new process may have taken the socket over. Only the end of the server ends handshakes. */
static void handshakes_go_on_during_a_drain(void **state)
{
    (void)state;
    serve_tls(refuse_shaken);
    int clients[] = {connect_to_shake(1), connect_to_shake(2)};
    connections_stop(conns);
    connections_unlisten(conns);
    assert_int_equal(connections_n_open(conns), 2);
    shaking.done(shaking.user, shaking.v[0].client, session);
    await_close(clients[0]);
    assert_int_equal(connections_n_open(conns), 1);
    shaking.rest = 1; // they fail when the thread is stopped
    connections_end(conns, 20 * S);
    await_close(clients[1]);
    assert_int_equal(connections_n_open(conns), 0);
    connections_free(conns);
}

/* One that has no more than its share always displaces one. */
static void addresses_with_many_displace_few(void **state)
{
    enum { OWN = 10, ALL = 200, SECOND = OWN + 1 + ALL }; // that one second permits
    (void)state;
    serve_with(&usual, accept_it, &accepted);
    atomic_store(&still_us, 1000 * S);
    struct both b[] = {open_from(1), {0}};
    atomic_fetch_add(&still_us, 1); // the older one goes
    b[1] = open_from(1);
    unsigned before = n_refused(), at = 0;
    for (unsigned i = 0; i <= SECOND; i++, at = !at) {
        atomic_fetch_add(&still_us, 1);
        struct both next = open_from(1);
        assert_true(is_ended(&b[at], true));
        close_both(&b[at]);
        b[at] = next;
    }
    assert_int_equal(n_refused(), before);
    await_close(connect_from(1));
    await_refusals(before + 1);
    assert_false(is_ended(&b[0], false) || is_ended(&b[1], false));
    atomic_fetch_add(&still_us, 1);
    struct both others[] = {open_from(2), {0}, {0}};
    atomic_fetch_add(&still_us, 1);
    others[1] = open_from(2);
    others[2] = open_from(3);
    assert_true(is_ended(&b[at], true));
    for (unsigned i = 0; i <= OWN; i++) { // the rate of all is used up, but not its own
        atomic_fetch_add(&still_us, 1);
        struct both next = open_from(2);
        assert_true(is_ended(&others[i % 2], true));
        close_both(&others[i % 2]);
        others[i % 2] = next;
    }
    await_close(connect_from(2));
    atomic_fetch_add(&still_us, S / ALL);
    close_both(&b[at]);
    b[at] = open_from(1);
    assert_true(is_ended(&b[!at], true));
    for (unsigned i = 0; i < 2; i++)
        close_both(&b[i]);
    for (unsigned i = 0; i < 3; i++)
        close_both(&others[i]);
    atomic_store(&still_us, 0);
    finish();
}

/* Of two connections of an address that opens a third, this one goes. */
static void the_least_busy_connection_of_an_address_goes(void **state)
{
    (void)state;
    enum kind { NEW, USED, LINE, BODY, BUSY, UNREAD };
    static const struct {
        enum kind first, second;
        int victim; // -1: none
    } v[] = {{NEW, NEW, 0},     {NEW, USED, 1},    {USED, NEW, 0},    {LINE, BODY, 0},
             {BODY, LINE, 1},   {BODY, NEW, 1},    {BODY, BODY, 0},   {BUSY, BODY, 1},
             {BUSY, NEW, 1},    {USED, LINE, 0},   {USED, USED, 0},   {BUSY, BUSY, -1},
             {UNREAD, BODY, 1}, {BODY, UNREAD, 0}, {BUSY, UNREAD, 1}, {UNREAD, BUSY, 0}};
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        struct both b[3];
        serve(&usual);
        for (unsigned j = 0; j < 2; j++) {
            enum kind kind = j ? v[i].second : v[i].first;
            b[j] = open_from(1);
            atomic_fetch_add(&ahead_us, 1000);
            if (kind == USED)
                set_phase(&b[j], CONNECTION_IDLE, NULL);
            else if (kind == LINE || kind == BODY)
                set_phase(&b[j], CONNECTION_RECEIVING, kind == BODY ? request : NULL);
            else if (kind == BUSY || kind == UNREAD)
                set_phase(&b[j], CONNECTION_ANSWERING, kind == BUSY ? request : unread);
        }
        b[2] = open_from(1);
        for (int j = 0; j < 2; j++)
            if (is_ended(&b[j], j == v[i].victim) != (j == v[i].victim))
                fail_msg("case %zu: connection %d", i, j);
        assert_int_equal(connections_reserve(b[2].k),
                         v[i].victim < 0 ? HTTP_ADDRESS_FULL : HTTP_REGULAR);
        for (unsigned j = 0; j < 2; j++)
            set_phase(&b[j], CONNECTION_IDLE, NULL);
        for (unsigned j = 0; j < 3; j++)
            close_both(&b[j]);
        finish();
    }
    assert_int_equal(connections_reserve(NULL), HTTP_REGULAR);
    assert_false(connections_peer(NULL).is_ip);
}

/* libmicrohttpd may wake late. */
static void a_connection_that_goes_is_ended_until_it_is_closed(void **state)
{
    (void)state;
    struct both b[3];
    serve(&usual);
    for (unsigned i = 0; i < 3; i++)
        b[i] = open_from(1);
    assert_true(is_ended(&b[0], true));
    unsigned woken = atomic_load(&n_woken);
    for (unsigned i = 0; i < 20000 && atomic_load(&n_woken) == woken; i++)
        poll(NULL, 0, 1);
    assert_true(atomic_load(&n_woken) > woken);
    for (unsigned i = 0; i < 3; i++)
        close_both(&b[i]);
    finish();
}

/* libmicrohttpd reports each end, also of a connection that was not counted. */
static void a_connection_that_is_not_known_is_ignored(void **state)
{
    (void)state;
    serve(&usual);
    connections_set_phase(conns, NULL, CONNECTION_ANSWERING, request);
    assert_int_equal(connections_n_active(conns), 0);
    connections_close(conns, NULL);
    assert_int_equal(connections_n_open(conns), 0);
    finish();
}

/* Above max_connections, a connection of the address that holds most goes. */
static void the_address_with_most_connections_loses_one(void **state)
{
    (void)state;
    struct both b[PLACES + 1];
    serve(&usual);
    static const unsigned hosts[] = {1, 2, 3, 2, 4};
    for (unsigned i = 0; i < ARRAY_LEN(hosts); i++)
        b[i] = open_from(hosts[i]);
    assert_true(is_ended(&b[1], true)); // the older one of 2
    for (unsigned i = 0; i < ARRAY_LEN(hosts); i++) {
        assert_int_equal(is_ended(&b[i], i == 1), i == 1);
        assert_int_equal(connections_reserve(b[i].k), HTTP_REGULAR);
    }
    close_both(&b[1]);   // its place was already free
    b[1] = open_from(5); // now it is not
    assert_int_equal(connections_n_open(conns), PLACES + 1);
    assert_int_equal(connections_reserve(b[1].k), HTTP_REGULAR);
    unsigned n_ended = 0;
    for (unsigned i = 0; i < ARRAY_LEN(hosts); i++)
        n_ended += i != 1 && is_ended(&b[i], false);
    assert_int_equal(n_ended, 1);
    for (unsigned i = 0; i < ARRAY_LEN(hosts); i++)
        close_both(&b[i]);
    finish();
}

/* Its requests are complete, but nobody works on them. */
static void an_address_with_unread_answers_loses_one(void **state)
{
    (void)state;
    struct both b[PLACES], more;
    static const unsigned hosts[PLACES] = {1, 2, 2, 3};
    serve(&usual);
    for (unsigned i = 0; i < PLACES; i++) {
        b[i] = open_from(hosts[i]);
        set_phase(&b[i], CONNECTION_ANSWERING, unread);
    }
    more = open_from(4);
    assert_int_equal(connections_reserve(more.k), HTTP_REGULAR);
    assert_int_equal(is_ended(&b[1], false) + is_ended(&b[2], false), 1);
    assert_false(is_ended(&b[0], false) || is_ended(&b[3], false));
    for (unsigned i = 0; i < PLACES; i++) {
        set_phase(&b[i], CONNECTION_IDLE, NULL);
        close_both(&b[i]);
    }
    close_both(&more);
    finish();
}

/* Its requests wait for 2 s, and the newcomer's address has fewer connections. */
static void an_address_whose_requests_wait_loses_one(void **state)
{
    (void)state;
    struct both b[PLACES], more;
    static const unsigned hosts[PLACES] = {1, 2, 2, 3};
    static const struct {
        unsigned host;
        int64_t after_us;
        bool ends;
    } v[] = {{4, 2 * S, false}, {1, 2 * S + 1, false}, {4, 2 * S + 1, true}};
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        serve(&usual);
        atomic_store(&still_us, clock_us());
        for (unsigned k = 0; k < PLACES; k++) {
            b[k] = open_from(hosts[k]);
            set_phase(&b[k], CONNECTION_ANSWERING, not_begun);
        }
        atomic_fetch_add(&still_us, v[i].after_us);
        more = open_from(v[i].host);
        assert_int_equal(connections_reserve(more.k), v[i].ends ? HTTP_REGULAR : HTTP_ALL_FULL);
        assert_int_equal(is_ended(&b[1], false) + is_ended(&b[2], false), v[i].ends);
        assert_false(is_ended(&b[0], false) || is_ended(&b[3], false));
        for (unsigned k = 0; k < PLACES; k++) {
            set_phase(&b[k], CONNECTION_IDLE, NULL);
            close_both(&b[k]);
        }
        close_both(&more);
        finish();
    }
}

/* All places are busy. Each address gets half of the reserve at most; further ones are closed. */
static void the_reserve_is_shared(void **state)
{
    (void)state;
    struct both b[PLACES], r[RESERVE];
    serve(&usual);
    unsigned before = n_refused();
    for (unsigned i = 0; i < PLACES; i++) {
        b[i] = open_from(1 + i / 2);
        set_phase(&b[i], CONNECTION_ANSWERING, request);
    }
    assert_int_equal(connections_n_active(conns), PLACES);
    logged_begin();
    for (unsigned i = 0; i < RESERVE / 2; i++) {
        r[i] = open_from(3);
        assert_int_equal(connections_reserve(r[i].k), HTTP_ALL_FULL);
    }
    assert_int_equal(n_refused(), before);
    struct both refused = {.client = connect_from(3)};
    assert_true(is_ended(&refused, true));
    close(refused.client);
    for (unsigned i = RESERVE / 2; i < RESERVE; i++)
        r[i] = open_from(4);
    assert_int_equal(connections_n_open(conns), PLACES + RESERVE);
    struct both waits = {.client = connect_from(5)}; // until one closes
    poll(NULL, 0, TICKS_MS);
    assert_int_equal(connections_n_open(conns), PLACES + RESERVE);
    const char *log = logged_end();
    assert_int_equal(logged_count(log, "connections refused n=1:"), 1);
    assert_int_equal(n_refused(), before + 1);
    atomic_store(&accepted, -1);
    close_both(&r[0]);
    for (unsigned i = 0; i < 20000 && atomic_load(&accepted) < 0; i++)
        poll(NULL, 0, 1);
    waits.server = atomic_load(&accepted);
    waits.k = connections_open(conns, waits.server, (struct MHD_Connection *)&accepted);
    assert_int_equal(connections_reserve(waits.k), HTTP_ALL_FULL);
    close_both(&waits);
    for (unsigned i = 0; i < PLACES; i++) {
        set_phase(&b[i], CONNECTION_IDLE, NULL);
        close_both(&b[i]);
    }
    for (unsigned i = 1; i < RESERVE; i++)
        close_both(&r[i]);
    b[0] = open_from(3); // all is free again, also for the address that was refused
    assert_int_equal(connections_reserve(b[0].k), HTTP_REGULAR);
    close_both(&b[0]);
    finish();
}

/* The connection itself, then the count of its address. */
static void a_connection_without_memory_is_refused(void **state)
{
    (void)state;
    serve(&usual);
    logged_begin();
    for (unsigned n = 1; n <= 2; n++) {
        unsigned before = n_refused();
        failing_at(n);
        int client = connect_from(1);
        await_close(client);
        assert_true(failing_has_failed());
        for (unsigned i = 0; i < 20000 && n_refused() == before; i++)
            poll(NULL, 0, 1);
        assert_int_equal(n_refused(), before + 1);
        assert_int_equal(connections_n_open(conns), 0);
    }
    const char *log = logged_end();
    assert_int_equal(logged_count(log, "connections refused n="), 1); // once a while
    struct both b = open_from(1);                                     // there is memory again
    close_both(&b);
    finish();
}

static void connections_of_a_proxy_count_for_its_clients(void **state)
{
    (void)state;
    struct address_range trusted[2];
    struct http_options o = usual;
    assert_int_equal(address_range_parse("127.0.0.9", &trusted[0]), 0);
    assert_int_equal(address_range_parse("10.0.0.0/8", &trusted[1]), 0);
    o.trusted = trusted;
    o.n_trusted = 2;
    o.max_connections = 100;
    serve(&o);
    struct both b[5], direct = open_from(1);
    struct address client = {0}, other = {0}, proxy = {0}, nobody = {0};
    assert_true(address_parse("192.0.2.1", 9, &client));
    assert_true(address_parse("192.0.2.2", 9, &other));
    assert_true(address_parse("10.1.2.3", 8, &proxy));
    for (unsigned i = 0; i < 5; i++)
        b[i] = open_from(9); // more than max_per_ip
    assert_true(connections_set_client(conns, NULL, &client));
    for (unsigned i = 0; i < 3; i++) // a peer that is no proxy: no effect
        assert_true(connections_set_client(conns, direct.k, &client));
    assert_true(connections_set_client(conns, b[0].k, &client));
    assert_true(connections_set_client(conns, b[1].k, &client));
    assert_false(connections_set_client(conns, b[2].k, &client));
    assert_true(connections_set_client(conns, b[2].k, &other));
    assert_true(connections_set_client(conns, b[3].k, &proxy)); // counts for nobody
    assert_true(connections_set_client(conns, b[4].k, &nobody));
    set_phase(&b[0], CONNECTION_ANSWERING, request);
    set_phase(&b[0], CONNECTION_IDLE, NULL); // its answer is sent
    assert_true(connections_set_client(conns, b[4].k, &client));
    assert_false(connections_set_client(conns, b[0].k, &client));
    for (unsigned i = 0; i < 5; i++)
        close_both(&b[i]);
    close_both(&direct);
    finish();
}

/* ---- time ---- */

/* What the client has received until the server closed. */
static void receives(const struct both *b, const char *text)
{
    char got[512];
    size_t n = 0;
    ssize_t more;
    assert_true(is_ended(b, true));
    while ((more = read(b->client, got + n, sizeof(got) - 1 - n)) > 0)
        n += (size_t)more;
    got[n] = 0;
    assert_string_equal(got, text);
}

#define TIMED_OUT                                                                                  \
    "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Type: application/json\r\n"      \
    "Content-Length: %zu\r\n\r\n%s"

static void phases_have_time_limits(void **state)
{
    (void)state;
    char late[512];
    static const char body[] = "{\"error\":{\"message\":\"the request did not arrive within 50 s\","
                               "\"type\":\"invalid_request_error\",\"param\":null,\"code\":null}}";
    snprintf(late, sizeof(late), TIMED_OUT, sizeof(body) - 1, body);
    struct http_options o = usual;
    o.max_connections = o.max_per_ip = 10;
    serve(&o);
    struct both fresh = open_from(1), line = open_from(1), idle = open_from(1), busy = open_from(1);
    set_phase(&line, CONNECTION_RECEIVING, NULL);
    set_phase(&idle, CONNECTION_IDLE, NULL);
    set_phase(&busy, CONNECTION_ANSWERING, request);
    atomic_store(&ahead_us, 30 * S);
    poll(NULL, 0, TICKS_MS);
    assert_false(is_ended(&fresh, false) || is_ended(&line, false) || is_ended(&idle, false));
    unsigned woken = atomic_load(&n_woken);
    atomic_store(&ahead_us, 50 * S);
    receives(&fresh, late);
    receives(&line, late);
    assert_true(atomic_load(&n_woken) > woken);
    close_both(&fresh);
    close_both(&line);
    atomic_store(&ahead_us, 80 * S);
    poll(NULL, 0, TICKS_MS);
    assert_false(is_ended(&idle, false));
    atomic_store(&ahead_us, 100 * S);
    receives(&idle, ""); // nobody waits for an answer
    close_both(&idle);
    unsigned ticks = atomic_load(&n_ticks);
    atomic_store(&ahead_us, 9980 * S);
    poll(NULL, 0, TICKS_MS);
    assert_false(is_ended(&busy, false));
    assert_true(atomic_load(&n_ticks) > ticks);
    atomic_store(&drops, true); // its reader is too slow
    receives(&busy, "");
    set_phase(&busy, CONNECTION_IDLE, NULL);
    close_both(&busy);
    finish();
}

static void a_connection_of_the_reserve_has_two_seconds(void **state)
{
    (void)state;
    struct both b[2], late;
    serve(&usual);
    for (unsigned i = 0; i < 2; i++) {
        b[i] = open_from(1);
        set_phase(&b[i], CONNECTION_ANSWERING, request);
    }
    late = open_from(1);
    assert_int_equal(connections_reserve(late.k), HTTP_ADDRESS_FULL);
    atomic_store(&ahead_us, S);
    poll(NULL, 0, TICKS_MS);
    assert_false(is_ended(&late, false));
    atomic_store(&ahead_us, 2 * S);
    assert_true(is_ended(&late, true));
    close_both(&late);
    for (unsigned i = 0; i < 2; i++) {
        set_phase(&b[i], CONNECTION_IDLE, NULL);
        close_both(&b[i]);
    }
    finish();
}

/* ---- hang-ups ---- */

static bool becomes(const atomic_uint *n, unsigned want)
{
    for (unsigned i = 0; i < 20000 && atomic_load(n) != want; i++)
        poll(NULL, 0, 1);
    return atomic_load(n) == want;
}

static void a_hang_up_reaches_the_request(void **state)
{
    (void)state;
    serve(&usual);
    struct both b = open_from(1);
    set_phase(&b, CONNECTION_ANSWERING, request);
    shutdown(b.client, SHUT_WR);
    assert_true(becomes(&n_hung_up, 1));
    set_phase(&b, CONNECTION_ANSWERING, request);
    assert_int_equal(atomic_load(&n_hung_up), 1); // it knows
    struct http_request *next = (struct http_request *)&n_hung_up;
    set_phase(&b, CONNECTION_RECEIVING, next); // a request that was sent before
    assert_int_equal(atomic_load(&n_hung_up), 2);
    set_phase(&b, CONNECTION_IDLE, NULL);
    assert_int_equal(atomic_load(&n_hung_up), 2);
    close_both(&b);
    finish();
}

/* Once the half second to read its rest is over. */
static void a_hung_up_connection_without_a_request_is_closed(void **state)
{
    (void)state;
    serve(&usual);
    struct both b = open_from(1);
    shutdown(b.client, SHUT_WR);
    atomic_fetch_add(&ahead_us, 2 * S);
    receives(&b, "");
    close_both(&b);
    finish();
}

/* Sets the clock, which stands still, and waits for the tick that follows. */
static void tick_after(int64_t us)
{
    unsigned n = atomic_load(&n_ticks);
    atomic_fetch_add(&still_us, us);
    for (unsigned i = 0; i < 20000 && atomic_load(&n_ticks) == n; i++)
        poll(NULL, 0, 1);
    assert_true(atomic_load(&n_ticks) > n);
}

/* The half second begins again when libmicrohttpd reads. */
static void a_hung_up_connection_is_kept_while_its_bytes_are_read(void **state)
{
    (void)state;
    char byte;
    serve(&usual);
    struct both busy = open_from(1), b = open_from(2); // in a tick, the last one comes first
    set_phase(&busy, CONNECTION_ANSWERING, request);
    set_phase(&b, CONNECTION_RECEIVING, request);
    assert_int_equal(send(b.client, "abc", 3, MSG_NOSIGNAL), 3);
    shutdown(b.client, SHUT_WR);
    assert_true(becomes(&n_hung_up, 1));
    atomic_store(&still_us, clock_us());
    tick_after(2 * S);
    assert_false(is_ended(&b, false)); // three bytes have come
    assert_int_equal(read(b.server, &byte, 1), 1);
    tick_after(2 * S);
    assert_false(is_ended(&b, false)); // one was read
    tick_after(500000);
    assert_false(is_ended(&b, false));
    tick_after(100000);
    assert_true(is_ended(&b, true));
    set_phase(&b, CONNECTION_IDLE, NULL);
    set_phase(&busy, CONNECTION_IDLE, NULL);
    close_both(&b);
    close_both(&busy);
    finish();
}

static void the_end_is_waited_for(void **state)
{
    (void)state;
    struct both b[2];
    serve(&usual);
    for (unsigned i = 0; i < 2; i++) {
        b[i] = open_from(1 + i);
        set_phase(&b[i], CONNECTION_ANSWERING, i ? request : NULL);
    }
    connections_abandon(conns);
    assert_int_equal(atomic_load(&n_abandoned), 1); // those with a request
    int64_t begun_us = __real_clock_us();
    connections_wait_idle(conns, 20000);
    assert_true(__real_clock_us() - begun_us >= 20000);
    for (unsigned i = 0; i < 2; i++)
        set_phase(&b[i], CONNECTION_IDLE, NULL);
    connections_wait_idle(conns, 600 * S);
    connections_stop(conns);
    connections_stop(conns); // no effect
    connections_end(conns, 30000);
    assert_int_equal(connections_n_open(conns), 2); // the server has not closed them
    for (unsigned i = 0; i < 2; i++) {
        assert_true(is_ended(&b[i], true));
        close_both(&b[i]);
    }
    connections_end(conns, 600 * S);
    finish();
}

/* ---- start ---- */

static void the_limit_of_files_bounds_the_places(void **state)
{
    (void)state;
    static const struct {
        rlim_t files;
        unsigned places; // 0: as configured
    } v[] = {{100 + 96, 0}, {99 + 96, 99}, {2 + 96, 2}, {1 + 96, 1}, {96, 1}, {90, 1}};
    struct rlimit before;
    struct http_options o = usual;
    o.max_connections = 100;
    getrlimit(RLIMIT_NOFILE, &before);
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        char says[80];
        struct rlimit few = {v[i].files, before.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
        logged_begin();
        int rc = connections_new(&o, &conns);
        const char *log = logged_end();
        assert_int_equal(rc, 0);
        snprintf(says, sizeof(says), "max_connections=%u files=%u", v[i].places,
                 (unsigned)v[i].files);
        assert_int_equal(logged_count(log, "max_connections lowered"), v[i].places > 0);
        assert_int_equal(logged_count(log, says), v[i].places > 0);
        connections_free(conns);
    }
    setrlimit(RLIMIT_NOFILE, &before);
}

static void half_of_the_places_rounded_up_is_the_default_of_an_address(void **state)
{
    (void)state;
    struct both b[3];
    struct http_options o = usual;
    o.max_connections = 3;
    o.max_per_ip = 0;
    serve(&o);
    for (unsigned i = 0; i < 3; i++) {
        b[i] = open_from(1);
        assert_int_equal(connections_reserve(b[i].k), i == 2 ? HTTP_ADDRESS_FULL : HTTP_REGULAR);
        set_phase(&b[i], CONNECTION_ANSWERING, request);
    }
    for (unsigned i = 0; i < 3; i++) {
        set_phase(&b[i], CONNECTION_IDLE, NULL);
        close_both(&b[i]);
    }
    finish();
}

static void failed_allocations_are_errors(void **state)
{
    (void)state;
    for (unsigned n = 1; n <= 2; n++) {
        failing_at(n);
        assert_int_equal(connections_new(&usual, &conns), -ENOMEM);
        assert_true(failing_has_failed());
    }
    failing_thread_at(1);
    assert_int_equal(connections_new(&usual, &conns), -ENOMEM);
    assert_string_equal(fail_text(), "http: cannot start the watcher");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(connections_that_are_lost_before_they_open_free_their_places),
        cmocka_unit_test(a_number_that_is_used_again_is_left_alone),
        cmocka_unit_test(the_end_does_not_wait_for_a_lost_connection),
        cmocka_unit_test(a_connection_that_libmicrohttpd_refuses_frees_its_place),
        cmocka_unit_test(a_connection_that_opens_late_keeps_its_place),
        cmocka_unit_test(a_connection_opens_after_its_handshake),
        cmocka_unit_test(a_handshake_that_fails_frees_its_place),
        cmocka_unit_test(handshakes_give_their_places_and_have_a_time_limit),
        cmocka_unit_test(handshakes_go_on_during_a_drain),
        cmocka_unit_test(addresses_with_many_displace_few),
        cmocka_unit_test(the_least_busy_connection_of_an_address_goes),
        cmocka_unit_test(a_connection_that_goes_is_ended_until_it_is_closed),
        cmocka_unit_test(a_connection_that_is_not_known_is_ignored),
        cmocka_unit_test(the_address_with_most_connections_loses_one),
        cmocka_unit_test(an_address_with_unread_answers_loses_one),
        cmocka_unit_test(an_address_whose_requests_wait_loses_one),
        cmocka_unit_test(the_reserve_is_shared),
        cmocka_unit_test(a_connection_without_memory_is_refused),
        cmocka_unit_test(connections_of_a_proxy_count_for_its_clients),
        cmocka_unit_test(phases_have_time_limits),
        cmocka_unit_test(a_connection_of_the_reserve_has_two_seconds),
        cmocka_unit_test(a_hang_up_reaches_the_request),
        cmocka_unit_test(a_hung_up_connection_without_a_request_is_closed),
        cmocka_unit_test(a_hung_up_connection_is_kept_while_its_bytes_are_read),
        cmocka_unit_test(the_end_is_waited_for),
        cmocka_unit_test(the_limit_of_files_bounds_the_places),
        cmocka_unit_test(half_of_the_places_rounded_up_is_the_default_of_an_address),
        cmocka_unit_test(failed_allocations_are_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

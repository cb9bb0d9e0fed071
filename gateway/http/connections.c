/* connections.c - the open connections, and the thread that watches them. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/log_pace.h"
#include "base/metrics.h"
#include "base/rng.h"
#include "base/svc.h"
#include "base/thread.h"
#include "gateway/http/address_counts.h"
#include "gateway/http/connections.h"
#include "gateway/http/handshakes.h"
#include "gateway/http/http_watch.h"
#include "gateway/openai/openai_error.h"

#define TICK_MS 100
#define CLOSED_READ_US 500000 // time to read data that a client sent before it closed
#define RESERVE 32            // connections in addition to max_connections
#define RESERVE_OF_ADDRESS (RESERVE / 2)
#define RESERVE_US 2000000 // time for the request of a connection of the reserve
#define OTHER_FDS 64       // descriptors for all but connections
#define END_AGAIN_US 10000 // shut down again: an accepted connection may be added late
#define TAKE_MAX 64        // connections accepted before other events are handled
/* Per second: new connections of addresses with many that end another one. A place is searched for
 * among all connections, and what libmicrohttpd does for one takes 0.1 ms. OWN: of each address,
 * MAX: of all together in addition. */
#define DISPLACE_OWN 10
#define DISPLACE_MAX 200
/* After this time without work on its answer, a request may lose its place to an address with fewer
 * connections. A verifier that hangs would otherwise hold the places of all who ask it. */
#define UNBEGUN_US 2000000

struct connection {
    int fd;
    ino_t socket;             // of fd, whose number another file may have later
    struct MHD_Connection *c; // NULL: accepted, but not open yet
    struct address peer;
    bool is_proxied;             // the peer is a trusted proxy
    struct address_count *count; // of the peer, or of a proxy's client; NULL: none
    enum http_reserve reserve;
    bool ending; // shut down to free a place; no longer counted
    bool shakes; // its TLS handshake is not complete
    struct handshake handshake;
    enum connection_phase phase;
    int64_t since_us; // start of the phase
    bool used;        // has had a request
    bool hung_up;
    int64_t read_us; // since then a client that hung up has sent nothing that was read
    int n_unread;    // bytes at that time
    struct http_request *r;
    struct connection *prev, *next;
};

struct connections {
    struct http_options o;
    pthread_t watcher;
    bool watched;
    int epoll_fd, wake_fd;
    atomic_bool stopping;
    atomic_bool full; // new connections wait in the socket

    pthread_mutex_t listen_mu; // guards the fields below
    int listen_fd;             // -1: none
    connections_accept_fn *take;
    void *user;

    pthread_mutex_t mu;        // guards the fields below
    pthread_cond_t idle, none; // n_active, n_open are 0
    struct connection *all;
    struct connection **by_fd;
    size_t n_by_fd;
    unsigned n_active, n_open;     // n_open: accepted ones included
    unsigned n_reserved, n_ending; // parts of n_open
    struct address_counts counts;
    int64_t displace_us; // from when on any address with many may displace another connection

    struct handshakes *handshakes; // NULL: no TLS
    struct metric *refused;
    struct log_pace refusals;
};

/* ---- open connections ---- */

/* With the lock. */
static void drop_count(struct connections *s, struct connection *k)
{
    if (k->count && k->reserve)
        k->count->n_reserved--;
    else if (k->count)
        k->count->n--;
    address_counts_drop(&s->counts, TAKE(k->count));
}

/* With the lock. */
static void remove_connection(struct connections *s, struct connection *k)
{
    drop_count(s, k);
    s->n_ending -= k->ending;
    s->n_reserved -= k->reserve != HTTP_REGULAR;
    if (--s->n_open == 0)
        pthread_cond_broadcast(&s->none);
    if (k->prev)
        k->prev->next = k->next;
    else
        s->all = k->next;
    if (k->next)
        k->next->prev = k->prev;
    if ((size_t)k->fd < s->n_by_fd)
        s->by_fd[k->fd] = NULL;
    free(k);
}

/* Identifies the socket that a descriptor refers to; 0: the descriptor is closed. */
static ino_t socket_of(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && S_ISSOCK(st.st_mode) ? st.st_ino : 0;
}

/* libmicrohttpd says nothing when it has no memory to open an accepted connection, and closes it.
 * Its record would then hold a place for ever. */
static bool was_never_opened(const struct connection *k)
{
    return !k->c && socket_of(k->fd) != k->socket;
}

/* With the lock. NULL: no memory. */
static struct connection *add_connection(struct connections *s, int fd, const struct address *peer)
{
    struct connection *before = (size_t)fd < s->n_by_fd ? s->by_fd[fd] : NULL;
    if (before) // its socket was closed, since its number is used again
        remove_connection(s, before);
    struct connection *k = calloc(1, sizeof(*k));
    if (!k)
        return NULL;
    k->fd = fd;
    k->socket = socket_of(fd);
    k->peer = *peer;
    k->is_proxied = address_in(peer, s->o.trusted, s->o.n_trusted);
    k->since_us = clock_us();
    k->next = s->all;
    if (k->next)
        k->next->prev = k;
    s->all = k;
    s->n_open++;
    if ((size_t)fd < s->n_by_fd)
        s->by_fd[fd] = k;
    return k;
}

struct connection *connections_open(struct connections *s, int fd, struct MHD_Connection *c)
{
    pthread_mutex_lock(&s->mu);
    struct connection *k = (size_t)fd < s->n_by_fd ? s->by_fd[fd] : NULL;
    if (k)
        k->c = c;
    pthread_mutex_unlock(&s->mu);
    struct epoll_event e = {.events = EPOLLRDHUP | EPOLLET, .data.fd = fd};
    epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &e); // the close of the socket removes it
    return k;
}

void connections_close(struct connections *s, struct connection *k)
{
    if (!k)
        return;
    pthread_mutex_lock(&s->mu);
    remove_connection(s, k);
    pthread_mutex_unlock(&s->mu);
    if (atomic_load(&s->full))
        eventfd_write(s->wake_fd, 1);
}

struct address connections_peer(const struct connection *k)
{
    return k ? k->peer : (struct address){0};
}

enum http_reserve connections_reserve(const struct connection *k)
{
    return k ? k->reserve : HTTP_REGULAR;
}

bool connections_set_client(struct connections *s, struct connection *k, const struct address *a)
{
    bool ok = true;
    if (!k || !k->is_proxied || k->reserve || !a->is_ip)
        return true;
    pthread_mutex_lock(&s->mu);
    drop_count(s, k);
    if (!address_in(a, s->o.trusted, s->o.n_trusted)) {
        struct address_count *count = address_counts_take(&s->counts, a);
        ok = count && count->n < s->o.max_per_ip;
        if (ok) {
            count->n++;
            k->count = count;
        } else {
            address_counts_drop(&s->counts, count);
        }
    }
    pthread_mutex_unlock(&s->mu);
    return ok;
}

void connections_set_phase(struct connections *s, struct connection *k, enum connection_phase phase,
                           struct http_request *r)
{
    if (!k)
        return;
    pthread_mutex_lock(&s->mu);
    s->n_active += (phase == CONNECTION_ANSWERING) - (k->phase == CONNECTION_ANSWERING);
    if (!s->n_active)
        pthread_cond_broadcast(&s->idle);
    bool report_hang_up = r && k->r != r && k->hung_up;
    k->phase = phase;
    k->since_us = clock_us();
    k->used = true;
    k->r = r;
    if (phase == CONNECTION_IDLE && k->is_proxied)
        drop_count(s, k);
    pthread_mutex_unlock(&s->mu);
    if (report_hang_up)
        http_watch_hung_up(r);
}

unsigned connections_n_active(struct connections *s)
{
    pthread_mutex_lock(&s->mu);
    unsigned n = s->n_active;
    pthread_mutex_unlock(&s->mu);
    return n;
}

unsigned connections_n_open(struct connections *s)
{
    pthread_mutex_lock(&s->mu);
    unsigned n = s->n_open;
    pthread_mutex_unlock(&s->mu);
    return n;
}

void connections_wait_idle(struct connections *s, int64_t timeout_us)
{
    struct timespec until = clock_at(clock_us() + timeout_us);
    pthread_mutex_lock(&s->mu);
    while (s->n_active && pthread_cond_timedwait(&s->idle, &s->mu, &until) != ETIMEDOUT)
        ;
    pthread_mutex_unlock(&s->mu);
}

void connections_abandon(struct connections *s)
{
    pthread_mutex_lock(&s->mu);
    for (struct connection *k = s->all; k; k = k->next)
        if (k->r)
            http_watch_abandon(k->r);
    pthread_mutex_unlock(&s->mu);
}

void connections_end(struct connections *s, int64_t timeout_us)
{
    int64_t until_us = clock_us() + timeout_us;
    if (s->handshakes)
        handshakes_stop(s->handshakes);
    pthread_mutex_lock(&s->mu);
    while (s->n_open && clock_us() < until_us) {
        for (struct connection *k = s->all, *next; k; k = next) {
            next = k->next;
            if (was_never_opened(k))
                remove_connection(s, k);
            else
                shutdown(k->fd, SHUT_RDWR);
        }
        struct timespec again = clock_at(clock_us() + END_AGAIN_US);
        pthread_cond_timedwait(&s->none, &s->mu, &again);
    }
    pthread_mutex_unlock(&s->mu);
}

/* ---- new connections ---- */

/* With the lock. The thread that reads from it closes it. */
static void shut_down(struct connections *s, struct connection *k)
{
    if (k->shakes)
        handshakes_end(s->handshakes, &k->handshake);
    shutdown(k->fd, SHUT_RDWR);
    if (k->c)
        http_watch_wake(k->c);
}

/* How gladly a connection is given up: greater is sooner; 0: never. */
static int rank(const struct connection *k)
{
    if (k->ending || k->reserve || (!k->c && !k->shakes))
        return 0;
    if (k->shakes)
        return 5;
    if (k->phase == CONNECTION_ANSWERING) // gives_way() decides
        return k->r ? 1 : 0;
    return k->phase == CONNECTION_IDLE && k->used ? 4 : !k->r ? 3 : 2; // a body is on its way
}

/* The connections of its address. */
static unsigned n_of(const struct connection *k)
{
    return k->count ? k->count->n : 1;
}

static bool is_better_victim(const struct connection *a, const struct connection *b)
{
    unsigned n_a = n_of(a), n_b = b ? n_of(b) : 1;
    if (!b || n_a != n_b)
        return !b || n_a > n_b;
    return rank(a) != rank(b) ? rank(a) > rank(b) : rank(a) > 1 && a->since_us < b->since_us;
}

static bool gives_way(const struct connection *k, const struct connection *to, int64_t now_us)
{
    bool unbegun = now_us - k->since_us > UNBEGUN_US && n_of(k) > n_of(to);
    return k->phase != CONNECTION_ANSWERING || http_watch_gives_way(k->r, now_us, unbegun);
}

/* With the lock. Ends a connection for `to` whose request is not being worked on: of its address,
 * or of the address that holds most. The longest in its phase goes first; of those with a complete
 * request any, since each takes a lock to ask. false: there is none. */
static bool free_place(struct connections *s, const struct connection *to, bool of_address)
{
    struct connection *found = NULL;
    int64_t now_us = clock_us();
    for (struct connection *k = s->all; k; k = k->next)
        if ((!of_address || k->count == to->count) && rank(k) && is_better_victim(k, found) &&
            gives_way(k, to, now_us))
            found = k;
    if (!found)
        return false;
    drop_count(s, found);
    found->ending = true;
    s->n_ending++;
    shut_down(s, found);
    return true;
}

/* The next one of per_s per second, and as many together after a second without any. */
static bool is_in_rate(int64_t *next_us, unsigned per_s, int64_t now_us)
{
    int64_t second_ago_us = now_us - 1000000;
    if (*next_us > now_us)
        return false;
    *next_us = (*next_us > second_ago_us ? *next_us : second_ago_us) + 1000000 / per_s;
    return true;
}

/* With the lock. Whether k may end another connection. If its address has no more than an equal
 * share, it always may. */
static bool may_displace(struct connections *s, const struct connection *k, bool over_address)
{
    int64_t now_us = clock_us();
    bool has_many = k->count && k->count->n > s->o.max_connections / s->counts.n;
    if (!over_address && !has_many)
        return true;
    return is_in_rate(&k->count->displace_us, DISPLACE_OWN, now_us) ||
           is_in_rate(&s->displace_us, DISPLACE_MAX, now_us);
}

/* With the lock. false: the connection gets no place. */
static bool admit_connection(struct connections *s, struct connection *k)
{
    if (k->peer.is_ip && !k->is_proxied) {
        if (!(k->count = address_counts_take(&s->counts, &k->peer)))
            return false;
        k->count->n++;
    }
    bool over_address = k->count && k->count->n > s->o.max_per_ip;
    bool over_all = s->n_open - s->n_ending - s->n_reserved > s->o.max_connections;
    if (!over_address && !over_all)
        return true;
    if (!may_displace(s, k, over_address))
        return false;
    if (free_place(s, k, over_address))
        return true;
    if (s->n_reserved == RESERVE || (k->count && k->count->n_reserved == RESERVE_OF_ADDRESS))
        return false;
    s->n_reserved++;
    if (k->count) {
        k->count->n--;
        k->count->n_reserved++;
    }
    k->reserve = over_address ? HTTP_ADDRESS_FULL : HTTP_ALL_FULL;
    return true;
}

static void count_refusal(struct connections *s)
{
    metrics_add(s->refused, 1);
    unsigned n = log_pace_due(&s->refusals, clock_us());
    if (n)
        log_warn("connections refused n=%u: all places are in use (max_connections, "
                 "max_connections_per_ip)",
                 n);
}

/* With listen_mu. session: NULL without TLS. */
static void pass_on(struct connections *s, struct connection *k, const struct sockaddr *a,
                    socklen_t len, struct http_tls_session *session)
{
    const int fd = k->fd;
    if (s->take(s->user, fd, a, len, session))
        return;
    pthread_mutex_lock(&s->mu);
    if (s->by_fd[fd] == k) // else the watcher has seen that the socket is closed
        remove_connection(s, k);
    pthread_mutex_unlock(&s->mu);
}

/* Also when the socket no longer listens: it was accepted. */
static void on_handshake(void *user, void *client, struct http_tls_session *session)
{
    struct connections *s = user;
    struct connection *k = client;
    struct sockaddr_storage a = {0}; // no longer known if the client has hung up
    socklen_t len = sizeof(a);
    getpeername(k->fd, (struct sockaddr *)&a, &len);
    /* Acknowledges the end of the handshake. With TLS 1.3 the server sends nothing after it, and a
     * client with Nagle's algorithm would keep its first request back for 40 ms. */
    setsockopt(k->fd, IPPROTO_TCP, TCP_QUICKACK, &(int){1}, sizeof(int));
    pthread_mutex_lock(&s->listen_mu);
    pthread_mutex_lock(&s->mu);
    k->shakes = false;
    k->since_us = clock_us();
    pthread_mutex_unlock(&s->mu);
    pass_on(s, k, (struct sockaddr *)&a, len, session);
    pthread_mutex_unlock(&s->listen_mu);
}

static void on_no_handshake(void *user, void *client)
{
    struct connection *k = client;
    int fd = k->fd;
    connections_close(user, k);
    close(fd);
}

/* The connection is known before libmicrohttpd opens it, so a burst is counted, too. */
static void admit(struct connections *s, int fd, const struct sockaddr *a, socklen_t len)
{
    struct address peer = address_of(a, len);
    pthread_mutex_lock(&s->mu);
    struct connection *k = add_connection(s, fd, &peer);
    bool ok = k && admit_connection(s, k);
    if (ok)
        k->shakes = s->handshakes != NULL;
    else if (k)
        remove_connection(s, k);
    pthread_mutex_unlock(&s->mu);
    if (!ok) {
        close(fd);
        count_refusal(s);
    } else if (!s->handshakes) {
        pass_on(s, k, a, len, NULL);
    } else if (handshakes_add(s->handshakes, &k->handshake, fd, &peer, k) < 0) {
        on_no_handshake(s, k);
    }
}

/* With listen_mu. */
static void set_full(struct connections *s, bool full)
{
    struct epoll_event e = {.events = full ? 0 : EPOLLIN, .data.fd = s->listen_fd};
    if (s->listen_fd >= 0 && atomic_exchange(&s->full, full) != full)
        epoll_ctl(s->epoll_fd, EPOLL_CTL_MOD, s->listen_fd, &e);
}

/* When the reserve is full, too, connections wait in the socket until one closes, or until the next
 * tick. */
static void accept_some(struct connections *s)
{
    unsigned n_open = connections_n_open(s), max = s->o.max_connections + RESERVE;
    unsigned n_free = n_open < max ? max - n_open : 0;
    bool full = !n_free;
    pthread_mutex_lock(&s->listen_mu);
    for (unsigned i = 0; i < n_free && i < TAKE_MAX && s->listen_fd >= 0; i++) {
        struct sockaddr_storage a;
        socklen_t len = sizeof(a);
        int fd = accept4(s->listen_fd, (struct sockaddr *)&a, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            full = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
            break;
        }
        admit(s, fd, (struct sockaddr *)&a, len);
    }
    set_full(s, full);
    pthread_mutex_unlock(&s->listen_mu);
}

static void listen_again(struct connections *s)
{
    pthread_mutex_lock(&s->listen_mu);
    set_full(s, false);
    pthread_mutex_unlock(&s->listen_mu);
}

void connections_listen(struct connections *s, int fd, connections_accept_fn *take, void *user)
{
    struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
    pthread_mutex_lock(&s->listen_mu);
    s->listen_fd = fd;
    s->take = take;
    s->user = user;
    epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &e);
    pthread_mutex_unlock(&s->listen_mu);
}

void connections_unlisten(struct connections *s)
{
    pthread_mutex_lock(&s->listen_mu);
    epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, s->listen_fd, NULL); // a new process may share it
    close(s->listen_fd);
    s->listen_fd = -1;
    pthread_mutex_unlock(&s->listen_mu);
}

/* ---- the watcher ---- */

/* The request whose client has closed, or NULL. The caller owns the reference. */
static struct http_request *find_hung_up_request(struct connections *s, int fd)
{
    struct http_request *r = NULL;
    struct pollfd p = {fd, POLLRDHUP, 0};
    pthread_mutex_lock(&s->mu);
    struct connection *k = (size_t)fd < s->n_by_fd ? s->by_fd[fd] : NULL;
    bool hung_up = k && poll(&p, 1, 0) == 1 && p.revents; // fd may already be another connection
    if (hung_up) {
        k->hung_up = true;
        k->read_us = clock_us();
        r = k->r ? http_ref(k->r) : NULL;
    }
    pthread_mutex_unlock(&s->mu);
    return r;
}

/* Answers 408. A connection that is idle after a request is closed without an answer. */
static void time_out(struct connections *s, struct connection *k, int64_t limit_us)
{
    bool can_answer = !s->o.certs && !(k->phase == CONNECTION_IDLE && k->used);
    char text[FAIL_TEXT_MAX];
    struct buf body, head;
    buf_init(&body, 4096);
    buf_init(&head, 4096);
    snprintf(text, sizeof(text), "the request did not arrive within %g s", (double)limit_us / 1e6);
    openai_error(&body, 408, text, "");
    buf_printf(&head,
               "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n"
               "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
               body.len, body.data);
    if (can_answer)
        (void)!send(k->fd, head.data, head.len, MSG_DONTWAIT | MSG_NOSIGNAL);
    shut_down(s, k);
    buf_done(&head);
    buf_done(&body);
}

/* Whether a client that hung up has sent nothing more: all its bytes were read, or libmicrohttpd no
 * longer reads them. */
static bool is_silent(struct connection *k, int64_t now_us)
{
    int n = 0;
    if (ioctl(k->fd, FIONREAD, &n) < 0 || n == k->n_unread)
        return now_us - k->read_us > CLOSED_READ_US;
    k->n_unread = n;
    k->read_us = now_us;
    return false;
}

static void check_connection(struct connections *s, struct connection *k, int64_t now_us)
{
    int64_t age_us = now_us - k->since_us;
    bool idle = k->phase == CONNECTION_IDLE && k->used;
    int64_t limit_us = idle ? s->o.idle_us : s->o.request_us;
    if (k->reserve && limit_us > RESERVE_US)
        limit_us = RESERVE_US;
    if (was_never_opened(k))
        remove_connection(s, k);
    else if (!k->c && !k->shakes)
        return; // libmicrohttpd will open it
    else if (k->ending)
        shut_down(s, k); // in each tick until it is closed
    else if (k->phase != CONNECTION_ANSWERING && age_us > limit_us)
        time_out(s, k, limit_us);
    else if (k->phase != CONNECTION_ANSWERING && k->hung_up && age_us > CLOSED_READ_US &&
             is_silent(k, now_us))
        shut_down(s, k); // no answer is due
    else if (k->phase == CONNECTION_ANSWERING && k->r && http_watch_tick(k->r, now_us))
        shutdown(k->fd, SHUT_RDWR);
}

static bool listens_on(struct connections *s, int fd)
{
    pthread_mutex_lock(&s->listen_mu);
    bool is = fd == s->listen_fd;
    pthread_mutex_unlock(&s->listen_mu);
    return is;
}

static void handle_event(struct connections *s, int fd)
{
    eventfd_t n;
    if (fd == s->wake_fd) {
        eventfd_read(fd, &n);
        listen_again(s);
    } else if (listens_on(s, fd)) {
        accept_some(s);
    } else {
        struct http_request *r = find_hung_up_request(s, fd);
        if (r)
            http_watch_hung_up(r);
        http_unref(r);
    }
}

static void *watcher_main(void *arg)
{
    struct connections *s = arg;
    struct epoll_event events[64];
    int64_t tick_us = 0;
    while (!atomic_load(&s->stopping)) {
        svc_awake();
        int n = epoll_wait(s->epoll_fd, events, (int)ARRAY_LEN(events), TICK_MS);
        for (int i = 0; i < n; i++)
            handle_event(s, events[i].data.fd);
        int64_t now_us = clock_us();
        if (now_us - tick_us < TICK_MS * 1000)
            continue;
        listen_again(s);
        pthread_mutex_lock(&s->mu);
        for (struct connection *k = s->all, *next; k; k = next) {
            next = k->next;
            check_connection(s, k, now_us);
        }
        pthread_mutex_unlock(&s->mu);
        tick_us = clock_us(); // others get the lock, however long it took
    }
    svc_asleep();
    return NULL;
}

/* ---- start and end ---- */

/* Without a free descriptor the reserve could not be accepted either. */
static void limit_connections(struct connections *s, rlim_t n_files)
{
    rlim_t most = n_files > RESERVE + OTHER_FDS + 1 ? n_files - RESERVE - OTHER_FDS : 1;
    if (s->o.max_connections > most) {
        log_warn("max_connections lowered to the limit of open files max_connections=%u files=%llu",
                 (unsigned)most, (unsigned long long)n_files);
        s->o.max_connections = (unsigned)most;
    }
    if (!s->o.max_per_ip)
        s->o.max_per_ip = s->o.max_connections / 2 + s->o.max_connections % 2;
}

int connections_new(const struct http_options *o, struct connections **ret)
{
    struct rlimit files = {1024, 1024};
    struct connections *s = calloc(1, sizeof(*s));
    if (!s)
        return fail(-ENOMEM, "http: no memory");
    clock_cond_init(&s->idle);
    clock_cond_init(&s->none);
    pthread_mutex_init(&s->mu, NULL);
    pthread_mutex_init(&s->listen_mu, NULL);
    s->listen_fd = -1;
    s->o = *o;
    s->counts.secret = rng_secret();
    s->refused =
        metrics_counter("tandem_gateway_connections_refused_total",
                        "Connections closed without an answer: all places were in use.", NULL);
    getrlimit(RLIMIT_NOFILE, &files);
    limit_connections(s, files.rlim_cur);
    s->n_by_fd = files.rlim_cur < (1 << 20) ? files.rlim_cur : 1 << 20;
    s->by_fd = calloc(s->n_by_fd, sizeof(struct connection *));
    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event e = {.events = EPOLLIN, .data.fd = s->wake_fd};
    s->watched = s->by_fd && s->epoll_fd >= 0 && s->wake_fd >= 0 &&
                 epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, s->wake_fd, &e) == 0 &&
                 thread_start(watcher_main, s, 0, &s->watcher) == 0;
    int rc = s->watched ? 0 : fail(-ENOMEM, "http: cannot start the watcher");
    if (rc == 0 && o->certs)
        rc = handshakes_new(on_handshake, on_no_handshake, s, &s->handshakes);
    if (rc < 0) {
        connections_free(s);
        return rc;
    }
    *ret = s;
    return 0;
}

void connections_stop(struct connections *s)
{
    if (!s->watched)
        return;
    atomic_store(&s->stopping, true);
    eventfd_write(s->wake_fd, 1);
    pthread_join(s->watcher, NULL);
    s->watched = false;
}

void connections_free(struct connections *s)
{
    if (!s)
        return;
    connections_stop(s);
    handshakes_free(s->handshakes);
    close(s->epoll_fd); // -1 has no effect
    close(s->wake_fd);
    pthread_cond_destroy(&s->idle);
    pthread_cond_destroy(&s->none);
    pthread_mutex_destroy(&s->mu);
    pthread_mutex_destroy(&s->listen_mu);
    free(s->by_fd);
    free(s);
}

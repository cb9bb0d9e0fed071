/* relay.c - one thread that polls a listening socket and the two ends of each connection. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>
#include "lib/lib.h"
#include "base/clock.h"
#include "lib/rigs/relay.h"

#define LINKS_MAX 16
#define CHUNK_MAX 65536
#define HELD_MAX (8 << 20) // bytes in one direction

struct chunk {
    struct chunk *next;
    int64_t due_us;
    size_t len, sent;
    uint8_t data[];
};

/* One direction of a connection. */
struct way {
    int from, to;
    struct chunk *first, **last;
    size_t n_held;
    bool ended;    // the sender has closed
    bool shut_out; // the close has been passed on
};

struct link {
    bool open;
    struct way ways[2];
};

struct relay {
    int host, listener, wake;
    struct sockaddr_in to;
    char target[RELAY_TARGET_MAX];
    atomic_uint delay_us;
    atomic_bool is_cut, is_stalled, stop;
    struct link links[LINKS_MAX];
    pthread_t thread;
};

static void must(int r, const char *what)
{
    if (r < 0)
        fail_msg("%s: %s", what, strerror(errno));
}

/* ---- hosts ---- */

int host_ours(void)
{
    int host = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    must(host, "a network namespace");
    return host;
}

void host_drop(int host)
{
    if (host != HOST_NONE)
        close(host);
}

static void raise_loopback(void)
{
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct ifreq lo = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    must(ioctl(fd, SIOCSIFFLAGS, &lo), "raising a loopback");
    close(fd);
}

int host_new(void)
{
    int ours = host_ours();
    bool may = unshare(CLONE_NEWNET) == 0;
    if (!may && unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0) { // a second one, to return to
        host_drop(ours);
        raise_loopback();
        ours = host_ours();
        may = unshare(CLONE_NEWNET) == 0;
    }
    if (!may) {
        printf("skipped: network namespaces are not permitted here (%s); the proposer listens in "
               "ours\n",
               strerror(errno));
        host_drop(ours);
        return HOST_NONE;
    }
    raise_loopback();
    int host = host_ours();
    host_enter(ours);
    host_drop(ours);
    return host;
}

void host_enter(int host)
{
    if (host != HOST_NONE)
        must(setns(host, CLONE_NEWNET), "entering a network namespace");
}

static int listen_here(struct sockaddr_in *ret_at)
{
    socklen_t len = sizeof(*ret_at);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    *ret_at =
        (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    must(bind(fd, (struct sockaddr *)ret_at, sizeof(*ret_at)), "bind");
    must(listen(fd, LINKS_MAX), "listen");
    must(getsockname(fd, (struct sockaddr *)ret_at, &len), "getsockname");
    return fd;
}

static void print_address(const struct sockaddr_in *at, char ret[RELAY_TARGET_MAX])
{
    snprintf(ret, RELAY_TARGET_MAX, "127.0.0.1:%u", ntohs(at->sin_port));
}

void host_address(int host, char ret[RELAY_TARGET_MAX])
{
    struct sockaddr_in at;
    int ours = host_ours();
    host_enter(host);
    close(listen_here(&at));
    host_enter(ours);
    host_drop(ours);
    print_address(&at, ret);
}

/* ---- connections ---- */

static void set_nonblocking_nodelay(int fd)
{
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
}

static void drop_chunk(struct way *w)
{
    struct chunk *c = w->first;
    w->first = c->next;
    if (!w->first)
        w->last = &w->first;
    w->n_held -= c->len;
    free(c);
}

static void link_close(struct link *l)
{
    for (int i = 0; i < 2; i++)
        while (l->ways[i].first)
            drop_chunk(&l->ways[i]);
    close(l->ways[0].from);
    close(l->ways[0].to);
    l->open = false;
}

static void take_connection(struct relay *r)
{
    struct link *l = r->links;
    int near = accept4(r->listener, NULL, NULL, SOCK_CLOEXEC);
    if (near < 0)
        return;
    while (l < r->links + LINKS_MAX && l->open)
        l++;
    int far = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (l == r->links + LINKS_MAX || atomic_load(&r->is_cut) ||
        connect(far, (struct sockaddr *)&r->to, sizeof(r->to)) < 0) {
        close(near);
        close(far);
        return;
    }
    set_nonblocking_nodelay(near);
    set_nonblocking_nodelay(far);
    *l =
        (struct link){.open = true, .ways = {{.from = near, .to = far}, {.from = far, .to = near}}};
    for (int i = 0; i < 2; i++)
        l->ways[i].last = &l->ways[i].first;
}

/* Reads a chunk. False: the connection is broken. */
static bool read_chunk(struct relay *r, struct way *w)
{
    static uint8_t data[CHUNK_MAX]; // used by the relay's thread only
    ssize_t n = recv(w->from, data, sizeof(data), 0);
    if (n < 0)
        return errno == EAGAIN;
    w->ended = n == 0;
    if (w->ended)
        return true;
    struct chunk *c = malloc(sizeof(*c) + (size_t)n);
    *c = (struct chunk){.due_us = clock_us() + atomic_load(&r->delay_us), .len = (size_t)n};
    memcpy(c->data, data, (size_t)n);
    *w->last = c;
    w->last = &c->next;
    w->n_held += c->len;
    return true;
}

/* Sends the chunks that are due. False: the connection is broken. */
static bool send_due_chunks(struct way *w, int64_t now_us)
{
    while (w->first && w->first->due_us <= now_us) {
        struct chunk *c = w->first;
        ssize_t n = send(w->to, c->data + c->sent, c->len - c->sent, MSG_NOSIGNAL);
        if (n < 0)
            return errno == EAGAIN;
        c->sent += (size_t)n;
        if (c->sent == c->len)
            drop_chunk(w);
    }
    if (w->ended && !w->first && !w->shut_out) {
        shutdown(w->to, SHUT_WR);
        w->shut_out = true;
    }
    return true;
}

/* ---- the thread ---- */

/* Lists the descriptors to poll. Lowers *due_us to the time of the next chunk. */
static unsigned list_ways(struct relay *r, struct pollfd *fds, int64_t *due_us)
{
    unsigned n = 0;
    fds[n++] = (struct pollfd){.fd = r->wake, .events = POLLIN};
    fds[n++] = (struct pollfd){.fd = r->listener, .events = POLLIN};
    int64_t now_us = clock_us();
    for (unsigned i = 0; i < 2 * LINKS_MAX && !atomic_load(&r->is_stalled); i++) {
        const struct way *w = &r->links[i / 2].ways[i % 2];
        if (!r->links[i / 2].open)
            continue;
        bool due = w->first && w->first->due_us <= now_us;
        if (w->first && !due && w->first->due_us < *due_us)
            *due_us = w->first->due_us;
        fds[n++] = (struct pollfd){.fd = w->ended || w->n_held > HELD_MAX ? -1 : w->from,
                                   .events = POLLIN};
        fds[n++] = (struct pollfd){.fd = due ? w->to : -1, .events = POLLOUT};
    }
    return n;
}

static void serve_links(struct relay *r)
{
    for (struct link *l = r->links; l < r->links + LINKS_MAX; l++) {
        bool good = !atomic_load(&r->is_cut);
        for (int i = 0; l->open && good && i < 2; i++) {
            struct way *w = &l->ways[i];
            good = (w->ended || w->n_held > HELD_MAX || read_chunk(r, w)) &&
                   send_due_chunks(w, clock_us());
        }
        if (l->open && (!good || (l->ways[0].shut_out && l->ways[1].shut_out)))
            link_close(l);
    }
}

static void *relay_main(void *arg)
{
    struct relay *r = arg;
    struct pollfd fds[2 + 4 * LINKS_MAX];
    uint64_t woken;
    host_enter(r->host);
    prctl(PR_SET_TIMERSLACK, 1UL);
    while (!atomic_load(&r->stop)) {
        int64_t due_us = INT64_MAX;
        unsigned n = list_ways(r, fds, &due_us);
        int64_t left_us = due_us == INT64_MAX ? 0 : due_us - clock_us();
        left_us = left_us > 0 ? left_us : 0;
        struct timespec left = {left_us / 1000000, left_us % 1000000 * 1000};
        ppoll(fds, n, due_us == INT64_MAX ? NULL : &left, NULL);
        if (fds[0].revents && read(r->wake, &woken, sizeof(woken)) < 0)
            continue;
        if (fds[1].revents)
            take_connection(r);
        if (!atomic_load(&r->is_stalled))
            serve_links(r);
    }
    return NULL;
}

/* ---- public functions ---- */

struct relay *relay_start(int host, const char *address)
{
    struct relay *r = calloc(1, sizeof(*r));
    struct sockaddr_in at;
    unsigned port;
    assert_int_equal(sscanf(address, "127.0.0.1:%u", &port), 1);
    r->to = (struct sockaddr_in){.sin_family = AF_INET,
                                 .sin_port = htons((uint16_t)port),
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    r->host = host;
    r->listener = listen_here(&at);
    print_address(&at, r->target);
    r->wake = eventfd(0, EFD_CLOEXEC);
    must(r->wake, "eventfd");
    if (pthread_create(&r->thread, NULL, relay_main, r))
        fail_msg("no thread for a relay");
    return r;
}

static void wake(struct relay *r)
{
    must((int)write(r->wake, &(uint64_t){1}, sizeof(uint64_t)), "eventfd");
}

void relay_stop(struct relay *r)
{
    if (!r)
        return;
    atomic_store(&r->stop, true);
    wake(r);
    pthread_join(r->thread, NULL);
    for (struct link *l = r->links; l < r->links + LINKS_MAX; l++)
        if (l->open)
            link_close(l);
    close(r->listener);
    close(r->wake);
    free(r);
}

const char *relay_target(const struct relay *r)
{
    return r->target;
}

void relay_delay(struct relay *r, unsigned us)
{
    atomic_store(&r->delay_us, us);
}

void relay_cut(struct relay *r, bool is_cut)
{
    atomic_store(&r->is_cut, is_cut);
    wake(r);
}

void relay_stall(struct relay *r, bool is_stalled)
{
    atomic_store(&r->is_stalled, is_stalled);
    wake(r);
}

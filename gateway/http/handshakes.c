/* handshakes.c - a loop over the sockets of unfinished handshakes. */
#include "gateway/http/handshakes.h"
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#include "base/err.h"
#include "base/rng.h"
#include "base/thread.h"
#include "gateway/http/handshake_turns.h"
#include "gateway/http/http_tls.h"

#define NICE 10 // a tenth of a thread's weight: the machine's models come first

struct handshakes {
    handshakes_done_fn *done;
    handshakes_failed_fn *failed;
    void *user;
    pthread_t thread;
    bool runs;
    atomic_bool stopping;
    int epoll_fd, wake_fd;
    pthread_mutex_t mu; // guards `all`
    struct handshake *all;
    struct handshake_turns turns;
};

/* One event, then none until the next call. */
static int wait_for(struct handshakes *h, struct handshake *k, int op, uint32_t event)
{
    struct epoll_event e = {.events = event | EPOLLRDHUP | EPOLLONESHOT, .data.ptr = k};
    return epoll_ctl(h->epoll_fd, op, k->fd, &e);
}

static void take_out(struct handshakes *h, struct handshake *k)
{
    pthread_mutex_lock(&h->mu);
    *(k->prev ? &k->prev->next : &h->all) = k->next;
    if (k->next)
        k->next->prev = k->prev;
    pthread_mutex_unlock(&h->mu);
}

int handshakes_add(struct handshakes *h, struct handshake *k, int fd, const struct address *a,
                   void *client)
{
    k->fd = fd;
    k->peer = *a;
    k->client = client;
    pthread_mutex_lock(&h->mu);
    k->next = h->all;
    if (k->next)
        k->next->prev = k;
    h->all = k;
    int rc = wait_for(h, k, EPOLL_CTL_ADD, EPOLLIN); // with the lock: an event may follow
    pthread_mutex_unlock(&h->mu);
    if (rc == 0)
        return 0;
    take_out(h, k);
    return fail(-ENOMEM, "http: no memory to watch a connection");
}

void handshakes_end(struct handshakes *h, struct handshake *k)
{
    if (!atomic_exchange(&k->ends, true))
        eventfd_write(h->wake_fd, 1);
}

/* ---- the thread ---- */

/* Afterwards k may be gone. */
static void end(struct handshakes *h, struct handshake *k, bool is_complete)
{
    epoll_ctl(h->epoll_fd, EPOLL_CTL_DEL, k->fd, NULL);
    take_out(h, k);
    if (is_complete) {
        h->done(h->user, k->client, k->session);
    } else {
        http_tls_session_free(k->session);
        h->failed(h->user, k->client);
    }
}

static int64_t cpu_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * INT64_C(1000000) + t.tv_nsec / 1000;
}

/* Until more bytes are needed. */
static enum http_tls_step proceed(struct handshake *k)
{
    if (!k->session && http_tls_session_new(k->fd, &k->session) < 0)
        return HTTP_TLS_FAILED;
    return http_tls_proceed(k->session);
}

static void take_turn(struct handshakes *h, struct handshake *k)
{
    int64_t before_us = cpu_us();
    enum http_tls_step step = proceed(k);
    handshake_turns_end(&h->turns, &k->turn, cpu_us() - before_us);
    bool waits = step == HTTP_TLS_READS || step == HTTP_TLS_WRITES;
    if (waits && wait_for(h, k, EPOLL_CTL_MOD, step == HTTP_TLS_READS ? EPOLLIN : EPOLLOUT) == 0)
        return;
    end(h, k, step == HTTP_TLS_COMPLETE);
}

/* Those that shall end. */
static struct handshake *find_ending(struct handshakes *h)
{
    struct handshake *found = NULL;
    pthread_mutex_lock(&h->mu);
    for (struct handshake *k = h->all; k; k = k->next)
        if (atomic_load(&k->ends)) {
            k->next_ending = found;
            found = k;
        }
    pthread_mutex_unlock(&h->mu);
    return found;
}

static void end_some(struct handshakes *h)
{
    eventfd_t n;
    eventfd_read(h->wake_fd, &n);
    for (struct handshake *k = find_ending(h), *next; k; k = next) {
        next = k->next_ending;
        handshake_turns_leave(&h->turns, &k->turn);
        end(h, k, false);
    }
}

static void collect_events(struct handshakes *h)
{
    struct epoll_event events[64];
    bool is_woken = false;
    int n = epoll_wait(h->epoll_fd, events, ARRAY_LEN(events), h->turns.first ? 0 : -1);
    for (int i = 0; i < n; i++) {
        struct handshake *k = events[i].data.ptr;
        is_woken |= !k;
        if (k)
            handshake_turns_enter(&h->turns, &k->turn, &k->peer);
    }
    if (is_woken)
        end_some(h); // after the events, some of which may be theirs
}

static void *run(void *arg)
{
    struct handshakes *h = arg;
    setpriority(PRIO_PROCESS, 0, NICE); // of this thread
    while (!atomic_load(&h->stopping)) {
        collect_events(h);
        struct handshake *k = (struct handshake *)handshake_turns_next(&h->turns);
        if (k)
            take_turn(h, k);
    }
    return NULL;
}

/* ---- start and end ---- */

int handshakes_new(handshakes_done_fn *done, handshakes_failed_fn *failed, void *user,
                   struct handshakes **ret)
{
    struct handshakes *h = calloc(1, sizeof(*h));
    if (!h)
        return fail(-ENOMEM, "http: no memory");
    pthread_mutex_init(&h->mu, NULL);
    h->done = done;
    h->failed = failed;
    h->user = user;
    h->turns.secret = rng_secret();
    h->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    h->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event e = {.events = EPOLLIN};
    h->runs = h->epoll_fd >= 0 && h->wake_fd >= 0 &&
              epoll_ctl(h->epoll_fd, EPOLL_CTL_ADD, h->wake_fd, &e) == 0 &&
              thread_start(run, h, 0, &h->thread) == 0;
    if (!h->runs) {
        handshakes_free(h);
        return fail(-ENOMEM, "http: cannot start the thread for TLS handshakes");
    }
    *ret = h;
    return 0;
}

void handshakes_stop(struct handshakes *h)
{
    if (!h->runs)
        return;
    atomic_store(&h->stopping, true);
    eventfd_write(h->wake_fd, 1);
    pthread_join(h->thread, NULL);
    h->runs = false;
    while (h->all)
        end(h, h->all, false);
}

void handshakes_free(struct handshakes *h)
{
    if (!h)
        return;
    handshakes_stop(h);
    close(h->epoll_fd); // -1 has no effect
    close(h->wake_fd);
    pthread_mutex_destroy(&h->mu);
    free(h);
}

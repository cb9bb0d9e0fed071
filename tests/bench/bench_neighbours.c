/* bench_neighbours.c - what the worst tool schemas and outputs add to the gaps of other streams.
 *
 *   bench_neighbours [--turns 6] [--seconds 20]
 *
 * A gateway serves 64 streams of a verifier that follows a script. Half of them are measured: one
 * token of a word every 20 ms. The other half takes turns:
 * - plain: the same stream;
 * - worst: requests with large schemas, and outputs that are expensive to parse. Their tokens have
 *   4 KiB, one every 80 ms, so that long calls end often.
 * A gap is the time between two tokens of a measured stream. The output is:
 * - the median, the 99th percentile and the maximum of the gaps, per turn;
 * - the mean difference of the pairs, with its standard error;
 * - the longest time between two pings of the gateway's watchdog. */
#include <getopt.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/mem.h"
#include "lib/clients/costly.h"
#include "lib/clients/http_client.h"
#include "lib/fakes/fake_verifier.h"
#include "lib/lib.h"
#include "lib/rigs/gateway.h"
#include "lib/rigs/manager.h"
#include "lib/rigs/services.h"

#define N_MEASURED 32
#define N_OTHERS 32
#define PACE_MS 20
#define WORST_TOKEN_BYTES 4096
#define WORST_PACE_MS 80
#define WATCHDOG_US "1600000" // the gateway pings after an eighth of it
#define STAGGER_US 40000      // between their starts, so that their calls do not end together
#define PING_MS 200
#define MAX_TURNS 100
#define SETTLE_US 500000 // before the other half starts
#define MAX_GAPS (N_MEASURED * 100000)

/* ---- pings ---- */

static atomic_llong worst_ping_us;
static atomic_bool over;

/* Reads the notifications of programs that are started from then on. */
static void *read_pings(void *arg)
{
    int64_t before_us = 0;
    for (; !atomic_load(&over); usleep(1000)) {
        if (!strstr(manager_message(), "WATCHDOG=1"))
            continue;
        int64_t now_us = clock_us();
        if (before_us && now_us - before_us > atomic_load(&worst_ping_us))
            atomic_store(&worst_ping_us, now_us - before_us);
        before_us = now_us;
    }
    return arg;
}

/* ---- streams ---- */

struct stream {
    struct http_client http;
    char last; // byte read
    int64_t token_us;
};

static void begin(struct stream *s, unsigned port, const char *path, const char *body)
{
    *s = (struct stream){.http = http_client_open(port)};
    http_client_print(&s->http, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n", path,
                      strlen(body));
    http_client_send(&s->http, body, strlen(body));
}

static void begin_plain(struct stream *s, unsigned port)
{
    char body[80];
    snprintf(body, sizeof(body), "{\"prompt\":\"spell 4 %d d\",\"stream\":true}", PACE_MS);
    begin(s, port, "/v1/completions", body);
}

/* Whether the bytes complete an event. */
static bool completes_event(struct stream *s, const char *data, ssize_t n)
{
    bool any = false;
    for (ssize_t i = 0; i < n; i++) {
        any |= data[i] == '\n' && s->last == '\n';
        s->last = data[i];
    }
    return any;
}

/* Reads n streams until a time. gaps: NULL, or where the gaps after from_us go. */
static void read_until(struct stream *v, unsigned n, int64_t from_us, int64_t until_us,
                       double *gaps, size_t *ret_n)
{
    char data[1 << 16];
    struct epoll_event e[64] = {{0}};
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    for (unsigned i = 0; i < n; i++) {
        e[0] = (struct epoll_event){.events = EPOLLIN, .data.u32 = i};
        epoll_ctl(epoll, EPOLL_CTL_ADD, v[i].http.fd, e);
    }
    for (int64_t left; (left = until_us - clock_us()) > 0;) {
        int ready = epoll_wait(epoll, e, ARRAY_LEN(e), (int)(left / 1000) + 1);
        for (int i = 0; i < ready; i++) {
            struct stream *s = &v[e[i].data.u32];
            ssize_t got = recv(s->http.fd, data, sizeof(data), MSG_DONTWAIT);
            if (got == 0)
                fail_msg("a stream has ended: %.200s", data);
            if (!completes_event(s, data, got))
                continue;
            int64_t now_us = clock_us();
            if (gaps && s->token_us >= from_us && *ret_n < MAX_GAPS)
                gaps[(*ret_n)++] = (double)(now_us - s->token_us) / 1e3;
            s->token_us = now_us;
        }
    }
    close(epoll);
}

/* ---- turns ---- */

struct others {
    unsigned port;
    bool worst;
    int64_t until_us;
};

static void *run_others(void *arg)
{
    const struct others *o = arg;
    struct stream v[N_OTHERS];
    for (unsigned i = 0; i < N_OTHERS; i++, usleep(STAGGER_US)) {
        if (!o->worst) {
            begin_plain(&v[i], o->port);
            continue;
        }
        AUTO(mem_free)
        char *body = costly_body((char)('a' + i % COSTLY_N), WORST_TOKEN_BYTES, WORST_PACE_MS);
        begin(&v[i], o->port, "/v1/chat/completions", body);
    }
    read_until(v, N_OTHERS, 0, o->until_us, NULL, NULL);
    for (unsigned i = 0; i < N_OTHERS; i++) {
        if (!v[i].token_us)
            fail_msg("stream %u got no token", i);
        http_client_close(&v[i].http);
    }
    return NULL;
}

struct turn {
    double p50_ms, p99_ms, max_ms;
};

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static struct turn run_turn(unsigned port, bool worst, double seconds)
{
    static double gaps[MAX_GAPS];
    struct stream v[N_MEASURED];
    size_t n = 0;
    pthread_t thread;
    for (unsigned i = 0; i < N_MEASURED; i++)
        begin_plain(&v[i], port);
    int64_t from_us = clock_us() + SETTLE_US;
    read_until(v, N_MEASURED, 0, from_us, NULL, NULL);
    struct others o = {port, worst, from_us + (int64_t)(seconds * 1e6)};
    assert_int_equal(pthread_create(&thread, NULL, run_others, &o), 0);
    read_until(v, N_MEASURED, from_us, o.until_us, gaps, &n);
    pthread_join(thread, NULL);
    for (unsigned i = 0; i < N_MEASURED; i++)
        http_client_close(&v[i].http);
    if (n < 100)
        fail_msg("only %zu gaps", n);
    qsort(gaps, n, sizeof(*gaps), by_size);
    return (struct turn){gaps[n / 2], gaps[n - 1 - n / 100], gaps[n - 1]};
}

/* ---- report ---- */

static void report_difference(const char *name, const double *added, unsigned n)
{
    double sum = 0, squares = 0;
    for (unsigned i = 0; i < n; i++)
        sum += added[i];
    for (unsigned i = 0; i < n; i++)
        squares += (added[i] - sum / n) * (added[i] - sum / n);
    printf("%s: the worst adds %.2f +- %.2f ms\n", name, sum / n,
           n > 1 ? sqrt(squares / (n - 1) / n) : NAN);
}

static void run(struct fake_verifier *f, unsigned port, unsigned turns, double seconds)
{
    double p50[MAX_TURNS], p99[MAX_TURNS];
    printf("gaps of %d streams beside %d others, ms\n", N_MEASURED, N_OTHERS);
    printf("%-6s %-6s %10s %10s %10s\n", "turn", "others", "median", "p99", "max");
    for (unsigned i = 0; i < turns; i++) {
        struct turn t[2];
        for (unsigned k = 0; k < 2; k++) {
            bool worst = (i + k) % 2; // each kind is first in half of the pairs
            t[worst] = run_turn(port, worst, seconds);
            gateway_await_running(f, 0);
            printf("%-6u %-6s %10.2f %10.2f %10.2f\n", i + 1, worst ? "worst" : "plain",
                   t[worst].p50_ms, t[worst].p99_ms, t[worst].max_ms);
        }
        p50[i] = t[1].p50_ms - t[0].p50_ms;
        p99[i] = t[1].p99_ms - t[0].p99_ms;
    }
    report_difference("median gap", p50, turns);
    report_difference("p99 gap", p99, turns);
    printf("watchdog: a ping every %d ms, %.0f ms at most between two pings\n", PING_MS,
           (double)atomic_load(&worst_ping_us) / 1e3);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"turns", required_argument, NULL, 't'},
                                            {"seconds", required_argument, NULL, 's'},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    unsigned turns = 6, port;
    double seconds = 20; // a long text of the worst requests takes five
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (c == 't')
            turns = (unsigned)atoi(optarg);
        else if (c == 's')
            seconds = atof(optarg);
        else
            return printf("usage: bench_neighbours [--turns 6] [--seconds 20]\n"), c != 'h';
    }
    turns = turns < 1 ? 1 : turns > MAX_TURNS ? MAX_TURNS : turns;

    char address[128];
    snprintf(address, sizeof(address), "unix:%s/verifier.sock", service_dir());
    struct fake_verifier *f = fake_verifier_start(address);
    costly_outputs(f);
    fake_verifier_text(f, 'd', "word");
    pthread_t pings;
    assert_int_equal(manager_open(NULL), 0);
    setenv("WATCHDOG_USEC", WATCHDOG_US, 1);
    assert_int_equal(pthread_create(&pings, NULL, read_pings, NULL), 0);
    const char *more[] = {"--tool-format", "qwen-coder", NULL};
    struct child gateway = gateway_start(address, more, &port);
    run(f, port, turns, seconds);
    child_stop(&gateway);
    atomic_store(&over, true);
    pthread_join(pings, NULL);
    manager_close(NULL);
    fake_verifier_stop(f);
    return 0;
}

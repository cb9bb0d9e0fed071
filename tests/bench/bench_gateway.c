/* bench_gateway.c - the overhead of the gateway, with a verifier that answers without delay:
 * - time to the first byte, compared with the same call over gRPC directly;
 * - tokens per second through 64 streams;
 * - CPU time per token and memory per stream of 1,000 streams at the speed of a model.
 *
 *   bench_gateway [--reps 400] [--json FILE]
 *
 * The kinds of call are measured alternately, one call at a time, on a kept connection. The output
 * is the median and the 99th percentile. */
#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "base/mem.h"
#include "lib/rigs/child.h"
#include "lib/fakes/fake_verifier.h"
#include "lib/rigs/gateway.h"
#include "lib/clients/http_client.h"
#include "lib/lib.h"
#include "lib/rigs/services.h"
#include "rpc/rpc.h"

#define MAX_REPS 10000
#define N_STREAMS 64
#define STREAM_TOKENS 2000
#define N_FLOWING 1000
#define FLOW_MS 50 // between tokens of a stream
#define FLOW_S 3   // duration of the measurement

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ---- the kinds of call ---- */

struct bench {
    struct rpc_client *rpc;
    struct http_client http;
};

struct first {
    pthread_mutex_t mu;
    pthread_cond_t cv;
    double first_us; // 0: no message yet
    bool ended;
};

static void on_message(void *user, struct rpc_msg *msg)
{
    struct first *f = user;
    (void)msg;
    if (!f->first_us)
        f->first_us = now_us();
}

static void on_end(void *user, const struct rpc_status *status)
{
    struct first *f = user;
    (void)status;
    pthread_mutex_lock(&f->mu);
    f->ended = true;
    pthread_cond_signal(&f->cv);
    pthread_mutex_unlock(&f->mu);
}

static double direct(struct bench *b)
{
    static const struct rpc_events events = {.on_message = on_message, .on_end = on_end};
    Tandem__V1__GenerateRequest q = TANDEM__V1__GENERATE_REQUEST__INIT;
    struct first f = {.mu = PTHREAD_MUTEX_INITIALIZER, .cv = PTHREAD_COND_INITIALIZER};
    q.prompt_case = TANDEM__V1__GENERATE_REQUEST__PROMPT_TEXT;
    q.text = (ProtobufCBinaryData){5, (uint8_t *)(uintptr_t) "say 1"};
    double begun_us = now_us();
    struct rpc_stream *s =
        rpc_stream_new(b->rpc, "/tandem.v1.Verifier/Generate", NULL, &events, &f);
    rpc_stream_send(s, rpc_pack(&q.base));
    rpc_stream_close(s);
    pthread_mutex_lock(&f.mu);
    while (!f.ended)
        pthread_cond_wait(&f.cv, &f.mu);
    pthread_mutex_unlock(&f.mu);
    rpc_stream_free(s);
    return f.first_us - begun_us;
}

static double first_byte(struct bench *b, const char *path, const char *body)
{
    double begun_us = now_us();
    http_client_print(&b->http, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s",
                      path, strlen(body), body);
    assert_int_equal(http_client_read_head(&b->http, 10000), 200);
    char *event = http_client_event(&b->http, 10000, NULL);
    double first_us = now_us();
    for (; event; event = http_client_event(&b->http, 10000, NULL))
        free(event);
    return first_us - begun_us;
}

static double completion(struct bench *b)
{
    return first_byte(b, "/v1/completions", "{\"prompt\":\"say 1\",\"stream\":true}");
}

static double chat(struct bench *b)
{
    return first_byte(b, "/v1/chat/completions",
                      "{\"messages\":[{\"role\":\"user\",\"content\":\"say 1\"}],\"stream\":true}");
}

static double version(struct bench *b)
{
    double begun_us = now_us();
    http_client_print(&b->http, "GET /version HTTP/1.1\r\nHost: x\r\n\r\n");
    struct http_answer a = http_client_read(&b->http, 10000);
    assert_int_equal(a.status, 200);
    http_answer_done(&a);
    return now_us() - begun_us;
}

static const struct kind {
    const char *name, *what;
    double (*run)(struct bench *b);
} kinds[] = {
    {"grpc", "Generate over gRPC, no gateway", direct},
    {"version", "GET /version", version},
    {"completion", "completion through the gateway", completion},
    {"chat", "chat through the gateway (template)", chat},
};
#define N_KINDS ARRAY_LEN(kinds)

/* ---- many streams ---- */

static double tokens_per_s(unsigned port)
{
    struct http_client c[N_STREAMS];
    char body[64];
    int len =
        snprintf(body, sizeof(body), "{\"prompt\":\"say %d\",\"stream\":true}", STREAM_TOKENS);
    double begun_us = now_us();
    unsigned n = 0;
    for (unsigned i = 0; i < N_STREAMS; i++) {
        c[i] = http_client_open(port);
        http_client_print(
            &c[i], "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len,
            body);
    }
    for (unsigned i = 0; i < N_STREAMS; i++) {
        assert_int_equal(http_client_read_head(&c[i], 60000), 200);
        for (char *e; (e = http_client_event(&c[i], 60000, NULL)); free(e))
            n++;
        http_client_close(&c[i]);
    }
    if (n != N_STREAMS * (STREAM_TOKENS + 2)) // plus the finish reason and [DONE]
        fail_msg("%u events", n);
    return N_STREAMS * STREAM_TOKENS / ((now_us() - begun_us) / 1e6);
}

/* ---- streams that flow ---- */

struct flow {
    unsigned n;
    double tokens_per_s, cores, kib_per_stream;
};

/* CPU time of a process: user and system. */
static double cpu_s(pid_t pid)
{
    char path[64], line[1024] = "";
    unsigned long user = 0, kernel = 0;
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "re");
    if (!f || !fgets(line, sizeof(line), f) ||
        sscanf(strrchr(line, ')'), ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user,
               &kernel) != 2)
        fail_msg("%s cannot be read", path);
    fclose(f);
    return (double)(user + kernel) / (double)sysconf(_SC_CLK_TCK);
}

static double resident_kib(pid_t pid)
{
    char path[64];
    unsigned long pages = 0;
    snprintf(path, sizeof(path), "/proc/%d/statm", (int)pid);
    FILE *f = fopen(path, "re");
    if (!f || fscanf(f, "%*u %lu", &pages) != 1)
        fail_msg("%s cannot be read", path);
    fclose(f);
    return (double)pages * (double)sysconf(_SC_PAGESIZE) / 1024;
}

/* Reads from all streams until a time. Returns the number of events. last: the last byte of each
 * stream. */
static unsigned events_until(int epoll, int *fds, char *last, double until_us)
{
    static char data[1 << 16];
    struct epoll_event e[64];
    unsigned n = 0;
    for (double left; (left = until_us - now_us()) > 0;) {
        int ready = epoll_wait(epoll, e, ARRAY_LEN(e), (int)(left / 1e3) + 1);
        for (int i = 0; i < ready; i++) {
            unsigned at = e[i].data.u32;
            ssize_t got = recv(fds[at], data, sizeof(data), MSG_DONTWAIT);
            if (got == 0 || (got < 0 && errno != EAGAIN))
                fail_msg("stream %u has ended", at);
            for (ssize_t k = 0; k < got; k++) {
                n += data[k] == '\n' && last[at] == '\n';
                last[at] = data[k];
            }
        }
    }
    return n;
}

static struct flow flow(const char *verifier)
{
    static struct http_client c[N_FLOWING];
    static int fds[N_FLOWING];
    static char last[N_FLOWING];
    char body[64];
    unsigned port;
    struct child gateway = gateway_start(verifier, NULL, &port);
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    int len =
        snprintf(body, sizeof(body), "{\"prompt\":\"pace 100000 %d\",\"stream\":true}", FLOW_MS);
    double idle_kib = resident_kib(gateway.pid);
    for (unsigned i = 0; i < N_FLOWING; i++) {
        struct epoll_event e = {.events = EPOLLIN, .data.u32 = i};
        c[i] = http_client_open(port);
        fds[i] = c[i].fd;
        http_client_print(
            &c[i], "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len,
            body);
        epoll_ctl(epoll, EPOLL_CTL_ADD, fds[i], &e);
    }
    events_until(epoll, fds, last, now_us() + 2e6); // until all streams have started
    double begun_us = now_us(), begun_cpu_s = cpu_s(gateway.pid);
    unsigned n = events_until(epoll, fds, last, begun_us + FLOW_S * 1e6);
    double s = (now_us() - begun_us) / 1e6;
    struct flow f = {.n = N_FLOWING,
                     .tokens_per_s = n / s,
                     .cores = (cpu_s(gateway.pid) - begun_cpu_s) / s,
                     .kib_per_stream = (resident_kib(gateway.pid) - idle_kib) / N_FLOWING};
    for (unsigned i = 0; i < N_FLOWING; i++) {
        if (!last[i])
            fail_msg("stream %u did not start", i);
        http_client_close(&c[i]);
    }
    close(epoll);
    child_stop(&gateway);
    return f;
}

static void report_flow(const struct flow *f, json_t *all)
{
    double ms = f->cores * 1e3 / (f->tokens_per_s / 1e3);
    printf("%u streams of %d tokens/s: %.0f tokens/s, %.2f cores, so %.1f ms of CPU time per 1,000 "
           "tokens; %.1f KiB of memory per stream\n",
           f->n, 1000 / FLOW_MS, f->tokens_per_s, f->cores, ms, f->kib_per_stream);
    json_object_set_new(all, "flow",
                        json_pack("{s:i,s:f,s:f,s:f,s:f}", "streams", f->n, "tokens_per_s",
                                  f->tokens_per_s, "cores", f->cores, "cpu_ms_per_1000_tokens", ms,
                                  "kib_per_stream", f->kib_per_stream));
}

/* ---- report ---- */

static void report(double times[N_KINDS][MAX_REPS], unsigned reps, double tokens,
                   const struct flow *flowing, const char *json)
{
    json_t *all = json_object();
    double base = 0;
    printf("%-38s %10s %10s %12s\n", "time to the first byte, us", "median", "p99", "over gRPC");
    for (size_t i = 0; i < N_KINDS; i++) {
        qsort(times[i], reps, sizeof(double), by_size);
        double median = times[i][reps / 2], p99 = times[i][reps - 1 - reps / 100];
        base = i ? base : median;
        printf("%-38s %10.0f %10.0f %12.0f\n", kinds[i].what, median, p99, median - base);
        json_object_set_new(all, kinds[i].name,
                            json_pack("{s:f,s:f,s:f}", "median_us", median, "p99_us", p99,
                                      "over_grpc_us", median - base));
    }
    printf("%d streams at once: %.0f tokens/s\n", N_STREAMS, tokens);
    json_object_set_new(all, "streams_tokens_per_s", json_real(tokens));
    report_flow(flowing, all);
    if (json && json_dump_file(all, json, JSON_INDENT(2)) < 0)
        fprintf(stderr, "cannot write %s\n", json);
    json_decref(all);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"reps", required_argument, NULL, 'r'}, {"json", required_argument, NULL, 'j'}, {0}};
    static double times[N_KINDS][MAX_REPS];
    const char *json = NULL;
    unsigned reps = 400;
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (c == 'r')
            reps = (unsigned)atoi(optarg);
        else if (c == 'j')
            json = optarg;
        else
            return 1;
    }
    reps = reps < 1 ? 1 : reps > MAX_REPS ? MAX_REPS : reps;

    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    char address[128];
    snprintf(address, sizeof(address), "unix:%s/verifier.sock", service_dir());
    struct fake_verifier *f = fake_verifier_start(address);
    const char *args[] = {"--listen",    "127.0.0.1:0", "--verifiers", address,
                          "--log-level", "info",        NULL};
    struct child gateway = child_start(BINARY_DIR "/gateway", args);
    char *port_text = child_wait_log(&gateway, "listening on 127.0.0.1:");
    free(child_wait_log(&gateway, "verifier ready"));
    unsigned port = (unsigned)atoi(port_text);
    free(port_text);
    struct bench b = {.http = http_client_open(port)};
    assert_int_equal(rpc_client_new(address, NULL, &b.rpc), 0);
    for (unsigned i = 0; i < reps + 20; i++)
        for (size_t k = 0; k < N_KINDS; k++)
            times[k][i < 20 ? 0 : i - 20] = kinds[k].run(&b); // the first calls warm up
    double tokens = tokens_per_s(port);
    struct flow flowing = flow(address);
    report(times, reps, tokens, &flowing, json);
    http_client_close(&b.http);
    rpc_client_free(b.rpc);
    child_stop(&gateway);
    fake_verifier_stop(f);
    return 0;
}

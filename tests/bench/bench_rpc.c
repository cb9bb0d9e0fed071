/* bench_rpc.c - the round trip of a Round to proposer-svc over a unix socket, and of a draft
 * through the verifier's side of it. */
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <tandem/v1/proposer.pb-c.h>
#include <time.h>
#include <unistd.h>
#include "base/log.h"
#include "base/rng.h"
#include "lib/clients/drafts_client.h"
#include "lib/lib.h"
#include "rpc/rpc.h"

#define N_ROUNDS 5000
#define N_SEQUENCES 16
#define K 5
#define PROMPT 500

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

static void print(const char *what, double *us, unsigned n)
{
    qsort(us, n, sizeof(*us), by_size);
    printf("%-44s p50 %6.1f us  p99 %6.1f us\n", what, us[n / 2], us[n * 99 / 100]);
}

/* ---- Rounds on a raw stream ---- */

struct echo {
    pthread_mutex_t mu;
    pthread_cond_t changed;
    unsigned n_answers;
    bool ended;
};

static void on_message(void *user, struct rpc_msg *msg)
{
    struct echo *e = user;
    ProtobufCMessage *m = rpc_unpack(&tandem__v1__drafts__descriptor, msg);
    protobuf_c_message_free_unpacked(m, NULL);
    pthread_mutex_lock(&e->mu);
    e->n_answers++;
    pthread_cond_signal(&e->changed);
    pthread_mutex_unlock(&e->mu);
}

static void on_end(void *user, const struct rpc_status *status)
{
    struct echo *e = user;
    (void)status;
    pthread_mutex_lock(&e->mu);
    e->ended = true;
    pthread_cond_signal(&e->changed);
    pthread_mutex_unlock(&e->mu);
}

/* Sequences that grow by three tokens a Round, as after two accepted tokens. */
struct rounds {
    uint32_t n_sequences, len;
    uint64_t digest; // all have the same context
    uint32_t context[PROMPT + 3 * N_ROUNDS + 3];
};

static struct rpc_msg *next_round(struct rounds *r)
{
    Tandem__V1__RoundSequence s[N_SEQUENCES], *pointers[N_SEQUENCES];
    Tandem__V1__Round round = TANDEM__V1__ROUND__INIT;
    uint32_t keep = r->len;
    r->len += keep ? 3 : PROMPT;
    for (uint32_t i = keep; i < r->len; i++)
        r->digest = rng_splitmix64(r->digest ^ (r->context[i] + 1));
    for (uint32_t i = 0; i < r->n_sequences; i++) {
        tandem__v1__round_sequence__init(&s[i]);
        s[i].seq = 1 + i;
        s[i].keep = keep;
        s[i].base_len = r->len;
        s[i].tokens = r->context + keep;
        s[i].n_tokens = r->len - keep;
        s[i].digest = r->digest;
        s[i].k = K;
        pointers[i] = &s[i];
    }
    round.sequences = pointers;
    round.n_sequences = r->n_sequences;
    round.budget_us = 10000;
    return rpc_pack(&round.base);
}

static void bench_rounds(struct rpc_client *client, uint32_t n_sequences, const char *what)
{
    static const struct rpc_events events = {.on_message = on_message, .on_end = on_end};
    static double us[N_ROUNDS];
    struct echo e = {.mu = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    struct rounds *r = calloc(1, sizeof(*r));
    if (!r)
        abort();
    r->n_sequences = n_sequences;
    for (uint32_t i = 0; i < ARRAY_LEN(r->context); i++)
        r->context[i] = (uint32_t)(rng_splitmix64(i) % 300);
    struct rpc_stream *stream =
        rpc_stream_new(client, "/tandem.v1.Proposer/Draft", NULL, &events, &e);
    for (unsigned i = 0; i < N_ROUNDS; i++) {
        double since = now_us();
        rpc_stream_send(stream, next_round(r));
        pthread_mutex_lock(&e.mu);
        while (e.n_answers <= i && !e.ended)
            pthread_cond_wait(&e.changed, &e.mu);
        pthread_mutex_unlock(&e.mu);
        us[i] = now_us() - since;
    }
    rpc_stream_cancel(stream);
    pthread_mutex_lock(&e.mu);
    while (!e.ended)
        pthread_cond_wait(&e.changed, &e.mu);
    pthread_mutex_unlock(&e.mu);
    rpc_stream_free(stream);
    free(r);
    print(what, us, N_ROUNDS);
}

/* ---- drafts, as the engine requests them ---- */

static void bench_drafts(const char *target, unsigned n_sequences, const char *what)
{
    static double us[N_ROUNDS];
    AUTO(drafts_client_free) struct drafts_client *a = drafts_client_new(&target, 1, 64);
    unsigned right, n = 0;
    if (!drafts_client_wait_usable(a, 0, true))
        abort();
    for (uint32_t i = 0; i < N_ROUNDS; i++) {
        double since = now_us();
        if (drafts_client_round(a, 0, 1, n_sequences, PROMPT + 3 * i, K, 1000000, &right) ==
            n_sequences)
            us[n++] = now_us() - since;
    }
    print(what, us, n);
    printf("%-44s longest %4lld us\n", "  the engine thread's part of it",
           (long long)drafts_client_longest_ask_us(a));
}

static pid_t spawn_proposer(char *target)
{
    const char *bin = getenv("TANDEM_BIN");
    char program[4096],
        *argv[] = {program, (char *)"--listen", target, (char *)"--log-level", (char *)"error",
                   NULL};
    snprintf(program, sizeof(program), "%s/proposer-svc", bin ? bin : BINARY_DIR);
    pid_t pid;
    if (posix_spawn(&pid, program, NULL, NULL, argv, environ) != 0) {
        fprintf(stderr, "bench_rpc: cannot start %s\n", program);
        exit(1);
    }
    return pid;
}

int main(void)
{
    char folder[] = "/tmp/tandem-bench-XXXXXX", path[64], target[80];
    struct rpc_client *client;
    if (!mkdtemp(folder))
        return 1;
    log_init("bench_rpc", LOG_LEVEL_ERROR);
    signal(SIGPIPE, SIG_IGN);
    snprintf(path, sizeof(path), "%s/p.sock", folder);
    snprintf(target, sizeof(target), "unix:%s", path);
    pid_t pid = spawn_proposer(target);
    bench_drafts(target, 1, "draft of 5 tokens, asked to checked");
    bench_drafts(target, N_SEQUENCES, "drafts for 16 sequences, asked to checked");
    if (rpc_client_new(target, NULL, &client) < 0)
        return 1;
    bench_rounds(client, 0, "empty Round over a unix socket");
    bench_rounds(client, N_SEQUENCES, "Round of 16 sequences over a unix socket");
    rpc_client_free(client);
    kill(pid, SIGTERM);
    waitpid(pid, NULL, 0);
    unlink(path);
    rmdir(folder);
    return 0;
}

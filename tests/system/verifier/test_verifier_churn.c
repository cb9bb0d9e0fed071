/* test_verifier_churn.c - many requests with several choices take seats, places and KV blocks from
 * each other, while clients pause and leave. Each answer ends, and has the bits that it has when it
 * runs alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "base/rng.h"
#include "lib/lib.h"
#include "lib/oracles/figures.h"
#include "lib/rigs/verifier_rig.h"

#define N_WISHES 12
#define N_RUNNING 10 // requests at a time
#define N_FLOWS 5

static struct wish wishes[N_WISHES];
static struct answer *alone; // (N_WISHES)

/* Half of them count tokens for penalties, and a third has large events. */
static void make_wish(unsigned i)
{
    static const uint32_t choices[] = {1, 4, 3, 16, 40, 8};
    struct wish *w = &wishes[i];
    wish_init(w, i % 2 ? "Once upon a time" : STORY, 20 + i % 4 * 50);
    w->msg.n = choices[i % 6];
    w->msg.ignore_eos = true;
    w->msg.logprobs = i % 3 == 0;
    w->msg.top_logprobs = i % 3 == 0 ? 5 : 0;
    w->sampling.temperature = 0.8F;
    w->sampling.has_seed_case = TANDEM__V1__SAMPLING__HAS_SEED_SEED;
    w->sampling.seed = (int)i;
    if (i % 4 < 2)
        return;
    w->sampling.has_repetition_case = TANDEM__V1__SAMPLING__HAS_REPETITION_REPETITION_PENALTY;
    w->sampling.repetition_penalty = 1.2F;
}

static int start_all(void **state)
{
    if (start_verifier(state) != 0)
        return -1;
    alone = answers_new(N_WISHES);
    for (unsigned i = 0; i < N_WISHES; i++) {
        make_wish(i);
        generation_run(client, &wishes[i].msg, &alone[i]);
    }
    return 0;
}

static int stop_all(void **state)
{
    free(TAKE(alone));
    return stop_verifier(state);
}

/* ---- traffic ---- */

struct traffic {
    struct rpc_client *c;
    uint64_t random;
    struct generation g[N_RUNNING];
    unsigned wish[N_RUNNING];
    unsigned n_seats;       // of the verifier, which are the most choices
    struct answer *answers; // (N_RUNNING)
    unsigned n_whole, n_displaced;
};

static unsigned draw(struct traffic *t, unsigned n)
{
    t->random = rng_splitmix64(t->random);
    return (unsigned)(t->random % n);
}

static void start_one(struct traffic *t, unsigned at)
{
    static const char *const flows[N_FLOWS] = {"A", "B", "C", "D", "E"};
    do
        t->wish[at] = draw(t, N_WISHES);
    while (wishes[t->wish[at]].msg.n > t->n_seats);
    request msg = wishes[t->wish[at]].msg;
    msg.flow = text_of(flows[draw(t, N_FLOWS)]);
    memset(&t->answers[at], 0, sizeof(t->answers[at]));
    generation_start(&t->g[at], t->c, &msg, &t->answers[at]);
    if (draw(t, 4) == 0)
        rpc_stream_pause(t->g[at].stream);
    if (draw(t, 2) == 0)
        nap();
}

/* A request that was displaced from the full queue, or ended for its place, has no whole answer. */
static void end_one(struct traffic *t, unsigned at)
{
    struct generation *g = &t->g[at];
    bool leaves = draw(t, 8) == 0;
    if (leaves)
        rpc_stream_cancel(g->stream);
    else
        rpc_stream_unpause(g->stream);
    generation_end(g);
    if (leaves)
        return;
    const struct answer *same = &alone[t->wish[at]];
    if (g->status.code == RPC_OK)
        assert_memory_equal(t->answers[at].hashes, same->hashes, sizeof(same->hashes));
    else if (g->status.code != RPC_RESOURCE_EXHAUSTED)
        fail_msg("status %d: %s", g->status.code, g->status.text);
    t->n_whole += g->status.code == RPC_OK;
    t->n_displaced += g->status.code != RPC_OK;
}

static void run_traffic(unsigned n_seats, const char *const *args, bool may_displace)
{
    const unsigned n = (unsigned)lib_amount(30, 150, 5000);
    struct service s = {0};
    struct traffic t = {.random = 1, .n_seats = n_seats, .answers = answers_new(N_RUNNING)};
    service_start(&s, "verifier-svc", args);
    assert_int_equal(rpc_client_new(s.target, NULL, &t.c), 0);
    for (unsigned i = 0; i < n + N_RUNNING; i++) {
        if (i >= N_RUNNING)
            end_one(&t, i % N_RUNNING);
        if (i < n)
            start_one(&t, i % N_RUNNING);
    }
    wait_requests(t.c, 0, 0);
    assert_true(t.n_whole > n / 10);
    assert_true(may_displace || !t.n_displaced);
    assert_true(metric_of(t.c, "tandem_num_preemptions_total") > 0);
    rpc_client_free(t.c);
    service_stop(&s);
    free(t.answers);
}

static void with_the_usual_seats(void **state)
{
    (void)state;
    static const char *const args[] = {"--model", MODEL, NULL};
    run_traffic(64, args, false);
}

static void with_few_seats_and_blocks(void **state)
{
    (void)state;
    static const char *const args[] = {
        "--model",         MODEL, "--max-sequences", "4",   "--kv-mib", "1",
        "--prefill-chunk", "7",   "--queue-length",  "512", NULL};
    run_traffic(4, args, false);
}

static void with_a_short_queue(void **state)
{
    (void)state;
    static const char *const args[] = {"--model", MODEL, "--max-sequences", "16", "--queue-length",
                                       "4",       NULL};
    run_traffic(16, args, true);
}

static void without_cached_prefixes(void **state)
{
    (void)state;
    static const char *const args[] = {"--model",           MODEL, "--max-sequences", "8",
                                       "--no-prefix-cache", NULL};
    run_traffic(8, args, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(with_the_usual_seats),
        cmocka_unit_test(with_few_seats_and_blocks),
        cmocka_unit_test(with_a_short_queue),
        cmocka_unit_test(without_cached_prefixes),
    };
    return cmocka_run_group_tests(tests, start_all, stop_all);
}

/* bench_control.c - the policy goodput on a machine that is reckoned: how near it comes to the best
 * fixed k and to no drafts, over acceptance, sequences and context, with times as noisy as real
 * ones; and the CPU time of its choices. What it chooses is rated by the times and tokens that are
 * to be expected, so that no figure has the noise of the machine that runs this.
 *
 * Passes take what 0.1b Q8_0 took on the Xeon of docs/benchmarks.md, drafts what its first layer
 * did. All times are off by a normal 8 % each, by another 8 % that all share for about a second,
 * and one in 200 is twice as long. Answers have 96 tokens, then another sequence takes the place.
 */
#include <math.h>
#include <stdio.h>
#include <time.h>
#include "base/rng.h"
#include "lib/lib.h"
#include "verifier-svc/control/control.h"

#define SEQUENCES_MAX 16
#define K_MAX 16
#define ANSWER_TOKENS 96
#define STARTS 4
#define RUN_US 60e6    // that are rated of each
#define WARM_UP_US 5e6 // before that
#define JITTER 0.08
#define DRIFT 0.08
#define DRIFT_US 1e6
#define HELD_UP 0.005
#define ROW_US 250 // of each row behind the table, as 512 rows take
#define READ_US 1.2
#define SEE_US 0.1
#define DRAFT_US 500
#define DRAFT_TOKEN_US 400
#define DRAFT_OTHER_US 40

static const double pass_us[] = {3090, 3370, 3960, 4230, 4330, 4570, 5010, 5500,
                                 5900, 6550, 7320, 7820, 8400, 8990, 9520, 9980};

/* The machine, and one run of n sequences of this context on it. */
struct run {
    struct control c;
    struct control_seq seqs[SEQUENCES_MAX];
    uint32_t n_left[SEQUENCES_MAX]; // tokens of their answers
    struct control_item items[SEQUENCES_MAX];
    uint64_t n_drawn;
    double drift;
    double alpha;
    uint32_t n, context;
    double tokens, us; // expected
    double n_rounds, n_drafted, cpu_us;
};

static double uniform(struct run *run)
{
    return rng_uniform(rng_splitmix64(++run->n_drawn));
}

static double normal(struct run *run) // Box and Muller 1958
{
    double radius = sqrt(-2 * log(uniform(run)));
    return radius * cos(2 * 3.14159265358979 * uniform(run));
}

static double noisy(struct run *run, double us)
{
    double keep = exp(-us / DRIFT_US);
    run->drift = keep * run->drift + sqrt(1 - keep * keep) * DRIFT * normal(run);
    double held_up = uniform(run) < HELD_UP ? 2 : 1;
    return us * held_up * exp(run->drift + JITTER * normal(run));
}

static double rows_us(uint32_t rows)
{
    uint32_t last = ARRAY_LEN(pass_us);
    return rows <= last ? pass_us[rows - 1] : pass_us[last - 1] + ROW_US * (rows - last);
}

static double true_pass_us(const struct pass_time_work *p)
{
    return rows_us(p->rows) + READ_US * p->kv_read + SEE_US * p->attended;
}

static double true_draft_us(uint32_t k, uint32_t n)
{
    return k ? DRAFT_US + k * (DRAFT_TOKEN_US + DRAFT_OTHER_US * (n - 1.0)) : 0;
}

/* Of a draft of k tokens, the target's own among them. */
static double expected_tokens(double alpha, uint32_t k)
{
    return (1 - pow(alpha, k + 1)) / (1 - alpha);
}

static struct pass_time_work pass_of(const struct run *run, uint32_t k)
{
    struct pass_time_work p = {.drafted = k > 0};
    for (uint32_t i = 0; i < run->n; i++)
        pass_time_add(&p, 1 + k, run->context);
    return p;
}

static double rate_of_fixed(const struct run *run, uint32_t k)
{
    struct pass_time_work p = pass_of(run, k);
    return run->n * expected_tokens(run->alpha, k) / (true_pass_us(&p) + true_draft_us(k, run->n));
}

/* At the start, as calibrate() does: the fastest of three counts. */
static double timed(struct run *run, double us)
{
    return fmin(noisy(run, us), fmin(noisy(run, us), noisy(run, us)));
}

static void start(struct run *run, double alpha, uint32_t n, uint32_t context, uint64_t seed)
{
    *run = (struct run){.alpha = alpha, .n = n, .context = context, .n_drawn = seed << 40};
    struct pass_time_measured m = {.context = 1024, .rows = 8};
    for (unsigned i = 0; i < PASS_TIME_TIMED; i++)
        m.us[i] = timed(run, rows_us(pass_time_rows_at(i)));
    m.long_one_us = timed(run, rows_us(1) + 1024 * (READ_US + SEE_US));
    m.long_rows_us = timed(run, rows_us(8) + 1024 * (READ_US + 8 * SEE_US));
    struct pass_time cost;
    pass_time_init(&cost, &m);
    control_init(&run->c, &(struct control_options){CONTROL_GOODPUT, K_MAX, 0}, &cost);
}

static double cpu_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* Asks, and lists those who have a draft in time. Adds to *us what waiting took. */
static uint32_t draft(struct run *run, const struct control_round *r, double *us)
{
    static int32_t chain[K_MAX];
    static float silent[K_MAX];
    static const uint32_t zeros[K_MAX];
    uint32_t n_drafts = 0, longest = 0;
    for (uint32_t i = 0; i < run->n; i++) {
        if (!run->n_left[i]) {
            control_seq_init(&run->seqs[i]);
            run->n_left[i] = ANSWER_TOKENS;
        }
        run->items[i] = (struct control_item){.s = &run->seqs[i],
                                              .context = run->context,
                                              .unread = 1,
                                              .left = run->n_left[i],
                                              .max_nodes = K_MAX,
                                              .max_depth = K_MAX};
    }
    double before_us = cpu_us();
    double wait_us = control_ask(&run->c, r, run->items, run->n);
    run->cpu_us += cpu_us() - before_us;
    for (uint32_t k = 0; k < K_MAX; k++) {
        chain[k] = (int32_t)k - 1;
        silent[k] = 1;
    }
    for (uint32_t i = 0; i < run->n; i++) {
        struct control_item item = run->items[i];
        if (!item.nodes)
            continue;
        longest = item.nodes > longest ? item.nodes : longest;
        run->items[n_drafts++] = (struct control_item){
            .s = item.s,
            .context = run->context,
            .max_nodes = item.nodes,
            .max_depth = item.depth,
            .draft = {.n = item.nodes, .tokens = zeros, .parents = chain, .predicted = silent}};
    }
    double answer_us = noisy(run, true_draft_us(longest, n_drafts));
    for (uint32_t i = 0; i < n_drafts; i++) {
        control_asked(run->items[i].s, 0, run->items[i].s->prefill.done ? 0 : 1, n_drafts);
        control_answered(&run->c, run->items[i].s, 0, run->items[i].draft.n, answer_us, true);
    }
    *us += fmin(true_draft_us(longest, n_drafts), wait_us);
    return answer_us <= wait_us ? n_drafts : 0;
}

/* A draft of which the first tokens are right, each with the chance alpha. */
static void see(struct run *run, const struct control_item *v)
{
    uint32_t committed[K_MAX + 1] = {0}, n_right = 0; // all draft tokens are 0
    while (n_right < v->draft.n && uniform(run) < run->alpha)
        n_right++;
    committed[n_right] = 1;
    control_seen(&run->c, v->s, 0, &v->draft, committed, n_right + 1);
}

static void round_of(struct run *run)
{
    struct control_round r = {
        .n_decoding = run->n, .draft_rows = 512, .n_running = run->n, .pass = pass_of(run, 0)};
    double us = 0, tokens[SEQUENCES_MAX], drafted = 0;
    uint32_t n_drafts = draft(run, &r, &us);
    for (uint32_t i = 0; i < run->n; i++)
        tokens[i] = 1;
    double before_us = cpu_us();
    control_cut(&run->c, &r, run->items, n_drafts);
    run->cpu_us += cpu_us() - before_us;
    for (uint32_t i = 0; i < n_drafts; i++) {
        struct control_item *v = &run->items[i];
        r.pass.rows += v->nodes;
        r.pass.attended += (double)v->nodes * run->context;
        r.pass.drafted |= v->nodes > 0;
        drafted += v->nodes;
        tokens[v->s - run->seqs] = expected_tokens(run->alpha, v->nodes);
        see(run, v);
    }
    us += true_pass_us(&r.pass);
    control_passed(&run->c, &r.pass, noisy(run, true_pass_us(&r.pass)), NULL);
    run->us += us;
    run->n_rounds++;
    run->n_drafted += drafted / run->n;
    for (uint32_t i = 0; i < run->n; i++) {
        run->tokens += tokens[i];
        run->n_left[i] -= fmin(run->n_left[i], round(tokens[i]));
    }
}

/* Goodput's tokens per us, from several starts. Leaves the last run. */
static double rate_of_goodput(struct run *run, double alpha, uint32_t n, uint32_t context,
                              double *ret_drafted, double *ret_cpu_us)
{
    double tokens = 0, us = 0, n_rounds = 0, drafted = 0, cpu = 0;
    for (uint64_t seed = 1; seed <= STARTS; seed++) {
        start(run, alpha, n, context, seed);
        while (run->us < WARM_UP_US)
            round_of(run);
        run->tokens = run->us = run->n_rounds = run->n_drafted = run->cpu_us = 0;
        while (run->us < RUN_US)
            round_of(run);
        tokens += run->tokens;
        us += run->us;
        n_rounds += run->n_rounds;
        drafted += run->n_drafted;
        cpu += run->cpu_us;
    }
    *ret_drafted = drafted / n_rounds;
    *ret_cpu_us = cpu / n_rounds;
    return tokens / us;
}

static void measure(double alpha, uint32_t n, uint32_t context)
{
    static struct run run;
    double drafted, cpu, rate = rate_of_goodput(&run, alpha, n, context, &drafted, &cpu);
    uint32_t best = 0;
    for (uint32_t k = 1; k <= K_MAX; k++)
        best = rate_of_fixed(&run, k) > rate_of_fixed(&run, best) ? k : best;
    printf("%5.2f %5u %8u | %4u %8.2f | %7.2f %8.3f %8.3f | %6.1f us\n", alpha, n, context, best,
           rate_of_fixed(&run, best) / rate_of_fixed(&run, 0), drafted,
           rate / rate_of_fixed(&run, best), rate / rate_of_fixed(&run, 0), cpu);
}

int main(void)
{
    static const double alphas[] = {.1, .3, .5, .6, .7, .8, .9, .95};
    static const uint32_t contexts[] = {256, 4096, 16000};
    printf("%5s %5s %8s | %4s %8s | %7s %8s %8s | %9s\n", "alpha", "seqs", "context", "best",
           "of none", "drafted", "of best", "of none", "CPU");
    for (unsigned a = 0; a < ARRAY_LEN(alphas); a++) {
        for (uint32_t n = 1; n <= SEQUENCES_MAX; n *= 4) {
            for (unsigned c = 0; c < ARRAY_LEN(contexts); c++)
                measure(alphas[a], n, contexts[c]);
        }
    }
    return 0;
}

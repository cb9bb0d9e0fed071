/* bench_control.c - the policy goodput on a simulated machine.
 *
 * Prints the policy's speed relative to the best fixed k and to no drafts, over acceptance, number
 * of sequences and context. It also prints the CPU time of the decisions. The machine's times are
 * noisy. Each decision is rated by the expected times and tokens. So the noise of this computer
 * changes only the CPU time.
 *
 * A pass takes what 0.1b Q8_0 takes on the Xeon of docs/benchmarks.md. A draft takes what the first
 * layer of that model takes. Each time has a normal error of 8 %, and another of 8 % that all times
 * of about a second share. One time in 200 is doubled. An answer has 96 tokens, then a new sequence
 * takes its place. */
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
#define RUN_US 60e6    // simulated time that is rated, per start
#define WARM_UP_US 5e6 // before it
#define JITTER 0.08
#define DRIFT 0.08
#define DRIFT_US 1e6
#define DELAYED 0.005 // share of times that are doubled
#define ROW_US 250    // of each row after the table, as in passes of 512 rows
#define READ_US 1.2
#define SEE_US 0.1
#define DRAFT_US 500
#define DRAFT_TOKEN_US 400
#define DRAFT_OTHER_US 40

static const double pass_us[] = {3090, 3370, 3960, 4230, 4330, 4570, 5010, 5500,
                                 5900, 6550, 7320, 7820, 8400, 8990, 9520, 9980};

/* One run of n sequences on the machine. */
struct run {
    struct control c;
    struct control_seq seqs[SEQUENCES_MAX];
    uint32_t n_left[SEQUENCES_MAX]; // remaining tokens of their answers
    struct control_item items[SEQUENCES_MAX];
    uint64_t n_drawn;
    double drift; // current error that all times share
    double alpha; // probability that a draft token is accepted if its parent is
    uint32_t n, context;
    struct draft chain; // every draft: zeros
    double tokens, us;  // expected values, summed up
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
    double delay = uniform(run) < DELAYED ? 2 : 1;
    return us * delay * exp(run->drift + JITTER * normal(run));
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

/* Expected committed tokens of a round with a draft of k tokens. */
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

/* The fastest of three, as calibrate() measures at start-up. */
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
    struct pass_time pass_time;
    pass_time_init(&pass_time, &m);
    control_init(&run->c, &(struct control_options){CONTROL_GOODPUT, K_MAX, 0}, &pass_time);
    run->chain.n = K_MAX;
    for (uint32_t k = 0; k < K_MAX; k++) {
        run->chain.parents[k] = (int32_t)k - 1;
        run->chain.survival[k] = 1; // no prediction
    }
}

static double cpu_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* Fills in the items of the round. A sequence whose answer has ended is replaced. */
static void list_sequences(struct run *run)
{
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
}

/* Replaces the items by those that requested a draft. Returns their number. */
static uint32_t list_drafts(struct run *run, uint32_t *ret_longest)
{
    uint32_t n_drafts = 0;
    *ret_longest = 0;
    for (uint32_t i = 0; i < run->n; i++) {
        struct control_item item = run->items[i];
        if (!item.nodes)
            continue;
        *ret_longest = item.nodes > *ret_longest ? item.nodes : *ret_longest;
        run->items[n_drafts++] = (struct control_item){.s = item.s,
                                                       .context = run->context,
                                                       .max_nodes = item.nodes,
                                                       .max_depth = item.depth,
                                                       .draft = &run->chain};
    }
    return n_drafts;
}

/* Requests drafts, and lists those that arrive in time. Adds the expected wait to *us. */
static uint32_t request_drafts(struct run *run, const struct control_round *r, double *us)
{
    list_sequences(run);
    double before_us = cpu_us();
    double wait_us = control_ask(&run->c, r, run->items, run->n);
    run->cpu_us += cpu_us() - before_us;
    uint32_t longest, n_drafts = list_drafts(run, &longest);
    double answer_us = noisy(run, true_draft_us(longest, n_drafts));
    for (uint32_t i = 0; i < n_drafts; i++) {
        control_asked(run->items[i].s, 0, run->items[i].s->prefill.done ? 0 : 1, n_drafts);
        control_answered(&run->c, run->items[i].s, 0, run->items[i].max_nodes, answer_us, true);
    }
    *us += fmin(true_draft_us(longest, n_drafts), wait_us);
    return answer_us <= wait_us ? n_drafts : 0;
}

/* Commits tokens: each draft token is right with probability alpha if its parent is. */
static void commit(struct run *run, const struct control_item *v)
{
    uint32_t committed[K_MAX + 1] = {0}, n_right = 0; // all draft tokens are 0
    while (n_right < v->max_nodes && uniform(run) < run->alpha)
        n_right++;
    committed[n_right] = 1;
    control_seen(&run->c, v->s, 0, v->draft, v->max_nodes, committed, n_right + 1);
}

static void run_round(struct run *run)
{
    struct control_round r = {
        .n_decoding = run->n, .draft_rows = 512, .n_running = run->n, .pass = pass_of(run, 0)};
    double us = 0, tokens[SEQUENCES_MAX], drafted = 0;
    uint32_t n_drafts = request_drafts(run, &r, &us);
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
        commit(run, v);
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

/* Tokens per us with the policy goodput, over several starts. *run is the last one afterwards. */
static double rate_of_goodput(struct run *run, double alpha, uint32_t n, uint32_t context,
                              double *ret_drafted, double *ret_cpu_us)
{
    double tokens = 0, us = 0, n_rounds = 0, drafted = 0, cpu = 0;
    for (uint64_t seed = 1; seed <= STARTS; seed++) {
        start(run, alpha, n, context, seed);
        while (run->us < WARM_UP_US)
            run_round(run);
        run->tokens = run->us = run->n_rounds = run->n_drafted = run->cpu_us = 0;
        while (run->us < RUN_US)
            run_round(run);
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

/* bench_dist.c - CPU time of a token after the forward pass: from logits to distribution to draw,
 * for several sampling parameters and a large vocabulary. It also times the counts that a choice
 * copies. It prints the median and the range from the first to the last tenth. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "base/rng.h"
#include "lib/lib.h"
#include "model/dist.h"

#define N_VOCAB 131072
#define N_ROWS 8
#define REPS 100
#define N_CONTEXT 32768

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(const char *what, double *us)
{
    qsort(us, REPS, sizeof(*us), by_size);
    printf("%-36s %8.1f us (%.1f-%.1f)\n", what, us[REPS / 2], us[REPS / 10],
           us[REPS - 1 - REPS / 10]);
}

/* Logits like those of a model: a bell curve of deviation 2, and a few dozen likely tokens above
 * it. */
static float *rows_of(void)
{
    float *x = calloc((size_t)N_ROWS * N_VOCAB, sizeof(*x));
    assert_non_null(x);
    for (uint32_t i = 0; i < N_ROWS * N_VOCAB; i++) {
        float sum = 0;
        for (uint64_t k = 0; k < 12; k++)
            sum += (float)rng_uniform(rng_splitmix64(12ul * i + k)) - 0.5f;
        x[i] = 2 * sum + (rng_splitmix64(i) % 4096 == 0 ? 12 : 0);
    }
    return x;
}

struct bench {
    const char *what;
    struct dist_params params;
    bool counts;
};

static void bench(const struct bench *b, const float *rows, const struct dist_counts *counts,
                  const struct kernel *kernel)
{
    AUTO(dist_free) struct dist *d = NULL;
    static double us[REPS];
    assert_int_equal(dist_new(N_VOCAB, kernel, &d), 0);
    for (unsigned i = 0; i < REPS; i++) {
        double start = now_us();
        dist_set(d, rows + (size_t)(i % N_ROWS) * N_VOCAB, &b->params, b->counts ? counts : NULL,
                 NULL);
        dist_draw(d, rng_key(1, 0), i);
        us[i] = now_us() - start;
    }
    report(b->what, us);
}

static void bench_logprobs(const float *rows, const struct kernel *kernel)
{
    AUTO(dist_free) struct dist *d = NULL;
    static double us[REPS];
    assert_int_equal(dist_new(N_VOCAB, kernel, &d), 0);
    for (unsigned i = 0; i < REPS; i++) {
        struct dist_top top[DIST_MAX_TOP];
        float logprob;
        double start = now_us();
        dist_logprobs(d, rows + (size_t)(i % N_ROWS) * N_VOCAB, 7, DIST_MAX_TOP, &logprob, top);
        us[i] = now_us() - start;
    }
    report("logprobs, 20 best", us);
}

/* Counts of a long prompt with many different tokens. The first choice counts, the others copy. */
static struct dist_counts *bench_counts(void)
{
    static double count_us[REPS], copy_us[REPS];
    struct dist_counts *counts = NULL;
    for (unsigned i = 0; i < REPS; i++) {
        AUTO(dist_counts_free) struct dist_counts *copy = NULL;
        dist_counts_free(counts);
        double start = now_us();
        assert_int_equal(dist_counts_new(N_VOCAB, &counts), 0);
        for (uint32_t k = 0; k < N_CONTEXT; k++)
            dist_counts_add(counts, (uint32_t)(rng_splitmix64(k) % N_VOCAB), k % 2);
        count_us[i] = now_us() - start;
        start = now_us();
        assert_int_equal(dist_counts_copy(counts, &copy), 0);
        copy_us[i] = now_us() - start;
    }
    report("counts of 32,768 tokens", count_us);
    report("a copy of them", copy_us);
    return counts;
}

int main(void)
{
    const struct kernel *kernel;
    if (kernel_init(&kernel) < 0)
        return 1;
    kernel_thread_init();
    static const struct bench benches[] = {
        {"greedy", {.temperature = 0, .top_p = 1, .repetition = 1}, false},
        {"temperature 1", {.temperature = 1, .top_p = 1, .repetition = 1}, false},
        {"top_k 40", {.temperature = 1, .top_k = 40, .top_p = 1, .repetition = 1}, false},
        {"top_p 0.95", {.temperature = 1, .top_p = 0.95f, .repetition = 1}, false},
        {"top_k 40, top_p 0.95",
         {.temperature = 1, .top_k = 40, .top_p = 0.95f, .repetition = 1},
         false},
        {"min_p 0.05", {.temperature = 1, .top_p = 1, .min_p = 0.05f, .repetition = 1}, false},
        {"greedy, penalties",
         {.temperature = 0, .top_p = 1, .repetition = 1.1f, .presence = 0.5f},
         true},
        {"temperature 100", {.temperature = 100, .top_p = 1, .repetition = 1}, false},
        {"temperature 100, top_p 0.9999",
         {.temperature = 100, .top_p = 0.9999f, .repetition = 1},
         false},
        {"top_p 0.9999", {.temperature = 1, .top_p = 0.9999f, .repetition = 1}, false},
        {"top_k 4000", {.temperature = 1, .top_k = 4000, .top_p = 1, .repetition = 1}, false},
        {"top_k 100000, top_p 0.9999",
         {.temperature = 1, .top_k = 100000, .top_p = 0.9999f, .repetition = 1},
         false},
        {"the same, temperature 100, min_p",
         {.temperature = 100,
          .top_k = 100000,
          .top_p = 0.9999f,
          .min_p = 1e-9f,
          .repetition = 1.2f,
          .frequency = 1},
         true},
    };
    AUTO(mem_free) float *rows = rows_of();
    AUTO(dist_counts_free) struct dist_counts *counts = bench_counts();
    for (size_t i = 0; i < ARRAY_LEN(benches); i++)
        bench(&benches[i], rows, counts, kernel);
    bench_logprobs(rows, kernel);
    return 0;
}

/* bench_kernels.c - the speed of the kernels on this machine, and the cost of barriers and of empty
 * jobs, with running and with parked threads. The speed is in GB/s of weights and GOP/s by type,
 * tier, rows M and threads. The matrices together do not fit into L3.
 *
 *   bench_kernels [--types Q8_0,Q4_0,F16] [--tiers avx512] [--rows 1,2,4,8] [--threads 1,2]
 *                 [--walks 8:2048,1:0] [--reps 9] [--shape 2048x8192] [--mib 256] [--json FILE]
 *
 * A walk is STREAMS:AHEAD, see struct kernel_walk. One thread is measured by its CPU time, several
 * by wall time. All M and walks of a type are measured alternately, so that slower memory affects
 * all of them. The output is the median and the range
 * from the first to the last decile. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <jansson.h>
#include "base/pool.h"
#include "kernel/kernel_impl.h"
#include "lib/lib.h"
#include "lib/rigs/kernel_tiers.h"
#include "lib/models/weights.h"

#define MAX_LIST 16
#define MAX_REPS 101

struct options {
    const char *types, *tiers, *rows, *threads, *walks, *json;
    unsigned reps, n_out, n_in, mib;
};

struct job {
    const struct kernel *k;
    struct kernel_mat w;
    size_t mat_bytes;
    unsigned n_mats, m;
    const float *x; // (max_rows, n_in)
    uint8_t *prepared;
    size_t x_bytes;
    float *y;
};

/* The CPU time of one thread excludes other work on the machine. Several threads need wall time. */
static double now_us(unsigned n_threads)
{
    struct timespec t;
    clock_gettime(n_threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void multiply(void *arg, unsigned i, unsigned n)
{
    const struct job *j = arg;
    unsigned from, to;
    kernel_thread_init();
    pool_slice(i, n, j->w.n_out, KERNEL_TILE, &from, &to);
    for (unsigned k = 0; k < j->n_mats; k++) {
        struct kernel_mat w = j->w;
        w.data = (const uint8_t *)w.data + k * j->mat_bytes;
        j->k->matmul(&w, j->prepared, j->x_bytes, j->m, j->y, w.n_out, from, to);
    }
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct times {
    double us[MAX_REPS];
    unsigned n;
};

static double quantile(struct times *t, double q)
{
    qsort(t->us, t->n, sizeof(*t->us), by_size);
    return t->us[(unsigned)(q * (t->n - 1) + 0.5)];
}

static unsigned numbers(const char *list, unsigned *to)
{
    unsigned n = 0;
    for (const char *p = list; *p && n < MAX_LIST; n++) {
        to[n] = (unsigned)strtoul(p, (char **)&p, 10);
        p += *p == ',';
    }
    return n;
}

/* Walks as STREAMS:AHEAD. */
static unsigned walks(const char *list, struct kernel_walk *to)
{
    unsigned n = 0;
    for (const char *p = list; *p && n < MAX_LIST; n++) {
        to[n].n_streams = (uint8_t)strtoul(p, (char **)&p, 10);
        p += *p == ':';
        to[n].ahead = (uint16_t)strtoul(p, (char **)&p, 10);
        p += *p == ',';
    }
    return n;
}

/* Large M use fewer matrices, because they are not bound by memory. */
static unsigned mats_for(unsigned n_mats, unsigned m)
{
    return m <= 16 ? n_mats : m <= 64 && n_mats > 4 ? 4 : n_mats < 2 ? n_mats : 2;
}

static void report(json_t *to, const struct options *o, const char *type, const struct job *j,
                   unsigned threads, struct times *t, double first)
{
    double us = quantile(t, 0.5), low = quantile(t, 0.1), high = quantile(t, 0.9);
    double ops = 2.0 * j->m * o->n_out * o->n_in, gb_per_s = (double)j->mat_bytes / us / 1e3;
    const struct kernel_walk walk = kernel_walk_of(&j->w, j->m);
    printf("%-5s %-7s %u threads walk %u:%-4u M %-4u %9.1f us (%.1f-%.1f) %6.1f GB/s %7.1f GOP/s  "
           "x%.2f\n",
           type, j->k->name, threads, walk.n_streams, walk.ahead, j->m, us, low, high, gb_per_s,
           ops / us / 1e3, us / first);
    fflush(stdout);
    json_array_append_new(to, json_pack("{s:s s:s s:i s:i s:i s:i s:f s:f s:f s:f s:f s:f}", "type",
                                        type, "tier", j->k->name, "threads", threads, "streams",
                                        walk.n_streams, "ahead", walk.ahead, "rows", j->m, "us", us,
                                        "us_p10", low, "us_p90", high, "gb_per_s", gb_per_s,
                                        "gop_per_s", ops / us / 1e3, "of_one_row", us / first));
}

static void set_run(struct job *j, struct kernel_walk walk, unsigned m, unsigned n_mats)
{
    j->w.one = j->w.more = walk;
    j->m = m;
    j->n_mats = mats_for(n_mats, m);
}

static void bench_pool(json_t *to, const struct options *o, struct job *j, const char *type,
                       struct pool *p, unsigned n_mats)
{
    struct kernel_walk walk[MAX_LIST];
    unsigned rows[MAX_LIST], n_rows = numbers(o->rows, rows), n_walks = walks(o->walks, walk);
    static struct times times[MAX_LIST][MAX_LIST];
    memset(times, 0, sizeof(times));
    for (unsigned rep = 0; rep < o->reps + 1; rep++)
        for (unsigned i = 0; i < n_walks * n_rows; i++) {
            struct times *t = &times[i / n_rows][i % n_rows];
            set_run(j, walk[i / n_rows], rows[i % n_rows], n_mats);
            j->x_bytes = weights_prepare(j->k, j->w.type, j->x, j->m, j->w.n_in, j->prepared);
            double start = now_us(pool_threads(p));
            pool_run(p, multiply, j);
            if (rep) // the first run warms up
                t->us[t->n++] = (now_us(pool_threads(p)) - start) / j->n_mats;
        }
    for (unsigned i = 0; i < n_walks * n_rows; i++) {
        set_run(j, walk[i / n_rows], rows[i % n_rows], n_mats);
        report(to, o, type, j, pool_threads(p), &times[i / n_rows][i % n_rows],
               quantile(&times[i / n_rows][0], 0.5));
    }
}

static void bench_type(json_t *to, const struct options *o, const struct weights_type *t)
{
    unsigned rows[MAX_LIST], threads[MAX_LIST], max_rows = 1;
    unsigned n_rows = numbers(o->rows, rows), n_threads = numbers(o->threads, threads);
    for (unsigned i = 0; i < n_rows; i++)
        max_rows = rows[i] > max_rows ? rows[i] : max_rows;
    size_t bytes = kernel_packed_bytes(t->type, o->n_out, o->n_in);
    unsigned n_mats = (unsigned)(((size_t)o->mib << 20) / bytes) + 1;
    uint8_t *all = weights_alloc(n_mats * bytes);
    void *file = weights_random(t->type, o->n_out, o->n_in, 1, false);
    float *x = weights_floats(max_rows, o->n_in, 2, false);
    kernel_pack(t->type, file, o->n_out, o->n_in, 0, o->n_out, all);
    for (unsigned i = 1; i < n_mats; i++)
        memcpy(all + i * bytes, all, bytes);
    struct job j = {.w = {.type = t->type, .n_out = o->n_out, .n_in = o->n_in, .data = all},
                    .mat_bytes = bytes};
    j.x = x;
    j.prepared = weights_alloc(weights_room(t->type, o->n_in, max_rows));
    j.y = weights_alloc((size_t)max_rows * o->n_out * sizeof(float));
    const struct kernel *tiers[KERNEL_TIERS_MAX];
    unsigned n_tiers = kernel_tiers_here(tiers);
    for (unsigned i = 0; i < n_tiers; i++)
        for (unsigned k = 0; k < n_threads; k++) {
            AUTO(pool_free) struct pool *p = NULL;
            j.k = tiers[i];
            if (!lib_listed(o->tiers, j.k->name) || pool_new(threads[k], true, &p) < 0)
                continue;
            bench_pool(to, o, &j, t->name, p, n_mats);
        }
    free(all);
    free(file);
    free(x);
    free(j.prepared);
    free(j.y);
}

#define STEPS 10000       // each step is timed
#define RESTED_STEPS 1000 // each step follows a rest
#define REST_US 100       // waiting threads have parked by then

/* The time of steps of the pool on its leading thread, in us. */
struct steps {
    struct pool *pool;
    double us[STEPS];
    unsigned n;
    bool rested;
};

static void rest(void)
{
    for (double until = now_us(2) + REST_US; now_us(2) < until;)
        ;
}

/* The first barrier wakes the threads, the second waits for them. */
static void time_barriers(void *arg, unsigned i, unsigned n)
{
    struct steps *s = arg;
    (void)n;
    for (unsigned k = 0; k < s->n; k++) {
        if (i == 0 && s->rested)
            rest();
        double start = i == 0 ? now_us(2) : 0;
        pool_barrier(s->pool);
        if (s->rested)
            pool_barrier(s->pool);
        if (i == 0)
            s->us[k] = now_us(2) - start;
    }
}

static void nothing(void *arg, unsigned i, unsigned n)
{
    (void)arg, (void)i, (void)n;
}

static void time_jobs(struct steps *s)
{
    for (unsigned k = 0; k < s->n; k++) {
        if (s->rested)
            rest();
        double start = now_us(2);
        pool_run(s->pool, nothing, NULL);
        s->us[k] = now_us(2) - start;
    }
}

static json_t *report_steps(const char *what, struct steps *s)
{
    qsort(s->us, s->n, sizeof(*s->us), by_size);
    double half = s->us[s->n / 2], last = s->us[s->n * 99 / 100];
    printf("  %-12s %-28s median %6.2f us, p99 %6.2f us\n", what,
           s->rested ? "that wakes parked threads" : "of running threads", half, last);
    return json_pack("{s:f s:f}", "median_us", half, "p99_us", last);
}

static void bench_steps(json_t *to, struct pool *p)
{
    static struct steps s;
    json_t *all = json_pack("{s:i}", "threads", pool_threads(p));
    printf("%u threads\n", pool_threads(p));
    s = (struct steps){.pool = p, .n = STEPS};
    pool_run(p, time_barriers, &s); // the kernel moves a caller off a thread's core
    for (unsigned rested = 0; rested < 2; rested++) {
        s = (struct steps){.pool = p, .n = rested ? RESTED_STEPS : STEPS, .rested = rested};
        pool_run(p, time_barriers, &s);
        json_object_set_new(all, rested ? "barrier_parked" : "barrier",
                            report_steps("barrier", &s));
        time_jobs(&s);
        json_object_set_new(all, rested ? "job_parked" : "job", report_steps("empty job", &s));
    }
    json_array_append_new(to, all);
}

static void bench_barriers(json_t *to, const struct options *o)
{
    unsigned threads[MAX_LIST], n = numbers(o->threads, threads);
    for (unsigned k = 0; k < n; k++) {
        AUTO(pool_free) struct pool *p = NULL;
        if (threads[k] > 1 && pool_new(threads[k], true, &p) == 0)
            bench_steps(to, p);
    }
}

static _Noreturn void usage(void)
{
    fprintf(stderr,
            "bench_kernels [--types Q8_0,Q4_0,F16] [--tiers c,avx2,avx512] [--rows 1,2,4,8]\n"
            "              [--threads 1,2] [--walks 8:2048,1:0] [--reps 9] [--shape 2048x8192]\n"
            "              [--mib 256] [--json FILE]\n");
    exit(2);
}

static struct options parse(int argc, char **argv)
{
    struct options o = {.types = "Q8_0,Q4_0,F16",
                        .tiers = "avx2,avx512",
                        .rows = "1,2,4,8,16,64,512",
                        .threads = "1,2",
                        .walks = "0:0",
                        .reps = 9,
                        .n_out = 2048,
                        .n_in = 8192,
                        .mib = 256};
    static const struct option known[] = {
        {"types", 1, NULL, 't'}, {"tiers", 1, NULL, 'k'},
        {"rows", 1, NULL, 'm'},  {"threads", 1, NULL, 'n'},
        {"reps", 1, NULL, 'r'},  {"shape", 1, NULL, 's'},
        {"mib", 1, NULL, 'b'},   {"json", 1, NULL, 'j'},
        {"walks", 1, NULL, 'w'}, {0},
    };
    for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        if (c == 't')
            o.types = optarg;
        else if (c == 'k')
            o.tiers = optarg;
        else if (c == 'm')
            o.rows = optarg;
        else if (c == 'n')
            o.threads = optarg;
        else if (c == 'r')
            o.reps = (unsigned)atoi(optarg) % MAX_REPS;
        else if (c == 's' && sscanf(optarg, "%ux%u", &o.n_out, &o.n_in) == 2)
            continue;
        else if (c == 'b')
            o.mib = (unsigned)atoi(optarg);
        else if (c == 'w')
            o.walks = optarg;
        else if (c == 'j')
            o.json = optarg;
        else
            usage();
    }
    return o;
}

int main(int argc, char **argv)
{
    struct options o = parse(argc, argv);
    kernel_thread_init();
    json_t *all = json_object(), *products = json_array(), *barriers = json_array();
    json_object_set_new(all, "products", products);
    json_object_set_new(all, "barriers", barriers);
    for (unsigned i = 0; i < WEIGHTS_TYPES; i++)
        if (lib_listed(o.types, weights_types[i].name))
            bench_type(products, &o, &weights_types[i]);
    bench_barriers(barriers, &o);
    if (o.json && json_dump_file(all, o.json, JSON_INDENT(1)) < 0)
        return 1;
    json_decref(all);
    return 0;
}

/* bench_model.c - what a model reaches on this machine: decode and prefill in tokens/s, and the
 * cost of verifying M rows, t(M)/t(1), M = 1 .. 16.
 *
 *   bench_model [--model FILE]... [--threads N] [--context N] [--reps N] [--json FILE]
 *
 * Without --model: the embedded target, and synthetic models of 0.1b and 1b Q8_0 that are written
 * to the build folder once. All M are measured in turns, so a machine whose memory slows down slows
 * all of them; printed are the median and the range from the first to the last tenth. */
#include "base/err.h"
#include "lib/lib.h"
#include "lib/rig.h"
#include "lib/synth.h"
#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAX_M 16
#define MAX_REPS 101
#define MAX_MODELS 8
#define N_PREFILLS 2

static const uint32_t prefills[N_PREFILLS] = {128, 512};

struct options {
    const char *models[MAX_MODELS], *json;
    unsigned n_models, n_threads, context, reps;
};

struct spread {
    double median, low, high;
};

struct result {
    struct spread verify[MAX_M + 1], prefill[N_PREFILLS]; // ms
};

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static struct spread spread_of(double *v, unsigned n)
{
    qsort(v, n, sizeof(*v), by_size);
    return (struct spread){v[n / 2], v[n / 10], v[n - 1 - n / 10]};
}

/* ---- measuring ---- */

/* m rows behind the context, logits for each; the rows are dropped again. */
static double time_rows(struct rig *r, struct kv_seq *seq, uint32_t m)
{
    struct forward_row rows[MAX_M];
    uint32_t base = seq->len;
    if (kv_grow(r->kv, seq, m) < 0)
        abort();
    for (uint32_t i = 0; i < m; i++)
        rows[i] = (struct forward_row){seq, 300 + i * 7, base + i, base + i, -1, true};
    double from = now_ms();
    forward_run(r->forward, rows, m);
    double took = now_ms() - from;
    kv_keep(r->kv, seq, base, NULL, 0);
    return took;
}

static double time_prefill(struct rig *r, const uint32_t *tokens, uint32_t n)
{
    struct kv_seq seq = rig_seq(r);
    double from = now_ms();
    rig_feed(r, &seq, tokens, n - 1, 0, NULL);
    rig_step(r, &seq, tokens[n - 1]);
    double took = now_ms() - from;
    kv_seq_done(r->kv, &seq);
    return took;
}

static void measure(struct rig *r, const struct options *o, struct result *to)
{
    static double verify[MAX_M + 1][MAX_REPS], prefill[N_PREFILLS][MAX_REPS];
    struct kv_seq seq = rig_seq(r);
    uint32_t n = o->context > 512 ? o->context : 512, n_prefill_reps = 0;
    uint32_t *tokens = calloc(n, sizeof(*tokens));
    if (!tokens)
        abort();
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = 300 + i * 37 % (r->model->params.n_vocab - 400);
    rig_feed(r, &seq, tokens, o->context, 0, NULL);
    time_rows(r, &seq, MAX_M); // warm
    for (unsigned rep = 0; rep < o->reps; rep++) {
        for (uint32_t m = 1; m <= MAX_M; m++)
            verify[m][rep] = time_rows(r, &seq, m);
        for (int p = 0; p < N_PREFILLS && rep % 4 == 0; p++)
            prefill[p][n_prefill_reps] = time_prefill(r, tokens, prefills[p]);
        n_prefill_reps += rep % 4 == 0;
    }
    for (uint32_t m = 1; m <= MAX_M; m++)
        to->verify[m] = spread_of(verify[m], o->reps);
    for (int p = 0; p < N_PREFILLS; p++)
        to->prefill[p] = spread_of(prefill[p], n_prefill_reps);
    kv_seq_done(r->kv, &seq);
    free(tokens);
}

/* ---- telling ---- */

static void print_result(const char *name, const struct rig *r, const struct options *o,
                         const struct result *t)
{
    double one = t->verify[1].median;
    printf("%s: %.1f MiB of weights, kernel %s, %u threads, context %u\n", name,
           (double)r->model->bytes / 0x1p20, r->model->kernel->name, o->n_threads, o->context);
    printf("  decode %.1f tok/s (%.1f .. %.1f), weights read at %.1f GB/s\n", 1e3 / one,
           1e3 / t->verify[1].high, 1e3 / t->verify[1].low, (double)r->model->bytes / one / 1e6);
    for (int p = 0; p < N_PREFILLS; p++)
        printf("  prefill of %u: %.0f tok/s (%.0f .. %.0f)\n", prefills[p],
               1e3 * prefills[p] / t->prefill[p].median, 1e3 * prefills[p] / t->prefill[p].high,
               1e3 * prefills[p] / t->prefill[p].low);
    printf("  %3s %9s %19s %10s\n", "M", "ms", "tenth .. tenth", "t(M)/t(1)");
    for (uint32_t m = 1; m <= MAX_M; m++)
        printf("  %3u %9.3f %8.3f .. %7.3f %10.2f\n", m, t->verify[m].median, t->verify[m].low,
               t->verify[m].high, t->verify[m].median / one);
    fflush(stdout);
}

static json_t *json_of(struct spread s)
{
    return json_pack("{s:f, s:f, s:f}", "median_ms", s.median, "low_ms", s.low, "high_ms", s.high);
}

static json_t *json_result(const char *name, const struct rig *r, const struct options *o,
                           const struct result *t)
{
    json_t *all = json_pack("{s:s, s:s, s:i, s:i, s:I}", "model", name, "kernel",
                            r->model->kernel->name, "threads", o->n_threads, "context", o->context,
                            "bytes", (json_int_t)r->model->bytes);
    json_t *verify = json_array(), *prefill = json_object();
    for (uint32_t m = 1; m <= MAX_M; m++)
        json_array_append_new(verify, json_of(t->verify[m]));
    for (int p = 0; p < N_PREFILLS; p++) {
        char key[16];
        snprintf(key, sizeof(key), "%u", prefills[p]);
        json_object_set_new(prefill, key, json_of(t->prefill[p]));
    }
    json_object_set_new(all, "verify", verify);
    json_object_set_new(all, "prefill", prefill);
    return all;
}

static json_t *bench_file(const char *path, const struct options *o)
{
    struct rig rig;
    struct result result;
    const char *slash = strrchr(path, '/');
    uint32_t rows = o->context > 512 ? o->context : 512;
    rig_open(&rig, path,
             &(struct rig_options){.may_be_alone = true,
                                   .n_threads = o->n_threads,
                                   .max_rows = 512,
                                   .n_blocks = 2 * (rows / KV_BLOCK + 3)});
    measure(&rig, o, &result);
    print_result(slash ? slash + 1 : path, &rig, o, &result);
    json_t *told = json_result(slash ? slash + 1 : path, &rig, o, &result);
    rig_close(&rig);
    return told;
}

/* ---- models and options ---- */

/* The synthetic model's file, written if it is not there yet. */
static const char *synthetic(const char *shape, char *path, size_t size)
{
    snprintf(path, size, "%s/synthetic-%s-q8_0.gguf", BINARY_DIR, shape);
    if (access(path, R_OK) == 0)
        return path;
    printf("writing %s ...\n", path);
    fflush(stdout);
    if (synth_write(path, shape, "q8_0", 1) < 0) {
        fprintf(stderr, "bench_model: %s\n", fail_text());
        exit(1);
    }
    return path;
}

static void default_models(struct options *o)
{
    static char small[4096], large[4096];
    o->models[0] = SOURCE_DIR "/models/tales-11m-q8_0.gguf";
    o->models[1] = synthetic("0.1b", small, sizeof(small));
    o->models[2] = synthetic("1b", large, sizeof(large));
    o->n_models = 3;
}

static void read_options(int argc, char **argv, struct options *o)
{
    static const struct option options[] = {
        {"model", required_argument, NULL, 'm'},   {"threads", required_argument, NULL, 't'},
        {"context", required_argument, NULL, 'c'}, {"reps", required_argument, NULL, 'r'},
        {"json", required_argument, NULL, 'j'},    {0}};
    *o = (struct options){
        .n_threads = (unsigned)sysconf(_SC_NPROCESSORS_ONLN), .context = 128, .reps = 21};
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (c == 'm' && o->n_models < MAX_MODELS)
            o->models[o->n_models++] = optarg;
        else if (c == 't')
            o->n_threads = (unsigned)atoi(optarg);
        else if (c == 'c')
            o->context = (unsigned)atoi(optarg);
        else if (c == 'r')
            o->reps = (unsigned)atoi(optarg);
        else if (c == 'j')
            o->json = optarg;
        else
            exit(2);
    }
    if (o->reps < 1 || o->reps > MAX_REPS || o->context < 1 || o->context > 100000) {
        fprintf(stderr, "bench_model: --reps 1 .. %d, --context 1 .. 100000\n", MAX_REPS);
        exit(2);
    }
}

int main(int argc, char **argv)
{
    struct options o;
    read_options(argc, argv, &o);
    if (o.n_models == 0)
        default_models(&o);
    json_t *all = json_array();
    for (unsigned i = 0; i < o.n_models; i++)
        json_array_append_new(all, bench_file(o.models[i], &o));
    int r = o.json ? json_dump_file(all, o.json, JSON_INDENT(1)) : 0;
    if (r < 0)
        fprintf(stderr, "bench_model: cannot write %s\n", o.json);
    json_decref(all);
    return r < 0;
}

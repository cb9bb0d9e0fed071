/* bench_attn.c - the cost of attention: rows of one sequence together, compared with the same rows
 * one at a time, by shape, context and tier. CPU time of one thread, minimum of the repetitions.
 * Both ways are measured alternately.
 *
 *   bench_attn [--shapes 8x4x64,8x4x128,3x3x64] [--contexts 256,4096,8192] [--rows 1,8,16,512]
 *              [--types int8,f16] [--tiers avx2,avx512] [--reps 5] [--mib 128]
 *
 * A shape is KV heads x query heads of each x head_dim. As in a pass, the layers of K and V follow
 * each other. Together they fill --mib, so data beyond the CPU caches comes from memory. */
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "kernel/kernel_impl.h"
#include "lib/lib.h"
#include "lib/rigs/kernel_tiers.h"
#include "lib/models/weights.h"

#define MAX_ROWS 512

struct options {
    const char *shapes, *contexts, *rows, *types, *tiers;
    unsigned reps, mib;
};

struct scene {
    uint32_t n_kv_heads, group, head_dim, context, n_layers;
    uint32_t *blocks;
    struct kernel_sight sights[MAX_ROWS];
    enum kernel_kv type;
    size_t head, block, layer; // bytes of a block for one head, for all heads; of all blocks
    char *kv;                  // (n_layers, context / 16 + 1, n_kv_heads, head bytes)
    float *q, *out, *scratch;
};

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* The next number of a list, 0 at the end. Moves *list after it. */
static uint32_t next(const char **list)
{
    uint32_t x = (uint32_t)strtoul(*list, (char **)list, 10);
    *list += **list == ',' || **list == 'x';
    return x;
}

/* Attention of a layer for the last n_rows positions of the context, a chain; `step` rows per
 * call. */
static void attend(const struct kernel *k, const struct scene *s, uint32_t layer, uint32_t n_rows,
                   uint32_t step)
{
    size_t stride = (size_t)s->n_kv_heads * s->head_dim, row = stride * s->group;
    const char *kv = s->kv + layer * s->layer;
    for (uint32_t head = 0; head < s->n_kv_heads; head++)
        for (uint32_t r = 0; r < n_rows; r += step)
            k->attn(&(struct kernel_attn){
                .q = s->q + r * row + head * s->group * s->head_dim,
                .out = s->out + r * row + head * s->group * s->head_dim,
                .row_stride = row,
                .sights = s->sights + MAX_ROWS - n_rows + r,
                .n_rows = step,
                .n_heads = s->group,
                .head_dim = s->head_dim,
                .scale = 1 / sqrtf((float)s->head_dim),
                .blocks = s->blocks,
                .type = s->type,
                .kv = kv + head * s->head,
                .block = s->block,
                .scratch = s->scratch,
            });
}

static double pass_us(const struct kernel *k, const struct scene *s, uint32_t n_rows, uint32_t step)
{
    double start = now_us();
    uint32_t n_layers = n_rows > 16 ? 1 : s->n_layers; // many rows read K and V from the caches
    for (uint32_t layer = 0; layer < n_layers; layer++)
        attend(k, s, layer, n_rows, step);
    return (now_us() - start) / n_layers;
}

static void bench_rows(const struct options *o, const struct kernel *k, const struct scene *s)
{
    double first = 0;
    const char *list = o->rows;
    for (uint32_t n_rows; (n_rows = next(&list)) && n_rows <= MAX_ROWS && n_rows <= s->context;) {
        double together = INFINITY, alone = INFINITY;
        for (unsigned rep = 0; rep < o->reps; rep++) {
            together = fmin(together, pass_us(k, s, n_rows, n_rows));
            alone = fmin(alone, pass_us(k, s, n_rows, 1));
        }
        first = first > 0 ? first : together;
        printf("%-7s %-4s %ux%ux%-4u context %-6u M %-4u %10.1f us a layer  %6.2f of one by one  "
               "x%.2f\n",
               k->name, kernel_kv_name(s->type), s->n_kv_heads, s->group, s->head_dim, s->context,
               n_rows, together, together / alone, together / first);
        fflush(stdout);
    }
}

static void fill(const struct kernel *k, struct scene *s)
{
    float *x = weights_floats(1, 4096, 1, false);
    size_t n_blocks = s->n_layers * s->layer / s->head;
    for (size_t i = 0; i < n_blocks * 16; i++)
        k->kv_put(s->type, x + i % 3500, x + i % 3491, s->head_dim, i % 16,
                  s->kv + i / 16 * s->head);
    free(x);
}

static struct scene scene_of(const struct options *o, enum kernel_kv type, const uint32_t shape[3],
                             uint32_t context)
{
    struct scene s = {
        .n_kv_heads = shape[0], .group = shape[1], .head_dim = shape[2], .type = type};
    size_t row = (size_t)shape[0] * shape[2];
    const struct kernel *best;
    s.context = context;
    s.head = kernel_kv_bytes(type, shape[2]);
    s.block = s.head * shape[0];
    s.layer = (context / 16 + 1) * s.block;
    s.n_layers = (uint32_t)(((size_t)o->mib << 20) / s.layer) + 1;
    s.kv = weights_alloc(s.n_layers * s.layer);
    if (kernel_init(&best) == 0)
        fill(best, &s);
    s.q = weights_floats(MAX_ROWS, (uint32_t)row * s.group, 2, false);
    s.out = weights_alloc(MAX_ROWS * row * s.group * sizeof(float));
    s.scratch = weights_alloc(KERNEL_ATTN_SCRATCH(s.head_dim) * sizeof(float));
    s.blocks = weights_alloc((context / 16 + 1) * sizeof(*s.blocks));
    for (uint32_t b = 0; b <= context / 16; b++)
        s.blocks[b] = b;
    for (uint32_t i = 0; i < MAX_ROWS && i < context; i++)
        s.sights[MAX_ROWS - 1 - i].n_base = context - i;
    return s;
}

static void scene_done(struct scene *s)
{
    free(s->kv);
    free(s->q);
    free(s->out);
    free(s->scratch);
    free(s->blocks);
}

static void bench_shape(const struct options *o, enum kernel_kv type, const uint32_t shape[3])
{
    const char *list = o->contexts;
    for (uint32_t context; (context = next(&list));) {
        struct scene s = scene_of(o, type, shape, context);
        const struct kernel *tiers[KERNEL_TIERS_MAX];
        unsigned n_tiers = kernel_tiers_here(tiers);
        for (unsigned i = 0; i < n_tiers; i++)
            if (lib_listed(o->tiers, tiers[i]->name))
                bench_rows(o, tiers[i], &s);
        scene_done(&s);
    }
}

static struct options parse(int argc, char **argv)
{
    struct options o = {
        "8x4x64,8x4x128,3x3x64", "256,4096,8192", "1,8,16,512", "int8,f16", "avx2,avx512", 5, 128};
    static const struct option known[] = {
        {"shapes", 1, NULL, 's'}, {"contexts", 1, NULL, 'c'},
        {"rows", 1, NULL, 'm'},   {"types", 1, NULL, 't'},
        {"tiers", 1, NULL, 'k'},  {"reps", 1, NULL, 'r'},
        {"mib", 1, NULL, 'b'},    {0},
    };
    for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        if (c == 's')
            o.shapes = optarg;
        else if (c == 'c')
            o.contexts = optarg;
        else if (c == 'm')
            o.rows = optarg;
        else if (c == 't')
            o.types = optarg;
        else if (c == 'k')
            o.tiers = optarg;
        else if (c == 'r')
            o.reps = (unsigned)atoi(optarg);
        else if (c == 'b')
            o.mib = (unsigned)atoi(optarg);
        else
            exit(2); // getopt has printed the reason
    }
    return o;
}

int main(int argc, char **argv)
{
    struct options o = parse(argc, argv);
    kernel_thread_init();
    const char *list = o.shapes;
    for (uint32_t shape[3]; (shape[0] = next(&list));) {
        shape[1] = next(&list);
        shape[2] = next(&list);
        for (enum kernel_kv type = KERNEL_KV_F16; type <= KERNEL_KV_INT8; type++)
            if (lib_listed(o.types, kernel_kv_name(type)))
                bench_shape(&o, type, shape);
    }
    return 0;
}

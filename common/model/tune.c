/* tune.c - times the candidates alternately, so that a short disturbance by other processes does
 * not affect all measurements of one of them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/cores.h"
#include "base/err.h"
#include "base/log.h"
#include "base/minmax.h"
#include "base/rng.h"
#include "file/result_file.h"
#include "model/tune.h"

#define TIME_US 1000000         // no measurement begins after it
#define TURNS 9                 // the fastest counts
#define SAMPLE_BYTES (8u << 20) // of weights per thread, read in one measurement
#define MAX_PIECES 256
#define MARGIN 0.97 // another walk than the usual one must take less than this part of its time

/* Each is the fastest for some type and rows on a CPU that was measured: docs/benchmarks.md,
 * "kernels". */
static const struct kernel_walk candidates[] = {{8, 2048}, {4, 2048}, {2, 2048}, {1, 2048}};
#define N_CANDIDATES ARRAY_LEN(candidates)

enum { ONE, MORE, N_ROWS };
static const uint32_t rows_of[N_ROWS] = {[ONE] = 1, [MORE] = TUNE_MORE_ROWS};

/* Tiles [from, to) of a matrix. */
struct piece {
    const struct kernel_mat *w;
    uint32_t from, to;
};

/* The matrices of one type and shape. */
struct shape {
    struct tune_choice *choice;
    uint32_t at, tile;                 // the next sample begins at this matrix and tile
    double best[N_ROWS][N_CANDIDATES]; // us per byte; 0: not timed
};

struct tuner {
    struct model *m;
    struct pool *pool;
    struct shape shapes[TUNE_MAX];
    uint32_t n_shapes;
    float *x; // (TUNE_MORE_ROWS, the largest n_in)
    char *act;
    float *y; // (TUNE_MORE_ROWS, the largest n_out)
    /* The measurement that runs. */
    struct piece pieces[MAX_PIECES];
    uint32_t n_pieces, n_rows;
    struct kernel_walk walk;
    size_t act_bytes;
};

static bool has_shape(const struct kernel_mat *w, const struct tune_choice *c)
{
    return w->type == c->type && w->n_out == c->n_out && w->n_in == c->n_in;
}

/* NULL: its matrices are not timed. */
static struct shape *find_shape(struct tuner *t, const struct kernel_mat *w)
{
    for (uint32_t i = 0; i < t->n_shapes; i++)
        if (has_shape(w, t->shapes[i].choice))
            return &t->shapes[i];
    return NULL;
}

/* Gives every matrix the usual walks, and lists the types and shapes that have walks. */
static void list_shapes(struct tuner *t, struct tune *tune)
{
    for (uint32_t i = 0; i < t->m->n_mats; i++) {
        struct kernel_mat *w = t->m->mats[i];
        w->one = kernel_usual_walk();
        w->more = kernel_usual_walk();
        if (!kernel_has_walks(t->m->kernel, w->type) || find_shape(t, w) || tune->n == TUNE_MAX)
            continue;
        struct tune_choice *c = &tune->of[tune->n++];
        *c = (struct tune_choice){w->type, w->n_out, w->n_in, w->one, w->more};
        t->shapes[t->n_shapes++] = (struct shape){.choice = c, .at = i};
    }
}

/* ---- one measurement ---- */

static void next_matrix(const struct tuner *t, struct shape *s)
{
    s->tile = 0;
    do
        s->at = (s->at + 1) % t->m->n_mats;
    while (!has_shape(t->m->mats[s->at], s->choice));
}

/* Takes the next weights of the shape, each at most once. Their size in bytes. */
static size_t take_sample(struct tuner *t, struct shape *s)
{
    const struct tune_choice *c = s->choice;
    const size_t tile_bytes = kernel_packed_bytes(c->type, KERNEL_TILE, c->n_in);
    const uint32_t n_tiles = model_tiles(t->m->mats[s->at]), first = s->at, first_tile = s->tile;
    const size_t wanted = (size_t)SAMPLE_BYTES * pool_threads(t->pool) / tile_bytes + 1;
    size_t taken = 0;
    for (t->n_pieces = 0; taken < wanted && t->n_pieces < MAX_PIECES;) {
        uint32_t end = taken && s->at == first && s->tile < first_tile ? first_tile : n_tiles;
        uint32_t n = end - s->tile < wanted - taken ? end - s->tile : (uint32_t)(wanted - taken);
        t->pieces[t->n_pieces++] = (struct piece){t->m->mats[s->at], s->tile, s->tile + n};
        taken += n;
        s->tile += n;
        if (s->tile == n_tiles)
            next_matrix(t, s);
        if (s->at == first && s->tile == first_tile)
            break;
    }
    return taken * tile_bytes;
}

static void prepare(struct tuner *t, const struct tune_choice *c)
{
    const struct kernel *k = t->m->kernel;
    enum kernel_form form = k->form(c->type, t->n_rows);
    t->act_bytes = kernel_form_bytes(form, c->n_in);
    for (uint32_t r = 0; r < t->n_rows; r++)
        k->prepare(form, t->x + (size_t)r * c->n_in, c->n_in, r, t->n_rows, t->act, t->act_bytes);
}

/* The barriers keep two threads from the same columns of y. */
static void multiply(void *arg, unsigned i, unsigned n)
{
    const struct tuner *t = arg;
    kernel_thread_init();
    for (uint32_t p = 0; p < t->n_pieces; p++) {
        const struct piece *piece = &t->pieces[p];
        struct kernel_mat w = *piece->w;
        unsigned from, to;
        pool_slice(i, n, piece->to - piece->from, 1, &from, &to);
        from = (piece->from + from) * KERNEL_TILE;
        to = (piece->from + to) * KERNEL_TILE;
        w.one = w.more = t->walk;
        if (from < to)
            t->m->kernel->matmul(&w, t->act, t->act_bytes, t->n_rows, t->y, w.n_out, from,
                                 to < w.n_out ? to : w.n_out);
        pool_barrier(t->pool);
    }
}

static void measure(struct tuner *t, struct shape *s, int rows, uint32_t candidate)
{
    double *best = &s->best[rows][candidate];
    t->n_rows = rows_of[rows];
    t->walk = candidates[candidate];
    size_t bytes = take_sample(t, s);
    prepare(t, s->choice);
    int64_t start_us = clock_us();
    pool_run(t->pool, multiply, t);
    double us = (double)(clock_us() - start_us) / (double)bytes;
    *best = *best > 0 && *best < us ? *best : us;
}

/* ---- all measurements ---- */

/* Between two samples of a shape come those of all other shapes: as in a pass, the caches then hold
 * other weights. */
static void measure_all(struct tuner *t)
{
    const int64_t until_us = clock_us() + TIME_US;
    for (uint32_t turn = 0; turn < TURNS; turn++)
        for (uint32_t c = 0; c < N_CANDIDATES; c++)
            for (int rows = 0; rows < N_ROWS; rows++)
                for (uint32_t i = 0; i < t->n_shapes; i++) {
                    if (clock_us() >= until_us)
                        return;
                    measure(t, &t->shapes[i], rows, c);
                }
}

static bool same_walk(struct kernel_walk a, struct kernel_walk b)
{
    return a.n_streams == b.n_streams && a.ahead == b.ahead;
}

/* The fastest, or the usual one if that is nearly as fast or was not timed. */
static void choose(const double *us, struct kernel_walk *walk)
{
    double limit = 0;
    for (uint32_t c = 0; c < N_CANDIDATES; c++)
        if (same_walk(candidates[c], *walk))
            limit = us[c] * MARGIN;
    for (uint32_t c = 0; c < N_CANDIDATES; c++)
        if (us[c] > 0 && us[c] < limit) {
            limit = us[c];
            *walk = candidates[c];
        }
}

static void choose_all(struct tuner *t)
{
    for (uint32_t i = 0; i < t->n_shapes; i++) {
        struct shape *s = &t->shapes[i];
        choose(s->best[ONE], &s->choice->one);
        choose(s->best[MORE], &s->choice->more);
    }
}

static void set_walks(struct tuner *t)
{
    for (uint32_t i = 0; i < t->m->n_mats; i++) {
        struct kernel_mat *w = t->m->mats[i];
        const struct shape *s = find_shape(t, w);
        if (!s)
            continue;
        w->one = s->choice->one;
        w->more = s->choice->more;
    }
}

/* Memory for the activations of all shapes. */
static int allocate(struct tuner *t)
{
    size_t n_in = 0, n_out = 0, act_bytes = 0;
    for (uint32_t i = 0; i < t->n_shapes; i++) {
        const struct tune_choice *c = t->shapes[i].choice;
        for (int rows = 0; rows < N_ROWS; rows++)
            act_bytes = max_size(
                act_bytes, kernel_form_bytes(t->m->kernel->form(c->type, rows_of[rows]), c->n_in));
        n_in = max_size(n_in, c->n_in);
        n_out = max_size(n_out, c->n_out);
    }
    t->x = calloc(TUNE_MORE_ROWS * n_in, sizeof(float));
    t->y = calloc(TUNE_MORE_ROWS * n_out, sizeof(float));
    t->act = aligned_alloc(KERNEL_ALIGN, KERNEL_ROWS * act_bytes);
    if (!t->x || !t->y || !t->act)
        return fail(-ENOMEM, "no memory to time the kernels");
    for (size_t i = 0; i < TUNE_MORE_ROWS * n_in; i++)
        t->x[i] = (float)(rng_splitmix64(i) >> 40) * 0x1p-23f - 1;
    return 0;
}

static void tuner_done(struct tuner *t)
{
    free(t->x);
    free(t->y);
    free(t->act);
}

/* TANDEM_TUNE: on (the default) or off. */
static int read_wanted(bool *ret)
{
    const char *value = getenv("TANDEM_TUNE");
    *ret = !value || !*value || !strcmp(value, "on");
    if (!*ret && strcmp(value, "off") != 0)
        return fail(-EINVAL, "TANDEM_TUNE=%.32s: must be on or off", value);
    return 0;
}

/* ---- the choice in a folder ---- */

struct saved {
    struct {
        struct kernel_walk one, more;
    } of[TUNE_MAX];
};

uint64_t tune_machine(const struct kernel *k, const struct pool *pool)
{
    uint64_t key = rng_splitmix64(cores_model_digest("") ^ pool_threads(pool));
    for (const char *c = k->name; *c; c++)
        key = rng_splitmix64(key ^ (unsigned char)*c);
    return key;
}

/* Of all that decides which walk is fastest. */
static uint64_t saved_key(const struct tuner *t)
{
    uint64_t key = tune_machine(t->m->kernel, t->pool);
    for (uint32_t c = 0; c < N_CANDIDATES; c++)
        key = rng_splitmix64(key ^ candidates[c].n_streams ^ (uint64_t)candidates[c].ahead << 8);
    for (uint32_t i = 0; i < t->n_shapes; i++) {
        const struct tune_choice *c = t->shapes[i].choice;
        key = rng_splitmix64(rng_splitmix64(key ^ c->type) ^ ((uint64_t)c->n_out << 32 | c->n_in));
    }
    return key;
}

static bool is_candidate(struct kernel_walk w)
{
    for (uint32_t c = 0; c < N_CANDIDATES; c++)
        if (same_walk(w, candidates[c]))
            return true;
    return false;
}

static bool read_saved(struct tuner *t, const char *folder)
{
    struct saved s;
    if (result_file_read(folder, "tune", saved_key(t), &s, sizeof(s)) < 0)
        return false;
    for (uint32_t i = 0; i < t->n_shapes; i++)
        if (!is_candidate(s.of[i].one) || !is_candidate(s.of[i].more))
            return false;
    for (uint32_t i = 0; i < t->n_shapes; i++) {
        t->shapes[i].choice->one = s.of[i].one;
        t->shapes[i].choice->more = s.of[i].more;
    }
    return true;
}

static void write_saved(const struct tuner *t, const char *folder)
{
    struct saved s;
    memset(&s, 0, sizeof(s)); // the padding, too
    for (uint32_t i = 0; i < t->n_shapes; i++) {
        s.of[i].one = t->shapes[i].choice->one;
        s.of[i].more = t->shapes[i].choice->more;
    }
    if (result_file_write(folder, "tune", saved_key(t), &s, sizeof(s)) < 0)
        log_warn("the chosen kernel walks are not kept: %s", fail_text());
}

static int time_walks(struct tuner *t)
{
    int err = allocate(t);
    if (err < 0)
        return err;
    kernel_thread_init();
    measure_all(t);
    choose_all(t);
    return 0;
}

int tune_model(struct model *m, struct pool *pool, const char *folder, struct tune *ret)
{
    struct tuner t = {.m = m, .pool = pool};
    const bool has_folder = folder && *folder;
    bool wanted;
    *ret = (struct tune){0};
    int err = read_wanted(&wanted);
    if (err < 0)
        return err;
    list_shapes(&t, ret);
    if (!t.n_shapes || !wanted)
        return 0;
    if (!has_folder || !read_saved(&t, folder)) {
        err = time_walks(&t);
        if (!err && has_folder)
            write_saved(&t, folder);
    }
    if (!err)
        set_walks(&t);
    ret->timed = !err;
    tuner_done(&t);
    return err;
}

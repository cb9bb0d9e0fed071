/* engine_tool.c - the engine as a child of engine.py: runs passes when told to and says how long
 * each took.
 *
 *   engine_tool MODEL THREADS CONTEXT SEQUENCES
 *
 * loads the model, feeds CONTEXT tokens to each of the sequences and says
 *
 *   ready KERNEL BYTES        BYTES of weights that a pass reads
 *
 * then answers each line of stdin with a line of milliseconds:
 *
 *   pass N ROWS LOGITS REPS   REPS passes of ROWS rows behind the context of each of the first N
 *                             sequences, logits for the last LOGITS rows of each
 *   read STREAMS REPS         reads the same weights as plain memory, so many streams per thread */
#include "lib/rig.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_ROWS 512 // in a pass
#define MAX_SEQUENCES 64
#define MAX_STREAMS 16
#define LINE 64 // bytes

struct tool {
    struct rig rig;
    struct kv_seq seqs[MAX_SEQUENCES];
    unsigned n_seqs, context;
    const char *weights; // of a pass: head and layers lie one after the other
    size_t bytes;
};

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static _Noreturn void refuse(const char *what)
{
    fprintf(stderr, "engine_tool: %s\n", what);
    exit(2);
}

/* peer_child.py takes the same ones. */
static uint32_t token_at(uint32_t i)
{
    return 300 + i * 37 % 600;
}

/* ---- passes ---- */

static double time_pass(struct tool *t, unsigned n_seqs, unsigned n_rows, unsigned n_logits)
{
    static struct forward_row rows[MAX_ROWS];
    unsigned n = 0;
    for (unsigned s = 0; s < n_seqs; s++) {
        if (kv_grow(t->rig.kv, &t->seqs[s], n_rows) < 0)
            refuse("the sequences do not fit");
        for (uint32_t i = 0; i < n_rows; i++) {
            uint32_t at = t->context + i;
            rows[n++] =
                (struct forward_row){&t->seqs[s], token_at(at), at, at, -1, n_rows - i <= n_logits};
        }
    }
    double from = now_ms();
    forward_run(t->rig.forward, rows, n);
    double took = now_ms() - from;
    for (unsigned s = 0; s < n_seqs; s++)
        kv_keep(t->rig.kv, &t->seqs[s], t->context, NULL, 0);
    return took;
}

/* ---- reading ---- */

struct reader {
    const struct tool *tool;
    unsigned n_streams;
    uint64_t sums[POOL_MAX_THREADS]; // so that no load is left out
};

/* A load per line is enough to fetch it. */
static void read_share(void *arg, unsigned i, unsigned n)
{
    struct reader *r = arg;
    unsigned from, to;
    pool_share(i, n, (unsigned)(r->tool->bytes / LINE), r->n_streams, &from, &to);
    const char *at[MAX_STREAMS];
    size_t n_lines = (to - from) / r->n_streams;
    uint64_t sum = 0, word;
    for (unsigned s = 0; s < r->n_streams; s++)
        at[s] = r->tool->weights + (from + s * n_lines) * LINE;
    for (size_t line = 0; line < n_lines; line++)
        for (unsigned s = 0; s < r->n_streams; s++) {
            memcpy(&word, at[s] + line * LINE, sizeof(word));
            sum += word;
        }
    r->sums[i] = sum;
}

static double time_read(const struct tool *t, unsigned n_streams)
{
    static struct reader r;
    r.tool = t;
    r.n_streams = n_streams;
    double from = now_ms();
    pool_run(t->rig.pool, read_share, &r);
    return now_ms() - from;
}

/* ---- start and loop ---- */

static void note(struct tool *t, const char **end, const struct kernel_mat *w)
{
    const char *from = w->data, *to = from + kernel_packed_bytes(w->type, w->n_out, w->n_in);
    t->weights = !t->weights || from < t->weights ? from : t->weights;
    *end = to > *end ? to : *end;
}

static void find_weights(struct tool *t)
{
    const struct model *m = t->rig.model;
    const char *end = NULL;
    note(t, &end, &m->head);
    for (uint32_t l = 0; l < m->params.n_layers; l++) {
        note(t, &end, &m->layers[l].q);
        note(t, &end, &m->layers[l].down);
    }
    t->bytes = (size_t)(end - t->weights);
}

static void feed_contexts(struct tool *t)
{
    uint32_t *tokens = calloc(t->context + 1, sizeof(*tokens));
    if (!tokens)
        abort();
    for (uint32_t i = 0; i < t->context; i++)
        tokens[i] = token_at(i);
    for (unsigned s = 0; s < t->n_seqs; s++) {
        t->seqs[s] = rig_seq(&t->rig);
        rig_feed(&t->rig, &t->seqs[s], tokens, t->context, 0, NULL);
    }
    free(tokens);
}

static void answer(struct tool *t, const char *line)
{
    unsigned n = 0, rows = 0, logits = 0, reps = 0, streams = 0;
    bool is_pass = sscanf(line, "pass %u %u %u %u", &n, &rows, &logits, &reps) == 4;
    if (!is_pass && sscanf(line, "read %u %u", &streams, &reps) != 2)
        refuse("a line is \"pass N ROWS LOGITS REPS\" or \"read STREAMS REPS\"");
    if (is_pass && (!n || n > t->n_seqs || !rows || rows > MAX_ROWS / n || !logits))
        refuse("a pass is of 1 .. 512 rows of the sequences there are");
    if (!is_pass && (!streams || streams > MAX_STREAMS))
        refuse("there are 1 .. 16 streams");
    for (unsigned i = 0; i < reps; i++)
        printf("%.4f ", is_pass ? time_pass(t, n, rows, logits) : time_read(t, streams));
    printf("\n");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static struct tool t;
    if (argc != 5)
        refuse("engine_tool MODEL THREADS CONTEXT SEQUENCES");
    t.context = (unsigned)strtoul(argv[3], NULL, 10);
    t.n_seqs = (unsigned)strtoul(argv[4], NULL, 10);
    if (!t.n_seqs || t.n_seqs > MAX_SEQUENCES)
        refuse("SEQUENCES is 1 .. 64");
    unsigned n_blocks = t.n_seqs * ((t.context + MAX_ROWS) / KV_BLOCK + 2);
    rig_open(&t.rig, argv[1],
             &(struct rig_options){.may_be_alone = true, // both as the verifier has it
                                   .pin = true,
                                   .n_threads = (unsigned)strtoul(argv[2], NULL, 10),
                                   .max_rows = MAX_ROWS,
                                   .n_blocks = n_blocks});
    find_weights(&t);
    feed_contexts(&t);
    printf("ready %s %zu\n", t.rig.model->kernel->name, t.bytes);
    fflush(stdout);
    for (char line[256]; fgets(line, sizeof(line), stdin);)
        answer(&t, line);
    for (unsigned s = 0; s < t.n_seqs; s++)
        kv_seq_done(t.rig.kv, &t.seqs[s]);
    rig_close(&t.rig);
    return 0;
}

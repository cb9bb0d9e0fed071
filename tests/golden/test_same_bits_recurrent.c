/* test_same_bits_recurrent.c - recurrent layers: a row's logits are the same bytes whatever chunks,
 * drafts, neighbours, snapshots and threads come before it. */
#include "base/rng.h"
#include "lib/lib.h"
#include "lib/models/tiny.h"
#include "lib/rigs/kernel_tiers.h"
#include "lib/rigs/model_rig.h"
#include <stdlib.h>
#include <string.h>

#define N 200 // tokens of a sequence
#define N_SEQS 3
#define N_STEPS_LONG 100000

static void *file;
static size_t file_len;
static uint64_t dice_state = 5;

static uint32_t dice(uint32_t n)
{
    return (uint32_t)((dice_state = rng_splitmix64(dice_state)) % n);
}

static int write_model(void **state)
{
    (void)state;
    const struct tiny t = {.arch = "qwen35", .seed = 21, .n_layers = 4, .rope_dim = 16};
    file = tiny_write(&t, &file_len);
    return 0;
}

static int drop_model(void **state)
{
    (void)state;
    free(file);
    return 0;
}

static void open_rig(struct model_rig *r, const char *tier, unsigned n_threads)
{
    model_rig_open_memory(
        r, file, file_len,
        &(struct model_rig_options){.tier = tier, .n_threads = n_threads, .max_rows = 64});
}

/* The tokens of sequence s. */
static uint32_t token(uint32_t s, uint32_t i)
{
    return (uint32_t)(rng_splitmix64(1000 * (uint64_t)s + i + 1) % TINY_VOCAB);
}

/* Logits (N, TINY_VOCAB) of sequence s, one row a pass. */
static float *plain_logits(struct model_rig *r, uint32_t s)
{
    float *logits = calloc((size_t)N * TINY_VOCAB, sizeof(*logits));
    assert_non_null(logits);
    struct kv_seq seq = model_rig_seq(r);
    for (uint32_t i = 0; i < N; i++)
        memcpy(logits + (size_t)i * TINY_VOCAB, model_rig_step(r, &seq, token(s, i)),
               TINY_VOCAB * sizeof(*logits));
    kv_seq_done(r->kv, &seq);
    return logits;
}

static void assert_row(const float *got, const float *want, uint32_t i, const char *what)
{
    if (memcmp(got, want + (size_t)i * TINY_VOCAB, TINY_VOCAB * sizeof(*got)) != 0)
        fail_msg("%s: row %u has other bits", what, i);
}

static void tiers_threads_and_chunks_change_nothing(void **state)
{
    (void)state;
    static const uint32_t chunks[] = {2, 3, 16, 63};
    const struct kernel *tiers[KERNEL_TIERS_MAX];
    const unsigned n_tiers = kernel_tiers_here(tiers);
    AUTO(mem_free) float *want = NULL, *got = calloc((size_t)N * TINY_VOCAB, sizeof(*got));
    uint32_t tokens[N];
    for (uint32_t i = 0; i < N; i++)
        tokens[i] = token(0, i);
    for (unsigned t = 0; t < n_tiers; t++)
        for (unsigned n_threads = 1; n_threads <= 3; n_threads++) {
            struct model_rig r;
            open_rig(&r, tiers[t]->name, n_threads);
            if (!want)
                want = plain_logits(&r, 0);
            for (unsigned c = 0; c < ARRAY_LEN(chunks); c++) {
                struct kv_seq seq = model_rig_seq(&r);
                model_rig_feed(&r, &seq, tokens, N, chunks[c], got);
                for (uint32_t i = 0; i < N; i++)
                    assert_row(got + (size_t)i * TINY_VOCAB, want, i, tiers[t]->name);
                kv_seq_done(r.kv, &seq);
            }
            model_rig_close(&r);
        }
}

/* ---- drafts ---- */

/* A sequence that is drafted for. */
struct drafted {
    uint32_t s;      // whose tokens it has
    uint32_t n;      // committed tokens; the row of the last one has not run
    uint32_t n_rows; // of the pass: the last token and a draft
    uint32_t n_right;
    uint32_t first_row;
    struct kv_seq seq;
    float *want;
};

static void add_rows(struct model_rig *r, struct drafted *d)
{
    const uint32_t at = d->n - 1, most = N - d->n;
    const uint32_t n_draft = dice(most < KV_MAX_CHAIN ? most + 1 : KV_MAX_CHAIN + 1);
    uint32_t tokens[KV_MAX_CHAIN + 1];
    d->n_right = dice(n_draft + 1);
    d->n_rows = n_draft + 1;
    for (uint32_t i = 0; i < d->n_rows; i++)
        tokens[i] = (token(d->s, at + i) + (i > d->n_right)) % TINY_VOCAB;
    assert_int_equal(kv_grow(r->kv, &d->seq, d->n_rows), 0);
    d->first_row = r->plan.n_rows;
    pass_plan_add_chain(&r->plan, pass_plan_add_seq(&r->plan, &d->seq, n_draft), tokens, at,
                        d->n_rows, d->n_rows);
}

/* Rows of right tokens are those of the plain sequence; then the right ones are accepted. */
static void accept_rows(struct model_rig *r, struct drafted *d)
{
    uint32_t rows[KV_MAX_CHAIN];
    for (uint32_t i = 0; i <= d->n_right; i++)
        assert_row(forward_logits(r->forward, d->first_row + i), d->want, d->n - 1 + i, "draft");
    for (uint32_t i = 0; i < d->n_right; i++)
        rows[i] = d->n + i;
    kv_keep(r->kv, &d->seq, d->n, rows, d->n_right);
    d->n += d->n_right + 1; // and the target's token
}

static void begin_again(struct model_rig *r, struct drafted *d)
{
    uint32_t tokens[N];
    kv_release(r->kv, &d->seq);
    d->n = 1 + dice(N / 4);
    for (uint32_t i = 0; i < d->n; i++)
        tokens[i] = token(d->s, i);
    model_rig_feed(r, &d->seq, tokens, d->n - 1, 1 + dice(60), NULL);
}

static void accepted_and_cut_drafts_leave_no_trace(void **state)
{
    (void)state;
    const uint32_t n_steps = getenv("TANDEM_TEST_LONG") ? N_STEPS_LONG : 1500;
    struct model_rig r;
    struct drafted all[N_SEQS];
    const struct kv_seq *seqs[N_SEQS];
    open_rig(&r, NULL, 2);
    for (uint32_t s = 0; s < N_SEQS; s++) {
        all[s] = (struct drafted){.s = s, .want = plain_logits(&r, s), .seq = model_rig_seq(&r)};
        begin_again(&r, &all[s]);
        seqs[s] = &all[s].seq;
    }
    for (uint32_t step = 0; step < n_steps; step++) {
        bool runs[N_SEQS];
        pass_plan_clear(&r.plan);
        for (uint32_t s = 0; s < N_SEQS; s++)
            if ((runs[s] = dice(4) > 0)) // one that does not run keeps its log
                add_rows(&r, &all[s]);
        forward_run(r.forward, &r.plan);
        for (uint32_t s = 0; s < N_SEQS; s++)
            if (runs[s])
                accept_rows(&r, &all[s]);
        for (uint32_t s = 0; s < N_SEQS; s++)
            if (all[s].n >= N || dice(50) == 0)
                begin_again(&r, &all[s]);
        assert_true(kv_check(r.kv, seqs, N_SEQS));
    }
    for (uint32_t s = 0; s < N_SEQS; s++) {
        kv_seq_done(r.kv, &all[s].seq);
        free(all[s].want);
    }
    model_rig_close(&r);
}

/* ---- snapshots ---- */

static void a_sequence_that_begins_at_a_snapshot_has_the_same_bits(void **state)
{
    (void)state;
    struct model_rig r;
    const struct kv_root root = {.salt = "", .salt_len = 0};
    uint32_t tokens[N];
    open_rig(&r, NULL, 2);
    assert_int_equal(kv_open_index(r.kv, 1, kv_hash), 0);
    AUTO(mem_free) float *want = plain_logits(&r, 0);
    for (uint32_t i = 0; i < N; i++)
        tokens[i] = token(0, i);
    struct kv_seq a = model_rig_seq(&r), b = model_rig_seq(&r);
    model_rig_feed(&r, &a, tokens, 96, 0, NULL);
    kv_enter(r.kv, &a, &root, tokens, 96);
    kv_snapshot(r.kv, &a, KV_REPLACE_OLDEST, 0);
    model_rig_feed(&r, &a, tokens + 96, 50, 0, NULL); // no snapshot after it
    kv_enter(r.kv, &a, &root, tokens, 146);
    kv_snapshot(r.kv, &a, KV_REPLACE_OLDEST, 0); // not at the end of a block: none
    assert_int_equal(kv_figures(r.kv).n_snapshots, 1);
    for (unsigned released = 0; released < 2; released++) {
        uint32_t held;
        assert_int_equal(kv_find(r.kv, &root, tokens, N, &held), 96 / KV_BLOCK);
        assert_int_equal(kv_match(r.kv, &b, &root, tokens, 95), 0);
        assert_int_equal(kv_match(r.kv, &b, &root, tokens, N), 96);
        for (uint32_t i = 96; i < N; i++)
            assert_row(model_rig_step(&r, &b, tokens[i]), want, i, "after the snapshot");
        kv_release(r.kv, &b);
        kv_release(r.kv, &a);
    }
    kv_seq_done(r.kv, &a);
    kv_seq_done(r.kv, &b);
    model_rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiers_threads_and_chunks_change_nothing),
        cmocka_unit_test(accepted_and_cut_drafts_leave_no_trace),
        cmocka_unit_test(a_sequence_that_begins_at_a_snapshot_has_the_same_bits),
    };
    return cmocka_run_group_tests(tests, write_model, drop_model);
}

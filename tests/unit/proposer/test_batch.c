/* test_batch.c - each sequence of a Round is answered as soon as its draft is done. */
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tandem/v1/proposer.pb-c.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/rng.h"
#include "lib/fakes/failing.h"
#include "lib/lib.h"
#include "lib/rigs/logged.h"
#include "proposer-svc/batch.h"
#include "rpc/rpc.h"

#define N_SEQS 5

/* The clock of the code under test. */
static int64_t now_us = 1000000;
int64_t __wrap_clock_us(void);
int64_t __wrap_clock_us(void)
{
    return now_us;
}

/* A proposer that drafts k tokens, each the length of the context. The last token of the context
 * selects another answer:
 *   9   the draft, with an `unread` that means nothing
 *   10  no tokens, 77 unread
 *   11  never done, 77 unread
 *   12  never done, although it has tokens
 *   13  never done
 * A sparse q has two tokens, a dense one stub_width. */
static uint32_t n_calls, n_asked, stub_width;
static struct prop_ask last_ask;
static const int32_t *stub_parents; // of each draft; NULL: no tree

static void stub_seq_done(void *shared, void *seq, const struct prop_context *c)
{
    (void)shared;
    (void)c;
    (void)seq;
}

static void stub_cut(void *shared, void *seq, const struct prop_context *c, uint32_t keep)
{
    (void)shared;
    (void)seq;
    (void)c;
    (void)keep;
}

static int stub_grow(void *shared, void *seq, const struct prop_context *c)
{
    (void)shared;
    (void)seq;
    (void)c;
    return 0;
}

static void add_sparse_q(struct draft *to)
{
    struct draft_q *q = malloc(sizeof(*q) + 2 * DRAFT_MAX_NODES * 6);
    assert_non_null(q);
    *q = (struct draft_q){.width = 2, .ids = (uint32_t *)(q + 1)};
    q->probs = (uint16_t *)(q->ids + (size_t)2 * DRAFT_MAX_NODES);
    for (uint32_t i = 0; i < 2 * to->n; i++) {
        q->ids[i] = i % 2 ? 7 : to->tokens[i / 2];
        q->probs[i] = i % 2 ? 0 : 65534;
    }
    to->q = q;
}

static void add_dense_q(struct draft *to)
{
    size_t n = (size_t)to->n * stub_width;
    struct draft_q *q = malloc(sizeof(*q) + n * sizeof(float));
    assert_non_null(q);
    *q = (struct draft_q){.width = stub_width, .weights = (float *)(q + 1)};
    for (size_t i = 0; i < n; i++)
        q->weights[i] = (float)i;
    to->q = q;
}

static void stub_draft_one(struct prop_ask *a)
{
    uint32_t kind = a->context.tokens[a->context.n - 1];
    last_ask = *a;
    a->unread = kind >= 9 && kind <= 11 ? 77 : 0;
    a->done = kind < 11 || kind > 13;
    if (kind == 10 || kind == 11 || kind == 13)
        return;
    a->to->n = a->max_depth;
    a->to->tree = stub_parents != NULL;
    a->to->q_mode = a->q_mode;
    for (uint32_t j = 0; j < a->max_depth; j++) {
        a->to->tokens[j] = a->context.n;
        a->to->survival[j] = a->sampling.params.temperature;
        a->to->parents[j] = stub_parents ? stub_parents[j] : 0;
    }
    if (a->q_mode == DRAFT_SPARSE)
        add_sparse_q(a->to);
    if (a->q_mode == DRAFT_DENSE)
        add_dense_q(a->to);
}

static void stub_draft(void *shared, struct prop_ask *const *asks, uint32_t n)
{
    (void)shared;
    n_calls++;
    n_asked += n;
    for (uint32_t i = 0; i < n; i++)
        stub_draft_one(asks[i]);
}

static const struct prop_ops stub = {.name = "stub",
                                     .seq_done = stub_seq_done,
                                     .cut = stub_cut,
                                     .grow = stub_grow,
                                     .draft = stub_draft};

#define POINT_AND_SPARSE (1u << DRAFT_POINT | 1u << DRAFT_SPARSE)

static bool is_slow; // the verifier

static bool stub_is_slow(const struct batch_origin *to)
{
    assert_int_equal(to->stream, 1);
    return is_slow;
}

static struct sessions *sessions;
static struct batch *batch;
static struct metric *rounds, *drafts, *tokens, *needed;

static int open_batch(uint32_t max_sessions, unsigned q_modes)
{
    const struct sessions_config sc = {.ops = &stub,
                                       .max_sessions = max_sessions,
                                       .max_tokens = 1000 * (uint64_t)max_sessions,
                                       .max_context = 1000,
                                       .k_max = 8,
                                       .idle_us = INT64_MAX};
    assert_int_equal(sessions_new(&sc, &sessions), 0);
    rounds = metrics_counter("test_rounds", "", NULL);
    drafts = metrics_counter("test_drafts", "", NULL);
    tokens = metrics_counter("test_tokens", "", NULL);
    needed = metrics_counter("test_needed", "", NULL);
    const struct batch_config bc = {.sessions = sessions,
                                    .ops = &stub,
                                    .q_modes = q_modes,
                                    .is_slow = q_modes == 1u << DRAFT_DENSE ? stub_is_slow : NULL,
                                    .rounds = rounds,
                                    .drafts = drafts,
                                    .tokens = tokens,
                                    .needed = needed,
                                    .seconds = metrics_histogram("test_s", "", NULL, NULL, 0)};
    return batch_new(&bc, &batch);
}

static int start(void **state)
{
    (void)state;
    n_calls = n_asked = 0;
    stub_parents = NULL;
    return open_batch(10, POINT_AND_SPARSE);
}

static int stop(void **state)
{
    (void)state;
    batch_free(batch);
    sessions_free(sessions);
    return 0;
}

static void restart(uint32_t max_sessions, unsigned q_modes)
{
    stop(NULL);
    assert_int_equal(open_batch(max_sessions, q_modes), 0);
}

/* A Round in which the context of sequence i is the token last[i] (0: not in the Round). */
struct request {
    Tandem__V1__Round msg;
    Tandem__V1__RoundSequence seqs[N_SEQS], *pointers[N_SEQS];
    uint32_t tokens[N_SEQS];
};

static Tandem__V1__Round *round_of(struct request *q, const uint32_t last[N_SEQS])
{
    tandem__v1__round__init(&q->msg);
    q->msg.sequences = q->pointers;
    q->msg.budget_us = 1000000000;
    memcpy(q->tokens, last, sizeof(q->tokens));
    for (uint32_t i = 0; i < N_SEQS; i++) {
        Tandem__V1__RoundSequence *s = &q->seqs[i];
        if (!last[i])
            continue;
        tandem__v1__round_sequence__init(s);
        q->pointers[q->msg.n_sequences++] = s;
        s->seq = i;
        s->base_len = 1;
        s->n_tokens = 1;
        s->tokens = &q->tokens[i];
        s->digest = rng_splitmix64(last[i] + 1);
        s->k = 2;
    }
    return &q->msg;
}

static void take(const Tandem__V1__Round *round, uint64_t stream)
{
    struct batch_origin from = {.stream = stream};
    if (batch_take(batch, &from, round, NULL, clock_us()) < 0)
        fail_msg("%s", fail_text());
}

/* The next answer, which must be of that stream. NULL: none. */
static Tandem__V1__Drafts *answer(uint64_t stream)
{
    struct batch_origin from;
    struct rpc_msg *msg = batch_answer(batch, &from);
    if (!msg)
        return NULL;
    assert_int_equal(from.stream, stream);
    Tandem__V1__Drafts *d = (Tandem__V1__Drafts *)rpc_unpack(&tandem__v1__drafts__descriptor, msg);
    rpc_msg_free(msg);
    assert_non_null(d);
    return d;
}

/* The next answer is of that stream and has n drafts. */
static void drop_answer(uint64_t stream, uint32_t n)
{
    Tandem__V1__Drafts *d = answer(stream);
    assert_non_null(d);
    assert_int_equal(d->n_drafts, n);
    tandem__v1__drafts__free_unpacked(d, NULL);
}

static void must_answer(uint64_t stream, uint32_t n, const uint64_t *seqs, uint32_t n_tokens)
{
    Tandem__V1__Drafts *d = answer(stream);
    assert_non_null(d);
    assert_int_equal(d->n_drafts, n);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(d->drafts[i]->seq, seqs[i]);
        assert_int_equal(d->drafts[i]->n_tokens, n_tokens);
    }
    tandem__v1__drafts__free_unpacked(d, NULL);
}

static void waiting_rounds_are_drafted_for_together(void **state)
{
    (void)state;
    struct request a = {0}, b = {0};
    take(round_of(&a, (uint32_t[]){1, 2, 3, 0, 0}), 1);
    take(round_of(&b, (uint32_t[]){4, 5, 0, 0, 0}), 2);
    assert_int_equal(batch_n_open(batch), 5);
    batch_draft(batch);
    assert_int_equal(n_calls, 1);
    assert_int_equal(n_asked, 5);
    must_answer(1, 3, (uint64_t[]){0, 1, 2}, 2);
    must_answer(2, 2, (uint64_t[]){0, 1}, 2);
    assert_null(answer(0));
    assert_int_equal(batch_n_open(batch), 0);
}

static void a_slow_sequence_does_not_delay_the_others(void **state)
{
    (void)state;
    struct request a = {0};
    take(round_of(&a, (uint32_t[]){1, 13, 3, 0, 0}), 1);
    batch_draft(batch);
    must_answer(1, 2, (uint64_t[]){0, 2}, 2);
    assert_null(answer(0));
    assert_int_equal(batch_n_open(batch), 1);
    assert_true(batch_until_us(batch) > clock_us());
    a.tokens[1] = 14; // the session has its own copy
    batch_draft(batch);
    assert_null(answer(0));
    batch_end_stream(batch, 1);
    assert_int_equal(batch_n_open(batch), 0);
}

static void out_of_time_the_answer_is_empty(void **state)
{
    (void)state;
    struct request a = {0};
    round_of(&a, (uint32_t[]){13, 0, 0, 0, 0})->budget_us = 0;
    take(&a.msg, 1);
    batch_draft(batch);
    must_answer(1, 1, (uint64_t[]){0}, 0);
    assert_null(answer(0));
}

static void tokens_of_an_unfinished_draft_are_not_sent(void **state)
{
    (void)state;
    struct request a = {0};
    round_of(&a, (uint32_t[]){12, 0, 0, 0, 0})->budget_us = 0;
    take(&a.msg, 1);
    batch_draft(batch);
    must_answer(1, 1, (uint64_t[]){0}, 0);
    assert_null(answer(0));
}

static uint32_t unread_of(const Tandem__V1__Round *round)
{
    take(round, 1);
    batch_draft(batch);
    Tandem__V1__Drafts *d = answer(1);
    assert_non_null(d);
    uint32_t unread = d->drafts[0]->unread;
    tandem__v1__drafts__free_unpacked(d, NULL);
    return unread;
}

static void an_ask_that_is_not_done_in_time_has_unread(void **state)
{
    (void)state;
    struct request a = {0}, b = {0}, c = {0};
    round_of(&a, (uint32_t[]){13, 0, 0, 0, 0})->budget_us = 0;
    assert_int_equal(unread_of(&a.msg), 1);
    assert_int_equal(unread_of(round_of(&b, (uint32_t[]){1, 0, 0, 0, 0})), 0);
    round_of(&c, (uint32_t[]){2, 0, 0, 0, 0});
    c.seqs[0].digest++; // the digest differs: its context is requested
    assert_int_equal(unread_of(&c.msg), 0);
}

static void unread_is_sent_only_without_tokens(void **state)
{
    (void)state;
    struct request with = {0}, without = {0}, open = {0};
    assert_int_equal(unread_of(round_of(&with, (uint32_t[]){9, 0, 0, 0, 0})), 0);
    assert_int_equal(unread_of(round_of(&without, (uint32_t[]){10, 0, 0, 0, 0})), 77);
    round_of(&open, (uint32_t[]){11, 0, 0, 0, 0})->budget_us = 0;
    assert_int_equal(unread_of(&open.msg), 77);
}

static void p_min_comes_with_each_round(void **state)
{
    (void)state;
    const float sent[] = {0.5f, 0, 1.5f, NAN}, passed[] = {0.5f, 0, 0, 0};
    for (unsigned i = 0; i < 4; i++) {
        struct request a = {0};
        round_of(&a, (uint32_t[]){1, 0, 0, 0, 0});
        a.seqs[0].p_min = sent[i];
        take(&a.msg, 1);
        batch_draft(batch);
        must_answer(1, 1, (uint64_t[]){0}, 2);
        assert_true(last_ask.p_min == passed[i]);
    }
}

static void an_update_ends_the_ask_before_it(void **state)
{
    (void)state;
    struct request a = {0}, b = {0};
    take(round_of(&a, (uint32_t[]){13, 0, 0, 0, 0}), 1);
    batch_draft(batch);
    take(round_of(&b, (uint32_t[]){5, 0, 0, 0, 0}), 1);
    batch_draft(batch);
    must_answer(1, 1, (uint64_t[]){0}, 0);
    must_answer(1, 1, (uint64_t[]){0}, 2);
    assert_null(answer(0));

    a.seqs[0].close = true; // a close ends the open ask too
    a.seqs[0].k = 0;
    struct request c = {0};
    take(round_of(&c, (uint32_t[]){13, 0, 0, 0, 0}), 1);
    take(&a.msg, 1);
    must_answer(1, 1, (uint64_t[]){0}, 0);
    assert_null(answer(0));
}

static void an_update_ends_only_its_own_sequences_ask(void **state)
{
    (void)state;
    struct request a = {0}, other = {0}, b = {0};
    take(round_of(&a, (uint32_t[]){13, 13, 0, 0, 0}), 1);
    take(round_of(&other, (uint32_t[]){13, 0, 0, 0, 0}), 2);
    take(round_of(&b, (uint32_t[]){5, 0, 0, 0, 0}), 1);
    assert_int_equal(batch_n_open(batch), 3); // two open ones, and the new one
    batch_draft(batch);
    must_answer(1, 1, (uint64_t[]){0}, 0);
    must_answer(1, 1, (uint64_t[]){0}, 2);
    assert_null(answer(0));
    assert_int_equal(batch_n_open(batch), 2);
}

/* The number of a sequence means something only within its stream. */
static void an_update_ends_no_older_ask_of_another_stream(void **state)
{
    (void)state;
    struct request other = {0}, a = {0}, b = {0};
    take(round_of(&other, (uint32_t[]){13, 0, 0, 0, 0}), 2);
    take(round_of(&a, (uint32_t[]){13, 0, 0, 0, 0}), 1);
    take(round_of(&b, (uint32_t[]){5, 0, 0, 0, 0}), 1);
    batch_draft(batch);
    must_answer(1, 1, (uint64_t[]){0}, 0);
    must_answer(1, 1, (uint64_t[]){0}, 2);
    assert_null(answer(0));
    assert_int_equal(batch_n_open(batch), 1);
}

static void one_sequence_twice_in_a_round_is_answered_twice(void **state)
{
    (void)state;
    struct request a = {0};
    round_of(&a, (uint32_t[]){5, 6, 0, 0, 0});
    a.seqs[1].seq = 0;
    take(&a.msg, 1);
    batch_draft(batch);
    Tandem__V1__Drafts *d = answer(1);
    assert_int_equal(d->n_drafts, 2);
    assert_int_equal(d->drafts[0]->n_tokens + d->drafts[1]->n_tokens, 2);
    tandem__v1__drafts__free_unpacked(d, NULL);
}

static void a_round_that_contradicts_itself_leaves_nothing_open(void **state)
{
    (void)state;
    struct request a = {0};
    struct batch_origin from = {.stream = 1};
    round_of(&a, (uint32_t[]){5, 6, 0, 0, 0});
    a.seqs[1].keep = 7;
    assert_int_equal(batch_take(batch, &from, &a.msg, NULL, 0), -EINVAL);
    assert_int_equal(batch_n_open(batch), 0);
    assert_null(answer(0));
    take(round_of(&(struct request){0}, (uint32_t[]){0, 0, 0, 0, 0}), 2);
    must_answer(2, 0, NULL, 0); // the next Round is accepted
}

static void q_is_sent_with_the_draft_and_modes_not_offered_become_point(void **state)
{
    (void)state;
    struct request a = {0};
    Tandem__V1__DraftSampling hot = TANDEM__V1__DRAFT_SAMPLING__INIT;
    hot.temperature = 0.5f;
    round_of(&a, (uint32_t[]){5, 6, 0, 0, 0});
    a.seqs[0].q_mode = TANDEM__V1__QMODE__Q_MODE_SPARSE;
    a.seqs[0].sampling = &hot;
    a.seqs[1].q_mode = TANDEM__V1__QMODE__Q_MODE_DENSE;
    take(&a.msg, 1);
    batch_draft(batch);
    Tandem__V1__Drafts *d = answer(1);
    assert_int_equal(d->drafts[0]->q_mode, TANDEM__V1__QMODE__Q_MODE_SPARSE);
    assert_int_equal(d->drafts[0]->q_ids.len, 2 * 2 * 4);
    assert_int_equal(d->drafts[0]->q_probs.len, 2 * 2 * 2);
    assert_memory_equal(d->drafts[0]->q_probs.data, ((uint16_t[]){65534, 0, 65534, 0}), 8);
    assert_float_equal(d->drafts[0]->survival[0], 0.5f, 0);
    assert_int_equal(d->drafts[1]->q_mode, TANDEM__V1__QMODE__Q_MODE_POINT);
    assert_int_equal(d->drafts[1]->q_ids.len, 0);
    tandem__v1__drafts__free_unpacked(d, NULL);
}

static void a_hint_is_the_draft_and_the_proposer_is_not_asked(void **state)
{
    (void)state;
    struct request a = {0};
    uint32_t hint[] = {70, 71};
    round_of(&a, (uint32_t[]){1, 2, 0, 0, 0});
    a.seqs[0].prompt_len = 1;
    a.seqs[0].hint = hint;
    a.seqs[0].n_hint = 2;
    take(&a.msg, 1);
    assert_int_equal(batch_n_open(batch), 1);
    batch_draft(batch);
    assert_int_equal(n_asked, 1);
    Tandem__V1__Drafts *d = answer(1);
    assert_int_equal(d->n_drafts, 2);
    assert_int_equal(d->drafts[0]->n_tokens, 2);
    assert_memory_equal(d->drafts[0]->tokens, hint, sizeof(hint));
    assert_int_equal(d->drafts[1]->tokens[0], 1); // the proposer's
    tandem__v1__drafts__free_unpacked(d, NULL);
    assert_null(answer(0));
}

/* Two tokens are being verified; four are drafted after them, or after earlier tokens. */
static Tandem__V1__SequenceDraft *draft_ahead(Tandem__V1__Drafts **ret)
{
    struct request a = {0};
    Tandem__V1__DraftSampling hot = TANDEM__V1__DRAFT_SAMPLING__INIT;
    hot.temperature = 0.5f;
    round_of(&a, (uint32_t[]){1, 0, 0, 0, 0});
    a.seqs[0].k = 4;
    a.seqs[0].sampling = &hot;
    a.seqs[0].verifying = (uint32_t[]){70, 71};
    a.seqs[0].n_verifying = 2;
    take(&a.msg, 1);
    batch_draft(batch);
    *ret = answer(1);
    assert_non_null(*ret);
    Tandem__V1__SequenceDraft *d = (*ret)->drafts[0];
    assert_int_equal(d->n_tokens, 6);
    assert_memory_equal(d->tokens, ((uint32_t[]){70, 71, 3, 3, 3, 3}), 24);
    assert_memory_equal(d->survival, ((float[]){1, 1, 0.5f, 0.5f, 0.5f, 0.5f}), 24);
    return d;
}

static void a_draft_ahead_without_tokens_stays_empty(void **state)
{
    (void)state;
    struct request a = {0};
    round_of(&a, (uint32_t[]){1, 0, 0, 0, 0});
    a.seqs[0].verifying = (uint32_t[]){70, 10};
    a.seqs[0].n_verifying = 2;
    take(&a.msg, 1);
    batch_draft(batch);
    must_answer(1, 1, (uint64_t[]){0}, 0);
}

static void a_draft_ahead_begins_with_the_tokens_being_verified(void **state)
{
    (void)state;
    Tandem__V1__Drafts *all;
    assert_int_equal(draft_ahead(&all)->n_parents, 0); // without branches it needs no parents
    tandem__v1__drafts__free_unpacked(all, NULL);
    stub_parents = (int32_t[]){-1, -2, 0, -3}; // after 71, 70, the first node, the context
    Tandem__V1__SequenceDraft *tree = draft_ahead(&all);
    assert_int_equal(tree->n_parents, 6);
    assert_memory_equal(tree->parents, ((int32_t[]){-1, 0, 1, 0, 2, -1}), 24);
    tandem__v1__drafts__free_unpacked(all, NULL);
}

/* ---- time ---- */

/* An eighth of the budget is reserved for the way back. */
static void an_ask_is_open_until_its_time_is_up(void **state)
{
    (void)state;
    struct request a = {0}, b = {0}, c = {0};
    assert_true(batch_until_us(batch) == INT64_MAX);
    round_of(&a, (uint32_t[]){13, 0, 0, 0, 0})->budget_us = 8000;
    round_of(&b, (uint32_t[]){13, 5, 0, 0, 0})->budget_us = 4000;
    round_of(&c, (uint32_t[]){13, 0, 0, 0, 0})->budget_us = 16000;
    take(&a.msg, 1);
    take(&b.msg, 2);
    take(&c.msg, 3);
    batch_draft(batch); // sequence 1 of stream 2 is done
    must_answer(2, 1, (uint64_t[]){1}, 2);
    assert_true(batch_until_us(batch) == now_us + 3500);
    now_us += 3499;
    batch_draft(batch);
    assert_null(answer(0));
    now_us += 1;
    batch_draft(batch);
    must_answer(2, 1, (uint64_t[]){0}, 0);
    assert_null(answer(0));
    assert_true(batch_until_us(batch) == now_us + 3500);
    batch_end_stream(batch, 1);
    assert_true(batch_until_us(batch) == now_us + 10500);
}

/* ---- metrics and logs ---- */

static void must_count(struct metric *m, double before, double more)
{
    assert_true(metrics_value(m) == before + more);
}

static void each_event_is_counted_once(void **state)
{
    (void)state;
    struct request a = {0}, b = {0};
    double before[] = {metrics_value(rounds), metrics_value(drafts), metrics_value(tokens),
                       metrics_value(needed)};
    round_of(&a, (uint32_t[]){1, 2, 3, 10, 0});
    a.seqs[0].k = 3;
    a.seqs[1].digest++; // its context is requested
    a.seqs[2].k = 0;    // no answer
    take(&a.msg, 1);
    batch_draft(batch);
    drop_answer(1, 3);
    must_count(rounds, before[0], 1);
    must_count(drafts, before[1], 1);
    must_count(tokens, before[2], 3);
    must_count(needed, before[3], 1);
    take(round_of(&b, (uint32_t[]){1, 0, 0, 0, 0}), 1);
    batch_draft(batch);
    drop_answer(1, 1);
    must_count(rounds, before[0], 2);
    must_count(drafts, before[1], 2);
    must_count(tokens, before[2], 5);
    must_count(needed, before[3], 1);
}

/* The figure after this text in the metrics of this process. */
static double rendered(const char *name)
{
    AUTO(buf_done) struct buf b = {0};
    buf_init(&b, 1 << 20);
    metrics_render(&b);
    buf_add(&b, "", 1);
    const char *at = strstr(b.data, name);
    return at ? strtod(at + strlen(name), NULL) : 0;
}

static void a_round_takes_from_its_arrival_to_its_last_answer(void **state)
{
    (void)state;
    struct request a = {0};
    double sum = rendered("\ntest_s_sum "), n = rendered("\ntest_s_count ");
    round_of(&a, (uint32_t[]){1, 13, 0, 0, 0})->budget_us = 4000000;
    take(&a.msg, 1);
    batch_draft(batch);
    must_answer(1, 1, (uint64_t[]){0}, 2);
    assert_null(answer(0));
    now_us += 3500000;
    batch_draft(batch);
    must_answer(1, 1, (uint64_t[]){1}, 0);
    assert_true(rendered("\ntest_s_count ") == n); // until the call after the last answer
    assert_null(answer(0));
    assert_true(rendered("\ntest_s_count ") == n + 1);
    assert_float_equal(rendered("\ntest_s_sum ") - sum, 3.5, 1e-6);
}

/* What is logged of a Round with one sequence. */
static const char *log_of(const Tandem__V1__Round *round)
{
    struct batch_origin from = {.stream = 7};
    log_init("test", LOG_LEVEL_INFO);
    logged_begin();
    batch_take(batch, &from, round, NULL, now_us);
    const char *text = logged_end();
    log_init("test", LOG_LEVEL_WARN);
    return text;
}

#define TRACE "0123456789abcdef0123456789abcdef"

static void a_sequence_with_an_id_is_logged_when_it_comes(void **state)
{
    (void)state;
    struct request a = {0};
    round_of(&a, (uint32_t[]){1, 0, 0, 0, 0});
    assert_int_equal(logged_count(log_of(&a.msg), "sequence"), 0);
    a.seqs[0].prompt_len = 5;
    a.seqs[0].id = rpc_text("cmpl-1");
    const char *text = log_of(&a.msg);
    assert_int_equal(logged_count(text, "sequence id=cmpl-1 stream=7 seq=0 prompt=5\n"), 1);
    a.seqs[0].trace = rpc_text(TRACE);
    text = log_of(&a.msg);
    assert_int_equal(logged_count(text, "id=cmpl-1 trace=" TRACE " stream=7 seq=0 prompt=5"), 1);
    char longest[TRACE_REQUEST_MAX + 2], line[200];
    memset(longest, 'x', TRACE_REQUEST_MAX + 1);
    longest[TRACE_REQUEST_MAX + 1] = 0;
    a.seqs[0].id = rpc_text(longest);
    text = log_of(&a.msg);
    longest[TRACE_REQUEST_MAX] = 0; // it is cut
    snprintf(line, sizeof(line), "sequence id=%s trace=", longest);
    assert_int_equal(logged_count(text, line), 1);
    a.seqs[0].close = true;
    assert_int_equal(logged_count(log_of(&a.msg), "sequence"), 0);
    a.seqs[0].close = false;
    a.seqs[0].keep = 7; // refused
    assert_int_equal(logged_count(log_of(&a.msg), "sequence"), 0);
}

/* ---- fields of messages ---- */

/* A sampling value that is sent, and the one that the proposer uses. */
struct sampled {
    size_t from, to; // offsets of floats
    float sent, used;
};
#define FIELD(f) offsetof(Tandem__V1__DraftSampling, f), offsetof(struct dist_params, f)

static void must_sample(const struct sampled *c)
{
    struct request a = {0};
    Tandem__V1__DraftSampling s = TANDEM__V1__DRAFT_SAMPLING__INIT;
    memcpy((char *)&s + c->from, &c->sent, sizeof(float));
    round_of(&a, (uint32_t[]){1, 0, 0, 0, 0});
    a.seqs[0].sampling = &s;
    take(&a.msg, 1);
    batch_draft(batch);
    drop_answer(1, 1);
    float used;
    memcpy(&used, (const char *)&last_ask.sampling.params + c->to, sizeof(float));
    if (used != c->used)
        fail_msg("offset %zu: %g becomes %g, not %g", c->to, (double)c->sent, (double)used,
                 (double)c->used);
}

static void each_sampling_value_has_its_limits(void **state)
{
    (void)state;
    static const struct sampled cases[] = {{FIELD(temperature), 0, 0},
                                           {FIELD(temperature), 0.25f, 0.25f},
                                           {FIELD(temperature), INFINITY, INFINITY},
                                           {FIELD(temperature), -0.25f, 0},
                                           {FIELD(temperature), NAN, 0},
                                           {FIELD(top_p), 0, 1},
                                           {FIELD(top_p), 0.25f, 0.25f},
                                           {FIELD(top_p), 1, 1},
                                           {FIELD(top_p), 1.25f, 1},
                                           {FIELD(top_p), -0.25f, 1},
                                           {FIELD(top_p), NAN, 1},
                                           {FIELD(min_p), 0.25f, 0.25f},
                                           {FIELD(min_p), 1, 1},
                                           {FIELD(min_p), 1.25f, 0},
                                           {FIELD(min_p), -0.25f, 0},
                                           {FIELD(min_p), NAN, 0},
                                           {FIELD(repetition), 0, 1},
                                           {FIELD(repetition), 0.25f, 0.25f},
                                           {FIELD(repetition), FLT_MAX, FLT_MAX},
                                           {FIELD(repetition), INFINITY, 1},
                                           {FIELD(repetition), -0.25f, 1},
                                           {FIELD(repetition), NAN, 1},
                                           {FIELD(presence), -FLT_MAX, -FLT_MAX},
                                           {FIELD(presence), FLT_MAX, FLT_MAX},
                                           {FIELD(presence), INFINITY, 0},
                                           {FIELD(presence), -INFINITY, 0},
                                           {FIELD(presence), NAN, 0},
                                           {FIELD(frequency), -FLT_MAX, -FLT_MAX},
                                           {FIELD(frequency), FLT_MAX, FLT_MAX},
                                           {FIELD(frequency), INFINITY, 0},
                                           {FIELD(frequency), -INFINITY, 0},
                                           {FIELD(frequency), NAN, 0}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        must_sample(&cases[i]);
}

static void bans_and_biases_beyond_their_limits_are_ignored(void **state)
{
    (void)state;
    static const uint32_t sent[][2] = {
        {0, 0}, {2, 3}, {PROP_BIAS_MAX, PROP_BANNED_MAX}, {PROP_BIAS_MAX + 1, PROP_BANNED_MAX + 1}};
    static struct dist_bias bias[PROP_BIAS_MAX + 1];
    static uint32_t banned[PROP_BANNED_MAX + 1];
    for (uint32_t i = 0; i <= PROP_BIAS_MAX; i++)
        bias[i] = (struct dist_bias){i, (float)i};
    for (uint32_t i = 0; i <= PROP_BANNED_MAX; i++)
        banned[i] = 1000 + i;
    for (size_t i = 0; i < ARRAY_LEN(sent); i++) {
        struct request a = {0};
        Tandem__V1__DraftSampling s = TANDEM__V1__DRAFT_SAMPLING__INIT;
        s.top_k = 40;
        s.ignore_eos = i % 2;
        s.bias = rpc_data(bias, sent[i][0] * sizeof(*bias) + (i == 1)); // a part is no entry
        s.banned = banned;
        s.n_banned = sent[i][1];
        s.banned_until = 99;
        round_of(&a, (uint32_t[]){1, 0, 0, 0, 0});
        a.seqs[0].sampling = &s;
        take(&a.msg, 1);
        batch_draft(batch);
        const struct prop_sampling *got = &last_ask.sampling;
        assert_int_equal(got->params.top_k, 40);
        assert_int_equal(got->ignore_eos, i % 2);
        assert_int_equal(got->params.n_bias, i < 3 ? sent[i][0] : PROP_BIAS_MAX);
        assert_memory_equal(got->params.bias, bias, got->params.n_bias * sizeof(*bias));
        assert_int_equal(got->ban.n, i < 3 ? sent[i][1] : PROP_BANNED_MAX);
        assert_memory_equal(got->ban.tokens, banned, got->ban.n * sizeof(*banned));
        assert_int_equal(got->ban.until, 99);
        drop_answer(1, 1);
    }
}

static void only_offered_modes_are_requested(void **state)
{
    (void)state;
    static const struct {
        unsigned sent, offered, used;
    } cases[] = {{0, 15, 0}, {1, 15, 1}, {2, 15, 2},  {3, 15, 3},   {4, 255, 0},
                 {1, 13, 0}, {2, 11, 0}, {3, 7, 0},   {3, 8, 3},    {2, 4, 2},
                 {1, 2, 1},  {0, 14, 0}, {31, 15, 0}, {300, 15, 0}, {4, UINT32_MAX, 0}};
    stub_width = 1;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct request a = {0};
        restart(10, cases[i].offered);
        round_of(&a, (uint32_t[]){1, 0, 0, 0, 0});
        a.seqs[0].q_mode = (Tandem__V1__QMode)cases[i].sent;
        take(&a.msg, 1);
        batch_draft(batch);
        assert_int_equal(last_ask.q_mode, cases[i].used);
        drop_answer(1, 1);
    }
}

static void an_update_is_passed_with_all_its_fields(void **state)
{
    (void)state;
    struct request a = {0};
    round_of(&a, (uint32_t[]){1, 0, 0, 0, 0});
    a.seqs[0].q_mode = TANDEM__V1__QMODE__Q_MODE_SPARSE;
    a.seqs[0].draw_key = 12345;
    a.seqs[0].max_nodes = 5;
    a.seqs[0].prompt_len = 1;
    a.seqs[0].tenant = rpc_text("anna");
    a.seqs[0].model = rpc_text("fp");
    take(&a.msg, 1);
    batch_draft(batch);
    assert_int_equal(last_ask.draw_key, 12345);
    assert_int_equal(last_ask.max_depth, 2);
    assert_int_equal(last_ask.max_nodes, 5);
    assert_int_equal(last_ask.context.n_prompt, 1);
    assert_int_equal(last_ask.context.tenant_len, 4);
    assert_memory_equal(last_ask.context.tenant, "anna", 4);
    assert_int_equal(last_ask.context.model_len, 2);
    assert_memory_equal(last_ask.context.model, "fp", 2);
    a.seqs[0].close = a.seqs[0].unfinished = true;
    take(&a.msg, 1); // the open ask is answered, then the session is dropped
    must_answer(1, 1, (uint64_t[]){0}, 2);
    struct sessions_stats stats;
    sessions_stats(sessions, &stats);
    assert_int_equal(stats.n_sessions, 0);
}

static void a_piece_of_a_context_is_not_answered(void **state)
{
    (void)state;
    struct request a = {0};
    round_of(&a, (uint32_t[]){1, 0, 0, 0, 0});
    a.seqs[0].more = true;
    take(&a.msg, 1);
    assert_int_equal(batch_n_open(batch), 0);
    assert_null(answer(0));
}

static void an_answer_names_its_context(void **state)
{
    (void)state;
    struct request a = {0};
    round_of(&a, (uint32_t[]){1, 2, 0, 0, 0});
    a.seqs[1].digest++;
    take(&a.msg, 1);
    batch_draft(batch);
    Tandem__V1__Drafts *d = answer(1);
    assert_int_equal(d->n_drafts, 2);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(d->drafts[i]->seq, i);
        assert_int_equal(d->drafts[i]->base_len, 1);
        assert_true(d->drafts[i]->digest == a.seqs[i].digest);
        assert_int_equal(d->drafts[i]->need_context, i);
        assert_int_equal(d->drafts[i]->n_tokens, i ? 0 : 2);
        assert_int_equal(d->drafts[i]->n_survival, i ? 0 : 2);
        assert_int_equal(d->drafts[i]->n_parents, 0);
    }
    tandem__v1__drafts__free_unpacked(d, NULL);
}

/* A Round with drafts of two tokens for n sequences, each with a dense q. */
static void take_dense(struct request *a, uint32_t n, uint32_t width)
{
    uint32_t last[N_SEQS] = {0};
    stub_width = width;
    restart(10, 1u << DRAFT_DENSE);
    for (uint32_t i = 0; i < n; i++)
        last[i] = 1;
    round_of(a, last);
    for (uint32_t i = 0; i < n; i++)
        a->seqs[i].q_mode = TANDEM__V1__QMODE__Q_MODE_DENSE;
    take(&a->msg, 1);
    batch_draft(batch);
}

static void a_dense_q_is_a_tensor_of_floats(void **state)
{
    (void)state;
    struct request a = {0};
    take_dense(&a, 1, 3);
    Tandem__V1__Drafts *d = answer(1);
    const Tandem__V1__Tensor *q = d->drafts[0]->q;
    assert_int_equal(q->dtype, TANDEM__V1__TENSOR__DTYPE__F32);
    assert_int_equal(q->n_shape, 2);
    assert_memory_equal(q->shape, ((uint32_t[]){2, 3}), 8);
    assert_int_equal(q->data.len, 24);
    assert_memory_equal(q->data.data, ((float[]){0, 1, 2, 3, 4, 5}), 24);
    assert_int_equal(d->drafts[0]->q_ids.len + d->drafts[0]->q_probs.len, 0);
    tandem__v1__drafts__free_unpacked(d, NULL);
}

static void a_message_ends_with_the_draft_whose_q_reaches_128_kib(void **state)
{
    (void)state;
    struct request a = {0}, b = {0};
    take_dense(&a, 3, 16384); // 2 * 16384 * 4 bytes each
    must_answer(1, 1, (uint64_t[]){0}, 2);
    must_answer(1, 1, (uint64_t[]){1}, 2);
    must_answer(1, 1, (uint64_t[]){2}, 2);
    assert_null(answer(0));
    take_dense(&b, 3, 16383);
    must_answer(1, 2, (uint64_t[]){0, 1}, 2);
    must_answer(1, 1, (uint64_t[]){2}, 2);
    assert_null(answer(0));
}

static void a_slow_verifier_gets_no_draft_with_q(void **state)
{
    (void)state;
    struct request a = {0}, b = {0};
    take_dense(&a, 3, 16384);
    must_answer(1, 1, (uint64_t[]){0}, 2);
    is_slow = true;
    must_answer(1, 2, (uint64_t[]){1, 2}, 0);
    assert_null(answer(0));
    take(round_of(&b, (uint32_t[N_SEQS]){0, 0, 0, 1, 1}), 1); // point drafts
    batch_draft(batch);
    must_answer(1, 2, (uint64_t[]){3, 4}, 2);
    is_slow = false;
    assert_null(answer(0));
}

/* ---- limits ---- */

/* A Round with n new sequences. */
static Tandem__V1__Round *round_of_many(size_t n)
{
    static Tandem__V1__RoundSequence seqs[BATCH_SEQUENCES_MAX + 1];
    static Tandem__V1__RoundSequence *pointers[BATCH_SEQUENCES_MAX + 1];
    static Tandem__V1__Round round;
    static uint32_t token = 5;
    tandem__v1__round__init(&round);
    round.sequences = pointers;
    round.n_sequences = n;
    round.budget_us = 1000000;
    for (size_t i = 0; i < n; i++) {
        pointers[i] = &seqs[i];
        tandem__v1__round_sequence__init(pointers[i]);
        seqs[i].seq = i;
        seqs[i].base_len = 1;
        seqs[i].n_tokens = 1;
        seqs[i].tokens = &token;
        seqs[i].digest = rng_splitmix64(token + 1);
        seqs[i].k = 1;
    }
    return &round;
}

static void a_round_has_at_most_4096_sequences(void **state)
{
    (void)state;
    struct request a = {0};
    struct batch_origin from = {.stream = 2};
    restart(BATCH_SEQUENCES_MAX + N_SEQS, POINT_AND_SPARSE);
    take(round_of(&a, (uint32_t[]){1, 2, 3, 4, 5}), 1);
    take(round_of_many(BATCH_SEQUENCES_MAX), 2); // beside the open ones
    assert_int_equal(batch_n_open(batch), N_SEQS + BATCH_SEQUENCES_MAX);
    batch_draft(batch);
    assert_int_equal(n_asked, N_SEQS + BATCH_SEQUENCES_MAX);
    drop_answer(1, N_SEQS);
    drop_answer(2, BATCH_SEQUENCES_MAX);
    assert_int_equal(batch_take(batch, &from, round_of_many(BATCH_SEQUENCES_MAX + 1), NULL, now_us),
                     -EINVAL);
    assert_string_equal(fail_text(), "a round of 4097 sequences is beyond the limit of 4096");
}

static void rounds_may_wait_together(void **state)
{
    (void)state;
    static struct request all[20];
    restart(N_SEQS * 20, POINT_AND_SPARSE);
    for (uint32_t i = 0; i < 20; i++) {
        all[i] = (struct request){0};
        take(round_of(&all[i], (uint32_t[]){1, 2, 3, 4, 5}), i);
        assert_int_equal(batch_n_open(batch), N_SEQS * (i + 1));
    }
    batch_draft(batch);
    assert_int_equal(n_asked, N_SEQS * 20);
    for (uint32_t i = 0; i < 20; i++)
        must_answer(i, N_SEQS, (uint64_t[]){0, 1, 2, 3, 4}, 2);
    assert_null(answer(0));
}

static void a_list_without_its_last_round_continues(void **state)
{
    (void)state;
    struct request a = {0}, b = {0}, c = {0};
    take(round_of(&a, (uint32_t[]){13, 0, 0, 0, 0}), 1);
    take(round_of(&b, (uint32_t[]){13, 0, 0, 0, 0}), 2);
    batch_end_stream(batch, 2);
    take(round_of(&c, (uint32_t[]){5, 0, 0, 0, 0}), 3);
    batch_draft(batch);
    must_answer(3, 1, (uint64_t[]){0}, 2);
    assert_null(answer(0));
    assert_int_equal(batch_n_open(batch), 1);
    batch_end_stream(batch, 1);
    assert_int_equal(batch_n_open(batch), 0);
}

/* ---- memory ---- */

/* The same message, as it comes from the network. */
static Tandem__V1__Round *received(const Tandem__V1__Round *from)
{
    struct rpc_msg *msg = rpc_pack(&from->base);
    Tandem__V1__Round *to = (Tandem__V1__Round *)rpc_unpack(&tandem__v1__round__descriptor, msg);
    rpc_msg_free(msg);
    assert_non_null(to);
    return to;
}

/* A sanitizer sees what is freed twice or never. */
static void an_owned_round_is_freed_with_its_last_answer(void **state)
{
    (void)state;
    struct batch_origin from = {.stream = 1};
    struct request a = {0}, bad = {0};
    Tandem__V1__Round *owned = received(round_of(&a, (uint32_t[]){1, 13, 0, 0, 0}));
    assert_int_equal(batch_take(batch, &from, owned, owned, now_us), 0);
    batch_draft(batch);
    must_answer(1, 1, (uint64_t[]){0}, 2);
    assert_null(answer(0));
    batch_end_stream(batch, 1);
    round_of(&bad, (uint32_t[]){1, 2, 0, 0, 0});
    bad.seqs[1].keep = 7;
    owned = received(&bad.msg);
    assert_int_equal(batch_take(batch, &from, owned, owned, now_us), -EINVAL);
    owned = received(round_of_many(BATCH_SEQUENCES_MAX + 1));
    assert_int_equal(batch_take(batch, &from, owned, owned, now_us), -EINVAL);
    owned = received(round_of(&a, (uint32_t[]){13, 0, 0, 0, 0})); // freed with the batch
    assert_int_equal(batch_take(batch, &from, owned, owned, now_us), 0);
}

static void without_memory_a_round_fails_and_leaves_nothing_open(void **state)
{
    (void)state;
    struct request a = {0};
    struct batch_origin from = {.stream = 1};
    int n_refused = 0, r = -1;
    for (unsigned n = 1; r < 0 || n < 4; n++) {
        restart(10, POINT_AND_SPARSE);
        round_of(&a, (uint32_t[]){1, 2, 0, 0, 0});
        failing_at(n);
        r = batch_take(batch, &from, &a.msg, NULL, now_us);
        bool failed = failing_has_failed();
        assert_true(r == 0 || r == -ENOMEM);
        assert_true(r == 0 || failed);
        if (r < 0)
            assert_string_equal(fail_text(), "no memory for a round of 2 sequences");
        n_refused += r < 0;
        assert_int_equal(batch_n_open(batch) > 0, r == 0);
        batch_draft(batch);
        if (r < 0)
            assert_null(answer(0));
    }
    assert_int_equal(n_refused, 2); // the list of asks, and the Round
    struct batch *none = NULL;
    const struct batch_config bc = {.sessions = sessions, .ops = &stub};
    failing_at(1);
    assert_int_equal(batch_new(&bc, &none), -ENOMEM);
    assert_true(failing_has_failed());
    assert_string_equal(fail_text(), "batch: no memory");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(waiting_rounds_are_drafted_for_together, start, stop),
        cmocka_unit_test_setup_teardown(a_slow_sequence_does_not_delay_the_others, start, stop),
        cmocka_unit_test_setup_teardown(out_of_time_the_answer_is_empty, start, stop),
        cmocka_unit_test_setup_teardown(an_ask_that_is_not_done_in_time_has_unread, start, stop),
        cmocka_unit_test_setup_teardown(p_min_comes_with_each_round, start, stop),
        cmocka_unit_test_setup_teardown(an_update_ends_the_ask_before_it, start, stop),
        cmocka_unit_test_setup_teardown(an_update_ends_only_its_own_sequences_ask, start, stop),
        cmocka_unit_test_setup_teardown(an_update_ends_no_older_ask_of_another_stream, start, stop),
        cmocka_unit_test_setup_teardown(tokens_of_an_unfinished_draft_are_not_sent, start, stop),
        cmocka_unit_test_setup_teardown(one_sequence_twice_in_a_round_is_answered_twice, start,
                                        stop),
        cmocka_unit_test_setup_teardown(a_round_that_contradicts_itself_leaves_nothing_open, start,
                                        stop),
        cmocka_unit_test_setup_teardown(a_hint_is_the_draft_and_the_proposer_is_not_asked, start,
                                        stop),
        cmocka_unit_test_setup_teardown(a_draft_ahead_without_tokens_stays_empty, start, stop),
        cmocka_unit_test_setup_teardown(rounds_may_wait_together, start, stop),
        cmocka_unit_test_setup_teardown(a_draft_ahead_begins_with_the_tokens_being_verified, start,
                                        stop),
        cmocka_unit_test_setup_teardown(q_is_sent_with_the_draft_and_modes_not_offered_become_point,
                                        start, stop),
        cmocka_unit_test_setup_teardown(unread_is_sent_only_without_tokens, start, stop),
        cmocka_unit_test_setup_teardown(an_ask_is_open_until_its_time_is_up, start, stop),
        cmocka_unit_test_setup_teardown(each_event_is_counted_once, start, stop),
        cmocka_unit_test_setup_teardown(a_round_takes_from_its_arrival_to_its_last_answer, start,
                                        stop),
        cmocka_unit_test_setup_teardown(a_sequence_with_an_id_is_logged_when_it_comes, start, stop),
        cmocka_unit_test_setup_teardown(each_sampling_value_has_its_limits, start, stop),
        cmocka_unit_test_setup_teardown(bans_and_biases_beyond_their_limits_are_ignored, start,
                                        stop),
        cmocka_unit_test_setup_teardown(only_offered_modes_are_requested, start, stop),
        cmocka_unit_test_setup_teardown(an_update_is_passed_with_all_its_fields, start, stop),
        cmocka_unit_test_setup_teardown(a_piece_of_a_context_is_not_answered, start, stop),
        cmocka_unit_test_setup_teardown(an_answer_names_its_context, start, stop),
        cmocka_unit_test_setup_teardown(a_dense_q_is_a_tensor_of_floats, start, stop),
        cmocka_unit_test_setup_teardown(a_slow_verifier_gets_no_draft_with_q, start, stop),
        cmocka_unit_test_setup_teardown(a_message_ends_with_the_draft_whose_q_reaches_128_kib,
                                        start, stop),
        cmocka_unit_test_setup_teardown(a_round_has_at_most_4096_sequences, start, stop),
        cmocka_unit_test_setup_teardown(a_list_without_its_last_round_continues, start, stop),
        cmocka_unit_test_setup_teardown(an_owned_round_is_freed_with_its_last_answer, start, stop),
        cmocka_unit_test_setup_teardown(without_memory_a_round_fails_and_leaves_nothing_open, start,
                                        stop),
    };
    log_init("test", LOG_LEVEL_WARN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

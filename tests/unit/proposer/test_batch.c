/* test_batch.c - each sequence of a Round is answered as soon as its draft is done. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tandem/v1/proposer.pb-c.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/rng.h"
#include "lib/lib.h"
#include "proposer-svc/batch.h"
#include "rpc/rpc.h"

#define N_SEQS 5

/* A proposer that drafts k tokens, each the length of the context. It never finishes sequences
 * whose last token is 12, although it draws tokens for them, or 13. A sparse q has two tokens. */
static uint32_t n_calls, n_asked;
static float last_p_min;            // of the last ask
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

static void add_q(struct draft *to)
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

static void stub_draft(void *shared, struct prop_ask *const *asks, uint32_t n)
{
    (void)shared;
    n_calls++;
    n_asked += n;
    for (uint32_t i = 0; i < n; i++) {
        struct prop_ask *a = asks[i];
        last_p_min = a->p_min;
        if (a->context.tokens[a->context.n - 1] == 13)
            continue;
        a->to->n = a->max_depth;
        a->to->tree = stub_parents != NULL;
        a->to->q_mode = a->q_mode;
        for (uint32_t j = 0; j < a->max_depth; j++) {
            a->to->tokens[j] = a->context.n;
            a->to->survival[j] = a->sampling.params.temperature;
            a->to->parents[j] = stub_parents ? stub_parents[j] : 0;
        }
        if (a->q_mode == DRAFT_SPARSE)
            add_q(a->to);
        a->done = a->context.tokens[a->context.n - 1] != 12;
    }
}

static const struct prop_ops stub = {.name = "stub",
                                     .seq_done = stub_seq_done,
                                     .cut = stub_cut,
                                     .grow = stub_grow,
                                     .draft = stub_draft};

static struct sessions *sessions;
static struct batch *batch;

static int start(void **state)
{
    (void)state;
    n_calls = n_asked = 0;
    stub_parents = NULL;
    const struct sessions_config sc = {.ops = &stub,
                                       .max_sessions = 10,
                                       .max_tokens = 10000,
                                       .max_context = 1000,
                                       .k_max = 8,
                                       .idle_us = INT64_MAX};
    assert_int_equal(sessions_new(&sc, &sessions), 0);
    struct metric *m = metrics_counter("test_batch", "", NULL);
    const struct batch_config bc = {.sessions = sessions,
                                    .ops = &stub,
                                    .q_modes = 1u << DRAFT_POINT | 1u << DRAFT_SPARSE,
                                    .rounds = m,
                                    .drafts = m,
                                    .tokens = m,
                                    .needed = m,
                                    .seconds = metrics_histogram("test_s", "", NULL, NULL, 0)};
    return batch_new(&bc, &batch);
}

static int stop(void **state)
{
    (void)state;
    batch_free(batch);
    sessions_free(sessions);
    return 0;
}

/* A Round in which the context of sequence i is the token tokens[i] (0: not in the Round). */
struct request {
    Tandem__V1__Round msg;
    Tandem__V1__RoundSequence seqs[N_SEQS], *pointers[N_SEQS];
    uint32_t tokens[N_SEQS];
};

static Tandem__V1__Round *round_of(struct request *q, const uint32_t tokens[N_SEQS])
{
    tandem__v1__round__init(&q->msg);
    q->msg.sequences = q->pointers;
    q->msg.budget_us = 1000000000;
    memcpy(q->tokens, tokens, sizeof(q->tokens));
    for (uint32_t i = 0; i < N_SEQS; i++) {
        Tandem__V1__RoundSequence *s = &q->seqs[i];
        if (!tokens[i])
            continue;
        tandem__v1__round_sequence__init(s);
        q->pointers[q->msg.n_sequences++] = s;
        s->seq = i;
        s->base_len = 1;
        s->n_tokens = 1;
        s->tokens = &q->tokens[i];
        s->digest = rng_splitmix64(tokens[i] + 1);
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
        assert_true(last_p_min == passed[i]);
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
        cmocka_unit_test_setup_teardown(a_draft_ahead_begins_with_the_tokens_being_verified, start,
                                        stop),
        cmocka_unit_test_setup_teardown(q_is_sent_with_the_draft_and_modes_not_offered_become_point,
                                        start, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_drafts_book.c - requests to a proposer, and the checks of its answers. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/rng.h"
#include "lib/lib.h"
#include "verifier-svc/drafts/drafts_book.h"

#define N_VOCAB 1000
#define BUDGET_US 5000

static const struct drafts_described about = {.name = "test", .k_max = 8};
static uint32_t counting[300000]; // a context: 0, 1, 2 ... below N_VOCAB

static int count(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 300000; i++)
        counting[i] = i % N_VOCAB;
    return 0;
}

static uint64_t digest(uint32_t n)
{
    uint64_t d = 0;
    for (uint32_t i = 0; i < n; i++)
        d = rng_splitmix64(d ^ (counting[i] + 1));
    return d;
}

static struct drafts_book *book_of(uint32_t max_sequences)
{
    struct drafts_book *b;
    assert_int_equal(drafts_book_new(max_sequences, N_VOCAB, &b), 0);
    drafts_book_reset(b, &about);
    return b;
}

static struct drafts_wish wish_of(uint64_t seq, uint32_t base_len, uint32_t k)
{
    return (struct drafts_wish){.seq = seq,
                                .context = counting,
                                .base_len = base_len,
                                .max_nodes = k,
                                .max_depth = k,
                                .sampling.temperature = 1};
}

static unsigned ask(struct drafts_book *b, uint64_t seq, uint32_t base_len, uint32_t k, int64_t now)
{
    struct drafts_wish w = wish_of(seq, base_len, k);
    return drafts_book_ask(b, &w, 1, BUDGET_US, now);
}

/* Asks and sends. */
static const struct drafts_entry *must_send(struct drafts_book *b, uint64_t seq, uint32_t base_len,
                                            uint32_t k, int64_t now)
{
    assert_int_equal(ask(b, seq, base_len, k, now), 1);
    const struct drafts_outbox *o = drafts_book_take(b);
    assert_non_null(o);
    assert_int_equal(o->n_urgent, 1);
    return &o->urgent[0];
}

static Tandem__V1__SequenceDraft answer_to(const struct drafts_entry *e, uint32_t *tokens, size_t n)
{
    Tandem__V1__SequenceDraft a = TANDEM__V1__SEQUENCE_DRAFT__INIT;
    a.seq = e->seq;
    a.base_len = e->base_len;
    a.digest = e->digest;
    a.tokens = tokens;
    a.n_tokens = n;
    return a;
}

static struct draft *received; // the last one

/* As the thread that received it does. */
static bool judge(struct drafts_book *b, const Tandem__V1__SequenceDraft *a, int64_t now,
                  struct draft_answer *d)
{
    struct drafts_request asked;
    bool was_asked = drafts_book_request(b, a, &asked);
    *d = (struct draft_answer){0};
    enum drafts_verdict v = was_asked ? drafts_check(a, &asked, d) : DRAFTS_STALE;
    draft_free(received);
    received = d->draft;
    return drafts_book_answer(b, a, v, now, d);
}

static uint32_t five[] = {5, 6, 7, 8, 9};

static bool answer_with(struct drafts_book *b, const struct drafts_entry *e, size_t n, int64_t now)
{
    struct draft_answer d;
    Tandem__V1__SequenceDraft a = answer_to(e, five, n);
    return judge(b, &a, now, &d);
}

static bool answer(struct drafts_book *b, const struct drafts_entry *e, int64_t now)
{
    return answer_with(b, e, 2, now);
}

/* Asks for a draft of k tokens and hears after us that the context is still being read. */
static void put_off_after(struct drafts_book *b, uint64_t seq, uint32_t k, int64_t us)
{
    struct draft_answer d;
    Tandem__V1__SequenceDraft a = answer_to(must_send(b, seq, 10, k, 1000), NULL, 0);
    a.unread = 7;
    assert_true(judge(b, &a, 1000 + us, &d));
    assert_int_equal(d.unread, 7);
}

/* Asks for a draft of k tokens and has one of n after us. */
static void draft_after(struct drafts_book *b, uint64_t seq, uint32_t k, size_t n, int64_t us)
{
    struct drafts_entry e = *must_send(b, seq, 10, k, 1000);
    assert_true(answer_with(b, &e, n, 1000 + us));
}

static void a_wish_carries_the_context_once(void **state)
{
    (void)state;
    AUTO(drafts_book_free) struct drafts_book *b = book_of(4);
    const struct drafts_entry *e = must_send(b, 7, 100, 5, 0);
    assert_int_equal(e->keep, 0);
    assert_int_equal(e->base_len, 100);
    assert_true(e->digest == digest(100));
    assert_true(answer(b, e, 10));
    e = must_send(b, 7, 103, 5, 20);
    assert_int_equal(e->keep, 100);
    assert_true(e->digest == digest(103));
}

static void tokens_are_those_from_keep_on(void **state)
{
    (void)state;
    AUTO(drafts_book_free) struct drafts_book *b = book_of(4);
    struct drafts_wish w[] = {wish_of(1, 10, 1), wish_of(2, 20, 1), wish_of(3, 30, 1)};
    for (uint32_t i = 0; i < 3; i++) {
        w[i].ban = (struct constraint_ban){five, i, 0};
    }
    assert_int_equal(drafts_book_ask(b, w, 3, BUDGET_US, 0), 3);
    w[1].base_len = 25; // replaced before it was sent
    assert_int_equal(drafts_book_ask(b, &w[1], 1, BUDGET_US, 0), 1);
    const struct drafts_outbox *o = drafts_book_take(b);
    assert_int_equal(o->n_urgent, 3);
    assert_int_equal(o->n_tokens, 65 + 3);
    for (uint32_t i = 0; i < 3; i++) {
        const struct drafts_entry *e = &o->urgent[i];
        assert_int_equal(e->base_len, e->seq == 1 ? 10 : e->seq == 2 ? 25 : 30);
        assert_memory_equal(o->tokens + e->token_at, counting, e->base_len * 4);
        assert_int_equal(e->ban.n, e->seq - 1);
        assert_memory_equal(o->tokens + e->token_at + e->base_len, five, e->ban.n * 4);
    }
    assert_null(drafts_book_take(b));
}

static void a_wish_is_cut_to_the_proposers_maximum(void **state)
{
    (void)state;
    AUTO(drafts_book_free) struct drafts_book *b = book_of(4);
    assert_int_equal(must_send(b, 7, 10, 50, 0)->max_nodes, 8);
    assert_int_equal(drafts_book_k_max(b, 7, 10), 8);
    struct drafts_wish w = wish_of(9, 10, 50);
    drafts_book_ask(b, &w, 1, BUDGET_US, 0);
    assert_int_equal(w.max_depth, 8); // its latency is recorded for this size
    drafts_book_take(b);
    assert_int_equal(ask(b, 8, 10, 0, 0), 0);
    assert_null(drafts_book_take(b));
}

static void a_sequence_has_one_unanswered_round(void **state)
{
    (void)state;
    AUTO(drafts_book_free) struct drafts_book *b = book_of(4);
    struct drafts_entry e = *must_send(b, 7, 10, 2, 0);
    assert_int_equal(ask(b, 7, 11, 2, 100), 0);
    assert_null(drafts_book_take(b));
    assert_true(answer(b, &e, 200)); // for a context that has grown since: base_len tells
    assert_int_equal(must_send(b, 7, 12, 2, 300)->keep, 10);
}

static void a_wish_for_a_draft_ahead_has_the_tokens_being_verified(void **state)
{
    (void)state;
    AUTO(drafts_book_free) struct drafts_book *b = book_of(4);
    struct drafts_wish w = wish_of(1, 20, 4);
    w.max_nodes = DRAFT_MAX_NODES;
    w.verifying = five;
    w.n_verifying = 3;
    assert_int_equal(drafts_book_ask(b, &w, 1, 1000, 0), 1);
    const struct drafts_outbox *o = drafts_book_take(b);
    assert_int_equal(o->urgent[0].n_verifying, 3);
    assert_memory_equal(o->tokens + o->urgent[0].token_at + 20, five, 12);
    assert_int_equal(ask(b, 1, 20, 4, 500), 0);  // its answer is owed
    assert_null(drafts_book_verdict(b, 100000)); // late, and no fault yet
    uint32_t tokens[] = {5, 6, 7, 1, 2, 3};      // more than k, with those three
    Tandem__V1__SequenceDraft a = answer_to(&o->urgent[0], tokens, 6);
    struct draft_answer d;
    assert_true(judge(b, &a, 900, &d));
    assert_true(d.ahead);
    assert_int_equal(d.draft->n, 6);
    assert_int_equal(drafts_book_p90_us(b, 4), 10000); // no ordinary answer was measured
}

static void a_wish_without_space_after_the_verified_tokens_is_not_sent(void **state)
{
    (void)state;
    AUTO(drafts_book_free) struct drafts_book *b = book_of(4);
    struct drafts_wish w = wish_of(1, 20, 3);
    w.verifying = five;
    w.n_verifying = 3;
    assert_int_equal(drafts_book_ask(b, &w, 1, 1000, 0), 0);
    assert_null(drafts_book_take(b));
    w.max_nodes = 5;
    assert_int_equal(drafts_book_ask(b, &w, 1, 1000, 0), 1);
    assert_int_equal(w.max_depth, 2); // a proposer that reads only k drafts two tokens
}

static void only_wishes_that_can_be_answered_have_a_latency(void **state)
{
    (void)state;
    AUTO(drafts_book_free) struct drafts_book *b = book_of(4);
    for (unsigned i = 0; i < 2; i++) {
        draft_after(b, 1, 5, 2, 300);
        draft_after(b, 2, 2, 2, 200);
    }
    must_send(b, 3, 10, 2, 2000);
    struct drafts_wish w[] = {wish_of(1, 11, 5), wish_of(2, 11, 2), wish_of(3, 11, 2),
                              wish_of(4, 5000, 2)};
    assert_int_equal(drafts_book_ask(b, w, 4, BUDGET_US, 2000), 2);
    assert_int_equal(w[0].p90_us, 300);
    assert_int_equal(w[1].p90_us, 200);
    assert_int_equal(w[2].p90_us, 0); // still owed an answer
    assert_int_equal(w[3].p90_us, 0); // its context is sent alone
}

static void a_stream_has_two_unanswered_rounds(void **state)
{
    (void)state;
    AUTO(drafts_book_free) struct drafts_book *b = book_of(4);
    struct drafts_entry first = *must_send(b, 1, 10, 2, 0);
    must_send(b, 2, 10, 2, 0);
    assert_int_equal(ask(b, 3, 10, 2, 0), 1);
    assert_false(drafts_book_ready(b));
    assert_null(drafts_book_take(b));
    assert_true(answer(b, &first, 100));
    assert_true(drafts_book_ready(b));
    assert_non_null(drafts_book_take(b));
}

static void long_contexts_are_sent_ahead_in_pieces(void **state)
{
    (void)state;
    AUTO(drafts_book_free) struct drafts_book *b = book_of(4);
    uint32_t sent = 0;
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(ask(b, 7, 130000, 4, 0), 0);
        const struct drafts_outbox *o = drafts_book_take(b);
        assert_int_equal(o->n_urgent, 0);
        assert_int_equal(o->n_pieces, 1);
        assert_int_equal(o->pieces[0].keep, sent);
        assert_int_equal(o->pieces[0].max_nodes, 0);
        sent = o->pieces[0].base_len;
        assert_int_equal(sent, i ? 130000 : DRAFTS_PIECE);
        assert_int_equal(o->pieces[0].more, !i);
        assert_true(o->pieces[0].digest == digest(sent));
    }
    const struct drafts_entry *e = must_send(b, 7, 130000, 4, 0);
    assert_int_equal(e->keep, 130000);
    assert_int_equal(e->max_nodes, 4);
}

static void the_outbox_is_bounded(void **state)
{
    (void)state;
    AUTO(drafts_book_free) struct drafts_book *b = book_of(64);
    for (uint64_t seq = 0; seq < 64; seq++)
        ask(b, seq, 60000, 4, 0);
    const struct drafts_outbox *o = drafts_book_take(b);
    assert_int_equal(o->n_pieces, 4);
    assert_true(o->n_tokens <= DRAFTS_OUTBOX_TOKENS);
    AUTO(drafts_book_free) struct drafts_book *small = book_of(2);
    assert_int_equal(ask(small, 1, 5, 1, 0) + ask(small, 2, 5, 1, 0) + ask(small, 3, 5, 1, 0), 2);
}

static void contexts_beyond_the_proposers_limit_are_not_sent(void **state)
{
    (void)state;
    AUTO(drafts_book_free) struct drafts_book *b = book_of(4);
    struct drafts_described limited = about;
    limited.max_context = 50;
    drafts_book_reset(b, &limited);
    assert_int_equal(ask(b, 1, 51, 1, 0), 0);
    assert_int_equal(drafts_book_k_max(b, 1, 51), 0);
    assert_int_equal(ask(b, 1, 50, 1, 0), 1);
}

static void the_draw_key_is_sent_only_in_coupled_mode(void **state)
{
    (void)state;
    struct drafts_described coupled = about;
    coupled.offers[DRAFT_COUPLED] = true;
    for (int i = 0; i < 2; i++) {
        AUTO(drafts_book_free) struct drafts_book *b = book_of(4);
        struct drafts_wish w = wish_of(7, 3, 1);
        w.q_mode = DRAFT_COUPLED;
        w.draw_key = 99;
        drafts_book_reset(b, i ? &coupled : &about);
        assert_int_equal(drafts_book_ask(b, &w, 1, BUDGET_US, 0), 1);
        const struct drafts_entry *e = &drafts_book_take(b)->urgent[0];
        assert_int_equal(e->q_mode, i ? DRAFT_COUPLED : DRAFT_POINT);
        assert_int_equal(e->draw_key, i ? 99 : 0);
    }
}

static enum draft_q_mode mode_asked(struct drafts_described *to, uint32_t n_vocab,
                                    enum draft_q_mode wished, uint32_t *ret_k)
{
    AUTO(drafts_book_free) struct drafts_book *b = NULL;
    assert_int_equal(drafts_book_new(1, n_vocab, &b), 0);
    drafts_book_reset(b, to);
    struct drafts_wish w = wish_of(7, 3, 8);
    w.q_mode = wished;
    assert_int_equal(drafts_book_ask(b, &w, 1, BUDGET_US, 0), 1);
    const struct drafts_entry *e = &drafts_book_take(b)->urgent[0];
    assert_int_equal(e->q_mode, w.q_mode);
    *ret_k = e->max_nodes;
    return w.q_mode;
}

static void only_offered_q_modes_are_requested(void **state)
{
    (void)state;
    uint32_t k;
    struct drafts_described to = about;
    to.offers[DRAFT_POINT] = to.offers[DRAFT_COUPLED] = true;
    assert_int_equal(mode_asked(&to, 100, DRAFT_SPARSE, &k), DRAFT_POINT);
    assert_int_equal(mode_asked(&to, 100, DRAFT_DENSE, &k), DRAFT_POINT);
    to.offers[DRAFT_SPARSE] = true;
    assert_int_equal(mode_asked(&to, 100, DRAFT_SPARSE, &k), DRAFT_SPARSE);
    assert_int_equal(mode_asked(&to, 100, DRAFT_DENSE, &k), DRAFT_SPARSE);
    to.offers[DRAFT_DENSE] = true;
    assert_int_equal(mode_asked(&to, 100, DRAFT_DENSE, &k), DRAFT_DENSE);
    assert_int_equal(k, 8);
    assert_int_equal(mode_asked(&to, 128256, DRAFT_DENSE, &k), DRAFT_DENSE);
    assert_int_equal(k, 3); // what fits into a message
    assert_int_equal(mode_asked(&to, DRAFTS_DENSE_MAX + 1, DRAFT_DENSE, &k), DRAFT_SPARSE);
}

static void hint_tenant_and_sampling_are_sent_when_new(void **state)
{
    (void)state;
    AUTO(drafts_book_free) struct drafts_book *b = book_of(4);
    struct drafts_wish w = wish_of(7, 3, 1);
    w.tenant = "t";
    w.tenant_len = 1;
    w.hint = five;
    w.n_hint = 5;
    const struct dist_bias bias[] = {{3, -1}, {9, 2.5f}};
    w.ban = (struct constraint_ban){five + 1, 2, 30};
    w.sampling.bias = bias;
    w.sampling.n_bias = 2;
    w.sampling.repetition = 1.5f;
    w.sampling.presence = 0.25f;
    w.sampling.frequency = -2;
    w.ignore_eos = true;
    assert_int_equal(drafts_book_ask(b, &w, 1, BUDGET_US, 0), 1);
    const struct drafts_outbox *o = drafts_book_take(b);
    AUTO(drafts_packer_free) struct drafts_packer *packer = NULL;
    assert_int_equal(drafts_packer_new(4, "", &packer), 0);
    const Tandem__V1__RoundSequence *r =
        drafts_pack(packer, o->urgent, 1, o->tokens, BUDGET_US)->sequences[0];
    assert_int_equal(r->n_hint, 5);
    assert_memory_equal(r->hint, five, sizeof(five));
    assert_int_equal(r->sampling->n_banned, 2);
    assert_memory_equal(r->sampling->banned, five + 1, 8);
    assert_int_equal(r->sampling->banned_until, 30);
    assert_int_equal(r->sampling->bias.len, sizeof(bias));
    assert_memory_equal(r->sampling->bias.data, bias, sizeof(bias));
    assert_float_equal(r->sampling->repetition, 1.5f, 0);
    assert_float_equal(r->sampling->presence, 0.25f, 0);
    assert_float_equal(r->sampling->frequency, -2, 0);
    assert_true(r->sampling->ignore_eos);
    assert_int_equal(o->urgent[0].n_hint, 5);
    assert_int_equal(o->urgent[0].tenant_len, 1);
    assert_memory_equal(o->tokens + o->urgent[0].token_at + 3, five, sizeof(five));
    assert_true(answer(b, &o->urgent[0], 1) == false); // more tokens than asked for, but answered
    assert_int_equal(drafts_book_ask(b, &w, 1, BUDGET_US, 2), 1);
    o = drafts_book_take(b);
    assert_int_equal(o->urgent[0].n_hint, 0);
    assert_null(drafts_pack(packer, o->urgent, 1, o->tokens, BUDGET_US)->sequences[0]->sampling);
    assert_int_equal(o->n_tokens, 0);
}

static void a_closed_sequence_is_forgotten(void **state)
{
    (void)state;
    AUTO(drafts_book_free) struct drafts_book *b = book_of(4);
    struct drafts_entry e = *must_send(b, 7, 10, 2, 0);
    drafts_book_close(b, 7, true);
    assert_false(drafts_book_knows(b, 7));
    const struct drafts_outbox *o = drafts_book_take(b);
    assert_int_equal(o->n_closes, 1);
    assert_true(o->closes[0].seq == 7 && o->closes[0].ended);
    assert_false(answer(b, &e, 1)); // its sequence is closed
    assert_int_equal(drafts_book_counts(b)->stale, 0);
    assert_false(answer(b, &e, 2));
    assert_int_equal(drafts_book_counts(b)->stale, 1);
    ask(b, 8, 10, 2, 0); // never sent: nothing to close
    drafts_book_close(b, 8, true);
    assert_null(drafts_book_take(b));
}

static void every_close_is_sent(void **state)
{
    (void)state;
    enum { N = 1000 };
    AUTO(drafts_book_free) struct drafts_book *b = book_of(N);
    for (uint64_t seq = 1; seq <= N; seq++)
        ask(b, seq, 10, 1, 0);
    assert_int_equal(drafts_book_take(b)->n_urgent, N);
    for (uint64_t seq = 1; seq <= N; seq++)
        drafts_book_close(b, seq, true);
    for (uint64_t seq = 1; seq <= N; seq++) { // again, before anything was sent
        ask(b, N + seq, 10, 1, 0);
        drafts_book_close(b, N + seq, true);
    }
    const struct drafts_outbox *o = drafts_book_take(b);
    assert_int_equal(o->n_closes, N);
    for (uint64_t seq = 1; seq <= N; seq++)
        assert_true(o->closes[seq - 1].seq == seq);
}

static void a_closed_sequence_that_returns_is_sent_from_the_start(void **state)
{
    (void)state;
    AUTO(drafts_book_free) struct drafts_book *b = book_of(1);
    struct drafts_entry e = *must_send(b, 7, 10, 2, 0);
    drafts_book_close(b, 7, false);
    assert_int_equal(ask(b, 8, 10, 2, 0), 1); // its place is free
    drafts_book_close(b, 8, true);
    assert_int_equal(ask(b, 7, 12, 2, 0), 0); // but its answer is still owed
    assert_true(answer(b, &e, 1));            // which may still be right
    assert_int_equal(ask(b, 7, 12, 2, 2), 1);
    const struct drafts_outbox *o = drafts_book_take(b);
    assert_int_equal(o->urgent[0].keep, 0);
    assert_int_equal(o->n_closes, 0); // it would follow the new beginning
    drafts_book_close(b, 7, false);
    o = drafts_book_take(b);
    assert_int_equal(o->n_closes, 1);
    assert_false(o->closes[0].ended);
}

static void a_missing_context_is_sent_again(void **state)
{
    (void)state;
    AUTO(drafts_book_free) struct drafts_book *b = book_of(4);
    struct draft_answer d;
    struct drafts_entry e = *must_send(b, 7, 10, 2, 0);
    assert_true(answer(b, &e, 1));
    e = *must_send(b, 7, 12, 2, 2);
    Tandem__V1__SequenceDraft a = TANDEM__V1__SEQUENCE_DRAFT__INIT;
    a.seq = 7;
    a.need_context = true;
    assert_false(judge(b, &a, 3, &d));
    e = *must_send(b, 7, 12, 2, 4);
    assert_int_equal(e.keep, 0);
    assert_true(answer(b, &e, 5));
    assert_null(drafts_book_verdict(b, 6));
}

static void a_proposer_that_never_keeps_a_context_is_given_up(void **state)
{
    (void)state;
    AUTO(drafts_book_free) struct drafts_book *b = book_of(4);
    struct draft_answer d;
    Tandem__V1__SequenceDraft a = TANDEM__V1__SEQUENCE_DRAFT__INIT;
    a.seq = 7;
    a.need_context = true;
    unsigned n = 0;
    for (; !drafts_book_verdict(b, n) && n < 100; n++) {
        must_send(b, 7, 10, 2, n);
        judge(b, &a, n, &d);
    }
    assert_int_equal(n, 4);
}

static void a_context_is_sent_again_a_limited_number_of_times(void **state)
{
    (void)state;
    AUTO(drafts_book_free) struct drafts_book *b = book_of(4);
    struct draft_answer d;
    Tandem__V1__SequenceDraft a = TANDEM__V1__SEQUENCE_DRAFT__INIT;
    a.seq = 7;
    a.need_context = true;
    unsigned n_sent = 0;
    for (uint32_t now = 0; ask(b, 7, 1000 + now, 2, now) && now < 100; now++) {
        struct drafts_entry e = drafts_book_take(b)->urgent[0];
        n_sent += e.keep == 0;
        if (e.keep)
            judge(b, &a, now, &d);
        else
            assert_true(answer(b, &e, now)); // and then it forgets
    }
    assert_int_equal(n_sent, 1 + DRAFTS_RESENDS_MAX);
    assert_int_equal(drafts_book_k_max(b, 7, 1000), 0);
    assert_null(drafts_book_verdict(b, 100)); // others it may draft for
    assert_int_equal(ask(b, 8, 10, 2, 100), 1);
}

static void answers_to_older_rounds_are_no_second_request_for_context(void **state)
{
    (void)state;
    AUTO(drafts_book_free) struct drafts_book *b = book_of(4);
    struct draft_answer d;
    Tandem__V1__SequenceDraft a = TANDEM__V1__SEQUENCE_DRAFT__INIT;
    a.seq = 7;
    a.need_context = true;
    ask(b, 7, 130000, 4, 0);
    drafts_book_take(b);
    ask(b, 7, 130000, 4, 0);
    drafts_book_take(b);
    for (int i = 0; i < 2; i++) // to both pieces
        judge(b, &a, 1, &d);
    assert_int_equal(drafts_book_counts(b)->malformed, 0);
}

static void a_good_draft_is_passed_on(void **state)
{
    (void)state;
    AUTO(drafts_book_free) struct drafts_book *b = book_of(4);
    struct draft_answer d;
    const struct drafts_entry *e = must_send(b, 7, 10, 5, 100);
    Tandem__V1__SequenceDraft a = answer_to(e, five, 5);
    assert_true(judge(b, &a, 350, &d));
    assert_true(d.seq == 7);
    assert_int_equal(d.base_len, 10);
    assert_int_equal(d.draft->n, 5);
    assert_false(d.draft->tree);
    assert_int_equal(d.rtt_us, 250);
    assert_memory_equal(d.draft->tokens, five, sizeof(five));
    for (int i = 0; i < 5; i++) {
        assert_int_equal(d.draft->parents[i], i - 1);
        assert_true(d.draft->survival[i] == 1);
    }
}

static void latency_is_measured_only_with_a_context_already_read(void **state)
{
    (void)state;
    AUTO(drafts_book_free) struct drafts_book *b = book_of(4);
    draft_after(b, 7, 5, 2, 4000); // it had the context to read
    assert_int_equal(drafts_book_p90_us(b, 5), 10000);
    draft_after(b, 7, 5, 2, 250);
    assert_int_equal(drafts_book_p90_us(b, 5), 250);
    assert_int_equal(drafts_book_p90_us(b, 1), 250);
}

/* A long context is fed until the time for a draft is up, again and again. */
static void a_proposer_still_reading_makes_no_wait_longer(void **state)
{
    (void)state;
    AUTO(drafts_book_free) struct drafts_book *b = book_of(4);
    for (unsigned i = 0; i < 2; i++)
        draft_after(b, 7, 5, 2, 250);
    for (unsigned i = 0; i < 40; i++)
        put_off_after(b, 8, 5, BUDGET_US - 1);
    draft_after(b, 8, 5, 2, BUDGET_US - 1); // the first; and one that had to be fed once more
    put_off_after(b, 7, 5, BUDGET_US - 1);
    draft_after(b, 7, 5, 2, BUDGET_US - 1);
    assert_int_equal(drafts_book_p90_us(b, 5), 250);
}

static uint32_t to_read(struct drafts_book *b, uint64_t seq, uint32_t base_len)
{
    struct drafts_wish w = wish_of(seq, base_len, 2);
    drafts_book_ask(b, &w, 1, BUDGET_US, 2000);
    return w.to_read;
}

static void a_wish_reports_the_positions_to_read_first(void **state)
{
    (void)state;
    AUTO(drafts_book_free) struct drafts_book *b = book_of(4);
    assert_int_equal(to_read(b, 7, 10), 10);
    put_off_after(b, 7, 2, 1);
    assert_int_equal(to_read(b, 7, 11), 11); // it still reads
    draft_after(b, 7, 2, 0, 1);
    assert_int_equal(to_read(b, 7, 12), 0);
    put_off_after(b, 7, 2, 1); // it still has positions to read
    assert_int_equal(to_read(b, 7, 300), 290);
    draft_after(b, 7, 2, 2, 1);
    struct draft_answer d;
    Tandem__V1__SequenceDraft lost = answer_to(must_send(b, 7, 20, 2, 0), NULL, 0);
    assert_int_equal(to_read(b, 7, 20), 0); // an answer is owed, nothing is on its way
    lost.need_context = true;
    judge(b, &lost, 1, &d);
    assert_int_equal(to_read(b, 7, 20), 20);
    assert_int_equal(to_read(b, 8, 130000), 130000); // ahead of a wish
    drafts_book_reset(b, &about);
    assert_int_equal(to_read(b, 7, 20), 20);
}

static void a_tree_is_passed_on_with_falling_survival(void **state)
{
    (void)state;
    AUTO(drafts_book_free) struct drafts_book *b = book_of(4);
    struct draft_answer d;
    const struct drafts_entry *e = must_send(b, 7, 10, 5, 0);
    Tandem__V1__SequenceDraft a = answer_to(e, five, 5);
    a.parents = (int32_t[]){-1, -1, 0, 1, 1};
    a.n_parents = 5;
    a.survival = (float[]){0.5f, 0.25f, 0.75f, 0.125f, 0};
    a.n_survival = 5;
    assert_true(judge(b, &a, 1, &d));
    assert_true(d.draft->tree);
    assert_true(d.draft->survival[2] == 0.5f && d.draft->survival[3] == 0.125f);
}

/* A request for six tokens, at most two on one path. */
static bool accepts_parents(const int32_t *parents, size_t n)
{
    AUTO(drafts_book_free) struct drafts_book *b = book_of(4);
    uint32_t tokens[] = {1, 2, 3, 4, 5, 6};
    struct drafts_wish w = wish_of(7, 10, 6);
    w.max_depth = 2;
    assert_int_equal(drafts_book_ask(b, &w, 1, BUDGET_US, 0), 1);
    struct draft_answer d;
    Tandem__V1__SequenceDraft a = answer_to(&drafts_book_take(b)->urgent[0], tokens, n);
    a.parents = (int32_t *)parents;
    a.n_parents = parents ? n : 0;
    bool good = judge(b, &a, 1, &d);
    assert_int_equal(drafts_book_counts(b)->malformed, !good);
    return good;
}

static void no_path_may_be_longer_than_requested(void **state)
{
    (void)state;
    assert_true(accepts_parents((int32_t[]){-1, -1, 0, 0, 1, 1}, 6));
    assert_true(accepts_parents(NULL, 2));
    assert_false(accepts_parents(NULL, 3));
    assert_false(accepts_parents((int32_t[]){-1, -1, 0, 0, 1, 2}, 6));
}

/* With three tokens being verified and four requested after them. */
static bool accepts_ahead(size_t n)
{
    AUTO(drafts_book_free) struct drafts_book *b = book_of(4);
    uint32_t tokens[] = {5, 6, 7, 1, 2, 3, 4, 5};
    struct drafts_wish w = wish_of(1, 20, 4);
    w.max_nodes = DRAFT_MAX_NODES;
    w.verifying = five;
    w.n_verifying = 3;
    assert_int_equal(drafts_book_ask(b, &w, 1, 1000, 0), 1);
    struct draft_answer d;
    Tandem__V1__SequenceDraft a = answer_to(&drafts_book_take(b)->urgent[0], tokens, n);
    return judge(b, &a, 1, &d);
}

static void a_path_of_a_draft_ahead_includes_the_verified_tokens(void **state)
{
    (void)state;
    assert_true(accepts_ahead(7));
    assert_false(accepts_ahead(8));
}

/* Every answer that does not fit the request is dropped and counted. */
static void wrong_answers_are_dropped(void **state)
{
    (void)state;
    for (int wrong = 0; wrong < 11; wrong++) {
        AUTO(drafts_book_free) struct drafts_book *b = book_of(4);
        struct draft_answer d;
        const struct drafts_entry *e = must_send(b, 7, 10, 4, 0);
        uint32_t tokens[4] = {1, 2, 3, N_VOCAB - 1};
        int32_t parents[4] = {-1, 0, 1, 2};
        float survival[4] = {1, 1, 1, 1};
        Tandem__V1__SequenceDraft a = answer_to(e, tokens, 4);
        a.parents = parents;
        a.survival = survival;
        a.n_parents = a.n_survival = 4;
        switch (wrong) {
        case 0:
            a.base_len++;
            break;
        case 1:
            a.digest ^= 1;
            break;
        case 2:
            a.tokens = five;
            a.n_tokens = 5;
            a.n_parents = a.n_survival = 0;
            break;
        case 3:
            tokens[3] = N_VOCAB;
            break;
        case 4:
            tokens[0] = UINT32_MAX;
            break;
        case 5:
            parents[2] = 2;
            break;
        case 6:
            parents[0] = -2;
            break;
        case 7:
            a.n_parents = 3;
            break;
        case 8:
            a.n_survival = 3;
            break;
        case 9:
            survival[1] = NAN;
            break;
        case 10:
            a.q_mode = TANDEM__V1__QMODE__Q_MODE_SPARSE;
            break;
        }
        assert_false(judge(b, &a, 1, &d));
        const struct drafts_counts *c = drafts_book_counts(b);
        assert_int_equal(c->stale, wrong < 2);
        assert_int_equal(c->malformed, wrong >= 2);
        assert_int_equal(ask(b, 7, 10, 4, 2), 1); // and the sequence may ask again
    }
}

static void three_bad_answers_in_a_row_are_enough(void **state)
{
    (void)state;
    AUTO(drafts_book_free) struct drafts_book *b = book_of(4);
    struct draft_answer d;
    for (int i = 0; i < 8; i++) {
        const struct drafts_entry *e = must_send(b, 7, 10, 1, 0);
        Tandem__V1__SequenceDraft a = answer_to(e, five, i == 2 ? 1 : 2);
        assert_null(drafts_book_verdict(b, 0));
        judge(b, &a, 0, &d);
        if (i == 5)
            break;
    }
    assert_string_equal(drafts_book_verdict(b, 0), "more tokens than were requested");
}

static void three_missed_budgets_in_a_row_are_enough(void **state)
{
    (void)state;
    AUTO(drafts_book_free) struct drafts_book *b = book_of(4);
    must_send(b, 7, 10, 1, 0);
    assert_null(drafts_book_verdict(b, BUDGET_US - 1));
    assert_null(drafts_book_verdict(b, BUDGET_US));
    assert_null(drafts_book_verdict(b, BUDGET_US + 2 * DRAFTS_MISS_AGAIN_US - 1));
    assert_string_equal(drafts_book_verdict(b, BUDGET_US + 2 * DRAFTS_MISS_AGAIN_US),
                        "it missed its budgets");
}

static void sequences_that_end_unanswered_are_missed_too(void **state)
{
    (void)state;
    AUTO(drafts_book_free) struct drafts_book *b = book_of(4);
    const char *why = NULL;
    int64_t now = 0;
    for (uint64_t seq = 1; !why && now < 10000000; seq++, now += BUDGET_US / 2) {
        ask(b, seq, 10, 1, now);
        drafts_book_take(b);
        drafts_book_close(b, seq, true);
        why = drafts_book_verdict(b, now);
    }
    assert_non_null(why);
    assert_true(now < 3 * DRAFTS_MISS_AGAIN_US);
}

static void late_answers_count_but_may_be_used(void **state)
{
    (void)state;
    AUTO(drafts_book_free) struct drafts_book *b = book_of(4);
    int64_t now = 0;
    for (unsigned i = 0; i < 3; i++) {
        struct drafts_entry e = *must_send(b, 7, 10 + i, 2, now);
        assert_null(drafts_book_verdict(b, now));
        now += BUDGET_US + 1;
        assert_true(answer(b, &e, now));
    }
    assert_int_equal(drafts_book_counts(b)->late, 3);
    assert_non_null(drafts_book_verdict(b, now));
}

static void an_outbox_that_is_never_taken_misses_too(void **state)
{
    (void)state;
    AUTO(drafts_book_free) struct drafts_book *b = book_of(4);
    const char *why = NULL;
    int64_t now = 0;
    for (; !why && now < 10000000; now += 1000) {
        ask(b, 7, 10 + (uint32_t)(now / 1000), 2, now);
        why = drafts_book_verdict(b, now);
    }
    assert_non_null(why);
    assert_true(now < 3 * DRAFTS_MISS_AGAIN_US);
}

static void a_flood_of_unrequested_answers_ends_the_stream(void **state)
{
    (void)state;
    AUTO(drafts_book_free) struct drafts_book *b = book_of(4);
    struct draft_answer d;
    Tandem__V1__SequenceDraft a = TANDEM__V1__SEQUENCE_DRAFT__INIT;
    unsigned n = 0;
    while (!drafts_book_verdict(b, 0) && n++ < 100000)
        assert_false(judge(b, &a, 0, &d));
    assert_int_equal(n, DRAFTS_UNREQUESTED_MAX + 1);
}

static void a_new_stream_knows_nothing(void **state)
{
    (void)state;
    AUTO(drafts_book_free) struct drafts_book *b = book_of(4);
    must_send(b, 7, 10, 2, 0);
    must_send(b, 8, 10, 2, 0);
    ask(b, 9, 10, 2, 0);
    drafts_book_reset(b, &about);
    assert_null(drafts_book_take(b));
    assert_int_equal(must_send(b, 7, 10, 2, 0)->keep, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wish_carries_the_context_once),
        cmocka_unit_test(tokens_are_those_from_keep_on),
        cmocka_unit_test(a_wish_is_cut_to_the_proposers_maximum),
        cmocka_unit_test(a_sequence_has_one_unanswered_round),
        cmocka_unit_test(a_wish_without_space_after_the_verified_tokens_is_not_sent),
        cmocka_unit_test(only_wishes_that_can_be_answered_have_a_latency),
        cmocka_unit_test(a_wish_for_a_draft_ahead_has_the_tokens_being_verified),
        cmocka_unit_test(a_stream_has_two_unanswered_rounds),
        cmocka_unit_test(long_contexts_are_sent_ahead_in_pieces),
        cmocka_unit_test(the_outbox_is_bounded),
        cmocka_unit_test(contexts_beyond_the_proposers_limit_are_not_sent),
        cmocka_unit_test(the_draw_key_is_sent_only_in_coupled_mode),
        cmocka_unit_test(only_offered_q_modes_are_requested),
        cmocka_unit_test(hint_tenant_and_sampling_are_sent_when_new),
        cmocka_unit_test(a_closed_sequence_is_forgotten),
        cmocka_unit_test(every_close_is_sent),
        cmocka_unit_test(a_closed_sequence_that_returns_is_sent_from_the_start),
        cmocka_unit_test(a_missing_context_is_sent_again),
        cmocka_unit_test(a_proposer_that_never_keeps_a_context_is_given_up),
        cmocka_unit_test(a_context_is_sent_again_a_limited_number_of_times),
        cmocka_unit_test(answers_to_older_rounds_are_no_second_request_for_context),
        cmocka_unit_test(a_good_draft_is_passed_on),
        cmocka_unit_test(latency_is_measured_only_with_a_context_already_read),
        cmocka_unit_test(a_proposer_still_reading_makes_no_wait_longer),
        cmocka_unit_test(a_wish_reports_the_positions_to_read_first),
        cmocka_unit_test(a_tree_is_passed_on_with_falling_survival),
        cmocka_unit_test(no_path_may_be_longer_than_requested),
        cmocka_unit_test(a_path_of_a_draft_ahead_includes_the_verified_tokens),
        cmocka_unit_test(wrong_answers_are_dropped),
        cmocka_unit_test(three_bad_answers_in_a_row_are_enough),
        cmocka_unit_test(three_missed_budgets_in_a_row_are_enough),
        cmocka_unit_test(sequences_that_end_unanswered_are_missed_too),
        cmocka_unit_test(late_answers_count_but_may_be_used),
        cmocka_unit_test(an_outbox_that_is_never_taken_misses_too),
        cmocka_unit_test(a_flood_of_unrequested_answers_ends_the_stream),
        cmocka_unit_test(a_new_stream_knows_nothing),
    };
    return cmocka_run_group_tests(tests, count, NULL);
}

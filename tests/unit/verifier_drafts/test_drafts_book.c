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

/* ---- the limits, one by one ---- */

static const struct drafts_described far = {.name = "far", .k_max = 64, .offers = {true, true}};

static struct drafts_book *far_book(uint32_t max_sequences)
{
    struct drafts_book *b = book_of(max_sequences);
    drafts_book_reset(b, &far);
    return b;
}

/* A context that was read, and then an answer of one token to a request for k after us. */
static void time_one(struct drafts_book *b, uint32_t k, int64_t us)
{
    struct drafts_entry e = *must_send(b, 1, 10, k, 1000);
    assert_true(answer_with(b, &e, 1, 1000 + us));
}

static void the_p90_is_that_of_the_last_32_answers(void **state)
{
    (void)state;
    AUTO(drafts_book_free) struct drafts_book *b = far_book(2);
    uint32_t us[60];
    time_one(b, 2, 1); // reads the context
    for (uint32_t n = 1; n <= ARRAY_LEN(us); n++) {
        us[n - 1] = 1 + n * 37 % 61; // each once
        time_one(b, 2, us[n - 1]);
        uint32_t recent = n < 32 ? n : 32, p90 = 0, n_below = 0;
        while (10 * n_below < 9 * recent) { // the least time that nine of ten do not exceed
            p90++;
            n_below = 0;
            for (uint32_t i = n - recent; i < n; i++)
                n_below += us[i] <= p90;
        }
        assert_int_equal(drafts_book_p90_us(b, 2), p90);
    }
}

static void latencies_are_kept_by_length(void **state)
{
    (void)state;
    static const uint32_t first[] = {1, 2, 3, 5, 9, 17}, last[] = {1, 2, 4, 8, 16, 60};
    for (unsigned kind = 0; kind < ARRAY_LEN(first); kind++) {
        AUTO(drafts_book_free) struct drafts_book *b = far_book(2);
        time_one(b, 1, 1);
        for (unsigned i = 0; i < ARRAY_LEN(first); i++)
            if (i != kind)
                time_one(b, last[i], 1000);
        time_one(b, first[kind], 77);
        for (uint32_t k = 1; k <= 64; k++) {
            bool same = k >= first[kind] && (k <= last[kind] || kind == 5);
            assert_int_equal(drafts_book_p90_us(b, k), same ? 77 : 1000);
        }
    }
}

/* Without any answer of this length, that of the longest drafts; without any at all, 10 ms. */
static void an_unknown_latency_is_that_of_the_longest_drafts(void **state)
{
    (void)state;
    AUTO(drafts_book_free) struct drafts_book *b = far_book(2);
    assert_int_equal(drafts_book_p90_us(b, 3), 10000);
    time_one(b, 1, 1);
    time_one(b, 1, 10);
    assert_int_equal(drafts_book_p90_us(b, 20), 10);
    time_one(b, 4, 40);
    assert_int_equal(drafts_book_p90_us(b, 20), 40);
    assert_int_equal(drafts_book_p90_us(b, 2), 40);
    assert_int_equal(drafts_book_p90_us(b, 1), 10);
    time_one(b, 1, 0); // at least 1 us
    AUTO(drafts_book_free) struct drafts_book *fast = far_book(2);
    time_one(fast, 1, 1);
    time_one(fast, 1, 0);
    assert_int_equal(drafts_book_p90_us(fast, 1), 1);
}

/* Of the wish: its entry in the outbox that was taken. */
static const struct drafts_entry *entry_for(struct drafts_book *b, struct drafts_wish *w)
{
    bool urgent = drafts_book_ask(b, w, 1, BUDGET_US, 0);
    const struct drafts_outbox *o = drafts_book_take(b);
    if (!o)
        return NULL;
    assert_int_equal(o->n_urgent + o->n_pieces, 1);
    assert_int_equal(o->n_urgent, urgent);
    return urgent ? o->urgent : o->pieces;
}

static void more_than_4096_new_tokens_are_sent_alone(void **state)
{
    (void)state;
    for (uint32_t n_hint = 0; n_hint < 2; n_hint++) {
        for (uint32_t n = DRAFTS_URGENT_TOKENS; n <= DRAFTS_URGENT_TOKENS + 1; n++) {
            AUTO(drafts_book_free) struct drafts_book *b = far_book(2);
            struct drafts_wish w = wish_of(1, n - n_hint, 4);
            w.hint = five;
            w.n_hint = n_hint;
            const struct drafts_entry *e = entry_for(b, &w);
            bool urgent = n == DRAFTS_URGENT_TOKENS;
            assert_int_equal(e->max_nodes, urgent ? 4 : 0);
            assert_int_equal(e->max_depth, urgent ? 4 : 0);
            assert_false(e->more);
            assert_int_equal(w.to_read, w.base_len);
        }
    }
}

static void a_piece_has_at_most_65536_tokens(void **state)
{
    (void)state;
    for (uint32_t n = DRAFTS_PIECE; n <= DRAFTS_PIECE + 1; n++) {
        AUTO(drafts_book_free) struct drafts_book *b = far_book(2);
        struct drafts_wish w = wish_of(1, n, 4);
        const struct drafts_entry *e = entry_for(b, &w);
        assert_int_equal(e->base_len, DRAFTS_PIECE);
        assert_int_equal(e->more, n > DRAFTS_PIECE);
    }
}

static void the_outbox_may_be_filled_to_its_last_token(void **state)
{
    (void)state;
    for (uint32_t extra = 0; extra < 2; extra++) {
        AUTO(drafts_book_free) struct drafts_book *b = far_book(8);
        for (uint64_t seq = 0; seq < 3; seq++)
            ask(b, seq, DRAFTS_PIECE, 4, 0);
        assert_int_equal(ask(b, 3, DRAFTS_PIECE - 10, 4, 0), 0);
        assert_int_equal(ask(b, 4, 10 + extra, 4, 0), !extra);
        const struct drafts_outbox *o = drafts_book_take(b);
        assert_int_equal(o->n_pieces, 4);
        assert_int_equal(o->n_urgent, !extra);
        assert_int_equal(o->n_tokens, DRAFTS_OUTBOX_TOKENS - (extra ? 10 : 0));
    }
}

static void hints_are_cut_and_long_tenants_are_not_sent(void **state)
{
    (void)state;
    static const char name[DRAFTS_TENANT_MAX + 1] = "a tenant";
    for (uint32_t more = 0; more < 2; more++) {
        AUTO(drafts_book_free) struct drafts_book *b = far_book(2);
        struct drafts_wish w = wish_of(1, 10, 4);
        w.hint = counting + 5;
        w.n_hint = DRAFTS_HINT_MAX + more;
        w.tenant = name;
        w.tenant_len = DRAFTS_TENANT_MAX + more;
        w.id = "the id";
        w.trace = "the trace";
        const struct drafts_entry *e = entry_for(b, &w);
        assert_int_equal(e->n_hint, DRAFTS_HINT_MAX);
        assert_int_equal(e->tenant_len, more ? 0 : DRAFTS_TENANT_MAX);
        assert_true(more || memcmp(e->tenant, name, DRAFTS_TENANT_MAX) == 0);
        assert_string_equal(e->id, "the id");
        assert_string_equal(e->trace, "the trace");
    }
}

static void a_wish_passes_through_unchanged(void **state)
{
    (void)state;
    AUTO(drafts_book_free) struct drafts_book *b = far_book(2);
    struct drafts_wish w = wish_of(1, 10, 4);
    w.max_depth = 3;
    w.prompt_len = 6;
    w.p_min = 0.25f;
    const struct drafts_entry *e = entry_for(b, &w);
    assert_true(e->seq == 1 && e->keep == 0 && e->base_len == 10 && e->prompt_len == 6);
    assert_true(e->p_min == 0.25f && e->max_nodes == 4 && e->max_depth == 3);
    assert_true(!e->introduced && e->q_mode == DRAFT_POINT && e->draw_key == 0);
    assert_string_equal(e->id, "");
    assert_string_equal(e->trace, "");
    assert_true(answer(b, e, 1));
    w.base_len = 12;
    e = entry_for(b, &w);
    assert_true(e->introduced && e->keep == 10 && e->base_len == 12 && w.to_read == 0);
}

/* Tokens of 480 Ki words are the most that fit into a message. */
static void a_dense_draft_must_fit_into_a_message(void **state)
{
    (void)state;
    uint32_t k;
    struct drafts_described to = far;
    to.offers[DRAFT_SPARSE] = to.offers[DRAFT_DENSE] = true;
    assert_int_equal(mode_asked(&to, DRAFTS_DENSE_MAX, DRAFT_DENSE, &k), DRAFT_DENSE);
    assert_int_equal(k, 1);
    assert_int_equal(mode_asked(&to, DRAFTS_DENSE_MAX / 8, DRAFT_DENSE, &k), DRAFT_DENSE);
    assert_int_equal(k, 8);
    assert_int_equal(mode_asked(&to, DRAFTS_DENSE_MAX / 8 + 1, DRAFT_DENSE, &k), DRAFT_DENSE);
    assert_int_equal(k, 7);
}

static void every_answer_is_counted_once(void **state)
{
    (void)state;
    AUTO(drafts_book_free) struct drafts_book *b = far_book(2);
    const struct drafts_counts *c = drafts_book_counts(b);
    assert_false(c->good);
    time_one(b, 4, 10); // one token
    assert_true(c->rounds == 1 && c->drafts == 1 && c->draft_tokens == 1 && c->good);
    struct drafts_entry e = *must_send(b, 1, 10, 4, 0);
    assert_true(answer_with(b, &e, 0, 10)); // none
    assert_true(c->rounds == 2 && c->drafts == 1 && c->draft_tokens == 1 && c->late == 0);
    e = *must_send(b, 1, 10, 4, 0);
    assert_true(answer_with(b, &e, 3, BUDGET_US)); // late
    assert_true(c->rounds == 3 && c->drafts == 2 && c->draft_tokens == 4 && c->late == 1);
    e = *must_send(b, 1, 10, 4, 0);
    assert_true(answer_with(b, &e, 3, BUDGET_US - 1));
    assert_true(c->late == 1 && c->stale == 0 && c->malformed == 0);
    drafts_book_reset(b, &far);
    assert_true(!c->good && c->rounds == 4 && c->drafts == 3);
    e = *must_send(b, 1, 10, 4, 0);
    assert_true(answer_with(b, &e, 3, BUDGET_US));
    assert_false(c->good); // it was late
}

/* Even if only one position is left. */
static void a_proposer_reads_until_nothing_is_left(void **state)
{
    (void)state;
    AUTO(drafts_book_free) struct drafts_book *b = far_book(2);
    struct draft_answer d;
    time_one(b, 4, 10);
    Tandem__V1__SequenceDraft a = answer_to(must_send(b, 1, 10, 4, 0), NULL, 0);
    a.unread = 1;
    assert_true(judge(b, &a, 1, &d));
    assert_int_equal(to_read(b, 1, 12), 2);
}

/* After the budget, and again after each further budget, or each 100 ms if that is longer. */
static void a_budget_is_missed_again_after_itself_or_100_ms(void **state)
{
    (void)state;
    static const uint32_t budgets[] = {1000, DRAFTS_MISS_AGAIN_US, DRAFTS_MISS_AGAIN_US + 1,
                                       300000};
    for (unsigned i = 0; i < ARRAY_LEN(budgets); i++) {
        AUTO(drafts_book_free) struct drafts_book *b = far_book(2);
        struct drafts_wish w = wish_of(1, 10, 4);
        uint32_t again = budgets[i] > 100000 ? budgets[i] : 100000;
        drafts_book_ask(b, &w, 1, budgets[i], 500);
        drafts_book_take(b);
        assert_null(drafts_book_verdict(b, 500 + budgets[i] + 2 * (int64_t)again - 1));
        assert_string_equal(drafts_book_verdict(b, 500 + budgets[i] + 2 * (int64_t)again),
                            "it missed its budgets");
    }
}

/* The time counts from the first wish, although newer ones replace it. */
static void an_outbox_is_due_after_the_budget_of_its_first_wish(void **state)
{
    (void)state;
    AUTO(drafts_book_free) struct drafts_book *b = far_book(2);
    ask(b, 1, 10, 4, 1000);
    ask(b, 1, 11, 4, 2000);
    assert_null(drafts_book_verdict(b, 1000 + BUDGET_US + 2 * DRAFTS_MISS_AGAIN_US - 1));
    assert_non_null(drafts_book_verdict(b, 1000 + BUDGET_US + 2 * DRAFTS_MISS_AGAIN_US));
    AUTO(drafts_book_free) struct drafts_book *empty = far_book(2);
    ask(empty, 1, 10, 4, 1000);
    drafts_book_close(empty, 1, true); // nothing is left to read
    assert_null(drafts_book_verdict(empty, INT64_C(1) << 40));
}

/* While an answer is owed, only its Round counts. */
static void a_waiting_outbox_is_no_fault_while_an_answer_is_owed(void **state)
{
    (void)state;
    AUTO(drafts_book_free) struct drafts_book *b = far_book(2);
    must_send(b, 1, 10, 4, 0);
    ask(b, 2, 10, 4, 0);
    assert_null(drafts_book_verdict(b, BUDGET_US + 2 * DRAFTS_MISS_AGAIN_US - 1));
    assert_non_null(drafts_book_verdict(b, BUDGET_US + 2 * DRAFTS_MISS_AGAIN_US));
}

static void a_draft_ahead_may_be_250_ms_later(void **state)
{
    (void)state;
    AUTO(drafts_book_free) struct drafts_book *b = far_book(2);
    struct drafts_wish w = wish_of(1, 20, 4);
    w.max_nodes = DRAFT_MAX_NODES;
    w.verifying = five;
    w.n_verifying = 3;
    assert_int_equal(drafts_book_ask(b, &w, 1, 1000, 0), 1);
    drafts_book_take(b);
    assert_null(drafts_book_verdict(b, 1000 + 250000 + 2 * DRAFTS_MISS_AGAIN_US - 1));
    assert_non_null(drafts_book_verdict(b, 1000 + 250000 + 2 * DRAFTS_MISS_AGAIN_US));
}

static void a_good_answer_in_time_clears_the_faults(void **state)
{
    (void)state;
    for (unsigned late = 0; late < 2; late++) {
        AUTO(drafts_book_free) struct drafts_book *b = far_book(2);
        struct drafts_entry e = *must_send(b, 1, 10, 4, 0);
        must_send(b, 2, 10, 4, 0);
        drafts_book_verdict(b, BUDGET_US); // one fault of each Round
        assert_true(answer(b, &e, BUDGET_US + 1));
        e = *must_send(b, 1, 10, 4, BUDGET_US + 1);
        assert_true(answer(b, &e, BUDGET_US + 1 + (late ? BUDGET_US : 0)));
        bool third = drafts_book_verdict(b, BUDGET_US + DRAFTS_MISS_AGAIN_US) != NULL;
        assert_int_equal(third, late);
    }
}

static void a_round_trip_is_the_time_since_the_request(void **state)
{
    (void)state;
    static const int64_t us[] = {-5, 0, UINT32_MAX, UINT32_MAX + INT64_C(1)};
    for (unsigned i = 0; i < ARRAY_LEN(us); i++) {
        AUTO(drafts_book_free) struct drafts_book *b = far_book(2);
        struct draft_answer d;
        Tandem__V1__SequenceDraft a = answer_to(must_send(b, 1, 10, 4, 1000), five, 2);
        judge(b, &a, 1000 + us[i], &d);
        assert_int_equal(d.rtt_us, us[i] < 0 ? 0 : us[i] > UINT32_MAX ? UINT32_MAX : us[i]);
    }
}

/* The first of three pieces is replaced, so the tokens of the others move. */
static void a_replaced_piece_leaves_the_others_as_they_were(void **state)
{
    (void)state;
    AUTO(drafts_book_free) struct drafts_book *b = far_book(8);
    for (uint64_t seq = 1; seq <= 3; seq++)
        ask(b, seq, 5000 + 100 * (uint32_t)seq, 4, 0);
    ask(b, 4, 30, 4, 0);
    ask(b, 1, 6000, 4, 0);
    const struct drafts_outbox *o = drafts_book_take(b);
    assert_int_equal(o->n_pieces, 3);
    assert_int_equal(o->n_urgent, 1);
    assert_int_equal(o->n_tokens, 5200 + 5300 + 30 + 6000);
    for (uint32_t i = 0; i < 3; i++) {
        const struct drafts_entry *e = &o->pieces[i];
        assert_int_equal(e->base_len, e->seq == 1 ? 6000 : 5000 + 100 * e->seq);
        assert_memory_equal(o->tokens + e->token_at, counting, e->base_len * 4);
    }
    assert_memory_equal(o->tokens + o->urgent[0].token_at, counting, 30 * 4);
}

/* Its end is not sent twice, and those of others are kept. */
static void a_sequence_that_returns_takes_back_its_own_close(void **state)
{
    (void)state;
    AUTO(drafts_book_free) struct drafts_book *b = far_book(4);
    for (uint64_t seq = 1; seq <= 3; seq++)
        ask(b, seq, 10, 4, 0);
    struct drafts_entry first = drafts_book_take(b)->urgent[0];
    assert_true(first.seq == 1 && answer(b, &first, 1));
    for (uint64_t seq = 1; seq <= 3; seq++)
        drafts_book_close(b, seq, seq == 2);
    assert_int_equal(ask(b, 1, 10, 4, 2), 1);
    const struct drafts_outbox *o = drafts_book_take(b);
    assert_int_equal(o->n_closes, 2);
    for (uint32_t i = 0; i < 2; i++)
        assert_true(o->closes[i].seq != 1 && o->closes[i].ended == (o->closes[i].seq == 2));
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
        cmocka_unit_test(the_p90_is_that_of_the_last_32_answers),
        cmocka_unit_test(latencies_are_kept_by_length),
        cmocka_unit_test(an_unknown_latency_is_that_of_the_longest_drafts),
        cmocka_unit_test(more_than_4096_new_tokens_are_sent_alone),
        cmocka_unit_test(a_piece_has_at_most_65536_tokens),
        cmocka_unit_test(the_outbox_may_be_filled_to_its_last_token),
        cmocka_unit_test(hints_are_cut_and_long_tenants_are_not_sent),
        cmocka_unit_test(a_wish_passes_through_unchanged),
        cmocka_unit_test(a_dense_draft_must_fit_into_a_message),
        cmocka_unit_test(every_answer_is_counted_once),
        cmocka_unit_test(a_proposer_reads_until_nothing_is_left),
        cmocka_unit_test(a_budget_is_missed_again_after_itself_or_100_ms),
        cmocka_unit_test(an_outbox_is_due_after_the_budget_of_its_first_wish),
        cmocka_unit_test(a_waiting_outbox_is_no_fault_while_an_answer_is_owed),
        cmocka_unit_test(a_draft_ahead_may_be_250_ms_later),
        cmocka_unit_test(a_good_answer_in_time_clears_the_faults),
        cmocka_unit_test(a_round_trip_is_the_time_since_the_request),
        cmocka_unit_test(a_replaced_piece_leaves_the_others_as_they_were),
        cmocka_unit_test(a_sequence_that_returns_takes_back_its_own_close),
    };
    return cmocka_run_group_tests(tests, count, NULL);
}

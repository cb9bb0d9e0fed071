/* test_session.c - contexts equal those of the verifiers, within the limits. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "base/rng.h"
#include "lib/fakes/failing.h"
#include "lib/lib.h"
#include "proposer-svc/hint.h"
#include "proposer-svc/session.h"

/* A proposer that drafts the sum of its context, so that a wrong context gives a wrong draft. */
struct sum_seq {
    uint32_t n, sum;
};

static int n_done, n_ended;
static uint32_t last_n;    // length of the last context that has ended
static uint32_t last_keep; // of the last cut

static void sum_done(void *shared, void *seq, const struct prop_context *c)
{
    (void)shared;
    (void)seq;
    __atomic_add_fetch(&n_done, 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&n_ended, c != NULL, __ATOMIC_RELAXED);
    if (c)
        __atomic_store_n(&last_n, c->n, __ATOMIC_RELAXED);
}

static void sum_cut(void *shared, void *seq, const struct prop_context *c, uint32_t keep)
{
    (void)shared;
    struct sum_seq *s = seq;
    assert_int_equal(s->n, c->n);
    __atomic_store_n(&last_keep, keep, __ATOMIC_RELAXED);
    for (; s->n > keep; s->n--)
        s->sum -= c->tokens[s->n - 1];
}

static int sum_grow(void *shared, void *seq, const struct prop_context *c)
{
    (void)shared;
    struct sum_seq *s = seq;
    for (; s->n < c->n; s->n++)
        s->sum += c->tokens[s->n];
    return s->sum == 666 ? fail(-ENOMEM, "no memory for a sum of 666") : 0;
}

static void sum_draft(void *shared, struct prop_ask *const *asks, uint32_t n)
{
    (void)shared;
    for (uint32_t a = 0; a < n; a++) {
        const struct sum_seq *s = asks[a]->seq;
        asks[a]->to->n = asks[a]->max_depth;
        for (uint32_t i = 0; i < asks[a]->max_depth; i++)
            asks[a]->to->tokens[i] = s->sum;
    }
}

static const struct prop_ops sum_ops = {.name = "sum",
                                        .seq_size = sizeof(struct sum_seq),
                                        .seq_done = sum_done,
                                        .cut = sum_cut,
                                        .grow = sum_grow,
                                        .draft = sum_draft};

static struct sessions *sessions_of(uint32_t max_sessions, uint64_t max_tokens)
{
    struct sessions_config c = {.ops = &sum_ops,
                                .max_sessions = max_sessions,
                                .max_tokens = max_tokens,
                                .max_context = 1000,
                                .k_max = 8,
                                .idle_us = 1000000};
    struct sessions *s;
    assert_int_equal(sessions_new(&c, &s), 0);
    return s;
}

/* The verifier's context: 1, 2, 3 ... */
static uint32_t counting[2000];

static uint64_t digest(uint32_t n)
{
    uint64_t d = 0;
    for (uint32_t i = 0; i < n; i++)
        d = rng_splitmix64(d ^ (counting[i] + 1));
    return d;
}

static struct session_update update_of(uint64_t seq, uint32_t keep, uint32_t base_len, uint32_t k)
{
    return (struct session_update){.seq = seq,
                                   .base_len = base_len,
                                   .keep = keep,
                                   .tokens = counting + keep,
                                   .n_tokens = base_len - keep,
                                   .digest = digest(base_len),
                                   .k = k};
}

static enum session_answer apply(struct sessions *s, uint64_t stream,
                                 const struct session_update *u, int64_t now, struct draft *ret)
{
    enum session_answer a;
    struct session *e;
    struct prop_ask ask;
    assert_int_equal(sessions_update(s, stream, u, now, &a, &e, &ask), 0);
    if (a != SESSION_DRAFT)
        return a;
    ask.to = ret;
    sum_draft(NULL, (struct prop_ask *[]){&ask}, 1);
    sessions_end(s, e);
    return a;
}

static enum session_answer ask(struct sessions *s, uint64_t stream, uint64_t seq, uint32_t keep,
                               uint32_t base_len, uint32_t k)
{
    struct draft d;
    struct session_update u = update_of(seq, keep, base_len, k);
    enum session_answer a = apply(s, stream, &u, 0, &d);
    if (a == SESSION_DRAFT && d.n)
        assert_int_equal(d.tokens[0], base_len * (base_len + 1) / 2);
    return a;
}

/* Updates sequence 7 and requests a draft of 3 tokens. */
static void must_answer(struct sessions *s, uint64_t stream, uint32_t keep, uint32_t base_len,
                        enum session_answer want)
{
    assert_int_equal(ask(s, stream, 7, keep, base_len, 3), want);
}

static void must_draft(struct sessions *s, uint64_t stream, uint32_t keep, uint32_t base_len)
{
    must_answer(s, stream, keep, base_len, SESSION_DRAFT);
}

static void must_need_context(struct sessions *s, uint64_t stream, uint32_t keep, uint32_t base_len)
{
    must_answer(s, stream, keep, base_len, SESSION_NEED_CONTEXT);
}

/* Applies an update of stream 1 that has no error. Returns the session, which is busy until
 * sessions_end() if a draft is due. */
static struct session *must_begin(struct sessions *s, const struct session_update *u,
                                  struct prop_ask *ret)
{
    enum session_answer a;
    struct session *e = NULL;
    assert_int_equal(sessions_update(s, 1, u, 0, &a, &e, ret), 0);
    assert_true(u->close || a == SESSION_DRAFT);
    return e;
}

static struct sessions_stats stats_of(struct sessions *s)
{
    struct sessions_stats stats;
    sessions_stats(s, &stats);
    return stats;
}

static uint32_t n_sessions(struct sessions *s)
{
    return stats_of(s).n_sessions;
}

static int count(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 2000; i++)
        counting[i] = i + 1;
    return 0;
}

static void a_context_grows_from_keep(void **state)
{
    (void)state;
    AUTO(sessions_free) struct sessions *s = sessions_of(4, 10000);
    must_draft(s, 1, 0, 10);
    must_draft(s, 1, 10, 14);
    must_draft(s, 1, 14, 14); // no new tokens
    must_draft(s, 1, 5, 9);   // shorter
    must_draft(s, 1, 0, 2);   // from the start again
    must_draft(s, 1, 2, 2);
    assert_int_equal(n_sessions(s), 1);
}

static unsigned n_hashed;

uint64_t __real_rng_splitmix64(uint64_t x);
uint64_t __wrap_rng_splitmix64(uint64_t x);

uint64_t __wrap_rng_splitmix64(uint64_t x)
{
    __atomic_add_fetch(&n_hashed, 1, __ATOMIC_RELAXED);
    return __real_rng_splitmix64(x);
}

/* Otherwise an update of one token could cost as much as the longest context. */
static void a_cut_context_is_not_hashed_as_a_whole(void **state)
{
    (void)state;
    struct sessions *s = sessions_of(4, 10000);
    for (uint32_t keep = 37; keep <= 1000; keep++) { // sum_grow() fails at 36
        must_draft(s, 1, 0, 1000);
        struct session_update u = update_of(7, keep, keep, 3);
        n_hashed = 0;
        struct draft d;
        assert_int_equal(apply(s, 1, &u, 0, &d), SESSION_DRAFT);
        assert_in_range(n_hashed, 1, 256 + 4); // 2 find the session in its bucket
    }
    sessions_free(s);
}

static void an_empty_context_is_a_context(void **state)
{
    (void)state;
    AUTO(sessions_free) struct sessions *s = sessions_of(4, 10000);
    must_draft(s, 1, 0, 0);
    must_draft(s, 1, 0, 1);
}

static void k_is_limited_and_0_means_no_answer(void **state)
{
    (void)state;
    AUTO(sessions_free) struct sessions *s = sessions_of(4, 10000);
    struct draft d;
    struct session_update u = update_of(7, 0, 10, 5000);
    assert_int_equal(apply(s, 1, &u, 0, &d), SESSION_DRAFT);
    assert_int_equal(d.n, 8);
    assert_int_equal(ask(s, 1, 7, 10, 11, 0), SESSION_SILENT);
    u = update_of(7, 11, 12, 4);
    u.more = true;
    assert_int_equal(apply(s, 1, &u, 0, &d), SESSION_SILENT);
    assert_int_equal(ask(s, 1, 7, 12, 13, 1), SESSION_DRAFT);
}

static void a_missing_context_is_requested(void **state)
{
    (void)state;
    AUTO(sessions_free) struct sessions *s = sessions_of(4, 10000);
    must_need_context(s, 1, 3, 10);                                 // never seen
    assert_int_equal(ask(s, 1, 7, 3, 10, 0), SESSION_NEED_CONTEXT); // also if no draft is requested
    must_draft(s, 1, 0, 10);
    must_need_context(s, 1, 11, 12); // a gap
    must_need_context(s, 1, 10, 12); // the session was dropped
    must_draft(s, 1, 0, 12);
}

static void a_context_with_another_digest_is_requested(void **state)
{
    (void)state;
    AUTO(sessions_free) struct sessions *s = sessions_of(4, 10000);
    struct draft d;
    struct session_update u = update_of(7, 0, 10, 3);
    u.digest++;
    assert_int_equal(apply(s, 1, &u, 0, &d), SESSION_NEED_CONTEXT);
    assert_int_equal(n_sessions(s), 0);
}

static void sessions_of_two_streams_are_separate(void **state)
{
    (void)state;
    AUTO(sessions_free) struct sessions *s = sessions_of(4, 10000);
    must_draft(s, 1, 0, 10);
    must_need_context(s, 2, 10, 11);
    must_draft(s, 2, 0, 4);
    must_draft(s, 1, 10, 11);
    sessions_end_stream(s, 1);
    must_need_context(s, 1, 11, 12);
    must_draft(s, 2, 4, 5);
}

static void a_closed_sequence_is_freed(void **state)
{
    (void)state;
    AUTO(sessions_free) struct sessions *s = sessions_of(4, 10000);
    struct draft d;
    ask(s, 1, 7, 0, 10, 3);
    n_done = 0;
    struct session_update u = {.seq = 7, .close = true};
    assert_int_equal(apply(s, 1, &u, 0, &d), SESSION_SILENT);
    assert_int_equal(apply(s, 1, &u, 0, &d), SESSION_SILENT); // a second close has no effect
    assert_int_equal(n_done, 1);
    assert_int_equal(n_sessions(s), 0);
}

/* A sequence whose session was dropped for any other reason may come back, with its whole
 * context. */
static void seq_done_has_the_context_only_if_the_sequence_has_ended(void **state)
{
    (void)state;
    AUTO(sessions_free) struct sessions *s = sessions_of(1, 10000);
    struct draft d;
    n_done = n_ended = 0;
    ask(s, 1, 7, 0, 10, 3);
    struct session_update u = {.seq = 7, .close = true, .unfinished = true};
    apply(s, 1, &u, 0, &d);
    ask(s, 1, 7, 0, 12, 3);
    ask(s, 1, 8, 0, 10, 3); // evicts the other session
    sessions_expire(s, 1000001);
    ask(s, 1, 7, 0, 13, 3);
    sessions_end_stream(s, 1);
    ask(s, 2, 7, 0, 13, 3);
    u = update_of(7, 13, 14, 3);
    u.digest++;
    assert_int_equal(apply(s, 2, &u, 0, &d), SESSION_NEED_CONTEXT);
    assert_int_equal(n_done, 5);
    assert_int_equal(n_ended, 0);
    ask(s, 2, 7, 0, 14, 3);
    u = update_of(7, 14, 15, 3);
    u.verifying = counting;
    u.n_verifying = 2;
    apply(s, 2, &u, 0, &d);
    u = (struct session_update){.seq = 7, .close = true};
    apply(s, 2, &u, 0, &d);
    assert_int_equal(n_ended, 1);
    assert_int_equal(last_n, 15); // without the tokens that were being verified
    ask(s, 2, 8, 0, 1000, 1);
    u = update_of(8, 1000, 1001, 1); // too long: it has ended for the proposer
    apply(s, 2, &u, 0, &d);
    assert_int_equal(n_done, 7);
    assert_int_equal(n_ended, 2);
}

/* The proposer keeps tokens that were being verified, up to the first one that was not
 * committed. */
static void tokens_being_verified_stay_if_they_are_committed(void **state)
{
    (void)state;
    for (uint32_t n_accepted = 0; n_accepted <= 4; n_accepted++) {
        AUTO(sessions_free) struct sessions *s = sessions_of(4, 10000);
        uint32_t verifying[] = {11, 12, 13, 14}; // the context is 1 .. 10
        struct draft d;
        if (n_accepted < 4)
            verifying[n_accepted] = 99;
        struct session_update u = update_of(7, 0, 10, 3);
        u.verifying = verifying;
        u.n_verifying = 4;
        assert_int_equal(apply(s, 1, &u, 0, &d), SESSION_DRAFT);
        uint32_t sum = 55 + 11 + 12 + 13 + 14;
        assert_int_equal(d.tokens[0], n_accepted < 4 ? sum - (11 + n_accepted) + 99 : sum);
        last_keep = 14;
        assert_int_equal(ask(s, 1, 7, 10, 11 + n_accepted, 1), SESSION_DRAFT); // checks the sum
        assert_int_equal(last_keep, 10 + n_accepted);
    }
}

static void idle_sessions_are_dropped(void **state)
{
    (void)state;
    AUTO(sessions_free) struct sessions *s = sessions_of(4, 10000);
    struct draft d;
    struct session_update a = update_of(1, 0, 10, 1), b = update_of(2, 0, 10, 1);
    apply(s, 1, &a, 0, &d);
    apply(s, 1, &b, 500000, &d);
    sessions_expire(s, 1000000);
    assert_int_equal(n_sessions(s), 2);
    sessions_expire(s, 1000001);
    assert_int_equal(n_sessions(s), 1);
    assert_int_equal(ask(s, 1, 2, 10, 11, 1), SESSION_DRAFT);
}

static void a_busy_session_is_never_idle(void **state)
{
    (void)state;
    AUTO(sessions_free) struct sessions *s = sessions_of(4, 10000);
    struct session_update u = update_of(7, 0, 10, 2);
    struct prop_ask asked;
    struct session *e = must_begin(s, &u, &asked);
    sessions_expire(s, INT64_MAX / 2);
    assert_int_equal(n_sessions(s), 1);
    sessions_end(s, e);
    sessions_expire(s, INT64_MAX / 2);
    assert_int_equal(n_sessions(s), 0);
}

static void a_new_session_evicts_the_least_recently_used(void **state)
{
    (void)state;
    AUTO(sessions_free) struct sessions *s = sessions_of(2, 10000);
    ask(s, 1, 1, 0, 10, 1);
    ask(s, 1, 2, 0, 10, 1);
    ask(s, 1, 1, 10, 11, 1);
    ask(s, 1, 3, 0, 10, 1);
    assert_int_equal(n_sessions(s), 2);
    assert_int_equal(ask(s, 1, 1, 11, 12, 1), SESSION_DRAFT);
    assert_int_equal(ask(s, 1, 2, 10, 11, 1), SESSION_NEED_CONTEXT);
}

static void new_tokens_evict_the_least_recently_used(void **state)
{
    (void)state;
    AUTO(sessions_free) struct sessions *s = sessions_of(100, 1000);
    struct sessions_stats stats;
    for (uint64_t seq = 1; seq < 50; seq++) {
        assert_int_equal(ask(s, 1, seq, 0, 100, 1), SESSION_DRAFT);
        sessions_stats(s, &stats);
        assert_true(stats.n_tokens <= 1000);
    }
    assert_true(stats.n_evicted > 40);
    assert_int_equal(ask(s, 1, 99, 0, 1000, 1), SESSION_DRAFT);
    assert_int_equal(n_sessions(s), 1);
}

static void a_context_that_is_too_long_gets_empty_drafts(void **state)
{
    (void)state;
    AUTO(sessions_free) struct sessions *s = sessions_of(4, 10000);
    struct draft d;
    assert_int_equal(ask(s, 1, 7, 0, 1000, 1), SESSION_DRAFT);
    struct session_update u = update_of(7, 1000, 1001, 1);
    assert_int_equal(apply(s, 1, &u, 0, &d), SESSION_EMPTY);
    assert_int_equal(n_sessions(s), 0);
    u = update_of(7, 1001, 1002, 1);
    assert_int_equal(apply(s, 1, &u, 0, &d), SESSION_EMPTY);
}

/* The committed tokens still update the session. Else the whole context would be requested
 * again. */
static void beyond_max_context_there_is_no_draft_ahead(void **state)
{
    (void)state;
    AUTO(sessions_free) struct sessions *s = sessions_of(4, 10000);
    struct draft d;
    assert_int_equal(ask(s, 1, 7, 0, 990, 1), SESSION_DRAFT);
    struct session_update u = update_of(7, 990, 996, 3);
    u.verifying = counting;
    u.n_verifying = 5;
    assert_int_equal(apply(s, 1, &u, 0, &d), SESSION_EMPTY);
    assert_int_equal(ask(s, 1, 7, 996, 999, 1), SESSION_DRAFT);
}

static void a_contradictory_update_is_refused(void **state)
{
    (void)state;
    AUTO(sessions_free) struct sessions *s = sessions_of(4, 10000);
    struct session *e;
    struct prop_ask d;
    enum session_answer a;
    struct session_update u = update_of(7, 0, 10, 1);
    u.n_tokens = 9;
    assert_int_equal(sessions_update(s, 1, &u, 0, &a, &e, &d), -EINVAL);
    assert_string_equal(fail_text(), "sequence 7: 9 tokens do not lead from keep 0 to base_len 10");
    u = (struct session_update){.seq = 7, .keep = 5, .base_len = 3, .n_tokens = (size_t)-2};
    assert_int_equal(sessions_update(s, 1, &u, 0, &a, &e, &d), -EINVAL);
    u.n_tokens = UINT32_MAX - 1; // 3 - 5 in 32 bits
    assert_int_equal(sessions_update(s, 1, &u, 0, &a, &e, &d), -EINVAL);
    assert_string_equal(fail_text(),
                        "sequence 7: 4294967294 tokens do not lead from keep 5 to base_len 3");
}

static void a_busy_session_takes_no_update(void **state)
{
    (void)state;
    AUTO(sessions_free) struct sessions *s = sessions_of(4, 10000);
    struct session *e, *other;
    struct prop_ask first, second;
    enum session_answer a;
    struct session_update u = update_of(7, 0, 10, 2);
    u.q_mode = DRAFT_COUPLED;
    u.draw_key = 99;
    u.sampling = &(struct prop_sampling){.params = {.temperature = 0.5f, .top_p = 0.9f}};
    e = must_begin(s, &u, &first);
    assert_int_equal(first.context.n, 10);
    assert_int_equal(first.q_mode, DRAFT_COUPLED);
    assert_int_equal(first.draw_key, 99);
    u = update_of(7, 10, 11, 2);
    assert_int_equal(sessions_update(s, 1, &u, 0, &a, &other, &second), -EBUSY);
    struct session_update close = {.seq = 7, .close = true};
    assert_int_equal(sessions_update(s, 1, &close, 0, &a, &other, &second), -EBUSY);
    sessions_end(s, e);
    other = must_begin(s, &u, &second);
    assert_float_equal(second.sampling.params.temperature, 0.5f, 0); // unchanged
    sessions_end(s, other);
}

static void a_session_is_dropped_if_its_proposer_has_no_memory(void **state)
{
    (void)state;
    AUTO(sessions_free) struct sessions *s = sessions_of(4, 10000);
    assert_int_equal(ask(s, 1, 7, 0, 35, 1), SESSION_DRAFT); // the sum of 1 .. 36 is 666
    assert_int_equal(ask(s, 1, 7, 35, 36, 1), SESSION_NEED_CONTEXT);
    assert_int_equal(n_sessions(s), 0);
}

static void a_session_keeps_its_bans_and_biases(void **state)
{
    (void)state;
    AUTO(sessions_free) struct sessions *s = sessions_of(4, 10000);
    struct session *e;
    struct prop_ask ask;
    struct session_update u = update_of(7, 0, 10, 2);
    uint32_t banned[] = {5, 6};
    struct dist_bias bias[] = {{3, -1}};
    u.sampling = &(struct prop_sampling){
        .params = {.bias = bias, .n_bias = 1}, .ban = {banned, 2, 20}, .ignore_eos = true};
    for (uint32_t n = 10; n < 12; n++) {
        e = must_begin(s, &u, &ask);
        assert_int_equal(ask.sampling.ban.n, 2);
        assert_int_equal(ask.sampling.ban.tokens[1], 6);
        assert_int_equal(ask.sampling.params.n_bias, 1);
        assert_int_equal(ask.sampling.params.bias[0].token, 3);
        assert_int_equal(ask.sampling.ban.until, 20);
        assert_true(ask.sampling.ignore_eos);
        sessions_end(s, e);
        banned[1] = 9; // the message was freed
        bias[0].token = 9;
        u = update_of(7, n, n + 1, 2);
    }
    u.sampling = &(struct prop_sampling){.params.top_p = 1};
    e = must_begin(s, &u, &ask);
    assert_int_equal(ask.sampling.ban.n, 0);
    assert_int_equal(ask.sampling.params.n_bias, 0);
    sessions_end(s, e);
}

/* What a verifier requests, and the limits of the ask (sessions_of() has k_max 8). */
struct limits {
    uint32_t k, max_nodes, n_verifying, ask_depth, ask_nodes;
};

static void must_limit(const struct limits *l)
{
    AUTO(sessions_free) struct sessions *s = sessions_of(4, 10000);
    struct session *e;
    struct prop_ask ask;
    enum session_answer a;
    struct session_update u = update_of(7, 0, 10, l->k);
    u.max_nodes = l->max_nodes;
    u.verifying = counting;
    u.n_verifying = l->n_verifying;
    assert_int_equal(sessions_update(s, 1, &u, 0, &a, &e, &ask), 0);
    assert_int_equal(a, SESSION_DRAFT);
    assert_int_equal(ask.max_depth, l->ask_depth);
    assert_int_equal(ask.max_nodes, l->ask_nodes);
    sessions_end(s, e);
}

static void without_max_nodes_only_a_draft_ahead_has_more_nodes_than_depth(void **state)
{
    (void)state;
    must_limit(&(struct limits){.k = 3, .ask_depth = 3, .ask_nodes = 3});
    must_limit(&(struct limits){.k = 50, .ask_depth = 8, .ask_nodes = 8});
    must_limit(&(struct limits){3, 0, 4, 3, DRAFT_MAX_NODES - 4});
    must_limit(&(struct limits){8, 0, DRAFT_MAX_NODES - 4, 4, 4});
}

static void max_nodes_limits_all_branches(void **state)
{
    (void)state;
    must_limit(&(struct limits){.k = 3, .max_nodes = 6, .ask_depth = 3, .ask_nodes = 6});
    must_limit(&(struct limits){.k = 6, .max_nodes = 3, .ask_depth = 3, .ask_nodes = 3});
    must_limit(&(struct limits){.k = 3, .max_nodes = UINT32_MAX, .ask_depth = 3, .ask_nodes = 8});
    must_limit(&(struct limits){3, 10, 4, 3, 6}); // with the four that are being verified
    must_limit(&(struct limits){3, 6, 4, 2, 2});
    must_limit(&(struct limits){3, UINT32_MAX, 4, 3, DRAFT_MAX_NODES - 4});
}

static void max_nodes_leaves_a_token_after_the_verified_ones(void **state)
{
    (void)state;
    AUTO(sessions_free) struct sessions *s = sessions_of(4, 10000);
    struct session *e;
    struct prop_ask ask;
    enum session_answer a;
    struct session_update u = update_of(7, 0, 10, 3);
    u.verifying = counting;
    u.n_verifying = u.max_nodes = 4;
    assert_int_equal(sessions_update(s, 1, &u, 0, &a, &e, &ask), -EINVAL);
    assert_string_equal(fail_text(),
                        "sequence 7: max_nodes 4 leaves none after the 4 being verified");
}

/* An update that is valid up to a limit of `length`, and how the next length is refused. */
struct bounded {
    size_t offset; // of the length in struct session_update
    size_t limit;
    const char *text; // of the refusal of limit + 1
};

static void must_be_bounded(const struct bounded *b)
{
    AUTO(sessions_free) struct sessions *s = sessions_of(4, 10000);
    struct session *e;
    struct prop_ask ask;
    enum session_answer a;
    struct session_update u = update_of(7, 0, 10, 3);
    u.tenant = u.model = (const uint8_t *)counting;
    u.verifying = counting;
    memcpy((char *)&u + b->offset, &b->limit, sizeof(size_t));
    sessions_end(s, must_begin(s, &u, &ask));
    memcpy((char *)&u + b->offset, &(size_t){b->limit + 1}, sizeof(size_t));
    assert_int_equal(sessions_update(s, 1, &u, 0, &a, &e, &ask), -EINVAL);
    assert_string_equal(fail_text(), b->text);
}

static void each_length_of_an_update_has_its_limit(void **state)
{
    (void)state;
    static const struct bounded all[] = {
        {offsetof(struct session_update, tenant_len), PROP_TENANT_MAX,
         "sequence 7: the tenant has 65 bytes, at most 64 are allowed"},
        {offsetof(struct session_update, model_len), PROP_MODEL_MAX,
         "sequence 7: the model has 33 bytes, at most 32 are allowed"},
        {offsetof(struct session_update, n_verifying), DRAFT_MAX_NODES - 1,
         "sequence 7: 64 tokens are being verified, at most 63 are allowed"}};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        must_be_bounded(&all[i]);
}

/* ---- limits of memory ---- */

static void a_context_reserves_a_quarter_more_and_64_tokens(void **state)
{
    (void)state;
    static const struct {
        uint32_t keep, base_len, n_tokens;
    } steps[] = {{0, 10, 76},      {10, 76, 76},     {76, 77, 160},   {77, 160, 160},
                 {160, 20, 160},   {20, 500, 689},   {500, 700, 939}, {700, 939, 939},
                 {939, 940, 1000}, {940, 1000, 1000}};
    AUTO(sessions_free) struct sessions *s = sessions_of(4, 10000);
    for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
        uint32_t keep = steps[i].keep < steps[i].base_len ? steps[i].keep : 0;
        assert_int_equal(ask(s, 1, 7, keep, steps[i].base_len, 3), SESSION_DRAFT);
        assert_int_equal(stats_of(s).n_tokens, steps[i].n_tokens);
    }
    struct draft d;
    struct session_update u = update_of(8, 0, 10, 3);
    u.verifying = counting;
    u.n_verifying = 6;
    assert_int_equal(apply(s, 1, &u, 0, &d), SESSION_DRAFT);
    assert_int_equal(stats_of(s).n_tokens, 1000 + 16 + 4 + 64);
}

static void contexts_may_fill_max_tokens_exactly(void **state)
{
    (void)state;
    for (unsigned missing = 0; missing < 2; missing++) {
        AUTO(sessions_free) struct sessions *s = sessions_of(100, 3 * 76 - missing);
        for (uint64_t seq = 1; seq <= 3; seq++)
            assert_int_equal(ask(s, 1, seq, 0, 10, 1), SESSION_DRAFT);
        assert_int_equal(n_sessions(s), 3 - missing);
        assert_int_equal(stats_of(s).n_evicted, missing);
        assert_int_equal(ask(s, 1, 1, 10, 11, 1), missing ? SESSION_NEED_CONTEXT : SESSION_DRAFT);
        assert_int_equal(ask(s, 1, 3, 10, 11, 1), SESSION_DRAFT);
    }
}

static void a_busy_session_is_not_evicted(void **state)
{
    (void)state;
    AUTO(sessions_free) struct sessions *s = sessions_of(2, 10000);
    struct session_update u = update_of(1, 0, 10, 1);
    struct prop_ask asked;
    struct session *e = must_begin(s, &u, &asked);
    assert_int_equal(ask(s, 1, 2, 0, 10, 1), SESSION_DRAFT);
    assert_int_equal(ask(s, 1, 3, 0, 10, 1), SESSION_DRAFT); // instead of 2, which is newer
    assert_int_equal(ask(s, 1, 2, 10, 11, 1), SESSION_NEED_CONTEXT);
    u = update_of(3, 10, 11, 1);
    struct session *second = must_begin(s, &u, &asked);
    assert_int_equal(ask(s, 1, 4, 0, 10, 1), SESSION_NEED_CONTEXT); // both are busy
    assert_int_equal(n_sessions(s), 2);
    assert_int_equal(stats_of(s).n_evicted, 1);
    sessions_end(s, e);
    sessions_end(s, second);
    assert_int_equal(ask(s, 1, 4, 0, 10, 1), SESSION_DRAFT);
}

static void tokens_of_a_busy_session_are_not_evicted(void **state)
{
    (void)state;
    AUTO(sessions_free) struct sessions *s = sessions_of(10, 100);
    struct session_update u = update_of(1, 0, 10, 1);
    struct prop_ask asked;
    struct session *e = must_begin(s, &u, &asked); // 76 tokens
    assert_int_equal(ask(s, 1, 2, 0, 10, 1), SESSION_NEED_CONTEXT);
    assert_int_equal(n_sessions(s), 1);
    assert_int_equal(stats_of(s).n_evicted, 0);
    sessions_end(s, e);
    assert_int_equal(ask(s, 1, 2, 0, 10, 1), SESSION_DRAFT);
    assert_int_equal(n_sessions(s), 1);
}

static uint64_t tokens_with_hint(uint64_t max_tokens, uint32_t n_hint)
{
    static uint32_t hint[HINT_TOKENS_MAX + 1];
    AUTO(sessions_free) struct sessions *s = sessions_of(4, max_tokens);
    struct prop_ask asked;
    struct session_update u = update_of(1, 0, 10, 3);
    u.hint = hint;
    u.n_hint = n_hint;
    sessions_end(s, must_begin(s, &u, &asked));
    uint64_t n = stats_of(s).n_tokens;
    u = update_of(1, 10, 10, 3);
    u.hint = hint;
    u.n_hint = 1; // a second one is ignored
    if (n > 76) {
        sessions_end(s, must_begin(s, &u, &asked));
        assert_int_equal(stats_of(s).n_tokens, n);
    }
    return n;
}

static void a_hint_is_stored_within_its_limits(void **state)
{
    (void)state;
    assert_int_equal(tokens_with_hint(80, 4), 80);
    assert_int_equal(tokens_with_hint(79, 4), 76); // max_tokens leaves no space
    uint32_t max = HINT_TOKENS_MAX;
    assert_int_equal(tokens_with_hint(100000, max - 1), 76 + max - 1);
    assert_int_equal(tokens_with_hint(100000, max), 76 + max);
    assert_int_equal(tokens_with_hint(100000, max + 1), 76 + max);
}

static void a_draft_ahead_may_reach_max_context(void **state)
{
    (void)state;
    for (uint32_t n_verifying = 4; n_verifying <= 5; n_verifying++) {
        AUTO(sessions_free) struct sessions *s = sessions_of(4, 10000);
        struct draft d;
        struct session_update u = update_of(7, 0, 996, 3);
        u.verifying = counting;
        u.n_verifying = n_verifying;
        assert_int_equal(apply(s, 1, &u, 0, &d), n_verifying == 4 ? SESSION_DRAFT : SESSION_EMPTY);
    }
}

static void the_length_of_the_prompt_may_change(void **state)
{
    (void)state;
    static const uint32_t sent[] = {0, 3, 0, 5}, known[] = {0, 3, 3, 5};
    AUTO(sessions_free) struct sessions *s = sessions_of(4, 10000);
    for (uint32_t i = 0; i < ARRAY_LEN(sent); i++) {
        struct prop_ask asked;
        struct session_update u = update_of(7, i ? 9 + i : 0, 10 + i, 3);
        u.prompt_len = sent[i];
        u.p_min = 0.25f;
        struct session *e = must_begin(s, &u, &asked);
        assert_int_equal(asked.context.n_prompt, known[i]);
        assert_int_equal(asked.context.n, 10 + i);
        assert_true(asked.p_min == 0.25f);
        assert_true(asked.sampling.params.top_p == 1 && asked.sampling.params.repetition == 1);
        sessions_end(s, e);
    }
}

/* ---- no memory ---- */

/* Allocations of a first update, in their order, and what the session is without each. */
static void without_memory_a_session_needs_its_context_or_has_no_hint_or_bans(void **state)
{
    (void)state;
    static const struct {
        enum session_answer answer;
        bool has_hint;
        uint32_t n_banned;
    } want[] = {{SESSION_NEED_CONTEXT, false, 0}, // the session
                {SESSION_NEED_CONTEXT, false, 0}, // its tokens
                {SESSION_NEED_CONTEXT, false, 0}, // their digests
                {SESSION_DRAFT, false, 1},        // the hint
                {SESSION_DRAFT, true, 0},         // bans and biases
                {SESSION_DRAFT, true, 1}};
    const uint32_t banned = 5;
    const struct dist_bias bias = {3, -1};
    for (unsigned n = 0; n < ARRAY_LEN(want); n++) {
        AUTO(sessions_free) struct sessions *s = sessions_of(4, 10000);
        struct session *e;
        struct prop_ask asked;
        struct draft d;
        enum session_answer a;
        struct session_update u = update_of(7, 0, 10, 2);
        u.hint = counting;
        u.n_hint = 20;
        u.sampling = &(struct prop_sampling){.params = {.bias = &bias, .n_bias = 1},
                                             .ban = {&banned, 1, 20}};
        failing_at(n + 1);
        int r = sessions_update(s, 1, &u, 0, &a, &e, &asked);
        assert_int_equal(failing_has_failed(), n < 5);
        assert_int_equal(r, 0);
        assert_int_equal(a, want[n].answer);
        if (a != SESSION_DRAFT) {
            assert_int_equal(n_sessions(s), 0);
            assert_int_equal(stats_of(s).n_tokens, 0);
            continue;
        }
        asked.to = &d;
        assert_int_equal(sessions_hint(e, &asked), want[n].has_hint);
        assert_int_equal(asked.sampling.ban.n, want[n].n_banned);
        assert_int_equal(asked.sampling.params.n_bias, want[n].n_banned);
        assert_int_equal(stats_of(s).n_tokens, 76 + (want[n].has_hint ? 20 : 0));
        sessions_end(s, e);
    }
}

static size_t bytes_of_new(uint32_t max_sessions)
{
    const struct sessions_config c = {.ops = &sum_ops, .max_sessions = max_sessions};
    AUTO(sessions_free) struct sessions *s = NULL;
    failing_at(0);
    assert_int_equal(sessions_new(&c, &s), 0);
    return failing_bytes();
}

/* A table of 16, 32, 64 ... pointers, as many as sessions or more. */
static void the_table_has_a_place_for_each_session(void **state)
{
    (void)state;
    size_t least = bytes_of_new(1);
    assert_int_equal(bytes_of_new(16), least);
    assert_int_equal(bytes_of_new(17), least + 16 * sizeof(void *));
    assert_int_equal(bytes_of_new(32), least + 16 * sizeof(void *));
    assert_int_equal(bytes_of_new(1000), least + 1008 * sizeof(void *));
}

static size_t bytes_of_session(size_t seq_size)
{
    struct prop_ops ops = sum_ops;
    ops.seq_size = seq_size;
    const struct sessions_config c = {
        .ops = &ops, .max_sessions = 4, .max_tokens = 1000, .max_context = 1000, .k_max = 8};
    AUTO(sessions_free) struct sessions *s = NULL;
    assert_int_equal(sessions_new(&c, &s), 0);
    struct prop_ask asked;
    struct session_update u = update_of(7, 0, 10, 3);
    failing_at(0);
    sessions_end(s, must_begin(s, &u, &asked));
    return failing_bytes();
}

static void a_session_has_space_for_the_proposers_state(void **state)
{
    (void)state;
    assert_int_equal(bytes_of_session(5000), bytes_of_session(1000) + 4000);
}

static void without_memory_there_are_no_sessions(void **state)
{
    (void)state;
    const struct sessions_config c = {.ops = &sum_ops, .max_sessions = 4};
    struct sessions *s;
    failing_at(1);
    assert_int_equal(sessions_new(&c, &s), -ENOMEM);
    assert_true(failing_has_failed());
    assert_string_equal(fail_text(), "session: no memory for 4 sessions");
    sessions_free(NULL);
}

static void *one_stream(void *arg)
{
    struct sessions *s = arg;
    static uint64_t n_streams;
    uint64_t stream = 100 + __atomic_fetch_add(&n_streams, 1, __ATOMIC_RELAXED);
    for (uint32_t i = 0; i < 500; i++) {
        uint64_t seq = i % 7;
        uint32_t len = 10 + i / 7;
        if (ask(s, stream, seq, len - 1, len, 2) == SESSION_NEED_CONTEXT)
            ask(s, stream, seq, 0, len, 2);
        sessions_expire(s, 0);
    }
    sessions_end_stream(s, stream);
    return NULL;
}

static void streams_on_many_threads_share_the_limits(void **state)
{
    (void)state;
    AUTO(sessions_free) struct sessions *s = sessions_of(10, 1500);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, one_stream, s), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(n_sessions(s), 0);
}

static void a_session_keeps_its_hint_and_counts_its_tokens(void **state)
{
    (void)state;
    AUTO(sessions_free) struct sessions *s = sessions_of(4, 500);
    struct session *e;
    struct prop_ask ask;
    struct draft d = {0};
    struct sessions_stats stats;
    struct session_update u = update_of(1, 0, 5, 3);
    u.prompt_len = 3;
    u.hint = (const uint32_t[]){4, 5, 60, 61};
    u.n_hint = 4;
    e = must_begin(s, &u, &ask);
    ask.to = &d;
    assert_true(sessions_hint(e, &ask));
    assert_int_equal(d.n, 2);
    assert_memory_equal(d.tokens, ((uint32_t[]){60, 61}), 8);
    sessions_end(s, e);
    sessions_stats(s, &stats);
    uint64_t with = stats.n_tokens;

    u = update_of(2, 0, 5, 3);
    u.hint = counting;
    u.n_hint = 500; // above max_tokens: no hint, and the proposer drafts
    e = must_begin(s, &u, &ask);
    assert_false(sessions_hint(e, &ask));
    sessions_end(s, e);
    u.close = true;
    must_begin(s, &u, &ask);
    u = update_of(1, 0, 5, 0);
    u.close = true;
    must_begin(s, &u, &ask);
    sessions_stats(s, &stats);
    assert_int_equal(stats.n_tokens, 0);
    assert_true(with > 4);
}

static void a_cut_context_continues_its_hint_at_the_new_end(void **state)
{
    (void)state;
    AUTO(sessions_free) struct sessions *s = sessions_of(4, 500);
    struct prop_ask asked;
    struct draft d = {0};
    const uint32_t base[] = {10, 7};
    for (unsigned i = 0; i < ARRAY_LEN(base); i++) {
        struct session_update u = update_of(1, i ? base[i] : 0, base[i], 3);
        u.prompt_len = 3;
        u.hint = i ? NULL : counting + 3;
        u.n_hint = i ? 0 : 20;
        struct session *e = must_begin(s, &u, &asked);
        asked.to = &d;
        assert_true(sessions_hint(e, &asked));
        sessions_end(s, e);
        assert_memory_equal(d.tokens, counting + base[i], 3 * sizeof(uint32_t));
    }
}

static void a_session_keeps_its_tenant_and_model(void **state)
{
    (void)state;
    AUTO(sessions_free) struct sessions *s = sessions_of(4, 5000);
    struct session *e;
    struct prop_ask ask;
    struct session_update u = update_of(1, 0, 3, 2);
    u.tenant = (const uint8_t *)"abc";
    u.tenant_len = 3;
    u.model = (const uint8_t *)"fingerprint";
    u.model_len = 11;
    for (int i = 0; i < 2; i++) {
        e = must_begin(s, &u, &ask);
        assert_int_equal(ask.context.tenant_len, 3);
        assert_memory_equal(ask.context.tenant, "abc", 3);
        assert_int_equal(ask.context.model_len, 11);
        assert_memory_equal(ask.context.model, "fingerprint", 11);
        sessions_end(s, e);
        u = update_of(1, 3, 5, 2); // the tenant comes only once
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_context_grows_from_keep),
        cmocka_unit_test(a_cut_context_is_not_hashed_as_a_whole),
        cmocka_unit_test(an_empty_context_is_a_context),
        cmocka_unit_test(k_is_limited_and_0_means_no_answer),
        cmocka_unit_test(a_missing_context_is_requested),
        cmocka_unit_test(a_context_with_another_digest_is_requested),
        cmocka_unit_test(sessions_of_two_streams_are_separate),
        cmocka_unit_test(a_closed_sequence_is_freed),
        cmocka_unit_test(seq_done_has_the_context_only_if_the_sequence_has_ended),
        cmocka_unit_test(tokens_being_verified_stay_if_they_are_committed),
        cmocka_unit_test(idle_sessions_are_dropped),
        cmocka_unit_test(a_busy_session_is_never_idle),
        cmocka_unit_test(a_new_session_evicts_the_least_recently_used),
        cmocka_unit_test(new_tokens_evict_the_least_recently_used),
        cmocka_unit_test(a_context_that_is_too_long_gets_empty_drafts),
        cmocka_unit_test(beyond_max_context_there_is_no_draft_ahead),
        cmocka_unit_test(a_contradictory_update_is_refused),
        cmocka_unit_test(a_busy_session_takes_no_update),
        cmocka_unit_test(a_session_keeps_its_bans_and_biases),
        cmocka_unit_test(a_session_is_dropped_if_its_proposer_has_no_memory),
        cmocka_unit_test(without_max_nodes_only_a_draft_ahead_has_more_nodes_than_depth),
        cmocka_unit_test(max_nodes_limits_all_branches),
        cmocka_unit_test(max_nodes_leaves_a_token_after_the_verified_ones),
        cmocka_unit_test(a_session_keeps_its_hint_and_counts_its_tokens),
        cmocka_unit_test(a_cut_context_continues_its_hint_at_the_new_end),
        cmocka_unit_test(a_session_keeps_its_tenant_and_model),
        cmocka_unit_test(each_length_of_an_update_has_its_limit),
        cmocka_unit_test(a_context_reserves_a_quarter_more_and_64_tokens),
        cmocka_unit_test(contexts_may_fill_max_tokens_exactly),
        cmocka_unit_test(a_busy_session_is_not_evicted),
        cmocka_unit_test(tokens_of_a_busy_session_are_not_evicted),
        cmocka_unit_test(a_hint_is_stored_within_its_limits),
        cmocka_unit_test(a_draft_ahead_may_reach_max_context),
        cmocka_unit_test(the_length_of_the_prompt_may_change),
        cmocka_unit_test(without_memory_a_session_needs_its_context_or_has_no_hint_or_bans),
        cmocka_unit_test(the_table_has_a_place_for_each_session),
        cmocka_unit_test(a_session_has_space_for_the_proposers_state),
        cmocka_unit_test(without_memory_there_are_no_sessions),
        cmocka_unit_test(streams_on_many_threads_share_the_limits),
    };
    return cmocka_run_group_tests(tests, count, NULL);
}

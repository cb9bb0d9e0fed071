/* test_prop_draft_model.c - the draft model's drafts: equal to those of a fresh sequence, whatever
 * came before, and equal to the target's tokens if it is the target. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/rng.h"
#include "lib/lib.h"
#include "lib/oracles/plain_dist.h"
#include "lib/oracles/prop_contract.h"
#include "lib/rigs/model_rig.h"
#include "file/checkpoint.h"
#include "model/dist.h"
#include "proposer-svc/draftmodel/prop_draft_model.h"
#include "text/tok.h"

#define MODEL SOURCE_DIR "/models/tales-1m-q8_0.gguf"
#define N_VOCAB 4096
#define KEY 0x1234567890abcdefu

static void *shared;

static void must_open(void)
{
    if (prop_draft_model.open(&shared) < 0)
        fail_msg("%s", fail_text());
}

static void must_close(void)
{
    prop_draft_model.close(shared);
}

/* A text that the model can continue: its own output, with random tokens in between. */
static struct prop_seq story_of(const char *tenant, uint32_t n)
{
    static uint32_t tokens[1024];
    static uint32_t n_tokens;
    struct prop_seq s = prop_seq_new(&prop_draft_model, shared);
    if (!n_tokens) {
        uint32_t begin[4] = {4080, 300, 400, 500};
        prop_seq_update(&s, 0, begin, 4);
        while (s.n < 200) {
            struct draft d = prop_seq_draft(&s, 8);
            assert_true(d.n > 0);
            prop_seq_update(&s, s.n, d.tokens, d.n);
            prop_seq_update(&s, s.n, &(uint32_t){(uint32_t)(rng_splitmix64(s.n) % 4000)}, 1);
        }
        n_tokens = s.n;
        memcpy(tokens, s.tokens, n_tokens * sizeof(tokens[0]));
        prop_seq_done(&s);
        s = prop_seq_new(&prop_draft_model, shared);
    }
    s.tenant = tenant;
    for (uint32_t at = 0; at < n; at += n_tokens)
        prop_seq_update(&s, at, tokens, n - at < n_tokens ? n - at : n_tokens);
    return s;
}

static struct prop_seq story(uint32_t n)
{
    return story_of(NULL, n);
}

static struct prop_ask ask_of(const struct prop_seq *s, uint32_t k, struct draft *to)
{
    return (struct prop_ask){.seq = s->state,
                             .context = {.tokens = s->tokens, .n = s->n, .n_prompt = s->n_prompt},
                             .max_depth = k,
                             .max_nodes = k,
                             .sampling.params = {.top_p = 1, .repetition = 1},
                             .until_us = INT64_MAX,
                             .to = to};
}

/* The last n tokens of the context are being verified, so the draft may have branches. */
static void verify_last(struct prop_ask *ask, uint32_t n)
{
    ask->context.n_verifying = n;
    if (n)
        ask->max_nodes = DRAFT_MAX_NODES - n;
}

static void assert_same_as_fresh(const struct prop_seq *s, uint32_t k)
{
    struct prop_seq fresh = prop_seq_new(&prop_draft_model, shared);
    prop_seq_update(&fresh, 0, s->tokens, s->n);
    struct draft a = prop_seq_draft(s, k), b = prop_seq_draft(&fresh, k);
    prop_same_draft(&a, &b);
    assert_memory_equal(a.survival, b.survival, a.n * sizeof(a.survival[0]));
    prop_seq_done(&fresh);
}

static void it_keeps_the_contract(void **state)
{
    (void)state;
    prop_contract(&prop_draft_model, N_VOCAB);
}

static void a_batch_drafts_what_each_would_alone(void **state)
{
    (void)state;
    must_open();
    enum { N = 50 }; // more than one group
    struct prop_seq seqs[N];
    struct draft together[N];
    struct prop_ask asks[N], *pointers[N];
    for (uint32_t i = 0; i < N; i++) {
        seqs[i] = story(3 + i * 3);
        asks[i] = ask_of(&seqs[i], 1 + i % 9, &together[i]);
        pointers[i] = &asks[i];
    }
    prop_ask_all(&prop_draft_model, shared, pointers, N);
    for (uint32_t i = 0; i < N; i++) {
        struct draft alone = prop_seq_draft(&seqs[i], 1 + i % 9);
        assert_true(alone.n > 0);
        prop_same_draft(&together[i], &alone);
        prop_seq_done(&seqs[i]);
    }
    must_close();
}

static void after_any_acceptance_the_next_draft_equals_a_fresh_one(void **state)
{
    (void)state;
    must_open();
    for (uint32_t n_accepted = 0; n_accepted <= 8; n_accepted++) {
        struct prop_seq s = story(60);
        struct draft d = prop_seq_draft(&s, 8);
        assert_int_equal(d.n, 8);
        prop_seq_update(&s, s.n, d.tokens, n_accepted); // 8: the row of the last one is missing
        assert_same_as_fresh(&s, 8);
        prop_seq_update(&s, s.n, (uint32_t[]){17}, 1); // correction or bonus
        assert_same_as_fresh(&s, 8);
        prop_seq_done(&s);
    }
    must_close();
}

/* Each branch of a draft ahead equals a fresh draft. Returns the number of branches. Adds to
 * *n_early those that assume a rejection. */
static uint32_t branches_as_fresh_drafts(uint32_t n_verifying, uint32_t k_wanted, uint32_t *n_early)
{
    struct prop_seq s = story(60);
    struct draft first = prop_seq_draft(&s, n_verifying), ahead;
    prop_seq_update(&s, s.n, first.tokens, n_verifying);
    struct prop_ask ask = ask_of(&s, k_wanted, &ahead), *asks = &ask;
    verify_last(&ask, n_verifying);
    prop_ask_all(&prop_draft_model, shared, &asks, 1);
    uint32_t n_branches = 0;
    assert_true(ahead.tree && ahead.n > k_wanted && ahead.n <= DRAFT_MAX_NODES - n_verifying);
    for (uint32_t i = 0; i < ahead.n; i++) {
        if (ahead.parents[i] >= 0)
            continue;
        uint32_t start = s.n + 1 + (uint32_t)ahead.parents[i], at = i, n = 0;
        assert_in_range(start, s.n - n_verifying, s.n);
        struct prop_seq fresh = prop_seq_new(&prop_draft_model, shared);
        prop_seq_update(&fresh, 0, s.tokens, start);
        if (i == 0) // the first branch continues the draft itself
            assert_int_equal(prop_seq_draft(&fresh, 1).tokens[0], ahead.tokens[0]);
        else if (start < s.n)
            assert_int_not_equal(ahead.tokens[i], s.tokens[start]);
        prop_seq_update(&fresh, start, &ahead.tokens[i], 1);
        struct draft rest = prop_seq_draft(&fresh, k_wanted - 1);
        for (uint32_t k = i + 1; k < ahead.n; k++) {
            if (ahead.parents[k] != (int32_t)at)
                continue;
            assert_int_equal(ahead.tokens[k], rest.tokens[n++]);
            at = k;
        }
        assert_int_equal(n, k_wanted - 1);
        prop_seq_done(&fresh);
        n_branches++;
        *n_early += start < s.n;
    }
    prop_seq_done(&s);
    return n_branches;
}

/* However many of the tokens are accepted, the branch for it equals a fresh draft. */
static void each_branch_of_a_draft_ahead_equals_a_fresh_draft(void **state)
{
    (void)state;
    uint32_t n_early = 0;
    must_open();
    assert_int_equal(branches_as_fresh_drafts(4, 5, &n_early), 6);
    assert_true(n_early > 0);
    assert_int_equal(branches_as_fresh_drafts(16, 17, &n_early), 2); // more branches would not fit
    must_close();
}

/* With many sequences, each still gets the branch that continues its draft. */
static void many_drafts_ahead_share_the_passes(void **state)
{
    (void)state;
    must_open();
    enum { N = 16, N_VERIFYING = 4, K = 5 };
    struct prop_seq s[N];
    struct draft drafts[N];
    struct prop_ask ask[N], *asks[N];
    uint32_t n_calls = 0, n_open = N;
    for (uint32_t i = 0; i < N; i++) {
        s[i] = story(60 + i);
        struct draft first = prop_seq_draft(&s[i], N_VERIFYING);
        prop_seq_update(&s[i], s[i].n, first.tokens, N_VERIFYING);
        ask[i] = ask_of(&s[i], K, &drafts[i]);
        verify_last(&ask[i], N_VERIFYING);
        asks[i] = &ask[i];
    }
    for (; n_open; n_calls++) {
        prop_draft_model.draft(shared, asks, n_open);
        for (uint32_t i = n_open; i-- > 0;)
            if (asks[i]->done)
                asks[i] = asks[--n_open];
    }
    assert_in_range(n_calls, K, K + 3); // a pass begins branches from at most 32 rows
    for (uint32_t i = 0; i < N; i++) {
        struct draft fresh = prop_seq_draft(&s[i], K);
        uint32_t at = 0, n = 1;
        assert_int_equal(drafts[i].tokens[0], fresh.tokens[0]);
        for (uint32_t k = 1; k < drafts[i].n; k++) {
            if (drafts[i].parents[k] != (int32_t)at)
                continue;
            assert_int_equal(drafts[i].tokens[k], fresh.tokens[n++]);
            at = k;
        }
        assert_int_equal(n, K);
        assert_in_range(drafts[i].n, 2 * K, 3 * K);
        prop_seq_done(&s[i]);
    }
    must_close();
}

/* Writes the n tokens that a verifier with this model commits, one at a time. */
static void commit(const struct prop_seq *s, const struct dist_params *p, const uint64_t *mask,
                   uint32_t n, uint32_t *to)
{
    struct model_rig rig;
    struct dist *dist;
    AUTO(dist_counts_free) struct dist_counts *counts = NULL;
    model_rig_open(&rig, MODEL, &(struct model_rig_options){0});
    assert_int_equal(dist_new(N_VOCAB, rig.model->kernel, &dist), 0);
    assert_int_equal(dist_counts_new(N_VOCAB, &counts), 0);
    struct kv_seq seq = model_rig_seq(&rig);
    model_rig_feed(&rig, &seq, s->tokens, s->n - 1, 0, NULL);
    for (uint32_t i = 0; i < s->n; i++)
        dist_counts_add(counts, s->tokens[i], i >= s->n_prompt);
    uint32_t token = s->tokens[s->n - 1];
    for (uint32_t i = 0; i < n; i++) {
        dist_set(dist, model_rig_step(&rig, &seq, token), p, counts, mask);
        to[i] = token = dist_draw(dist, KEY, s->n + i);
        dist_counts_add(counts, token, true);
    }
    kv_seq_done(rig.kv, &seq);
    dist_free(dist);
    model_rig_close(&rig);
}

static void coupled_drafts_of_the_target_itself_are_its_draws(void **state)
{
    (void)state;
    static const struct dist_params how[] = {
        {.top_p = 1, .repetition = 1},
        {.temperature = 1, .top_p = 1, .repetition = 1},
        {.temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f, .repetition = 1},
        {.temperature = 2, .top_p = 0.9f, .repetition = 1}};
    must_open();
    for (unsigned i = 0; i < 4; i++) {
        struct prop_seq s = story(40);
        struct draft d;
        struct prop_ask ask = ask_of(&s, 40, &d);
        ask.q_mode = DRAFT_COUPLED;
        ask.draw_key = KEY;
        ask.sampling.params = how[i];
        prop_ask_all(&prop_draft_model, shared, (struct prop_ask *[]){&ask}, 1);
        uint32_t want[40];
        commit(&s, &how[i], NULL, d.n, want);
        assert_true(d.n > 5);
        assert_int_equal(d.q_mode, DRAFT_COUPLED);
        assert_memory_equal(d.tokens, want, d.n * sizeof(want[0]));
        prop_seq_done(&s);
    }
    must_close();
}

static void a_point_draft_is_the_argmax_at_any_temperature(void **state)
{
    (void)state;
    must_open();
    struct prop_seq s = story(40);
    struct draft cold = prop_seq_draft(&s, 8), hot;
    struct prop_ask ask = ask_of(&s, 8, &hot);
    ask.sampling.params.temperature = 1.5f;
    prop_ask_all(&prop_draft_model, shared, (struct prop_ask *[]){&ask}, 1);
    prop_same_draft(&cold, &hot);
    prop_seq_done(&s);
    must_close();
}

static struct draft draft_under(const struct prop_seq *s, enum draft_q_mode mode, uint32_t k,
                                const struct prop_sampling *sampling, uint32_t n_verifying)
{
    struct draft d;
    struct prop_ask ask = ask_of(s, k, &d);
    ask.q_mode = mode;
    ask.draw_key = KEY;
    ask.sampling = *sampling;
    verify_last(&ask, n_verifying);
    prop_ask_all(&prop_draft_model, shared, (struct prop_ask *[]){&ask}, 1);
    return d;
}

/* The branch of a draft ahead that continues after all tokens that are being verified. */
static uint32_t main_branch(const struct draft *d, uint32_t *to)
{
    int32_t at = -1;
    uint32_t n = 0;
    for (uint32_t i = 0; i < d->n; i++) {
        if (d->parents[i] != at)
            continue;
        to[n++] = d->tokens[i];
        at = (int32_t)i;
    }
    return n;
}

/* With these parameters, drafts equal the tokens that a verifier with this model commits: a
 * whole draft, one after a part was committed, a draft ahead, and one after other tokens were
 * committed. */
static void drafted_as_committed(const struct dist_params *params)
{
    enum { K = 24, PART = 9, VERIFYING = 3 };
    struct prop_seq s = story(40);
    struct prop_sampling how = {.params = *params};
    enum draft_q_mode mode = params->temperature > 0 ? DRAFT_COUPLED : DRAFT_POINT;
    uint32_t want[K], way[DRAFT_MAX_NODES];
    s.n_prompt = 25;
    for (uint32_t cut = 0; cut < 12; cut += 6) {
        prop_seq_update(&s, s.n - cut, s.tokens, cut); // continue from an earlier position
        commit(&s, params, NULL, K, want);
        struct draft d = draft_under(&s, mode, K, &how, 0);
        assert_int_equal(d.n, K);
        assert_memory_equal(d.tokens, want, sizeof(want));
        prop_seq_update(&s, s.n, want, PART);
        d = draft_under(&s, mode, K - PART, &how, 0);
        assert_memory_equal(d.tokens, want + PART, d.n * sizeof(want[0]));
        prop_seq_update(&s, s.n, want + PART, VERIFYING);
        d = draft_under(&s, mode, 6, &how, VERIFYING);
        assert_int_equal(main_branch(&d, way), 6);
        assert_memory_equal(way, want + PART + VERIFYING, 6 * sizeof(want[0]));
    }
    prop_seq_done(&s);
}

static void penalties_and_bias_act_on_what_is_drafted(void **state)
{
    (void)state;
    const struct dist_bias bias[] = {{300, 40}, {301, 39.5f}, {500, -100}};
    const struct dist_params how[] = {
        {.top_p = 1, .repetition = 1.3f},
        {.top_p = 1, .repetition = 1, .presence = 0.9f, .frequency = 0.4f},
        {.temperature = 1, .top_p = 0.9f, .repetition = 1.1f, .frequency = 2},
        {.temperature = 0.7f, .top_k = 20, .top_p = 1, .repetition = 1, .presence = -2},
        {.top_p = 1, .repetition = 1, .frequency = 1, .bias = bias, .n_bias = 3},
        {.temperature = 1, .top_p = 1, .repetition = 1, .bias = bias, .n_bias = 3}};
    must_open();
    for (unsigned i = 0; i < ARRAY_LEN(how); i++)
        drafted_as_committed(&how[i]);
    must_close();
}

/* All tokens of the draft are banned at the next three positions. */
static void banned_tokens_are_not_drafted(void **state)
{
    (void)state;
    enum { K = 8, N_BANNED = 3 };
    must_open();
    for (unsigned hot = 0; hot < 2; hot++) {
        enum draft_q_mode mode = hot ? DRAFT_COUPLED : DRAFT_POINT;
        struct prop_seq s = story(40);
        struct prop_sampling how = {
            .params = {.temperature = (float)hot, .top_p = 1, .repetition = 1}};
        struct draft whole = draft_under(&s, mode, K, &how, 0);
        how.ban = (struct constraint_ban){whole.tokens, whole.n, s.n + N_BANNED};
        struct draft d = draft_under(&s, mode, K, &how, 0);
        uint32_t want[N_BANNED];
        uint64_t mask[N_VOCAB / 64];
        dist_mask_ban(mask, N_VOCAB, whole.tokens, whole.n);
        commit(&s, &how.params, mask, N_BANNED, want);
        assert_true(d.n > N_BANNED);
        assert_memory_equal(d.tokens, want, sizeof(want));
        prop_seq_update(&s, s.n, d.tokens, N_BANNED);
        struct draft rest = draft_under(&s, mode, d.n - N_BANNED, &how, 0);
        how.ban.n = 0;
        struct draft unbanned = draft_under(&s, mode, d.n - N_BANNED, &how, 0);
        prop_same_draft(&rest, &unbanned);
        assert_memory_equal(d.tokens + N_BANNED, rest.tokens, rest.n * sizeof(rest.tokens[0]));
        prop_seq_done(&s);
    }
    must_close();
}

static void banned_tokens_are_not_drafted_ahead(void **state)
{
    (void)state;
    must_open();
    for (unsigned hot = 0; hot < 2; hot++) {
        struct prop_seq s = story(40);
        prop_seq_draft(&s, 1); // it is read
        struct prop_sampling how = {
            .params = {.temperature = (float)hot, .top_p = 1, .repetition = 1}};
        enum draft_q_mode mode = hot ? DRAFT_COUPLED : DRAFT_POINT;
        struct draft whole = draft_under(&s, mode, 5, &how, 2);
        how.ban = (struct constraint_ban){whole.tokens, whole.n, UINT32_MAX};
        struct draft d = draft_under(&s, mode, 5, &how, 2);
        assert_true(whole.n > 5 && d.n > 5);
        for (uint32_t i = 0; i < d.n; i++)
            for (uint32_t b = 0; b < whole.n; b++)
                assert_int_not_equal(d.tokens[i], whole.tokens[b]);
        prop_seq_done(&s);
    }
    must_close();
}

static uint32_t eos_of_model(void)
{
    AUTO(checkpoint_close) struct checkpoint *g = NULL;
    AUTO(tok_free) struct tok *tok = NULL;
    const uint32_t *eos;
    assert_int_equal(checkpoint_open(MODEL, &g), 0);
    assert_int_equal(tok_new(g, &tok), 0);
    assert_true(tok_eos_ids(tok, &eos) > 0);
    return eos[0];
}

static void a_draft_continues_after_eos_only_with_ignore_eos(void **state)
{
    (void)state;
    static uint32_t others[N_VOCAB];
    uint32_t eos = eos_of_model(), n = 0;
    for (uint32_t i = 0; i < N_VOCAB; i++)
        if (i != eos)
            others[n++] = i;
    must_open();
    struct prop_seq s = story(40);
    struct prop_sampling how = {.params = {.top_p = 1, .repetition = 1},
                                .ban = {others, n, s.n + 1}}; // the first token is EOS
    for (unsigned ignore = 0; ignore < 2; ignore++) {
        how.ignore_eos = ignore;
        struct draft d = draft_under(&s, DRAFT_POINT, 4, &how, 0);
        assert_int_equal(d.tokens[0], eos);
        assert_int_equal(d.n, ignore ? 4 : 1);
    }
    prop_seq_done(&s);
    must_close();
}

/* The distribution of the token after s, by the model, under these parameters. */
static void probs_after(const struct prop_seq *s, const struct dist_params *p, double *probs)
{
    struct model_rig rig;
    struct dist *dist;
    model_rig_open(&rig, MODEL, &(struct model_rig_options){0});
    assert_int_equal(dist_new(N_VOCAB, rig.model->kernel, &dist), 0);
    struct kv_seq seq = model_rig_seq(&rig);
    model_rig_feed(&rig, &seq, s->tokens, s->n - 1, 0, NULL);
    dist_set(dist, model_rig_step(&rig, &seq, s->tokens[s->n - 1]), p, NULL, NULL);
    dist_probs(dist, probs);
    kv_seq_done(rig.kv, &seq);
    dist_free(dist);
    model_rig_close(&rig);
}

static struct draft drawn(const struct prop_seq *s, enum draft_q_mode mode, uint32_t k,
                          struct dist_params params)
{
    struct draft d = {.n = 0};
    struct prop_ask ask = ask_of(s, k, &d);
    ask.q_mode = mode;
    ask.sampling.params = params;
    prop_ask_all(&prop_draft_model, shared, (struct prop_ask *[]){&ask}, 1);
    assert_int_equal(d.q_mode, mode);
    assert_non_null(d.q);
    return d;
}

static void a_sparse_q_sums_exactly_and_has_the_likeliest_tokens(void **state)
{
    (void)state;
    static const struct dist_params how[] = {
        {.temperature = 1, .top_p = 1, .repetition = 1},
        {.top_p = 1, .repetition = 1},
        {.temperature = 0.7f, .top_k = 5, .top_p = 1, .repetition = 1},
        {.temperature = 3, .top_p = 0.9f, .repetition = 1}};
    must_open();
    struct prop_seq s = story(40);
    for (unsigned h = 0; h < 4; h++) {
        static double p[N_VOCAB];
        probs_after(&s, &how[h], p);
        struct draft d = drawn(&s, DRAFT_SPARSE, 8, how[h]);
        assert_int_equal(d.q->width, 64);
        for (uint32_t row = 0; row < d.n; row++) {
            uint32_t sum = 0, n_drawn = 0;
            for (uint32_t i = 0; i < 64; i++) {
                sum += d.q->probs[row * 64 + i] + 1u;
                n_drawn += d.q->ids[row * 64 + i] == d.tokens[row];
                for (uint32_t k = 0; k < i; k++)
                    assert_int_not_equal(d.q->ids[row * 64 + i], d.q->ids[row * 64 + k]);
            }
            assert_int_equal(sum, 65536);
            assert_int_equal(n_drawn, 1);
        }
        double sum = 0;
        for (uint32_t i = 0; i < 64; i++) {
            assert_true(i == 0 || p[d.q->ids[i]] <= p[d.q->ids[i - 1]]);
            sum += p[d.q->ids[i]];
        }
        for (uint32_t i = 0; i < 64; i++)
            assert_float_equal((d.q->probs[i] + 1.) / 65536, p[d.q->ids[i]] / sum, 66. / 65536);
        free(d.q);
    }
    prop_seq_done(&s);
    must_close();
}

/* The survival estimate and the length of the draft do not depend on the drawn token. */
static void tokens_are_drawn_from_the_q_that_is_sent(void **state)
{
    (void)state;
    enum { WIDTH = 8 };
    const uint32_t N = (uint32_t)lib_amount(2000, 2500, 20000);
    prop_draft_model_settings.sparse_k = WIDTH;
    prop_draft_model_settings.p_min = 0.2; // above the probability of some tokens
    must_open();
    struct prop_seq s = story(40);
    float survival = prop_seq_draft(&s, 1).survival[0];
    double want[WIDTH] = {0}, chi2 = 0;
    uint32_t seen[WIDTH] = {0}, n_other = 0;
    for (uint32_t n = 0; n < N; n++) {
        struct draft d =
            drawn(&s, DRAFT_SPARSE, 1,
                  (struct dist_params){.temperature = 1.5f, .top_p = 1, .repetition = 1});
        assert_int_equal(d.n, 1);
        assert_true(d.survival[0] == survival); // does not depend on the draw
        for (uint32_t i = 0; i < WIDTH; i++) {
            want[i] = (d.q->probs[i] + 1.) / 65536 * N;
            seen[i] += d.q->ids[i] == d.tokens[0];
        }
        free(d.q);
    }
    for (uint32_t i = 0; i < WIDTH; i++) {
        chi2 += (seen[i] - want[i]) * (seen[i] - want[i]) / want[i];
        n_other += seen[i];
    }
    assert_int_equal(n_other, N);
    assert_true(plain_chi2_tail(chi2, WIDTH - 1) > 1e-6);
    prop_seq_done(&s);
    must_close();
}

static void a_dense_q_is_the_whole_distribution(void **state)
{
    (void)state;
    must_open();
    struct prop_seq s = story(40);
    static double p[N_VOCAB];
    struct dist_params how = {.temperature = 1, .top_p = 0.9f, .repetition = 1};
    probs_after(&s, &how, p);
    struct draft d = drawn(&s, DRAFT_DENSE, 64, how);
    assert_int_equal(d.q->width, N_VOCAB);
    assert_true(d.n * (size_t)N_VOCAB * sizeof(float) <= 1 << 20);
    for (uint32_t i = 0; i < N_VOCAB; i++)
        assert_true(d.q->weights[i] == (float)p[i]);
    for (uint32_t row = 0; row < d.n; row++)
        assert_true(d.q->weights[row * N_VOCAB + d.tokens[row]] > 0);
    free(d.q);
    prop_seq_done(&s);
    must_close();
}

/* A draft and a draft ahead, with the p_min of the service and of the ask. */
static void draft_with_p_min(float service_p_min, float ask_p_min, struct draft *draft,
                             struct draft *ahead)
{
    prop_draft_model_settings.p_min = (double)service_p_min;
    must_open();
    struct prop_seq s = story(100);
    struct prop_ask ask = ask_of(&s, 20, draft), *asks = &ask;
    ask.p_min = ask_p_min;
    prop_ask_all(&prop_draft_model, shared, &asks, 1);
    verify_last(&ask, 2);
    ask.max_depth = 8;
    ask.to = ahead;
    ask.done = false;
    prop_ask_all(&prop_draft_model, shared, &asks, 1);
    prop_seq_done(&s);
    must_close();
}

static void a_draft_ends_where_confidence_is_below_p_min(void **state)
{
    (void)state;
    struct draft whole, whole_ahead, cut, cut_ahead, as_asked, as_asked_ahead;
    draft_with_p_min(0, 0, &whole, &whole_ahead);
    draft_with_p_min(0.4f, 0.1f, &cut, &cut_ahead);
    draft_with_p_min(0.1f, 0.4f, &as_asked, &as_asked_ahead);
    assert_memory_equal(cut.tokens, whole.tokens, cut.n * sizeof(whole.tokens[0]));
    for (uint32_t i = 0; i < cut.n; i++)
        assert_true(cut.survival[i] >= 0.4f * (i ? cut.survival[i - 1] : 1));
    assert_true(cut.n < whole.n && cut_ahead.n < whole_ahead.n);
    assert_true(whole.survival[cut.n] < 0.4f * (cut.n ? whole.survival[cut.n - 1] : 1));
    prop_same_draft(&cut, &as_asked);
    prop_same_draft(&cut_ahead, &as_asked_ahead);
}

static void a_long_context_is_read_between_drafts_for_others(void **state)
{
    (void)state;
    must_open();
    struct prop_seq new = story(900), known = story(50);
    prop_seq_draft(&known, 1);
    struct draft d[2];
    struct prop_ask asks[2] = {ask_of(&new, 5, &d[0]), ask_of(&known, 5, &d[1])};
    prop_draft_model.draft(shared, (struct prop_ask *[]){&asks[0], &asks[1]}, 2);
    assert_false(asks[0].done);
    assert_true(asks[1].done);
    assert_int_equal(d[1].n, 5);

    uint32_t n_pieces = 0;
    while (prop_draft_model.work(shared))
        n_pieces++;
    assert_true(n_pieces > 1);
    prop_draft_model.draft(shared, (struct prop_ask *[]){&asks[0]}, 1);
    assert_true(asks[0].done);
    assert_int_equal(d[0].n, 5);
    prop_seq_done(&new);
    prop_seq_done(&known);
    must_close();
}

/* One call of draft() with an ask that has `us` microseconds. False: the time was up before. */
static bool called_in_time(const struct prop_seq *s, int64_t us, struct prop_ask *ask)
{
    static struct draft d;
    *ask = ask_of(s, 5, &d);
    ask->until_us = clock_us() + us;
    prop_draft_model.draft(shared, (struct prop_ask *[]){ask}, 1);
    assert_true(!ask->done || d.n == 0);
    return !ask->done || ask->unread;
}

/* A verifier has two Rounds in flight. A slow sequence must not occupy one of them. */
static void an_ask_without_time_for_its_context_gets_unread(void **state)
{
    (void)state;
    must_open();
    struct prop_seq before = story(900), s = story(901);
    struct prop_ask ask;
    assert_true(called_in_time(&before, 1000000000, &ask));
    assert_false(ask.done); // the time of a chunk is not known yet
    assert_true(prop_draft_model.work(shared));
    while (!called_in_time(&s, 500,
                           &ask)) // its 900 rows, and those of `before`, take longer than 250 us
        ;
    assert_int_equal(ask.unread, 901);
    assert_true(called_in_time(&s, 1000000000, &ask));
    assert_false(ask.done);
    while (prop_draft_model.work(shared))
        ;
    prop_draft_model.draft(shared, (struct prop_ask *[]){&ask}, 1);
    assert_true(ask.done && !ask.unread);
    assert_int_equal(ask.to->n, 5);
    prop_seq_done(&before);
    prop_seq_done(&s);
    must_close();
}

static void out_of_time_there_is_no_draft(void **state)
{
    (void)state;
    must_open();
    struct prop_seq s = story(50);
    struct draft d;
    struct prop_ask ask = ask_of(&s, 5, &d);
    ask.until_us = 0;
    prop_draft_model.draft(shared, (struct prop_ask *[]){&ask}, 1);
    assert_true(ask.done);
    assert_int_equal(d.n, 0);
    prop_seq_done(&s);
    must_close();
}

static void an_idle_sequence_is_evicted_a_busy_one_is_not(void **state)
{
    (void)state;
    prop_draft_model_settings.kv_mib = 1; // 1365 positions
    must_open();
    struct prop_seq a = story_of("a", 800), b = story_of("b", 801);
    struct draft first = prop_seq_draft(&a, 5);
    assert_int_equal(first.n, 5);
    assert_int_equal(prop_seq_draft(&b, 5).n, 0);
    uint32_t n_tries = 1;
    while (!prop_seq_draft(&b, 5).n) // the other one is idle meanwhile
        assert_true(++n_tries < 1000);
    assert_true(n_tries > 10);
    for (n_tries = 0; !prop_seq_draft(&a, 5).n; n_tries++)
        assert_true(n_tries < 1000);

    prop_seq_done(&a);
    prop_seq_done(&b);
    must_close();
}

static void branches_without_an_ask_are_evicted(void **state)
{
    (void)state;
    prop_draft_model_settings.kv_mib = 1; // 1365 positions
    must_open();
    struct prop_seq a = story_of("a", 800), b = story_of("b", 801);
    struct draft first = prop_seq_draft(&a, 3), ahead;
    prop_seq_update(&a, a.n, first.tokens, 3);
    struct prop_ask ask = ask_of(&a, 8, &ahead);
    verify_last(&ask, 3);
    prop_draft_model.draft(shared, (struct prop_ask *[]){&ask}, 1);
    assert_false(ask.done); // its verifier has disconnected
    unsigned n_tries = 0;
    while (!prop_seq_draft(&b, 5).n)
        assert_true(++n_tries < 1000);
    prop_seq_done(&a);
    prop_seq_done(&b);
    must_close();
}

static void while_a_context_is_read_no_sequence_becomes_idle(void **state)
{
    (void)state;
    prop_draft_model_settings.kv_mib = 1; // 1365 positions
    must_open();
    struct prop_seq a = story_of("a", 800), b = story_of("b", 801);
    struct draft d;
    struct prop_ask ask = ask_of(&b, 5, &d);
    assert_int_equal(prop_seq_draft(&a, 5).n, 5);
    for (unsigned i = 0; i < 1000; i++) { // as between the chunks of a long context
        prop_draft_model.draft(shared, (struct prop_ask *[]){&ask}, 1);
        assert_false(ask.done);
    }
    prop_ask_all(&prop_draft_model, shared, (struct prop_ask *[]){&ask}, 1);
    assert_int_equal(d.n, 0); // a's rows are not evicted
    prop_seq_done(&a);
    prop_seq_done(&b);
    must_close();
}

/* Counts chunks of context until there is a draft. */
static unsigned n_feedings(const struct prop_seq *s, struct draft *ret)
{
    struct prop_ask ask = ask_of(s, 5, ret);
    unsigned n = 0;
    for (;; n++) {
        prop_draft_model.draft(shared, (struct prop_ask *[]){&ask}, 1);
        if (ask.done)
            return n;
        assert_true(prop_draft_model.work(shared));
        assert_true(n < 1000);
    }
}

static void a_common_prefix_is_not_read_again(void **state)
{
    (void)state;
    must_open();
    struct prop_seq a = story(500), b;
    struct draft first, again;
    assert_true(n_feedings(&a, &first) > 1); // a pass has at most 256 rows
    prop_seq_done(&a);                       // the last turn of a chat
    b = story(504);
    assert_true(n_feedings(&b, &again) <=
                1); // at most 24 rows, perhaps in one chunk on a slow machine
    prop_seq_update(&b, 500, NULL, 0);
    assert_true(n_feedings(&b, &again) <= 1);
    prop_same_draft(&first, &again);
    prop_seq_done(&b);
    b = story_of("another", 500);
    assert_true(n_feedings(&b, &again) > 1);
    prop_same_draft(&first, &again);
    prop_seq_done(&b);
    must_close();
}

static void after_the_models_longest_context_there_is_no_draft(void **state)
{
    (void)state;
    prop_draft_model_settings.context = 64;
    must_open();
    struct prop_about about;
    prop_draft_model.about(shared, &about);
    assert_int_equal(about.max_context, 64);
    struct prop_seq s = story(60);
    assert_int_equal(prop_seq_draft(&s, 20).n, 4);
    prop_seq_update(&s, 60, (uint32_t[]){1, 2, 3, 4}, 4);
    assert_int_equal(prop_seq_draft(&s, 20).n, 0);
    prop_seq_update(&s, 64, (uint32_t[]){1, 2, 3, 4}, 4);
    assert_int_equal(prop_seq_draft(&s, 20).n, 0);
    prop_seq_done(&s);
    must_close();
}

static void after_a_token_that_the_model_does_not_have_there_is_no_draft(void **state)
{
    (void)state;
    must_open();
    struct prop_seq s = story(20);
    assert_int_equal(prop_seq_draft(&s, 4).n, 4);
    prop_seq_update(&s, 20, (uint32_t[]){1, 1u << 30, 3}, 3);
    assert_int_equal(prop_seq_draft(&s, 4).n, 0);
    prop_seq_update(&s, 22, (uint32_t[]){4, 5}, 2);
    assert_int_equal(prop_seq_draft(&s, 4).n, 0);
    prop_seq_update(&s, 21, (uint32_t[]){4}, 1); // the foreign token was removed
    assert_int_equal(prop_seq_draft(&s, 4).n, 4);
    prop_seq_done(&s);
    must_close();
}

/* Writes the model's file, changed so that all tokens from n_used on are padding. */
static void write_padded(const char *path, uint32_t n_used)
{
    struct checkpoint_array kinds, texts;
    size_t len;
    AUTO(mem_free) char *file = lib_read(MODEL, &len);
    AUTO(checkpoint_close) struct checkpoint *g = NULL;
    assert_int_equal(checkpoint_open_memory(file, len, &g), 0);
    assert_int_equal(checkpoint_array(g, "tokenizer.token_type", &kinds), 0);
    assert_int_equal(checkpoint_array(g, "tokenizer.tokens", &texts), 0);
    for (uint32_t id = n_used; id < kinds.n; id++) {
        struct span text = checkpoint_array_text(&texts, id);
        memset(file + (text.data - file), '.', text.len); // so that no name makes it an EOS token
        memcpy(file + ((const char *)kinds.data - file) + 4 * id, &(int32_t){TOK_UNUSED}, 4);
    }
    for (char *key; (key = memmem(file, len, "_token_id", 9));)
        key[8] = 'x';
    FILE *f = fopen(path, "wb");
    assert_int_equal(fwrite(file, 1, len, f), len);
    fclose(f);
}

/* A target with the same vocabulary may have no logits for padding. */
static void padding_is_never_drafted(void **state)
{
    (void)state;
    char path[] = "/tmp/tandem-padded-XXXXXX";
    uint32_t greatest = 0;
    must_open();
    struct prop_seq s = story(60);
    struct draft d = prop_seq_draft(&s, 8);
    for (uint32_t i = 0; i < d.n; i++)
        greatest = d.tokens[i] > greatest ? d.tokens[i] : greatest;
    prop_seq_done(&s);
    must_close();

    close(mkstemp(path));
    write_padded(path, greatest);
    prop_draft_model_settings.model = path;
    must_open();
    unlink(path);
    s = story(60);
    d = prop_seq_draft(&s, 8);
    assert_int_equal(d.n, 8);
    for (uint32_t i = 0; i < d.n; i++)
        assert_true(d.tokens[i] < greatest);
    struct prop_sampling how = {.params = {.top_p = 1, .repetition = 1.2f}};
    prop_seq_update(&s, s.n, (uint32_t[]){N_VOCAB - 1}, 1); // other proposers may draft it
    d = draft_under(&s, DRAFT_POINT, 8, &how, 1);
    for (uint32_t i = 0; i < d.n; i++)
        assert_true(d.tokens[i] < greatest);
    prop_seq_done(&s);
    must_close();
}

static void a_model_rounded_to_four_bits_drafts_nearly_the_same(void **state)
{
    (void)state;
    struct draft whole, rounded;
    uint32_t n_same = 0, n_moved = 0;
    for (uint32_t at = 20; at < 180; at += 20) {
        struct draft *const both[] = {&whole, &rounded};
        for (unsigned i = 0; i < 2; i++) {
            prop_draft_model_settings.quantise = (char *)(uintptr_t)(i ? "q4_0" : "no");
            must_open();
            struct prop_seq s = story(at);
            *both[i] = prop_seq_draft(&s, 1);
            prop_seq_done(&s);
            must_close();
        }
        n_same += whole.tokens[0] == rounded.tokens[0];
        n_moved += whole.survival[0] != rounded.survival[0];
    }
    assert_true(n_same >= 5);
    assert_int_equal(n_moved, 8);
}

static void without_a_model_the_error_names_the_setting(void **state)
{
    (void)state;
    prop_draft_model_settings.model = NULL;
    assert_int_equal(prop_draft_model.open(&shared), -EINVAL);
    assert_string_equal(fail_text(), "draft.model is missing: the GGUF file of the draft model");
}

static void too_large_a_pool_is_refused_with_what_would_fit(void **state)
{
    (void)state;
    prop_draft_model_settings.kv_mib = 1 << 23;
    assert_int_equal(prop_draft_model.open(&shared), -ENOMEM);
    assert_non_null(strstr(fail_text(), "draft.kv_mib="));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(it_keeps_the_contract, prop_defaults),
        cmocka_unit_test_setup(a_batch_drafts_what_each_would_alone, prop_defaults),
        cmocka_unit_test_setup(after_any_acceptance_the_next_draft_equals_a_fresh_one,
                               prop_defaults),
        cmocka_unit_test_setup(each_branch_of_a_draft_ahead_equals_a_fresh_draft, prop_defaults),
        cmocka_unit_test_setup(many_drafts_ahead_share_the_passes, prop_defaults),
        cmocka_unit_test_setup(coupled_drafts_of_the_target_itself_are_its_draws, prop_defaults),
        cmocka_unit_test_setup(a_point_draft_is_the_argmax_at_any_temperature, prop_defaults),
        cmocka_unit_test_setup(penalties_and_bias_act_on_what_is_drafted, prop_defaults),
        cmocka_unit_test_setup(banned_tokens_are_not_drafted, prop_defaults),
        cmocka_unit_test_setup(banned_tokens_are_not_drafted_ahead, prop_defaults),
        cmocka_unit_test_setup(a_draft_continues_after_eos_only_with_ignore_eos, prop_defaults),
        cmocka_unit_test_setup(a_sparse_q_sums_exactly_and_has_the_likeliest_tokens, prop_defaults),
        cmocka_unit_test_setup(tokens_are_drawn_from_the_q_that_is_sent, prop_defaults),
        cmocka_unit_test_setup(a_dense_q_is_the_whole_distribution, prop_defaults),
        cmocka_unit_test_setup(a_draft_ends_where_confidence_is_below_p_min, prop_defaults),
        cmocka_unit_test_setup(a_long_context_is_read_between_drafts_for_others, prop_defaults),
        cmocka_unit_test_setup(an_ask_without_time_for_its_context_gets_unread, prop_defaults),
        cmocka_unit_test_setup(out_of_time_there_is_no_draft, prop_defaults),
        cmocka_unit_test_setup(an_idle_sequence_is_evicted_a_busy_one_is_not, prop_defaults),
        cmocka_unit_test_setup(branches_without_an_ask_are_evicted, prop_defaults),
        cmocka_unit_test_setup(while_a_context_is_read_no_sequence_becomes_idle, prop_defaults),
        cmocka_unit_test_setup(a_common_prefix_is_not_read_again, prop_defaults),
        cmocka_unit_test_setup(after_the_models_longest_context_there_is_no_draft, prop_defaults),
        cmocka_unit_test_setup(after_a_token_that_the_model_does_not_have_there_is_no_draft,
                               prop_defaults),
        cmocka_unit_test_setup(padding_is_never_drafted, prop_defaults),
        cmocka_unit_test_setup(a_model_rounded_to_four_bits_drafts_nearly_the_same, prop_defaults),
        cmocka_unit_test_setup(without_a_model_the_error_names_the_setting, prop_defaults),
        cmocka_unit_test_setup(too_large_a_pool_is_refused_with_what_would_fit, prop_defaults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_prop_draft_sampling.c - sampling of the draft model. If it is the target, its tokens equal
 * the target's. Penalties, bans and bias act on them. They are drawn from the q that is sent. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "file/checkpoint.h"
#include "lib/lib.h"
#include "lib/oracles/plain_dist.h"
#include "lib/rigs/draft_rig.h"
#include "lib/rigs/model_rig.h"
#include "model/dist.h"
#include "text/tok.h"

#define KEY 0x1234567890abcdefu

/* Writes the n tokens that a verifier with this model commits, one at a time. */
static void commit(const struct prop_seq *s, const struct dist_params *p, const uint64_t *mask,
                   uint32_t n, uint32_t *to)
{
    struct model_rig rig;
    struct dist *dist;
    AUTO(dist_counts_free) struct dist_counts *counts = NULL;
    model_rig_open(&rig, DRAFT_RIG_MODEL, &(struct model_rig_options){0});
    assert_int_equal(dist_new(DRAFT_RIG_VOCAB, rig.model->kernel, &dist), 0);
    assert_int_equal(dist_counts_new(DRAFT_RIG_VOCAB, &counts), 0);
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
    draft_rig_open();
    for (unsigned i = 0; i < 4; i++) {
        struct prop_seq s = draft_rig_story(40);
        struct draft d;
        struct prop_ask ask = draft_rig_ask(&s, 40, &d);
        ask.q_mode = DRAFT_COUPLED;
        ask.draw_key = KEY;
        ask.sampling.params = how[i];
        prop_ask_all(&prop_draft_model, draft_rig_shared, (struct prop_ask *[]){&ask}, 1);
        uint32_t want[40];
        commit(&s, &how[i], NULL, d.n, want);
        assert_true(d.n > 5);
        assert_int_equal(d.q_mode, DRAFT_COUPLED);
        assert_memory_equal(d.tokens, want, d.n * sizeof(want[0]));
        prop_seq_done(&s);
    }
    draft_rig_close();
}

static void a_point_draft_is_the_argmax_at_any_temperature(void **state)
{
    (void)state;
    draft_rig_open();
    struct prop_seq s = draft_rig_story(40);
    struct draft cold = prop_seq_draft(&s, 8), hot;
    struct prop_ask ask = draft_rig_ask(&s, 8, &hot);
    ask.sampling.params.temperature = 1.5f;
    prop_ask_all(&prop_draft_model, draft_rig_shared, (struct prop_ask *[]){&ask}, 1);
    prop_same_draft(&cold, &hot);
    prop_seq_done(&s);
    draft_rig_close();
}

static struct draft draft_under(const struct prop_seq *s, enum draft_q_mode mode, uint32_t k,
                                const struct prop_sampling *sampling, uint32_t n_verifying)
{
    struct draft d;
    struct prop_ask ask = draft_rig_ask(s, k, &d);
    ask.q_mode = mode;
    ask.draw_key = KEY;
    ask.sampling = *sampling;
    draft_rig_verify_last(&ask, n_verifying);
    prop_ask_all(&prop_draft_model, draft_rig_shared, (struct prop_ask *[]){&ask}, 1);
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

/* With these parameters, drafts equal the tokens that a verifier with this model commits. There is
 * a whole draft, one after a part was committed, and a draft ahead. The second turn does the same
 * after other tokens were committed. */
static void drafted_as_committed(const struct dist_params *params)
{
    enum { K = 24, PART = 9, VERIFYING = 3 };
    struct prop_seq s = draft_rig_story(40);
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
    draft_rig_open();
    for (unsigned i = 0; i < ARRAY_LEN(how); i++)
        drafted_as_committed(&how[i]);
    draft_rig_close();
}

/* The tokens that count as generated change with it. */
static void the_length_of_the_prompt_may_change(void **state)
{
    (void)state;
    enum { K = 12 };
    static const uint32_t lengths[] = {35, 5, 40, 0};
    const struct prop_sampling how = {
        .params = {.top_p = 1, .repetition = 1, .presence = 1.5f, .frequency = 1}};
    draft_rig_open();
    struct prop_seq s = draft_rig_story(40);
    for (size_t i = 0; i < ARRAY_LEN(lengths); i++) {
        uint32_t want[K];
        s.n_prompt = lengths[i] ? lengths[i] : s.n; // 0: unknown, so no token was generated
        commit(&s, &how.params, NULL, K, want);
        s.n_prompt = lengths[i];
        struct draft d = draft_under(&s, DRAFT_POINT, K, &how, 0);
        assert_int_equal(d.n, K);
        assert_memory_equal(d.tokens, want, sizeof(want));
    }
    prop_seq_done(&s);
    draft_rig_close();
}

static void counts_grow_with_their_context(void **state)
{
    (void)state;
    const struct prop_sampling how = {
        .params = {.top_p = 1, .repetition = 1.2f, .presence = 1, .frequency = 0.5f}};
    draft_rig_open();
    struct prop_seq whole = draft_rig_story(900), s = draft_rig_story(8);
    for (uint32_t n = 8; n <= 900; n += n < 40 ? 7 : n / 3) {
        prop_seq_update(&s, s.n, whole.tokens + s.n, n - s.n);
        struct prop_seq fresh = draft_rig_story(n);
        struct draft a = draft_under(&s, DRAFT_POINT, 6, &how, 0),
                     b = draft_under(&fresh, DRAFT_POINT, 6, &how, 0);
        assert_int_equal(a.n, 6);
        prop_same_draft(&a, &b);
        prop_seq_done(&fresh);
    }
    prop_seq_done(&whole);
    prop_seq_done(&s);
    draft_rig_close();
}

/* All tokens of the draft are banned at the next three positions. */
static void banned_tokens_are_not_drafted(void **state)
{
    (void)state;
    enum { K = 8, N_BANNED = 3 };
    draft_rig_open();
    for (unsigned hot = 0; hot < 2; hot++) {
        enum draft_q_mode mode = hot ? DRAFT_COUPLED : DRAFT_POINT;
        struct prop_seq s = draft_rig_story(40);
        struct prop_sampling how = {
            .params = {.temperature = (float)hot, .top_p = 1, .repetition = 1}};
        struct draft whole = draft_under(&s, mode, K, &how, 0);
        how.ban = (struct constraint_ban){whole.tokens, whole.n, s.n + N_BANNED};
        struct draft d = draft_under(&s, mode, K, &how, 0);
        uint32_t want[N_BANNED];
        uint64_t mask[DRAFT_RIG_VOCAB / 64];
        dist_mask_ban(mask, DRAFT_RIG_VOCAB, whole.tokens, whole.n);
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
    draft_rig_close();
}

static void banned_tokens_are_not_drafted_ahead(void **state)
{
    (void)state;
    draft_rig_open();
    for (unsigned hot = 0; hot < 2; hot++) {
        struct prop_seq s = draft_rig_story(40);
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
    draft_rig_close();
}

static uint32_t eos_of_model(void)
{
    AUTO(checkpoint_close) struct checkpoint *g = NULL;
    AUTO(tok_free) struct tok *tok = NULL;
    const uint32_t *eos;
    assert_int_equal(checkpoint_open(DRAFT_RIG_MODEL, &g), 0);
    assert_int_equal(tok_new(g, &tok), 0);
    assert_true(tok_eos_ids(tok, &eos) > 0);
    return eos[0];
}

static void a_draft_continues_after_eos_only_with_ignore_eos(void **state)
{
    (void)state;
    static uint32_t others[DRAFT_RIG_VOCAB];
    uint32_t eos = eos_of_model(), n = 0;
    for (uint32_t i = 0; i < DRAFT_RIG_VOCAB; i++)
        if (i != eos)
            others[n++] = i;
    draft_rig_open();
    struct prop_seq s = draft_rig_story(40);
    struct prop_sampling how = {.params = {.top_p = 1, .repetition = 1},
                                .ban = {others, n, s.n + 1}}; // the first token is EOS
    for (unsigned ignore = 0; ignore < 2; ignore++) {
        how.ignore_eos = ignore;
        struct draft d = draft_under(&s, DRAFT_POINT, 4, &how, 0);
        assert_int_equal(d.tokens[0], eos);
        assert_int_equal(d.n, ignore ? 4 : 1);
    }
    prop_seq_done(&s);
    draft_rig_close();
}

/* The distribution of the token after s, by the model, under these parameters. */
static void probs_after(const struct prop_seq *s, const struct dist_params *p, double *probs)
{
    struct model_rig rig;
    struct dist *dist;
    model_rig_open(&rig, DRAFT_RIG_MODEL, &(struct model_rig_options){0});
    assert_int_equal(dist_new(DRAFT_RIG_VOCAB, rig.model->kernel, &dist), 0);
    struct kv_seq seq = model_rig_seq(&rig);
    model_rig_feed(&rig, &seq, s->tokens, s->n - 1, 0, NULL);
    dist_set(dist, model_rig_step(&rig, &seq, s->tokens[s->n - 1]), p, NULL, NULL);
    dist_probs(dist, probs);
    kv_seq_done(rig.kv, &seq);
    dist_free(dist);
    model_rig_close(&rig);
}

/* The three likeliest tokens, in descending order. */
static void find_top(const double *probs, uint32_t *top)
{
    for (uint32_t k = 0; k < 3; k++) {
        top[k] = DRAFT_RIG_VOCAB;
        for (uint32_t id = 0; id < DRAFT_RIG_VOCAB; id++) {
            bool taken = (k > 0 && id == top[0]) || (k > 1 && id == top[1]);
            if (!taken && (top[k] == DRAFT_RIG_VOCAB || probs[id] > probs[top[k]]))
                top[k] = id;
        }
    }
}

struct root {
    uint32_t token;
    int32_t parent;
    double prob, score;
};

/* What may be drafted instead of each token that is being verified, and after the last one. The
 * first root continues the draft; the others are sorted by their chance to be reached. */
static uint32_t plain_roots(const struct prop_seq *s, uint32_t n_verifying, struct root *to)
{
    static double probs[DRAFT_RIG_VOCAB];
    const struct dist_params soft = {.temperature = 1, .top_p = 1, .repetition = 1};
    double reach = 1;
    uint32_t n = 1;
    for (uint32_t i = 0; i <= n_verifying; i++) {
        struct prop_seq before = *s;
        uint32_t top[3];
        before.n = s->n - n_verifying + i;
        probs_after(&before, &soft, probs);
        find_top(probs, top);
        uint32_t drafted = i < n_verifying ? s->tokens[before.n] : top[0];
        for (uint32_t t = 0; t < 3; t++)
            if (top[t] != drafted)
                to[n++] = (struct root){top[t], (int32_t)i - (int32_t)n_verifying - 1,
                                        probs[top[t]], reach * probs[top[t]]};
        reach *= probs[drafted];
        to[0] = (struct root){drafted, -1, probs[top[0]], 0};
    }
    for (uint32_t i = 2; i < n; i++)
        for (uint32_t k = i; k > 1 && to[k].score > to[k - 1].score; k--) {
            struct root x = to[k];
            to[k] = to[k - 1];
            to[k - 1] = x;
        }
    return n;
}

static void branches_begin_where_they_are_likeliest_to_be_reached(void **state)
{
    (void)state;
    draft_rig_open();
    for (uint32_t at = 20; at < 120; at += 20) {
        struct root roots[40];
        struct prop_seq s = draft_rig_story(at);
        prop_seq_draft(&s, 1); // it is read
        struct prop_sampling how = {.params = {.top_p = 1, .repetition = 1}};
        struct draft d = draft_under(&s, DRAFT_POINT, 5, &how, 4);
        uint32_t n = plain_roots(&s, 4, roots), n_roots = 0;
        assert_true(n > 6);
        for (uint32_t i = 0; i < d.n; i++) {
            if (d.parents[i] >= 0)
                continue;
            const struct root *want = &roots[n_roots++];
            assert_int_equal(d.tokens[i], want->token);
            assert_int_equal(d.parents[i], want->parent);
            assert_float_equal(d.survival[i], want->prob, 1e-3);
        }
        assert_int_equal(n_roots, 6);
        prop_seq_done(&s);
    }
    draft_rig_close();
}

static struct draft drawn(const struct prop_seq *s, enum draft_q_mode mode, uint32_t k,
                          struct dist_params params)
{
    struct draft d = {.n = 0};
    struct prop_ask ask = draft_rig_ask(s, k, &d);
    ask.q_mode = mode;
    ask.sampling.params = params;
    ask.sampling.ignore_eos = true;
    prop_ask_all(&prop_draft_model, draft_rig_shared, (struct prop_ask *[]){&ask}, 1);
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
    draft_rig_open();
    struct prop_seq s = draft_rig_story(40);
    for (unsigned h = 0; h < 4; h++) {
        static double p[DRAFT_RIG_VOCAB];
        probs_after(&s, &how[h], p);
        struct draft d = drawn(&s, DRAFT_SPARSE, 8, how[h]);
        assert_int_equal(d.q->width, 64);
        assert_int_equal(d.n, 8);
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
    draft_rig_close();
}

/* At this temperature all tokens are equally likely. */
static void of_equally_likely_tokens_a_sparse_q_has_the_first_ones(void **state)
{
    (void)state;
    draft_rig_open();
    struct prop_seq s = draft_rig_story(40);
    const struct dist_params how[] = {{.temperature = 1e30f, .top_p = 1, .repetition = 1},
                                      {.top_p = 1, .repetition = 1}}; // one token, then the others
    struct draft d = drawn(&s, DRAFT_SPARSE, 2, how[0]);
    for (uint32_t i = 0; i < 2 * 64; i++)
        assert_int_equal(d.q->ids[i], i % 64);
    free(d.q);
    d = drawn(&s, DRAFT_SPARSE, 1, how[1]);
    for (uint32_t i = 1, id = 0; i < 64; i++, id++) {
        id += id == d.q->ids[0];
        assert_int_equal(d.q->ids[i], id);
    }
    free(d.q);
    prop_seq_done(&s);
    draft_rig_close();
}

/* The survival estimate and the length of the draft do not depend on the drawn token. */
static void tokens_are_drawn_from_the_q_that_is_sent(void **state)
{
    (void)state;
    enum { WIDTH = 8 };
    const uint32_t N = (uint32_t)lib_amount(2000, 2500, 20000);
    prop_draft_model_settings.sparse_k = WIDTH;
    prop_draft_model_settings.p_min = 0.2; // above the probability of some tokens
    draft_rig_open();
    struct prop_seq s = draft_rig_story(40);
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
    draft_rig_close();
}

static void a_dense_q_is_the_whole_distribution(void **state)
{
    (void)state;
    draft_rig_open();
    struct prop_seq s = draft_rig_story(40);
    static double p[DRAFT_RIG_VOCAB];
    struct dist_params how = {.temperature = 1, .top_p = 0.9f, .repetition = 1};
    probs_after(&s, &how, p);
    struct draft d = drawn(&s, DRAFT_DENSE, 64, how);
    assert_int_equal(d.q->width, DRAFT_RIG_VOCAB);
    assert_int_equal(d.n, 56); // 896 KiB
    for (uint32_t i = 0; i < DRAFT_RIG_VOCAB; i++)
        assert_true(d.q->weights[i] == (float)p[i]);
    for (uint32_t row = 0; row < d.n; row++)
        assert_true(d.q->weights[row * DRAFT_RIG_VOCAB + d.tokens[row]] > 0);
    free(d.q);
    prop_seq_done(&s);
    draft_rig_close();
}

/* A draft and a draft ahead, with the p_min of the service and of the ask. */
static void draft_with_p_min(float service_p_min, float ask_p_min, struct draft *draft,
                             struct draft *ahead)
{
    prop_draft_model_settings.p_min = (double)service_p_min;
    draft_rig_open();
    struct prop_seq s = draft_rig_story(100);
    struct prop_ask ask = draft_rig_ask(&s, 20, draft), *asks = &ask;
    ask.p_min = ask_p_min;
    prop_ask_all(&prop_draft_model, draft_rig_shared, &asks, 1);
    draft_rig_verify_last(&ask, 2);
    ask.max_depth = 8;
    ask.to = ahead;
    ask.done = false;
    prop_ask_all(&prop_draft_model, draft_rig_shared, &asks, 1);
    prop_seq_done(&s);
    draft_rig_close();
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

/* Writes the model's file, changed so that all tokens from n_used on are padding. */
static void write_padded(const char *path, uint32_t n_used)
{
    struct checkpoint_array kinds, texts;
    size_t len;
    AUTO(mem_free) char *file = lib_read(DRAFT_RIG_MODEL, &len);
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
    draft_rig_open();
    struct prop_seq s = draft_rig_story(60);
    struct draft d = prop_seq_draft(&s, 8);
    for (uint32_t i = 0; i < d.n; i++)
        greatest = d.tokens[i] > greatest ? d.tokens[i] : greatest;
    prop_seq_done(&s);
    draft_rig_close();

    close(mkstemp(path));
    write_padded(path, greatest);
    prop_draft_model_settings.model = path;
    draft_rig_open();
    unlink(path);
    s = draft_rig_story(60);
    d = prop_seq_draft(&s, 8);
    assert_int_equal(d.n, 8);
    for (uint32_t i = 0; i < d.n; i++)
        assert_true(d.tokens[i] < greatest);
    struct prop_sampling how = {.params = {.top_p = 1, .repetition = 1.2f}};
    const uint32_t unused[] = {greatest, DRAFT_RIG_VOCAB - 1}; // other proposers may draft them
    for (uint32_t u = 0; u < 2; u++) {
        prop_seq_update(&s, 60, &unused[u], 1);
        d = draft_under(&s, DRAFT_POINT, 8, &how, 1);
        assert_true(d.n >= 8);
        for (uint32_t i = 0; i < d.n; i++)
            assert_true(d.tokens[i] < greatest);
    }
    prop_seq_done(&s);
    draft_rig_close();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(coupled_drafts_of_the_target_itself_are_its_draws, prop_defaults),
        cmocka_unit_test_setup(a_point_draft_is_the_argmax_at_any_temperature, prop_defaults),
        cmocka_unit_test_setup(penalties_and_bias_act_on_what_is_drafted, prop_defaults),
        cmocka_unit_test_setup(the_length_of_the_prompt_may_change, prop_defaults),
        cmocka_unit_test_setup(counts_grow_with_their_context, prop_defaults),
        cmocka_unit_test_setup(branches_begin_where_they_are_likeliest_to_be_reached,
                               prop_defaults),
        cmocka_unit_test_setup(banned_tokens_are_not_drafted, prop_defaults),
        cmocka_unit_test_setup(banned_tokens_are_not_drafted_ahead, prop_defaults),
        cmocka_unit_test_setup(a_draft_continues_after_eos_only_with_ignore_eos, prop_defaults),
        cmocka_unit_test_setup(a_sparse_q_sums_exactly_and_has_the_likeliest_tokens, prop_defaults),
        cmocka_unit_test_setup(of_equally_likely_tokens_a_sparse_q_has_the_first_ones,
                               prop_defaults),
        cmocka_unit_test_setup(tokens_are_drawn_from_the_q_that_is_sent, prop_defaults),
        cmocka_unit_test_setup(a_dense_q_is_the_whole_distribution, prop_defaults),
        cmocka_unit_test_setup(a_draft_ends_where_confidence_is_below_p_min, prop_defaults),
        cmocka_unit_test_setup(padding_is_never_drafted, prop_defaults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

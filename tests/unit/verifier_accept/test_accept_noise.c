/* test_accept_noise.c - keyed noise: effects over many steps, and certain outcomes. */
#include <math.h>
#include <string.h>
#include "lib/oracles/chances.h"
#include "lib/lib.h"
#include "base/mem.h"
#include "base/rng.h"

#define G 3

struct stream {
    struct accept_keyed keyed; // first: it is what accept_keyed_flip() takes
    uint32_t position;
    bool flips_by_position, drafts_by_position, residual_by_position;
    double p[V];
};

static const uint32_t three[] = {0, 1, 2};
static const double of_p[] = {.5, .3, .2};
static const float of_q[] = {39322, 6553, 19661}; // of 65536
#define Q_SUM 65536

static struct dist_weights stream_p(void *arg, uint32_t row)
{
    struct stream *s = arg;
    (void)row;
    memcpy(s->p, of_p, sizeof(of_p));
    return (struct dist_weights){3, 3, s->p, three, 1};
}

static bool stream_flip(void *arg, uint32_t row, double probability)
{
    struct stream *s = arg;
    struct accept_keyed by_position = {s->keyed.key, s->position + row};
    return s->flips_by_position ? accept_keyed_flip(&by_position, 0, probability)
                                : accept_keyed_flip(arg, row, probability);
}

static uint32_t stream_draw(void *arg, uint32_t row, const struct dist_weights *p)
{
    struct stream *s = arg;
    struct accept_keyed by_position = {s->keyed.key, s->position + row};
    return s->residual_by_position ? accept_keyed_draw(&by_position, 0, p)
                                   : accept_keyed_draw(arg, row, p);
}

static uint32_t stream_draft(const struct stream *s, uint32_t i)
{
    uint32_t at = s->drafts_by_position ? s->position + i : s->keyed.step, token = 0;
    uint64_t w = rng_u64(s->keyed.key, RNG_PROPOSER, at, s->drafts_by_position ? 0 : i, 0);
    float left = (float)(w >> 48); // one of the 65536
    for (; token < 2 && left >= of_q[token]; token++)
        left -= of_q[token];
    return token;
}

/* Shares of the tokens, and of drafts accepted per step. */
static double run_stream(struct stream *s, enum accept_rule rule, uint64_t n, double shares[3])
{
    struct draft draft = {.n = G, .parents = {-1, 0, 1}};
    struct accept_chance c = {stream_p, stream_flip, stream_draw, s};
    struct accept_q q[G];
    uint64_t count[3] = {0}, n_accepted = 0;
    for (int i = 0; i < G; i++)
        q[i] = (struct accept_q){3, three, of_q, Q_SUM};
    while (s->position < n) {
        struct accept_result r;
        for (uint32_t i = 0; i < G; i++)
            draft.tokens[i] = stream_draft(s, i);
        accept_judge(rule, 0, &draft, q, &c, &r);
        for (uint32_t i = 0; i < r.n_accepted; i++)
            count[draft.tokens[i]]++;
        count[r.token]++;
        n_accepted += r.n_accepted;
        s->position += r.n_tokens;
        s->keyed.step++;
    }
    for (int k = 0; k < 3; k++)
        shares[k] = (double)count[k] / (double)s->position;
    return (double)n_accepted / s->keyed.step;
}

static double chi_square(const double shares[3], uint64_t n)
{
    double sum = 0;
    for (int k = 0; k < 3; k++)
        sum += (shares[k] - of_p[k]) * (shares[k] - of_p[k]) / of_p[k];
    return sum * (double)n;
}

#define CHI_SQUARE_MAX 23.0 // 2 degrees of freedom: passed by chance once in 1e5

static uint64_t n_tokens(void)
{
    return lib_amount(100000, 500000, 20000000);
}

static void keyed_noise_keeps_the_distribution_over_many_steps(void **state)
{
    (void)state;
    const enum accept_rule rules[] = {ACCEPT_REJECTION, ACCEPT_BLOCK, ACCEPT_RECURSIVE};
    const double accepted[] = {244. / 125, 1011. / 500, 244. / 125};
    for (unsigned i = 0; i < ARRAY_LEN(rules); i++) {
        struct stream s = {.keyed = {.key = rng_key(11, i)}};
        double shares[3], per_step = run_stream(&s, rules[i], n_tokens(), shares);
        double x = chi_square(shares, s.position);
        if (x > CHI_SQUARE_MAX)
            fail_msg("%s: chi-square %.1f", accept_rules[rules[i]].name, x);
        assert_near(per_step, accepted[i], 10 / sqrt((double)s.position));
    }
}

static void noise_keyed_by_position_shows_in_block_verification(void **state)
{
    (void)state;
    const struct {
        bool flips, drafts, residual;
        double shares[3];
    } wrong[] = {{true, true, true, {.4968, .2945, .2087}},
                 {true, false, false, {.4959, .3059, .1982}},
                 {false, true, false, {.5015, .2885, .2100}}};
    for (unsigned i = 0; i < ARRAY_LEN(wrong); i++) {
        struct stream s = {.keyed = {.key = rng_key(12, i)},
                           .flips_by_position = wrong[i].flips,
                           .drafts_by_position = wrong[i].drafts,
                           .residual_by_position = wrong[i].residual};
        double shares[3];
        run_stream(&s, ACCEPT_BLOCK, n_tokens(), shares);
        for (int k = 0; k < 3; k++)
            assert_near(shares[k], wrong[i].shares[k], 1e-4 + 2.5 / sqrt((double)s.position));
        assert_true(LIB_SANITIZED || chi_square(shares, s.position) > 2 * CHI_SQUARE_MAX);
    }
}

static void a_draw_returns_only_possible_tokens(void **state)
{
    (void)state;
    double weights[] = {0, 1e-300, 0, 0};
    uint32_t kept[] = {3, 1, 0, 2};
    struct dist_weights p = {4, 4, weights, kept, 1e-300};
    for (uint32_t step = 0; step < 100; step++)
        assert_int_equal(accept_keyed_draw(&(struct accept_keyed){1, step}, 0, &p), 1);
    p.sum = 2; // more than the weights: the last possible token
    for (uint32_t step = 0; step < 100; step++)
        assert_int_equal(accept_keyed_draw(&(struct accept_keyed){1, step}, 0, &p), 1);
}

static void certain_flips_are_certain(void **state)
{
    (void)state;
    for (uint32_t step = 0; step < 1000; step++) {
        struct accept_keyed k = {rng_splitmix64(step), step};
        assert_true(accept_keyed_flip(&k, 0, 1));
        assert_false(accept_keyed_flip(&k, 0, 0));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keyed_noise_keeps_the_distribution_over_many_steps),
        cmocka_unit_test(noise_keyed_by_position_shows_in_block_verification),
        cmocka_unit_test(a_draw_returns_only_possible_tokens),
        cmocka_unit_test(certain_flips_are_certain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

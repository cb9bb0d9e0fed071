/* test_prop_cascade_members.c - the cascade with members whose drafts the test knows: which member
 * drafts, which draft is sent, and what is passed on. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "base/rng.h"
#include "lib/fakes/failing.h"
#include "lib/lib.h"
#include "lib/oracles/prop_contract.h"
#include "proposer-svc/props/prop_cascade.h"

#define N_MEMBERS 4
#define K 5

/* ---- members a, b, c and d ---- */

/* What a member does, and what it has received. */
struct member {
    int id;
    struct prop_about about;
    int open_result;
    bool needs_time; // its asks are not done until the next work()
    uint32_t unread; // of its answers
    bool is_silent;  // its drafts have no tokens
    uint32_t n_asks, n_opened, n_closed, n_done, n_ended, n_cut, last_cut, n_work;
};
static struct member members[N_MEMBERS];
static uint64_t seed;

/* The draft of a member after a context of n tokens. Tokens and survival are random. */
static void make_draft(int id, uint32_t n, uint32_t k, struct draft *to)
{
    uint64_t h = rng_splitmix64(seed * 1000003 + (uint64_t)id * 7919 + n);
    float survival = 1;
    to->n = (uint32_t)(h % (k + 1));
    to->tree = false;
    to->q_mode = DRAFT_POINT;
    to->q = NULL;
    for (uint32_t i = 0; i < to->n; i++) {
        h = rng_splitmix64(h);
        survival *= 0.3f + (float)(h % 8) / 10;
        to->tokens[i] = (uint32_t)(h >> 20) % 2;
        to->survival[i] = survival;
    }
}

static int open_member(int id, void **ret_shared)
{
    members[id].n_opened++;
    if (members[id].open_result < 0)
        return fail(members[id].open_result, "member %d does not open", id);
    *ret_shared = &members[id];
    return 0;
}

static void close_member(void *shared)
{
    ((struct member *)shared)->n_closed++;
}

static void member_about(void *shared, struct prop_about *to)
{
    *to = ((struct member *)shared)->about;
}

static void member_seq_done(void *shared, void *seq, const struct prop_context *c)
{
    struct member *m = shared;
    assert_int_equal(*(uint32_t *)seq, 1);
    m->n_done++;
    m->n_ended += c != NULL;
}

static void member_cut(void *shared, void *seq, const struct prop_context *c, uint32_t keep)
{
    struct member *m = shared;
    (void)seq;
    (void)c;
    m->n_cut++;
    m->last_cut = keep;
}

static int member_grow(void *shared, void *seq, const struct prop_context *c)
{
    (void)shared;
    (void)c;
    *(uint32_t *)seq = 1;
    return c->n == 999 ? fail(-ENOMEM, "member: no memory") : 0;
}

static void member_draft(void *shared, struct prop_ask *const *asks, uint32_t n)
{
    struct member *m = shared;
    for (uint32_t i = 0; i < n; i++) {
        struct prop_ask *a = asks[i];
        m->n_asks++;
        assert_true(m->about.q_modes & 1u << a->q_mode); // only what it offers
        a->done = !m->needs_time;
        a->unread = m->unread;
        make_draft(m->id, a->context.n, a->max_depth, a->to);
        if (m->is_silent || m->needs_time)
            a->to->n = 0;
        a->to->q_mode = a->q_mode;
        if (a->q_mode == DRAFT_SPARSE && a->done) // also without tokens: the cascade frees it
            a->to->q = calloc(1, sizeof(struct draft_q));
    }
}

static bool member_work(void *shared)
{
    struct member *m = shared;
    bool worked = m->needs_time;
    m->n_work++;
    m->needs_time = false;
    return worked;
}

#define MEMBER(i, letter, ...)                                                                     \
    static int open_##letter(void **ret_shared)                                                    \
    {                                                                                              \
        return open_member(i, ret_shared);                                                         \
    }                                                                                              \
    static const struct prop_ops ops_##letter = {.name = #letter,                                  \
                                                 .seq_size = sizeof(uint32_t),                     \
                                                 .open = open_##letter,                            \
                                                 .close = close_member,                            \
                                                 .about = member_about,                            \
                                                 .seq_done = member_seq_done,                      \
                                                 .cut = member_cut,                                \
                                                 .grow = member_grow,                              \
                                                 .draft = member_draft,                            \
                                                 __VA_ARGS__}
MEMBER(0, a, .work = member_work);
MEMBER(1, b, .work = member_work);
MEMBER(2, c, .work = member_work);
MEMBER(3, d, .work = NULL);

const struct prop_ops *__wrap_prop_find(const char *name);
const struct prop_ops *__wrap_prop_find(const char *name)
{
    static const struct prop_ops *const all[] = {&ops_a, &ops_b, &ops_c, &ops_d, &prop_cascade};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        if (strcmp(all[i]->name, name) == 0)
            return all[i];
    return NULL;
}

/* ---- the cascade ---- */

static void *shared;

static int reset(void **state)
{
    (void)state;
    for (int i = 0; i < N_MEMBERS; i++)
        members[i] = (struct member){.id = i, .about.q_modes = 1u << DRAFT_POINT};
    return 0;
}

/* names: as "abc". */
static int open_cascade(const char *names, const char *choose)
{
    static char texts[N_MEMBERS][2];
    prop_cascade_settings = (struct prop_cascade_settings){.choose = (char *)(uintptr_t)choose};
    for (unsigned i = 0; names[i]; i++) {
        texts[i][0] = names[i];
        prop_cascade_settings.members.v[i] = texts[i];
        prop_cascade_settings.members.n = i + 1;
    }
    return prop_cascade.open(&shared);
}

static void must_open(const char *names, const char *choose)
{
    if (open_cascade(names, choose) < 0)
        fail_msg("%s", fail_text());
}

static struct prop_ask ask_of(const struct prop_seq *s, enum draft_q_mode mode, struct draft *to)
{
    *to = (struct draft){.n = 77, .tree = true, .q_mode = DRAFT_DENSE};
    return (struct prop_ask){.seq = s->state,
                             .context = {.tokens = s->tokens, .n = s->n},
                             .max_depth = K,
                             .max_nodes = K,
                             .q_mode = mode,
                             .until_us = INT64_MAX,
                             .to = to};
}

static void draft_once(struct prop_ask *ask)
{
    prop_cascade.draft(shared, (struct prop_ask *[]){ask}, 1);
}

/* A sequence of n tokens 0. */
static struct prop_seq seq_of(uint32_t n)
{
    static const uint32_t zeros[100];
    struct prop_seq s = prop_seq_new(&prop_cascade, shared);
    prop_seq_update(&s, 0, zeros, n);
    return s;
}

/* ---- the choice, against a plain one ---- */

/* What the choice depends on, written down again. */
struct plain {
    unsigned n;
    bool first;
    double drafts[N_MEMBERS], predicted[N_MEMBERS], accepted[N_MEMBERS];
    struct draft last[N_MEMBERS]; // in the statistics with the next commit
    bool waits[N_MEMBERS];
    uint32_t at;
};

static struct plain plain_of(unsigned n, bool first)
{
    struct plain p = {.n = n, .first = first};
    for (unsigned i = 0; i < n; i++)
        p.drafts[i] = p.predicted[i] = p.accepted[i] = 4;
    return p;
}

static double plain_score(const struct plain *p, unsigned i)
{
    double sum = 0;
    for (uint32_t t = 0; t < p->last[i].n; t++)
        sum += (double)p->last[i].survival[t];
    return sum * (p->accepted[i] + 1) / (p->predicted[i] + 1);
}

/* The member whose draft is to be sent after n tokens; -1: none. */
static int plain_choice(struct plain *p, uint32_t n, bool drawn)
{
    int best = -1;
    double best_score = 0;
    p->at = n;
    for (unsigned i = 0; i < p->n; i++) {
        make_draft((int)i, n, K, &p->last[i]);
        p->waits[i] = p->last[i].n;
        if (p->last[i].n && drawn && members[i].about.q_modes & 1u << DRAFT_SPARSE)
            return (int)i;
        double score = plain_score(p, i);
        if (p->last[i].n && (best < 0 || score > best_score)) {
            best = (int)i;
            best_score = score;
        }
        bool more = best < 0;
        for (unsigned j = i + 1; j < p->n && !p->first; j++) {
            double mean = p->accepted[j] / p->drafts[j];
            more |= (mean < K ? mean : K) > best_score;
        }
        if (!more)
            break;
    }
    return best;
}

static void plain_commit(struct plain *p, const uint32_t *tokens, uint32_t n)
{
    for (unsigned i = 0; i < p->n && n; i++) {
        const struct draft *d = &p->last[i];
        uint32_t right = 0;
        float predicted = 0;
        if (!p->waits[i])
            continue;
        for (uint32_t t = 0; t < d->n && t < n; t++)
            predicted += d->survival[t];
        while (right < d->n && right < n && d->tokens[right] == tokens[right])
            right++;
        p->drafts[i] = p->drafts[i] * 0.99 + 1;
        p->predicted[i] = p->predicted[i] * 0.99 + (double)predicted;
        p->accepted[i] = p->accepted[i] * 0.99 + right;
        p->waits[i] = false;
    }
}

static void compare_with_plain_choice(const char *names, bool first)
{
    unsigned n_chosen[N_MEMBERS] = {0}, n = (unsigned)strlen(names);
    struct plain p = plain_of(n, first);
    must_open(names, first ? "first" : "score");
    struct prop_seq s = seq_of(1);
    for (uint32_t step = 0; step < 600; step++) {
        uint64_t h = rng_splitmix64(seed * 77 + step);
        struct draft got;
        bool drawn = h % 3 == 0;
        struct prop_ask ask = ask_of(&s, drawn ? DRAFT_SPARSE : DRAFT_POINT, &got);
        draft_once(&ask);
        int want = plain_choice(&p, s.n, drawn);
        assert_true(ask.done);
        assert_int_equal(got.n, want < 0 ? 0 : p.last[want].n);
        assert_false(got.tree);
        if (want >= 0) {
            n_chosen[want]++;
            assert_memory_equal(got.tokens, p.last[want].tokens, got.n * sizeof(got.tokens[0]));
            assert_memory_equal(got.survival, p.last[want].survival, got.n * sizeof(float));
        }
        bool has_q = want >= 0 && drawn && members[want].about.q_modes & 1u << DRAFT_SPARSE;
        assert_int_equal(got.q != NULL, has_q);
        assert_int_equal(got.q_mode, has_q ? DRAFT_SPARSE : DRAFT_POINT);
        free(got.q);
        uint32_t tokens[3], n_committed = (uint32_t)(h >> 20) % 4; // 0: no commit before the next
        for (uint32_t i = 0; i < n_committed; i++)
            tokens[i] = (uint32_t)(h >> (30 + i)) & 1;
        prop_seq_update(&s, s.n, tokens, n_committed);
        plain_commit(&p, tokens, n_committed);
    }
    if (!first)
        for (unsigned i = 0; i < n; i++)
            assert_true(n_chosen[i] > 5);
    prop_seq_done(&s);
    prop_cascade.close(shared);
}

static void the_sent_draft_is_that_of_a_plain_choice(void **state)
{
    (void)state;
    for (seed = 1; seed <= 6; seed++) {
        reset(NULL);
        compare_with_plain_choice("a", false);
        compare_with_plain_choice("ab", false);
        members[2].about.q_modes |= 1u << DRAFT_SPARSE;
        compare_with_plain_choice("abc", false);
        compare_with_plain_choice("abcd", seed % 2);
    }
}

/* ---- time ---- */

static void a_member_that_needs_time_continues_its_ask(void **state)
{
    (void)state;
    members[0].is_silent = members[1].needs_time = true;
    must_open("abc", "first");
    struct prop_seq s = seq_of(10);
    struct draft got;
    struct prop_ask ask = ask_of(&s, DRAFT_POINT, &got);
    for (seed = 1; make_draft(1, 10, K, &got), !got.n; seed++)
        ;
    uint32_t n = got.n;
    for (uint32_t i = 1; i <= 3; i++) {
        draft_once(&ask);
        assert_false(ask.done);
        assert_int_equal(members[0].n_asks, 1); // it is not asked again
        assert_int_equal(members[1].n_asks, i);
        assert_int_equal(members[2].n_asks, 0);
    }
    assert_true(prop_cascade.work(shared));
    assert_int_equal(members[0].n_work, 1);
    assert_int_equal(members[2].n_work, 1);
    assert_false(prop_cascade.work(shared));
    draft_once(&ask);
    assert_true(ask.done);
    assert_int_equal(got.n, n);
    ask = ask_of(&s, DRAFT_POINT, &got); // a new ask with the same context
    draft_once(&ask);
    assert_int_equal(members[0].n_asks, 2);
    prop_seq_done(&s);
    prop_cascade.close(shared);
}

static void an_empty_answer_has_the_greatest_unread(void **state)
{
    (void)state;
    static const uint32_t unread[][3] = {{0, 0, 0}, {5, 9, 0}, {9, 5, 7}, {0, 0, 3}};
    for (size_t i = 0; i < ARRAY_LEN(unread); i++) {
        must_open("abc", "score");
        for (int m = 0; m < 3; m++) {
            members[m].is_silent = true;
            members[m].unread = unread[i][m];
        }
        struct prop_seq s = seq_of(10);
        struct draft got;
        struct prop_ask ask = ask_of(&s, DRAFT_POINT, &got);
        draft_once(&ask);
        assert_true(ask.done);
        assert_int_equal(got.n, 0);
        assert_int_equal(ask.unread, i == 0 ? 0 : i == 3 ? 3 : 9);
        prop_seq_done(&s);
        prop_cascade.close(shared);
    }
}

static void several_asks_are_passed_together_and_one_may_come_alone(void **state)
{
    (void)state;
    must_open("ab", "first");
    struct prop_seq s[3];
    struct draft got[3];
    struct prop_ask asks[3], *all[3];
    for (int i = 0; i < 3; i++) {
        s[i] = seq_of(10 + (uint32_t)i);
        asks[i] = ask_of(&s[i], DRAFT_POINT, &got[i]);
        all[i] = &asks[i];
    }
    prop_cascade.draft(shared, all, 1);
    prop_cascade.draft(shared, all + 1, 2);
    assert_int_equal(members[0].n_asks, 3);
    for (int i = 0; i < 3; i++) {
        struct draft want;
        assert_true(asks[i].done);
        make_draft(0, s[i].n, K, &want);
        if (!want.n)
            make_draft(1, s[i].n, K, &want);
        prop_same_draft(&got[i], &want);
        prop_seq_done(&s[i]);
    }
    prop_cascade.close(shared);
}

/* Drafts ahead are chosen in the same way, but do not count. */
static void a_draft_ahead_is_not_counted(void **state)
{
    (void)state;
    must_open("ab", "score");
    for (uint32_t i = 0; i < 200; i++) {
        struct prop_seq s = seq_of(10 + i % 50);
        struct draft got;
        struct prop_ask ask = ask_of(&s, DRAFT_POINT, &got);
        ask.context.n_verifying = 2;
        draft_once(&ask);
        prop_seq_update(&s, s.n, (uint32_t[]){0, 0, 0}, 3);
        prop_seq_done(&s);
    }
    struct plain p = plain_of(2, false); // as at the start
    for (uint32_t n = 10; n < 60; n++) {
        struct prop_seq s = seq_of(n);
        struct draft got;
        struct prop_ask ask = ask_of(&s, DRAFT_POINT, &got);
        draft_once(&ask);
        int want = plain_choice(&p, n, false);
        assert_int_equal(got.n, want < 0 ? 0 : p.last[want].n);
        prop_seq_done(&s);
    }
    prop_cascade.close(shared);
}

/* ---- what is passed on ---- */

static void each_member_gets_each_call(void **state)
{
    (void)state;
    must_open("abc", "score");
    struct prop_seq s = seq_of(10);
    prop_seq_update(&s, 4, NULL, 0);
    prop_seq_done(&s);
    s = seq_of(10);
    prop_seq_forget(&s);
    s = prop_seq_new(&prop_cascade, shared); // it has no context yet
    struct draft got;
    struct prop_ask ask = ask_of(&s, DRAFT_POINT, &got);
    draft_once(&ask);
    assert_true(ask.done && !got.n && !got.tree && got.q_mode == DRAFT_POINT);
    prop_seq_done(&s);
    prop_cascade.close(shared);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(members[i].n_opened, 1);
        assert_int_equal(members[i].n_closed, 1);
        assert_int_equal(members[i].n_cut, 1);
        assert_int_equal(members[i].last_cut, 4);
        assert_int_equal(members[i].n_done, 2);
        assert_int_equal(members[i].n_ended, 1);
        assert_int_equal(members[i].n_asks, 0);
    }
}

static void about_is_that_of_the_first_member_that_has_it(void **state)
{
    (void)state;
    static const struct {
        uint32_t max[3], want;
    } limits[] = {{{100, 300, 200}, 300},
                  {{300, 100, 200}, 300},
                  {{100, 0, 200}, 0},
                  {{0, 100, 200}, 0},
                  {{100, 200, 0}, 0}};
    for (size_t i = 0; i < ARRAY_LEN(limits); i++) {
        struct prop_about about;
        for (int m = 0; m < 3; m++)
            members[m].about.max_context = limits[i].max[m];
        members[1].about.model = "second";
        members[2].about.model = "third";
        members[1].about.vocab_digest = 0;
        members[2].about.vocab_digest = 33;
        members[1].about.q_modes = 1u << DRAFT_POINT | 1u << DRAFT_COUPLED;
        must_open("abc", "score");
        prop_cascade.about(shared, &about);
        assert_string_equal(about.model, "second");
        assert_int_equal(about.vocab_digest, 33);
        assert_int_equal(about.max_context, limits[i].want);
        assert_int_equal(about.q_modes, 1u << DRAFT_POINT | 1u << DRAFT_COUPLED);
        prop_cascade.close(shared);
    }
}

static void members_that_do_not_fit_are_refused_and_closed(void **state)
{
    (void)state;
    members[0].about = members[2].about = (struct prop_about){.model = "x", .vocab_digest = 5};
    members[3].about = (struct prop_about){.model = "y", .vocab_digest = 6};
    must_open("abc", "score"); // 5, none, 5
    prop_cascade.close(shared);
    assert_int_equal(open_cascade("abd", "score"), -EINVAL);
    assert_string_equal(fail_text(), "cascade: x and y have different vocabularies");
    assert_int_equal(open_cascade("aba", "score"), -EINVAL);
    assert_string_equal(fail_text(), "cascade: a is listed twice");
    assert_int_equal(open_cascade("abb", "score"), -EINVAL);
    assert_string_equal(fail_text(), "cascade: b is listed twice");
    assert_int_equal(open_cascade("ax", "score"), -EINVAL);
    assert_string_equal(fail_text(), "cascade: \"x\" is not a proposer that it can contain");
    assert_int_equal(open_cascade("", "score"), -EINVAL);
    assert_string_equal(fail_text(), "cascade lists no proposer");
    members[1].open_result = -ENOENT;
    assert_int_equal(open_cascade("abc", "score"), -ENOENT);
    assert_string_equal(fail_text(), "member 1 does not open");
    assert_int_equal(members[0].n_opened, members[0].n_closed);
    assert_int_equal(members[2].n_opened, members[2].n_closed);
    assert_int_equal(members[3].n_opened, members[3].n_closed);
}

static void without_memory_there_is_no_draft(void **state)
{
    (void)state;
    failing_at(1);
    assert_int_equal(open_cascade("ab", "score"), -ENOMEM);
    assert_true(failing_has_failed());
    assert_string_equal(fail_text(), "cascade: no memory");
    must_open("ab", "score");
    for (unsigned n = 1; n <= 2; n++) {
        struct prop_seq s = prop_seq_new(&prop_cascade, shared);
        struct prop_context context = {.tokens = s.tokens, .n = 10};
        failing_at(n);
        assert_int_equal(prop_cascade.grow(shared, s.state, &context), -ENOMEM);
        assert_true(failing_has_failed());
        assert_string_equal(fail_text(), "cascade: no memory for a sequence");
        prop_seq_done(&s);
    }
    struct prop_seq s = prop_seq_new(&prop_cascade, shared);
    failing_at(0);
    prop_seq_update(&s, 0, (uint32_t[]){1, 2, 3}, 3);
    assert_int_equal(failing_bytes(), 2 * sizeof(uint32_t)); // the states of both members
    struct draft got;
    struct prop_ask ask = ask_of(&s, DRAFT_POINT, &got);
    failing_at(1);
    draft_once(&ask);
    assert_true(failing_has_failed());
    assert_true(ask.done);
    assert_int_equal(got.n, 0);
    assert_int_equal(members[0].n_asks, 0);
    struct prop_context context = {.tokens = s.tokens, .n = 999};
    assert_int_equal(prop_cascade.grow(shared, s.state, &context), -ENOMEM); // the member's
    assert_string_equal(fail_text(), "member: no memory");
    prop_seq_done(&s);
    prop_cascade.close(shared);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(the_sent_draft_is_that_of_a_plain_choice, reset),
        cmocka_unit_test_setup(a_member_that_needs_time_continues_its_ask, reset),
        cmocka_unit_test_setup(an_empty_answer_has_the_greatest_unread, reset),
        cmocka_unit_test_setup(several_asks_are_passed_together_and_one_may_come_alone, reset),
        cmocka_unit_test_setup(a_draft_ahead_is_not_counted, reset),
        cmocka_unit_test_setup(each_member_gets_each_call, reset),
        cmocka_unit_test_setup(about_is_that_of_the_first_member_that_has_it, reset),
        cmocka_unit_test_setup(members_that_do_not_fit_are_refused_and_closed, reset),
        cmocka_unit_test_setup(without_memory_there_is_no_draft, reset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

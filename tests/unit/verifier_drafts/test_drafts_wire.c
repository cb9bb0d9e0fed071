/* test_drafts_wire.c - checks of a proposer's description and of its drafts. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "base/mem.h"
#include "kernel/kernel.h"
#include "lib/lib.h"
#include "verifier-svc/accept/accept.h"
#include "verifier-svc/drafts/drafts_wire.h"

static int check(uint32_t protocol, const char *kind)
{
    Tandem__V1__DescribeReply reply = TANDEM__V1__DESCRIBE_REPLY__INIT;
    struct drafts_described about;
    reply.protocol = protocol;
    reply.kind = (ProtobufCBinaryData){strlen(kind), (uint8_t *)kind};
    reply.k_max = 4;
    return drafts_check_described(&reply, 0, &about);
}

static void a_proposer_that_names_no_version_speaks_the_first(void **state)
{
    (void)state;
    assert_int_equal(check(0, "mine"), 0);
    assert_int_equal(check(1, "mine"), 0);
    assert_int_equal(check(2, "mine"), -EPROTO);
    assert_string_equal(fail_text(), "it speaks protocol version 2, this verifier version 1");
}

static void another_vocabulary_is_refused_with_both_digests(void **state)
{
    (void)state;
    Tandem__V1__DescribeReply reply = TANDEM__V1__DESCRIBE_REPLY__INIT;
    struct drafts_described about;
    reply.kind = (ProtobufCBinaryData){4, (uint8_t *)"mine"};
    reply.k_max = 4;
    reply.vocab_digest = 0xabc;
    assert_int_equal(drafts_check_described(&reply, 0xabc, &about), 0);
    assert_int_equal(drafts_check_described(&reply, 0xdef, &about), -EPROTO);
    assert_string_equal(fail_text(), "its vocabulary has the digest 0000000000000abc, the target's "
                                     "has 0000000000000def");
    reply.vocab_digest = 0; // any vocabulary will do
    assert_int_equal(drafts_check_described(&reply, 0xdef, &about), 0);
}

static void a_name_is_one_word(void **state)
{
    (void)state;
    assert_int_equal(check(1, "eagle-3.v2_x"), 0);
    assert_true(check(1, "") < 0);
    assert_true(check(1, "two words") < 0);
    assert_true(check(1, "a name that is far longer than names may be") < 0);
}

static void a_name_may_use_both_ends_of_each_range(void **state)
{
    (void)state;
    static const char good[] = "azAZ09-_.", bad[] = "`{@[/:+, ^\x1f\x7f\xff";
    char name[2] = "";
    for (size_t i = 0; i < sizeof(good) - 1; i++) {
        name[0] = good[i];
        assert_int_equal(check(1, name), 0);
    }
    for (size_t i = 0; i < sizeof(bad) - 1; i++) {
        name[0] = bad[i];
        assert_int_equal(check(1, name), -EPROTO);
        assert_string_equal(fail_text(),
                            "its name is not 1 to 31 letters, digits or '-', '_', '.'");
    }
    char longest[DRAFTS_NAME_MAX + 1] = "";
    memset(longest, 'n', DRAFTS_NAME_MAX - 1);
    assert_int_equal(check(1, longest), 0);
    longest[DRAFTS_NAME_MAX - 1] = 'n';
    assert_int_equal(check(1, longest), -EPROTO);
}

static Tandem__V1__DescribeReply a_reply(void)
{
    Tandem__V1__DescribeReply reply = TANDEM__V1__DESCRIBE_REPLY__INIT;
    reply.kind = (ProtobufCBinaryData){4, (uint8_t *)"mine"};
    reply.k_max = 4;
    return reply;
}

static void a_description_is_taken_over(void **state)
{
    (void)state;
    Tandem__V1__DescribeReply reply = a_reply();
    struct drafts_described about;
    memset(&about, 'x', sizeof(about));
    assert_int_equal(drafts_check_described(&reply, 7, &about), 0);
    assert_string_equal(about.name, "mine");
    assert_true(about.k_max == 4 && about.max_context == 0);
    for (int mode = 0; mode < DRAFT_N_Q_MODES; mode++)
        assert_int_equal(about.offers[mode], mode == (int)DRAFT_POINT); // if none is named
    reply.max_context = 77;
    static const uint32_t k_max[] = {1, DRAFT_MAX_NODES - 1, DRAFT_MAX_NODES, DRAFT_MAX_NODES + 1};
    for (size_t i = 0; i < ARRAY_LEN(k_max); i++) {
        reply.k_max = k_max[i];
        assert_int_equal(drafts_check_described(&reply, 7, &about), 0);
        assert_int_equal(about.k_max, i < 3 ? k_max[i] : DRAFT_MAX_NODES);
        assert_int_equal(about.max_context, 77);
    }
    reply.k_max = 0;
    assert_int_equal(drafts_check_described(&reply, 7, &about), -EPROTO);
    assert_string_equal(fail_text(), "its k_max is 0");
}

static void hidden_rows_are_not_sent(void **state)
{
    (void)state;
    Tandem__V1__DescribeReply reply = a_reply();
    struct drafts_described about;
    reply.needs_hidden = true;
    assert_int_equal(drafts_check_described(&reply, 0, &about), -EPROTO);
    assert_string_equal(fail_text(), "it requires hidden rows, which this verifier does not send");
}

/* Each set of modes, in both orders. */
static void a_proposer_must_offer_point_or_coupled_drafts(void **state)
{
    (void)state;
    for (unsigned set = 1; set < 1u << DRAFT_N_Q_MODES; set++) {
        Tandem__V1__DescribeReply reply = a_reply();
        Tandem__V1__QMode modes[DRAFT_N_Q_MODES];
        struct drafts_described about;
        reply.q_modes = modes;
        for (int mode = 0; mode < DRAFT_N_Q_MODES; mode++)
            if (set >> mode & 1)
                modes[reply.n_q_modes++] = (Tandem__V1__QMode)mode;
        bool usable = set & (1u << DRAFT_POINT | 1u << DRAFT_COUPLED);
        assert_int_equal(drafts_check_described(&reply, 0, &about), usable ? 0 : -EPROTO);
        if (!usable)
            assert_string_equal(fail_text(), "it offers neither point nor coupled drafts");
        for (int mode = 0; mode < DRAFT_N_Q_MODES; mode++)
            assert_int_equal(about.offers[mode], set >> mode & 1);
    }
}

/* ---- Rounds ---- */

/* The tokens that are sent begin at index 6. The hint, the draft being verified, the banned ids and
 * the biases follow them. */
static struct drafts_entry an_entry(void)
{
    return (struct drafts_entry){.seq = 7,
                                 .base_len = 10,
                                 .keep = 6,
                                 .token_at = 6,
                                 .digest = 8,
                                 .max_nodes = 5,
                                 .max_depth = 3,
                                 .more = true,
                                 .prompt_len = 4,
                                 .q_mode = DRAFT_COUPLED,
                                 .draw_key = 99,
                                 .p_min = 0.25F,
                                 .n_hint = 2,
                                 .n_verifying = 3,
                                 .ban = {.n = 2, .until = 11},
                                 .sampling = {.n_bias = 1},
                                 .ignore_eos = true,
                                 .tenant_len = 5,
                                 .tenant = "alice",
                                 .id = "request-1",
                                 .trace = "trace-1"};
}

static bool bytes_are(ProtobufCBinaryData b, const char *text)
{
    return b.len == strlen(text) && memcmp(b.data, text, b.len) == 0;
}

static void a_round_holds_every_field_of_its_entries(void **state)
{
    (void)state;
    AUTO(drafts_packer_free) struct drafts_packer *p = NULL;
    assert_int_equal(drafts_packer_new(2, "fp", &p), 0);
    const uint32_t tokens[20] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17};
    struct drafts_entry entries[2] = {an_entry(), an_entry()};
    entries[1].seq = 70;
    entries[1].introduced = true;
    const Tandem__V1__Round *round = drafts_pack(p, entries, 2, tokens, 1234);
    assert_int_equal(round->budget_us, 1234);
    assert_int_equal(round->n_sequences, 2);
    for (int i = 0; i < 2; i++) {
        const Tandem__V1__RoundSequence *s = round->sequences[i];
        assert_int_equal(s->seq, i ? 70 : 7);
        assert_true(s->base_len == 10 && s->keep == 6 && s->n_tokens == 4 && s->digest == 8);
        assert_true(s->k == 3 && s->max_nodes == 5 && s->more && s->prompt_len == 4);
        assert_true(s->q_mode == TANDEM__V1__QMODE__Q_MODE_COUPLED && s->draw_key == 99);
        assert_true(s->p_min == 0.25F && s->n_verifying == 3 && !s->close && !s->unfinished);
        assert_memory_equal(s->tokens, tokens + 6, 4 * sizeof(*tokens));
        assert_memory_equal(s->verifying, tokens + 12, 3 * sizeof(*tokens));
    }
    const Tandem__V1__RoundSequence *first = round->sequences[0], *known = round->sequences[1];
    assert_int_equal(first->n_hint, 2);
    assert_memory_equal(first->hint, tokens + 10, 2 * sizeof(*tokens));
    assert_true(bytes_are(first->tenant, "alice") && bytes_are(first->model, "fp"));
    assert_true(bytes_are(first->id, "request-1") && bytes_are(first->trace, "trace-1"));
    const Tandem__V1__DraftSampling *to = first->sampling;
    assert_true(to->ignore_eos && to->banned_until == 11 && to->n_banned == 2);
    assert_memory_equal(to->banned, tokens + 15, 2 * sizeof(*tokens));
    assert_int_equal(to->bias.len, sizeof(struct dist_bias));
    assert_ptr_equal(to->bias.data, tokens + 17);
    assert_true(known->n_hint == 0 && known->tenant.len == 0 && known->model.len == 0);
    assert_true(known->id.len == 0 && known->trace.len == 0 && !known->sampling);
}

static void closes_say_which_sequences_have_ended(void **state)
{
    (void)state;
    AUTO(drafts_packer_free) struct drafts_packer *p = NULL;
    assert_int_equal(drafts_packer_new(2, "fp", &p), 0);
    const struct drafts_closed closes[2] = {{.seq = 5, .ended = true}, {.seq = 6}};
    const Tandem__V1__Round *round = drafts_pack_closes(p, closes, 2);
    assert_true(round->n_sequences == 2 && round->budget_us == 0);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(round->sequences[i]->seq, 5 + i);
        assert_true(round->sequences[i]->close && round->sequences[i]->unfinished == (i == 1));
    }
}

/* ---- plain drafts ---- */

#define MANY 70

struct plain {
    Tandem__V1__SequenceDraft draft;
    struct drafts_request request;
    uint32_t tokens[MANY];
    int32_t parents[MANY];
    float survival[MANY];
};

/* A chain of n tokens without parents and estimates, which are prepared. */
static void tell_plain(struct plain *p, uint32_t n)
{
    *p = (struct plain){.request = {.base_len = 9,
                                    .digest = 5,
                                    .n_vocab = 100,
                                    .max_nodes = 6,
                                    .max_depth = 4,
                                    .ahead = true,
                                    .q_mode = DRAFT_COUPLED}};
    tandem__v1__sequence_draft__init(&p->draft);
    for (uint32_t i = 0; i < n; i++) {
        p->tokens[i] = 99 - i;
        p->parents[i] = (int32_t)i - 1;
        p->survival[i] = 1;
    }
    p->draft.seq = 3;
    p->draft.base_len = 9;
    p->draft.digest = 5;
    p->draft.n_tokens = n;
    p->draft.tokens = p->tokens;
    p->draft.parents = p->parents;
    p->draft.survival = p->survival;
}

static struct draft_answer plain_answer(struct plain *p, enum drafts_verdict verdict)
{
    struct draft_answer a;
    assert_int_equal(drafts_check(&p->draft, &p->request, &a), verdict);
    assert_true(a.seq == 3 && a.base_len == p->draft.base_len && a.ahead);
    assert_true((verdict == DRAFTS_GOOD) == (a.draft != NULL));
    return a;
}

static void plain_is_good(struct plain *p)
{
    struct draft_answer a = plain_answer(p, DRAFTS_GOOD);
    assert_int_equal(a.draft->n, p->draft.n_tokens);
    draft_free(a.draft);
}

static void plain_is_bad(struct plain *p, const char *sentence)
{
    plain_answer(p, DRAFTS_MALFORMED);
    assert_string_equal(fail_text(), sentence);
}

static void a_draft_has_at_most_the_tokens_that_were_requested(void **state)
{
    (void)state;
    struct plain p;
    tell_plain(&p, 7);
    p.request.max_depth = 7;
    plain_is_bad(&p, "more tokens than were requested");
    p.draft.n_tokens = 6;
    plain_is_good(&p);
    tell_plain(&p, DRAFT_MAX_NODES + 1);
    p.request.max_nodes = p.request.max_depth = MANY;
    plain_is_bad(&p, "more tokens than were requested");
    p.draft.n_tokens = DRAFT_MAX_NODES;
    plain_is_good(&p);
}

/* Two branches below token 1: the path 0 1 2 3, and token 4 at depth 3. */
static void a_path_has_at_most_the_depth_that_was_requested(void **state)
{
    (void)state;
    struct plain p;
    tell_plain(&p, 5);
    plain_is_bad(&p, "a longer path than was requested");
    p.draft.n_parents = 5;
    p.parents[4] = 1;
    struct draft_answer a = plain_answer(&p, DRAFTS_GOOD);
    assert_true(a.draft->tree && a.draft->q_mode == DRAFT_POINT);
    assert_memory_equal(a.draft->parents, p.parents, 5 * sizeof(*p.parents));
    assert_memory_equal(a.draft->tokens, p.tokens, 5 * sizeof(*p.tokens));
    draft_free(a.draft);
    p.request.max_depth = 3;
    plain_is_bad(&p, "a longer path than was requested");
    p.draft.n_parents = 0;
    p.draft.n_tokens = 3;
    a = plain_answer(&p, DRAFTS_GOOD);
    assert_false(a.draft->tree);
    draft_free(a.draft);
}

static void lists_are_empty_or_as_long_as_the_draft(void **state)
{
    (void)state;
    struct plain p;
    tell_plain(&p, 3);
    for (uint32_t n = 0; n <= 4; n++) {
        bool fits = n == 0 || n == 3;
        p.draft.n_parents = n;
        p.draft.n_survival = 0;
        if (fits)
            plain_is_good(&p);
        else
            plain_is_bad(&p, "not one parent for each token");
        p.draft.n_parents = 0;
        p.draft.n_survival = n;
        if (fits)
            plain_is_good(&p);
        else
            plain_is_bad(&p, "not one survival estimate for each token");
    }
}

static void each_token_is_checked(void **state)
{
    (void)state;
    struct plain p;
    tell_plain(&p, 3); // token 99 is the last one of the vocabulary
    p.draft.n_parents = p.draft.n_survival = 3;
    plain_is_good(&p);
    p.tokens[2] = 100;
    plain_is_bad(&p, "a token outside the vocabulary");
    for (int32_t parent = -3; parent <= 4; parent++) {
        tell_plain(&p, 3);
        p.draft.n_parents = 3;
        p.parents[2] = parent;
        if (parent >= -1 && parent < 2)
            plain_is_good(&p);
        else
            plain_is_bad(&p, "a parent that does not come before its child");
    }
    const float bad[] = {-0.001F, 1.001F, NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        tell_plain(&p, 3);
        p.draft.n_survival = 3;
        p.survival[1] = bad[i];
        plain_is_bad(&p, "a survival estimate outside 0 .. 1");
    }
}

static void survival_never_rises_from_parent_to_child(void **state)
{
    (void)state;
    struct plain p;
    tell_plain(&p, 4);
    p.draft.n_survival = 4;
    memcpy(p.survival, (float[]){0.5F, 0.75F, 0.25F, 0}, 4 * sizeof(float));
    struct draft_answer a = plain_answer(&p, DRAFTS_GOOD);
    assert_memory_equal(a.draft->survival, ((float[]){0.5F, 0.5F, 0.25F, 0}), 4 * sizeof(float));
    draft_free(a.draft);
    p.draft.n_survival = 0; // the proposer made none
    a = plain_answer(&p, DRAFTS_GOOD);
    for (uint32_t i = 0; i < 4; i++)
        assert_true(a.draft->survival[i] == 1);
    draft_free(a.draft);
}

static void an_answer_to_another_context_is_stale(void **state)
{
    (void)state;
    struct plain p;
    tell_plain(&p, 3);
    p.draft.base_len = 8;
    plain_answer(&p, DRAFTS_STALE);
    assert_string_equal(fail_text(), "it continues 8 tokens, requested were 9");
    tell_plain(&p, 3);
    p.draft.digest = 6;
    plain_answer(&p, DRAFTS_STALE);
    assert_string_equal(fail_text(), "it continues 9 tokens, requested were 9");
}

static void an_unread_count_is_at_most_the_context(void **state)
{
    (void)state;
    struct plain p;
    tell_plain(&p, 0);
    for (uint32_t unread = 0; unread < 12; unread++) {
        p.draft.unread = unread;
        struct draft_answer a = plain_answer(&p, DRAFTS_GOOD);
        assert_int_equal(a.unread, unread < 9 ? unread : 9);
        draft_free(a.draft);
    }
    tell_plain(&p, 1);
    p.draft.unread = 4;
    struct draft_answer a = plain_answer(&p, DRAFTS_GOOD);
    assert_int_equal(a.unread, 0);
    draft_free(a.draft);
}

/* ---- q ---- */

#define V 6
#define N 2

struct told {
    Tandem__V1__SequenceDraft draft;
    Tandem__V1__Tensor tensor;
    uint32_t tokens[N], shape[2], ids[N * 3];
    uint16_t probs[N * 3];
    float dense[N * V];
};

/* Tokens 4 and 0 of V, the first drawn from (4: 1/2, 1: 1/4, 0: 1/4), the second from (0: 1). */
static void tell(struct told *t, Tandem__V1__QMode mode)
{
    *t = (struct told){.tokens = {4, 0},
                       .shape = {N, V},
                       .ids = {4, 1, 0, 2, 0, 5},
                       .probs = {32767, 16383, 16383, 0, 65533, 0},
                       .dense = {.25F, .25F, 0, 0, .5F, 0, 1}};
    tandem__v1__sequence_draft__init(&t->draft);
    tandem__v1__tensor__init(&t->tensor);
    t->draft.q_mode = mode;
    t->draft.tokens = t->tokens;
    t->draft.n_tokens = N;
    t->draft.q_ids = (ProtobufCBinaryData){sizeof(t->ids), (uint8_t *)t->ids};
    t->draft.q_probs = (ProtobufCBinaryData){sizeof(t->probs), (uint8_t *)t->probs};
    t->tensor.shape = t->shape;
    t->tensor.n_shape = 2;
    t->tensor.data = (ProtobufCBinaryData){sizeof(t->dense), (uint8_t *)t->dense};
    t->draft.q = &t->tensor;
}

static void must_take(struct told *t, enum draft_q_mode asked, struct draft_answer *d)
{
    struct drafts_request a = {.max_nodes = 4, .max_depth = 4, .n_vocab = V, .q_mode = asked};
    if (drafts_check(&t->draft, &a, d) != DRAFTS_GOOD)
        fail_msg("%s", fail_text());
}

static void must_refuse(struct told *t, enum draft_q_mode asked, const char *why)
{
    struct drafts_request a = {.max_nodes = 4, .max_depth = 4, .n_vocab = V, .q_mode = asked};
    struct draft_answer d;
    assert_int_equal(drafts_check(&t->draft, &a, &d), DRAFTS_MALFORMED);
    assert_string_equal(fail_text(), why);
    assert_null(d.draft);
}

#define SPARSE TANDEM__V1__QMODE__Q_MODE_SPARSE
#define DENSE TANDEM__V1__QMODE__Q_MODE_DENSE

static void a_sparse_q_arrives_as_it_was_drawn_from(void **state)
{
    (void)state;
    struct told t;
    struct draft_answer a;
    tell(&t, SPARSE);
    must_take(&t, DRAFT_SPARSE, &a);
    for (uint32_t i = 0; i < N; i++) {
        struct accept_q q = accept_q_of(a.draft, i);
        assert_int_equal(q.n, 3);
        assert_true(q.sum == 65536);
        assert_memory_equal(q.ids, t.ids + (size_t)3 * i, 12);
    }
    struct accept_q first = accept_q_of(a.draft, 0), second = accept_q_of(a.draft, 1);
    assert_true(first.weights[0] == 32768 && first.weights[2] == 16384);
    assert_true(second.weights[1] == 65534 && second.weights[0] == 1);
    draft_free(a.draft);
    uint16_t all = 65535; // a single id has all of it
    t.draft.n_tokens = 1;
    t.draft.q_ids.len = sizeof(uint32_t);
    t.draft.q_probs = (ProtobufCBinaryData){sizeof(all), (uint8_t *)&all};
    must_take(&t, DRAFT_SPARSE, &a);
    assert_true(a.draft->q->width == 1 && a.draft->q->weights[0] == 65536);
    draft_free(a.draft);
    t.draft.n_tokens = 0; // nothing was drawn
    must_take(&t, DRAFT_SPARSE, &a);
    assert_null(a.draft->q);
    draft_free(a.draft);
}

static void only_an_empty_draft_has_an_unread_count(void **state)
{
    (void)state;
    struct told t;
    struct draft_answer d;
    tell(&t, TANDEM__V1__QMODE__Q_MODE_POINT);
    t.draft.unread = UINT32_MAX;
    must_take(&t, DRAFT_POINT, &d);
    assert_int_equal(d.unread, 0);
    draft_free(d.draft);
    t.draft.n_tokens = 0;
    must_take(&t, DRAFT_POINT, &d);
    assert_int_equal(d.unread, t.draft.base_len); // no more than there is
    draft_free(d.draft);
}

static void a_bad_sparse_q_is_refused(void **state)
{
    (void)state;
    struct told t;
    tell(&t, SPARSE);
    must_refuse(&t, DRAFT_COUPLED, "a q mode that was not requested");
    t.probs[1]--;
    must_refuse(&t, DRAFT_SPARSE, "a sparse q whose probabilities do not sum to 65536");
    tell(&t, SPARSE);
    t.ids[1] = 0;
    must_refuse(&t, DRAFT_SPARSE, "a sparse q that names a token twice");
    tell(&t, SPARSE);
    t.ids[2] = 4; // not beside the other
    must_refuse(&t, DRAFT_SPARSE, "a sparse q that names a token twice");
    tell(&t, SPARSE);
    t.ids[4] = 1;
    must_refuse(&t, DRAFT_SPARSE, "a token that its q does not name");
    tell(&t, SPARSE);
    t.ids[3] = V;
    must_refuse(&t, DRAFT_SPARSE, "a q over tokens outside the vocabulary");
    const char *shape = "a sparse q that is not as many ids and probabilities for each token";
    for (int wrong = 0; wrong < 5; wrong++) {
        static uint8_t much[N * 4 * (DRAFTS_SPARSE_MAX + 1)];
        tell(&t, SPARSE);
        t.draft.q_ids.len -= wrong == 0;
        t.draft.q_probs.len -= wrong == 1;
        t.draft.q_ids.len -= wrong == 2 ? N * sizeof(uint32_t) : 0;
        if (wrong == 3)
            t.draft.q_ids.len = t.draft.q_probs.len = 0;
        if (wrong == 4) {
            t.draft.q_ids = (ProtobufCBinaryData){sizeof(much), much};
            t.draft.q_probs = (ProtobufCBinaryData){sizeof(much) / 2, much};
        }
        must_refuse(&t, DRAFT_SPARSE, shape);
    }
}

/* The tensor as halfs of either kind. */
static void narrow(struct told *t, Tandem__V1__Tensor__Dtype dtype)
{
    uint16_t half[N * V];
    for (int i = 0; i < N * V; i++) {
        uint32_t bits;
        memcpy(&bits, &t->dense[i], sizeof(bits));
        half[i] = dtype == TANDEM__V1__TENSOR__DTYPE__F16 ? kernel_f16_of(t->dense[i])
                                                          : (uint16_t)(bits >> 16);
    }
    memcpy(t->dense, half, sizeof(half));
    t->tensor.dtype = dtype;
    t->tensor.data.len = sizeof(half);
}

static void a_dense_q_comes_in_three_types(void **state)
{
    (void)state;
    for (int dtype = TANDEM__V1__TENSOR__DTYPE__F32; dtype <= (int)TANDEM__V1__TENSOR__DTYPE__BF16;
         dtype++) {
        struct told t;
        struct draft_answer d;
        tell(&t, DENSE);
        if (dtype != (int)TANDEM__V1__TENSOR__DTYPE__F32)
            narrow(&t, (Tandem__V1__Tensor__Dtype)dtype);
        must_take(&t, DRAFT_DENSE, &d);
        assert_memory_equal(d.draft->q->weights, ((float[V]){.25F, .25F, 0, 0, .5F, 0}), 4 * V);
        const struct draft_q *q = d.draft->q;
        assert_true(q->weights[V] == 1 && q->sums[1] == 1 && q->width == V && !q->ids);
        draft_free(d.draft);
    }
}

/* A proposer's vocabulary may have less padding at its end. */
static void a_dense_q_may_leave_out_the_last_tokens(void **state)
{
    (void)state;
    struct told t;
    struct draft_answer d;
    tell(&t, DENSE);
    t.shape[1] = V - 1;
    t.tensor.data.len = sizeof(float) * N * (V - 1);
    t.dense[5] = 1; // the second row begins here
    t.dense[6] = 0;
    must_take(&t, DRAFT_DENSE, &d);
    assert_memory_equal(d.draft->q->weights, ((float[V]){.25F, .25F, 0, 0, .5F, 0}), 4 * V);
    assert_memory_equal(d.draft->q->weights + V, ((float[V]){1, 0, 0, 0, 0, 0}), 4 * V);
    assert_int_equal(d.draft->q->width, V);
    draft_free(d.draft);
    t.tokens[0] = V - 1;
    must_refuse(&t, DRAFT_DENSE, "a token that its q does not name");
}

static void a_bad_dense_q_is_refused(void **state)
{
    (void)state;
    const char *shape = "a dense q that is not tokens by vocabulary";
    struct told t;
    tell(&t, DENSE);
    must_refuse(&t, DRAFT_SPARSE, "a q mode that was not requested");
    t.draft.q = NULL;
    must_refuse(&t, DRAFT_DENSE, shape);
    tell(&t, DENSE);
    t.shape[1]++;
    must_refuse(&t, DRAFT_DENSE, shape);
    tell(&t, DENSE);
    t.tensor.n_shape = 1;
    must_refuse(&t, DRAFT_DENSE, shape);
    tell(&t, DENSE);
    t.tensor.data.len--;
    must_refuse(&t, DRAFT_DENSE, "a dense q that is not as long as its shape");
    tell(&t, DENSE);
    t.tensor.dtype = (Tandem__V1__Tensor__Dtype)7;
    must_refuse(&t, DRAFT_DENSE, "a dense q of an unknown type");
    const float bad[] = {NAN, INFINITY, -.25F, 2};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        tell(&t, DENSE);
        t.dense[2] = bad[i];
        must_refuse(&t, DRAFT_DENSE, "a dense q with a value that is no probability");
    }
    const float off[] = {.4F, .485F, .515F};
    for (size_t i = 0; i < ARRAY_LEN(off); i++) {
        tell(&t, DENSE);
        t.dense[4] = off[i];
        must_refuse(&t, DRAFT_DENSE, "a dense q whose probabilities do not sum to 1");
    }
    tell(&t, DENSE);
    t.tokens[1] = 3;
    must_refuse(&t, DRAFT_DENSE, "a token that its q does not name");
}

/* A sparse q names at most DRAFTS_SPARSE_MAX ids. */
static void a_sparse_q_may_name_as_many_ids_as_allowed(void **state)
{
    (void)state;
    for (uint32_t n = DRAFTS_SPARSE_MAX; n <= DRAFTS_SPARSE_MAX + 1; n++) {
        uint32_t ids[DRAFTS_SPARSE_MAX + 1];
        uint16_t probs[DRAFTS_SPARSE_MAX + 1] = {0};
        struct told t;
        struct draft_answer d;
        tell(&t, SPARSE);
        for (uint32_t i = 0; i < n; i++)
            ids[i] = i;
        probs[n - 1] = (uint16_t)(65536 - n);
        t.draft.n_tokens = 1;
        t.draft.q_ids = (ProtobufCBinaryData){n * sizeof(*ids), (uint8_t *)ids};
        t.draft.q_probs = (ProtobufCBinaryData){n * sizeof(*probs), (uint8_t *)probs};
        struct drafts_request a = {
            .max_nodes = 4, .max_depth = 4, .n_vocab = 1000, .q_mode = DRAFT_SPARSE};
        bool fits = n == DRAFTS_SPARSE_MAX;
        assert_int_equal(drafts_check(&t.draft, &a, &d), fits ? DRAFTS_GOOD : DRAFTS_MALFORMED);
        assert_true(!fits || d.draft->q->sums[0] == 65536);
        draft_free(d.draft);
    }
}

/* Weights whose exact sum is `sum`: in binary, most sums need three of them. */
static void set_sum(struct told *t, double sum)
{
    double rest = sum;
    tell(t, DENSE);
    memset(t->dense, 0, V * sizeof(float));
    static const int places[] = {4, 1, 2};
    for (int i = 0; i < 3; i++) {
        float x = (float)rest;
        x = (double)x > rest ? nextafterf(x, 0) : x;
        t->dense[places[i]] = x;
        rest -= (double)x;
    }
    assert_true(rest == 0);
}

static void a_dense_q_may_be_off_by_less_than_1_percent(void **state)
{
    (void)state;
    const char *why = "a dense q whose probabilities do not sum to 1";
    struct told t;
    struct draft_answer d;
    for (int end = 0; end < 2; end++) {
        double limit = end ? 1.01 : 0.99;
        set_sum(&t, limit);
        must_refuse(&t, DRAFT_DENSE, why);
        set_sum(&t, nextafter(limit, 1));
        must_take(&t, DRAFT_DENSE, &d);
        draft_free(d.draft);
    }
}

static void a_dense_value_may_exceed_1_by_rounding(void **state)
{
    (void)state;
    struct told t;
    struct draft_answer d;
    tell(&t, DENSE);
    t.dense[V] = 1.01F; // below 1.01
    must_take(&t, DRAFT_DENSE, &d);
    draft_free(d.draft);
    t.dense[V] = nextafterf(1.01F, 2);
    must_refuse(&t, DRAFT_DENSE, "a dense q with a value that is no probability");
}

/* What a draft of eight tokens takes on the wire, per token. */
static double bytes_per_token(Tandem__V1__QMode mode, uint32_t each)
{
    static uint8_t zeros[8 * 64 * sizeof(uint32_t)];
    uint32_t tokens[8];
    Tandem__V1__SequenceDraft d = TANDEM__V1__SEQUENCE_DRAFT__INIT, *list = &d;
    Tandem__V1__Drafts drafts = TANDEM__V1__DRAFTS__INIT;
    for (uint32_t i = 0; i < 8; i++)
        tokens[i] = 128255 - i;
    d.seq = d.digest = UINT64_MAX;
    d.base_len = 131071;
    d.n_tokens = 8;
    d.tokens = tokens;
    d.q_mode = mode;
    d.q_ids = (ProtobufCBinaryData){8 * each * sizeof(uint32_t), zeros};
    d.q_probs = (ProtobufCBinaryData){8 * each * sizeof(uint16_t), zeros};
    drafts.drafts = &list;
    drafts.n_drafts = 1;
    return (double)tandem__v1__drafts__get_packed_size(&drafts) / 8;
}

static void drafts_are_small_on_the_wire(void **state)
{
    (void)state;
    double coupled = bytes_per_token(TANDEM__V1__QMODE__Q_MODE_COUPLED, 0);
    double sparse = bytes_per_token(SPARSE, 64);
    printf("bytes per draft token: coupled %.1f, sparse of 64 ids %.1f\n", coupled, sparse);
    assert_true(coupled <= 16);
    assert_true(sparse <= 400);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_proposer_that_names_no_version_speaks_the_first),
        cmocka_unit_test(another_vocabulary_is_refused_with_both_digests),
        cmocka_unit_test(a_name_is_one_word),
        cmocka_unit_test(a_name_may_use_both_ends_of_each_range),
        cmocka_unit_test(a_description_is_taken_over),
        cmocka_unit_test(hidden_rows_are_not_sent),
        cmocka_unit_test(a_proposer_must_offer_point_or_coupled_drafts),
        cmocka_unit_test(a_round_holds_every_field_of_its_entries),
        cmocka_unit_test(closes_say_which_sequences_have_ended),
        cmocka_unit_test(a_draft_has_at_most_the_tokens_that_were_requested),
        cmocka_unit_test(a_path_has_at_most_the_depth_that_was_requested),
        cmocka_unit_test(lists_are_empty_or_as_long_as_the_draft),
        cmocka_unit_test(each_token_is_checked),
        cmocka_unit_test(survival_never_rises_from_parent_to_child),
        cmocka_unit_test(an_answer_to_another_context_is_stale),
        cmocka_unit_test(an_unread_count_is_at_most_the_context),
        cmocka_unit_test(a_sparse_q_may_name_as_many_ids_as_allowed),
        cmocka_unit_test(a_dense_q_may_be_off_by_less_than_1_percent),
        cmocka_unit_test(a_dense_value_may_exceed_1_by_rounding),
        cmocka_unit_test(a_sparse_q_arrives_as_it_was_drawn_from),
        cmocka_unit_test(only_an_empty_draft_has_an_unread_count),
        cmocka_unit_test(a_bad_sparse_q_is_refused),
        cmocka_unit_test(a_dense_q_comes_in_three_types),
        cmocka_unit_test(a_dense_q_may_leave_out_the_last_tokens),
        cmocka_unit_test(a_bad_dense_q_is_refused),
        cmocka_unit_test(drafts_are_small_on_the_wire),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

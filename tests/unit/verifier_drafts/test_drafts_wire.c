/* test_drafts_wire.c - checks of a proposer's description and of its drafts. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
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

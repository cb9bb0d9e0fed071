/* test_round_message.c - the request that a verifier sends is the request that a proposer reads. */
#include <stdlib.h>
#include <string.h>
#include <tandem/v1/proposer.pb-c.h>
#include "lib/lib.h"
#include "proposer-svc/batch.h"
#include "rpc/rpc.h"
#include "verifier-svc/drafts/drafts_book.h"

#define N_VOCAB 1000
#define K_MAX 8

static const uint32_t context[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
static const uint32_t verifying[] = {31, 32, 33};
static const uint32_t banned[] = {41, 42};
static const struct dist_bias biases[] = {{51, -1.5F}, {52, 2.5F}};

/* Every value differs from the others and from the default. A new member of struct dist_params does
 * not compile here: give it a value, and compare it in must_be_all(). */
#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wmissing-field-initializers"
static const struct dist_params all = {0.75F, 40, 0.875F, 0.0625F, 1.25F, 0.5F, -0.25F, biases, 2};
#pragma GCC diagnostic pop

static void must_be_all(const struct dist_params *p)
{
    assert_true(p->temperature == all.temperature);
    assert_int_equal(p->top_k, all.top_k);
    assert_true(p->top_p == all.top_p);
    assert_true(p->min_p == all.min_p);
    assert_true(p->repetition == all.repetition);
    assert_true(p->presence == all.presence);
    assert_true(p->frequency == all.frequency);
    assert_int_equal(p->n_bias, all.n_bias);
    for (uint32_t i = 0; i < all.n_bias; i++) {
        assert_int_equal(p->bias[i].token, biases[i].token);
        assert_true(p->bias[i].bias == biases[i].bias);
    }
}

/* ---- the way of a request ---- */

static void (*look)(const struct prop_ask *ask); // at the request, where the proposer drafts
static unsigned n_seen;

static void stub_seq_done(void *shared, void *seq, const struct prop_context *c)
{
    (void)shared;
    (void)seq;
    (void)c;
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

static void stub_draft(void *shared, struct prop_ask *const *asks, uint32_t n)
{
    (void)shared;
    for (uint32_t i = 0; i < n; i++) {
        look(asks[i]);
        asks[i]->to->n = 0;
        asks[i]->done = true;
        n_seen++;
    }
}

static const struct prop_ops stub = {.name = "stub",
                                     .seq_done = stub_seq_done,
                                     .cut = stub_cut,
                                     .grow = stub_grow,
                                     .draft = stub_draft};

/* The bytes of the Round that requests this. */
static struct rpc_msg *send_wish(struct drafts_wish *w)
{
    const struct drafts_described about = {.k_max = K_MAX, .offers = {true, true}};
    AUTO(drafts_book_free) struct drafts_book *book = NULL;
    AUTO(drafts_packer_free) struct drafts_packer *packer = NULL;
    assert_int_equal(drafts_book_new(1, N_VOCAB, &book), 0);
    assert_int_equal(drafts_packer_new(1, "fp_target", &packer), 0);
    drafts_book_reset(book, &about);
    assert_int_equal(drafts_book_ask(book, w, 1, 1000000, 0), 1);
    const struct drafts_outbox *o = drafts_book_take(book);
    assert_non_null(o);
    return rpc_pack(&drafts_pack(packer, o->urgent, o->n_urgent, o->tokens, o->budget_us)->base);
}

static void read_round(struct rpc_msg *msg)
{
    const struct sessions_config sc = {.ops = &stub,
                                       .max_sessions = 1,
                                       .max_tokens = 1000,
                                       .max_context = 1000,
                                       .k_max = K_MAX,
                                       .idle_us = INT64_MAX};
    struct metric *m = metrics_counter("test_round_message", "", NULL);
    AUTO(sessions_free) struct sessions *sessions = NULL;
    AUTO(batch_free) struct batch *batch = NULL;
    assert_int_equal(sessions_new(&sc, &sessions), 0);
    struct batch_config bc = {.sessions = sessions,
                              .ops = &stub,
                              .q_modes = 1u << DRAFT_POINT | 1u << DRAFT_COUPLED,
                              .rounds = m,
                              .drafts = m,
                              .tokens = m,
                              .needed = m,
                              .seconds = metrics_histogram("test_s", "", NULL, NULL, 0)};
    assert_int_equal(batch_new(&bc, &batch), 0);
    Tandem__V1__Round *round = (Tandem__V1__Round *)rpc_unpack(&tandem__v1__round__descriptor, msg);
    rpc_msg_free(msg);
    assert_non_null(round);
    const struct batch_origin from = {.stream = 1};
    assert_int_equal(batch_take(batch, &from, round, round, 0), 0);
    batch_draft(batch);
}

static void must_arrive(struct drafts_wish *w, void (*as)(const struct prop_ask *ask))
{
    n_seen = 0;
    look = as;
    read_round(send_wish(w));
    assert_int_equal(n_seen, 1);
}

static struct drafts_wish wish_of(uint32_t max_nodes, uint32_t max_depth)
{
    return (struct drafts_wish){.seq = 7,
                                .context = context,
                                .base_len = ARRAY_LEN(context),
                                .max_nodes = max_nodes,
                                .max_depth = max_depth};
}

/* ---- sampling ---- */

static void sampling_is_complete(const struct prop_ask *ask)
{
    const struct constraint_ban *ban = &ask->sampling.ban;
    must_be_all(&ask->sampling.params);
    assert_true(ask->sampling.ignore_eos);
    assert_int_equal(ban->n, ARRAY_LEN(banned));
    assert_memory_equal(ban->tokens, banned, sizeof(banned));
    assert_int_equal(ban->until, 25);
}

static void every_sampling_parameter_arrives(void **state)
{
    (void)state;
    struct drafts_wish w = wish_of(4, 4);
    w.sampling = all;
    w.ban = (struct constraint_ban){banned, ARRAY_LEN(banned), 25};
    w.ignore_eos = true;
    must_arrive(&w, sampling_is_complete);
}

/* ---- owner ---- */

static void owner_is_complete(const struct prop_ask *ask)
{
    assert_int_equal(ask->context.model_len, 9);
    assert_memory_equal(ask->context.model, "fp_target", 9);
    assert_int_equal(ask->context.tenant_len, 5);
    assert_memory_equal(ask->context.tenant, "alice", 5);
}

static void the_owner_of_a_sequence_arrives(void **state)
{
    (void)state;
    struct drafts_wish w = wish_of(4, 4);
    w.tenant = "alice";
    w.tenant_len = 5;
    must_arrive(&w, owner_is_complete);
}

/* ---- limits of the draft ---- */

static struct {
    uint32_t max_nodes, max_depth;
} seen;

static void note_limits(const struct prop_ask *ask)
{
    seen.max_nodes = ask->max_nodes;
    seen.max_depth = ask->max_depth;
}

static void nodes_and_depth_arrive_as_two_limits(void **state)
{
    (void)state;
    static const struct {
        uint32_t max_nodes, max_depth, n_verifying, nodes, depth;
    } cases[] = {
        {4, 4, 0, 4, 4},
        {6, 2, 0, 6, 2},
        {3, 6, 0, 3, 3},      // no path is longer than the draft
        {50, 5, 0, K_MAX, 5}, // beyond the proposer's maximum
        {50, 50, 0, K_MAX, K_MAX},
        {DRAFT_MAX_NODES, 5, 3, DRAFT_MAX_NODES - 3, 5},
        {10, 5, 3, 7, 5},
        {5, 5, 3, 2, 2},
        {DRAFT_MAX_NODES, 50, 3, DRAFT_MAX_NODES - 3, K_MAX},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct drafts_wish w = wish_of(cases[i].max_nodes, cases[i].max_depth);
        w.verifying = verifying;
        w.n_verifying = cases[i].n_verifying;
        must_arrive(&w, note_limits);
        assert_int_equal(seen.max_nodes, cases[i].nodes);
        assert_int_equal(seen.max_depth, cases[i].depth);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_sampling_parameter_arrives),
        cmocka_unit_test(the_owner_of_a_sequence_arrives),
        cmocka_unit_test(nodes_and_depth_arrive_as_two_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

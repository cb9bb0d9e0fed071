/* proposers.c - an honest proposer and a lying one, in the test's process. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tandem/v1/proposer.pb-c.h>
#include <tandem/v1/protocol.pb-c.h>
#include "base/rng.h"
#include "lib/lib.h"
#include "lib/clients/proposers.h"
#include "proposer-svc/props/prop_ngram.h"
#include "proposer-svc/proposer.h"
#include "rpc/rpc.h"

#define K_MAX 64
#define STOP_GRACE_MS 20

static void must_listen(struct rpc_server *server, const char *target)
{
    if (rpc_server_listen(server, target) < 0 || rpc_server_start(server) < 0)
        fail_msg("%s", fail_text());
}

static void target_of(const char *path, char ret[2 * PROPOSER_PATH_MAX])
{
    snprintf(ret, 2 * PROPOSER_PATH_MAX, "unix:%s", path);
}

/* ---- honest ---- */

struct honest {
    void *shared;
    struct sessions *sessions;
    struct proposer *service;
    struct rpc_server *server;
};

struct honest *honest_start(const char *path)
{
    struct honest *h = calloc(1, sizeof(*h));
    prop_ngram_settings = (struct prop_ngram_settings){4, 1, (char *)"latest", true};
    assert_int_equal(prop_ngram.open(&h->shared), 0);
    struct sessions_config sc = {.ops = &prop_ngram,
                                 .shared = h->shared,
                                 .max_sessions = 100,
                                 .max_tokens = 1 << 20,
                                 .max_context = 1 << 18,
                                 .k_max = 20,
                                 .idle_us = INT64_MAX};
    assert_int_equal(sessions_new(&sc, &h->sessions), 0);
    struct proposer_config c = {.name = "ngram",
                                .k_max = 20,
                                .max_context = sc.max_context,
                                .sessions = h->sessions,
                                .ops = &prop_ngram,
                                .shared = h->shared};
    assert_int_equal(proposer_new(&c, &h->service), 0);
    struct rpc_server_options opt = {.own_role = RPC_ROLE_VERIFIER};
    assert_int_equal(rpc_server_new(&opt, &h->server), 0);
    proposer_add(h->service, h->server);
    char target[2 * PROPOSER_PATH_MAX];
    target_of(path, target);
    must_listen(h->server, target);
    return h;
}

void honest_stop(struct honest *h)
{
    if (!h)
        return;
    rpc_server_stop(h->server, STOP_GRACE_MS);
    proposer_free(h->service);
    sessions_free(h->sessions);
    prop_ngram.close(h->shared);
    free(h);
}

uint32_t honest_n_sessions(struct honest *h)
{
    struct sessions_stats stats;
    sessions_stats(h->sessions, &stats);
    return stats.n_sessions;
}

/* ---- a liar ---- */

struct liar {
    struct rpc_server *server;
    uint32_t n_vocab;
    atomic_int lie;
    atomic_uint n_described, n_rounds, n_streams, n_drawn, n_ahead, n_answers, n_ended, n_left;
    uint64_t newest; // sequence
    atomic_uint q_modes;
};

static const char *const lie_names[LIE_COUNT] = {
    "nothing",     "empty",        "silent",     "late",        "stale",    "overlong",
    "vocabulary",  "parents",      "nan",        "q mode",      "garbage",  "huge",
    "flood",       "need context", "hang up",    "deaf",        "protocol", "digest",
    "no describe", "drawn",        "drawn late", "drawn tells", "other q"};

const char *lie_name(enum lie lie)
{
    return lie_names[lie];
}

static bool draws(const struct liar *l)
{
    return l->lie >= LIE_DRAWN && l->lie <= LIE_OTHER_Q;
}

static void on_describe(struct rpc_call *call, struct rpc_msg *msg)
{
    struct liar *l = rpc_call_service(call);
    (void)msg;
    l->n_described++;
    if (l->lie == LIE_NO_DESCRIBE) {
        rpc_call_finish(call, RPC_INTERNAL, "Describe fails on purpose");
        return;
    }
    Tandem__V1__DescribeReply reply = TANDEM__V1__DESCRIBE_REPLY__INIT;
    reply.protocol = l->lie == LIE_PROTOCOL ? 99 : TANDEM__V1__PROTOCOL__PROTOCOL_VERSION;
    reply.vocab_digest = l->lie == LIE_DIGEST ? 0xbad : 0;
    reply.kind = (ProtobufCBinaryData){4, (uint8_t *)"liar"};
    reply.k_max = K_MAX;
    Tandem__V1__QMode modes[] = {TANDEM__V1__QMODE__Q_MODE_POINT, TANDEM__V1__QMODE__Q_MODE_COUPLED,
                                 TANDEM__V1__QMODE__Q_MODE_SPARSE, TANDEM__V1__QMODE__Q_MODE_DENSE};
    reply.q_modes = modes;
    reply.n_q_modes = draws(l) ? ARRAY_LEN(modes) : 0;
    rpc_call_reply(call, &reply.base);
}

/* A draft as a message, with the arrays that it points to. */
struct lie_draft {
    Tandem__V1__SequenceDraft draft;
    uint32_t tokens[K_MAX + 2];
    int32_t parents[K_MAX + 2];
    float survival[K_MAX + 2];
    uint32_t q_ids[K_MAX][LIAR_TOKENS], shape[2];
    uint16_t q_probs[K_MAX][LIAR_TOKENS];
    Tandem__V1__Tensor q;
    float *dense; // (n_tokens, n_vocab) or NULL
};

/* A random token of the vocabulary, or a recently committed one, which is sometimes right. */
static uint32_t random_guess(const struct liar *l, const Tandem__V1__RoundSequence *r, uint32_t i)
{
    uint64_t x = rng_splitmix64(r->digest + i);
    return x & 1 && r->n_tokens ? r->tokens[(x >> 1) % r->n_tokens] : (uint32_t)(x % l->n_vocab);
}

/* The n-th drawn token since the start. Each has new noise. */
static uint32_t drawn_token(const struct liar *l, unsigned n)
{
    uint64_t w = rng_u64(17, RNG_PROPOSER, n, 0, 0);
    unsigned i = 0;
    for (uint16_t left = (uint16_t)w; i < LIAR_TOKENS - 1; i++) {
        uint16_t prob = liar_probs[l->lie == LIE_OTHER_Q ? LIAR_TOKENS - 1 - i : i];
        if (left < prob)
            break;
        left -= prob;
    }
    return LIAR_TOKEN(i);
}

static void fill_dense(struct lie_draft *t, const struct liar *l)
{
    size_t n = t->draft.n_tokens;
    t->dense = calloc(n * l->n_vocab + 1, sizeof(float));
    for (size_t i = 0; i < n; i++)
        for (unsigned k = 0; k < LIAR_TOKENS; k++)
            t->dense[i * l->n_vocab + LIAR_TOKEN(k)] = (float)liar_probs[k] / 65536;
    tandem__v1__tensor__init(&t->q);
    t->shape[0] = (uint32_t)n;
    t->shape[1] = l->n_vocab;
    t->q.shape = t->shape;
    t->q.n_shape = 2;
    t->q.data = (ProtobufCBinaryData){n * l->n_vocab * sizeof(float), (uint8_t *)t->dense};
    t->draft.q = &t->q;
}

static void fill_drawn(struct lie_draft *t, struct liar *l, const Tandem__V1__RoundSequence *r)
{
    Tandem__V1__SequenceDraft *d = &t->draft;
    for (uint32_t i = 0; i < d->n_tokens; i++) {
        t->tokens[i] = drawn_token(l, l->n_drawn++);
        for (unsigned k = 0; k < LIAR_TOKENS; k++) {
            t->q_ids[i][k] = LIAR_TOKEN(k);
            t->q_probs[i][k] = liar_probs[k] - 1;
        }
    }
    d->q_mode = r->q_mode;
    if (d->q_mode == TANDEM__V1__QMODE__Q_MODE_SPARSE) {
        d->q_ids = (ProtobufCBinaryData){d->n_tokens * sizeof(t->q_ids[0]), (uint8_t *)t->q_ids};
        d->q_probs =
            (ProtobufCBinaryData){d->n_tokens * sizeof(t->q_probs[0]), (uint8_t *)t->q_probs};
    } else if (d->q_mode == TANDEM__V1__QMODE__Q_MODE_DENSE) {
        fill_dense(t, l);
    }
}

static void fill_draft(struct lie_draft *t, struct liar *l, const Tandem__V1__RoundSequence *r)
{
    uint32_t k = r->k < K_MAX ? r->k : K_MAX;
    Tandem__V1__SequenceDraft *d = &t->draft;
    tandem__v1__sequence_draft__init(d);
    d->seq = r->seq;
    d->base_len = r->base_len + (l->lie == LIE_STALE);
    d->digest = r->digest;
    d->n_tokens = l->lie == LIE_EMPTY ? 0 : l->lie == LIE_OVERLONG ? k + 1 : k;
    d->tokens = t->tokens;
    d->parents = t->parents;
    d->survival = t->survival;
    d->n_parents = l->lie == LIE_PARENTS ? d->n_tokens : 0;
    d->n_survival = l->lie == LIE_NAN ? d->n_tokens : 0;
    d->q_mode = l->lie == LIE_Q_MODE ? TANDEM__V1__QMODE__Q_MODE_DENSE : 0;
    d->need_context = l->lie == LIE_NEED_CONTEXT;
    for (uint32_t i = 0; i < d->n_tokens; i++) {
        t->tokens[i] = random_guess(l, r, i);
        t->parents[i] = (int32_t)d->n_tokens - (int32_t)i;
        t->survival[i] = NAN;
    }
    if (draws(l))
        fill_drawn(t, l, r);
    if (l->lie == LIE_VOCABULARY && d->n_tokens)
        t->tokens[d->n_tokens - 1] = l->n_vocab;
}

static void count_closes(struct liar *l, const Tandem__V1__Round *round)
{
    for (size_t i = 0; i < round->n_sequences; i++) {
        const Tandem__V1__RoundSequence *r = round->sequences[i];
        l->n_left += r->close && r->unfinished;
        l->n_ended += r->close && !r->unfinished;
    }
}

static void note_q_mode(struct liar *l, const Tandem__V1__RoundSequence *r)
{
    if (r->seq > l->newest) {
        l->newest = r->seq;
        l->q_modes = 0;
    }
    if (r->seq == l->newest)
        l->q_modes |= 1u << r->q_mode;
}

static struct rpc_msg *answer_to(struct liar *l, const Tandem__V1__Round *round)
{
    Tandem__V1__Drafts drafts = TANDEM__V1__DRAFTS__INIT;
    struct lie_draft *lies = calloc(round->n_sequences + 1, sizeof(*lies));
    Tandem__V1__SequenceDraft **pointers = calloc(round->n_sequences + 1, sizeof(*pointers));
    for (size_t i = 0; i < round->n_sequences; i++) {
        if (round->sequences[i]->close || round->sequences[i]->k == 0)
            continue;
        l->n_ahead += round->sequences[i]->n_verifying > 0;
        note_q_mode(l, round->sequences[i]);
        fill_draft(&lies[drafts.n_drafts], l, round->sequences[i]);
        pointers[drafts.n_drafts] = &lies[drafts.n_drafts].draft;
        drafts.n_drafts++;
    }
    drafts.drafts = pointers;
    struct rpc_msg *msg = rpc_pack(&drafts.base);
    for (size_t i = 0; i < drafts.n_drafts; i++)
        free(lies[i].dense);
    free(pointers);
    free(lies);
    return msg;
}

static struct rpc_msg *huge_answer(void)
{
    size_t n = 1000000;
    uint8_t *bytes = malloc(2 * n); // n empty sequences: tag 1, length 0
    for (size_t i = 0; i < n; i++) {
        bytes[2 * i] = 0x0a;
        bytes[2 * i + 1] = 0;
    }
    struct rpc_msg *msg = rpc_msg_of(bytes, 2 * n);
    free(bytes);
    return msg;
}

/* The call's user: a list of messages to be sent later, in this order. */
struct later {
    struct later *next;
    struct rpc_msg *msg;
};

static struct rpc_msg *take_later(struct rpc_call *call)
{
    struct later *first = rpc_call_user(call);
    struct rpc_msg *msg = first->msg;
    rpc_call_set_user(call, first->next);
    free(first);
    return msg;
}

static void send_late(struct rpc_call *call)
{
    rpc_call_send(call, take_later(call));
}

static void send_later(struct rpc_call *call, struct rpc_msg *msg)
{
    struct later *last = calloc(1, sizeof(*last)), *at = rpc_call_user(call);
    last->msg = msg;
    while (at && at->next)
        at = at->next;
    if (at)
        at->next = last;
    else
        rpc_call_set_user(call, last);
    rpc_call_after(call, LIAR_LATE_MS, send_late);
}

/* Sends one message per sequence, late if its first drawn token is LIAR_TOKEN(2). */
static void answer_late_by_token(struct rpc_call *call, struct liar *l,
                                 const Tandem__V1__Round *round)
{
    for (size_t i = 0; i < round->n_sequences; i++) {
        Tandem__V1__Round one = *round;
        one.sequences = &round->sequences[i];
        one.n_sequences = 1;
        bool has_q = one.sequences[0]->q_mode == TANDEM__V1__QMODE__Q_MODE_SPARSE ||
                     one.sequences[0]->q_mode == TANDEM__V1__QMODE__Q_MODE_DENSE;
        bool is_late = has_q && drawn_token(l, l->n_drawn) == LIAR_TOKEN(2);
        struct rpc_msg *msg = answer_to(l, &one);
        if (is_late)
            send_later(call, msg);
        else
            rpc_call_send(call, msg);
    }
}

static void answer(struct rpc_call *call, struct liar *l, const Tandem__V1__Round *round)
{
    switch ((enum lie)l->lie) {
    case LIE_SILENT:
        break;
    case LIE_LATE: // one at a time: Rounds that come meanwhile are not answered
        if (!rpc_call_user(call))
            send_later(call, answer_to(l, round));
        break;
    case LIE_DRAWN_TELLS:
        answer_late_by_token(call, l, round);
        break;
    case LIE_DRAWN_LATE:
        if (++l->n_answers % 8 == 0 && !rpc_call_user(call))
            send_later(call, answer_to(l, round));
        else
            rpc_call_send(call, answer_to(l, round));
        break;
    case LIE_GARBAGE:
        rpc_call_send(call, rpc_msg_of("\xff\xff\xff\xff garbage", 12));
        break;
    case LIE_HUGE:
        rpc_call_send(call, huge_answer());
        break;
    case LIE_FLOOD:
        for (int i = 0; i < 100; i++)
            rpc_call_send(call, answer_to(l, round));
        break;
    case LIE_HANG_UP:
        rpc_call_finish(call, RPC_ABORTED, "the stream ends on purpose");
        break;
    case LIE_DEAF: // only a Round that it was already reading
        break;
    default:
        rpc_call_send(call, answer_to(l, round));
    }
}

static void on_draft_start(struct rpc_call *call, struct rpc_msg *msg)
{
    struct liar *l = rpc_call_service(call);
    (void)msg;
    l->n_streams++;
    if (l->lie == LIE_DEAF)
        rpc_call_pause(call);
}

static void on_draft_message(struct rpc_call *call, struct rpc_msg *msg)
{
    struct liar *l = rpc_call_service(call);
    if (!msg) {
        rpc_call_finish(call, RPC_OK, NULL);
        return;
    }
    Tandem__V1__Round *round =
        (Tandem__V1__Round *)rpc_call_unpack(call, &tandem__v1__round__descriptor, msg);
    assert_non_null(round);
    l->n_rounds++;
    count_closes(l, round);
    answer(call, l, round);
    tandem__v1__round__free_unpacked(round, NULL);
}

static void on_draft_end(struct rpc_call *call)
{
    while (rpc_call_user(call))
        rpc_msg_free(take_later(call));
}

static const struct rpc_method methods[] = {
    {.path = "/tandem.v1.Proposer/Describe", .roles = RPC_ROLE_ANY, .on_start = on_describe},
    {.path = "/tandem.v1.Proposer/Draft",
     .roles = RPC_ROLE_ANY,
     .reads_stream = true,
     .on_start = on_draft_start,
     .on_message = on_draft_message,
     .on_end = on_draft_end},
};

struct liar *liar_listen(const char *target, enum lie lie, uint32_t n_vocab)
{
    struct liar *l = calloc(1, sizeof(*l));
    l->n_vocab = n_vocab;
    l->lie = lie;
    struct rpc_server_options opt = {0};
    assert_int_equal(rpc_server_new(&opt, &l->server), 0);
    for (size_t i = 0; i < ARRAY_LEN(methods); i++)
        rpc_server_add(l->server, &methods[i], l);
    must_listen(l->server, target);
    return l;
}

struct liar *liar_start(const char *path, enum lie lie, uint32_t n_vocab)
{
    char target[2 * PROPOSER_PATH_MAX];
    target_of(path, target);
    return liar_listen(target, lie, n_vocab);
}

void liar_stop(struct liar *l)
{
    if (!l)
        return;
    rpc_server_stop(l->server, STOP_GRACE_MS);
    free(l);
}

void liar_change(struct liar *l, enum lie lie)
{
    l->lie = lie;
}

unsigned liar_n_described(struct liar *l)
{
    return l->n_described;
}

unsigned liar_n_rounds(struct liar *l)
{
    return l->n_rounds;
}

unsigned liar_n_drawn(struct liar *l)
{
    return l->n_drawn;
}

unsigned liar_n_ahead(struct liar *l)
{
    return l->n_ahead;
}

unsigned liar_q_modes(struct liar *l)
{
    return l->q_modes;
}

unsigned liar_n_streams(struct liar *l)
{
    return l->n_streams;
}

unsigned liar_n_ended(struct liar *l)
{
    return l->n_ended;
}

unsigned liar_n_left(struct liar *l)
{
    return l->n_left;
}

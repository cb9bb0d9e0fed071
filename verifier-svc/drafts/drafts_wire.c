/* drafts_wire.c - packs Rounds, checks answers and descriptions. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "base/minmax.h"
#include "kernel/kernel.h"
#include "rpc/rpc.h"
#include "tandem/v1/protocol.pb-c.h"
#include "verifier-svc/drafts/drafts_wire.h"

struct drafts_packer {
    Tandem__V1__Round round;
    uint32_t max_entries;
    char model[DRAFTS_MODEL_MAX + 1];
    Tandem__V1__RoundSequence *sequences; // (max_entries)
    Tandem__V1__RoundSequence **pointers; // (max_entries): into it
    Tandem__V1__DraftSampling *samplings; // (max_entries)
};

int drafts_packer_new(uint32_t max_entries, const char *model, struct drafts_packer **ret)
{
    AUTO(drafts_packer_free) struct drafts_packer *p = calloc(1, sizeof(*p));
    if (!p)
        return fail(-ENOMEM, "drafts: no memory");
    p->max_entries = max_entries;
    snprintf(p->model, sizeof(p->model), "%s", model);
    p->sequences = calloc(max_entries, sizeof(*p->sequences));
    p->pointers = calloc(max_entries, sizeof(*p->pointers));
    p->samplings = calloc(max_entries, sizeof(*p->samplings));
    if (!p->sequences || !p->pointers || !p->samplings)
        return fail(-ENOMEM, "drafts: no memory for %u sequences", max_entries);
    for (uint32_t i = 0; i < max_entries; i++)
        p->pointers[i] = &p->sequences[i];
    *ret = TAKE(p);
    return 0;
}

void drafts_packer_free(struct drafts_packer *p)
{
    if (!p)
        return;
    free(p->sequences);
    free(p->pointers);
    free(p->samplings);
    free(p);
}

static void pack_sampling(const struct drafts_entry *e, const uint32_t *tokens,
                          Tandem__V1__DraftSampling *to)
{
    const struct dist_params *p = &e->sampling;
    tandem__v1__draft_sampling__init(to);
    to->temperature = p->temperature;
    to->top_k = p->top_k;
    to->top_p = p->top_p;
    to->min_p = p->min_p;
    to->repetition = p->repetition;
    to->presence = p->presence;
    to->frequency = p->frequency;
    to->ignore_eos = e->ignore_eos;
    to->banned_until = e->ban.until;
    to->n_banned = e->ban.n;
    to->banned = (uint32_t *)tokens;
    to->bias.len = p->n_bias * sizeof(*p->bias);
    to->bias.data = (uint8_t *)(tokens + e->ban.n);
}

/* The generated messages have no const; packing only reads. */
static void pack_entry(const struct drafts_packer *p, const struct drafts_entry *e,
                       const uint32_t *tokens, Tandem__V1__DraftSampling *sampling,
                       Tandem__V1__RoundSequence *to)
{
    tandem__v1__round_sequence__init(to);
    to->seq = e->seq;
    to->base_len = e->base_len;
    to->keep = e->keep;
    to->n_tokens = e->base_len - e->keep;
    to->tokens = (uint32_t *)tokens + e->token_at;
    to->digest = e->digest;
    to->k = e->max_depth;
    to->max_nodes = e->max_nodes;
    to->more = e->more;
    to->prompt_len = e->prompt_len;
    to->q_mode = (Tandem__V1__QMode)e->q_mode;
    to->draw_key = e->draw_key;
    to->p_min = e->p_min;
    to->n_verifying = e->n_verifying;
    to->verifying = to->tokens + to->n_tokens + e->n_hint;
    if (!e->introduced) {
        to->n_hint = e->n_hint;
        to->hint = to->tokens + to->n_tokens;
        to->tenant.len = e->tenant_len;
        to->tenant.data = (uint8_t *)e->tenant;
        to->model = rpc_text(p->model);
        to->id = rpc_text(e->id);
        to->trace = rpc_text(e->trace);
        pack_sampling(e, to->verifying + e->n_verifying, sampling);
        to->sampling = sampling;
    }
}

static const Tandem__V1__Round *round_of(struct drafts_packer *p, uint32_t n, uint32_t budget_us)
{
    tandem__v1__round__init(&p->round);
    p->round.sequences = p->pointers;
    p->round.n_sequences = n;
    p->round.budget_us = budget_us;
    return &p->round;
}

const Tandem__V1__Round *drafts_pack(struct drafts_packer *p, const struct drafts_entry *entries,
                                     uint32_t n_entries, const uint32_t *tokens, uint32_t budget_us)
{
    for (uint32_t i = 0; i < n_entries; i++)
        pack_entry(p, &entries[i], tokens, &p->samplings[i], &p->sequences[i]);
    return round_of(p, n_entries, budget_us);
}

const Tandem__V1__Round *drafts_pack_closes(struct drafts_packer *p,
                                            const struct drafts_closed *closes, uint32_t n_closes)
{
    assert(n_closes <= p->max_entries);
    for (uint32_t i = 0; i < n_closes; i++) {
        tandem__v1__round_sequence__init(&p->sequences[i]);
        p->sequences[i].seq = closes[i].seq;
        p->sequences[i].close = true;
        p->sequences[i].unfinished = !closes[i].ended;
    }
    return round_of(p, n_closes, 0);
}

static_assert(DRAFT_COUPLED == (int)TANDEM__V1__QMODE__Q_MODE_COUPLED &&
                  DRAFT_SPARSE == (int)TANDEM__V1__QMODE__Q_MODE_SPARSE &&
                  DRAFT_DENSE == (int)TANDEM__V1__QMODE__Q_MODE_DENSE,
              "q modes are those of the wire");

static enum drafts_verdict malformed(const char *what)
{
    fail(-EPROTO, "%s", what);
    return DRAFTS_MALFORMED;
}

static enum drafts_verdict check_shape(const Tandem__V1__SequenceDraft *a,
                                       const struct drafts_request *request)
{
    if (a->n_tokens > request->max_nodes || a->n_tokens > DRAFT_MAX_NODES)
        return malformed("more tokens than were requested");
    if (a->n_parents != 0 && a->n_parents != a->n_tokens)
        return malformed("not one parent for each token");
    if (a->n_survival != 0 && a->n_survival != a->n_tokens)
        return malformed("not one survival estimate for each token");
    if (a->q_mode != TANDEM__V1__QMODE__Q_MODE_POINT && (int)a->q_mode != (int)request->q_mode)
        return malformed("a q mode that was not requested");
    return DRAFTS_GOOD;
}

/* The parents of *draft are checked: each comes before its child. */
static enum drafts_verdict check_depth(const struct draft *draft, uint32_t n, uint32_t max_depth)
{
    uint32_t depth[DRAFT_MAX_NODES] = {0};
    for (uint32_t i = 0; i < n; i++) {
        int32_t parent = draft->parents[i];
        depth[i] = parent < 0 ? 1 : depth[parent] + 1;
        if (depth[i] > max_depth)
            return malformed("a longer path than was requested");
    }
    return DRAFTS_GOOD;
}

static enum drafts_verdict check_token(const Tandem__V1__SequenceDraft *a, uint32_t i,
                                       const struct drafts_request *request, struct draft *ret)
{
    int32_t parent = a->n_parents ? a->parents[i] : (int32_t)i - 1;
    if (a->tokens[i] >= request->n_vocab)
        return malformed("a token outside the vocabulary");
    if (parent < -1 || parent >= (int32_t)i)
        return malformed("a parent that does not come before its child");
    float above = parent < 0 ? 1 : ret->survival[parent];
    float survival = a->n_survival ? a->survival[i] : above;
    if (!(survival >= 0 && survival <= 1)) // NaN too
        return malformed("a survival estimate outside 0 .. 1");
    ret->tokens[i] = a->tokens[i];
    ret->parents[i] = parent;
    ret->survival[i] = survival < above ? survival : above;
    ret->tree = ret->tree || parent != (int32_t)i - 1;
    return DRAFTS_GOOD;
}

/* ---- q ---- */

/* Memory for the q of n tokens with rows of `width` weights, and as many ids if has_ids. NULL: no
 * memory. */
static struct draft_q *new_q(uint32_t n, uint32_t width, bool has_ids)
{
    size_t entry = sizeof(float) + (has_ids ? sizeof(uint32_t) : 0);
    struct draft_q *q = malloc(sizeof(*q) + n * (sizeof(double) + width * entry));
    if (!q)
        return NULL;
    double *sums = (double *)(void *)(q + 1);
    float *weights = (float *)(void *)(sums + n);
    uint32_t *ids = (uint32_t *)(void *)(weights + (size_t)n * width);
    *q = (struct draft_q){
        .width = width, .ids = has_ids ? ids : NULL, .weights = weights, .sums = sums};
    for (uint32_t i = 0; i < n; i++) {
        q->row[i] = (uint8_t)i;
        sums[i] = 0;
    }
    return q;
}

static int by_id(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* n is at most DRAFTS_SPARSE_MAX. */
static bool has_twice(const uint32_t *ids, uint32_t n)
{
    uint32_t sorted[DRAFTS_SPARSE_MAX];
    memcpy(sorted, ids, n * sizeof(*ids));
    qsort(sorted, n, sizeof(*sorted), by_id);
    for (uint32_t i = 1; i < n; i++)
        if (sorted[i] == sorted[i - 1])
            return true;
    return false;
}

/* Row i of a sparse q: ids u32, probabilities u16 (n - 1 of n/65536). */
static enum drafts_verdict read_sparse(const Tandem__V1__SequenceDraft *a, uint32_t i,
                                       uint32_t n_vocab, struct draft_q *q)
{
    size_t at = (size_t)i * q->width;
    uint32_t *ids = q->ids + at;
    bool has_token = false;
    memcpy(ids, a->q_ids.data + at * sizeof(*ids), q->width * sizeof(*ids));
    for (uint32_t k = 0; k < q->width; k++) {
        uint16_t prob;
        memcpy(&prob, a->q_probs.data + (at + k) * sizeof(prob), sizeof(prob));
        if (ids[k] >= n_vocab)
            return malformed("a q over tokens outside the vocabulary");
        has_token = has_token || ids[k] == a->tokens[i];
        q->weights[at + k] = (float)(prob + 1);
        q->sums[i] += prob + 1;
    }
    if (q->sums[i] != 65536)
        return malformed("a sparse q whose probabilities do not sum to 65536");
    if (has_twice(ids, q->width))
        return malformed("a sparse q that names a token twice");
    return has_token ? DRAFTS_GOOD : malformed("a token that its q does not name");
}

static enum drafts_verdict check_sparse(const Tandem__V1__SequenceDraft *a,
                                        const struct drafts_request *request, struct draft *ret)
{
    size_t width = a->q_probs.len / sizeof(uint16_t) / a->n_tokens;
    if (width == 0 || width > DRAFTS_SPARSE_MAX ||
        a->q_probs.len != a->n_tokens * width * sizeof(uint16_t) ||
        a->q_ids.len != a->n_tokens * width * sizeof(uint32_t))
        return malformed("a sparse q that is not as many ids and probabilities for each token");
    ret->q = new_q((uint32_t)a->n_tokens, (uint32_t)width, true);
    if (!ret->q)
        return malformed("no memory for its q");
    enum drafts_verdict v = DRAFTS_GOOD;
    for (uint32_t i = 0; i < a->n_tokens && v == DRAFTS_GOOD; i++)
        v = read_sparse(a, i, request->n_vocab, ret->q);
    return v;
}

static float from_half(uint16_t h, Tandem__V1__Tensor__Dtype dtype)
{
    uint32_t bits = (uint32_t)h << 16; // bf16
    float x;
    if (dtype == TANDEM__V1__TENSOR__DTYPE__F16)
        return kernel_f16_to(h);
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* Row i of the tensor; tokens after its end have probability 0. Rounding to half precision may
 * change the sum of a dense q by at most 1 %. */
static enum drafts_verdict read_dense(const Tandem__V1__Tensor *t, uint32_t i, uint32_t token,
                                      struct draft_q *q)
{
    float *weights = q->weights + (size_t)i * q->width;
    bool wide = t->dtype == TANDEM__V1__TENSOR__DTYPE__F32;
    uint32_t width = t->shape[1];
    const uint8_t *from = t->data.data + (size_t)i * width * (wide ? 4 : 2);
    memset(weights + width, 0, (q->width - width) * sizeof(*weights));
    for (uint32_t k = 0; k < width; k++) {
        uint16_t half;
        if (wide) {
            memcpy(&weights[k], from + 4 * (size_t)k, sizeof(float));
        } else {
            memcpy(&half, from + 2 * (size_t)k, sizeof(half));
            weights[k] = from_half(half, t->dtype);
        }
        if (!(weights[k] >= 0 && weights[k] <= 1.01F)) // NaN too
            return malformed("a dense q with a value that is no probability");
        q->sums[i] += (double)weights[k];
    }
    if (!(q->sums[i] > 0.99 && q->sums[i] < 1.01))
        return malformed("a dense q whose probabilities do not sum to 1");
    return weights[token] > 0 ? DRAFTS_GOOD : malformed("a token that its q does not name");
}

static enum drafts_verdict check_dense(const Tandem__V1__SequenceDraft *a,
                                       const struct drafts_request *request, struct draft *ret)
{
    const Tandem__V1__Tensor *t = a->q;
    if (!t || t->n_shape != 2 || t->shape[0] != a->n_tokens || t->shape[1] > request->n_vocab)
        return malformed("a dense q that is not tokens by vocabulary");
    bool wide = t->dtype == TANDEM__V1__TENSOR__DTYPE__F32;
    if (!wide && t->dtype != TANDEM__V1__TENSOR__DTYPE__F16 &&
        t->dtype != TANDEM__V1__TENSOR__DTYPE__BF16)
        return malformed("a dense q of an unknown type");
    if (t->data.len != a->n_tokens * (wide ? 4 : 2) * (size_t)t->shape[1])
        return malformed("a dense q that is not as long as its shape");
    ret->q = new_q((uint32_t)a->n_tokens, request->n_vocab, false);
    if (!ret->q)
        return malformed("no memory for its q");
    enum drafts_verdict v = DRAFTS_GOOD;
    for (uint32_t i = 0; i < a->n_tokens && v == DRAFTS_GOOD; i++)
        v = read_dense(t, i, a->tokens[i], ret->q);
    return v;
}

static enum drafts_verdict check_q(const Tandem__V1__SequenceDraft *a,
                                   const struct drafts_request *request, struct draft *ret)
{
    if (a->n_tokens && a->q_mode == TANDEM__V1__QMODE__Q_MODE_SPARSE)
        return check_sparse(a, request, ret);
    if (a->n_tokens && a->q_mode == TANDEM__V1__QMODE__Q_MODE_DENSE)
        return check_dense(a, request, ret);
    return DRAFTS_GOOD;
}

static enum drafts_verdict check_draft(const Tandem__V1__SequenceDraft *a,
                                       const struct drafts_request *request, struct draft *ret)
{
    enum drafts_verdict v = check_shape(a, request);
    for (uint32_t i = 0; i < a->n_tokens && v == DRAFTS_GOOD; i++)
        v = check_token(a, i, request, ret);
    if (v == DRAFTS_GOOD)
        v = check_depth(ret, (uint32_t)a->n_tokens, request->max_depth);
    if (v != DRAFTS_GOOD)
        return v;
    ret->n = (uint32_t)a->n_tokens;
    ret->q_mode = (enum draft_q_mode)a->q_mode;
    return check_q(a, request, ret);
}

enum drafts_verdict drafts_check(const Tandem__V1__SequenceDraft *answer,
                                 const struct drafts_request *request, struct draft_answer *ret)
{
    *ret = (struct draft_answer){
        .seq = answer->seq, .base_len = answer->base_len, .ahead = request->ahead};
    if (answer->base_len != request->base_len || answer->digest != request->digest) {
        fail(-ESTALE, "it continues %u tokens, requested were %u", answer->base_len,
             request->base_len);
        return DRAFTS_STALE;
    }
    ret->unread = answer->n_tokens ? 0 : answer->unread;
    if (ret->unread > answer->base_len)
        ret->unread = answer->base_len;
    AUTO(draft_free) struct draft *draft = draft_new();
    if (!draft)
        return malformed("no memory for it");
    enum drafts_verdict v = check_draft(answer, request, draft);
    if (v == DRAFTS_GOOD)
        ret->draft = TAKE(draft);
    return v;
}

static bool offers(const Tandem__V1__DescribeReply *reply, Tandem__V1__QMode mode)
{
    for (size_t i = 0; i < reply->n_q_modes; i++)
        if (reply->q_modes[i] == mode)
            return true;
    return reply->n_q_modes == 0 && mode == TANDEM__V1__QMODE__Q_MODE_POINT; // the default
}

/* A name goes into requests, logs and metrics: letters, digits, '-', '_', '.'. */
static bool is_name(const ProtobufCBinaryData *name)
{
    if (name->len == 0 || name->len >= DRAFTS_NAME_MAX)
        return false;
    for (size_t i = 0; i < name->len; i++) {
        uint8_t c = name->data[i];
        if (!(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') && !(c >= '0' && c <= '9') &&
            c != '-' && c != '_' && c != '.')
            return false;
    }
    return true;
}

int drafts_check_described(const Tandem__V1__DescribeReply *reply, uint64_t vocab_digest,
                           struct drafts_described *ret)
{
    if (reply->protocol != TANDEM__V1__PROTOCOL__PROTOCOL_UNKNOWN && // older than the field
        reply->protocol != TANDEM__V1__PROTOCOL__PROTOCOL_VERSION)
        return fail(-EPROTO, "it speaks protocol version %u, this verifier version %d",
                    reply->protocol, TANDEM__V1__PROTOCOL__PROTOCOL_VERSION);
    if (reply->vocab_digest && vocab_digest && reply->vocab_digest != vocab_digest)
        return fail(-EPROTO, "its vocabulary has the digest %016llx, the target's has %016llx",
                    (unsigned long long)reply->vocab_digest, (unsigned long long)vocab_digest);
    if (reply->needs_hidden)
        return fail(-EPROTO, "it requires hidden rows, which this verifier does not send");
    for (int i = 0; i < DRAFT_N_Q_MODES; i++)
        ret->offers[i] = offers(reply, (Tandem__V1__QMode)i);
    if (!ret->offers[DRAFT_COUPLED] && !ret->offers[DRAFT_POINT])
        return fail(-EPROTO, "it offers neither point nor coupled drafts");
    if (!is_name(&reply->kind))
        return fail(-EPROTO, "its name is not 1 to %d letters, digits or '-', '_', '.'",
                    DRAFTS_NAME_MAX - 1);
    if (reply->k_max == 0)
        return fail(-EPROTO, "its k_max is 0");
    memcpy(ret->name, reply->kind.data, reply->kind.len);
    ret->name[reply->kind.len] = 0;
    ret->k_max = min_u32(reply->k_max, DRAFT_MAX_NODES);
    ret->max_context = reply->max_context;
    return 0;
}

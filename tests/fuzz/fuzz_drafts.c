/* fuzz_drafts.c - answers of a hostile proposer. The input is a list of messages, each after its
 * length (2 bytes, little-endian; the top bit closes a sequence). Before each message two sequences
 * request drafts. */
#include <stdlib.h>
#include <string.h>
#include "rpc/rpc.h"
#include "verifier-svc/drafts/drafts_book.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define N_VOCAB 40 // keeps a dense q short
#define K 5
#define DEPTH 3

/* q is a distribution from which the token can come. */
static void check_q(const struct draft *d, uint32_t i)
{
    const struct draft_q *q = d->q;
    double sum = 0;
    bool has_token = !q;
    for (uint32_t k = 0; q && k < q->width; k++) {
        size_t at = (size_t)i * q->width + k;
        uint32_t id = q->ids ? q->ids[at] : k;
        if (id >= N_VOCAB || !(q->weights[at] >= 0))
            abort();
        has_token = has_token || (id == d->tokens[i] && q->weights[at] > 0);
        sum += (double)q->weights[at];
    }
    if (!has_token || (q && (q->width == 0 || q->row[i] != i || sum != q->sums[i] || !(sum > 0))))
        abort();
}

static void check(const struct draft_answer *a)
{
    const struct draft *d = a->draft;
    if (d->n > K || a->seq < 1 || a->seq > 2 || !draft_valid(d, N_VOCAB))
        abort();
    uint32_t depth[K];
    for (uint32_t i = 0; i < d->n; i++) {
        int32_t parent = d->parents[i];
        float above = parent < 0 ? 1 : d->survival[parent];
        depth[i] = parent < 0 ? 1 : depth[parent] + 1;
        if (depth[i] > DEPTH || !(d->survival[i] >= 0 && d->survival[i] <= above))
            abort();
        check_q(d, i);
    }
}

static void take(struct drafts_book *b, const uint8_t *data, size_t n, int64_t now_us)
{
    struct rpc_msg *msg = rpc_msg_of(data, n);
    Tandem__V1__Drafts *drafts =
        (Tandem__V1__Drafts *)rpc_unpack(&tandem__v1__drafts__descriptor, msg);
    rpc_msg_free(msg);
    if (!drafts)
        return;
    for (size_t i = 0; i < drafts->n_drafts; i++) {
        const Tandem__V1__SequenceDraft *answer = drafts->drafts[i];
        struct drafts_request request;
        struct draft_answer a = {0};
        bool was_requested = drafts_book_request(b, answer, &request);
        enum drafts_verdict v = was_requested ? drafts_check(answer, &request, &a) : DRAFTS_STALE;
        if (drafts_book_answer(b, answer, v, now_us, &a))
            check(&a);
        draft_free(a.draft);
    }
    tandem__v1__drafts__free_unpacked(drafts, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct drafts_book *b;
    static const uint32_t context[200] = {1, 2, 3};
    static const struct drafts_described about = {
        .name = "fuzz", .k_max = K, .offers = {true, true, true, true}};
    if (!b && drafts_book_new(4, N_VOCAB, &b) < 0)
        abort();
    drafts_book_reset(b, &about);
    for (uint32_t i = 0; n >= 2; i++) {
        struct drafts_wish wishes[2];
        for (uint32_t s = 0; s < 2; s++)
            wishes[s] = (struct drafts_wish){.seq = 1 + s,
                                             .context = context,
                                             .base_len = 3 + i % 190,
                                             .max_nodes = K,
                                             .max_depth = DEPTH,
                                             .q_mode = (enum draft_q_mode)(DRAFT_DENSE - i % 4)};
        drafts_book_ask(b, wishes, 2, 1000, i * 100);
        drafts_book_take(b);
        size_t len = data[0] | (size_t)(data[1] & 0x7f) << 8;
        len = len < n - 2 ? len : n - 2;
        if (data[1] & 0x80)
            drafts_book_close(b, 1 + i % 2, true); // while its answer is outstanding
        take(b, data + 2, len, i * 100);
        data += 2 + len;
        n -= 2 + len;
    }
    return 0;
}

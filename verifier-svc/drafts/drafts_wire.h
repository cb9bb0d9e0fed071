/* drafts_wire.h - packs Rounds and checks answers: between plain structs and the messages
 * of proposer.proto.
 *
 * A proposer is not trusted: an answer passes only if it fits the request.
 *
 * Threads: any; a drafts_packer is used by one at a time. */
#pragma once
#include <tandem/v1/proposer.pb-c.h>
#include "base/trace.h"
#include "verifier-svc/drafts/drafts.h"

/* One sequence in a Round. */
struct drafts_entry {
    uint64_t seq, digest; // digest: of [0, base_len)
    uint32_t keep, base_len, prompt_len;
    uint32_t max_nodes, max_depth; // as in struct drafts_wish; 0: no draft is requested
    uint32_t token_at;    // index of its tokens [keep, base_len) in the tokens of the Round
    uint32_t n_hint;      // hint tokens, after them
    uint32_t n_verifying; // draft tokens being verified, after the hint
    bool more;            // another piece follows
    bool introduced;      // false: hint, tenant, model, ids and sampling are sent
    enum draft_q_mode q_mode;
    uint64_t draw_key;
    float p_min;
    struct dist_params sampling; // its n_bias biases follow the banned ids
    struct constraint_ban ban;   // its n ids follow all these tokens
    bool ignore_eos;
    uint32_t tenant_len;
    uint8_t tenant[DRAFTS_TENANT_MAX];
    char id[TRACE_REQUEST_MAX + 1], trace[TRACE_ID_LEN + 1];
};

struct drafts_closed {
    uint64_t seq;
    bool ended;
};

struct drafts_packer;

/* For Rounds of at most max_entries sequences. model: the target's fingerprint. -ENOMEM. */
int drafts_packer_new(uint32_t max_entries, const char *model, struct drafts_packer **ret);
void drafts_packer_free(struct drafts_packer *p);
DEFINE_AUTO(struct drafts_packer, drafts_packer_free)
/* A Round of the entries, or of closed sequences. It points into all arguments and belongs to the
 * packer. */
const Tandem__V1__Round *drafts_pack(struct drafts_packer *p, const struct drafts_entry *entries,
                                     uint32_t n_entries, const uint32_t *tokens,
                                     uint32_t budget_us);
const Tandem__V1__Round *drafts_pack_closes(struct drafts_packer *p,
                                            const struct drafts_closed *closes, uint32_t n_closes);

/* The request that an answer is checked against. Both limits include the tokens that a draft ahead
 * begins with. */
struct drafts_request {
    uint32_t base_len, n_vocab;
    uint32_t max_nodes, max_depth;
    bool ahead; // a draft ahead
    uint64_t digest;
    enum draft_q_mode q_mode;
};

enum drafts_verdict { DRAFTS_GOOD, DRAFTS_STALE, DRAFTS_MALFORMED };

/* Fills *ret except rtt_us and proposer. Its draft is allocated here and is the caller's. If the
 * answer is not good, fail_text() has the reason and the draft is NULL. */
enum drafts_verdict drafts_check(const Tandem__V1__SequenceDraft *answer,
                                 const struct drafts_request *request, struct draft_answer *ret);

/* What a proposer reported about itself (Describe). */
struct drafts_described {
    char name[DRAFTS_NAME_MAX];
    uint32_t k_max, max_context; // max_context 0: no limit
    bool offers[DRAFT_N_Q_MODES];
};
/* -EPROTO: the proposer cannot draft for this target. */
int drafts_check_described(const Tandem__V1__DescribeReply *reply, uint64_t vocab_digest,
                           struct drafts_described *ret);

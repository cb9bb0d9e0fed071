/* drafts_wire.h - between drafts.c and proposer.proto: Rounds out, checked drafts in.
 *
 * What a proposer sends is advice from a stranger; nothing of it passes but what was asked for.
 *
 * Threads: any; a drafts_packer is used by one at a time. */
#pragma once
#include <tandem/v1/proposer.pb-c.h>
#include "verifier-svc/drafts/drafts.h"

/* One sequence's share of a Round. */
struct drafts_entry {
    uint64_t seq, digest; // digest: of [0, base_len)
    uint32_t keep, base_len, prompt_len, k;
    uint32_t token_at;    // its tokens [keep, base_len) start here in the tokens of the Round
    uint32_t n_hint;      // behind them
    uint32_t n_verifying; // and behind those: draft tokens that are being verified
    bool more;            // another piece follows
    bool introduced;      // false: hint, tenant and sampling are sent
    enum draft_q_mode q_mode;
    uint64_t draw_key;
    float p_min;
    struct dist_params sampling; // its n_bias biases follow the banned ids
    struct constraint_ban ban;   // its n ids follow all these tokens
    bool ignore_eos;
    uint32_t tenant_len;
    uint8_t tenant[DRAFTS_TENANT_MAX];
};

struct drafts_closed {
    uint64_t seq;
    bool ended;
};

struct drafts_packer;

/* For Rounds of at most so many sequences. -ENOMEM. */
int drafts_packer_new(uint32_t max_entries, struct drafts_packer **ret);
void drafts_packer_free(struct drafts_packer *p);
DEFINE_AUTO(struct drafts_packer, drafts_packer_free)
/* A Round of the entries, or with n_entries 0 of the sequences that were closed. It points into all
 * of its arguments and is the packer's. */
const Tandem__V1__Round *drafts_pack(struct drafts_packer *p, const struct drafts_entry *entries,
                                     uint32_t n_entries, const uint32_t *tokens,
                                     uint32_t budget_us);
const Tandem__V1__Round *drafts_pack_closes(struct drafts_packer *p,
                                            const struct drafts_closed *closes, uint32_t n_closes);

/* What was asked, to judge an answer by. */
struct drafts_asked {
    uint32_t base_len, k, n_vocab;
    bool ahead; // behind tokens that were being verified
    uint64_t digest;
    enum draft_q_mode q_mode;
};

enum drafts_verdict { DRAFTS_GOOD, DRAFTS_STALE, DRAFTS_MALFORMED };

/* Fills seq, base_len, the tree and q of *ret if it is good; else fail_text() says why not, and q
 * is NULL. */
enum drafts_verdict drafts_check(const Tandem__V1__SequenceDraft *answer,
                                 const struct drafts_asked *asked, struct draft_answer *ret);

/* What Describe must say for this proposer to be used. */
struct drafts_described {
    char name[DRAFTS_NAME_MAX];
    uint32_t k_max, max_context; // max_context 0: no limit
    bool offers[DRAFT_N_Q_MODES];
};
/* -EPROTO with a sentence: it cannot serve this target. */
int drafts_check_described(const Tandem__V1__DescribeReply *reply, uint64_t vocab_digest,
                           struct drafts_described *ret);

/* control.h - how many draft tokens a sequence asks for, and how many of them are verified.
 *
 * Policies:
 *   goodput  as many as make the most committed tokens per second: what each draft token is likely
 *            to bring, against what its row adds to the time of the pass (cost.h) and, when asking,
 *            what waiting for the draft adds. Tokens of all sequences are taken in the order of
 *            their chance to be kept, as long as that pays. None is an answer too. Drafts whose
 *            tokens are tested against q end at the first that does not pay (DSpark, Algorithm 1),
 *            so that no choice depends on a drawn token itself; else, as times have bends, the
 *            best number is taken.
 *   fixed    k, always.
 *   ema      by the moving average of the sequence's acceptance (weight 0.1, from 0.7), drafts
 *            that come too late to be verified included: above 0.8 k, above 0.5 k - 2 and at
 *            least 1, above 0.3 one token, else none.
 * A request may be fixed by itself, under every policy.
 * A sequence without drafts tries again now and then: with ema one token every 32 rounds, with
 * goodput as policy_goodput.h says.
 *
 * The chance of a draft token is learnt per proposer (chance.h), corrected by how the sequence
 * fared of late; so is the time that answers take (answer_time.h), and how many of them have
 * tokens: a new sequence hopes for four times the share of the others, as it may fare better.
 *
 * Threads: the engine's; plain data. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "verifier-svc/accept/accept.h"
#include "verifier-svc/control/draft_latency.h"
#include "verifier-svc/control/accept_rate.h"
#include "verifier-svc/control/pass_time.h"
#include "verifier-svc/drafts/drafts.h"
#include "verifier-svc/control/prefill_price.h"

#define CONTROL_K_MAX 20
#define CONTROL_EMA_PROBE_ROUNDS 32

enum control_policy { CONTROL_GOODPUT, CONTROL_FIXED, CONTROL_EMA };

struct control_options {
    enum control_policy policy;
    uint32_t k;                  // draft tokens per round; goodput: at most
    uint32_t disable_batch_size; // running sequences from which on nothing is drafted; 0: never
};

struct control_proposer {
    struct accept_rate chance;
    struct draft_latency answer; // with tokens
    double empty_us;       // that one without takes; a sooner one with some lowers it; 0: unknown
    float wished, granted; // drafts of late, of all sequences; both fade
    struct prefill_price_quote reading;
    struct {
        uint32_t k, n; // the longest wish, for n sequences
        double us;     // of the last answer; 0: none has come
    } answered;        // those to one round of wishes
    uint32_t n_tries;  // goodput
};

/* A sequence's own part. Starts as control_seq_init() says. */
struct control_seq {
    float kept, expected; // of the tokens tried lately, and what the proposer's rates said
    float ema;
    float given; // share of recent wishes that were granted, be it in part; below 0: it had none
    unsigned given_by; // the proposer that they went to
    uint32_t n_asked;  // sequences that its proposer was asked for together with it, and it
    struct prefill_price reading;
    uint32_t off_rounds; // ema: without a draft since the last one
    uint32_t since_try;  // goodput: rounds
    bool trying;         // the draft that it waits for, or has, is a try
};

struct control {
    struct control_options options;
    struct pass_time cost;
    struct control_proposer proposers[DRAFTS_MAX];
    uint32_t since_try;    // goodput: rounds, since any sequence tried by itself
    uint32_t since_all;    // since all did
    uint32_t since_less;   // rounds with drafts, since one had less than seemed best, or was to
    uint32_t n_less;       // such
    double beside_us;      // what the drafts that were asked for last take beside the pass
    double acceptance_ema; // of all drafted rounds, for people; weight 0.1, starts at 0.7
};

/* cost: as calibrate() found it; counts for goodput only. */
void control_init(struct control *c, const struct control_options *options,
                  const struct pass_time *cost);
void control_seq_init(struct control_seq *s);

/* Another proposer has this place now: nothing is known of it, nor what it grants a sequence. */
void control_forget(struct control *c, unsigned proposer);
void control_seq_forget(struct control_seq *s, unsigned proposer);

/* A decoding sequence that may have a draft. */
struct control_item {
    struct control_seq *s;
    unsigned proposer;
    uint32_t context;       // its length
    uint32_t unread;        // of that, what a proposer would have to read that has not
    uint32_t left;          // tokens that it may generate yet
    uint32_t n;             // draft tokens: that may be asked for, or of the draft that is here
    const int32_t *parents; // (n) of the draft
    const float *said;      // (n) of the draft: the proposer's survival estimates
    bool fixed;             // as many as it may have, like the policy fixed
    bool drawn;             // the draft is tested against the law it was drawn from
    uint32_t most;          // found: of the n, that are worth thinking of
    uint32_t k;             // found: tokens to ask for, or to verify of the draft
    /* While rows are shared out (share.c): */
    uint32_t in_heap; // an item
    uint32_t best_k;  // what it has in the best share so far
    bool out;         // nobody waits for its proposer
    bool no_row;      // nor for its draft: beside those that are waited for it has no row
    float chance[ACCEPT_MAX];
};

/* What runs whatever is decided: pass has a row for each of the n_decoding sequences, among them
 * the items and n_fixed that are fixed, and n_running sequences run in all. It has draft_rows for
 * drafts at most. */
struct control_round {
    struct pass_time_work pass;
    uint32_t n_decoding, n_fixed, n_running, draft_rows;
};

/* How many tokens to ask for. Returns for how long waiting for the drafts pays, in us: until then
 * they bring more than the wait costs all that run, a draft that is fixed no more than another.
 * INFINITY: nobody reckons, by the policy or because all that decode are fixed. Once per round:
 * counts rounds without. */
double control_ask(struct control *c, const struct control_round *r, struct control_item *v,
                   uint32_t n);
/* How many tokens to verify of drafts that are here: the first k of each, so that a round brings
 * most tokens per second, its wait for them included. */
void control_cut(const struct control *c, const struct control_round *r, struct control_item *v,
                 uint32_t n);

/* A wish for a draft goes to the proposer, one of n that go together, or the context ahead of it.
 * to_read: positions that it has to read first; 0: it has read them. */
void control_asked(struct control_seq *s, unsigned proposer, uint32_t to_read, uint32_t n);
/* The context has to be read again: the proposer was told to forget it. */
void control_unread(struct control_seq *s);
/* A proposer answered a wish for k tokens after us, with tokens or (given: false) without, but not
 * that it still reads. The time does not count the first time: the proposer had the context to
 * read. */
void control_answered(struct control *c, struct control_seq *s, unsigned proposer, uint32_t k,
                      double us, bool given);
/* The share of the sequence's wishes that proposer p is likely to grant: as it did of late; if the
 * sequence has not asked it, or another since, by what it grants to all. */
double control_given(const struct control *c, unsigned p, const struct control_seq *s);
/* What it takes until proposer p has answered n wishes for k tokens; 0: it never has. */
double control_answer_us(const struct control *c, unsigned p, uint32_t k, uint32_t n);
/* A proposer answered that so many positions are still to be read, at least one, which speaks
 * against it when that goes on for too long. */
void control_put_off(struct control_seq *s, unsigned proposer, uint32_t unread);
/* These tokens were committed where the draft began; it may have been verified, or not, or have
 * come too late. Only draft.proposer, n, parents and said count. */
void control_seen(struct control *c, struct control_seq *s, const struct control_item *draft,
                  const uint32_t *draft_tokens, const uint32_t *committed, uint32_t n_committed);
/* A pass was run and took us, with all else that a round does but for waiting for drafts. beside: a
 * sequence that a proposer read as it began; NULL: none. What machines share slows such a pass, so
 * that it says nothing of others, unless it was faster. */
void control_passed(struct control *c, const struct pass_time_work *pass, double us,
                    struct control_seq *beside);
/* A round verified n_drafted tokens and kept n_accepted of them. */
void control_verified(struct control *c, uint32_t n_drafted, uint32_t n_accepted);

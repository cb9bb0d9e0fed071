/* token_dist.h - tests whether the tokens that a verifier commits follow the distribution of the
 * target. Ends the test on errors.
 *
 * Each position has three possible tokens. A request generates four tokens after one prompt: the
 * first without a draft, the others with drafts. For each of the 40 prefixes, one request gets
 * the target's probabilities, so the joint distribution of the four tokens is known. Requests with
 * several rules run in the same batch.
 *
 * Threads: the thread of the test. */
#pragma once
#include "lib/clients/generate.h"
#include "lib/clients/proposers.h"

#define TOKEN_DIST_LEN 4
#define TOKEN_DIST_N 81       // 3^TOKEN_DIST_LEN
#define TOKEN_DIST_N_NODES 40 // prefixes of up to three tokens
#define TOKEN_DIST_BATCH_MAX 64
#define SURELY_WRONG 1e-6

struct token_dist {
    struct rpc_client *client;
    bool biased;       // a bias allows only the liar's three tokens; else the target's three best
    float temperature; // so high that all three tokens occur
    /* Node 0: the empty prefix; 3 i + 1 + k: node i extended by its token k. */
    struct {
        uint32_t ids[LIAR_TOKENS];
        double p[LIAR_TOKENS];
    } nodes[TOKEN_DIST_N_NODES];
};

/* Gets the probabilities from the verifier. biased: the requests have penalties, which count the
 * generated tokens, including those of a draft. */
void token_dist_learn(struct token_dist *l, struct rpc_client *client, bool biased,
                      float temperature);

/* The results of one rule. */
struct asked {
    const char *rule;
    bool dense;
    float parameter; // 0: the default of the rule
    uint32_t count[TOKEN_DIST_N];
    uint32_t n, n_drafted, n_accepted;
};

/* Requests of one batch. Request i has rule i % n_rules. */
struct token_dist_batch {
    const struct token_dist *dist;
    struct asked *asked;
    unsigned n_rules;
    uint32_t n;
    struct generation g[TOKEN_DIST_BATCH_MAX];
    struct answer *answers; // (n)
};

void token_dist_start(const struct token_dist *l, struct asked *v, unsigned n_rules, uint32_t n,
                      struct token_dist_batch *b);
/* Waits for the answers and counts them. */
void token_dist_end(struct token_dist_batch *b);

/* p-value of a chi-square test of the results against the distribution. Prints the figures. */
double token_dist_tail(const struct token_dist *l, const struct asked *q);

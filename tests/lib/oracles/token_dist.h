/* token_dist.h - whether the tokens that a verifier commits follow the target's own law. Ends the test on
 * errors.
 *
 * Three tokens can come at each place. Four are generated behind one prompt, over and over: the
 * first without a draft, the others with drafts. What the target says behind each of the 40
 * beginnings is asked for one by one, so the joint law of the four is known; requests of several
 * rules run side by side.
 *
 * Threads: the test's own. */
#pragma once
#include "lib/clients/generate.h"
#include "lib/clients/proposers.h"

#define TOKEN_DIST_LEN 4
#define TOKEN_DIST_N 81       // 3^TOKEN_DIST_LEN
#define TOKEN_DIST_N_NODES 40 // beginnings of up to three tokens
#define TOKEN_DIST_BATCH_MAX 64
#define SURELY_WRONG 1e-6

struct token_dist {
    struct rpc_client *client;
    bool biased;       // a bias leaves the liar's three tokens; else the target's three best
    float temperature; // so high that all three come
    /* Node 0: nothing yet; 3 i + 1 + k: behind token k of node i. */
    struct {
        uint32_t ids[LIAR_TOKENS];
        double p[LIAR_TOKENS];
    } nodes[TOKEN_DIST_N_NODES];
};

/* Asks the verifier. Under a bias, penalties count what has been generated, a draft's own tokens
 * included. */
void token_dist_learn(struct token_dist *l, struct rpc_client *client, bool biased,
                      float temperature);

/* What came of one rule. */
struct asked {
    const char *rule;
    bool dense;
    float parameter; // 0: the rule's own
    uint32_t count[TOKEN_DIST_N];
    uint32_t n, n_drafted, n_accepted;
};

/* Requests that run at once, of all rules in turns. */
struct token_dist_batch {
    const struct token_dist *law;
    struct asked *asked;
    unsigned n_rules;
    uint32_t n;
    struct generation g[TOKEN_DIST_BATCH_MAX];
    struct answer *answers; // (n)
};

void token_dist_start(const struct token_dist *l, struct asked *v, unsigned n_rules, uint32_t n,
                      struct token_dist_batch *b);
/* Counts what came. */
void token_dist_end(struct token_dist_batch *b);

/* The chance that what came is as far from the law as it is, which is printed. */
double token_dist_tail(const struct token_dist *l, const struct asked *q);

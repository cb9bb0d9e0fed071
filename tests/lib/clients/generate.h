/* generate.h - Generate calls from a test: start several, then collect their answers. */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include "rpc/rpc.h"
#include "tandem/v1/verifier.pb-c.h"

#define ANSWER_MAX_TOKENS 4096
#define ANSWER_MAX_TOP 5

#define ANSWER_MAX_CHOICES 64

/* The first choice of one request, as it arrived. */
struct answer {
    uint64_t hashes[ANSWER_MAX_CHOICES]; // of the tokens of each choice
    unsigned n;
    uint32_t ids[ANSWER_MAX_TOKENS];
    float logprobs[ANSWER_MAX_TOKENS];
    size_t offsets[ANSWER_MAX_TOKENS]; // characters of the text before each token
    uint32_t top[ANSWER_MAX_TOKENS][ANSWER_MAX_TOP];
    char text[ANSWER_MAX_TOKENS * 16];
    size_t text_len;
    int64_t seed;
    Tandem__V1__FinishReason reason;
    unsigned prompt_tokens, max_tokens, cached_tokens, drafted, accepted, rounds, bonus;
    char rule[16];
    struct {
        unsigned rounds, drafted, accepted, bonus; // sums over its runs of tokens
        unsigned most_drafted;                     // in one round
        char proposer[16];                         // of the last draft
    } runs;
};

struct generation {
    struct rpc_stream *stream;
    struct answer *answer;    // of choice 0; of others only their hash
    struct rpc_status status; // once ended
    bool ended;
    unsigned n_events;
    pthread_mutex_t mu;
    pthread_cond_t changed;
};

/* Starts the call; the request may be freed immediately. */
void generation_start(struct generation *g, struct rpc_client *c,
                      const Tandem__V1__GenerateRequest *req, struct answer *answer);
/* Waits until n tokens have arrived, or the call has ended. */
void generation_wait_tokens(struct generation *g, unsigned n);
/* Waits at most 120 s for the end and frees the members of g; g->status stays valid. */
void generation_end(struct generation *g);
/* Starts the call and waits for its end; the status must be OK. */
void generation_run(struct rpc_client *c, const Tandem__V1__GenerateRequest *req,
                    struct answer *answer);

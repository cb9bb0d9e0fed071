/* topic.h - requests to a verifier that tests compare bit by bit: sampled, with logprobs.
 *
 * Threads: the test's own. */
#pragma once
#include "lib/clients/generate.h"
#include "verifier-svc/engine/request.h"

#define TOPIC_ANSWER 40
#define TOPIC_MAX_PROMPT 1024

struct topic {
    Tandem__V1__GenerateRequest msg;
    Tandem__V1__Sampling sampling;
    Tandem__V1__TokenIds prompt;
    uint32_t tokens[TOPIC_MAX_PROMPT];
};

/* The n tokens of prompt number `topic`: two topics differ from the first token on. */
void topic_init(struct topic *w, unsigned topic, uint32_t n);
/* As a verifier reads it; one holder. */
struct request *topic_request(const struct topic *w, const struct tok *tok, uint32_t context);
/* The same tokens, text, logprobs and alternatives; else the test ends. */
void topic_same(const struct answer *a, const struct answer *b);

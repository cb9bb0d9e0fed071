/* topic.h - sampled requests with logprobs to a verifier, whose answers tests compare bit by bit.
 *
 * Threads: the test's only. */
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

/* A request with the first n tokens of prompt `topic`. Two topics differ from the first token. */
void topic_init(struct topic *w, unsigned topic, uint32_t n);
/* The request as a verifier reads it, with one reference. */
struct request *topic_request(const struct topic *w, const struct tok *tok, uint32_t context);
/* Asserts that tokens, text, logprobs and alternatives are the same. */
void topic_same(const struct answer *a, const struct answer *b);

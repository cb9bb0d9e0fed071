/* service_impl.h - what the edge's files share: service.c (requests in), service_out.c (answers
 * out), service_info.c (model, tokenizer, figures). Not for other files. */
#pragma once
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include "tandem/v1/verifier.pb-c.h"
#include "verifier-svc/service.h"

/* A Generate call that waits for the model. */
struct parked {
    struct parked *next;
    size_t bytes;          // of the message as it came
    struct rpc_call *call; // with a reference
    Tandem__V1__GenerateRequest *msg;
};

struct service {
    const struct options *options;
    struct engine *engine;
    struct stats *stats;
    pthread_t thread; // service_out.c's
    bool started;

    pthread_mutex_t mu;    // for the list, and for a call's user while it may still change
    struct parked *parked; // oldest first
    uint32_t n_parked;
    size_t parked_bytes;

    /* service_out.c: room for one message. */
    Tandem__V1__Token tokens[ACCEPT_MAX + 1];
    Tandem__V1__Token *token_list[ACCEPT_MAX + 1];
    Tandem__V1__TopLogprob tops[(ACCEPT_MAX + 1) * DIST_MAX_TOP];
    Tandem__V1__TopLogprob *top_list[(ACCEPT_MAX + 1) * DIST_MAX_TOP];
    char proposer[DRAFTS_NAME_MAX];
    struct request *slow; // whose answers are not read

    /* service_info.c: what the last reply points to. */
    Tandem__V1__SpeculationStats speculation;
    Tandem__V1__CacheStats cache;
    Tandem__V1__ProposerStats proposers[DRAFTS_MAX];
    Tandem__V1__ProposerStats *proposer_list[DRAFTS_MAX];
    char proposer_names[DRAFTS_MAX][DRAFTS_NAME_MAX];
    char mode[256];
};

static inline ProtobufCBinaryData bytes_of(const void *data, size_t len)
{
    return (ProtobufCBinaryData){len, (uint8_t *)data};
}

static inline ProtobufCBinaryData bytes_of_text(const char *text)
{
    return bytes_of(text, strlen(text));
}

/* ---- service.c ---- */

/* The model is ready (or will never be): starts the calls that waited for it. */
void service_unpark(struct service *s);
/* -EPIPE and why nothing can be served now: "the model is being loaded (42 %)" and the like. */
int service_not_ready(struct service *s);

/* ---- service_out.c ---- */

void *service_out_main(void *service);

/* ---- service_info.c ---- */

extern const struct rpc_method service_get_model, service_tokenize, service_detokenize;

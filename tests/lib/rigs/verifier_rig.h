/* verifier_rig.h - a verifier service that runs for all tests of a program, requests to it, and
 * Verify streams. */
#pragma once
#include "lib/clients/generate.h"
#include "lib/rigs/services.h"
#include "verifier-svc/accept/accept.h"

#define MODEL SOURCE_DIR "/models/tales-1m-q8_0.gguf"
#define STORY "<|begin|><|user|>Tell me a story about a dog named Max.<|end|><|assistant|>"

typedef Tandem__V1__GenerateRequest request;

extern struct service verifier; // used by most tests
extern struct rpc_client *client;
extern const char *const plain_args[];

int start_verifier(void **state);
int stop_verifier(void **state);

/* Writes a model file, for a test that starts its own verifier; returns its path. */
void write_model(const char *name, const char *file, size_t len, char path[200]);

/* ---- requests ---- */

/* A request and its sampling parameters. */
struct wish {
    request msg;
    Tandem__V1__Sampling sampling;
};

ProtobufCBinaryData text_of(const char *s);
/* A greedy request for max_tokens tokens. */
void wish_init(struct wish *w, const char *text, uint32_t max_tokens);
/* Asserts that the request ends with this status, and that its text contains the sentence. */
void must_refuse(struct rpc_client *c, const request *msg, enum rpc_code code,
                 const char *sentence);
void same_answer(const struct answer *a, const struct answer *b);
struct answer *answers_new(unsigned n);
/* The target's greedy answer to STORY, up to its end-of-sequence token. */
const struct answer *story(void);

/* ---- answers that another verifier has begun ---- */

/* The model's description; the caller frees it. */
Tandem__V1__ModelInfo *must_get_model(struct rpc_client *c);
/* A continuation with everything that it points to. */
#define REST_MAX_CHOICES 3
struct rest {
    Tandem__V1__Continuation msg;
    Tandem__V1__ChoiceSoFar choices[REST_MAX_CHOICES], *list[REST_MAX_CHOICES];
};
/* The first n tokens of choice 0 are committed; the other choices have finished. */
void rest_init(struct rest *c, request *msg, const Tandem__V1__ModelInfo *info,
               const struct answer *a, unsigned n);

/* ---- Verify ---- */

struct verify {
    struct rpc_stream *stream;
    pthread_mutex_t mu;
    pthread_cond_t changed;
    bool started, ended;
    struct rpc_status status;
    uint32_t prompt_len;
    unsigned n_commits;
    uint32_t base_len, accepted; // of the last commit
    uint32_t round, drafted;     // of the last commit
    unsigned n_run;
    uint32_t run[DRAFT_MAX_NODES + 1];
    Tandem__V1__TokenOrigin origins[DRAFT_MAX_NODES + 1];
    float logprobs[DRAFT_MAX_NODES + 1];
    Tandem__V1__FinishReason reason;
};

/* Opens a stream of any method. */
void verify_start(struct verify *v, struct rpc_client *c, const char *path,
                  const struct rpc_options *opt);
/* Opens a Verify stream, sends `open` and waits for the start. open NULL: sends nothing. */
void verify_open_at(struct rpc_client *c, struct verify *v, const request *open);
void verify_open(struct verify *v, const request *open);
void verify_send(struct verify *v, const request *open, const Tandem__V1__VerifyDraft *draft);
/* Waits until the stream has started and has n_commits commits, or has ended. end: waits for its
 * end. */
void verify_wait(struct verify *v, unsigned n_commits, bool end);
/* Sends a draft that continues the committed tokens; waits for the commit, or the end. */
void verify_draft(struct verify *v, const uint32_t *tokens, const int32_t *parents, uint32_t n);
struct rpc_status verify_close(struct verify *v);
/* Waits for the end, asserts its status and a part of its text, and closes the stream. */
void verify_must_end(struct verify *v, enum rpc_code code, const char *sentence);

/* verifier_rig.h - what the tests of the verifier's service share: one that runs for all tests of a
 * program, requests to it, and Verify streams. */
#pragma once
#include "lib/clients/generate.h"
#include "lib/rigs/services.h"
#include "verifier-svc/accept/accept.h"

#define MODEL SOURCE_DIR "/models/tales-1m-q8_0.gguf"
#define STORY "<|begin|><|user|>Tell me a story about a dog named Max.<|end|><|assistant|>"

typedef Tandem__V1__GenerateRequest request;

extern struct service verifier; // of most tests
extern struct rpc_client *client;
extern const char *const plain_args[];

int start_verifier(void **state);
int stop_verifier(void **state);

/* Writes a model's file for a verifier of its own. */
void write_model(const char *name, const char *file, size_t len, char path[200]);

/* ---- requests ---- */

struct wish {
    request msg;
    Tandem__V1__Sampling sampling;
};

ProtobufCBinaryData text_of(const char *s);
/* Greedy, so many tokens. */
void wish_init(struct wish *w, const char *text, uint32_t max_tokens);
void must_refuse(struct rpc_client *c, const request *msg, enum rpc_code code,
                 const char *sentence);
void same_answer(const struct answer *a, const struct answer *b);
struct answer *answers_new(unsigned n);
/* What the target says to STORY, greedily, up to its own end. */
const struct answer *story(void);

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
    uint32_t round, drafted;     // likewise
    unsigned n_run;
    uint32_t run[DRAFT_MAX_NODES + 1];
    Tandem__V1__TokenOrigin origins[DRAFT_MAX_NODES + 1];
    float logprobs[DRAFT_MAX_NODES + 1];
    Tandem__V1__FinishReason reason;
};

/* A stream of any method. */
void verify_start(struct verify *v, struct rpc_client *c, const char *path,
                  const struct rpc_options *opt);
/* open NULL: nothing is sent yet. */
void verify_open_at(struct rpc_client *c, struct verify *v, const request *open);
void verify_open(struct verify *v, const request *open);
void verify_send(struct verify *v, const request *open, const Tandem__V1__VerifyDraft *draft);
/* Until the stream has started and has so many commits, or has ended. */
void verify_wait(struct verify *v, unsigned n_commits, bool end);
/* Sends a draft that continues what is committed and waits for the commit, or the end. */
void verify_draft(struct verify *v, const uint32_t *tokens, const int32_t *parents, uint32_t n);
struct rpc_status verify_close(struct verify *v);
/* Waits for the end, which is this one, and closes. */
void verify_must_end(struct verify *v, enum rpc_code code, const char *sentence);

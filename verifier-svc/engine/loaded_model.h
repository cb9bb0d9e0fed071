/* loaded_model.h - the loaded model and all memory that serving it takes: tokenizer, weights, KV,
 * activations.
 *
 * Threads: made by the engine thread. run's kv, forward and dist are its own; the rest is immutable
 * and read by any thread once the engine is ready. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/mem.h"
#include "file/checkpoint.h"
#include "model/runner.h"
#include "text/tok.h"
#include "verifier-svc/verifier_options.h"

struct loaded_model {
    struct checkpoint *checkpoint; // NULL once loaded: the file may change then
    struct tok *tok;
    struct runner run;
    char *name;          // what clients call it
    char *chat_template; // NULL: none
    size_t template_len;
    int64_t created;         // the file's time
    const char *weight_type; // the type that most bytes have
    uint64_t identity;       // names all that decides bits
    char fingerprint[24];    // the same as text
    uint64_t kv_identity;    // and the file's time: samples name the weights, and blocks on disk
                             // outlive a file
};

/* The tokenizer's part alone: enough to check requests (tests, fuzzing). */
int loaded_model_open(const struct verifier_options *o, struct loaded_model **ret);
/* The rest. progress as in model_load(). Errors name what is wrong with the file or the memory;
 * -ENOMEM: it would take more than is available, with both numbers, before it is taken. */
int loaded_model_load(struct loaded_model *s, const struct verifier_options *o,
                      bool (*progress)(void *arg, float done), void *arg);
void loaded_model_free(struct loaded_model *s);
DEFINE_AUTO(struct loaded_model, loaded_model_free)

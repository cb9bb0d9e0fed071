/* loaded_model.h - the model with all memory that it needs: tokenizer, weights, KV, activations.
 *
 * Threads: created by the engine thread, which owns run.kv, run.forward and run.dists. The rest is
 * immutable; any thread may read it once the engine is ready. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/mem.h"
#include "file/checkpoint.h"
#include "model/runner.h"
#include "text/tok.h"
#include "verifier-svc/settings/verifier_options.h"

struct loaded_model {
    struct checkpoint *checkpoint; // NULL once loaded: the file may change then
    struct tok *tok;
    struct runner run;
    char *name;          // in the API
    char *chat_template; // NULL: none
    size_t template_len;
    int64_t created;         // modification time of the file
    const char *weight_type; // the type of most bytes
    uint64_t kv_identity;    // digest of all that decides K and V of given tokens
    char fingerprint[24];    // digest of that and of all other bytes of the model, as text
};

/* Opens the file and the tokenizer only: enough to check requests (tests, fuzzing). */
int loaded_model_open(const struct verifier_options *o, struct loaded_model **ret);
/* Loads the rest; progress as in model_load(). -ENOMEM, with both numbers: the model needs more
 * memory than is available; checked before it is allocated. */
int loaded_model_load(struct loaded_model *s, const struct verifier_options *o,
                      bool (*progress)(void *arg, float done), void *arg);
void loaded_model_free(struct loaded_model *s);
DEFINE_AUTO(struct loaded_model, loaded_model_free)

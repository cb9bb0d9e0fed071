/* committed.h - what is committed of the choices of a Generate call: all that another verifier
 * needs to continue them.
 *
 * Threads: one at a time. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "rpc/rpc.h"
#include "tandem/v1/verifier.pb-c.h"

struct committed_choice {
    uint32_t *ids; // (n) generated tokens; NULL: none, or they are not kept
    uint32_t n, capacity;
    uint32_t round; // number of the last round
    uint32_t asked; // tokens in the last message of committed_pack()
    uint32_t skip;  // tokens that the verifier will send a second time
    bool started, finished;
};

struct committed {
    struct committed_choice *choices; // (n)
    unsigned n;
    int64_t seed;        // as the first Started reported it
    uint32_t max_tokens; // the same
    bool is_partial;     // memory ran out: ids are missing, and the call cannot be continued
};

/* The most bytes that are kept of a choice with this many tokens. */
size_t committed_bytes(size_t n_tokens);

int committed_init(struct committed *c, unsigned n); // -ENOMEM
void committed_done(struct committed *c);

/* Takes a run of a choice. On return *run has only the tokens that are new; its own memory is not
 * changed. hold(user, bytes): whether this much more memory may be used.
 * -EPROTO: a token that was sent a second time differs. */
int committed_take(struct committed *c, unsigned choice, Tandem__V1__TokenRun *run,
                   bool (*hold)(void *user, size_t bytes), void *user);
/* The continuation, as fields of a GenerateRequest that rpc_msg_joined() adds to the request. NULL:
 * no memory. */
struct rpc_msg *committed_pack(struct committed *c, ProtobufCBinaryData fingerprint);
/* Whether tokens were taken since the last committed_pack(). */
bool committed_has_more(const struct committed *c);
/* Whether all choices have finished: nothing can be continued. */
bool committed_is_whole(const struct committed *c);
/* Another verifier continues from the last committed_pack(): what was taken since comes again. */
void committed_continued(struct committed *c);

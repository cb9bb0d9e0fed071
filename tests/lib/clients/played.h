/* played.h - an engine with a real model, whose clients a test plays.
 *
 * Threads: the test's own, as the only one that takes events. */
#pragma once
#include "lib/clients/topic.h"
#include "verifier-svc/engine/engine_impl.h"

/* Started and ready; options and figures outlive it. */
struct engine *played_engine(const struct verifier_options *o, struct stats *stats);

/* A request, and what came of it. */
struct played {
    struct request *req;
    uint32_t ids[TOPIC_MAX_PROMPT], n;
    bool ended;
    int error; // negative errno
};

/* A topic's prompt; n tokens are wanted. */
void played_init(struct engine *e, unsigned topic, uint32_t n_prompt, uint32_t n, struct played *p);
/* Also hands it to the engine. */
void played_submit(struct engine *e, unsigned topic, uint32_t n_prompt, uint32_t n,
                   struct played *p);
/* Takes what comes until p has so many tokens, or its end; `other` may have some, too. */
void played_take(struct engine *e, struct played *p, struct played *other, uint32_t n);
/* Until its end; drops the request. */
void played_finish(struct engine *e, struct played *p, struct played *other);
/* Its reader has fallen behind, or has read all. */
void played_pause(struct engine *e, struct played *p, bool paused);

/* engine_client.h - an engine with a real model; the test acts as its clients.
 *
 * Threads: the test's only; it alone takes events. */
#pragma once
#include "lib/clients/topic.h"
#include "verifier-svc/engine/engine_impl.h"

/* An engine that is started and ready. o and stats must outlive it. */
struct engine *engine_client_start(const struct verifier_options *o, struct stats *stats);

/* A request and its answer so far. */
struct engine_client {
    struct request *req;
    uint32_t ids[TOPIC_MAX_PROMPT], n;
    bool ended;
    int error; // negative errno
};

/* A request for n tokens with the prompt of this topic. */
void engine_client_init(struct engine *e, unsigned topic, uint32_t n_prompt, uint32_t n,
                        struct engine_client *p);
/* The same; also submits it to the engine. */
void engine_client_submit(struct engine *e, unsigned topic, uint32_t n_prompt, uint32_t n,
                          struct engine_client *p);
/* Takes events until p has n tokens or has ended. Events of another request go to `other`. */
void engine_client_take(struct engine *e, struct engine_client *p, struct engine_client *other,
                        uint32_t n);
/* Takes events until p has ended, then drops its request. */
void engine_client_finish(struct engine *e, struct engine_client *p, struct engine_client *other);
/* Marks the client as too slow to read, or as reading again. */
void engine_client_pause(struct engine *e, struct engine_client *p, bool paused);

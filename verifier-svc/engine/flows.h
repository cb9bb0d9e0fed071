/* flows.h - whose waiting request is next, and which one gives way in a full queue. Decisions only.
 *
 * A flow is all requests with the same flow name; a gateway sends one name for each API key. Each
 * flow counts the tokens that it was served: computed prompt tokens and generated tokens. The flow
 * with the least count is next, and its own requests keep their order of arrival. A flow that
 * starts to wait gets at least the least count of the flows that wait. If no flow waits, it gets
 * the largest count of all. So nobody collects credit or debt while nobody waits. This is the
 * virtual token counter of Sheng et al. 2024, arXiv:2401.00588. The jobs that tokenize count bytes
 * instead of tokens.
 *
 * The queue has one limit for all flows. In a full queue a newcomer displaces the newest request of
 * the flow with the most. Its own flow must have fewer, the newcomer included. The same holds for
 * bytes: the flow with the most bytes gives way, possibly several of its requests. Resumed answers,
 * which another verifier has begun, have separate limits. They take no places of others, are
 * not displaced, and go before new requests.
 *
 * Threads: any; it has its own lock. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/mem.h"

#define FLOWS_MAX_NAME 64 // bytes
#define FLOWS_IDLE 256    // flows without requests whose counts are kept

struct flows;

/*     NONE ──enter──▶ WAITING ──start──▶ STARTED ──leave──▶ NONE
 *                        └──displaced──▶ DISPLACED ──leave──┘    (leave is allowed in each) */
enum flows_state { FLOWS_NONE, FLOWS_WAITING, FLOWS_STARTED, FLOWS_DISPLACED };

/* The place of a request; starts zeroed, except for `resumed` and `bytes`. Use flows_state() to
 * read the state. */
struct flows_place {
    uint32_t flow;
    enum flows_state state;
    bool resumed; // the request resumes an answer of another verifier
    size_t bytes; // of memory; 0 if the queue has no limit of bytes
};

struct flows_limits {
    uint32_t waiting; // requests that may wait
    uint32_t resumed; // resumed answers that may wait beside them
    uint32_t started; // requests that may have started
    size_t bytes;     // of requests that wait, and as many of resumed ones; SIZE_MAX: no limit
};

/* -ENOMEM. */
int flows_new(const struct flows_limits *limits, struct flows **ret);
void flows_free(struct flows *f);
DEFINE_AUTO(struct flows, flows_free)
uint32_t flows_max(const struct flows *f); // flows_place.flow is less

/* Adds a request to the queue, as the newest. name: at most FLOWS_MAX_NAME bytes; requests without
 * a name are one flow. *ret_n_displaced: requests that were displaced for it. -EAGAIN, with text:
 * the queue is full, and no flow has more than this one would have. The same if too many
 * displaced requests have not left yet, or too many resumed answers wait. */
int flows_enter(struct flows *f, struct flows_place *p, const void *name, size_t len,
                uint32_t *ret_n_displaced);
/* The request starts: counts n tokens of its prompt, at least 1. False: it was displaced. */
bool flows_start(struct flows *f, struct flows_place *p, uint32_t n);
/* Counts n more tokens that the request was served. */
void flows_serve(struct flows *f, const struct flows_place *p, uint32_t n);
/* The request has ended, in whatever state. No effect in FLOWS_NONE. */
void flows_leave(struct flows *f, struct flows_place *p);
enum flows_state flows_state(struct flows *f, const struct flows_place *p);

/* A request in the order of flows_sort(). */
struct flows_turn {
    const struct flows_place *place; // in FLOWS_WAITING or FLOWS_STARTED, unless `first`
    uint32_t index;                  // by arrival; ties go to the lower one
    uint32_t n_tokens;               // expected cost, which delays the flow's next requests
    bool first;  // before all others: it was put back after its start, or resumes an answer
    uint64_t at; // set by flows_sort()
};
/* Sorts requests by their turn. They are given in order of arrival. Allocates nothing. */
void flows_sort(struct flows *f, struct flows_turn *v, uint32_t n);

/* prompt_places.h - which requests with several prompts may run one more prompt. Decisions only.
 *
 * One prompt of each request runs without a place. Each further one needs a place while it runs.
 * Places are limited for each payer, and for all payers together. A payer is an API key's name or a
 * client's address. A request that finds no place waits for one. A free place goes to the payer
 * with the fewest places, and there to the request that has waited longest.
 *
 * Threads: any. */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include "base/mem.h"

/* Of one payer: they fill a verifier's batch, 64 sequences by default. */
#define PROMPT_PLACES_OF_PAYER 64
/* Of all payers. With the first prompts of 4,096 connections, the calls fit into the 8,192 streams
 * of the connection to a verifier. */
#define PROMPT_PLACES_MAX 1024

struct prompt_places_payer;

struct prompt_places {
    pthread_mutex_t mu; // guards the fields below
    unsigned n;         // places taken
    struct prompt_places_payer *payers;
};

/* A request; starts zeroed. */
struct prompt_places_request {
    struct prompt_places_payer *payer; // NULL: prompt_places_join() was not called
    bool waits;
    struct prompt_places_request *prev, *next; // of those of the payer that wait
};

/* payer: its name, which is copied. -ENOMEM. */
int prompt_places_join(struct prompt_places *p, struct prompt_places_request *r, const char *payer);
/* The request has no places and does not wait. No effect if it has not joined. */
void prompt_places_leave(struct prompt_places *p, struct prompt_places_request *r);

/* true: the request has one more place. false: it waits until prompt_places_give() returns it. It
 * must not wait yet. */
bool prompt_places_take(struct prompt_places *p, struct prompt_places_request *r);
/* Gives back a place of the request. Returns the request that has the place now and no longer
 * waits; NULL: none. */
struct prompt_places_request *prompt_places_give(struct prompt_places *p,
                                                 struct prompt_places_request *r);
/* The request no longer waits. false: prompt_places_give() has returned it before. */
bool prompt_places_cancel(struct prompt_places *p, struct prompt_places_request *r);

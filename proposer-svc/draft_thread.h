/* draft_thread.h - the one thread on which a proposer with PROP_OWN_THREAD drafts.
 *
 * It takes all Rounds that wait, drafts for them together and answers; while none waits it works
 * ahead. What is told to it comes through a bounded queue.
 *
 * Threads: drafter_new() and drafter_free() by main, the rest by any. */
#pragma once
#include "base/mem.h"
#include "proposer-svc/batch.h"

struct drafter;

#define DRAFTER_STREAMS_MAX 1024     // open at once
#define DRAFTER_ROUNDS_MAX 1024      // that wait
#define DRAFTER_BYTES_MAX (64 << 20) // that they take

struct drafter_config {
    struct batch_config batch;
    /* On the drafter's thread: takes the message. */
    void (*send)(const struct batch_origin *to, struct rpc_msg *msg);
    void (*failed)(const struct batch_origin *to, int err); // fail_text() says why
};

int drafter_new(const struct drafter_config *c, struct drafter **ret); // -ENOMEM, -EAGAIN
void drafter_free(struct drafter *d);
DEFINE_AUTO(struct drafter, drafter_free)

/* -ENOSPC: there are too many streams. What begins here is ended by drafter_end_stream(). */
int drafter_begin_stream(struct drafter *d);
void drafter_end_stream(struct drafter *d, uint64_t stream);
/* Takes the round, of so many bytes, and holds its call. -ENOSPC: too many wait. */
int drafter_round(struct drafter *d, const struct batch_origin *from,
                  struct Tandem__V1__Round *round, size_t bytes);
/* Drops the sessions that have idled for too long, soon. */
void drafter_expire(struct drafter *d);

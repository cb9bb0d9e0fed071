/* draft_thread.h - the one thread on which a proposer with PROP_OWN_THREAD drafts.
 *
 * It takes all Rounds that wait, drafts for them together and answers; while none waits it works
 * ahead. What is told to it comes through a bounded queue.
 *
 * Threads: draft_thread_new() and draft_thread_free() by main, the rest by any. */
#pragma once
#include "base/mem.h"
#include "proposer-svc/batch.h"

struct draft_thread;

#define DRAFT_THREAD_STREAMS_MAX 1024     // open at once
#define DRAFT_THREAD_ROUNDS_MAX 1024      // that wait
#define DRAFT_THREAD_BYTES_MAX (64 << 20) // that they take

struct draft_thread_config {
    struct batch_config batch;
    /* On the drafter's thread: takes the message. */
    void (*send)(const struct batch_origin *to, struct rpc_msg *msg);
    void (*failed)(const struct batch_origin *to, int err); // fail_text() says why
};

int draft_thread_new(const struct draft_thread_config *c,
                     struct draft_thread **ret); // -ENOMEM, -EAGAIN
void draft_thread_free(struct draft_thread *d);
DEFINE_AUTO(struct draft_thread, draft_thread_free)

/* -ENOSPC: there are too many streams. What begins here is ended by draft_thread_end_stream(). */
int draft_thread_begin_stream(struct draft_thread *d);
void draft_thread_end_stream(struct draft_thread *d, uint64_t stream);
/* Takes the round, of so many bytes, and holds its call. -ENOSPC: too many wait. */
int draft_thread_round(struct draft_thread *d, const struct batch_origin *from,
                       struct Tandem__V1__Round *round, size_t bytes);
/* Drops the sessions that have idled for too long, soon. */
void draft_thread_expire(struct draft_thread *d);

/* draft_thread.h - the one thread on which a proposer with PROP_OWN_THREAD drafts.
 *
 * It takes all waiting Rounds, drafts for them together, and sends each answer as soon as it is
 * ready. While no Round waits it calls the proposer's work(). Its input is a bounded queue.
 *
 * Threads: main calls draft_thread_new() and draft_thread_free(); any thread calls the others. */
#pragma once
#include "base/mem.h"
#include "proposer-svc/batch.h"

struct draft_thread;
struct draft_job;

#define DRAFT_THREAD_STREAMS_MAX 1024     // open streams
#define DRAFT_THREAD_ROUNDS_MAX 1024      // waiting Rounds
#define DRAFT_THREAD_BYTES_MAX (64 << 20) // of all waiting Rounds

struct draft_thread_config {
    struct batch_config batch;
    /* Both are called on the draft thread. send() owns the message. */
    void (*send)(const struct batch_origin *to, struct rpc_msg *msg);
    void (*failed)(const struct batch_origin *to, int err); // the reason is in fail_text()
};

/* Starts the thread. -ENOMEM, -EAGAIN: no thread. */
int draft_thread_new(const struct draft_thread_config *c, struct draft_thread **ret);
void draft_thread_free(struct draft_thread *d);
DEFINE_AUTO(struct draft_thread, draft_thread_free)

/* After 0 the caller must call draft_thread_end_stream(), which owns *ret_end then. -ENOSPC: too
 * many streams are open; -ENOMEM. */
int draft_thread_begin_stream(struct draft_thread *d, uint64_t stream, struct draft_job **ret_end);
void draft_thread_end_stream(struct draft_thread *d, struct draft_job *end);
/* Queues a round of `bytes` bytes. Owns the round, also after an error, and holds its call.
 * -ENOSPC: too many Rounds wait. */
int draft_thread_round(struct draft_thread *d, const struct batch_origin *from,
                       struct Tandem__V1__Round *round, size_t bytes);
/* Asks the thread to drop the sessions whose idle time is over. */
void draft_thread_expire(struct draft_thread *d);

/* queue.h - a bounded queue of pointers between threads. A push passes the ownership on.
 *
 * Nothing allocates after queue_new().
 *
 * Threads: any number may push and pop. queue_wake() requires that only one thread pops. */
#pragma once
#include <stdint.h>
#include "base/mem.h"

struct queue;

/* -ENOMEM. */
int queue_new(uint32_t max, struct queue **ret);
/* The queue must be empty and no thread may use it. NULL is fine. */
void queue_free(struct queue *q);
DEFINE_AUTO(struct queue, queue_free)

/* -EAGAIN: the queue is full; -EPIPE: it is closed. After an error the caller still owns the
 * item. */
int queue_push(struct queue *q, void *item);
/* The oldest item. NULL: the queue stayed empty for wait_us, or queue_wake() was called, or the
 * queue is closed and empty. wait_us 0: return immediately; -1: no limit. */
void *queue_pop(struct queue *q, int64_t wait_us);
/* Makes the queue_pop() that waits, or the next one that would wait, return NULL if the queue is
 * empty. The caller sets whatever the popping thread should notice before this call. */
void queue_wake(struct queue *q);
/* Later pushes fail; the items in the queue can still be popped. */
void queue_close(struct queue *q);
uint32_t queue_len(struct queue *q);

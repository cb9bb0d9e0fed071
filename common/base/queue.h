/* queue.h - a bounded queue of pointers between threads; what is pushed has changed its owner.
 *
 * Any number of threads push and pop; queue_wake() is for a queue that one thread pops. Nothing
 * allocates after queue_new(). */
#pragma once
#include <stdint.h>
#include "base/mem.h"

struct queue;

/* -ENOMEM. */
int queue_new(uint32_t max, struct queue **ret);
/* Empty and unused by then. */
void queue_free(struct queue *q);
DEFINE_AUTO(struct queue, queue_free)

/* -EAGAIN: full (the caller keeps the item and says so to whom it concerns); -EPIPE: closed. */
int queue_push(struct queue *q, void *item);
/* The oldest item; NULL when none came within wait_us (0: at once; -1: for ever), when woken by
 * queue_wake(), or when closed and empty. */
void *queue_pop(struct queue *q, int64_t wait_us);
/* Makes a queue_pop() that waits (or else the next that would) return NULL if the queue is empty:
 * set what it is to see first. */
void queue_wake(struct queue *q);
/* Further pushes fail; what is in it can still be popped. */
void queue_close(struct queue *q);
uint32_t queue_len(struct queue *q);

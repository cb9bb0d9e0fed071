/* queue.c - a ring under one lock. */
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/queue.h"

struct queue {
    pthread_mutex_t mu;
    pthread_cond_t filled;
    void **items;
    uint32_t head, n, max;
    bool woken, closed;
};

int queue_new(uint32_t max, struct queue **ret)
{
    AUTO(mem_free) struct queue *q = calloc(1, sizeof(*q));
    void **items = calloc(max, sizeof(*items));
    if (!q || !items) {
        free(items);
        return fail(-ENOMEM, "queue: no memory for %u items", max);
    }
    clock_cond_init(&q->filled);
    pthread_mutex_init(&q->mu, NULL);
    q->items = items;
    q->max = max;
    *ret = TAKE(q);
    return 0;
}

void queue_free(struct queue *q)
{
    if (!q)
        return;
    pthread_cond_destroy(&q->filled);
    pthread_mutex_destroy(&q->mu);
    free(q->items);
    free(q);
}

int queue_push(struct queue *q, void *item)
{
    int r = 0;
    pthread_mutex_lock(&q->mu);
    if (q->closed) {
        r = -EPIPE;
    } else if (q->n == q->max) {
        r = -EAGAIN;
    } else {
        q->items[(q->head + q->n++) % q->max] = item;
        pthread_cond_signal(&q->filled);
    }
    pthread_mutex_unlock(&q->mu);
    return r;
}

void *queue_pop(struct queue *q, int64_t wait_us)
{
    struct timespec until = {0};
    if (wait_us > 0)
        until = clock_at(clock_us() + wait_us);
    void *item = NULL;
    int r = 0;
    pthread_mutex_lock(&q->mu);
    while (!q->n && !q->woken && !q->closed && wait_us != 0 && r != ETIMEDOUT)
        r = wait_us < 0 ? pthread_cond_wait(&q->filled, &q->mu)
                        : pthread_cond_timedwait(&q->filled, &q->mu, &until);
    if (q->n) {
        item = q->items[q->head];
        q->head = (q->head + 1) % q->max;
        q->n--;
    } else if (wait_us != 0) { // a call that does not wait leaves the wake-up to the next one
        q->woken = false;
    }
    pthread_mutex_unlock(&q->mu);
    return item;
}

void queue_wake(struct queue *q)
{
    pthread_mutex_lock(&q->mu);
    q->woken = true;
    pthread_cond_signal(&q->filled);
    pthread_mutex_unlock(&q->mu);
}

void queue_close(struct queue *q)
{
    pthread_mutex_lock(&q->mu);
    q->closed = true;
    pthread_cond_broadcast(&q->filled);
    pthread_mutex_unlock(&q->mu);
}

uint32_t queue_len(struct queue *q)
{
    pthread_mutex_lock(&q->mu);
    uint32_t n = q->n;
    pthread_mutex_unlock(&q->mu);
    return n;
}

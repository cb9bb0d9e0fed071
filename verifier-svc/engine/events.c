/* events.c - batches that circulate between engine and edge. */
#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include "base/err.h"
#include "base/queue.h"
#include "verifier-svc/engine/events.h"

struct events {
    struct event_batch batches[EVENTS_BATCHES];
    struct queue *filled, *empty;
    struct event_batch *current;    // the engine's
    size_t token_bytes, held_bytes; // most bytes of a token, and that a sequence holds back
    atomic_bool closed;
};

static int batch_init(struct event_batch *b, uint32_t max_events, uint32_t max_tokens)
{
    AUTO(mem_free) struct event *v = calloc(max_events, sizeof(*v));
    AUTO(mem_free) struct event_token *tokens = calloc(max_tokens, sizeof(*tokens));
    AUTO(mem_free) struct dist_top *tops = calloc((size_t)max_tokens * DIST_MAX_TOP, sizeof(*tops));
    if (!v || !tokens || !tops)
        return fail(-ENOMEM, "no memory for %u events", max_events);
    b->max_events = max_events;
    b->max_tokens = max_tokens;
    b->v = TAKE(v);
    b->tokens = TAKE(tokens);
    b->tops = TAKE(tops);
    return 0;
}

int events_new(uint32_t max_events, uint32_t max_tokens, struct events **ret)
{
    AUTO(events_free) struct events *e = calloc(1, sizeof(*e));
    if (!e)
        return fail(-ENOMEM, "no memory for events");
    int err = queue_new(EVENTS_BATCHES, &e->filled);
    if (!err)
        err = queue_new(EVENTS_BATCHES, &e->empty);
    for (unsigned i = 0; !err && i < EVENTS_BATCHES; i++) {
        err = batch_init(&e->batches[i], max_events, max_tokens);
        if (!err)
            queue_push(e->empty, &e->batches[i]);
    }
    if (err < 0)
        return err;
    *ret = TAKE(e);
    return 0;
}

int events_fit(struct events *e, const struct tok *tok)
{
    e->token_bytes = detok_max_added(tok);
    e->held_bytes = detok_max_held(tok);
    for (unsigned i = 0; i < EVENTS_BATCHES; i++) {
        struct event_batch *b = &e->batches[i];
        buf_init(&b->text, (size_t)b->max_tokens * 16 + (DRAFT_MAX_NODES + 1) * e->token_bytes +
                               e->held_bytes);
        if (!buf_reserve(&b->text, b->text.max))
            return buf_error(&b->text);
    }
    return 0;
}

void events_free(struct events *e)
{
    if (!e)
        return;
    for (unsigned i = 0; i < EVENTS_BATCHES; i++) {
        free(e->batches[i].v);
        free(e->batches[i].tokens);
        free(e->batches[i].tops);
        buf_done(&e->batches[i].text);
    }
    queue_free(e->filled);
    queue_free(e->empty);
    free(e);
}

static bool has_room(const struct events *e, const struct event_batch *b, uint32_t n_tokens)
{
    return b->n < b->max_events && b->max_tokens - b->n_tokens >= n_tokens &&
           (!n_tokens || b->text.max - b->text.len >= n_tokens * e->token_bytes + e->held_bytes);
}

struct event_batch *events_reserve(struct events *e, uint32_t n_tokens)
{
    if (e->current && !has_room(e, e->current, n_tokens))
        events_send(e);
    if (!e->current)
        e->current = queue_pop(e->empty, -1);
    assert(has_room(e, e->current, n_tokens));
    return e->current;
}

struct event *events_add(struct event_batch *b, struct request *r, uint32_t choice)
{
    struct event *ev = &b->v[b->n++];
    *ev = (struct event){.req = r, .choice = choice, .first = b->n_tokens, .stop = DETOK_NONE};
    return ev;
}

void events_send(struct events *e)
{
    if (e->current && e->current->n) {
        queue_push(e->filled, e->current); // never full: as many places as batches
        e->current = NULL;
    }
}

struct event_batch *events_next(struct events *e, int64_t wait_us)
{
    return queue_pop(e->filled, wait_us);
}

void events_return(struct events *e, struct event_batch *b)
{
    b->n = b->n_tokens = 0;
    buf_clear(&b->text);
    queue_push(e->empty, b);
}

void events_wake(struct events *e)
{
    queue_wake(e->filled);
}

void events_close(struct events *e)
{
    atomic_store(&e->closed, true);
    queue_close(e->filled);
}

bool events_closed(struct events *e)
{
    return atomic_load(&e->closed) && queue_len(e->filled) == 0;
}

/* engine_client.c - an engine with a real model; the test acts as its clients. */
#include "lib/clients/engine_client.h"
#include "lib/lib.h"

struct engine *played_engine(const struct verifier_options *o, struct stats *stats)
{
    struct engine *e;
    assert_int_equal(engine_new(o, stats, &e), 0);
    assert_int_equal(engine_start(e), 0);
    while (engine_state(e, NULL) == ENGINE_LOADING)
        events_next(engine_events(e), -1); // woken when it is ready
    assert_int_equal(engine_state(e, NULL), ENGINE_READY);
    return e;
}

void played_init(struct engine *e, unsigned topic, uint32_t n_prompt, uint32_t n, struct played *p)
{
    struct topic w;
    const struct loaded_model *m = engine_loaded_model(e);
    topic_init(&w, topic, n_prompt);
    w.msg.max_tokens = n;
    *p = (struct played){.req = topic_request(&w, m->tok, m->run.context)};
}

void played_submit(struct engine *e, unsigned topic, uint32_t n_prompt, uint32_t n,
                   struct played *p)
{
    played_init(e, topic, n_prompt, n, p);
    assert_int_equal(engine_submit(e, p->req), 0);
}

static void take_event(const struct event_batch *b, const struct event *ev, struct played *p)
{
    for (uint32_t i = 0; i < ev->n_tokens; i++)
        p->ids[p->n++] = b->tokens[ev->first + i].id;
    p->ended |= ev->last;
    p->error = ev->error;
}

void played_take(struct engine *e, struct played *p, struct played *other, uint32_t n)
{
    while (p->n < n && !p->ended) {
        struct event_batch *b = events_next(engine_events(e), -1);
        for (uint32_t i = 0; b && i < b->n; i++)
            take_event(b, &b->v[i], b->v[i].req == p->req ? p : other);
        if (b)
            events_return(engine_events(e), b);
    }
}

void played_finish(struct engine *e, struct played *p, struct played *other)
{
    played_take(e, p, other, UINT32_MAX);
    request_drop(p->req); // the engine's reference
    request_drop(p->req);
}

void played_pause(struct engine *e, struct played *p, bool paused)
{
    atomic_store(&p->req->paused, paused);
    engine_wake(e);
}

/* engine_client.c - an engine with a real model; the test acts as its clients. */
#include "lib/clients/engine_client.h"
#include "lib/lib.h"

struct engine *engine_client_start(const struct verifier_options *o, struct stats *stats)
{
    struct engine *e;
    assert_int_equal(engine_new(o, stats, &e), 0);
    assert_int_equal(engine_start(e), 0);
    while (engine_state(e, NULL) == ENGINE_LOADING)
        events_next(engine_events(e), -1); // woken when it is ready
    assert_int_equal(engine_state(e, NULL), ENGINE_READY);
    return e;
}

void engine_client_init(struct engine *e, unsigned topic, uint32_t n_prompt, uint32_t n,
                        struct engine_client *p)
{
    struct topic w;
    const struct loaded_model *m = engine_loaded_model(e);
    topic_init(&w, topic, n_prompt);
    w.msg.max_tokens = n;
    *p = (struct engine_client){.req = topic_request(&w, m->tok, m->run.context)};
}

void engine_client_submit(struct engine *e, unsigned topic, uint32_t n_prompt, uint32_t n,
                          struct engine_client *p)
{
    engine_client_init(e, topic, n_prompt, n, p);
    assert_int_equal(engine_submit(e, p->req), 0);
}

static void take_event(const struct event_batch *b, const struct event *ev, struct engine_client *p)
{
    for (uint32_t i = 0; i < ev->n_tokens; i++)
        p->ids[p->n++] = b->tokens[ev->first + i].id;
    p->ended |= ev->last;
    p->error = ev->error;
}

void engine_client_take(struct engine *e, struct engine_client *p, struct engine_client *other,
                        uint32_t n)
{
    while (p->n < n && !p->ended) {
        struct event_batch *b = events_next(engine_events(e), -1);
        for (uint32_t i = 0; b && i < b->n; i++)
            take_event(b, &b->v[i], b->v[i].req == p->req ? p : other);
        if (b)
            events_return(engine_events(e), b);
    }
}

void engine_client_finish(struct engine *e, struct engine_client *p, struct engine_client *other)
{
    engine_client_take(e, p, other, UINT32_MAX);
    request_drop(p->req); // the engine's reference
    request_drop(p->req);
}

void engine_client_pause(struct engine *e, struct engine_client *p, bool paused)
{
    atomic_store(&p->req->paused, paused);
    engine_wake(e);
}

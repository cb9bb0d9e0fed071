/* committed.c - what is committed of the choices of a Generate call. */
#include "gateway/upstream/committed.h"
#include <errno.h>
#include <stdlib.h>
#include "base/err.h"
#include "base/mem.h"

#define FIRST_CAPACITY 64 // tokens

static size_t capacity_for(size_t capacity, size_t n_tokens)
{
    capacity = capacity ? capacity : FIRST_CAPACITY;
    while (capacity < n_tokens && capacity <= UINT32_MAX)
        capacity *= 2;
    return capacity;
}

size_t committed_bytes(size_t n_tokens)
{
    return capacity_for(0, n_tokens) * sizeof(uint32_t);
}

int committed_init(struct committed *c, unsigned n)
{
    *c = (struct committed){.choices = calloc(n, sizeof(*c->choices)), .n = n};
    return c->choices ? 0 : fail(-ENOMEM, "no memory for %u choices", n);
}

void committed_done(struct committed *c)
{
    for (unsigned i = 0; c->choices && i < c->n; i++)
        free(c->choices[i].ids);
    free(c->choices);
    *c = (struct committed){0};
}

/* Without memory the answer continues, but cannot be continued elsewhere. */
static void lose_ids(struct committed *c)
{
    c->is_partial = true;
    for (unsigned i = 0; i < c->n; i++) {
        free(c->choices[i].ids);
        c->choices[i].ids = NULL;
        c->choices[i].capacity = 0;
    }
}

/* Makes space for n more tokens. */
static bool grow(struct committed_choice *c, size_t n, bool (*hold)(void *user, size_t bytes),
                 void *user)
{
    size_t capacity = capacity_for(c->capacity, c->n + n);
    if (capacity == c->capacity)
        return true;
    if (capacity > UINT32_MAX || !hold(user, (capacity - c->capacity) * sizeof(*c->ids)))
        return false;
    uint32_t *ids = realloc(c->ids, capacity * sizeof(*ids));
    if (!ids)
        return false;
    c->ids = ids;
    c->capacity = (uint32_t)capacity;
    return true;
}

/* Removes the tokens that have come before. */
static int skip_known(struct committed_choice *c, Tandem__V1__TokenRun *run)
{
    while (c->skip && run->n_tokens) {
        if (c->ids && run->tokens[0]->id != c->ids[c->n - c->skip])
            return fail(-EPROTO, "token %u differs from that of the verifier before",
                        c->n - c->skip);
        c->skip--;
        run->tokens++;
        run->n_tokens--;
    }
    return 0;
}

int committed_take(struct committed *c, unsigned choice, Tandem__V1__TokenRun *run,
                   bool (*hold)(void *user, size_t bytes), void *user)
{
    struct committed_choice *to = &c->choices[choice];
    int err = skip_known(to, run);
    if (err < 0)
        return err;
    if (!c->is_partial && !grow(to, run->n_tokens, hold, user))
        lose_ids(c);
    for (size_t i = 0; i < run->n_tokens; i++, to->n++) {
        if (!c->is_partial)
            to->ids[to->n] = run->tokens[i]->id;
    }
    to->round = run->round ? run->round : to->round;
    return 0;
}

static void pack_choice(struct committed_choice *from, Tandem__V1__ChoiceSoFar *to)
{
    tandem__v1__choice_so_far__init(to);
    to->tokens = from->ids;
    to->n_tokens = from->n;
    to->round = from->round;
    to->finished = from->finished;
    from->asked = from->n;
}

struct rpc_msg *committed_pack(struct committed *c, ProtobufCBinaryData fingerprint)
{
    Tandem__V1__GenerateRequest m = TANDEM__V1__GENERATE_REQUEST__INIT;
    Tandem__V1__Continuation continuation = TANDEM__V1__CONTINUATION__INIT;
    AUTO(mem_free) Tandem__V1__ChoiceSoFar *choices = calloc(c->n, sizeof(*choices));
    AUTO(mem_free) Tandem__V1__ChoiceSoFar **list = calloc(c->n, sizeof(*list));
    if (!choices || !list)
        return NULL;
    for (unsigned i = 0; i < c->n; i++) {
        pack_choice(&c->choices[i], &choices[i]);
        list[i] = &choices[i];
    }
    continuation.fingerprint = fingerprint;
    continuation.seed = c->seed;
    continuation.max_tokens = c->max_tokens;
    continuation.n_choices = c->n;
    continuation.choices = list;
    m.continuation = &continuation;
    return rpc_pack(&m.base);
}

bool committed_has_more(const struct committed *c)
{
    bool more = false;
    for (unsigned i = 0; i < c->n; i++)
        more |= c->choices[i].n > c->choices[i].asked;
    return more;
}

bool committed_is_whole(const struct committed *c)
{
    bool whole = true;
    for (unsigned i = 0; i < c->n; i++)
        whole &= c->choices[i].finished;
    return whole;
}

void committed_continued(struct committed *c)
{
    for (unsigned i = 0; i < c->n; i++)
        c->choices[i].skip = c->choices[i].n - c->choices[i].asked;
}

/* continuation.c - requests whose answer another verifier has begun. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "tandem/v1/verifier.pb-c.h"
#include "verifier-svc/engine/continuation.h"
#include "verifier-svc/engine/seq.h"

/* ---- the message ---- */

static int check_fingerprint(ProtobufCBinaryData b, const char *own)
{
    if (b.len == strlen(own) && memcmp(b.data, own, b.len) == 0)
        return 0;
    return fail(-ESTALE,
                "the answer was begun by a verifier with another fingerprint; this one "
                "has %s",
                own);
}

static int check_tokens(const Tandem__V1__ChoiceSoFar *c, uint32_t choice, uint32_t n_vocab,
                        uint32_t max_tokens)
{
    if (c->n_tokens > max_tokens)
        return fail(-EINVAL, "choice %u has %zu tokens already, at most %u are allowed", choice,
                    c->n_tokens, max_tokens);
    for (size_t i = 0; i < c->n_tokens; i++) {
        if (c->tokens[i] >= n_vocab)
            return fail(-EINVAL, "token %zu of choice %u is %u, the vocabulary ends at %u", i,
                        choice, c->tokens[i], n_vocab - 1);
    }
    return 0;
}

static int read_choice(const Tandem__V1__ChoiceSoFar *c, uint32_t choice, uint32_t n_vocab,
                       uint32_t max_tokens, struct request_choice *ret)
{
    int err = check_tokens(c, choice, n_vocab, max_tokens);
    if (err < 0)
        return err;
    *ret = (struct request_choice){.round = c->round, .finished = c->finished};
    ret->tokens = malloc(c->n_tokens * sizeof(uint32_t) + 1);
    if (!ret->tokens)
        return fail(-ENOMEM, "no memory for %zu tokens", c->n_tokens);
    if (c->n_tokens)
        memcpy(ret->tokens, c->tokens, c->n_tokens * sizeof(uint32_t));
    ret->n = (uint32_t)c->n_tokens;
    return 0;
}

/* The answer must end where it would have ended at the first verifier, whose context may be
 * longer or shorter. */
static int read_limit(uint32_t max_tokens, struct request *r)
{
    if (max_tokens > r->max_tokens)
        return fail(-EINVAL, "the answer may get %u tokens, at most %u are allowed here",
                    max_tokens, r->max_tokens);
    if (max_tokens)
        r->max_tokens = max_tokens;
    return 0;
}

int continuation_read(const Tandem__V1__Continuation *m, const struct request_limits *limits,
                      struct request *r)
{
    uint32_t n_open = 0;
    int err = check_fingerprint(m->fingerprint, limits->fingerprint);
    if (err < 0)
        return err;
    if (m->n_choices != r->n)
        return fail(-EINVAL, "the continuation has %zu choices, the request has %u", m->n_choices,
                    r->n);
    err = read_limit(m->max_tokens, r);
    if (err < 0)
        return err;
    r->seed = m->seed;
    r->continued = calloc(r->n, sizeof(*r->continued));
    if (!r->continued)
        return fail(-ENOMEM, "no memory for %u choices", r->n);
    for (uint32_t i = 0; !err && i < r->n; i++) {
        err = read_choice(m->choices[i], i, tok_n_vocab(limits->tok), r->max_tokens,
                          &r->continued[i]);
        n_open += !m->choices[i]->finished;
    }
    if (!err && !n_open)
        err = fail(-EINVAL, "all choices have finished; there is nothing to continue");
    return err;
}

/* ---- a sequence ---- */

int continuation_replay(struct seq *s, uint32_t *left, enum seq_end *ret_end)
{
    AUTO(buf_done)
    struct buf text = {0}; // sent by the other verifier; only what is held back matters
    const struct tok *tok = s->detok.tok;
    uint32_t n = s->n;
    buf_init(&text, detok_max_held(tok) + detok_max_added(tok));
    *ret_end = SEQ_CONTINUES;
    s->n = s->n_prompt + s->n_replayed;
    for (; s->n < n && *left && *ret_end == SEQ_CONTINUES; buf_clear(&text), --*left)
        *ret_end = seq_commit(s, s->tokens[s->n], &text);
    if (*ret_end == SEQ_FAILED)
        return fail(-ENOMEM, "no memory for the text of choice %u", s->choice);
    if (*ret_end != SEQ_CONTINUES && s->n < n)
        return fail(-EINVAL, "choice %u ended after %u tokens, the continuation has %u", s->choice,
                    seq_generated(s), n - s->n_prompt);
    s->n_replayed = s->n - s->n_prompt;
    s->replayed = s->n == n;
    s->n = n;
    return 0;
}

/* prop_cascade.c - several proposers for one sequence: cheap ones first, dearer ones when that pays.
 *
 * Members are asked in their order. "first" takes the first draft that has a token. "score" goes on
 * to the next member while that promises more: a draft is worth its score, the sum of its survival
 * estimates times how far this member's estimates came true; a member that was not asked yet is
 * worth what its drafts brought lately. Of the drafts made the one that is worth most is sent.
 * Members earn their figures with every draft they make, sent or not, since what was committed next
 * is seen. (What is drafted ahead, behind tokens that are being verified, is not judged.)
 *
 * A drawn q forbids choosing by what was drawn: where a member draws, its draft is the answer, and
 * whether it is asked follows from the context and the point drafts before it.
 *
 * Whoever needs time (a draft model that reads a context) is not waited for when there is a draft.
 *
 * Memory: that of the members, and 7 KiB per sequence. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "proposer-svc/props/prop_cascade.h"

#define FADE 0.99    // of older drafts, with each new one
#define PRIOR 4      // drafts that the figures at the start count as
#define PRIOR_KEPT 1 // tokens of each of them that were kept, and said to be

struct prop_cascade_settings prop_cascade_settings;

static const struct conf_option options[] = {
    {.name = "chain",
     .kind = CONF_LIST,
     .value = &prop_cascade_settings.members,
     .fallback = "ngram,draft",
     .max = CASCADE_MEMBERS_MAX,
     .help = "proposers that the proposer chain asks, in this order: cheap ones first"},
    {.name = "chain.choose",
     .kind = CONF_CHOICE,
     .value = &prop_cascade_settings.choose,
     .fallback = "score",
     .choices = "score|first",
     .help = "whose draft is sent: the one that promises most, or the first that has a token"},
};

struct member {
    const struct prop_ops *ops;
    void *shared;
    struct prop_about about;
    double drafts, said, kept; // fading sums: tokens that were said to be kept, and that were
};

struct cascade {
    struct member members[CASCADE_MEMBERS_MAX];
    unsigned n_members;
    bool first;
    struct prop_ask **asks; // (max_asks) room to hand them on
    uint32_t max_asks;
};

struct part {
    void *state; // NULL: not yet
    struct prop_ask ask;
    struct prop_draft draft, ahead; // ask.to is one of them
    bool open;                      // ask is not done yet
    bool made;                      // ask.to continues the context
    bool unjudged;                  // draft does; what comes next will tell how good it was
};

struct cascade_seq {
    struct part parts[CASCADE_MEMBERS_MAX];
    uint32_t drafted_at; // length of the context that drafts continue, unless ahead
    unsigned stage;      // the member that is asked
};

/* ---- opening ---- */

static void cascade_close(void *shared)
{
    struct cascade *ch = shared;
    for (unsigned i = 0; i < ch->n_members; i++)
        if (ch->members[i].ops->close)
            ch->members[i].ops->close(ch->members[i].shared);
    free(ch->asks);
    free(ch);
}

static int add_member(struct cascade *ch, const char *name)
{
    struct member *m = &ch->members[ch->n_members];
    char quoted[64];
    m->ops = prop_find(name);
    if (!m->ops || m->ops == &prop_cascade)
        return fail(-EINVAL, "chain: %s is no proposer that can be in it",
                    log_quote(name, strlen(name), quoted, sizeof(quoted)));
    for (unsigned i = 0; i < ch->n_members; i++)
        if (ch->members[i].ops == m->ops)
            return fail(-EINVAL, "chain: %s is there twice", name);
    int r = m->ops->open ? m->ops->open(&m->shared) : 0;
    if (r < 0)
        return r;
    ch->n_members++;
    m->about.q_modes = 1u << PROP_POINT;
    if (m->ops->about)
        m->ops->about(m->shared, &m->about);
    m->drafts = PRIOR;
    m->said = m->kept = PRIOR * PRIOR_KEPT;
    for (unsigned i = 0; i + 1 < ch->n_members; i++)
        if (m->about.vocab_digest && ch->members[i].about.vocab_digest &&
            m->about.vocab_digest != ch->members[i].about.vocab_digest)
            return fail(-EINVAL, "chain: %s and %s have different vocabularies",
                        ch->members[i].about.model, m->about.model);
    return 0;
}

static int cascade_open(void **ret_shared)
{
    const struct conf_list *names = &prop_cascade_settings.members;
    struct cascade *ch = calloc(1, sizeof(*ch));
    if (!ch)
        return fail(-ENOMEM, "chain: no memory");
    ch->first = strcmp(prop_cascade_settings.choose, "first") == 0;
    int r = names->n ? 0 : fail(-EINVAL, "chain: there is no proposer in it");
    for (unsigned i = 0; i < names->n && r == 0; i++)
        r = add_member(ch, names->v[i]);
    if (r < 0)
        cascade_close(ch);
    else
        *ret_shared = ch;
    return r;
}

/* A context that is too long for one member is not for another. */
static void cascade_about(void *shared, struct prop_about *to)
{
    const struct cascade *ch = shared;
    bool unlimited = false;
    *to = (struct prop_about){0};
    for (unsigned i = 0; i < ch->n_members; i++) {
        const struct prop_about *a = &ch->members[i].about;
        to->model = to->model ? to->model : a->model;
        to->vocab_digest = to->vocab_digest ? to->vocab_digest : a->vocab_digest;
        to->q_modes |= a->q_modes;
        unlimited |= !a->max_context;
        if (a->max_context > to->max_context)
            to->max_context = a->max_context;
    }
    if (unlimited)
        to->max_context = 0;
}

/* ---- one sequence ---- */

static void cascade_seq_done(void *shared, void *seq, const struct prop_context *c)
{
    struct cascade *ch = shared;
    struct cascade_seq *s = seq;
    for (unsigned i = 0; i < ch->n_members; i++) {
        if (s->parts[i].state)
            ch->members[i].ops->seq_done(ch->members[i].shared, s->parts[i].state, c);
        free(s->parts[i].state);
    }
}

/* What was committed where the drafts began tells how good they were. Of a draft that agrees to the
 * end of that nobody knows more. */
static void learn(struct cascade *ch, struct cascade_seq *s, const struct prop_context *c)
{
    uint32_t committed = c->n - c->n_verifying;
    for (unsigned i = 0; i < ch->n_members; i++) {
        struct member *m = &ch->members[i];
        const struct prop_draft *d = &s->parts[i].draft;
        if (!s->parts[i].unjudged || committed <= s->drafted_at)
            continue;
        uint32_t n = committed - s->drafted_at, kept = 0;
        float said = 0;
        for (uint32_t t = 0; t < d->n && t < n; t++) {
            said += d->survival[t];
            kept += kept == t && d->tokens[t] == c->tokens[s->drafted_at + t];
        }
        m->drafts = m->drafts * FADE + 1;
        m->said = m->said * FADE + (double)said;
        m->kept = m->kept * FADE + kept;
        s->parts[i].unjudged = false;
    }
}

static void forget_drafts(struct cascade *ch, struct cascade_seq *s)
{
    for (unsigned i = 0; i < ch->n_members; i++)
        s->parts[i].made = s->parts[i].open = false;
    s->stage = 0;
}

static void cascade_cut(void *shared, void *seq, const struct prop_context *c, uint32_t keep)
{
    struct cascade *ch = shared;
    struct cascade_seq *s = seq;
    for (unsigned i = 0; i < ch->n_members; i++)
        if (s->parts[i].state)
            ch->members[i].ops->cut(ch->members[i].shared, s->parts[i].state, c, keep);
    for (unsigned i = 0; i < ch->n_members && keep < s->drafted_at; i++)
        s->parts[i].unjudged = false;
}

static int cascade_grow(void *shared, void *seq, const struct prop_context *c)
{
    struct cascade *ch = shared;
    struct cascade_seq *s = seq;
    learn(ch, s, c);
    forget_drafts(ch, s);
    for (unsigned i = 0; i < ch->n_members; i++) {
        const struct member *m = &ch->members[i];
        if (!s->parts[i].state)
            s->parts[i].state = calloc(1, m->ops->seq_size);
        int r = s->parts[i].state ? m->ops->grow(m->shared, s->parts[i].state, c)
                                  : fail(-ENOMEM, "chain: no memory for a sequence");
        if (r < 0)
            return r;
    }
    return 0;
}

/* ---- drafts ---- */

static double worth(const struct member *m, const struct prop_draft *d)
{
    double score = 0;
    for (uint32_t i = 0; i < d->n; i++)
        score += (double)d->survival[i];
    return score * (m->kept + PRIOR_KEPT) / (m->said + PRIOR_KEPT);
}

static bool is_drawn(const struct prop_draft *d)
{
    return d->q_mode == PROP_SPARSE || d->q_mode == PROP_DENSE;
}

/* The draft to send; NULL: there is none. */
static struct part *best_of(struct cascade *ch, struct cascade_seq *s, double *ret_worth)
{
    struct part *best = NULL;
    *ret_worth = 0;
    for (unsigned i = 0; i < ch->n_members; i++) {
        struct part *p = &s->parts[i];
        double w = p->made ? worth(&ch->members[i], p->ask.to) : 0;
        if (!p->made || (best && !is_drawn(p->ask.to) && w <= *ret_worth))
            continue;
        best = p;
        *ret_worth = w;
    }
    return best;
}

/* Whether a member behind stage promises more than what there is. */
static bool goes_on(const struct cascade *ch, unsigned stage, uint32_t k, bool has, double in_hand)
{
    for (unsigned i = stage + 1; i < ch->n_members; i++) {
        const struct member *m = &ch->members[i];
        double brings = m->kept / m->drafts;
        if (!has || (!ch->first && (brings < k ? brings : k) > in_hand))
            return true;
    }
    return false;
}

static void finish(struct prop_ask *ask, struct part *p)
{
    struct cascade_seq *s = ask->seq;
    s->parts[s->stage].open = false;
    for (unsigned i = 0; !p && i <= s->stage; i++) {
        uint32_t unread = s->parts[i].ask.unread;
        ask->unread = ask->unread > unread ? ask->unread : unread;
    }
    s->stage = 0;
    ask->done = true;
    ask->to->n = 0;
    ask->to->tree = false;
    ask->to->q_mode = PROP_POINT;
    if (p)
        *ask->to = *p->ask.to; // q goes along
}

/* The member has answered, or needs time. */
static void take_answer(struct cascade *ch, struct prop_ask *ask)
{
    struct cascade_seq *s = ask->seq;
    struct part *p = &s->parts[s->stage];
    double in_hand;
    p->open = !p->ask.done;
    p->made = p->ask.done && p->ask.to->n;
    p->unjudged = p->unjudged || (p->made && p->ask.to == &p->draft);
    if (!p->made)
        free(TAKE(p->ask.to->q));
    struct part *best = best_of(ch, s, &in_hand);
    if ((p->made && is_drawn(p->ask.to)) || (!p->ask.done && best))
        finish(ask, best);
    else if (!p->ask.done)
        return; // is asked again
    else if (goes_on(ch, s->stage, ask->k, best, in_hand))
        s->stage++;
    else
        finish(ask, best);
}

static struct prop_ask *ask_of(struct cascade *ch, struct prop_ask *ask)
{
    struct cascade_seq *s = ask->seq;
    const struct member *m = &ch->members[s->stage];
    struct part *p = &s->parts[s->stage];
    if (p->open)
        return &p->ask; // its draft may have begun
    if (s->stage == 0)
        forget_drafts(ch, s); // of an earlier ask in the same context
    p->ask = *ask;
    p->ask.seq = p->state;
    p->ask.to = ask->context.n_verifying ? &p->ahead : &p->draft;
    p->ask.to->n = 0;
    p->ask.to->q = NULL;
    if (!(m->about.q_modes & 1u << ask->q_mode))
        p->ask.q_mode = PROP_POINT;
    if (ask->context.n_verifying)
        return &p->ask;
    p->unjudged = false;
    s->drafted_at = ask->context.n;
    return &p->ask;
}

static bool reserve(struct cascade *ch, uint32_t n)
{
    if (n <= ch->max_asks)
        return true;
    struct prop_ask **asks = realloc(ch->asks, n * sizeof(struct prop_ask *));
    if (!asks)
        return false;
    ch->asks = asks;
    ch->max_asks = n;
    return true;
}

static void cascade_draft(void *shared, struct prop_ask *const *asks, uint32_t n)
{
    struct cascade *ch = shared;
    bool has_room = reserve(ch, n);
    for (uint32_t i = 0; i < n; i++)
        if (!has_room || !((struct cascade_seq *)asks[i]->seq)->parts[0].state)
            finish(asks[i], NULL); // no memory, or nothing is known yet
    for (unsigned stage = 0; has_room && stage < ch->n_members; stage++) {
        const struct member *m = &ch->members[stage];
        uint32_t n_asked = 0;
        for (uint32_t i = 0; i < n; i++)
            if (!asks[i]->done && ((struct cascade_seq *)asks[i]->seq)->stage == stage)
                ch->asks[n_asked++] = ask_of(ch, asks[i]);
        if (!n_asked)
            continue;
        m->ops->draft(m->shared, ch->asks, n_asked);
        for (uint32_t i = 0; i < n; i++)
            if (!asks[i]->done && ((struct cascade_seq *)asks[i]->seq)->stage == stage)
                take_answer(ch, asks[i]);
    }
}

static bool cascade_work(void *shared)
{
    struct cascade *ch = shared;
    bool did = false;
    for (unsigned i = 0; i < ch->n_members; i++)
        if (ch->members[i].ops->work)
            did |= ch->members[i].ops->work(ch->members[i].shared);
    return did;
}

const struct prop_ops prop_cascade = {
    .name = "chain",
    .flags = PROP_OWN_THREAD,
    .seq_size = sizeof(struct cascade_seq),
    .options = options,
    .n_options = ARRAY_LEN(options),
    .open = cascade_open,
    .close = cascade_close,
    .about = cascade_about,
    .seq_done = cascade_seq_done,
    .cut = cascade_cut,
    .grow = cascade_grow,
    .draft = cascade_draft,
    .work = cascade_work,
};

/* prop_cascade.c - several proposers for one sequence: an expensive proposer drafts only if its
 * draft is likely to be better.
 *
 * The cascade requests drafts from its members in the configured order, cheap ones first. "first"
 * takes the first draft that has a token. "score" compares expected numbers of accepted tokens:
 *   - the score of a draft is the sum of its survival estimates, times the ratio of accepted to
 *     predicted tokens in the member's earlier drafts;
 *   - the score of a member without a draft is its mean number of accepted tokens per draft.
 * The next member drafts if the score of a later member is above that of the best draft. Otherwise
 * the best draft is sent.
 *
 * Every draft updates its member's statistics, whether it was sent or not, because the committed
 * tokens show how many of its tokens were right. Drafts ahead, after tokens that are being
 * verified, are not counted.
 *
 * A choice that depended on drawn tokens would distort a drawn q. So the draft of a member that
 * draws is always sent. Whether that member drafts depends only on the context and on point drafts.
 *
 * If a member needs time (a draft model that reads a context), an existing draft is sent instead.
 *
 * Memory: that of the members, and 7 KiB per sequence. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "proposer-svc/props/prop_cascade.h"

#define FADE 0.99        // weight of the older drafts when a new one is counted
#define PRIOR 4          // number of assumed drafts at the start of the statistics
#define PRIOR_ACCEPTED 1 // tokens of each assumed draft, all accepted

struct prop_cascade_settings prop_cascade_settings;

static const struct conf_option options[] = {
    {.name = "cascade",
     .kind = CONF_LIST,
     .value = &prop_cascade_settings.members,
     .fallback = "ngram,draft",
     .max = CASCADE_MEMBERS_MAX,
     .help = "proposers of the cascade, in the order of their requests: cheap ones first"},
    {.name = "cascade.choose",
     .kind = CONF_CHOICE,
     .value = &prop_cascade_settings.choose,
     .fallback = "score",
     .choices = "score|first",
     .help = "whose draft is sent: score (highest expected accepted tokens) or first (first draft "
             "with a token)"},
};

struct member {
    const struct prop_ops *ops;
    void *shared;
    struct prop_about about;
    double drafts, predicted, accepted; // fading sums: drafts, tokens expected, tokens accepted
};

struct cascade {
    struct member members[CASCADE_MEMBERS_MAX];
    unsigned n_members;
    bool first;
    struct prop_ask **asks; // (max_asks) scratch: the asks of one member
    uint32_t max_asks;
};

/* A member's state of one sequence. */
struct part {
    void *state; // NULL: not allocated yet
    struct prop_ask ask;
    struct draft draft, ahead; // ask.to is one of them
    bool open;                 // ask is not done yet
    bool has_draft;            // *ask.to has tokens after the present context
    bool uncounted;            // draft is not in the statistics yet
};

struct cascade_seq {
    struct part parts[CASCADE_MEMBERS_MAX];
    uint32_t drafted_at; // length of the context that the parts' drafts continue
    unsigned stage;      // index of the member that drafts now
};

/* ---- opening ---- */

static void cascade_close(void *shared)
{
    struct cascade *cas = shared;
    for (unsigned i = 0; i < cas->n_members; i++)
        if (cas->members[i].ops->close)
            cas->members[i].ops->close(cas->members[i].shared);
    free(cas->asks);
    free(cas);
}

static int add_member(struct cascade *cas, const char *name)
{
    struct member *m = &cas->members[cas->n_members];
    char quoted[64];
    m->ops = prop_find(name);
    if (!m->ops || m->ops == &prop_cascade)
        return fail(-EINVAL, "cascade: %s is not a proposer that it can contain",
                    log_quote(name, strlen(name), quoted, sizeof(quoted)));
    for (unsigned i = 0; i < cas->n_members; i++)
        if (cas->members[i].ops == m->ops)
            return fail(-EINVAL, "cascade: %s is listed twice", name);
    int r = m->ops->open ? m->ops->open(&m->shared) : 0;
    if (r < 0)
        return r;
    cas->n_members++;
    m->about.q_modes = 1u << DRAFT_POINT;
    if (m->ops->about)
        m->ops->about(m->shared, &m->about);
    m->drafts = PRIOR;
    m->predicted = m->accepted = PRIOR * PRIOR_ACCEPTED;
    for (unsigned i = 0; i + 1 < cas->n_members; i++)
        if (m->about.vocab_digest && cas->members[i].about.vocab_digest &&
            m->about.vocab_digest != cas->members[i].about.vocab_digest)
            return fail(-EINVAL, "cascade: %s and %s have different vocabularies",
                        cas->members[i].about.model, m->about.model);
    return 0;
}

static int cascade_open(void **ret_shared)
{
    const struct conf_list *names = &prop_cascade_settings.members;
    struct cascade *cas = calloc(1, sizeof(*cas));
    if (!cas)
        return fail(-ENOMEM, "cascade: no memory");
    cas->first = strcmp(prop_cascade_settings.choose, "first") == 0;
    int r = names->n ? 0 : fail(-EINVAL, "cascade lists no proposer");
    for (unsigned i = 0; i < names->n && r == 0; i++)
        r = add_member(cas, names->v[i]);
    if (r < 0)
        cascade_close(cas);
    else
        *ret_shared = cas;
    return r;
}

/* The longest context of all members: one that is too long for a member may suit another. */
static void cascade_about(void *shared, struct prop_about *to)
{
    const struct cascade *cas = shared;
    bool unlimited = false;
    *to = (struct prop_about){0};
    for (unsigned i = 0; i < cas->n_members; i++) {
        const struct prop_about *a = &cas->members[i].about;
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
    struct cascade *cas = shared;
    struct cascade_seq *s = seq;
    for (unsigned i = 0; i < cas->n_members; i++) {
        if (s->parts[i].state)
            cas->members[i].ops->seq_done(cas->members[i].shared, s->parts[i].state, c);
        free(s->parts[i].state);
    }
}

/* Compares drafts with the tokens that were committed in their place, and counts predicted and
 * accepted tokens. Draft tokens beyond
 * the committed tokens are not compared. */
static void count_accepted(struct cascade *cas, struct cascade_seq *s, const struct prop_context *c)
{
    uint32_t committed = c->n - c->n_verifying;
    for (unsigned i = 0; i < cas->n_members; i++) {
        struct member *m = &cas->members[i];
        const struct draft *d = &s->parts[i].draft;
        if (!s->parts[i].uncounted || committed <= s->drafted_at)
            continue;
        uint32_t n = committed - s->drafted_at, accepted = 0;
        float predicted = 0;
        for (uint32_t t = 0; t < d->n && t < n; t++) {
            predicted += d->survival[t];
            accepted += accepted == t && d->tokens[t] == c->tokens[s->drafted_at + t];
        }
        m->drafts = m->drafts * FADE + 1;
        m->predicted = m->predicted * FADE + (double)predicted;
        m->accepted = m->accepted * FADE + accepted;
        s->parts[i].uncounted = false;
    }
}

static void forget_drafts(struct cascade *cas, struct cascade_seq *s)
{
    for (unsigned i = 0; i < cas->n_members; i++)
        s->parts[i].has_draft = s->parts[i].open = false;
    s->stage = 0;
}

static void cascade_cut(void *shared, void *seq, const struct prop_context *c, uint32_t keep)
{
    struct cascade *cas = shared;
    struct cascade_seq *s = seq;
    for (unsigned i = 0; i < cas->n_members; i++)
        if (s->parts[i].state)
            cas->members[i].ops->cut(cas->members[i].shared, s->parts[i].state, c, keep);
    for (unsigned i = 0; i < cas->n_members && keep < s->drafted_at; i++)
        s->parts[i].uncounted = false;
}

static int cascade_grow(void *shared, void *seq, const struct prop_context *c)
{
    struct cascade *cas = shared;
    struct cascade_seq *s = seq;
    count_accepted(cas, s, c);
    forget_drafts(cas, s);
    for (unsigned i = 0; i < cas->n_members; i++) {
        const struct member *m = &cas->members[i];
        if (!s->parts[i].state)
            s->parts[i].state = calloc(1, m->ops->seq_size);
        int r = s->parts[i].state ? m->ops->grow(m->shared, s->parts[i].state, c)
                                  : fail(-ENOMEM, "cascade: no memory for a sequence");
        if (r < 0)
            return r;
    }
    return 0;
}

/* ---- drafts ---- */

/* Tokens of the draft that are expected to be accepted. */
static double draft_score(const struct member *m, const struct draft *d)
{
    double score = 0;
    for (uint32_t i = 0; i < d->n; i++)
        score += (double)d->survival[i];
    return score * (m->accepted + PRIOR_ACCEPTED) / (m->predicted + PRIOR_ACCEPTED);
}

static bool is_drawn(const struct draft *d)
{
    return d->q_mode == DRAFT_SPARSE || d->q_mode == DRAFT_DENSE;
}

/* The member's part whose draft is to be sent; NULL: there is no draft. A drawn draft wins. */
static struct part *best_draft(struct cascade *cas, struct cascade_seq *s, double *ret_score)
{
    struct part *best = NULL;
    *ret_score = 0;
    for (unsigned i = 0; i < cas->n_members; i++) {
        struct part *p = &s->parts[i];
        double score = p->has_draft ? draft_score(&cas->members[i], p->ask.to) : 0;
        if (!p->has_draft || (best && !is_drawn(p->ask.to) && score <= *ret_score))
            continue;
        best = p;
        *ret_score = score;
    }
    return best;
}

/* Whether the next member must draft. True if there is no draft yet, or if the mean number of
 * accepted tokens of a later member is above best_score. best_score is that of the best draft. */
static bool must_ask_next(const struct cascade *cas, unsigned stage, uint32_t k, bool has_draft,
                          double best_score)
{
    for (unsigned i = stage + 1; i < cas->n_members; i++) {
        const struct member *m = &cas->members[i];
        double expected = m->accepted / m->drafts;
        if (!has_draft || (!cas->first && (expected < k ? expected : k) > best_score))
            return true;
    }
    return false;
}

/* Answers the ask with the part's draft; NULL: without tokens, and with the greatest `unread` of
 * all members. */
static void finish_ask(struct prop_ask *ask, struct part *p)
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
    ask->to->q_mode = DRAFT_POINT;
    if (p)
        *ask->to = *p->ask.to; // the caller of draft() owns q now
}

/* The member's draft() has returned: its ask is done, or needs more time. */
static void take_answer(struct cascade *cas, struct prop_ask *ask)
{
    struct cascade_seq *s = ask->seq;
    struct part *p = &s->parts[s->stage];
    double best_score;
    p->open = !p->ask.done;
    p->has_draft = p->ask.done && p->ask.to->n;
    p->uncounted = p->uncounted || (p->has_draft && p->ask.to == &p->draft);
    if (!p->has_draft)
        free(TAKE(p->ask.to->q));
    struct part *best = best_draft(cas, s, &best_score);
    if ((p->has_draft && is_drawn(p->ask.to)) || (!p->ask.done && best))
        finish_ask(ask, best);
    else if (!p->ask.done)
        return; // the same member continues
    else if (must_ask_next(cas, s->stage, ask->max_depth, best, best_score))
        s->stage++;
    else
        finish_ask(ask, best);
}

/* The ask for the current member: its open ask, or a new one. */
static struct prop_ask *member_ask(struct cascade *cas, struct prop_ask *ask)
{
    struct cascade_seq *s = ask->seq;
    const struct member *m = &cas->members[s->stage];
    struct part *p = &s->parts[s->stage];
    if (p->open)
        return &p->ask; // the member may have begun its draft
    if (s->stage == 0)
        forget_drafts(cas, s); // from an earlier ask with the same context
    p->ask = *ask;
    p->ask.seq = p->state;
    p->ask.to = ask->context.n_verifying ? &p->ahead : &p->draft;
    p->ask.to->n = 0;
    p->ask.to->q = NULL;
    if (!(m->about.q_modes & 1u << ask->q_mode))
        p->ask.q_mode = DRAFT_POINT;
    if (ask->context.n_verifying)
        return &p->ask;
    p->uncounted = false;
    s->drafted_at = ask->context.n;
    return &p->ask;
}

static bool reserve_asks(struct cascade *cas, uint32_t n)
{
    if (n <= cas->max_asks)
        return true;
    struct prop_ask **asks = realloc(cas->asks, n * sizeof(struct prop_ask *));
    if (!asks)
        return false;
    cas->asks = asks;
    cas->max_asks = n;
    return true;
}

static void cascade_draft(void *shared, struct prop_ask *const *asks, uint32_t n)
{
    struct cascade *cas = shared;
    bool has_asks = reserve_asks(cas, n);
    for (uint32_t i = 0; i < n; i++)
        if (!has_asks || !((struct cascade_seq *)asks[i]->seq)->parts[0].state)
            finish_ask(asks[i], NULL); // no memory, or no context yet
    for (unsigned stage = 0; has_asks && stage < cas->n_members; stage++) {
        const struct member *m = &cas->members[stage];
        uint32_t n_asked = 0;
        for (uint32_t i = 0; i < n; i++)
            if (!asks[i]->done && ((struct cascade_seq *)asks[i]->seq)->stage == stage)
                cas->asks[n_asked++] = member_ask(cas, asks[i]);
        if (!n_asked)
            continue;
        m->ops->draft(m->shared, cas->asks, n_asked);
        for (uint32_t i = 0; i < n; i++)
            if (!asks[i]->done && ((struct cascade_seq *)asks[i]->seq)->stage == stage)
                take_answer(cas, asks[i]);
    }
}

static bool cascade_work(void *shared)
{
    struct cascade *cas = shared;
    bool worked = false;
    for (unsigned i = 0; i < cas->n_members; i++)
        if (cas->members[i].ops->work)
            worked |= cas->members[i].ops->work(cas->members[i].shared);
    return worked;
}

const struct prop_ops prop_cascade = {
    .name = "cascade",
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

/* seq.c - one generation. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "base/rng.h"
#include "verifier-svc/engine/seq.h"

const char *seq_end_name(enum seq_end end)
{
    static const char *const names[] = {"", "stop", "length", "closed", "failed"};
    return names[end];
}

/* Counts the prompt's tokens for penalties. A choice that has no rows yet copies the counts of the
 * first one. */
static int open_counts(struct seq *s)
{
    const struct request *r = s->req;
    if (!dist_penalises(&r->params))
        return 0;
    if (s->state == SEQ_BRANCH)
        return dist_counts_copy(r->seqs[0]->counts, &s->counts);
    uint32_t n_vocab = tok_n_vocab(s->detok.tok);
    int err = dist_counts_new(s->max_len < n_vocab ? s->max_len : n_vocab, &s->counts);
    for (uint32_t i = 0; !err && i < s->n_prompt; i++)
        dist_counts_add(s->counts, s->tokens[i], false);
    return err;
}

/* The mask is the request's, as all choices have the same. */
static void open_constraint(struct seq *s)
{
    const struct request *r = s->req;
    if (!r->ban_mask)
        return;
    constraint_ban_init(&s->ban, r->ban_mask, r->ban.until, s->n_prompt);
    s->constraint = &s->ban.constraint;
}

static int add_stops(struct seq *s)
{
    int err = 0;
    for (uint32_t i = 0; !err && i < s->req->n_stops; i++)
        err = detok_add_stop(&s->detok, s->req->stops[i].data, s->req->stops[i].len);
    return err;
}

static enum seq_state first_state(const struct request *r, uint32_t choice)
{
    if (r->continued)
        return r->continued[choice].finished ? SEQ_ENDED : SEQ_WAITING;
    return choice ? SEQ_BRANCH : SEQ_WAITING;
}

int seq_new(struct request *r, uint32_t choice, const struct tok *tok, struct seq **ret)
{
    AUTO(seq_free) struct seq *s = calloc(1, sizeof(*s));
    if (!s)
        return fail(-ENOMEM, "no memory for a sequence");
    detok_init(&s->detok, tok, r->render_special);
    detok_show(&s->detok, r->shown, r->n_shown);
    s->req = r;
    s->choice = choice;
    s->key = rng_key(r->seed, choice);
    s->state = first_state(r, choice);
    s->stop = DETOK_NONE;
    s->proposer = SEQ_NO_PROPOSER;
    control_seq_init(&s->control);
    s->n = s->n_prompt = r->n_prompt;
    s->max_len = r->n_prompt + r->max_tokens;
    *ret = TAKE(s);
    return 0;
}

/* The tokens that another verifier has committed. */
static void take_continued(struct seq *s)
{
    if (!s->req->continued)
        return;
    const struct request_choice *c = &s->req->continued[s->choice];
    memcpy(s->tokens + s->n, c->tokens, c->n * sizeof(uint32_t)); // n <= max_tokens
    s->n += c->n;
    s->n_rounds = c->round;
}

int seq_open(struct seq *s)
{
    const struct request *r = s->req;
    s->tokens = malloc(s->max_len * sizeof(uint32_t));
    if (!s->tokens)
        return fail(-ENOMEM, "no memory for a sequence of %u tokens", s->max_len);
    memcpy(s->tokens, r->prompt, r->n_prompt * sizeof(uint32_t));
    take_continued(s);
    int err = kv_seq_init(&s->kv, s->max_len + DRAFT_MAX_NODES);
    if (!err)
        err = open_counts(s);
    open_constraint(s);
    if (!err)
        err = detok_reserve(&s->detok);
    return !err && !r->min_tokens ? add_stops(s) : err;
}

void seq_free(struct seq *s)
{
    if (!s)
        return;
    kv_seq_done(NULL, &s->kv); // it holds no blocks
    dist_counts_free(s->counts);
    detok_done(&s->detok);
    free(s->tokens);
    draft_free(s->draft);
    free(s);
}

uint32_t seq_todo(const struct seq *s)
{
    if (s->state != SEQ_RUNNING || atomic_load_explicit(&s->req->paused, memory_order_relaxed))
        return 0;
    uint32_t todo = s->n - s->kv.len;
    /* The last token runs together with its draft. A Verify stream's last token waits for the
     * draft. */
    bool last_waits =
        s->req->verify ? !s->draft || todo > 1 : (seq_n_draft(s) && todo > 1) || s->held_until_us;
    return todo - last_waits;
}

bool seq_waits(const struct seq *s)
{
    return s->state == SEQ_RUNNING && !s->req->verify && s->held_until_us &&
           !atomic_load_explicit(&s->req->paused, memory_order_relaxed) && s->n - s->kv.len == 1;
}

uint32_t seq_blocks(const struct seq *s)
{
    return (s->n + 1 + KV_BLOCK - 1) / KV_BLOCK;
}

const uint32_t *seq_tokens(const struct seq *s)
{
    return s->tokens ? s->tokens : s->req->prompt;
}

static_assert(REQUEST_MAX_NAME <= KV_SALT_MAX, "a tenant's name is a salt");

struct kv_root seq_root(const struct seq *s)
{
    return (struct kv_root){s->req->tenant, (uint32_t)s->req->tenant_len};
}

uint32_t seq_left(const struct seq *s)
{
    return s->max_len - s->n;
}

uint32_t seq_generated(const struct seq *s)
{
    return s->n - s->n_prompt;
}

static bool is_stop_token(const struct seq *s, uint32_t token)
{
    const struct request *r = s->req;
    for (uint32_t i = 0; i < r->n_stop_ids; i++) {
        if (r->stop_ids[i] == token)
            return true;
    }
    return !r->ignore_eos && tok_is_eos(s->detok.tok, token);
}

/* An error in the text ends this sequence only, since the buffer belongs to the whole batch. */
static int text_error(const struct seq *s, struct buf *text)
{
    int err = buf_error(&s->detok.held);
    if (!err)
        err = buf_error(text);
    text->error = 0;
    return err;
}

enum seq_end seq_commit(struct seq *s, uint32_t token, struct buf *text)
{
    s->tokens[s->n++] = token;
    if (s->counts)
        dist_counts_add(s->counts, token, true);
    constraint_advance(s->constraint, token);
    if (is_stop_token(s, token))
        return SEQ_STOP;
    s->stop = detok_feed(&s->detok, token, text);
    if (text_error(s, text) < 0)
        return SEQ_FAILED;
    if (s->stop != DETOK_NONE)
        return SEQ_STOP;
    if (s->req->min_tokens && seq_generated(s) == s->req->min_tokens && add_stops(s) < 0)
        return SEQ_FAILED;
    return s->n == s->max_len ? SEQ_LENGTH : SEQ_CONTINUES;
}

int seq_flush(struct seq *s, struct buf *text)
{
    if (s->stop != DETOK_NONE)
        return 0;
    detok_flush(&s->detok, text);
    return text_error(s, text);
}

uint32_t seq_n_draft(const struct seq *s)
{
    return s->draft ? s->draft->n : 0;
}

/* Applies the request's p_min and n_min. The length of a drawn draft may depend on its tokens, so
 * that a short one must not be dropped. */
static void cut_unlikely(struct seq *s)
{
    draft_cut(s->draft, s->req->p_min);
    if (s->draft->n < s->req->n_min && !s->draft->q)
        s->draft->n = 0;
}

void seq_take_draft(struct seq *s, struct draft *draft, int proposer)
{
    draft_free(s->draft);
    s->draft = draft;
    s->held_until_us = 0;
    s->proposer = proposer;
    draft->tree = draft_branches(draft);
    if (proposer != SEQ_NO_PROPOSER)
        cut_unlikely(s);
    s->n_uncut = draft->n;
}

void seq_trim_draft(struct seq *s, uint32_t max_nodes, uint32_t max_depth)
{
    draft_trim(s->draft, max_nodes, max_depth);
    s->n_uncut = s->draft->n;
}

void seq_drop_draft(struct seq *s)
{
    draft_free(TAKE(s->draft));
    s->wants_draft = false;
    s->requested_us = s->held_until_us = 0;
    s->n_uncut = 0;
    s->proposer = SEQ_NO_PROPOSER;
}

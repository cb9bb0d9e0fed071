/* draft_model_step.c - drafts after the committed tokens. All sequences of one draft() call share
 * the passes; a pass gives one token of each draft. */
#include "base/clock.h"
#include "proposer-svc/draftmodel/draft_model_impl.h"

struct open_draft {
    struct prop_ask *ask;
    uint32_t row; // of the pass, whose logits give the next token
};

/* True: the next pass may draft for the ask. False: it is done, or its context is read first. */
static bool is_ready(struct draft_model *d, struct prop_ask *ask)
{
    struct draft_model_seq *s = ask->seq;
    uint32_t n = ask->context.n;
    ask->unread = 0;
    ask->to->n = 0;
    ask->to->tree = false;
    ask->to->q_mode = ask->q_mode;
    if (n == 0 || n >= d->run.context || s->starved || s->is_foreign ||
        ask->until_us <= clock_us() || !draft_model_rows_touch(d, s)) {
        s->starved = false;
        ask->done = true;
        return false;
    }
    if (ask->max_depth > d->run.context - n)
        ask->max_depth = d->run.context - n;
    draft_model_rows_keep(d, s, n - 1); // the row of the last token gives the first draw
    draft_model_rows_share(d, s);
    s->ahead_at = n;
    if (n - s->kv.len > CATCH_UP) {
        draft_model_feed_later(d, s);
        ask->unread = n - s->kv.len;
        ask->done = draft_model_feed_us(d, s) > (ask->until_us - clock_us()) / 2;
        return false;
    }
    if ((ask->q_mode == DRAFT_SPARSE || ask->q_mode == DRAFT_DENSE) &&
        !draft_model_draw_space(d, ask)) {
        ask->done = true;
        return false;
    }
    return true;
}

/* Runs one pass and draws a token of each draft. Removes finished drafts from the group, and
 * returns the number of the others. */
static uint32_t step_group(struct draft_model *d, struct open_draft *group, uint32_t n_group)
{
    struct pass_plan *plan = &d->run.plan;
    uint32_t n = 0;
    pass_plan_clear(plan);
    for (uint32_t i = 0; i < n_group; i++) {
        struct draft_model_seq *s = group[i].ask->seq;
        uint32_t to = s->context.n + group[i].ask->to->n, from = s->kv.len;
        if (!draft_model_rows_grow(d, s, to - from))
            continue; // the draft ends with the tokens it has
        draft_model_rows_add(d, s, from);
        plan->rows[plan->n_rows - 1].wants_logits = true;
        group[n++] = (struct open_draft){group[i].ask, plan->n_rows - 1};
    }
    if (!n)
        return 0;
    draft_model_rows_pass(d);
    int64_t now_us = clock_us();
    n_group = n;
    n = 0;
    for (uint32_t i = 0; i < n_group; i++) {
        struct prop_ask *ask = group[i].ask;
        struct draft_model_seq *s = ask->seq;
        int32_t parent = (int32_t)ask->to->n - 1;
        bool has_next =
            draft_model_draw_next(d, ask, draft_model_draw_logits(d, ask, group[i].row, parent));
        if (ask->to->n)
            s->ahead[ask->to->n - 1] = ask->to->tokens[ask->to->n - 1];
        if (has_next && now_us + d->pass_us <= ask->until_us)
            group[n++] = group[i];
    }
    return n;
}

bool draft_model_step(struct draft_model *d, struct prop_ask *const *asks, uint32_t n)
{
    bool any_done = false;
    for (uint32_t at = 0; at < n;) {
        struct open_draft group[GROUP_MAX];
        uint32_t n_group = 0;
        for (; at < n && n_group < GROUP_MAX; at++) {
            if (!asks[at]->context.n_verifying && is_ready(d, asks[at])) {
                asks[at]->done = true;
                group[n_group++].ask = asks[at];
            }
            any_done |= asks[at]->done && !asks[at]->unread;
        }
        while (n_group)
            n_group = step_group(d, group, n_group);
    }
    return any_done;
}

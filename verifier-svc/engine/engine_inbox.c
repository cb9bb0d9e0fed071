/* engine_inbox.c - the engine's inbox: other threads push requests, drafts and blocks; the engine
 * thread takes them. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "verifier-svc/engine/engine_impl.h"

/* ---- other threads ---- */

int engine_push(struct engine *e, const struct inbox_item *from)
{
    struct inbox_item *item = malloc(sizeof(*item));
    if (!item)
        return fail(-ENOMEM, "no memory for a request");
    *item = *from;
    int err = queue_push(e->inbox, item);
    if (!err)
        return 0;
    free(item);
    return fail(err, err == -EPIPE ? ENGINE_STOPPING : "the engine's queue is full");
}

void engine_draft_arrived(void *user, struct draft_answer *a)
{
    struct inbox_item item = {.kind = INBOX_DRAFT, .answer = *a};
    if (engine_push(user, &item) == 0)
        a->draft = NULL; // else the caller frees it: a draft may always be lost
}

void engine_blocks_arrived(void *owner, struct kv_disk_fetch *f)
{
    struct engine *e = owner;
    struct inbox_item item = {.kind = INBOX_FETCHED, .fetch = f};
    if (engine_push(e, &item) < 0)
        kv_tier_take(e->tier, f, NULL); // the sequence that waits continues without them
}

int engine_proposer_named(void *user, unsigned i, const char *name)
{
    struct speculation s;
    engine_speculation(user, &s);
    if (*s.proposer && !speculation_is_default(&s, name))
        log_info("proposer is used only by name name=%s default_proposer=%s", name, s.proposer);
    struct inbox_item item = {.kind = INBOX_PROPOSER, .proposer = (int)i};
    stats_drafts_init(&item.counts, name);
    return engine_push(user, &item);
}

/* ---- the engine thread ---- */

static void take_request(struct engine *e, struct request *r)
{
    for (uint32_t i = 0; i < r->n; i++) {
        r->seqs[i]->id = ++e->next_id;
        r->seqs[i]->order = ++e->next_order;
    }
    uint32_t first = 0; // that another verifier has not finished
    while (r->seqs[first]->state == SEQ_ENDED)
        first++;
    seq_list_add(&e->waiting, r->seqs[first]);
}

static void take_verify(struct engine *e, struct inbox_item *item)
{
    char text[REQUEST_MAX_ERROR];
    struct seq *s = item->req->seqs[0];
    atomic_store(&item->req->draft_pending, false);
    if (s->state == SEQ_ENDED)
        return;
    if (s->draft) {
        engine_fail_request(e, s->req, -ESTALE, "the last draft is still being verified");
    } else if (item->base_len != s->n) {
        snprintf(text, sizeof(text), "the draft continues a length of %u, %u tokens are committed",
                 item->base_len, s->n);
        engine_fail_request(e, s->req, -ESTALE, text);
    } else {
        seq_take_draft(s, TAKE(item->draft), SEQ_NO_PROPOSER);
        s->idle_us = 0;
    }
}

static void forget_proposer(struct seq_list *l, int proposer)
{
    for (uint32_t i = 0; i < l->n; i++) {
        if (l->v[i]->proposer == proposer)
            seq_drop_draft(l->v[i]);
        control_seq_forget(&l->v[i]->control, (unsigned)proposer);
    }
}

/* Drafts and estimates at this place belong to the proposer that had it before. */
static void take_proposer(struct engine *e, const struct inbox_item *item)
{
    forget_proposer(&e->running, item->proposer);
    forget_proposer(&e->waiting, item->proposer);
    control_forget(&e->control, (unsigned)item->proposer);
    e->stats->proposers[item->proposer] = item->counts;
}

static void take_item(struct engine *e, struct inbox_item *item)
{
    switch (item->kind) {
    case INBOX_REQUEST:
        take_request(e, item->req); // its hold stays with the engine
        break;
    case INBOX_VERIFY:
        take_verify(e, item);
        request_drop(item->req);
        draft_free(item->draft);
        break;
    case INBOX_DRAFT:
        round_take_draft(e, &item->answer);
        draft_free(item->answer.draft);
        break;
    case INBOX_PROPOSER:
        take_proposer(e, item);
        break;
    case INBOX_FETCHED:
        kv_tier_take(e->tier, item->fetch, seq_list_find(&e->waiting, item->fetch->owner));
        break;
    }
    free(item);
}

void engine_take_inbox(struct engine *e, int64_t wait_us)
{
    struct inbox_item *item = queue_pop(e->inbox, wait_us);
    for (; item; item = queue_pop(e->inbox, 0))
        take_item(e, item);
}

void engine_free_inbox(struct engine *e)
{
    for (struct inbox_item *item; e->inbox && (item = queue_pop(e->inbox, 0)); free(item)) {
        request_drop(item->req);
        draft_free(item->draft);
        draft_free(item->answer.draft);
    }
    queue_free(e->inbox);
}

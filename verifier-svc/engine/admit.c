/* admit.c - which waiting sequences start, or start again. The decision depends on free blocks, on
 * the blocks that a sequence needs, and on rows that other sequences are computing for it. */
#include <errno.h>
#include <string.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/minmax.h"
#include "verifier-svc/engine/continuation.h"
#include "verifier-svc/engine/engine_impl.h"
#include "verifier-svc/engine/capacity.h"
#include "verifier-svc/engine/snapshots.h"

#define MAX_COMPARED 16 // waiting sequences compared with the running ones, which takes time
/* Sequences that restore at the same time; more would evict the blocks of each other. */
#define MAX_RESTORING 4

/* The sequence has nothing to run until its client acts. */
static bool is_dormant(const struct seq *s)
{
    return s->started &&
           (atomic_load(&s->req->paused) || (s->req->verify && !s->draft && s->n - s->kv.len <= 1));
}

/* Whether one more choice of the request may start. `waiting` must have space to put back all that
 * have started. A started request keeps one place while none of its choices has started. */
static bool has_place(const struct engine *e, const struct request *r)
{
    return e->n_started < e->max_started || r->n_started < r->n_places;
}

/* A preempted Verify stream waits in the queue for its next draft. */
static bool may_be_admitted(const struct engine *e, const struct seq *s)
{
    if (atomic_load(&s->req->paused))
        return false;
    return s->started ? !s->req->verify || s->draft : has_place(e, s->req);
}

/* Of the blocks that s needs, those that running sequences already hold. */
static uint32_t blocks_held_by_others(const struct engine *e, const struct seq *s)
{
    struct kv_root root = seq_root(s);
    uint32_t held;
    kv_find(e->loaded->run.kv, &root, seq_tokens(s), s->n - 1, &held);
    return held;
}

/* Cached rows of the prompt. A continued sequence may find rows of its answer, too. */
static uint32_t cached_prompt(const struct seq *s)
{
    return min_u32(s->n_cached, s->n_prompt);
}

static void count_admission(struct engine *e, const struct seq *s, int64_t now_us)
{
    const struct request *r = s->req;
    metrics_add(e->stats->prompt_tokens, r->n_prompt);
    metrics_add(e->stats->prefix_queries, r->n_prompt);
    uint32_t cached = cached_prompt(s);
    uint32_t from_disk = min_u32(s->n_restored, cached);
    metrics_add(e->stats->prefix_hits, cached - from_disk);
    metrics_add(e->stats->disk_hits, from_disk);
    metrics_observe(e->stats->prompt_length, r->n_prompt);
    metrics_observe(e->stats->queue_s, (double)(now_us - r->arrived_us) / 1e6);
}

/* Takes the cached rows of the sequence, which need not run. The last row always runs. */
static void match_prefix(struct engine *e, struct seq *s)
{
    struct kv_root root = seq_root(s);
    uint32_t n = kv_match(e->loaded->run.kv, &s->kv, &root, s->tokens, s->n - 1);
    s->n_snapshot = n;
    s->n_own_snapshot = 0;
    if (!s->started)
        s->n_cached = n;
}

static void start_choice(struct engine *e, struct seq *s, int64_t now_us)
{
    const struct request *r = s->req;
    s->started = true;
    s->admitted_us = now_us;
    s->idle_us = r->verify && !s->draft ? now_us : 0;
    struct event *ev = events_add(events_reserve(e->events, 0), s->req, s->choice);
    ev->started = true;
    ev->n_cached = cached_prompt(s);
    engine_count_started(e, s->req);
}

/* Puts the first choice that has not started into the queue, at its old place. */
static void queue_next_choice(struct engine *e, const struct request *r)
{
    for (uint32_t i = 0; i < r->n; i++) {
        struct seq *s = r->seqs[i];
        if (s->started || s->state == SEQ_ENDED)
            continue;
        s->state = SEQ_WAITING;
        seq_list_add(&e->waiting, s);
        return;
    }
}

/* Whether the choice can wait for the prompt of the first one, in the running list. */
static bool may_join(const struct engine *e, struct seq *s, const struct capacity *available)
{
    struct capacity needed = capacity_of_branch();
    return capacity_fits(&needed, available) &&
           (s->started || (has_place(e, s->req) && (s->tokens || seq_open(s) == 0)));
}

/* The first choice runs the prompt: choices without rows wait for it, as many as there are seats
 * for. Of the others, those that have started wait in the queue. */
static void join_branches(struct engine *e, const struct request *r, int64_t now_us)
{
    struct capacity available = capacity_free(e), needed = capacity_of_branch();
    for (uint32_t i = 1; i < r->n; i++) {
        struct seq *s = r->seqs[i];
        if (s->state != SEQ_BRANCH)
            continue;
        bool joins = may_join(e, s, &available);
        if (joins) {
            capacity_subtract(&available, &needed);
            seq_list_add(&e->running, s);
            s->n_cached = r->seqs[0]->n_cached;
        } else if (s->started) {
            s->state = SEQ_WAITING;
            seq_list_add(&e->waiting, s);
        }
        if (joins && !s->started)
            start_choice(e, s, now_us);
    }
}

/* Ends a continued sequence whose tokens include its end; its client has not heard of the end. */
static void end_replayed(struct engine *e, struct seq *s, enum seq_end end)
{
    struct event_batch *b = events_reserve(e->events, 1);
    struct event *ev = events_add(b, s->req, s->choice);
    ev->text_at = (uint32_t)b->text.len;
    seq_flush(s, &b->text); // fits: the batch has space for all that can be held back
    ev->text_len = (uint32_t)b->text.len - ev->text_at;
    engine_end_seq(e, s, end, ev);
}

static bool needs_replay(const struct seq *s)
{
    return s->req->continued && !s->replayed;
}

/* The request of s starts with it. False: it was displaced. */
static bool start_request(struct engine *e, struct seq *s, int64_t now_us)
{
    if (!flows_start(e->flows, &s->req->place, s->n - s->n_cached))
        return false;
    count_admission(e, s, now_us);
    return true;
}

static void admit_seq(struct engine *e, struct seq *s, int64_t now_us)
{
    struct request *r = s->req;
    enum seq_end end = SEQ_CONTINUES;
    const bool is_new = !s->started;
    int err = s->tokens ? 0 : seq_open(s);
    if (!err && needs_replay(s))
        err = continuation_replay(s, &e->replay_left, &end);
    if (err < 0) {
        engine_fail_request(e, r, err, fail_text());
        return;
    }
    if (needs_replay(s))
        return; // it stays in the queue, and a later turn continues
    match_prefix(e, s);
    if (!r->n_places && !start_request(e, s, now_us)) {
        engine_fail_displaced(e, r);
        return;
    }
    if (is_new)
        start_choice(e, s, now_us);
    seq_list_remove(&e->waiting, s);
    if (end != SEQ_CONTINUES) {
        end_replayed(e, s, end);
    } else {
        s->state = SEQ_RUNNING;
        seq_list_add(&e->running, s);
    }
    if (s->choice == 0 && s->n == s->n_prompt)
        join_branches(e, r, now_us);
    if (is_new)
        queue_next_choice(e, r);
}

/* Preempts a dormant sequence in favour of waiting ones. False: there is none. */
static bool preempt_dormant(struct engine *e)
{
    for (uint32_t i = e->running.n; i-- > 0;) {
        struct seq *s = e->running.v[i];
        if (s->state == SEQ_RUNNING && is_dormant(s)) {
            engine_preempt(e, s);
            return true;
        }
    }
    return false;
}

/* It has started, and no row of it runs: it waits for a seat or for its client. */
static bool is_idle(const struct seq *s)
{
    return s->started && (s->state == SEQ_WAITING || is_dormant(s));
}

/* Counts the sequences of each flow. Returns the most idle ones of a flow. */
static uint32_t count_flows(struct engine *e)
{
    const struct seq_list *lists[] = {&e->running, &e->waiting};
    uint32_t most = 0;
    memset(e->counts, 0, flows_max(e->flows) * sizeof(*e->counts));
    for (unsigned l = 0; l < 2; l++) {
        for (uint32_t i = 0; i < lists[l]->n; i++) {
            const struct seq *s = lists[l]->v[i];
            struct engine_flow_count *c = &e->counts[s->req->place.flow];
            c->started += s->started;
            c->idle += is_idle(s);
            most = max_u32(c->idle, most);
        }
    }
    return most;
}

/* The newest idle sequence of the flows with n idle ones, of which there is one. */
static struct seq *newest_idle(const struct engine *e, uint32_t n)
{
    const struct seq_list *lists[] = {&e->running, &e->waiting};
    struct seq *newest = NULL;
    for (unsigned l = 0; l < 2; l++) {
        for (uint32_t i = 0; i < lists[l]->n; i++) {
            struct seq *s = lists[l]->v[i];
            if (is_idle(s) && e->counts[s->req->place.flow].idle == n &&
                (!newest || s->order > newest->order))
                newest = s;
        }
    }
    return newest;
}

/* Sequences without a seat stay started. If all places are taken, one is ended in favour of a flow
 * that has fewer. False: no such flow waits. */
static bool end_idle(struct engine *e)
{
    uint32_t most = e->n_started < e->max_started ? 0 : count_flows(e);
    struct seq *s = most ? newest_idle(e, most) : NULL;
    for (uint32_t i = 0; s && i < e->waiting.n; i++) {
        const struct seq *w = e->waiting.v[i];
        if (w->started || e->counts[w->req->place.flow].started >= most)
            continue;
        engine_fail_request(e, s->req, -EBUSY, ENGINE_CROWDED);
        return true;
    }
    return false;
}

/* Admits the first new request whose flow has little: it passes the head of the queue, or the
 * largest flow gives it what it lacks. False: there is none. */
static bool admit_small_flow(struct engine *e, int64_t now_us)
{
    struct capacity_largest largest = capacity_largest(e); // once: many may wait
    struct capacity available = capacity_free(e);
    const struct seq *head = NULL;
    for (uint32_t i = 0; i < e->waiting.n; i++) {
        struct seq *s = e->waiting.v[e->turns[i].index];
        if (e->waits[i].skip)
            continue;
        head = head ? head : s;
        struct capacity needed = capacity_needed(e, s);
        bool fits = capacity_fits(&needed, &available);
        if (s->started || !(fits ? capacity_may_pass(e, s, head) : capacity_take(e, &largest, s)))
            continue;
        admit_seq(e, s, now_us);
        return true;
    }
    return false;
}

static bool has_same_tenant(const struct request *a, const struct request *b)
{
    return a->tenant_len == b->tenant_len && memcmp(a->tenant, b->tenant, a->tenant_len) == 0;
}

/* Rows of the common prefix of s and r at which s can begin, without the last row of s. */
static uint32_t common_rows(const struct engine *e, const struct seq *s, const struct seq *r)
{
    const uint32_t *a = seq_tokens(s), *b = seq_tokens(r);
    uint32_t n = 0, most = min_u32(s->n - 1, r->n);
    while (n < most && a[n] == b[n])
        n++;
    return snapshots_common(e, r, n);
}

/* Whether s still waits for n_rows that another flow computes: at most as long as they take alone.
 * That flow's other prompts may delay them for longer. */
static bool may_await_flow(const struct engine *e, struct seq *s, uint32_t n_rows, int64_t now_us)
{
    const struct pass_time_work rows = {.rows = n_rows};
    if (!s->share_until_us)
        s->share_until_us = now_us + (int64_t)pass_time_us(&e->control.pass_time, &rows);
    return now_us < s->share_until_us;
}

/* A running sequence is computing most of the rows that s needs: s waits to share them. */
static bool awaits_prefix(const struct engine *e, struct seq *s, int64_t now_us)
{
    for (uint32_t i = 0; e->options->prefix_cache && i < e->running.n; i++) {
        const struct seq *r = e->running.v[i];
        if (seq_todo(r) <= 1 || !has_same_tenant(r->req, s->req))
            continue;
        uint32_t common = common_rows(e, s, r), done = r->kv.len;
        if (common > done && 2 * (common - done) >= s->n - done &&
            (r->req->place.flow == s->req->place.flow ||
             may_await_flow(e, s, common - done, now_us)))
            return true;
    }
    return false;
}

/* True: s waits for rows of other sequences, or for the disk, although it could start. */
static bool waits_for_rows(struct engine *e, struct seq *s, bool compare, bool restore,
                           int64_t now_us)
{
    if (compare && awaits_prefix(e, s, now_us))
        return true;
    if (!restore || !kv_tier_restores(e->tier, s, now_us))
        return false;
    if (s->restore_until_us < e->restore_until_us)
        e->restore_until_us = s->restore_until_us;
    return true;
}

/* The waiting sequences by turn: first those that have started, here or at another verifier. */
static void sort_turns(struct engine *e)
{
    for (uint32_t i = 0; i < e->waiting.n; i++) {
        const struct seq *s = e->waiting.v[i];
        e->turns[i] = (struct flows_turn){.place = &s->req->place,
                                          .index = i,
                                          .n_tokens = s->n_prompt,
                                          .first = s->started || s->req->place.resumed};
    }
    flows_sort(e->flows, e->turns, e->waiting.n);
}

/* True: this turn has no time left for tokens of s. */
static bool waits_for_replay(struct engine *e, const struct seq *s)
{
    bool waits = needs_replay(s) && !e->replay_left;
    e->replays |= waits;
    return waits;
}

static struct seq *next_to_admit(struct engine *e, int64_t now_us, bool *ret_any)
{
    struct capacity available = capacity_free(e);
    uint32_t n = 0, blocks = (uint32_t)(available.blocks > 0 ? available.blocks : 0);
    uint32_t seats = (uint32_t)available.seats;
    e->restore_until_us = INT64_MAX;
    sort_turns(e);
    for (uint32_t i = 0; i < e->waiting.n; i++) {
        struct seq *s = e->waiting.v[e->turns[i].index];
        e->waits[i] = (struct sched_wait){.passed = &s->passed, .skip = true};
        if (!may_be_admitted(e, s) || waits_for_replay(e, s) ||
            waits_for_rows(e, s, i < MAX_COMPARED, seats && n < MAX_RESTORING, now_us))
            continue;
        struct capacity needed = capacity_needed(e, s);
        if (n++ == 0) // only for the head, since the lookup takes time
            needed.blocks -= blocks_held_by_others(e, s);
        e->waits[i] =
            (struct sched_wait){&s->passed, (uint32_t)needed.blocks, (uint32_t)needed.seats, false};
    }
    *ret_any = n > 0;
    uint32_t i = sched_admit(e->waits, e->waiting.n, blocks, seats, now_us);
    return i == SCHED_NONE ? NULL : e->waiting.v[e->turns[i].index];
}

void admit_waiting(struct engine *e)
{
    bool any;
    e->replay_left = CONTINUATION_TURN;
    e->replays = false;
    for (;;) {
        int64_t now_us = clock_us();
        struct seq *s = next_to_admit(e, now_us, &any);
        if (s)
            admit_seq(e, s, now_us);
        else if (!end_idle(e) && !(any && (preempt_dormant(e) || admit_small_flow(e, now_us))))
            return;
    }
}

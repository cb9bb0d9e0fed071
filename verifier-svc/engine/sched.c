/* sched.c - admission, and the rows of a pass. */
#include "verifier-svc/engine/sched.h"
#include "base/minmax.h"

void sched_init(struct sched *s, const struct sched_limits *limits)
{
    *s = (struct sched){.limits = *limits, .is_plain = true};
}

static bool fits(const struct sched_wait *w, uint32_t free_blocks, uint32_t free_seats)
{
    return !w->skip && w->blocks <= free_blocks && w->seats <= free_seats;
}

/* True: a later request may pass the head, which does not fit. */
static bool may_pass(struct sched_passed *head, int64_t now_us)
{
    if (!head->since_us)
        head->since_us = now_us;
    return head->n < SCHED_MAX_PASSING && now_us - head->since_us < SCHED_MAX_PASSED_US;
}

uint32_t sched_admit(const struct sched_wait *waiting, uint32_t n, uint32_t free_blocks,
                     uint32_t free_seats, int64_t now_us)
{
    uint32_t head = 0;
    while (head < n && waiting[head].skip)
        head++;
    uint32_t i = head;
    while (i < n && !fits(&waiting[i], free_blocks, free_seats))
        i++;
    if (i != head && !may_pass(waiting[head].passed, now_us))
        return SCHED_NONE;
    if (i == n)
        return SCHED_NONE;
    for (uint32_t k = 0; k < i; k++)
        waiting[k].passed->n += waiting[k].passed->since_us != 0;
    return i;
}

/* Passes of 2^i to 2^(i+1) - 1 rows are of size i. n_rows: at least 1. */
static unsigned size_of(uint32_t n_rows)
{
    return min_u32(31 - (uint32_t)__builtin_clz(n_rows), SCHED_SIZES - 1);
}

/* Time per row in passes of size i. An unknown one lies on the line between the times of the next
 * smaller and larger passes. If there are no larger ones, it is that of smaller ones. It is longer
 * there, since weights are read once per pass. 0: there was no pass. */
static double row_us_at(const double row_us[SCHED_SIZES], unsigned i)
{
    unsigned below = i + 1, above = i;
    while (below-- > 0 && row_us[below] <= 0)
        ;
    while (above < SCHED_SIZES && row_us[above] <= 0)
        above++;
    if (above == SCHED_SIZES)
        return below < SCHED_SIZES ? row_us[below] : 0;
    if (below >= SCHED_SIZES || below == above)
        return row_us[above];
    const double n = 1u << i, least = 1u << below, most = 1u << above;
    const double from = row_us[below] * least, to = row_us[above] * most;
    return (from + (to - from) * (n - least) / (most - least)) / n;
}

/* Time of n rows that decode. */
static double plain_time(const struct sched *s, uint32_t n)
{
    return n ? row_us_at(s->plain_us, size_of(n)) * n : 0;
}

/* Time that a pass may take: us, or twice that of n rows that decode. */
static double time_beside(const struct sched *s, double us, uint32_t n)
{
    const double twice = 2 * plain_time(s, n);
    return twice > us ? twice : us;
}

/* Rows of the largest pass that ends within us, by these times per row. 0: not even one. unknown:
 * if no pass was timed. */
static uint32_t rows_within(const struct sched *s, const double row_us_of[SCHED_SIZES], double us,
                            uint32_t unknown)
{
    for (unsigned i = size_of(s->limits.max_rows) + 1; i-- > 0;) {
        double row_us = row_us_at(row_us_of, i);
        if (row_us <= 0)
            return unknown;
        double rows = us / row_us, most = (double)(2u << i) - 1;
        if (rows >= (double)(1u << i))
            return min_u32((uint32_t)(rows < most ? rows : most), s->limits.max_rows);
    }
    return 0;
}

/* Rows of the largest pass that ends in time, n_decoding rows included. The others are of prompts,
 * or of drafts. */
static uint32_t rows_in_time(const struct sched *s, uint32_t n_decoding, bool prompts)
{
    const double max_us = (double)s->limits.max_pass_us;
    const double us = n_decoding ? time_beside(s, max_us, n_decoding) : SCHED_ALONE_US;
    const uint32_t first = n_decoding + 4 * SCHED_MIN_CHUNK;
    return max_u32(rows_within(s, prompts ? s->row_us : s->plain_us, us, first), n_decoding);
}

/* ---- decoding rows ---- */

/* One row for each decoding sequence. */
static uint32_t grant_decoding(const struct sched *s, struct sched_grant *v, uint32_t n)
{
    uint32_t used = 0;
    for (uint32_t i = 0; i < n; i++) {
        v[i].rows = v[i].draft_rows = 0;
        if (v[i].todo == 1 && used < s->limits.max_rows)
            used += v[i].rows = 1;
    }
    return used;
}

/* Whether a sequence of this flow has a row to decode. */
static bool decodes(const struct sched_grant *g, uint32_t flow)
{
    return g->todo == 1 && g->rows == 1 && g->flow == flow;
}

static bool has_work(const struct sched_grant *g)
{
    return g->todo || g->waits;
}

/* Sets n_flow. Returns the number of flows that have something to run, or wait for a draft. */
static uint32_t count_flows(struct sched_grant *v, uint32_t n)
{
    uint32_t n_flows = 0;
    for (uint32_t i = 0; i < n; i++)
        v[i].n_flow = 0;
    for (uint32_t i = 0, first; i < n; i++) {
        if (!has_work(&v[i]))
            continue;
        for (first = 0; !has_work(&v[first]) || v[first].flow != v[i].flow;)
            first++;
        n_flows += first == i;
        v[first].n_flow += decodes(&v[i], v[i].flow);
    }
    return n_flows;
}

/* The sum of all decoding rows if each flow gets `part` at most. */
static uint32_t rows_of_parts(const struct sched_grant *v, uint32_t n, uint32_t part)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += min_u32(v[i].n_flow, part);
    return sum;
}

/* Takes rows from the flow's sequences until `part` are left. Those whose last row is longest ago
 * keep theirs. */
static void take_turns(struct sched_grant *v, uint32_t n, uint32_t flow, uint32_t n_rows,
                       uint32_t part)
{
    while (n_rows > part) {
        uint64_t latest = 0;
        for (uint32_t i = 0; i < n; i++)
            if (decodes(&v[i], flow) && v[i].ran > latest)
                latest = v[i].ran;
        for (uint32_t i = n; i-- > 0 && n_rows > part;)
            if (decodes(&v[i], flow) && v[i].ran == latest) {
                v[i].rows = 0;
                n_rows--;
            }
    }
}

/* A slow pass may have been a stall of the machine. Without passes of these sizes, that would never
 * be seen. */
#define FORGET 0.99

static void forget_next(struct sched *s, uint32_t n_rows)
{
    unsigned i = size_of(n_rows) + 1;
    while (i < SCHED_SIZES && s->plain_us[i] <= 0)
        i++;
    if (i < SCHED_SIZES)
        s->plain_us[i] *= FORGET;
}

/* Leaves `used` decoding rows, or as many as end in time while several flows share the passes. */
static uint32_t share_decoding(struct sched *s, struct sched_grant *v, uint32_t n, uint32_t used)
{
    const double part_us = (double)s->limits.max_pass_us / SCHED_PLAIN_PARTS;
    const uint32_t n_flows = count_flows(v, n);
    const uint32_t most = rows_within(s, s->plain_us, time_beside(s, part_us, n_flows), used);
    uint32_t part = 1;
    if (n_flows < 2 || used <= most)
        return used;
    while (rows_of_parts(v, n, part + 1) <= most)
        part++;
    for (uint32_t i = 0; i < n; i++)
        if (v[i].n_flow > part)
            take_turns(v, n, v[i].flow, v[i].n_flow, part);
    s->takes_turns = true;
    forget_next(s, max_u32(most, 1));
    return rows_of_parts(v, n, part);
}

/* Draft rows: one per sequence and turn, so that no draft starves. own: also clients' own
 * drafts. */
static uint32_t grant_drafts(struct sched_grant *v, uint32_t n, uint32_t budget, bool own)
{
    uint32_t used = 0;
    for (bool more = true; more && used < budget;) {
        more = false;
        for (uint32_t i = 0; i < n && used < budget; i++) {
            if (v[i].rows != 1 || v[i].todo != 1 || v[i].draft_rows == v[i].draft ||
                (v[i].own_draft && !own))
                continue;
            v[i].draft_rows++;
            used++;
            more = true;
        }
    }
    return used;
}

/* Rows that a prompt can still get in this pass. */
static uint32_t prompt_rest(const struct sched *s, const struct sched_grant *g)
{
    return g->todo > 1 ? min_u32(g->todo, s->limits.prefill_chunk) - g->rows : 0;
}

/* Rows for prompts in their order: of all flows, or only of the flow of `like`. */
static uint32_t grant_in_order(const struct sched *s, struct sched_grant *v, uint32_t n,
                               uint32_t budget, const struct sched_grant *like)
{
    uint32_t used = 0;
    for (uint32_t i = 0; i < n && used < budget; i++) {
        if (like && v[i].flow != like->flow)
            continue;
        const uint32_t more = min_u32(prompt_rest(s, &v[i]), budget - used);
        v[i].rows += more;
        used += more;
    }
    return used;
}

/* Whether v[i] is the first prompt of its flow. */
static bool leads_flow(const struct sched_grant *v, uint32_t i)
{
    bool leads = v[i].todo > 1;
    for (uint32_t k = 0; k < i && leads; k++)
        leads = v[k].todo <= 1 || v[k].flow != v[i].flow;
    return leads;
}

/* Rows in equal parts for all flows. */
static uint32_t grant_equally(const struct sched *s, struct sched_grant *v, uint32_t n,
                              uint32_t budget)
{
    uint32_t used = 0, n_flows = 0;
    for (uint32_t i = 0; i < n; i++)
        n_flows += leads_flow(v, i);
    for (uint32_t i = 0; i < n && used < budget; i++) {
        if (leads_flow(v, i)) {
            const uint32_t part = (budget - used + n_flows - 1) / n_flows;
            used += grant_in_order(s, v, n, part, &v[i]);
            n_flows--;
        }
    }
    return used;
}

static uint32_t grant_prompts(const struct sched *s, struct sched_grant *v, uint32_t n,
                              uint32_t budget)
{
    uint32_t used = grant_in_order(s, v, n, budget - budget / 2, NULL);
    used += grant_equally(s, v, n, budget - used);
    return used + grant_in_order(s, v, n, budget - used, NULL);
}

uint32_t sched_draft_rows(const struct sched *s, const struct sched_load *l)
{
    uint32_t left = s->limits.max_rows - min_u32(l->n_decoding, s->limits.max_rows);
    if (l->shared && left)
        left = min_u32(left, rows_in_time(s, l->n_decoding, false) - l->n_decoding);
    uint32_t for_drafts = l->n_prompts ? left / 4 * 3 : left; // prompts always proceed
    uint32_t logits_left = s->limits.max_logits - min_u32(l->n, s->limits.max_logits);
    return min_u32(for_drafts, logits_left);
}

/* Granted rows that are extra. */
static uint32_t extra_rows(const struct sched_grant *v, uint32_t n)
{
    uint32_t extra = 0;
    for (uint32_t i = 0; i < n; i++)
        extra += v[i].todo > 1 ? v[i].rows : v[i].own_draft ? v[i].draft_rows : 0;
    return extra;
}

/* Rows for prompts beside `used` other rows. */
static uint32_t prompt_rows(const struct sched *s, uint32_t used, uint32_t n_decoding)
{
    uint32_t in_time = rows_in_time(s, n_decoding, true);
    uint32_t rows = in_time > used ? in_time - used : 0;
    return min_u32(max_u32(rows, SCHED_MIN_CHUNK), s->limits.max_rows - used);
}

/* A sequence that decodes, with a draft that must not be cut because time is owed. */
static bool has_whole_draft(const struct sched_grant *g)
{
    return g->whole_draft && g->rows == 1 && g->draft;
}

/* Takes the rows from the sequences with whole drafts; returns how many. */
static uint32_t miss_pass(struct sched_grant *v, uint32_t n)
{
    uint32_t missed = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (has_whole_draft(&v[i])) {
            v[i].rows = 0;
            missed++;
        }
    }
    return missed;
}

/* Of the sequences with rows whose number is `last` or less, the one with the least; n: none. */
static uint32_t next_to_number(const struct sched_grant *v, uint32_t n, uint64_t last)
{
    uint32_t next = n;
    for (uint32_t i = 0; i < n; i++)
        if (v[i].rows && v[i].ran <= last && (next == n || v[i].ran < v[next].ran))
            next = i;
    return next;
}

/* Sequences that take turns form a queue: those that ran keep their order at its end. */
static void number_rows(struct sched *s, struct sched_grant *v, uint32_t n)
{
    const uint64_t last = s->ran;
    if (s->takes_turns) {
        for (uint32_t i; (i = next_to_number(v, n, last)) < n;)
            v[i].ran = ++s->ran;
    } else {
        s->ran++;
        for (uint32_t i = 0; i < n; i++)
            v[i].ran = v[i].rows ? s->ran : v[i].ran;
    }
    s->takes_turns = false;
}

uint32_t sched_grant_rows(struct sched *s, struct sched_grant *v, uint32_t n, bool shared)
{
    struct sched_load l = {.n = n, .n_decoding = grant_decoding(s, v, n), .shared = shared};
    uint32_t n_waiting = 0, n_plain = l.n_decoding;
    for (uint32_t i = 0; i < n; i++) {
        l.n_prompts += v[i].todo > 1;
        n_waiting += v[i].waits;
        n_plain -= has_whole_draft(&v[i]);
    }
    const bool counts = shared && n_plain + n_waiting, owes = counts && s->owed_us > 0;
    if (owes && n_plain)
        l.n_decoding -= miss_pass(v, n);
    if (shared)
        l.n_decoding = share_decoding(s, v, n, l.n_decoding);
    const bool gap = owes && !n_plain; // all that decode wait for their drafts
    uint32_t for_drafts = sched_draft_rows(s, &l);
    for_drafts = gap ? min_u32(for_drafts, SCHED_MIN_CHUNK) : for_drafts;
    uint32_t used = l.n_decoding + grant_drafts(v, n, for_drafts, !owes || gap);
    if (l.n_prompts && !owes)
        used += grant_prompts(s, v, n, prompt_rows(s, used, l.n_decoding + n_waiting));
    else if (l.n_prompts && (gap || !used))
        used += grant_prompts(s, v, n, min_u32(SCHED_MIN_CHUNK, s->limits.max_rows - used));
    const uint32_t extra = counts ? extra_rows(v, n) : 0;
    s->is_plain = true;
    for (uint32_t i = 0; i < n; i++)
        s->is_plain &= v[i].todo <= 1 || !v[i].rows;
    s->has_extra = extra > 0;
    s->n_plain = owes ? used : used - extra; // nothing is owed for what fills a gap
    number_rows(s, v, n);
    return used;
}

/* Extra rows took the time that a pass of the other rows would not have taken. */
static void count_extra(struct sched *s, double us)
{
    double extra_us = -us;
    if (s->has_extra)
        extra_us = us - plain_time(s, s->n_plain);
    s->owed_us += extra_us > -s->owed_us ? extra_us : -s->owed_us;
    s->has_extra = false;
}

static void learn_time(double *row_us, double now_us)
{
    if (*row_us <= 0)
        *row_us = now_us;
    else
        *row_us +=
            (now_us > *row_us ? 0.5 : 0.25) * (now_us - *row_us); // react faster to slower passes
}

void sched_pass_done(struct sched *s, uint32_t n_rows, int64_t us)
{
    count_extra(s, (double)us);
    learn_time(&s->row_us[size_of(n_rows)], (double)us / n_rows);
    if (s->is_plain)
        learn_time(&s->plain_us[size_of(n_rows)], (double)us / n_rows);
}

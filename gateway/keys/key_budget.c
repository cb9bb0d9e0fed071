/* key_budget.c - what one API key has used of its limits per minute and per day. */
#include "gateway/keys/key_budget.h"
#include <errno.h>

#define SECOND_US INT64_C(1000000)
#define MINUTE_US (60 * SECOND_US)
#define DAY_US (1440 * MINUTE_US)
#define MOST_DEBT_US (10 * MINUTE_US) // bounds the wait after debts, and after the clock was wrong
#define MOST_TOKENS (UINT64_C(1) << 36) // of a request; times a minute it fits into 63 bits

/* ---- buckets ---- */

/* The time in which a bucket of this limit gains n, rounded up. */
static int64_t time_of(uint64_t n, uint32_t limit)
{
    uint64_t most = n < MOST_TOKENS ? n : MOST_TOKENS;
    int64_t time_us = (int64_t)((most * (uint64_t)MINUTE_US + limit - 1) / limit);
    return time_us < MOST_DEBT_US ? time_us : MOST_DEBT_US;
}

/* The time until the bucket is full. More than a minute is a debt. */
static int64_t time_until(int64_t full_us, int64_t now_us)
{
    int64_t until_us = full_us > now_us ? full_us - now_us : 0;
    return until_us < MOST_DEBT_US ? until_us : MOST_DEBT_US;
}

static uint64_t left_in_bucket(int64_t full_us, uint32_t limit, int64_t now_us)
{
    int64_t missing_us = time_until(full_us, now_us);
    return missing_us >= MINUTE_US
               ? 0
               : (uint64_t)(MINUTE_US - missing_us) * limit / (uint64_t)MINUTE_US;
}

/* The time until n are in the bucket. */
static int64_t wait_for(uint64_t n, int64_t full_us, uint32_t limit, int64_t now_us)
{
    int64_t spare_us = MINUTE_US - time_of(n, limit), missing_us = time_until(full_us, now_us);
    return missing_us > spare_us ? missing_us - spare_us : 0;
}

static void take(int64_t *full_us, int64_t *unsaved_us, int64_t part_us, int64_t now_us)
{
    *full_us = now_us + time_until(*full_us, now_us) + part_us;
    *unsaved_us += part_us;
}

/* ---- days ---- */

static int64_t day_of(int64_t now_us)
{
    return now_us / DAY_US;
}

static uint64_t left_today(const struct key_budget *b, uint32_t limit, int64_t now_us)
{
    int64_t used = b->counts.day == day_of(now_us) ? b->counts.day_tokens : 0;
    int64_t left = (int64_t)limit - used - b->reserved;
    return left > 0 ? (uint64_t)left : 0;
}

/* Counts from zero if the day is over, or if the clock was on another day by mistake. */
static void begin_day(struct key_budget *b, int64_t now_us)
{
    if (b->counts.day == day_of(now_us))
        return;
    b->counts.day = day_of(now_us);
    b->counts.day_tokens = b->unsaved.day_tokens = 0;
}

/* ---- levels ---- */

struct key_budget_level key_budget_requests(const struct key_budget *b,
                                            const struct key_file_limits *l, int64_t now_us)
{
    if (!l->rate)
        return (struct key_budget_level){0};
    return (struct key_budget_level){
        .limit = l->rate,
        .left = left_in_bucket(b->counts.requests_full_us, l->rate, now_us),
        .reset_us = time_until(b->counts.requests_full_us, now_us)};
}

static struct key_budget_level minute_level(const struct key_budget *b, uint32_t limit,
                                            int64_t now_us)
{
    int64_t left = (int64_t)left_in_bucket(b->counts.tokens_full_us, limit, now_us) - b->reserved;
    return (struct key_budget_level){.limit = limit,
                                     .left = left > 0 ? (uint64_t)left : 0,
                                     .reset_us = time_until(b->counts.tokens_full_us, now_us)};
}

static struct key_budget_level day_level(const struct key_budget *b, uint32_t limit, int64_t now_us)
{
    uint64_t left = left_today(b, limit, now_us);
    return (struct key_budget_level){.limit = limit,
                                     .left = left,
                                     .reset_us = left < limit ? DAY_US - now_us % DAY_US : 0,
                                     .per_day = true};
}

struct key_budget_level key_budget_tokens(const struct key_budget *b,
                                          const struct key_file_limits *l, int64_t now_us)
{
    struct key_budget_level minute = minute_level(b, l->tokens_per_minute, now_us),
                            day = day_level(b, l->tokens_per_day, now_us);
    if (!minute.limit || (day.limit && day.left < minute.left))
        return day.limit ? day : (struct key_budget_level){0};
    return minute;
}

/* ---- requests ---- */

int key_budget_begin(struct key_budget *b, const struct key_file_limits *l, int64_t now_us,
                     int64_t *ret_wait_us)
{
    if (!l->rate)
        return 0;
    *ret_wait_us = wait_for(1, b->counts.requests_full_us, l->rate, now_us);
    if (*ret_wait_us > 0)
        return -EAGAIN;
    take(&b->counts.requests_full_us, &b->unsaved.requests_us, time_of(1, l->rate), now_us);
    return 0;
}

/* level: of a limit; wait_us: until n are left of it, without reservations. */
static int check_level(struct key_budget_level level, int64_t wait_us, uint64_t n,
                       struct key_budget_level *ret_level, int64_t *ret_wait_us)
{
    if (!level.limit || n <= level.left)
        return 0;
    *ret_level = level;
    *ret_wait_us = wait_us > SECOND_US ? wait_us : SECOND_US;
    return n > level.limit ? -EMSGSIZE : -EAGAIN;
}

int key_budget_reserve(struct key_budget *b, const struct key_file_limits *l, int64_t now_us,
                       uint64_t n, struct key_budget_hold *ret_hold,
                       struct key_budget_level *ret_level, int64_t *ret_wait_us)
{
    uint32_t per_minute = l->tokens_per_minute, per_day = l->tokens_per_day;
    begin_day(b, now_us);
    bool fits_today = b->counts.day_tokens + (int64_t)n <= (int64_t)per_day;
    int64_t day_us = fits_today ? 0 : DAY_US - now_us % DAY_US;
    int64_t minute_us = per_minute ? wait_for(n, b->counts.tokens_full_us, per_minute, now_us) : 0;
    int rc = check_level(day_level(b, per_day, now_us), day_us, n, ret_level, ret_wait_us);
    rc = rc < 0 ? rc
                : check_level(minute_level(b, per_minute, now_us), minute_us, n, ret_level,
                              ret_wait_us);
    if (rc < 0)
        return rc;
    *ret_hold = (struct key_budget_hold){.reserved = n, .tokens_per_minute = per_minute};
    b->reserved += (int64_t)n;
    return 0;
}

/* The part of the reservation that is not used yet. */
static int64_t unused_of(const struct key_budget_hold *h)
{
    return h->reserved > h->used ? (int64_t)(h->reserved - h->used) : 0;
}

/* The time of all tokens together is rounded once. The sum of rounded times would be larger. */
static void charge_bucket(struct key_budget *b, struct key_budget_hold *h, int64_t now_us)
{
    if (!h->tokens_per_minute)
        return;
    int64_t more_us = time_of(h->used, h->tokens_per_minute) - h->charged_us;
    take(&b->counts.tokens_full_us, &b->unsaved.tokens_us, more_us, now_us);
    h->charged_us += more_us;
}

void key_budget_use(struct key_budget *b, struct key_budget_hold *h, uint64_t n, int64_t now_us)
{
    if (n <= h->used)
        return;
    int64_t unused = unused_of(h), more = (int64_t)(n - h->used);
    begin_day(b, now_us);
    h->used = n;
    b->reserved -= unused - unused_of(h);
    b->counts.day_tokens += more;
    b->unsaved.day_tokens += more;
    charge_bucket(b, h, now_us);
}

void key_budget_end(struct key_budget *b, struct key_budget_hold *h)
{
    b->reserved -= unused_of(h);
    *h = (struct key_budget_hold){0};
}

/* ---- saving ---- */

struct key_budget_change key_budget_take_unsaved(struct key_budget *b, int64_t now_us)
{
    begin_day(b, now_us);
    struct key_budget_change change = b->unsaved;
    b->unsaved = (struct key_budget_change){0};
    return change;
}

void key_budget_return_unsaved(struct key_budget *b, const struct key_budget_change *change,
                               int64_t day)
{
    b->unsaved.requests_us += change->requests_us;
    b->unsaved.tokens_us += change->tokens_us;
    if (b->counts.day == day)
        b->unsaved.day_tokens += change->day_tokens;
}

static int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* A bucket that was full in the file says nothing about the time of our changes, but `own` does.
 * Another process may begin the next day while this one waits for the file at midnight. Earlier on
 * a day, the next day in the file comes from a clock that was wrong. */
struct key_budget_counts key_budget_join(const struct key_budget_counts *own,
                                         const struct key_budget_change *change,
                                         const struct key_budget_counts *saved, int64_t now_us)
{
    struct key_budget_counts all = *own;
    all.requests_full_us =
        later(own->requests_full_us, saved->requests_full_us + change->requests_us);
    all.tokens_full_us = later(own->tokens_full_us, saved->tokens_full_us + change->tokens_us);
    if (saved->day == own->day)
        all.day_tokens = saved->day_tokens + change->day_tokens;
    if (saved->day == own->day + 1 && saved->day == day_of(now_us + MINUTE_US)) {
        all.day = saved->day;
        all.day_tokens = saved->day_tokens;
    }
    return all;
}

void key_budget_adopt(struct key_budget *b, const struct key_budget_counts *before,
                      const struct key_budget_counts *after)
{
    b->counts.requests_full_us += after->requests_full_us - before->requests_full_us;
    b->counts.tokens_full_us += after->tokens_full_us - before->tokens_full_us;
    if (b->counts.day == after->day) // tokens of an earlier day are not in b->counts
        b->counts.day_tokens +=
            after->day_tokens - (before->day == after->day ? before->day_tokens : 0);
}

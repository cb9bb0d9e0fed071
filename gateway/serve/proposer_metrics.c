/* proposer_metrics.c - reads samples line by line, keeps the known ones, writes them again. */
#include "gateway/serve/proposer_metrics.h"
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "base/metrics.h"

#define LINE_MAX_BYTES 128

static const struct family {
    const char *name, *type, *help; // help NULL: the gateway's own series have it
} families[] = {
    {"tandem_drafter_streams", "gauge", "Verifier streams connected."},
    {"tandem_drafter_sessions", "gauge", "Sequences with a stored context."},
    {"tandem_drafter_context_tokens", "gauge",
     "Tokens reserved for the contexts and predictions of all sequences."},
    {"tandem_drafter_rounds_total", "counter", "Rounds received."},
    {"tandem_drafter_drafts_total", "counter", "Drafts with tokens."},
    {"tandem_drafter_draft_tokens_total", "counter", "Draft tokens."},
    {"tandem_drafter_contexts_needed_total", "counter",
     "Requests to send a sequence's context again."},
    {"tandem_drafter_round_seconds", "histogram",
     "From the arrival of a Round to its last answer."},
    {"process_cpu_seconds_total", "counter", NULL},
    {"process_resident_memory_bytes", "gauge", NULL},
    {"process_open_fds", "gauge", NULL},
    {"process_start_time_seconds", "gauge", NULL},
};

/* The samples of a family. */
struct samples {
    bool has_value, has_sum, has_count;
    double value, sum, count;
    unsigned n_buckets;
    struct {
        double le, count;
    } buckets[PROPOSER_METRICS_BUCKETS];
};

static bool read_number(const char *text, double *ret)
{
    char *end;
    *ret = strtod(text, &end);
    return end != text && *end == 0 && !isnan(*ret);
}

/* Buckets are in rising order, in the text and here. */
static void take_bucket(struct samples *s, const char *le, double count)
{
    unsigned n = s->n_buckets;
    double bound;
    if (n == PROPOSER_METRICS_BUCKETS || !read_number(le, &bound) ||
        (n && bound <= s->buckets[n - 1].le))
        return;
    s->buckets[n].le = bound;
    s->buckets[n].count = count;
    s->n_buckets++;
}

/* tail: what follows the family's name, `{le="..."}` without braces in le. */
static void take_sample(const struct family *f, struct samples *s, const char *tail, const char *le,
                        double value)
{
    bool histogram = strcmp(f->type, "histogram") == 0;
    if (!histogram && !*tail && !le) {
        s->has_value = true;
        s->value = value;
    } else if (histogram && strcmp(tail, "_bucket") == 0 && le) {
        take_bucket(s, le, value);
    } else if (histogram && strcmp(tail, "_sum") == 0 && !le) {
        s->has_sum = true;
        s->sum = value;
    } else if (histogram && strcmp(tail, "_count") == 0 && !le) {
        s->has_count = true;
        s->count = value;
    }
}

/* `name value` or `name{le="bound"} value`; any other line is dropped. Changes the line. */
static void take_line(char *line, struct samples *all)
{
    static const char open[] = "{le=\"", close[] = "\"}";
    double value;
    char *at = strrchr(line, ' '), *le = strstr(line, open);
    if (!at || !read_number(at + 1, &value))
        return;
    *at = 0;
    if (le) {
        size_t len = strlen(le);
        if (len < sizeof(open) + 2 || strcmp(le + len - 2, close) != 0)
            return;
        le[len - 2] = 0;
        *le = 0;
        le += sizeof(open) - 1;
    }
    for (size_t i = 0; i < ARRAY_LEN(families); i++) {
        size_t n = strlen(families[i].name);
        if (strncmp(line, families[i].name, n) == 0)
            take_sample(&families[i], &all[i], line + n, le, value);
    }
}

static void write_histogram(const struct family *f, const struct samples *s, struct buf *to)
{
    char le[METRICS_NUMBER_MAX], value[METRICS_NUMBER_MAX];
    for (unsigned i = 0; i < s->n_buckets; i++)
        buf_printf(to, "%s_bucket{le=\"%s\"} %s\n", f->name, metrics_number(s->buckets[i].le, le),
                   metrics_number(s->buckets[i].count, value));
    buf_printf(to, "%s_sum %s\n", f->name, metrics_number(s->sum, value));
    buf_printf(to, "%s_count %s\n", f->name, metrics_number(s->count, value));
}

static void write_family(const struct family *f, const struct samples *s, struct buf *to)
{
    char value[METRICS_NUMBER_MAX];
    bool whole = s->has_sum && s->has_count && s->n_buckets &&
                 s->buckets[s->n_buckets - 1].le == (double)INFINITY;
    if (!s->has_value && !whole)
        return;
    if (f->help)
        buf_printf(to, "# HELP %s %s\n# TYPE %s %s\n", f->name, f->help, f->name, f->type);
    if (whole)
        write_histogram(f, s, to);
    else
        buf_printf(to, "%s %s\n", f->name, metrics_number(s->value, value));
}

void proposer_metrics_clean(const char *text, size_t len, struct buf *to)
{
    struct samples all[ARRAY_LEN(families)] = {0};
    char line[LINE_MAX_BYTES];
    const char *end = text + len;
    const char *last = // no line begins there or later
        text + (len < PROPOSER_METRICS_MAX_TEXT ? len : PROPOSER_METRICS_MAX_TEXT);
    while (text < last) {
        const char *stop = memchr(text, '\n', (size_t)(end - text));
        size_t n = (size_t)((stop ? stop : end) - text);
        if (n && n < sizeof(line) && *text != '#' && !memchr(text, 0, n)) {
            memcpy(line, text, n);
            line[n] = 0;
            take_line(line, all);
        }
        text += n + 1;
    }
    for (size_t i = 0; i < ARRAY_LEN(families); i++)
        write_family(&families[i], &all[i], to);
}

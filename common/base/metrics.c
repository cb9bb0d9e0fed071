/* metrics.c - time series in one table that only grows. */
#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "base/mem.h"
#include "base/metrics.h"
#include "base/process.h"

enum kind { COUNTER, GAUGE, HISTOGRAM };
static const char *const kind_names[] = {"counter", "gauge", "histogram"};

/* An exemplar: a request that a bucket has counted. */
struct example {
    char trace[TRACE_ID_LEN + 1]; // "": none
    double value, unix_s;
};

struct metric {
    enum kind kind;
    char *name, *help, *labels; // labels: "" for none
    _Atomic double value;       // in a histogram: the sum
    size_t n_bounds;
    double bounds[METRICS_BOUNDS_MAX];
    atomic_ullong counts[METRICS_BOUNDS_MAX + 1]; // of each bucket alone, not cumulative
    struct example *examples; // (n_bounds + 1); NULL before the first; under the lock
};

static struct {
    pthread_mutex_t mu; // for registration, rendering and exemplars
    struct metric *v[METRICS_MAX];
    size_t n;
    struct metric spare; // stands for all series beyond METRICS_MAX; not rendered
} all = {.mu = PTHREAD_MUTEX_INITIALIZER};

static void metric_free(struct metric *m)
{
    if (!m)
        return;
    free(m->name);
    free(m->help);
    free(m->labels);
    free(m->examples);
    free(m);
}
DEFINE_AUTO(struct metric, metric_free)

static struct metric *metric_new(enum kind kind, const char *name, const char *help,
                                 const char *labels, const double *bounds, size_t n_bounds)
{
    AUTO(metric_free) struct metric *m = calloc(1, sizeof(*m));
    if (!m)
        return NULL;
    m->kind = kind;
    m->name = strdup(name);
    m->help = strdup(help);
    m->labels = strdup(labels);
    if (!m->name || !m->help || !m->labels)
        return NULL;
    m->n_bounds = n_bounds;
    if (n_bounds)
        memcpy(m->bounds, bounds, n_bounds * sizeof(*bounds));
    return TAKE(m);
}

static struct metric *find_series(const char *name, const char *labels)
{
    for (size_t i = 0; i < all.n; i++) {
        if (strcmp(all.v[i]->name, name) == 0 && strcmp(all.v[i]->labels, labels) == 0)
            return all.v[i];
    }
    return NULL;
}

static struct metric *register_series(enum kind kind, const char *name, const char *help,
                                      const char *labels, const double *bounds, size_t n_bounds)
{
    assert(n_bounds <= METRICS_BOUNDS_MAX);
    if (!labels)
        labels = "";
    pthread_mutex_lock(&all.mu);
    struct metric *m = find_series(name, labels);
    assert(!m || m->kind == kind);
    if (!m && all.n < METRICS_MAX) {
        m = metric_new(kind, name, help, labels, bounds, n_bounds);
        if (m)
            all.v[all.n++] = m;
    }
    pthread_mutex_unlock(&all.mu);
    return m ? m : &all.spare;
}

struct metric *metrics_counter(const char *name, const char *help, const char *labels)
{
    return register_series(COUNTER, name, help, labels, NULL, 0);
}

struct metric *metrics_gauge(const char *name, const char *help, const char *labels)
{
    return register_series(GAUGE, name, help, labels, NULL, 0);
}

struct metric *metrics_histogram(const char *name, const char *help, const char *labels,
                                 const double *bounds, size_t n_bounds)
{
    return register_series(HISTOGRAM, name, help, labels, bounds, n_bounds);
}

const char *metrics_label(char *out, size_t out_size, const char *key, const void *value,
                          size_t len)
{
    const unsigned char *s = value;
    size_t n = (size_t)snprintf(out, out_size, "%s=\"", key);
    assert(n + 4 < out_size);
    for (size_t i = 0; i < len && n + 4 < out_size; i++) { // 2 escaped, quote, NUL
        if (s[i] == '\n' || s[i] == '"' || s[i] == '\\') {
            out[n++] = '\\';
            out[n++] = s[i] == '\n' ? 'n' : (char)s[i];
        } else {
            out[n++] = s[i] >= 0x20 && s[i] < 0x7f ? (char)s[i] : '_';
        }
    }
    out[n++] = '"';
    out[n] = 0;
    return out;
}

void metrics_add(struct metric *m, double amount)
{
    double old = atomic_load_explicit(&m->value, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&m->value, &old, old + amount,
                                                  memory_order_relaxed, memory_order_relaxed))
        ;
}

void metrics_set(struct metric *m, double value)
{
    atomic_store_explicit(&m->value, value, memory_order_relaxed);
}

static size_t bucket_of(const struct metric *m, double value)
{
    size_t i = 0;
    while (i < m->n_bounds && !(value <= m->bounds[i]))
        i++;
    return i;
}

void metrics_observe(struct metric *m, double value)
{
    atomic_fetch_add_explicit(&m->counts[bucket_of(m, value)], 1, memory_order_relaxed);
    metrics_add(m, value);
}

void metrics_observe_traced(struct metric *m, double value, const char trace[TRACE_ID_LEN + 1])
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    metrics_observe(m, value);
    pthread_mutex_lock(&all.mu);
    if (!m->examples)
        m->examples = calloc(m->n_bounds + 1, sizeof(*m->examples));
    if (m->examples) {
        struct example *e = &m->examples[bucket_of(m, value)];
        memcpy(e->trace, trace, sizeof(e->trace));
        e->value = value;
        e->unix_s = (double)now.tv_sec + (double)now.tv_nsec / 1e9;
    }
    pthread_mutex_unlock(&all.mu);
}

double metrics_value(const struct metric *m)
{
    return atomic_load_explicit(&m->value, memory_order_relaxed);
}

const char *metrics_number(double x, char out[METRICS_NUMBER_MAX])
{
    if (isnan(x))
        return "NaN";
    if (isinf(x))
        return x > 0 ? "+Inf" : "-Inf";
    snprintf(out, METRICS_NUMBER_MAX, "%.15g", x);
    if (strtod(out, NULL) != x)
        snprintf(out, METRICS_NUMBER_MAX, "%.17g", x);
    return out;
}

/* Appends one sample without its line end. le: the bucket's upper bound, or NULL. */
static void render_sample(struct buf *to, const struct metric *m, const char *suffix,
                          const char *le, double value)
{
    char text[METRICS_NUMBER_MAX];
    buf_printf(to, "%s%s", m->name, suffix);
    if (*m->labels || le) {
        buf_printf(to, "{%s", m->labels);
        if (le)
            buf_printf(to, "%sle=\"%s\"", *m->labels ? "," : "", le);
        buf_puts(to, "}");
    }
    buf_printf(to, " %s", metrics_number(value, text));
}

static void render_example(struct buf *to, const struct example *e)
{
    char value[METRICS_NUMBER_MAX];
    if (*e->trace)
        buf_printf(to, " # {trace_id=\"%s\"} %s %.3f", e->trace, metrics_number(e->value, value),
                   e->unix_s);
}

static void render_histogram(struct buf *to, const struct metric *m, bool examples)
{
    unsigned long long n = 0;
    char le[METRICS_NUMBER_MAX];
    for (size_t i = 0; i <= m->n_bounds; i++) {
        n += atomic_load_explicit(&m->counts[i], memory_order_relaxed);
        double bound = i < m->n_bounds ? m->bounds[i] : (double)INFINITY;
        render_sample(to, m, "_bucket", metrics_number(bound, le), (double)n);
        if (examples && m->examples)
            render_example(to, &m->examples[i]);
        buf_puts(to, "\n");
    }
    render_sample(to, m, "_sum", NULL, metrics_value(m));
    buf_puts(to, "\n");
    render_sample(to, m, "_count", NULL, (double)n); // equals the last bucket, as readers expect
    buf_puts(to, "\n");
}

static void render_help(struct buf *to, const struct metric *m)
{
    buf_printf(to, "# HELP %s ", m->name);
    for (const char *s = m->help; *s; s++) {
        if (*s == '\n' || *s == '\\')
            buf_add(to, *s == '\n' ? "\\n" : "\\\\", 2);
        else
            buf_add(to, s, 1);
    }
    buf_printf(to, "\n# TYPE %s %s\n", m->name, kind_names[m->kind]);
}

/* All series that have the name of series `first`. */
static void render_name(struct buf *to, size_t first, bool examples)
{
    render_help(to, all.v[first]);
    for (size_t i = first; i < all.n; i++) {
        if (strcmp(all.v[i]->name, all.v[first]->name) != 0)
            continue;
        if (all.v[i]->kind == HISTOGRAM) {
            render_histogram(to, all.v[i], examples);
        } else {
            render_sample(to, all.v[i], "", NULL, metrics_value(all.v[i]));
            buf_puts(to, "\n");
        }
    }
}

static bool is_first_of_name(size_t i)
{
    for (size_t k = 0; k < i; k++) {
        if (strcmp(all.v[k]->name, all.v[i]->name) == 0)
            return false;
    }
    return true;
}

static void render(struct buf *to, bool examples)
{
    pthread_mutex_lock(&all.mu);
    for (size_t i = 0; i < all.n; i++) {
        if (is_first_of_name(i))
            render_name(to, i, examples);
    }
    pthread_mutex_unlock(&all.mu);
    process_render(to);
}

void metrics_render(struct buf *to)
{
    render(to, false);
}

void metrics_render_examples(struct buf *to)
{
    render(to, true);
}

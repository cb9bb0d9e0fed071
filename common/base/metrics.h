/* metrics.h - counters, gauges and histograms of this process, rendered as Prometheus text 0.0.4.
 *
 * Names are registered once at start; updating is one relaxed atomic operation, from any thread.
 * Names begin with tandem_ and follow the field's (docs/metrics.md). */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "base/trace.h"

struct metric; // one time series

/* labels: `proposer="ngram"` or NULL; copied. The same name may be registered with several label
 * sets; the same name with the same labels is the same series. Never fails: past METRICS_MAX, or
 * without memory, the series is shared and not rendered. Any thread. */
#define METRICS_MAX 512
#define METRICS_BOUNDS_MAX 24
struct metric *metrics_counter(const char *name, const char *help, const char *labels);
struct metric *metrics_gauge(const char *name, const char *help, const char *labels);
/* bounds: upper edges in rising order, at most METRICS_BOUNDS_MAX, +Inf is added. */
struct metric *metrics_histogram(const char *name, const char *help, const char *labels,
                                 const double *bounds, size_t n_bounds);

/* `key="value"` for foreign values: quotes, backslashes and line ends escaped, bytes outside ASCII
 * replaced by '_', cut to what fits. Returns out. */
const char *metrics_label(char *out, size_t out_size, const char *key, const void *value,
                          size_t len);

void metrics_add(struct metric *m, double amount);    // counter (amount >= 0) or gauge
void metrics_set(struct metric *m, double value);     // gauge
void metrics_observe(struct metric *m, double value); // histogram
/* The same, and this trace is its bucket's example until the next. */
void metrics_observe_traced(struct metric *m, double value, const char trace[TRACE_ID_LEN + 1]);
double metrics_value(const struct metric *m); // counter or gauge

/* HELP, TYPE and samples of every series, grouped by name, in the order of registration; then those
 * of the process. */
void metrics_render(struct buf *to);
/* With the examples behind their buckets, as only OpenMetrics has them: ` # {trace_id="..."}
 * 0.2 1.7e9`. */
void metrics_render_examples(struct buf *to);

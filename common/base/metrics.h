/* metrics.h - counters, gauges and histograms of this process, rendered as Prometheus text 0.0.4.
 *
 * Names are registered once at the start. An update is one relaxed atomic operation. Names begin
 * with tandem_ and follow common usage (docs/metrics.md).
 *
 * Threads: any. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "base/trace.h"

struct metric; // one time series

/* labels: `proposer="ngram"` or NULL; copied. A name may be registered with several label sets; the
 * same name with the same labels is the same series. Never fails: beyond METRICS_MAX series, or
 * without memory, the caller gets a common spare series, which is not rendered. */
#define METRICS_MAX 512
#define METRICS_BOUNDS_MAX 24
struct metric *metrics_counter(const char *name, const char *help, const char *labels);
struct metric *metrics_gauge(const char *name, const char *help, const char *labels);
/* bounds: upper bounds in rising order, at most METRICS_BOUNDS_MAX; +Inf is added. */
struct metric *metrics_histogram(const char *name, const char *help, const char *labels,
                                 const double *bounds, size_t n_bounds);

/* Writes `key="value"` for a foreign value. Quotes, backslashes and line ends are escaped. Other
 * bytes outside printable ASCII become '_'. The value is cut to the size of out. Returns out. */
const char *metrics_label(char *out, size_t out_size, const char *key, const void *value,
                          size_t len);

/* Prints a number of the text format with 15 digits, or with 17 if 15 do not read back as the same
 * number. Returns out. */
#define METRICS_NUMBER_MAX 32
const char *metrics_number(double x, char out[METRICS_NUMBER_MAX]);

void metrics_add(struct metric *m, double amount);    // counter (amount >= 0) or gauge
void metrics_set(struct metric *m, double value);     // gauge
void metrics_observe(struct metric *m, double value); // histogram
/* The same; the trace becomes the exemplar of its bucket until the next one. */
void metrics_observe_traced(struct metric *m, double value, const char trace[TRACE_ID_LEN + 1]);
double metrics_value(const struct metric *m); // counter or gauge

/* Appends HELP, TYPE and samples of every series, grouped by name, in the order of registration;
 * then the metrics of the process (process.h). */
void metrics_render(struct buf *to);
/* The same, with an exemplar after each bucket that has one: ` # {trace_id="..."} 0.2 1.7e9`. Only
 * the OpenMetrics format knows exemplars. */
void metrics_render_examples(struct buf *to);

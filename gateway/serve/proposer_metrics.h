/* proposer_metrics.h - the metrics of proposers, which are not trusted, in a form safe to merge.
 *
 * Only the series of docs/metrics.md ("Drafting", "Every service") pass, each once. A value is a
 * number, and the only label is a histogram's `le`. So a proposer can add no other series and
 * cannot make a scrape unreadable.
 *
 * Threads: plain functions. */
#pragma once
#include <stddef.h>
#include "base/buf.h"

#define PROPOSER_METRICS_BUCKETS 32 // of a histogram
/* Bytes of one proposer; lines after them are dropped. A proposer has about 4 KiB. */
#define PROPOSER_METRICS_MAX_TEXT (64u << 10)

/* Appends what is valid in `text` (format 0.0.4) to `to`, with our own comments. */
void proposer_metrics_clean(const char *text, size_t len, struct buf *to);

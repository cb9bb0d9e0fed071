/* prom_line.h - reads a line of Prometheus metrics.
 *
 * Strict, because one malformed line makes Prometheus drop the whole text. A sample is what
 * the text format 0.0.4 and OpenMetrics 1.0 both allow. It is printable ASCII without a timestamp,
 * and has each label once. Its value is a finite decimal number, NaN or Inf, after one blank. An
 * exemplar may follow, which only OpenMetrics knows:
 *
 *     name{label="text",...} value # {label="text",...} value seconds
 *
 * Threads: plain functions. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#define PROM_LINE_MAX_LABELS 16

struct prom_line_text {
    const char *at;
    size_t len;
};

struct prom_line_sample {
    struct prom_line_text name;
    struct prom_line_text labels; // without braces; empty: none
    struct prom_line_text rest;   // from the blank before the value on
    bool has_exemplar;
};

/* The metric name at the beginning of s; empty: none. */
struct prom_line_text prom_line_name(const char *s, size_t len);
/* False: it is no sample, or it has a label `instance`, which would then occur twice; or more than
 * PROM_LINE_MAX_LABELS. */
bool prom_line_read_sample(struct prom_line_text line, struct prom_line_sample *ret);
/* `# HELP name text`, or `# TYPE name type` with a type of the text format. False: neither. */
bool prom_line_read_comment(struct prom_line_text line, struct prom_line_text *ret_name);

/* prom_line.h - reads a line of Prometheus metrics.
 *
 * Strict, because one malformed line makes Prometheus drop the whole text: printable ASCII only, a
 * value as a decimal number, closed quotes. A sample has no timestamp but may have an exemplar
 * (OpenMetrics 1.0): `name{label="text",...} value # {label="text",...} value seconds`.
 *
 * Threads: plain functions. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

struct prom_line_text {
    const char *at;
    size_t len;
};

struct prom_line_sample {
    struct prom_line_text name;
    struct prom_line_text labels; // without braces; empty: none
    struct prom_line_text rest;   // from the blank before the value on
};

/* The metric name at the beginning of s; empty: none. */
struct prom_line_text prom_line_name(const char *s, size_t len);
/* False: it is no sample, or it has a label `instance`, which would then occur twice. */
bool prom_line_read_sample(struct prom_line_text line, struct prom_line_sample *ret);
/* `# HELP name text`, or `# TYPE name type` with a type of the text format. False: neither. */
bool prom_line_read_comment(struct prom_line_text line, struct prom_line_text *ret_name);

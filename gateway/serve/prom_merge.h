/* prom_merge.h - merges the Prometheus metrics of several processes, with a label `instance`.
 *
 * In the text format each family occurs once, with all its samples together. Malformed lines are
 * dropped, so one service cannot make the output of the others unreadable. */
#pragma once
#include <stddef.h>
#include "base/buf.h"

#define PROM_MERGE_MAX_FAMILIES 2048
#define PROM_MERGE_MAX_TEXT (16u << 20) // bytes of one family

struct prom_merge_family;

struct prom_merge {
    struct prom_merge_family *families;
    size_t n, cap;
};

void prom_merge_init(struct prom_merge *p);
void prom_merge_done(struct prom_merge *p);
/* Adds metrics in text format 0.0.4; samples may have exemplars. instance: any bytes. Families over
 * the limit are dropped. */
void prom_merge_add(struct prom_merge *p, const char *text, size_t len, const char *instance,
                    size_t instance_len);
void prom_merge_write(const struct prom_merge *p, struct buf *to);
/* Writes OpenMetrics 1.0: families of counters without _total, `# EOF` at the end. Only this format
 * may have exemplars. */
void prom_merge_write_openmetrics(const struct prom_merge *p, struct buf *to);

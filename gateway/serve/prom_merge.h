/* prom_merge.h - several processes' Prometheus texts as one, told apart by an `instance` label.
 *
 * The text format wants every family once, with its samples together; lines that are none are
 * dropped, so a strange service cannot spoil what the others say. */
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
/* Text format 0.0.4, perhaps with examples behind samples. instance: any bytes. Families past the
 * limit are dropped. */
void prom_merge_add(struct prom_merge *p, const char *text, size_t len, const char *instance,
                    size_t instance_len);
void prom_merge_write(const struct prom_merge *p, struct buf *to);
/* As OpenMetrics 1.0: counters' families without _total, `# EOF`. Examples belong only here. */
void prom_merge_write_openmetrics(const struct prom_merge *p, struct buf *to);

/* prom_merge.h - merges the Prometheus metrics of several processes, with a label `instance`.
 *
 * Each family occurs once, with all its samples together. Malformed lines are dropped, so one
 * service cannot make the output of the others unreadable. Nor does a service decide for others:
 * - What the gateway states of its families is written. Of other families, services may state
 *   different things. Then there is no HELP, or there is one untyped family for each sample name.
 * - Samples are dropped whose names do not fit the type. So are families whose names could be those
 *   of a histogram's samples. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"

#define PROM_MERGE_MAX_FAMILIES 2048
#define PROM_MERGE_MAX_OF_ONE 256 // families that one process may add; a verifier has some 60
#define PROM_MERGE_SLOTS 4096     // of the hash table of families: at most half of them are used
/* Bytes of one process, its label `instance` included in each line. A verifier with 16 proposers
 * has less than 100 KiB. */
#define PROM_MERGE_MAX_ADDED (1u << 20)
#define PROM_MERGE_MAX_TEXT (16u << 20) // bytes of one family

struct prom_merge_family;

struct prom_merge {
    bool exemplars;
    bool others_only; // see prom_merge_own_done()
    size_t n_own;     // the families before are the gateway's
    size_t n_before;  // families when prom_merge_add() began
    struct prom_merge_family *families;
    size_t n, cap;
    uint64_t secret;                  // processes must not choose names that meet in one slot
    uint16_t slots[PROM_MERGE_SLOTS]; // number of a family plus 1; 0: free
};

/* exemplars: samples may have one. Only OpenMetrics may. */
void prom_merge_init(struct prom_merge *p, bool exemplars);
void prom_merge_done(struct prom_merge *p);
/* Adds metrics, see prom_line.h. instance: any bytes. Families over the limits and lines after
 * PROM_MERGE_MAX_ADDED bytes are dropped. */
void prom_merge_add(struct prom_merge *p, const char *text, size_t len, const char *instance,
                    size_t instance_len);
/* The own metrics are added. From now on, lines are dropped unless their family is tandem_* or
 * process_*, but not tandem_gateway_*. So no service can claim what the gateway measures. */
void prom_merge_own_done(struct prom_merge *p);
void prom_merge_write(const struct prom_merge *p, struct buf *to);
/* Writes OpenMetrics 1.0: families of counters without _total, `# EOF` at the end. A counter whose
 * name without _total is another family's is written with its whole name, as `unknown`. */
void prom_merge_write_openmetrics(const struct prom_merge *p, struct buf *to);

/* merge.h - joins neighbouring symbols, best pair first, in O(n log n). Private to tok.
 *
 * Both tokenizers use this loop. They differ in the result of a pair and in which pair is best: the
 * lowest merge rank (BPE) or the highest score (SentencePiece). Ties go to the leftmost.
 *
 * Threads: one at a time per struct merge; the rule is only read. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MERGE_END UINT32_MAX

struct merge_symbol {
    uint32_t start, len; // bytes of the text; len 0: joined into its left neighbour
    uint32_t id;
    uint32_t prev, next; // MERGE_END: none
};

struct merge_item { // a pair that can be joined
    uint64_t key;   // order << 32 | left symbol: the least is joined first
    uint32_t id;    // of the joined symbol
    uint32_t len;   // of both symbols; if the sum has changed, the item is stale
};

struct merge_rule {
    /* What two neighbours become, and its order (least first). false: they cannot be joined. */
    bool (*pair)(const void *arg, const char *text, const struct merge_symbol *left,
                 const struct merge_symbol *right, uint32_t *ret_order, uint32_t *ret_id);
    const void *arg;
};

struct merge { // working memory, reused for every text
    struct merge_symbol *symbols;
    struct merge_item *items; // a heap
    size_t n, n_items, cap;
};

void merge_done(struct merge *m);
/* Memory for n symbols. The caller fills in start, len and id, then calls merge_run(). -ENOMEM. */
int merge_reserve(struct merge *m, size_t n);
/* Joins until no pair is left. The result is the list that starts at symbol 0. */
void merge_run(struct merge *m, const struct merge_rule *rule, const char *text);

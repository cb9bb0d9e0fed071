/* stats.h - the verifier's metrics, and their summary for GetStats.
 *
 * Names follow vLLM's (docs/metrics.md). No decision depends on them.
 *
 * Threads: stats_init() by main; all else by any thread. */
#pragma once
#include <stdint.h>
#include "base/metrics.h"
#include "verifier-svc/control/pass_time.h"
#include "verifier-svc/engine/seq.h"

#define STATS_MAX_POSITIONS 20 // positions of a draft with their own counters

/* A proposer's name and the counters of its drafts; proposers of the same name share the
 * counters. */
struct stats_drafts {
    char name[DRAFTS_NAME_MAX];
    struct metric *drafts, *tokens, *accepted;
    struct metric *accepted_at[STATS_MAX_POSITIONS];
};

struct stats {
    /* Requests. */
    struct metric *ended[SEQ_FAILED]; // choices, by enum seq_end
    struct metric *failed, *refused;
    struct metric *prompt_tokens, *generated_tokens;
    struct metric *ttft_s, *inter_token_s, *e2e_s, *queue_s, *prefill_s, *decode_s;
    struct metric *prompt_length, *generated_length;
    /* The state of the engine. */
    struct metric *running, *waiting, *paused;
    struct metric *kv_used_ratio, *kv_blocks, *kv_used, *kv_shared, *kv_evictable, *kv_bytes;
    struct metric *prefix_queries, *prefix_hits, *disk_hits, *evictions;
    struct metric *disk_on, *disk_blocks, *disk_bytes, *disk_waiting;
    struct metric *disk_written, *disk_restored, *disk_dropped, *disk_failed, *disk_removed;
    struct metric *rounds, *preemptions, *pass_s, *pass_rows, *draft_wait_s;
    struct metric *pass_estimate_s[PASS_TIME_TIMED]; // of pass_time_rows_at(i) rows
    /* Speculation. */
    struct metric *steps, *fallback_steps, *proposed, *accepted, *bonus, *ahead, *ahead_used;
    struct metric *acceptance_ema, *k_now;
    struct stats_drafts proposers[DRAFT_MAX_PROPOSERS]; // the engine thread's
    /* Tokens committed per second, over the last seconds. */
    struct stats_rate *rate;
};

/* Registers all metrics. */
void stats_init(struct stats *s);
/* Registers the counters of a proposer's drafts. Allocates: not on the engine thread. */
void stats_drafts_init(struct stats_drafts *d, const char *name);

/* n tokens were committed. */
void stats_committed(struct stats *s, uint32_t n, int64_t now_us);
/* Mean over the last full seconds. */
double stats_tokens_per_s(const struct stats *s, int64_t now_us);

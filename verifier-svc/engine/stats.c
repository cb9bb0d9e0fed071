/* stats.c - names and help texts of the metrics. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include "base/mem.h"
#include "verifier-svc/engine/stats.h"

#define RATE_SECONDS 8 // slots; the mean goes over the last RATE_MEAN full ones
#define RATE_MEAN 3

struct stats_rate {
    atomic_llong second[RATE_SECONDS];
    atomic_ullong n[RATE_SECONDS];
};

static struct stats_rate rate; // of the process, as the metrics are

static const double seconds[] = {.001, .002, .005, .01, .02, .05, .1,  .2, .5,
                                 1,    2,    5,    10,  20,  50,  100, 200};
static const double lengths[] = {1,   2,   5,    10,   20,   50,    100,
                                 200, 500, 1000, 2000, 5000, 10000, 100000};

static struct metric *time_of(const char *name, const char *help)
{
    return metrics_histogram(name, help, NULL, seconds, ARRAY_LEN(seconds));
}

static struct metric *length_of(const char *name, const char *help)
{
    return metrics_histogram(name, help, NULL, lengths, ARRAY_LEN(lengths));
}

static struct metric *counter(const char *name, const char *help)
{
    return metrics_counter(name, help, NULL);
}

static struct metric *gauge(const char *name, const char *help)
{
    return metrics_gauge(name, help, NULL);
}

static void init_requests(struct stats *s)
{
    for (enum seq_end end = SEQ_STOP; end < SEQ_FAILED; end++) {
        char label[48];
        snprintf(label, sizeof(label), "finished_reason=\"%s\"", seq_end_name(end));
        s->ended[end] = metrics_counter("tandem_request_success_total",
                                        "Choices that ended, by reason.", label);
    }
    s->failed = counter("tandem_request_failed_total",
                        "Requests that ended with an error, cancelled ones included.");
    s->refused = counter(
        "tandem_request_refused_total",
        "Requests rejected before they started, and Verify streams with an invalid message.");
    s->prompt_tokens = counter("tandem_prompt_tokens_total", "Prompt tokens of admitted requests.");
    s->generated_tokens = counter("tandem_generation_tokens_total", "Tokens committed.");
    s->ttft_s = time_of("tandem_time_to_first_token_seconds", "From arrival to the first token.");
    s->inter_token_s =
        time_of("tandem_inter_token_latency_seconds",
                "Time between tokens of a sequence; the tokens of a round share its time equally.");
    s->e2e_s = time_of("tandem_e2e_request_latency_seconds", "From arrival to the last token.");
    s->queue_s = time_of("tandem_request_queue_time_seconds", "From arrival to admission.");
    s->prefill_s =
        time_of("tandem_request_prefill_time_seconds", "From admission to the first token.");
    s->decode_s =
        time_of("tandem_request_decode_time_seconds", "From the first token to the last.");
    s->prompt_length = length_of("tandem_request_prompt_tokens", "Prompt tokens of a request.");
    s->generated_length =
        length_of("tandem_request_generation_tokens", "Tokens generated for a choice.");
}

static void init_engine(struct stats *s)
{
    s->running = gauge("tandem_num_requests_running", "Sequences that run.");
    s->waiting = gauge("tandem_num_requests_waiting", "Sequences that wait for admission.");
    s->paused =
        gauge("tandem_num_requests_paused", "Running sequences whose client does not read.");
    s->rounds = counter("tandem_engine_rounds_total", "Forward passes.");
    s->preemptions =
        counter("tandem_num_preemptions_total",
                "Running sequences returned to the queue, for KV blocks or for seats.");
    s->pass_s = time_of("tandem_engine_pass_seconds", "Time of a forward pass.");
    s->pass_rows = length_of("tandem_engine_pass_rows", "Rows of a forward pass.");
    s->draft_wait_s = time_of("tandem_engine_draft_wait_seconds",
                              "How long a pass waited for drafts, of passes that waited.");
    for (unsigned i = 0; i < PASS_TIME_TIMED; i++) {
        char label[32];
        snprintf(label, sizeof(label), "rows=\"%u\"", pass_time_rows_at(i));
        s->pass_estimate_s[i] =
            metrics_gauge("tandem_engine_pass_estimate_seconds",
                          "t(M): expected time of a pass by its rows, at context length 0.", label);
    }
}

static void init_cache(struct stats *s)
{
    s->kv_used_ratio =
        gauge("tandem_kv_cache_usage_ratio", "Fraction of the KV blocks that sequences hold.");
    s->kv_blocks = gauge("tandem_kv_cache_blocks", "KV blocks of 16 positions.");
    s->kv_used = gauge("tandem_kv_cache_used_blocks", "KV blocks that sequences hold.");
    s->kv_shared = gauge("tandem_kv_cache_shared_blocks", "KV blocks that several sequences hold.");
    s->kv_evictable = gauge("tandem_kv_cache_evictable_blocks",
                            "Unreferenced blocks of cached prefixes; may be evicted.");
    s->kv_bytes = gauge("tandem_kv_cache_bytes", "Memory of all KV blocks.");
    s->prefix_queries = counter("tandem_prefix_cache_queries_total",
                                "Prompt tokens looked up in the prefix cache.");
    s->prefix_hits =
        metrics_counter("tandem_prefix_cache_hits_total",
                        "Prompt tokens found in the prefix cache, so that they were not computed.",
                        "tier=\"memory\"");
    s->disk_hits =
        metrics_counter("tandem_prefix_cache_hits_total",
                        "Prompt tokens found in the prefix cache, so that they were not computed.",
                        "tier=\"disk\"");
    s->evictions = counter("tandem_prefix_cache_evictions_total",
                           "Blocks of cached prefixes that were evicted.");
}

static void init_disk(struct stats *s)
{
    s->disk_on = gauge("tandem_kv_disk_up", "1 while the KV disk tier is in use.");
    s->disk_blocks = gauge("tandem_kv_disk_blocks", "KV blocks on disk, of all models.");
    s->disk_bytes = gauge("tandem_kv_disk_bytes", "Bytes of the KV blocks on disk.");
    s->disk_waiting = gauge("tandem_kv_disk_waiting_blocks", "KV blocks that wait to be written.");
    s->disk_written = counter("tandem_kv_disk_written_blocks_total", "KV blocks written to disk.");
    s->disk_restored = counter("tandem_kv_disk_restored_blocks_total",
                               "KV blocks read back, from disk or from the write buffer.");
    s->disk_dropped = counter("tandem_kv_disk_dropped_blocks_total",
                              "KV blocks not written because the write buffer was full.");
    s->disk_failed = counter("tandem_kv_disk_failed_blocks_total",
                             "KV blocks not written because the disk failed or was full.");
    s->disk_removed = counter("tandem_kv_disk_removed_blocks_total",
                              "KV blocks removed from disk: expired, evicted or damaged.");
}

static void init_speculation(struct stats *s)
{
    s->steps =
        counter("tandem_spec_decode_steps_total", "Decoding steps, one per sequence and round.");
    s->fallback_steps = counter("tandem_spec_decode_fallback_steps_total",
                                "Steps that wanted a draft and ran without one.");
    s->proposed = counter("tandem_spec_decode_proposed_tokens_total",
                          "Draft tokens of proposers that were verified.");
    s->accepted = counter("tandem_spec_decode_kept_tokens_total",
                          "Draft tokens of proposers that were accepted.");
    s->bonus = counter("tandem_spec_decode_bonus_tokens_total",
                       "Bonus tokens: the target's tokens after fully accepted drafts.");
    s->ahead = counter(
        "tandem_spec_decode_ahead_drafts_total",
        "Drafts received that were made while the draft before them was verified (draft_ahead).");
    s->ahead_used = counter("tandem_spec_decode_ahead_drafts_used_total",
                            "Drafts ahead that continued the committed tokens.");
    s->acceptance_ema = gauge("tandem_spec_decode_acceptance_rate_ema",
                              "Moving average of the acceptance rate of steps with a draft.");
    s->k_now = gauge("tandem_spec_decode_k", "Mean draft length requested in the last round.");
    metrics_set(s->acceptance_ema, 0.7);
}

void stats_init(struct stats *s)
{
    *s = (struct stats){.rate = &rate};
    init_requests(s);
    init_engine(s);
    init_cache(s);
    init_disk(s);
    init_speculation(s);
}

void stats_drafts_init(struct stats_drafts *d, const char *name)
{
    char label[96], with_position[128];
    snprintf(d->name, sizeof(d->name), "%s", name);
    metrics_label(label, sizeof(label), "proposer", name, strlen(name));
    d->drafts = metrics_counter("tandem_spec_decode_num_drafts_total", "Drafts verified.", label);
    d->tokens = metrics_counter("tandem_spec_decode_num_draft_tokens_total",
                                "Draft tokens verified.", label);
    d->accepted = metrics_counter("tandem_spec_decode_num_accepted_tokens_total",
                                  "Draft tokens accepted.", label);
    for (unsigned k = 0; k < STATS_MAX_POSITIONS; k++) {
        snprintf(with_position, sizeof(with_position), "%s,position=\"%u\"", label, k);
        d->accepted_at[k] =
            metrics_counter("tandem_spec_decode_num_accepted_tokens_per_pos_total",
                            "Draft tokens accepted, by position in the draft.", with_position);
    }
}

void stats_committed(struct stats *s, uint32_t n, int64_t now_us)
{
    metrics_add(s->generated_tokens, n);
    long long now_s = now_us / 1000000;
    unsigned slot = (unsigned)(now_s % RATE_SECONDS);
    if (atomic_load_explicit(&s->rate->second[slot], memory_order_relaxed) != now_s) {
        atomic_store_explicit(&s->rate->n[slot], 0, memory_order_relaxed);
        atomic_store_explicit(&s->rate->second[slot], now_s, memory_order_relaxed);
    }
    atomic_fetch_add_explicit(&s->rate->n[slot], n, memory_order_relaxed);
}

double stats_tokens_per_s(const struct stats *s, int64_t now_us)
{
    unsigned long long sum = 0;
    for (long long sec = now_us / 1000000 - RATE_MEAN; sec < now_us / 1000000; sec++) {
        unsigned slot = (unsigned)(sec % RATE_SECONDS);
        if (sec > 0 && atomic_load_explicit(&s->rate->second[slot], memory_order_relaxed) == sec)
            sum += atomic_load_explicit(&s->rate->n[slot], memory_order_relaxed);
    }
    return (double)sum / RATE_MEAN;
}

/* verifier_options.h - the verifier's settings: one table (options.c), from which --help and the documents
 * come.
 *
 * Threads: read by main before any other thread; constant afterwards. What may change while the
 * service runs is in speculation.h. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/conf.h"
#include "kernel/kernel.h"
#include "rpc/rpc_tls.h"
#include "verifier-svc/speculation.h"

struct verifier_options {
    struct conf_list listen;
    struct rpc_tls tls;
    char *model, *name, *instance, *log_level;

    struct conf_list proposers;
    char *default_proposer;
    char *policy;
    int64_t k, disable_batch_size, proposer_budget_ms;
    struct speculation speculation; // what these and policy, k and disable_batch_size say

    int64_t context, kv_mib, max_sequences, queue_length;
    int64_t max_batch_rows, prefill_chunk, max_pass_ms;
    int64_t threads;
    char *kv_disk;
    int64_t kv_disk_size, kv_disk_ttl;
    bool pin, memory_check, prefix_cache, draft_ahead;
    char *float_gemm, *kv_type;
    bool blas;         // what `float_gemm` says
    enum kernel_kv kv; // what `kv_type` says
    double load_wait_s, verify_timeout_s, reader_timeout_s, drain_timeout_s;
};

/* Defaults, file, environment, flags, and what must hold between settings. As conf_read(). */
int verifier_options_read(int argc, char **argv, const struct verifier_options **ret);
/* The same again, for a service that runs: what may change. Nothing else does; waiting: the names
 * of settings that would need a restart, "" if there are none. Main only. */
int verifier_options_reread(int argc, char **argv, struct speculation_change *ret,
                            char *ret_waiting, size_t size);

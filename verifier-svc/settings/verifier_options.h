/* verifier_options.h - the settings of the verifier: one table, from which --help and
 * docs/configuration.md are generated.
 *
 * Threads: main reads them before it starts any other thread. Afterwards they are constant. The
 * settings that may change while the service runs are in speculation.h. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/conf.h"
#include "kernel/kernel.h"
#include "rpc/rpc_roles.h"
#include "rpc/rpc_tls.h"
#include "verifier-svc/settings/speculation.h"

struct verifier_options {
    struct conf_list listen;
    struct rpc_tls tls;
    struct rpc_roles_settings access;
    char *model, *name, *instance, *log_level;

    struct conf_list proposers, proposer_targets_allowed;
    char *default_proposer;
    char *policy;
    int64_t k, disable_batch_size, proposer_budget_ms;
    struct speculation speculation; // parsed from proposers .. disable_batch_size

    int64_t context, kv_mib, max_sequences, queue_length, verify_streams;
    int64_t max_batch_rows, prefill_chunk, max_pass_ms;
    int64_t threads;
    char *weights_cache;
    char *kv_disk;
    int64_t kv_disk_size, kv_disk_ttl;
    bool pin, memory_check, prefix_cache, draft_ahead;
    char *float_gemm, *kv_type;
    bool blas;         // parsed from float_gemm
    enum kernel_kv kv; // parsed from kv_type
    double load_wait_s, verify_timeout_s, reader_timeout_s, drain_timeout_s;
};

/* Reads defaults, file, environment and flags, and checks them. Returns as conf_read() does. */
int verifier_options_read(int argc, char **argv, const struct verifier_options **ret);

/* Reads the same sources again for a running service, without changing the current settings. *ret
 * receives those that may change at run time. ret_waiting: names of changed settings that need a
 * restart; "" if there are none. Call it from main only. */
int verifier_options_reread(int argc, char **argv, struct speculation_change *ret,
                            char *ret_waiting, size_t size);

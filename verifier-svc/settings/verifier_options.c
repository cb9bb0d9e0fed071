/* verifier_options.c - the table of settings, and checks between them. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "base/err.h"
#include "base/mem.h"
#include "model/arch.h"
#include "rpc/rpc.h"
#include "verifier-svc/kvdisk/kv_store.h"
#include "verifier-svc/settings/verifier_options.h"

static struct verifier_options current;
static struct verifier_options parsed; // the table points here; empty between two reads

/* A new row takes effect at a restart. Settings that change at run time: speculation.c. */
static const struct conf_option table[] = {
    {.name = "listen",
     .kind = CONF_LIST,
     .value = &parsed.listen,
     .fallback = "unix:/run/tandem/verifier.sock",
     .max = RPC_LISTEN_MAX,
     .help = "addresses: HOST:PORT, or unix:/path; sockets that the service manager passes replace "
             "the unix paths and leave the others"},
    RPC_TLS_OPTIONS(parsed.tls),
    RPC_ROLES_OPTIONS(parsed.access),
    {.name = "model",
     .kind = CONF_TEXT,
     .value = &parsed.model,
     .short_flag = 'm',
     .help = "GGUF file of the target model; of a split model the first part"},
    {.name = "name",
     .kind = CONF_TEXT,
     .value = &parsed.name,
     .alias = "served_model_name",
     .help = "model name for clients (default: the file's name without .gguf)"},
    {.name = "instance",
     .kind = CONF_TEXT,
     .value = &parsed.instance,
     .help = "name of this service in merged metrics (default: host and first address)"},
    {.name = "log_level",
     .kind = CONF_CHOICE,
     .value = &parsed.log_level,
     .fallback = "info",
     .choices = "error|warn|info|debug",
     .help = "least severe level that is logged"},
    {.name = "proposers",
     .kind = CONF_LIST,
     .value = &parsed.proposers,
     .max = DRAFT_MAX_PROPOSERS,
     .help = "gRPC targets of proposers, each TARGET or NAME=TARGET; several may share a name; "
             "none (the default): no speculation"},
    {.name = "proposer_targets_allowed",
     .kind = CONF_LIST,
     .value = &parsed.proposer_targets_allowed,
     .max = SPECULATION_ALLOWED_MAX,
     .help = "targets that SetSpeculation may name; * stands for letters, digits, '-' and '_'; "
             "none: no target; empty (the default): those of proposers"},
    {.name = "default_proposer",
     .kind = CONF_TEXT,
     .value = &parsed.default_proposer,
     .fallback = "",
     .help = "name of the proposers for requests that name none; empty: any proposer"},
    {.name = "policy",
     .kind = CONF_CHOICE,
     .value = &parsed.policy,
     .fallback = "goodput",
     .choices = "goodput|fixed|ema",
     .help = "how the draft length is chosen: goodput (most tokens per second, by measured times "
             "and acceptance), fixed (k), or ema (k, k-2, 1 or 0 by mean acceptance)"},
    {.name = "k",
     .kind = CONF_INT,
     .value = &parsed.k,
     .fallback = "0",
     .min = 0,
     .max = CONTROL_K_MAX,
     .alias = "num_speculative_tokens",
     .help = "draft tokens per sequence and round; with goodput the maximum; 0: 16 with goodput, "
             "else 5"},
    {.name = "disable_batch_size",
     .kind = CONF_INT,
     .value = &parsed.disable_batch_size,
     .fallback = "-1",
     .min = -1,
     .max = 4096,
     .alias = "speculative_disable_by_batch_size|disable_by_batch_size",
     .help = "stop drafting when this many sequences are running; 0: never; -1: 8 with ema, else "
             "never"},
    {.name = "proposer_budget_ms",
     .kind = CONF_INT,
     .value = &parsed.proposer_budget_ms,
     .fallback = "50",
     .min = 1,
     .max = 250,
     .help = "longest wait for a draft, in ms; a proposer that takes longer is at fault"},
    {.name = "draft_ahead",
     .kind = CONF_BOOL,
     .value = &parsed.draft_ahead,
     .fallback = "false",
     .help = "request the next draft while the current one is verified; for proposers that do not "
             "share the verifier's cores"},
    {.name = "context",
     .kind = CONF_INT,
     .value = &parsed.context,
     .fallback = "0",
     .min = 0,
     .max = 1 << 24,
     .alias = "max_model_len|ctx_size",
     .help = "positions of a sequence, prompt and answer; 0: the model's training context"},
    {.name = "kv_mib",
     .kind = CONF_INT,
     .value = &parsed.kv_mib,
     .fallback = "0",
     .min = 0,
     .max = 1 << 24,
     .help = "memory of the KV pool, in MiB; 0: for all sequences, at most a quarter of the memory "
             "that the model leaves free"},
    {.name = "kv_type",
     .kind = CONF_CHOICE,
     .value = &parsed.kv_type,
     .fallback = "int8",
     .choices = "int8|f16|f32",
     .help = "type of stored K and V; int8: with a scale per head and position, about half the "
             "memory of f16"},
    {.name = "prefix_cache",
     .kind = CONF_BOOL,
     .value = &parsed.prefix_cache,
     .fallback = "true",
     .alias = "enable_prefix_caching|cache_prompt",
     .help = "keep K and V of past prompts and answers, so that requests with the same prefix skip "
             "its computation"},
    {.name = "weights_cache",
     .kind = CONF_TEXT,
     .value = &parsed.weights_cache,
     .fallback = "",
     .help = "folder for packed weights, which the next start maps instead of packing them again; "
             "services with the same folder and model share their memory; empty: off"},
    {.name = "kv_disk",
     .kind = CONF_TEXT,
     .value = &parsed.kv_disk,
     .fallback = "",
     .help = "folder for KV blocks that leave memory; survives restarts; one verifier at a time; "
             "empty: off"},
    {.name = "kv_disk_size",
     .kind = CONF_INT,
     .value = &parsed.kv_disk_size,
     .fallback = "8192",
     .min = KV_STORE_MIN_BYTES >> 20,
     .max = 1 << 28,
     .help = "size limit of the kv_disk folder, in MiB"},
    {.name = "kv_disk_ttl",
     .kind = CONF_INT,
     .value = &parsed.kv_disk_ttl,
     .fallback = "604800",
     .min = 1,
     .max = 1 << 30,
     .help = "how long an unused block stays in kv_disk, in s"},
    {.name = "memory_check",
     .kind = CONF_BOOL,
     .value = &parsed.memory_check,
     .fallback = "true",
     .help = "refuse to load a model that needs more memory than is available"},
    {.name = "max_sequences",
     .kind = CONF_INT,
     .value = &parsed.max_sequences,
     .fallback = "64",
     .min = 1,
     .max = 1024,
     .alias = "max_num_seqs",
     .help = "sequences that run at the same time"},
    {.name = "queue_length",
     .kind = CONF_INT,
     .value = &parsed.queue_length,
     .fallback = "256",
     .min = 1,
     .max = 65536,
     .help =
         "requests that may wait; further ones are rejected, or displace one of the client with "
         "the most waiting requests"},
    {.name = "max_batch_rows",
     .kind = CONF_INT,
     .value = &parsed.max_batch_rows,
     .fallback = "512",
     .min = 16,
     .max = 8192,
     .alias = "max_num_batched_tokens",
     .help = "rows of a forward pass; at least max_sequences"},
    {.name = "prefill_chunk",
     .kind = CONF_INT,
     .value = &parsed.prefill_chunk,
     .fallback = "512",
     .min = 1,
     .max = 8192,
     .help = "rows of one prompt in a pass"},
    {.name = "max_pass_ms",
     .kind = CONF_INT,
     .value = &parsed.max_pass_ms,
     .fallback = "100",
     .min = 1,
     .max = 10000,
     .help = "longest pass to which prompt rows are added while other sequences decode, and draft "
             "rows while other clients have rows; answers of several clients take a quarter of it, "
             "in ms"},
    {.name = "threads",
     .kind = CONF_INT,
     .value = &parsed.threads,
     .fallback = "0",
     .min = 0,
     .max = 256,
     .help = "threads of the forward pass; 0: one per usable core"},
    {.name = "pin",
     .kind = CONF_BOOL,
     .value = &parsed.pin,
     .fallback = "true",
     .help = "bind these threads to cores"},
    {.name = "float_gemm",
     .kind = CONF_CHOICE,
     .value = &parsed.float_gemm,
     .fallback = "own",
     .choices = "own|blas",
     .help = "backend of float matrices (F32, F16, BF16): own, or blas (OpenBLAS in passes with "
             "many rows; the same request may then get other tokens)"},
    {.name = "load_wait",
     .kind = CONF_FLOAT,
     .value = &parsed.load_wait_s,
     .fallback = "30",
     .min = 0,
     .max = 3600,
     .help = "how long a request waits for a model that is loading, in s"},
    {.name = "verify_streams",
     .kind = CONF_INT,
     .value = &parsed.verify_streams,
     .fallback = "1024",
     .min = 1,
     .max = 8192,
     .help = "Verify streams at the same time, of which clients get three quarters; they take no "
             "places of other calls"},
    {.name = "verify_timeout",
     .kind = CONF_FLOAT,
     .value = &parsed.verify_timeout_s,
     .fallback = "30",
     .min = 0.1,
     .max = 3600,
     .help = "how long a Verify stream may wait for its client's next draft, in s; for `open` at "
             "most 10"},
    {.name = "reader_timeout",
     .kind = CONF_FLOAT,
     .value = &parsed.reader_timeout_s,
     .fallback = "60",
     .min = 0.1,
     .max = 3600,
     .help = "how long a client may leave more than 256 KiB of its answer unread, in s"},
    {.name = "drain_timeout",
     .kind = CONF_FLOAT,
     .value = &parsed.drain_timeout_s,
     .fallback = "120",
     .min = 0,
     .max = 3600,
     .help = "how long accepted requests may continue after a stop signal, in s"},
};

static const struct conf_info models = {
    .flag = "--print-models",
    .help = "the architectures of models that load, as a Markdown table",
    .print = arch_print_table,
};

static const struct conf conf = {
    .program = "verifier-svc",
    .summary = "Runs the target model: generates text over gRPC and verifies drafts.",
    .options = table,
    .n_options = sizeof(table) / sizeof(table[0]),
    .info = &models,
};

static int read_default_proposer(const struct verifier_options *o, struct speculation *s)
{
    size_t len = strlen(o->default_proposer);
    if (!len)
        return 0;
    if (!speculation_is_name(o->default_proposer, len))
        return fail(-EINVAL, "default_proposer must be at most %d letters, digits, '-', '_' or '.'",
                    DRAFTS_NAME_MAX - 1);
    memcpy(s->proposer, o->default_proposer, len);
    return speculation_check_default(s, NULL);
}

static int read_speculation(struct verifier_options *o)
{
    struct speculation *s = &o->speculation;
    *s = (struct speculation){
        .on = true, .k = (uint32_t)o->k, .disable_batch_size = (int32_t)o->disable_batch_size};
    int err = speculation_set_policy(s, o->policy, strlen(o->policy));
    for (unsigned i = 0; !err && i < o->proposers.n; i++)
        err = speculation_add_target(s, o->proposers.v[i], strlen(o->proposers.v[i]));
    if (!err)
        err = speculation_allow(s, (const char *const *)o->proposer_targets_allowed.v,
                                o->proposer_targets_allowed.n);
    return err ? err : read_default_proposer(o, s);
}

/* Reads all settings into `parsed`. */
static int read_all(int argc, char **argv)
{
    int r = conf_read(&conf, argc, argv);
    if (r)
        return r;
    if (!parsed.model)
        return fail(-EINVAL, "--model is missing: the GGUF file of the target model");
    if (parsed.max_batch_rows < parsed.max_sequences)
        return fail(-EINVAL, "max_batch_rows is %ld, but must be at least max_sequences = %ld",
                    (long)parsed.max_batch_rows, (long)parsed.max_sequences);
    if (*parsed.kv_disk && !parsed.prefix_cache)
        return fail(-EINVAL, "kv_disk requires prefix_cache = true");
    parsed.blas = strcmp(parsed.float_gemm, "blas") == 0;
    kernel_kv_type(parsed.kv_type, &parsed.kv);
    return read_speculation(&parsed);
}

static void clear_parsed(void)
{
    conf_done(&conf);
    parsed = (struct verifier_options){0};
}

int verifier_options_read(int argc, char **argv, const struct verifier_options **ret)
{
    int r = read_all(argc, argv);
    if (!r) {
        struct verifier_options before = current;
        current = parsed;
        parsed = before;
        *ret = &current;
    }
    clear_parsed();
    return r;
}

static bool may_change_at_runtime(const struct conf_option *o)
{
    const void *values[] = {&parsed.proposers,
                            &parsed.proposer_targets_allowed,
                            &parsed.default_proposer,
                            &parsed.policy,
                            &parsed.k,
                            &parsed.disable_batch_size};
    for (unsigned i = 0; i < ARRAY_LEN(values); i++) {
        if (o->value == values[i])
            return true;
    }
    return false;
}

static const void *current_value(const struct conf_option *o)
{
    return (const char *)&current + ((const char *)o->value - (const char *)&parsed);
}

/* Writes the names of settings that have changed and need a restart. */
static void list_restart_settings(char *to, size_t size)
{
    size_t len = 0;
    *to = 0;
    for (size_t i = 0; i < conf.n_options && len < size; i++) {
        const struct conf_option *o = &conf.options[i];
        if (!may_change_at_runtime(o) && !conf_same(o, o->value, current_value(o)))
            len += (size_t)snprintf(to + len, size - len, "%s%s", len ? ", " : "", o->name);
    }
}

int verifier_options_reread(int argc, char **argv, struct speculation_change *ret,
                            char *ret_waiting, size_t size)
{
    int r = read_all(argc, argv);
    if (!r) {
        ret->has = SPECULATION_TARGETS | SPECULATION_PROPOSER | SPECULATION_POLICY | SPECULATION_K |
                   SPECULATION_BATCH | SPECULATION_ALLOWED;
        ret->to = parsed.speculation;
        list_restart_settings(ret_waiting, size);
    }
    clear_parsed();
    return r;
}

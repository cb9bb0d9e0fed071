/* options.c - the table of settings. */
#include <errno.h>
#include <string.h>
#include "base/err.h"
#include "base/log.h"
#include "rpc/rpc.h"
#include "verifier-svc/drafts.h"
#include "verifier-svc/options.h"

#define NAME_LETTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_."

static struct options values;

static const struct conf_option table[] = {
    {.name = "listen",
     .kind = CONF_LIST,
     .value = &values.listen,
     .fallback = "unix:/run/tandem/verifier.sock",
     .max = RPC_LISTEN_MAX,
     .help = "addresses, unix:/path or host:port; unused when sockets are passed"},
    {.name = "model",
     .kind = CONF_TEXT,
     .value = &values.model,
     .short_flag = 'm',
     .help = "GGUF file of the target model; of a split one the first part"},
    {.name = "name",
     .kind = CONF_TEXT,
     .value = &values.name,
     .alias = "served_model_name",
     .help = "what clients call the model (default: the file's name)"},
    {.name = "instance",
     .kind = CONF_TEXT,
     .value = &values.instance,
     .fallback = "verifier",
     .help = "this service's name in merged statistics"},
    {.name = "log_level",
     .kind = CONF_CHOICE,
     .value = &values.log_level,
     .fallback = "info",
     .choices = "error|warn|info|debug",
     .help = "what is logged"},
    {.name = "proposers",
     .kind = CONF_LIST,
     .value = &values.proposers,
     .max = DRAFTS_MAX,
     .help = "gRPC targets of proposers, each TARGET or NAME=TARGET; none (the default): no "
             "speculation"},
    {.name = "policy",
     .kind = CONF_CHOICE,
     .value = &values.policy,
     .fallback = "goodput",
     .choices = "goodput|fixed|ema",
     .help = "how many draft tokens: goodput (what makes the most tokens per second, by measured "
             "times and acceptance), fixed (k), or ema (k, k-2, 1 or none by mean acceptance)"},
    {.name = "k",
     .kind = CONF_INT,
     .value = &values.k,
     .fallback = "0",
     .min = 0,
     .max = CONTROL_K_MAX,
     .alias = "num_speculative_tokens",
     .help = "draft tokens per sequence and round, with goodput at most; 0: 16 with goodput, else "
             "5"},
    {.name = "disable_batch_size",
     .kind = CONF_INT,
     .value = &values.disable_batch_size,
     .fallback = "-1",
     .min = -1,
     .max = 4096,
     .alias = "speculative_disable_by_batch_size|disable_by_batch_size",
     .help = "running sequences from which on nothing is drafted; 0: never; -1: 8 with ema, else "
             "never"},
    {.name = "proposer_budget_ms",
     .kind = CONF_INT,
     .value = &values.proposer_budget_ms,
     .fallback = "50",
     .min = 1,
     .max = 250,
     .help = "longest wait for a draft, in ms"},
    {.name = "draft_ahead",
     .kind = CONF_BOOL,
     .value = &values.draft_ahead,
     .fallback = "false",
     .help = "have what may follow a draft drafted while it is being verified: for proposers that "
             "do not share the verifier's cores"},
    {.name = "context",
     .kind = CONF_INT,
     .value = &values.context,
     .fallback = "0",
     .min = 0,
     .max = 1 << 24,
     .alias = "max_model_len|ctx_size",
     .help = "positions of a sequence, prompt and answer; 0: what the model was trained for"},
    {.name = "kv_mib",
     .kind = CONF_INT,
     .value = &values.kv_mib,
     .fallback = "0",
     .min = 0,
     .max = 1 << 24,
     .help = "memory of the KV pool in MiB; 0: for all sequences, at most a quarter of what the "
             "model leaves free"},
    {.name = "memory_check",
     .kind = CONF_BOOL,
     .value = &values.memory_check,
     .fallback = "true",
     .help = "refuse to load a model that would take more memory than is available"},
    {.name = "max_sequences",
     .kind = CONF_INT,
     .value = &values.max_sequences,
     .fallback = "64",
     .min = 1,
     .max = 1024,
     .alias = "max_num_seqs",
     .help = "sequences that run at once"},
    {.name = "queue_length",
     .kind = CONF_INT,
     .value = &values.queue_length,
     .fallback = "256",
     .min = 1,
     .max = 65536,
     .help = "requests that may wait; the next one is refused"},
    {.name = "max_batch_rows",
     .kind = CONF_INT,
     .value = &values.max_batch_rows,
     .fallback = "512",
     .min = 16,
     .max = 8192,
     .alias = "max_num_batched_tokens",
     .help = "rows of a forward pass; at least max_sequences"},
    {.name = "prefill_chunk",
     .kind = CONF_INT,
     .value = &values.prefill_chunk,
     .fallback = "512",
     .min = 1,
     .max = 8192,
     .help = "rows of one prompt in a pass"},
    {.name = "max_pass_ms",
     .kind = CONF_INT,
     .value = &values.max_pass_ms,
     .fallback = "100",
     .min = 1,
     .max = 10000,
     .help = "time of a pass up to which prompts are added while others decode, in ms"},
    {.name = "threads",
     .kind = CONF_INT,
     .value = &values.threads,
     .fallback = "0",
     .min = 0,
     .max = 256,
     .help = "threads of the forward pass; 0: one per core that may be used"},
    {.name = "pin",
     .kind = CONF_BOOL,
     .value = &values.pin,
     .fallback = "true",
     .help = "bind these threads to cores"},
    {.name = "float_gemm",
     .kind = CONF_CHOICE,
     .value = &values.float_gemm,
     .fallback = "own",
     .choices = "own|blas",
     .help = "who multiplies matrices of floats (F32, F16, BF16); blas: OpenBLAS where a pass has "
             "many rows, and then the same request may get other tokens"},
    {.name = "load_wait",
     .kind = CONF_FLOAT,
     .value = &values.load_wait_s,
     .fallback = "30",
     .min = 0,
     .max = 3600,
     .help = "how long requests wait for a model that is being loaded, in s"},
    {.name = "verify_timeout",
     .kind = CONF_FLOAT,
     .value = &values.verify_timeout_s,
     .fallback = "30",
     .min = 0.1,
     .max = 3600,
     .help = "how long a Verify stream may wait for its client's next draft, in s"},
    {.name = "reader_timeout",
     .kind = CONF_FLOAT,
     .value = &values.reader_timeout_s,
     .fallback = "60",
     .min = 0.1,
     .max = 3600,
     .help = "how long a client may leave more than 256 KiB of its answer unread, in s"},
    {.name = "drain_timeout",
     .kind = CONF_FLOAT,
     .value = &values.drain_timeout_s,
     .fallback = "120",
     .min = 0,
     .max = 3600,
     .help = "how long requests that were accepted may go on after a stop signal, in s"},
};

static const struct conf conf = {
    .program = "verifier-svc",
    .summary = "Runs the target model: generates text over gRPC and verifies drafts.",
    .options = table,
    .n_options = sizeof(table) / sizeof(table[0]),
};

/* "TARGET" or "NAME=TARGET". A '=' behind a ':' or '/' is part of an address. */
static int read_target(const char *text, struct drafts_target *ret)
{
    char quoted[128];
    size_t n = strcspn(text, "=:/");
    *ret = (struct drafts_target){.target = text};
    if (text[n] != '=')
        return 0;
    log_quote(text, strlen(text), quoted, sizeof(quoted));
    if (n == 0 || n >= sizeof(ret->name) || strspn(text, NAME_LETTERS) < n)
        return fail(-EINVAL, "proposers: %s: a name is 1 to %d letters, digits, '-', '_' or '.'",
                    quoted, DRAFTS_NAME_MAX - 1);
    memcpy(ret->name, text, n);
    ret->target += n + 1;
    return *ret->target ? 0 : fail(-EINVAL, "proposers: %s has no target behind the name", quoted);
}

static int read_targets(void)
{
    int err = 0;
    values.n_targets = 0;
    for (unsigned i = 0; !err && i < values.proposers.n; i++) {
        if (strcmp(values.proposers.v[i], "none") != 0)
            err = read_target(values.proposers.v[i], &values.targets[values.n_targets++]);
    }
    return err;
}

static void read_control(void)
{
    static const struct {
        const char *name;
        struct control_options defaults;
    } policies[] = {{"goodput", {CONTROL_GOODPUT, 16, 0}},
                    {"fixed", {CONTROL_FIXED, 5, 0}},
                    {"ema", {CONTROL_EMA, 5, 8}}};
    for (unsigned i = 0; i < sizeof(policies) / sizeof(*policies); i++) {
        if (strcmp(policies[i].name, values.policy) == 0)
            values.control = policies[i].defaults;
    }
    if (values.k)
        values.control.k = (uint32_t)values.k;
    if (values.disable_batch_size >= 0)
        values.control.disable_batch_size = (uint32_t)values.disable_batch_size;
}

int options_read(int argc, char **argv, const struct options **ret)
{
    int r = conf_read(&conf, argc, argv);
    if (r)
        return r;
    if (!values.model)
        return fail(-EINVAL, "--model is missing: the GGUF file of the target model");
    if (values.max_batch_rows < values.max_sequences)
        return fail(-EINVAL, "max_batch_rows is %ld, less than max_sequences, which is %ld",
                    (long)values.max_batch_rows, (long)values.max_sequences);
    values.blas = strcmp(values.float_gemm, "blas") == 0;
    *ret = &values;
    read_control();
    return read_targets();
}

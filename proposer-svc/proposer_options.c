/* proposer_options.c - the table of settings: the service's, then those of every proposer. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "proposer-svc/props/prop.h"
#include "proposer-svc/proposer_options.h"
#include "rpc/rpc.h"

#define OPTIONS_MAX 128

static struct proposer_options values;

static const struct conf_option service_options[] = {
    {.name = "listen",
     .kind = CONF_LIST,
     .value = &values.listen,
     .fallback = "unix:/run/tandem/proposer.sock",
     .max = RPC_LISTEN_MAX,
     .help = "addresses: HOST:PORT, or unix:/path; sockets that the service manager passes replace "
             "the unix paths and leave the others"},
    RPC_TLS_OPTIONS(values.tls),
    RPC_ROLES_OPTIONS(values.access),
    {.name = "proposer",
     .kind = CONF_TEXT,
     .value = &values.proposer,
     .fallback = "ngram",
     .help = "draft method: ngram, suffix, draft or cascade (for no drafts start the verifier with "
             "--proposers none)"},
    {.name = "name",
     .kind = CONF_TEXT,
     .value = &values.name,
     .help = "name for requests and metrics (default: the value of proposer)"},
    {.name = "instance",
     .kind = CONF_TEXT,
     .value = &values.instance,
     .help = "name of this service in its metrics (default: host and first address)"},
    {.name = "log_level",
     .kind = CONF_CHOICE,
     .value = &values.log_level,
     .fallback = "info",
     .choices = "error|warn|info|debug",
     .help = "least severe level that is logged"},
    {.name = "k_max",
     .kind = CONF_INT,
     .value = &values.k_max,
     .fallback = "20",
     .min = 1,
     .max = DRAFT_MAX_NODES,
     .help = "most tokens on a path of a draft"},
    {.name = "max_context",
     .kind = CONF_INT,
     .value = &values.max_context,
     .fallback = "1048576",
     .min = 16,
     .max = 1 << 26,
     .help = "longest context, in tokens; longer sequences get no drafts"},
    {.name = "max_sessions",
     .kind = CONF_INT,
     .value = &values.max_sessions,
     .fallback = "1024",
     .min = 1,
     .max = 1 << 20,
     .help =
         "sequences stored at the same time; beyond that the least recently used one is dropped"},
    {.name = "max_tokens",
     .kind = CONF_INT,
     .value = &values.max_tokens,
     .fallback = "4194304",
     .min = 1024,
     .max = 1LL << 36,
     .help = "tokens of all contexts together; ngram and suffix take 51 bytes of memory for each"},
    {.name = "idle_timeout",
     .kind = CONF_FLOAT,
     .value = &values.idle_timeout_s,
     .fallback = "120",
     .min = 0.1,
     .max = 86400,
     .help = "time after which an unused sequence is dropped, in s"},
    {.name = "drain_timeout",
     .kind = CONF_FLOAT,
     .value = &values.drain_timeout_s,
     .fallback = "0.2",
     .min = 0,
     .max = 3600,
     .help = "how long streams may continue after a stop signal, in s; verifiers then run without "
             "drafts"},
    {.name = "threads",
     .kind = CONF_INT,
     .value = &values.threads,
     .fallback = "1",
     .min = 1,
     .max = 64,
     .help = "threads that serve verifiers; one is fastest unless verifiers wait for it"},
};

/* Spellings of the previous release. */
static const struct conf_rename renames[] = {
    {.option = "proposer", .old_value = "chain", .new_value = "cascade"},
    {.option = "cascade", .old_name = "chain"},
    {.option = "cascade.choose", .old_name = "chain.choose"},
};

static int unknown_proposer(void)
{
    char known[128] = "", quoted[64];
    size_t n = 0;
    for (size_t i = 0; prop_at(i) && n < sizeof(known); i++)
        n +=
            (size_t)snprintf(known + n, sizeof(known) - n, "%s%s", i ? ", " : "", prop_at(i)->name);
    return fail(-EINVAL, "proposer must be one of %s, not %s", known,
                log_quote(values.proposer, strlen(values.proposer), quoted, sizeof(quoted)));
}

static int check_values(void)
{
    if (!prop_find(values.proposer))
        return unknown_proposer();
    if (values.max_context > values.max_tokens)
        return fail(-EINVAL, "max_context is %lld, above max_tokens %lld",
                    (long long)values.max_context, (long long)values.max_tokens);
    return 0;
}

int proposer_options_read(int argc, char **argv, const struct proposer_options **ret)
{
    static struct conf_option all[OPTIONS_MAX];
    size_t n = ARRAY_LEN(service_options);
    memcpy(all, service_options, sizeof(service_options));
    for (size_t i = 0; prop_at(i); i++)
        for (size_t k = 0; k < prop_at(i)->n_options && n < OPTIONS_MAX; k++)
            all[n++] = prop_at(i)->options[k];
    struct conf conf = {.program = "proposer-svc",
                        .summary = "Drafts the next tokens for verifiers.",
                        .options = all,
                        .n_options = n,
                        .renames = renames,
                        .n_renames = ARRAY_LEN(renames)};
    int r = conf_read(&conf, argc, argv);
    if (r == 0)
        r = check_values();
    *ret = &values;
    return r;
}

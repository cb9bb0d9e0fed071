/* proposer_options.h - the proposer service's settings: one table, which --help and
 * docs/configuration.md are made from.
 *
 * Threads: read by main before any other thread; constant afterwards. */
#pragma once
#include <stdint.h>
#include "base/conf.h"
#include "rpc/rpc_roles.h"
#include "rpc/rpc_tls.h"

struct proposer_options {
    struct conf_list listen;
    struct rpc_tls tls;
    struct rpc_roles_settings access;
    char *proposer, *name, *instance, *log_level;
    int64_t k_max, max_context, max_sessions, max_tokens, threads;
    double idle_timeout_s, drain_timeout_s;
};

/* Reads defaults, file, environment and flags, including the settings of all proposers. Returns
 * what conf_read() returns, and -EINVAL for settings that contradict each other. */
int proposer_options_read(int argc, char **argv, const struct proposer_options **ret);

/* proposer_options.h - the proposer service's settings: one table, from which --help and the documents
 * come.
 *
 * Threads: read by main before any other thread; constant afterwards. */
#pragma once
#include <stdint.h>
#include "base/conf.h"
#include "rpc/rpc_tls.h"

struct proposer_options {
    struct conf_list listen;
    struct rpc_tls tls;
    char *proposer, *name, *instance, *log_level;
    int64_t k_max, max_context, max_sessions, max_tokens, threads;
    double idle_timeout_s, drain_timeout_s;
};

/* Defaults, file, environment, flags; the settings of the proposers in the table come with them. As
 * conf_read(). */
int proposer_options_read(int argc, char **argv, const struct proposer_options **ret);

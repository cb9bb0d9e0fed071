/* gateway_options.h - the settings of the gateway. The table in gateway_options.c documents
 * them. */
#pragma once
#include <stdint.h>
#include "base/conf.h"
#include "rpc/rpc_roles.h"
#include "rpc/rpc_tls.h"

struct gateway_options {
    char *listen, *instance, *log_level, *tool_format, *api_keys, *usage_file, *tls_cert, *tls_key;
    bool allow_open, metrics_open;
    struct conf_list verifiers, cors_origins, trusted_proxies;
    struct rpc_tls rpc_tls;
    struct conf_list tls_roles; // of verifiers
    int64_t http_threads, max_connections, max_connections_per_ip;
    int64_t max_body_kib, max_bodies_mib, max_header_bytes, max_unread_kib;
    double reader_timeout, request_timeout, idle_timeout, keepalive_interval, load_wait, queue_wait,
        stall_timeout, resume_wait, drain_timeout;
    int64_t template_workers;
    double template_timeout;
};

/* Like conf_read(). */
int gateway_options_read(int argc, char **argv, struct gateway_options **ret);
void gateway_options_done(void);

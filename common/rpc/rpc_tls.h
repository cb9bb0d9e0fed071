/* rpc_tls.h - TLS between services on different machines, with a certificate on either side.
 *
 * A process has one identity: its servers show it to clients and its clients to servers, and both
 * want one that the authority has signed. That is for TCP; unix sockets stay plain and have their
 * permissions.
 *
 * Threads: main, before servers and clients. */
#pragma once
#include "base/conf.h"

/* Files (PEM). */
struct rpc_tls {
    char *cert, *key, *ca;
};

/* Rows for a service's table of settings. */
#define RPC_TLS_OPTIONS(t)                                                                         \
    {.name = "rpc_tls_cert",                                                                       \
     .kind = CONF_TEXT,                                                                            \
     .value = &(t).cert,                                                                           \
     .help = "PEM file of this service's certificate; with rpc_tls_key and rpc_tls_ca: gRPC over " \
             "TCP is TLS, and both sides show certificates"},                                      \
        {.name = "rpc_tls_key",                                                                    \
         .kind = CONF_TEXT,                                                                        \
         .value = &(t).key,                                                                        \
         .help = "PEM file of the private key of rpc_tls_cert"},                                   \
    {                                                                                              \
        .name = "rpc_tls_ca", .kind = CONF_TEXT, .value = &(t).ca,                                 \
        .help = "PEM file of the authority that signs the certificates of all services"            \
    }

/* Without any of the three nothing changes. -EINVAL: one is missing, holds none, or does not belong
 * to the others; else what is wrong with a file. Each with a sentence. */
int rpc_tls_init(const struct rpc_tls *files);

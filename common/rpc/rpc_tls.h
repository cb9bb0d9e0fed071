/* rpc_tls.h - mutual TLS between services on different machines.
 *
 * A process has one certificate. Its servers show it to clients, its clients show it to servers,
 * and both require that the authority has signed the certificate of the peer. A client also
 * requires a role of its server (rpc_client_options.server_role). This holds for TCP; unix sockets
 * are not encrypted and are protected by file permissions.
 *
 * The files may change, see base/cert.h. New connections use the new content; established ones
 * continue until they end.
 *
 * Threads: main. */
#pragma once
#include "base/conf.h"

/* Paths of PEM files. */
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

/* Before servers and clients exist. Does nothing if none of the three is set. The strings must
 * outlive the process. tls_roles: of the other ends of connections, see rpc_roles.h; NULL: none.
 * -EINVAL: a file is missing, holds no certificate or key, or does not match the others; or
 * tls_roles has an error. Other errors: a file cannot be read. */
int rpc_tls_init(const struct rpc_tls *paths, const struct conf_list *tls_roles);
/* Looks for changed files and certificates that end soon; call it about once per second. */
void rpc_tls_poll(void);
/* Reads the files now and logs the result. Does nothing without TLS. */
void rpc_tls_reload(void);
bool rpc_tls_on(void); // whether the three are set
/* The roles of a certificate of the other end. After rpc_tls_init(). */
struct x509_st; // of OpenSSL
unsigned rpc_tls_roles(const struct x509_st *x);

/* rpc_roles.h - which roles a client of a server has, and the server of a client.
 *
 * - TLS: the roles of its certificate. Each URI SAN `tandem://ROLE` gives one, and so does each URI
 *   SAN, DNS SAN or CN in `tls_roles`. A DNS SAN or CN with the text `tandem://ROLE` gives none.
 * - The admin socket (unix): operator.
 * - Another unix socket: own_role of rpc_server_options, if the peer is the user that the service
 *   runs as, or root. Other users: client.
 * - TCP without TLS: client. With `insecure_listen`: own_role.
 *
 * own_role is the role of the service's usual peers: gateway for a verifier, verifier for a
 * proposer. A method that does not name one of the roles is refused (rpc_method.roles).
 *
 * The servers that a client connects to by TLS have roles by their certificates, too.
 *
 * A service refuses to start with TCP without TLS if other machines can reach the address. It also
 * refuses such TCP on loopback addresses if it has no method for clients. `insecure_listen` permits
 * both.
 *
 * Threads: any. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "base/conf.h"

/* The settings of a service that decide who may call it. */
struct rpc_roles_settings {
    struct conf_list tls_roles;
    char *admin_listen;
    bool insecure_listen;
};

/* The row of `tls_roles` alone, for a service without gRPC clients. */
#define RPC_ROLES_TLS_OPTION(list)                                                                 \
    {                                                                                              \
        .name = "tls_roles", .kind = CONF_LIST, .value = &(list), .max = CONF_LIST_MAX,            \
        .help =                                                                                    \
            "roles of certificates without a URI tandem://ROLE, each NAME=ROLE; NAME: a SAN (DNS " \
            "or URI) or the CN, exactly; ROLE: client, gateway, verifier, proposer or operator"    \
    }

/* Rows for a service's table of settings. */
#define RPC_ROLES_OPTIONS(r)                                                                       \
    RPC_ROLES_TLS_OPTION((r).tls_roles),                                                           \
        {.name = "admin_listen",                                                                   \
         .kind = CONF_TEXT,                                                                        \
         .value = &(r).admin_listen,                                                               \
         .help = "unix:/path of a socket (mode 0600) whose clients are operators; ignored when "   \
                 "such a socket is passed; empty: none"},                                          \
    {                                                                                              \
        .name = "insecure_listen", .kind = CONF_BOOL, .value = &(r).insecure_listen,               \
        .fallback = "false",                                                                       \
        .help = "permit TCP without TLS on addresses that other machines can reach, and for a "    \
                "proposer on loopback addresses; clients that connect over TCP without TLS then "  \
                "count as usual peers: at a verifier as gateways, at a proposer as verifiers"      \
    }

/* Names of certificates with their roles, parsed from `tls_roles`. */
struct rpc_roles_map {
    unsigned n;
    struct {
        const char *name; // not terminated; the setting's
        size_t len;
        unsigned roles;
    } v[CONF_LIST_MAX];
};

/* from: NULL for none; it must outlive the map. -EINVAL: an entry is not NAME=ROLE. */
int rpc_roles_read(const struct conf_list *from, struct rpc_roles_map *ret);
/* The roles that a DNS SAN or the CN of a certificate gives: those of the map. */
unsigned rpc_roles_of_name(const struct rpc_roles_map *map, const char *name, size_t len);
/* The roles that a URI SAN gives: the role of "tandem://gateway", and those of the map. */
unsigned rpc_roles_of_uri(const struct rpc_roles_map *map, const char *uri, size_t len);

/* The roles of a certificate; 0: none. */
struct x509_st; // of OpenSSL
unsigned rpc_roles_of_x509(const struct rpc_roles_map *map, const struct x509_st *x);
/* The same, for one in PEM; 0 also if it cannot be read. */
unsigned rpc_roles_of_certificate(const struct rpc_roles_map *map, const char *pem);

/* "client", "gateway or operator", "none". */
#define RPC_ROLES_TEXT_MAX 64
const char *rpc_roles_text(unsigned roles, char out[RPC_ROLES_TEXT_MAX]);

/* Whether the other end of a connected unix socket belongs to the user that this process runs as,
 * or to root. False for the user "nobody", who stands for all unknown users in a user namespace. */
bool rpc_roles_is_own_user(int fd);

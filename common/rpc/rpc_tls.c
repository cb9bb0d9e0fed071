/* rpc_tls.c - mutual TLS between services on different machines. */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "base/cert.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "rpc/rpc_base.h"
#include "rpc/rpc_roles.h"
#include "rpc/rpc_tls.h"

#define PORTS_MAX 64 // TCP ports that this process opens; further ones parse per connection

static struct rpc_roles_map roles_of;            // `tls_roles`
static struct cert_files *files;                 // of this process; NULL: no TLS
static atomic_uint_fast64_t versions[PORTS_MAX]; // of the certificate that a port uses; 0: none
static atomic_uint n_ports;

int rpc_tls_init(const struct rpc_tls *paths, const struct conf_list *tls_roles)
{
    int r = rpc_roles_read(tls_roles, &roles_of);
    if (r < 0)
        return r;
    if (!paths->cert && !paths->key && !paths->ca)
        return 0;
    if (!paths->cert || !paths->key || !paths->ca)
        return fail(
            -EINVAL,
            "rpc_tls_cert, rpc_tls_key and rpc_tls_ca must be set together: one is missing");
    struct cert_paths p = {
        .settings = "rpc_tls", .cert = paths->cert, .key = paths->key, .ca = paths->ca};
    return cert_files_new(&p, &files);
}

void rpc_tls_poll(void)
{
    cert_files_poll(files, clock_us(), clock_unix_s());
}

void rpc_tls_reload(void)
{
    cert_files_reload(files);
}

bool rpc_tls_on(void)
{
    return files != NULL;
}

unsigned rpc_tls_roles(const struct x509_st *x)
{
    return rpc_roles_of_x509(&roles_of, x);
}

static bool is_local(const char *target)
{
    return strncmp(target, "unix:", 5) == 0 || strncmp(target, "unix-abstract:", 14) == 0;
}

uint64_t rpc_tls_version(const char *target)
{
    return rpc_tls_on() && !is_local(target) ? cert_files_version(files) : 0;
}

/* What a channel demands of its server. */
struct demand {
    unsigned role;
    atomic_bool warned;
    char target[];
};

/* Without this, each service with a certificate of the authority could pose as each other one. */
static int check_role(const char *host, const char *pem, void *user)
{
    (void)host; // checked by gRPC core
    struct demand *d = user;
    unsigned roles = rpc_roles_of_certificate(&roles_of, pem);
    char has[RPC_ROLES_TEXT_MAX], needs[RPC_ROLES_TEXT_MAX];
    if (roles & d->role)
        return 0;
    if (!atomic_exchange(&d->warned, true))
        log_warn("server refused target=%s: the role of its certificate is %s, not %s; give it a "
                 "certificate of that role (SAN tandem://ROLE), or set tls_roles of this service",
                 d->target, rpc_roles_text(roles, has), rpc_roles_text(d->role, needs));
    return 1;
}

/* role 0: any. */
static grpc_ssl_verify_peer_options demand_role(const char *target, unsigned role)
{
    if (!role)
        return (grpc_ssl_verify_peer_options){0};
    struct demand *d = rpc_alloc(1, sizeof(*d) + strlen(target) + 1);
    d->role = role;
    strcpy(d->target, target);
    return (grpc_ssl_verify_peer_options){check_role, d, free};
}

grpc_channel_credentials *rpc_tls_channel(const char *target, unsigned server_role,
                                          uint64_t *ret_version)
{
    *ret_version = 0;
    if (!rpc_tls_on() || is_local(target))
        return grpc_insecure_credentials_create();
    AUTO(cert_text_unref) struct cert_text *t = cert_files_text(files);
    grpc_ssl_pem_key_cert_pair own = {.private_key = t->key.text, .cert_chain = t->cert.text};
    grpc_ssl_verify_peer_options verify = demand_role(target, server_role);
    *ret_version = t->version;
    return grpc_ssl_credentials_create_ex(t->ca.text, &own, &verify, NULL);
}

/* gRPC core calls this for each connection of a port, and never for two at a time. */
static grpc_ssl_certificate_config_reload_status
newest_certificate(void *user, grpc_ssl_server_certificate_config **ret)
{
    atomic_uint_fast64_t *used = user; // NULL: not known
    AUTO(cert_text_unref) struct cert_text *t = cert_files_text(files);
    if (used && atomic_exchange(used, t->version) == t->version)
        return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    grpc_ssl_pem_key_cert_pair own = {.private_key = t->key.text, .cert_chain = t->cert.text};
    *ret = grpc_ssl_server_certificate_config_create(t->ca.text, &own, 1);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
}

grpc_server_credentials *rpc_tls_server(void)
{
    if (!rpc_tls_on())
        return grpc_insecure_server_credentials_create();
    unsigned port = atomic_fetch_add(&n_ports, 1);
    return grpc_ssl_server_credentials_create_with_options(
        grpc_ssl_server_credentials_create_options_using_config_fetcher(
            GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY, newest_certificate,
            port < PORTS_MAX ? &versions[port] : NULL));
}

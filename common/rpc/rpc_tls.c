/* rpc_tls.c - mutual TLS between services on different machines. */
#include <errno.h>
#include <string.h>
#include "base/cert.h"
#include "base/clock.h"
#include "base/err.h"
#include "rpc/rpc_base.h"
#include "rpc/rpc_tls.h"

#define PORTS_MAX 64 // TCP ports that this process opens; further ones parse per connection

static struct cert_files *files;                 // of this process; NULL: no TLS
static atomic_uint_fast64_t versions[PORTS_MAX]; // of the certificate that a port uses; 0: none
static atomic_uint n_ports;

int rpc_tls_init(const struct rpc_tls *paths)
{
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

static bool is_local(const char *target)
{
    return strncmp(target, "unix:", 5) == 0 || strncmp(target, "unix-abstract:", 14) == 0;
}

uint64_t rpc_tls_version(const char *target)
{
    return rpc_tls_on() && !is_local(target) ? cert_files_version(files) : 0;
}

grpc_channel_credentials *rpc_tls_channel(const char *target, uint64_t *ret_version)
{
    *ret_version = 0;
    if (!rpc_tls_on() || is_local(target))
        return grpc_insecure_credentials_create();
    AUTO(cert_text_unref) struct cert_text *t = cert_files_text(files);
    grpc_ssl_pem_key_cert_pair own = {.private_key = t->key.text, .cert_chain = t->cert.text};
    *ret_version = t->version;
    return grpc_ssl_credentials_create_ex(t->ca.text, &own, NULL, NULL);
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

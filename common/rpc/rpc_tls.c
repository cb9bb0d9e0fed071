/* rpc_tls.c - mutual TLS between services on different machines. */
#include <errno.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <string.h>
#include "base/err.h"
#include "base/secret.h"
#include "rpc/rpc_base.h"
#include "rpc/rpc_tls.h"

static struct secret cert, key, ca; // of this process; texts NULL: no TLS

/* The first certificate in the text; NULL: none. */
static X509 *first_certificate(const struct secret *s)
{
    BIO *in = BIO_new_mem_buf(s->text, (int)s->len);
    X509 *x = in ? PEM_read_bio_X509(in, NULL, NULL, NULL) : NULL;
    BIO_free(in);
    return x;
}

static EVP_PKEY *private_key(const struct secret *s)
{
    BIO *in = BIO_new_mem_buf(s->text, (int)s->len);
    EVP_PKEY *k = in ? PEM_read_bio_PrivateKey(in, NULL, NULL, (void *)(uintptr_t) "") : NULL;
    BIO_free(in);
    return k;
}

/* Without this check gRPC core would silently create channels on which every call fails. */
static int check_identity(const struct rpc_tls *files)
{
    X509 *own = first_certificate(&cert), *root = first_certificate(&ca);
    EVP_PKEY *k = private_key(&key);
    int rc = 0;
    if (!own)
        rc = fail(-EINVAL, "rpc_tls_cert: %s holds no certificate (PEM)", files->cert);
    else if (!root)
        rc = fail(-EINVAL, "rpc_tls_ca: %s holds no certificate (PEM)", files->ca);
    else if (!k)
        rc = fail(-EINVAL, "rpc_tls_key: %s holds no key (PEM, without a password)", files->key);
    else if (X509_check_private_key(own, k) != 1)
        rc = fail(-EINVAL, "rpc_tls_key: %s is not the key of %s", files->key, files->cert);
    X509_free(own);
    X509_free(root);
    EVP_PKEY_free(k);
    return rc;
}

int rpc_tls_init(const struct rpc_tls *files)
{
    if (!files->cert && !files->key && !files->ca)
        return 0;
    if (!files->cert || !files->key || !files->ca)
        return fail(
            -EINVAL,
            "rpc_tls_cert, rpc_tls_key and rpc_tls_ca must be set together: one is missing");
    int rc = secret_read("the certificate for gRPC", files->cert, false, &cert);
    rc = rc < 0 ? rc : secret_read("the authority for gRPC", files->ca, false, &ca);
    rc = rc < 0 ? rc : secret_read("the key for gRPC", files->key, true, &key);
    return rc < 0 ? rc : check_identity(files);
}

bool rpc_tls_on(void)
{
    return cert.text != NULL;
}

grpc_channel_credentials *rpc_tls_channel(const char *target)
{
    grpc_ssl_pem_key_cert_pair own = {.private_key = key.text, .cert_chain = cert.text};
    bool local = strncmp(target, "unix:", 5) == 0 || strncmp(target, "unix-abstract:", 14) == 0;
    if (!rpc_tls_on() || local)
        return grpc_insecure_credentials_create();
    return grpc_ssl_credentials_create_ex(ca.text, &own, NULL, NULL);
}

grpc_server_credentials *rpc_tls_server(void)
{
    grpc_ssl_pem_key_cert_pair own = {.private_key = key.text, .cert_chain = cert.text};
    if (!rpc_tls_on())
        return grpc_insecure_server_credentials_create();
    return grpc_ssl_server_credentials_create_ex(
        ca.text, &own, 1, GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY, NULL);
}

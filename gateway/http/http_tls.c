/* http_tls.c - the certificate of the HTTPS server. */
#include <dlfcn.h>
#include <errno.h>
#include <gnutls/abstract.h>
#include <gnutls/gnutls.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/socket.h>
#include "base/err.h"
#include "gateway/http/http_tls.h"

#define CHAIN_MAX 16 // certificates in the file
#define RSA_BITS 2048u
#define MAX_FDS (1 << 20) // more than a process usually may open

static struct {
    struct cert_files *files;
    http_tls_may_sign *may_sign;
    void *user;
} in_use;
static atomic_uint key_cost = 1; // of the last key that was checked

/* What each socket has received. */
static struct input {
    gnutls_session_t session; // of the server; NULL: none yet
    atomic_bool shaken;       // gnutls_handshake() has ended
    atomic_uint n;            // bytes since the application got some
    atomic_uint n_reads;      // that this call of gnutls_record_recv() may still make
    atomic_bool complete;     // the handshake
} inputs[MAX_FDS];

static struct {
    pthread_once_t once;
    int (*handshake)(gnutls_session_t session);
    ssize_t (*record_recv)(gnutls_session_t session, void *to, size_t size);
} next = {.once = PTHREAD_ONCE_INIT};

static gnutls_datum_t datum(const struct secret *s)
{
    return (gnutls_datum_t){(unsigned char *)s->text, (unsigned)s->len};
}

static void chain_free(gnutls_pcert_st *chain, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        gnutls_pcert_deinit(&chain[i]);
    gnutls_free(chain);
}

/* Parses certificate chain and key. The caller owns both. Below 0: an error of GnuTLS. */
static int parse(const struct cert_text *t, gnutls_pcert_st **ret_chain, unsigned *ret_n,
                 gnutls_privkey_t *ret_key)
{
    gnutls_datum_t cert = datum(&t->cert), key = datum(&t->key);
    gnutls_privkey_t k;
    unsigned n = CHAIN_MAX;
    gnutls_pcert_st *chain = gnutls_calloc(CHAIN_MAX, sizeof(*chain));
    int rc = chain ? gnutls_pcert_list_import_x509_raw(chain, &n, &cert, GNUTLS_X509_FMT_PEM,
                                                       GNUTLS_X509_CRT_LIST_IMPORT_FAIL_IF_EXCEED)
                   : GNUTLS_E_MEMORY_ERROR;
    if (rc < 0) {
        gnutls_free(chain);
        return rc;
    }
    rc = gnutls_privkey_init(&k);
    if (rc == 0 && (rc = gnutls_privkey_import_x509_raw(k, &key, GNUTLS_X509_FMT_PEM, NULL, 0)) < 0)
        gnutls_privkey_deinit(k);
    if (rc < 0) {
        chain_free(chain, n);
        return rc;
    }
    *ret_chain = chain;
    *ret_n = n;
    *ret_key = k;
    return 0;
}

/* 0: of another algorithm. */
static unsigned rsa_bits_of(gnutls_privkey_t key)
{
    unsigned bits = 0;
    int algorithm = gnutls_privkey_get_pk_algorithm(key, &bits);
    return algorithm == GNUTLS_PK_RSA || algorithm == GNUTLS_PK_RSA_PSS ? bits : 0;
}

/* The time of a signature, in those of RSA with 2,048 bits. Elliptic curves are faster. */
static unsigned cost_of(unsigned rsa_bits)
{
    return rsa_bits > RSA_BITS
               ? (rsa_bits * rsa_bits + RSA_BITS * RSA_BITS - 1) / (RSA_BITS * RSA_BITS)
               : 1;
}

int http_tls_check(const struct cert_text *t)
{
    gnutls_pcert_st *chain;
    gnutls_privkey_t key;
    unsigned n;
    int rc = parse(t, &chain, &n, &key);
    if (rc < 0)
        return fail(-EINVAL, "tls_cert and tls_key: not usable for HTTPS: %s", gnutls_strerror(rc));
    unsigned rsa_bits = rsa_bits_of(key);
    chain_free(chain, n);
    gnutls_privkey_deinit(key);
    if (rsa_bits > HTTP_TLS_RSA_MAX)
        return fail(-EINVAL,
                    "tls_key: an RSA key of %u bits makes handshakes too slow, at most %u are "
                    "possible; an ECDSA key is faster",
                    rsa_bits, HTTP_TLS_RSA_MAX);
    atomic_store(&key_cost, cost_of(rsa_bits));
    return 0;
}

/* Called when the ClientHello has arrived, before the signature. A resumed session needs none.
 * GnuTLS frees what this returns at the end of the handshake. libmicrohttpd 0.9.75 has set the
 * session's pointer to its connection. */
static int on_handshake(gnutls_session_t session, const struct gnutls_cert_retr_st *info,
                        gnutls_pcert_st **ret_chain, unsigned *ret_n, gnutls_ocsp_data_st **ocsp,
                        unsigned *n_ocsp, gnutls_privkey_t *ret_key, unsigned *flags)
{
    (void)info;
    if (!in_use.may_sign(in_use.user, gnutls_session_get_ptr(session), atomic_load(&key_cost)))
        return -1;
    AUTO(cert_text_unref) struct cert_text *t = cert_files_text(in_use.files);
    *ocsp = NULL;
    *n_ocsp = 0;
    *flags = GNUTLS_CERT_RETR_DEINIT_ALL;
    return parse(t, ret_chain, ret_n, ret_key) < 0 ? -1 : 0;
}

void http_tls_use(struct cert_files *files, http_tls_may_sign *may_sign, void *user)
{
    in_use.files = files;
    in_use.may_sign = may_sign;
    in_use.user = user;
}

/* NULL: the descriptor is too high. */
static struct input *input_of(gnutls_session_t session)
{
    int fd = gnutls_transport_get_int(session);
    return fd < MAX_FDS ? &inputs[fd] : NULL;
}

/* GnuTLS reads record after record until one has data. It continues in its next call. */
static bool may_read(struct input *in)
{
    if (!atomic_load(&in->complete))
        return true;
    bool may = atomic_load(&in->n_reads) > 0;
    if (may)
        atomic_fetch_sub(&in->n_reads, 1);
    return may;
}

/* Reads for GnuTLS. */
static ssize_t pull(gnutls_transport_ptr_t socket, void *to, size_t n)
{
    int fd = (int)(intptr_t)socket;
    struct input *in = &inputs[fd];
    unsigned most = atomic_load(&in->complete) ? HTTP_TLS_SILENT_MAX : HTTP_TLS_HANDSHAKE_MAX;
    if (atomic_load(&in->n) > most) {
        errno = ECONNRESET;
        return -1;
    }
    if (!may_read(in)) {
        errno = EAGAIN;
        return -1;
    }
    ssize_t got = recv(fd, to, n, 0);
    if (got > 0)
        atomic_fetch_add(&in->n, (unsigned)got);
    return got;
}

/* The client's Finished is the last that it sends. */
static int on_finished(gnutls_session_t session, unsigned type, unsigned when, unsigned incoming,
                       const gnutls_datum_t *message)
{
    (void)type, (void)when, (void)message;
    struct input *in = input_of(session);
    if (incoming && in) {
        atomic_store(&in->complete, true);
        atomic_store(&in->n, 0);
    }
    return 0;
}

void http_tls_limit(void *session)
{
    struct input *in = input_of(session);
    if (!in)
        return;
    in->session = session;
    atomic_store(&in->n, 0);
    atomic_store(&in->complete, false);
    atomic_store(&in->shaken, false);
    gnutls_transport_set_pull_function(session, pull);
    gnutls_handshake_set_hook_function(session, GNUTLS_HANDSHAKE_FINISHED, GNUTLS_HOOK_POST,
                                       on_finished);
}

static void find_next(void)
{
    *(void **)&next.handshake = dlsym(RTLD_NEXT, "gnutls_handshake");
    *(void **)&next.record_recv = dlsym(RTLD_NEXT, "gnutls_record_recv");
}

static struct input *server_input_of(gnutls_session_t session)
{
    pthread_once(&next.once, find_next);
    struct input *in = input_of(session);
    return in && in->session == session ? in : NULL;
}

/* Replaces that of GnuTLS, for libmicrohttpd. This would call it in each turn of its loop, without
 * a pause, until the client has sent the rest. So the handshake happens in gnutls_record_recv(). */
__attribute__((visibility("default"))) int gnutls_handshake(gnutls_session_t session)
{
    return server_input_of(session) ? 0 : next.handshake(session);
}

/* 0, or an error of GnuTLS. The client gets an alert for it. */
static int shake_hands(struct input *in)
{
    int rc = atomic_load(&in->shaken) ? 0 : next.handshake(in->session);
    atomic_store(&in->shaken, rc == 0);
    if (rc < 0 && gnutls_error_is_fatal(rc))
        gnutls_alert_send_appropriate(in->session, rc);
    return rc;
}

/* Replaces that of GnuTLS, for libmicrohttpd. After GNUTLS_E_AGAIN this asks again only when more
 * bytes arrive; after GNUTLS_E_INTERRUPTED when other connections have had their turn. Bytes may
 * remain after records without data, such as a new key. */
__attribute__((visibility("default"))) ssize_t gnutls_record_recv(gnutls_session_t session,
                                                                  void *to, size_t size)
{
    struct input *in = server_input_of(session);
    if (!in)
        return next.record_recv(session, to, size);
    int rc = shake_hands(in);
    if (rc < 0)
        return rc;
    unsigned before = atomic_load(&in->n);
    atomic_store(&in->n_reads, HTTP_TLS_READS_MAX);
    ssize_t n = next.record_recv(session, to, size);
    if (n > 0)
        atomic_store(&in->n, 0);
    return n == GNUTLS_E_AGAIN && atomic_load(&in->n) > before ? GNUTLS_E_INTERRUPTED : n;
}

void *http_tls_callback(void)
{
    gnutls_certificate_retrieve_function3 *fn = on_handshake;
    return (void *)fn;
}

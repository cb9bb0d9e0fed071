/* http_tls.c - GnuTLS for the HTTPS server, and what libmicrohttpd calls in its place. */
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

#define CHAIN_MAX 16      // certificates in the file
#define MAX_FDS (1 << 20) // more than a process usually may open

static struct {
    struct cert_files *files;
    gnutls_certificate_credentials_t credentials;
    gnutls_priority_t priorities;
} in_use;
static _Thread_local gnutls_session_t adopted;

/* What each socket has received. */
static struct input {
    gnutls_session_t session; // of the server; NULL: none yet
    atomic_uint n;            // bytes since the application got some
    atomic_uint n_reads;      // that this call of gnutls_record_recv() may still make
    atomic_bool complete;     // the handshake
} inputs[MAX_FDS];

static struct {
    pthread_once_t once;
    int (*init)(gnutls_session_t *ret, unsigned flags);
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
    return 0;
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

/* Called when the ClientHello has arrived, before the signature. GnuTLS frees what this returns at
 * the end of the handshake. */
static int on_hello(gnutls_session_t session, const struct gnutls_cert_retr_st *info,
                    gnutls_pcert_st **ret_chain, unsigned *ret_n, gnutls_ocsp_data_st **ocsp,
                    unsigned *n_ocsp, gnutls_privkey_t *ret_key, unsigned *flags)
{
    (void)session, (void)info;
    AUTO(cert_text_unref) struct cert_text *t = cert_files_text(in_use.files);
    *ocsp = NULL;
    *n_ocsp = 0;
    *flags = GNUTLS_CERT_RETR_DEINIT_ALL;
    return parse(t, ret_chain, ret_n, ret_key) < 0 ? -1 : 0;
}

/* ---- sessions ---- */

int http_tls_use(struct cert_files *files)
{
    in_use.files = files;
    if (in_use.credentials)
        return 0;
    if (gnutls_priority_init(&in_use.priorities, HTTP_TLS_PRIORITIES, NULL) < 0 ||
        gnutls_certificate_allocate_credentials(&in_use.credentials) < 0)
        return fail(-ENOMEM, "http: GnuTLS cannot start");
    gnutls_certificate_set_retrieve_function3(in_use.credentials, on_hello);
    return 0;
}

static gnutls_session_t gnutls_of(const struct http_tls_session *s)
{
    return (gnutls_session_t)s;
}

int http_tls_session_new(int fd, struct http_tls_session **ret)
{
    gnutls_session_t session;
    if (fd >= MAX_FDS)
        return fail(-EMFILE, "http: a descriptor is not below %d", MAX_FDS);
    if (gnutls_init(&session, GNUTLS_SERVER | GNUTLS_NONBLOCK | GNUTLS_NO_SIGNAL) < 0)
        return fail(-ENOMEM, "http: no memory");
    gnutls_priority_set(session, in_use.priorities);
    gnutls_credentials_set(session, GNUTLS_CRD_CERTIFICATE, in_use.credentials);
    gnutls_transport_set_int(session, fd);
    gnutls_transport_set_pull_function(session, pull);
    gnutls_handshake_set_hook_function(session, GNUTLS_HANDSHAKE_FINISHED, GNUTLS_HOOK_POST,
                                       on_finished);
    struct input *in = &inputs[fd];
    in->session = session;
    atomic_store(&in->n, 0);
    atomic_store(&in->complete, false);
    *ret = (struct http_tls_session *)session;
    return 0;
}

void http_tls_session_free(struct http_tls_session *s)
{
    if (s)
        gnutls_deinit(gnutls_of(s));
}

struct http_tls_session *http_tls_adopt(struct http_tls_session *s)
{
    struct http_tls_session *left = (struct http_tls_session *)adopted;
    adopted = gnutls_of(s);
    return left;
}

static void find_next(void)
{
    *(void **)&next.init = dlsym(RTLD_NEXT, "gnutls_init");
    *(void **)&next.handshake = dlsym(RTLD_NEXT, "gnutls_handshake");
    *(void **)&next.record_recv = dlsym(RTLD_NEXT, "gnutls_record_recv");
}

static struct input *server_input_of(gnutls_session_t session)
{
    pthread_once(&next.once, find_next);
    struct input *in = input_of(session);
    return in && in->session == session ? in : NULL;
}

enum http_tls_step http_tls_proceed(struct http_tls_session *s)
{
    pthread_once(&next.once, find_next);
    int rc = next.handshake(gnutls_of(s));
    if (rc == 0)
        return HTTP_TLS_COMPLETE;
    if (!gnutls_error_is_fatal(rc))
        return gnutls_record_get_direction(gnutls_of(s)) ? HTTP_TLS_WRITES : HTTP_TLS_READS;
    gnutls_alert_send_appropriate(gnutls_of(s), rc);
    return HTTP_TLS_FAILED;
}

/* Replaces that of GnuTLS, for libmicrohttpd: its connection gets the adopted session. */
__attribute__((visibility("default"))) int gnutls_init(gnutls_session_t *ret, unsigned flags)
{
    pthread_once(&next.once, find_next);
    if (!adopted)
        return next.init(ret, flags);
    *ret = adopted;
    adopted = NULL;
    return 0;
}

/* Replaces that of GnuTLS, for libmicrohttpd: sessions of the server have shaken hands. */
__attribute__((visibility("default"))) int gnutls_handshake(gnutls_session_t session)
{
    return server_input_of(session) ? 0 : next.handshake(session);
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
    unsigned before = atomic_load(&in->n);
    atomic_store(&in->n_reads, HTTP_TLS_READS_MAX);
    ssize_t n = next.record_recv(session, to, size);
    if (n > 0)
        atomic_store(&in->n, 0);
    return n == GNUTLS_E_AGAIN && atomic_load(&in->n) > before ? GNUTLS_E_INTERRUPTED : n;
}

void *http_tls_callback(void)
{
    gnutls_certificate_retrieve_function3 *fn = on_hello;
    return (void *)fn;
}

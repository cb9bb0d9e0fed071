/* test_http_tls.c - the certificate of HTTPS: what GnuTLS accepts, and what a handshake gets. */
#include <errno.h>
#include <gnutls/abstract.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "base/err.h"
#include "gateway/http/http_tls.h"
#include "lib/lib.h"

#define CHAIN_MAX 16

/* A key and a certificate for it that it signs itself, as PEM. */
struct pair {
    char cert[4096], key[4096];
};

static struct pair pair_of(const char *name)
{
    struct pair p;
    size_t n_cert = sizeof(p.cert), n_key = sizeof(p.key);
    gnutls_x509_privkey_t key;
    gnutls_x509_crt_t crt;
    assert_int_equal(gnutls_x509_privkey_init(&key), 0);
    assert_int_equal(gnutls_x509_privkey_generate(
                         key, GNUTLS_PK_ECDSA, GNUTLS_CURVE_TO_BITS(GNUTLS_ECC_CURVE_SECP256R1), 0),
                     0);
    assert_int_equal(gnutls_x509_crt_init(&crt), 0);
    gnutls_x509_crt_set_version(crt, 3);
    gnutls_x509_crt_set_serial(crt, "\1", 1);
    gnutls_x509_crt_set_activation_time(crt, time(NULL) - 60);
    gnutls_x509_crt_set_expiration_time(crt, time(NULL) + 30 * 24 * 3600);
    gnutls_x509_crt_set_dn_by_oid(crt, GNUTLS_OID_X520_COMMON_NAME, 0, name,
                                  (unsigned)strlen(name));
    assert_int_equal(gnutls_x509_crt_set_key(crt, key), 0);
    assert_int_equal(gnutls_x509_crt_sign2(crt, crt, key, GNUTLS_DIG_SHA256, 0), 0);
    assert_int_equal(gnutls_x509_crt_export(crt, GNUTLS_X509_FMT_PEM, p.cert, &n_cert), 0);
    assert_int_equal(gnutls_x509_privkey_export(key, GNUTLS_X509_FMT_PEM, p.key, &n_key), 0);
    p.cert[n_cert] = p.key[n_key] = 0;
    gnutls_x509_crt_deinit(crt);
    gnutls_x509_privkey_deinit(key);
    return p;
}

static int checks(const char *cert, const char *key)
{
    const struct cert_text t = {.cert = {(char *)cert, strlen(cert)},
                                .key = {(char *)key, strlen(key)}};
    return http_tls_check(&t);
}

static void what_gnutls_cannot_read_is_refused(void **state)
{
    (void)state;
    struct pair p = pair_of("a.example");
    static char chain[(CHAIN_MAX + 1) * sizeof(p.cert)];
    assert_int_equal(checks(p.cert, p.key), 0);
    assert_int_equal(checks("junk", p.key), -EINVAL);
    assert_non_null(strstr(fail_text(), "tls_cert and tls_key: not usable for HTTPS: "));
    assert_int_equal(checks(p.cert, "junk"), -EINVAL);
    assert_int_equal(checks(p.key, p.cert), -EINVAL);
    assert_int_equal(checks("", ""), -EINVAL);
    for (unsigned n = 1; n <= CHAIN_MAX + 1; n++) {
        strcat(chain, p.cert);
        assert_int_equal(checks(chain, p.key), n > CHAIN_MAX ? -EINVAL : 0);
    }
}

static void write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    chmod(path, 0600);
}

static unsigned n_asked;

static bool may_sign(void *user, struct MHD_Connection *c)
{
    assert_ptr_equal(user, &n_asked);
    n_asked++;
    return c != NULL;
}

static void a_handshake_gets_the_chain_and_the_key(void **state)
{
    (void)state;
    char folder[] = "/tmp/tandem-test-tls-XXXXXX", cert[64], key[64];
    struct pair p = pair_of("a.example"), q = pair_of("b.example");
    AUTO(cert_files_free) struct cert_files *files = NULL;
    snprintf(cert, sizeof(cert), "%s/cert.pem", mkdtemp(folder));
    snprintf(key, sizeof(key), "%s/key.pem", folder);
    strcat(p.cert, q.cert);
    write_file(cert, p.cert);
    write_file(key, p.key);
    const struct cert_paths paths = {
        .settings = "tls", .cert = cert, .key = key, .check = http_tls_check};
    if (cert_files_new(&paths, &files) < 0)
        fail_msg("%s", fail_text());
    http_tls_use(files, may_sign, &n_asked);
    gnutls_certificate_retrieve_function3 *fn =
        (gnutls_certificate_retrieve_function3 *)http_tls_callback();
    gnutls_pcert_st *chain = NULL;
    gnutls_ocsp_data_st *ocsp = (gnutls_ocsp_data_st *)&fn;
    gnutls_privkey_t private = NULL;
    unsigned n = 0, n_ocsp = 9, flags = 0;
    gnutls_session_t session;
    assert_int_equal(gnutls_init(&session, GNUTLS_SERVER), 0);
    gnutls_session_set_ptr(session, NULL);
    assert_int_equal(fn(session, NULL, &chain, &n, &ocsp, &n_ocsp, &private, &flags), -1);
    gnutls_session_set_ptr(session, &n_asked);
    assert_int_equal(fn(session, NULL, &chain, &n, &ocsp, &n_ocsp, &private, &flags), 0);
    assert_int_equal(n_asked, 2);
    gnutls_deinit(session);
    assert_int_equal(n, 2);
    assert_null(ocsp);
    assert_int_equal(n_ocsp, 0);
    assert_int_equal(flags, GNUTLS_CERT_RETR_DEINIT_ALL); // GnuTLS frees them, as here
    assert_int_equal(gnutls_privkey_get_pk_algorithm(private, NULL), GNUTLS_PK_ECDSA);
    for (unsigned i = 0; i < n; i++)
        gnutls_pcert_deinit(&chain[i]);
    gnutls_free(chain);
    gnutls_privkey_deinit(private);
    unlink(cert);
    unlink(key);
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_gnutls_cannot_read_is_refused),
        cmocka_unit_test(a_handshake_gets_the_chain_and_the_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

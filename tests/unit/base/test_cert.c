/* test_cert.c - certificates from files: what is accepted, when a change is used, warnings. */
#include <errno.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include "lib/lib.h"
#include "base/cert.h"
#include "base/err.h"
#include "base/log.h"
#include "lib/rigs/logged.h"

#define DAY_S ((int64_t)24 * 3600)
#define VALID_S (100 * DAY_S)

/* Files of one certificate, in a separate folder. */
static struct rig {
    char folder[64], cert[96], key[96], ca[96];
    struct cert_paths paths;
    int64_t end_s; // of the last certificate written
    int64_t now_us;
} rig;

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* A new key with a certificate that it signs itself, valid for valid_s. NULL: not written. */
static void write_pair(const char *cert, const char *key, int64_t valid_s)
{
    EVP_PKEY *k = EVP_EC_gen("P-256");
    X509 *x = X509_new();
    assert_true(k && x);
    X509_gmtime_adj(X509_getm_notBefore(x), 0);
    X509_gmtime_adj(X509_getm_notAfter(x), valid_s);
    X509_set_pubkey(x, k);
    assert_true(X509_sign(x, k, EVP_sha256()) > 0);
    FILE *f = cert ? fopen(cert, "w") : NULL;
    assert_true(!f || PEM_write_X509(f, x));
    if (f)
        fclose(f);
    f = key ? fopen(key, "w") : NULL;
    assert_true(!f || PEM_write_PrivateKey(f, k, NULL, NULL, 0, NULL, NULL));
    if (f)
        fclose(f);
    rig.end_s = time(NULL) + valid_s;
    X509_free(x);
    EVP_PKEY_free(k);
}

static int set_up(void **state)
{
    (void)state;
    strcpy(rig.folder, "/tmp/tandem-cert-XXXXXX");
    assert_non_null(mkdtemp(rig.folder));
    snprintf(rig.cert, sizeof(rig.cert), "%s/own.pem", rig.folder);
    snprintf(rig.key, sizeof(rig.key), "%s/own.key", rig.folder);
    snprintf(rig.ca, sizeof(rig.ca), "%s/ca.pem", rig.folder);
    rig.paths =
        (struct cert_paths){.settings = "rpc_tls", .cert = rig.cert, .key = rig.key, .ca = rig.ca};
    rig.now_us = 0;
    write_pair(rig.ca, NULL, VALID_S);
    write_pair(rig.cert, rig.key, VALID_S);
    chmod(rig.key, 0600);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    unlink(rig.cert);
    unlink(rig.key);
    unlink(rig.ca);
    return rmdir(rig.folder);
}

static struct cert_files *must_open(void)
{
    struct cert_files *f = NULL;
    assert_int_equal(cert_files_new(&rig.paths, &f), 0);
    return f;
}

/* The next look; returns what it logs. */
static const char *poll_at(struct cert_files *f, int64_t wall_s)
{
    rig.now_us += CERT_FILES_POLL_US;
    logged_begin();
    cert_files_poll(f, rig.now_us, wall_s);
    return logged_end();
}

static const char *poll_now(struct cert_files *f)
{
    return poll_at(f, time(NULL));
}

static void refused(const char *reason)
{
    struct cert_files *f = NULL;
    int rc = cert_files_new(&rig.paths, &f);
    assert_true(rc < 0);
    assert_null(f);
    if (!strstr(fail_text(), reason))
        fail_msg("no \"%s\" in: %s", reason, fail_text());
}

static void files_that_do_not_fit_together_are_refused(void **state)
{
    (void)state;
    write_pair(NULL, rig.key, VALID_S);
    refused("rpc_tls_key: ");
    refused("is not the key of");
    write_text(rig.key, "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n");
    refused("holds no key");
    write_text(rig.ca, "no authority");
    refused("rpc_tls_ca: ");
    write_text(rig.cert, "");
    refused("rpc_tls_cert: ");
    unlink(rig.cert);
    refused("cannot read rpc_tls_cert");
}

static void a_chain_with_a_damaged_certificate_is_refused(void **state)
{
    (void)state;
    FILE *f = fopen(rig.cert, "a");
    fputs("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", f);
    fclose(f);
    refused("or a damaged one");
}

static int refuse_all(const struct cert_text *t)
{
    (void)t;
    return fail(-EINVAL, "not for me");
}

static void a_check_of_the_caller_counts(void **state)
{
    (void)state;
    rig.paths.check = refuse_all;
    refused("not for me");
}

static void a_change_is_used_when_the_files_have_rested(void **state)
{
    (void)state;
    AUTO(cert_files_free) struct cert_files *f = must_open();
    AUTO(cert_text_unref) struct cert_text *old = cert_files_text(f);
    assert_int_equal(old->version, 1);
    poll_now(f);
    write_pair(rig.cert, rig.key, VALID_S);
    assert_string_equal(poll_now(f), ""); // it may still change
    assert_int_equal(cert_files_version(f), 1);
    assert_int_equal(logged_count(poll_now(f), "certificates reloaded"), 1);
    AUTO(cert_text_unref) struct cert_text *now = cert_files_text(f);
    assert_int_equal(now->version, 2);
    assert_string_not_equal(now->cert.text, old->cert.text); // the old one is still readable
    assert_string_equal(poll_now(f), "");
}

static void a_fault_is_logged_once_and_leaves_the_old_content(void **state)
{
    (void)state;
    AUTO(cert_files_free) struct cert_files *f = must_open();
    size_t len;
    char *key = lib_read(rig.key, &len);
    write_pair(NULL, rig.key, VALID_S);
    poll_now(f);
    assert_int_equal(logged_count(poll_now(f), "the old ones stay in use: rpc_tls_key: "), 1);
    for (int i = 0; i < 5; i++)
        assert_string_equal(poll_now(f), "");
    assert_int_equal(cert_files_version(f), 1);
    write_text(rig.key, key); // the same content again: nothing to use, nothing to log
    free(key);
    poll_now(f);
    assert_string_equal(poll_now(f), "");
    unlink(rig.cert);
    poll_now(f);
    assert_int_equal(logged_count(poll_now(f), "cannot read rpc_tls_cert"), 1);
    assert_int_equal(cert_files_version(f), 1);
}

static void files_that_could_not_be_opened_are_read_again(void **state)
{
    (void)state;
    AUTO(cert_files_free) struct cert_files *f = must_open();
    struct rlimit old, none = {0};
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    none.rlim_max = old.rlim_max;
    write_pair(rig.cert, rig.key, VALID_S);
    poll_now(f);
    logged_begin();
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    rig.now_us += CERT_FILES_POLL_US;
    cert_files_poll(f, rig.now_us, time(NULL));
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    assert_int_equal(logged_count(logged_end(), "the old ones stay in use"), 1);
    assert_int_equal(logged_count(poll_now(f), "certificates reloaded"), 1);
}

static void a_reload_reads_immediately(void **state)
{
    (void)state;
    AUTO(cert_files_free) struct cert_files *f = must_open();
    logged_begin();
    cert_files_reload(f);
    write_pair(rig.cert, rig.key, VALID_S);
    cert_files_reload(f);
    const char *text = logged_end();
    assert_int_equal(logged_count(text, "certificates unchanged"), 1);
    assert_int_equal(logged_count(text, "certificates reloaded"), 1);
    assert_int_equal(cert_files_version(f), 2);
    assert_string_equal(poll_now(f), "");
    assert_string_equal(poll_now(f), "");
}

static void the_end_of_validity_is_told_once_a_day(void **state)
{
    (void)state;
    write_pair(rig.cert, rig.key, 90 * DAY_S);
    int64_t end_s = rig.end_s;
    write_pair(rig.ca, NULL, 1000 * DAY_S);
    AUTO(cert_files_free) struct cert_files *f = must_open();
    assert_string_equal(poll_at(f, end_s - 14 * DAY_S - 60), "");
    const char *text = poll_at(f, end_s - 14 * DAY_S + 60);
    assert_int_equal(logged_count(text, "certificate expires soon file="), 1);
    assert_int_equal(logged_count(text, "own.pem days=13"), 1);
    assert_string_equal(poll_at(f, end_s - 13 * DAY_S), "");
    assert_int_equal(logged_count(poll_at(f, end_s - 13 * DAY_S + 60), "expires soon"), 1);
    assert_int_equal(logged_count(poll_at(f, end_s + 60), "certificate has expired"), 1);
    assert_string_equal(poll_at(f, end_s + DAY_S), "");
}

static void the_earliest_end_of_a_file_counts(void **state)
{
    (void)state;
    size_t len;
    char *later = lib_read(rig.cert, &len);
    write_pair(rig.ca, NULL, 5 * DAY_S + 3600);
    FILE *f = fopen(rig.ca, "a");
    fputs(later, f);
    fclose(f);
    free(later);
    AUTO(cert_files_free) struct cert_files *files = must_open();
    assert_int_equal(logged_count(poll_now(files), "ca.pem days=5"), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(files_that_do_not_fit_together_are_refused, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_chain_with_a_damaged_certificate_is_refused, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_check_of_the_caller_counts, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_change_is_used_when_the_files_have_rested, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_fault_is_logged_once_and_leaves_the_old_content, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(files_that_could_not_be_opened_are_read_again, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_reload_reads_immediately, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_end_of_validity_is_told_once_a_day, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_earliest_end_of_a_file_counts, set_up, tear_down),
    };
    log_init("test", LOG_LEVEL_INFO);
    unsetenv("JOURNAL_STREAM");
    return cmocka_run_group_tests(tests, NULL, NULL);
}

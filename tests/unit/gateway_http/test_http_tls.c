/* test_http_tls.c - the certificate of HTTPS: what GnuTLS accepts, and what a handshake gets. */
#include <errno.h>
#include <gnutls/abstract.h>
#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
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

static struct pair pair_with(const char *name, gnutls_pk_algorithm_t algorithm, unsigned bits)
{
    struct pair p;
    size_t n_cert = sizeof(p.cert), n_key = sizeof(p.key);
    gnutls_x509_privkey_t key;
    gnutls_x509_crt_t crt;
    assert_int_equal(gnutls_x509_privkey_init(&key), 0);
    assert_int_equal(gnutls_x509_privkey_generate(key, algorithm, bits, 0), 0);
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

static struct pair pair_of(const char *name)
{
    return pair_with(name, GNUTLS_PK_ECDSA, GNUTLS_CURVE_TO_BITS(GNUTLS_ECC_CURVE_SECP256R1));
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

static void large_rsa_keys_are_refused(void **state)
{
    (void)state;
    struct pair p = pair_with("a.example", GNUTLS_PK_RSA, HTTP_TLS_RSA_MAX),
                q = pair_with("a.example", GNUTLS_PK_RSA, HTTP_TLS_RSA_MAX + 8);
    assert_int_equal(checks(p.cert, p.key), 0);
    assert_int_equal(checks(q.cert, q.key), -EINVAL);
    assert_string_equal(fail_text(), "tls_key: an RSA key of 4104 bits makes handshakes too slow, "
                                     "at most 4096 are possible; an ECDSA key is faster");
}

static void write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    chmod(path, 0600);
}

/* The server's files, and what was in them. */
static struct {
    char folder[64], cert[96], key[96];
    struct cert_files *files;
} on_disk;

/* Of the certificate in the files; it names a.example. */
static void use_files(const char *cert, const char *key)
{
    snprintf(on_disk.folder, sizeof(on_disk.folder), "/tmp/tandem-test-tls-XXXXXX");
    assert_non_null(mkdtemp(on_disk.folder));
    snprintf(on_disk.cert, sizeof(on_disk.cert), "%s/cert.pem", on_disk.folder);
    snprintf(on_disk.key, sizeof(on_disk.key), "%s/key.pem", on_disk.folder);
    write_file(on_disk.cert, cert);
    write_file(on_disk.key, key);
    const struct cert_paths paths = {
        .settings = "tls", .cert = on_disk.cert, .key = on_disk.key, .check = http_tls_check};
    if (cert_files_new(&paths, &on_disk.files) < 0)
        fail_msg("%s", fail_text());
    assert_int_equal(http_tls_use(on_disk.files), 0);
}

static void remove_files(void)
{
    cert_files_free(TAKE(on_disk.files));
    unlink(on_disk.cert);
    unlink(on_disk.key);
    rmdir(on_disk.folder);
}

static int use_usual_files(void **state)
{
    (void)state;
    struct pair p = pair_of("a.example");
    use_files(p.cert, p.key);
    return 0;
}

static int remove_usual_files(void **state)
{
    (void)state;
    remove_files();
    return 0;
}

static void a_handshake_gets_the_chain_and_the_key(void **state)
{
    (void)state;
    struct pair p = pair_of("a.example"), q = pair_of("b.example");
    strcat(p.cert, q.cert);
    use_files(p.cert, p.key);
    gnutls_certificate_retrieve_function3 *fn =
        (gnutls_certificate_retrieve_function3 *)http_tls_callback();
    gnutls_pcert_st *chain = NULL;
    gnutls_ocsp_data_st *ocsp = (gnutls_ocsp_data_st *)&fn;
    gnutls_privkey_t private = NULL;
    unsigned n = 0, n_ocsp = 9, flags = 0;
    struct http_tls_session *session;
    assert_int_equal(http_tls_session_new(9, &session), 0);
    assert_int_equal(
        fn((gnutls_session_t)session, NULL, &chain, &n, &ocsp, &n_ocsp, &private, &flags), 0);
    http_tls_session_free(session);
    assert_int_equal(n, 2);
    assert_null(ocsp);
    assert_int_equal(n_ocsp, 0);
    assert_int_equal(flags, GNUTLS_CERT_RETR_DEINIT_ALL); // GnuTLS frees them, as here
    assert_int_equal(gnutls_privkey_get_pk_algorithm(private, NULL), GNUTLS_PK_ECDSA);
    for (unsigned i = 0; i < n; i++)
        gnutls_pcert_deinit(&chain[i]);
    gnutls_free(chain);
    gnutls_privkey_deinit(private);
    remove_files();
}

/* ---- how much a client may send ---- */

struct ends {
    int fds[2];
    gnutls_certificate_credentials_t none;
    struct http_tls_session *session;
    gnutls_session_t server, client; // server: the session
};

static size_t padding; // bytes of an extension of the client's hello

static int ignore_extension(gnutls_session_t session, const unsigned char *data, size_t len)
{
    (void)session, (void)data, (void)len;
    return 0;
}

static int send_extension(gnutls_session_t session, gnutls_buffer_t to)
{
    static const uint8_t zeros[65000];
    (void)session;
    assert_int_equal(gnutls_buffer_append_data(to, zeros, padding), 0);
    return (int)padding;
}

#define TLS_1_2 "NORMAL:-VERS-ALL:+VERS-TLS1.2"
#define TLS_1_3 "NORMAL:-VERS-ALL:+VERS-TLS1.3"

static void ends_init(struct ends *e, const char *version)
{
    int flags = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
    assert_int_equal(socketpair(AF_UNIX, flags, 0, e->fds), 0);
    assert_int_equal(http_tls_session_new(e->fds[0], &e->session), 0);
    e->server = (gnutls_session_t)e->session;
    assert_int_equal(gnutls_certificate_allocate_credentials(&e->none), 0);
    assert_int_equal(gnutls_init(&e->client, GNUTLS_CLIENT | GNUTLS_NONBLOCK), 0);
    assert_int_equal(gnutls_priority_set_direct(e->client, version, NULL), 0);
    gnutls_credentials_set(e->client, GNUTLS_CRD_CERTIFICATE, e->none);
    gnutls_transport_set_int(e->client, e->fds[1]);
    assert_int_equal(gnutls_session_ext_register(e->client, "padding", 65001, GNUTLS_EXT_TLS,
                                                 ignore_extension, send_extension, NULL, NULL, NULL,
                                                 GNUTLS_EXT_FLAG_CLIENT_HELLO),
                     0);
}

static void ends_done(struct ends *e)
{
    http_tls_session_free(e->session);
    gnutls_deinit(e->client);
    gnutls_certificate_free_credentials(e->none);
    close(e->fds[0]);
    close(e->fds[1]);
}

/* Returns what the server's handshake ends with. */
static enum http_tls_step shake_hands(struct ends *e, size_t n_padding)
{
    int client = GNUTLS_E_AGAIN;
    enum http_tls_step server = HTTP_TLS_READS;
    padding = n_padding;
    for (unsigned i = 0;
         i < 100 && (client != 0 || server != HTTP_TLS_COMPLETE) && server != HTTP_TLS_FAILED;
         i++) {
        client = client ? gnutls_handshake(e->client) : 0;
        server = server == HTTP_TLS_COMPLETE ? server : http_tls_proceed(e->session);
    }
    if (server == HTTP_TLS_COMPLETE)
        assert_int_equal(gnutls_handshake(e->server), 0); // for libmicrohttpd
    return server;
}

static void a_handshake_has_few_bytes(void **state)
{
    (void)state;
    static const struct {
        size_t padding;
        enum http_tls_step end;
    } v[] = {{100, HTTP_TLS_COMPLETE},
             {6000, HTTP_TLS_COMPLETE},
             {30000, HTTP_TLS_FAILED},
             {100, HTTP_TLS_COMPLETE}};
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        struct ends e;
        ends_init(&e, TLS_1_2);
        assert_int_equal(shake_hands(&e, v[i].padding), v[i].end);
        ends_done(&e);
    }
}

/* The same number of bytes, sent in whole records. */
static void send_data(struct ends *e)
{
    static char data[16384], got[16384];
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(gnutls_record_send(e->client, data, sizeof(data)), sizeof(data));
        for (size_t n = 0; n < sizeof(data);) {
            ssize_t more = gnutls_record_recv(e->server, got, sizeof(got));
            assert_true(more > 0);
            n += (size_t)more;
        }
    }
}

/* What the server's thread needs to know between its turns. */
static void a_handshake_says_what_it_waits_for(void **state)
{
    (void)state;
    struct ends e;
    ends_init(&e, TLS_1_3);
    padding = 100;
    assert_int_equal(http_tls_proceed(e.session), HTTP_TLS_READS);
    assert_int_equal(gnutls_handshake(e.client), GNUTLS_E_AGAIN);
    assert_int_equal(setsockopt(e.fds[0], SOL_SOCKET, SO_SNDBUF, &(int){1}, sizeof(int)), 0);
    static char fill[65536]; // the client reads it first
    ssize_t n = send(e.fds[0], fill, sizeof(fill), MSG_DONTWAIT), got;
    assert_true(n > 0 && n < (ssize_t)sizeof(fill));
    assert_int_equal(http_tls_proceed(e.session), HTTP_TLS_WRITES);
    while (n > 0 && (got = recv(e.fds[1], fill, (size_t)n, 0)) > 0)
        n -= got;
    assert_int_equal(shake_hands(&e, 100), HTTP_TLS_COMPLETE);
    ends_done(&e);
}

static void slow_groups_are_not_agreed_on(void **state)
{
    static const char *const slow[] = {"SECP521R1", "X448", "FFDHE2048"}, *const fast[] = {
                                                                              "X25519", "SECP256R1",
                                                                              "SECP384R1"};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(slow); i++) {
        char version[128];
        struct ends e;
        snprintf(version, sizeof(version), TLS_1_3 ":-GROUP-ALL:+GROUP-%s", slow[i]);
        ends_init(&e, version);
        assert_int_equal(shake_hands(&e, 100), HTTP_TLS_FAILED);
        ends_done(&e);
        snprintf(version, sizeof(version), TLS_1_3 ":-GROUP-ALL:+GROUP-%s", fast[i]);
        ends_init(&e, version);
        assert_int_equal(shake_hands(&e, 100), HTTP_TLS_COMPLETE);
        ends_done(&e);
    }
}

static void a_high_descriptor_is_refused(void **state)
{
    (void)state;
    struct http_tls_session *s;
    assert_int_equal(http_tls_session_new(1 << 20, &s), -EMFILE);
    assert_string_equal(fail_text(), "http: a descriptor is not below 1048576");
}

/* libmicrohttpd calls gnutls_init() for a connection that it gets. */
static void an_adopted_session_is_the_next_one_that_is_made(void **state)
{
    (void)state;
    struct ends e;
    gnutls_session_t s;
    ends_init(&e, TLS_1_3);
    assert_int_equal(shake_hands(&e, 100), HTTP_TLS_COMPLETE);
    assert_null(http_tls_adopt(e.session));
    assert_int_equal(gnutls_init(&s, GNUTLS_SERVER), 0);
    assert_ptr_equal(s, e.server);
    assert_int_equal(gnutls_init(&s, GNUTLS_SERVER), 0);
    assert_ptr_not_equal(s, e.server);
    gnutls_deinit(s);
    assert_null(http_tls_adopt(e.session));
    assert_ptr_equal(http_tls_adopt(NULL), e.session); // it was not taken
    ends_done(&e);
}

/* A small buffer lets the record arrive in pieces. */
static void the_first_record_may_come_in_pieces(void **state)
{
    static char data[16384];
    (void)state;
    struct ends e;
    ends_init(&e, TLS_1_2);
    assert_int_equal(shake_hands(&e, 7000), HTTP_TLS_COMPLETE);
    assert_int_equal(setsockopt(e.fds[1], SOL_SOCKET, SO_SNDBUF, &(int){1}, sizeof(int)), 0);
    ssize_t sent = gnutls_record_send(e.client, data, sizeof(data)), got;
    assert_int_equal(sent, GNUTLS_E_AGAIN);
    while ((got = gnutls_record_recv(e.server, data, sizeof(data))) == GNUTLS_E_AGAIN ||
           got == GNUTLS_E_INTERRUPTED)
        if (sent == GNUTLS_E_AGAIN)
            sent = gnutls_record_send(e.client, NULL, 0); // the rest
    assert_int_equal(got, sizeof(data));
    ends_done(&e);
}

/* libmicrohttpd asks again after this code. Returns how often it has to, until the server has read
 * `want` bytes. */
static unsigned n_interrupted(struct ends *e, ssize_t want)
{
    char got[100];
    unsigned n = 0;
    ssize_t rc;
    while ((rc = gnutls_record_recv(e->server, got, sizeof(got))) == GNUTLS_E_INTERRUPTED)
        n++;
    assert_int_equal(rc, want);
    assert_int_equal(gnutls_record_recv(e->server, got, sizeof(got)), GNUTLS_E_AGAIN);
    return n;
}

/* The system reports the bytes of both once. */
static void data_after_a_new_key_is_not_waited_for(void **state)
{
    (void)state;
    struct ends e;
    ends_init(&e, TLS_1_3);
    assert_int_equal(shake_hands(&e, 100), HTTP_TLS_COMPLETE);
    send_data(&e);
    assert_int_equal(gnutls_session_key_update(e.client, 0), 0);
    assert_int_equal(gnutls_record_send(e.client, "more", 4), 4);
    assert_int_equal(n_interrupted(&e, 4), 1);
    ends_done(&e);
}

static void a_client_of_the_process_reads_as_usual(void **state)
{
    (void)state;
    struct ends e;
    char got[100];
    ends_init(&e, TLS_1_3);
    assert_int_equal(shake_hands(&e, 100), HTTP_TLS_COMPLETE);
    assert_int_equal(gnutls_record_send(e.server, "more", 4), 4);
    ssize_t n = gnutls_record_recv(e.client, got, sizeof(got));
    if (n == GNUTLS_E_AGAIN) // a ticket came first
        n = gnutls_record_recv(e.client, got, sizeof(got));
    assert_int_equal(n, 4);
    ends_done(&e);
}

static void put_u64(uint8_t *to, uint64_t x)
{
    for (int i = 7; i >= 0; i--, x >>= 8)
        to[i] = (uint8_t)x;
}

static uint64_t u64_of(const uint8_t *from)
{
    uint64_t x = 0;
    for (int i = 0; i < 8; i++)
        x = x << 8 | from[i];
    return x;
}

/* n records of TLS 1.2 without data (RFC 5246, section 6.2, and RFC 5288, section 3). GnuTLS sends
 * none, so they are written here, with its key and after its last record. */
static void send_empty_records(struct ends *e, unsigned n)
{
    enum { HEAD = 5, NONCE = 8, TAG = 16, DATA_TYPE = 23 };
    static const uint8_t head[HEAD] = {DATA_TYPE, 3, 3, 0, NONCE + TAG};
    gnutls_datum_t iv, key;
    uint8_t seq[8], record[HEAD + NONCE + TAG], nonce[12], about[13] = {0};
    size_t tag_bytes = TAG;
    gnutls_aead_cipher_hd_t cipher;
    assert_int_equal(gnutls_record_get_state(e->client, 0, NULL, &iv, &key, seq), 0);
    assert_int_equal(iv.size, sizeof(nonce) - NONCE);
    assert_int_equal(gnutls_aead_cipher_init(&cipher, gnutls_cipher_get(e->client), &key), 0);
    memcpy(about + 8, head, 3); // of a record with 0 bytes
    memcpy(nonce, iv.data, iv.size);
    memcpy(record, head, HEAD);
    for (unsigned i = 0; i < n; i++) {
        memcpy(about, seq, sizeof(seq));
        memcpy(nonce + iv.size, seq, NONCE);
        memcpy(record + HEAD, seq, NONCE);
        assert_int_equal(gnutls_aead_cipher_encrypt(cipher, nonce, sizeof(nonce), about,
                                                    sizeof(about), TAG, "", 0,
                                                    record + HEAD + NONCE, &tag_bytes),
                         0);
        assert_int_equal(send(e->fds[1], record, sizeof(record), 0), sizeof(record));
        put_u64(seq, u64_of(seq) + 1);
    }
    gnutls_aead_cipher_deinit(cipher);
    assert_int_equal(gnutls_record_set_state(e->client, 0, seq), 0);
}

/* GnuTLS would read them all in one call. */
static void empty_records_of_tls_1_2_leave_turns_to_others(void **state)
{
    enum { N = 100 };
    (void)state;
    struct ends e;
    ends_init(&e, TLS_1_2 ":-CIPHER-ALL:+AES-128-GCM");
    assert_int_equal(shake_hands(&e, 100), HTTP_TLS_COMPLETE);
    send_empty_records(&e, N);
    assert_int_equal(gnutls_record_send(e.client, "more", 4), 4);
    assert_in_range(n_interrupted(&e, 4), 2 * N / HTTP_TLS_READS_MAX, N);
    ends_done(&e);
}

static void empty_records_leave_turns_to_others(void **state)
{
    enum { N = 100 };
    (void)state;
    struct ends e;
    ends_init(&e, TLS_1_3);
    assert_int_equal(shake_hands(&e, 100), HTTP_TLS_COMPLETE);
    for (unsigned k = 0; k < N; k++)
        assert_int_equal(gnutls_record_send2(e.client, "", 0, 1, 0), 0);
    assert_int_equal(gnutls_record_send(e.client, "more", 4), 4);
    assert_in_range(n_interrupted(&e, 4), 2 * N / HTTP_TLS_READS_MAX, N);
    ends_done(&e);
}

/* Sends small records without data until the server takes no more. Returns their number. */
static unsigned send_alerts(struct ends *e, unsigned most)
{
    char got[100];
    ssize_t rc = GNUTLS_E_WARNING_ALERT_RECEIVED;
    unsigned n = 0;
    for (; n < most && rc == GNUTLS_E_WARNING_ALERT_RECEIVED; n++) {
        assert_int_equal(gnutls_alert_send(e->client, GNUTLS_AL_WARNING, GNUTLS_A_USER_CANCELED),
                         0);
        rc = gnutls_record_recv(e->server, got, sizeof(got));
    }
    assert_int_equal(rc, n < most ? GNUTLS_E_PULL_ERROR : GNUTLS_E_WARNING_ALERT_RECEIVED);
    return n;
}

static void records_without_data_have_few_bytes(void **state)
{
    enum { FEW = HTTP_TLS_SILENT_MAX / 64 }; // each has 31 to 39 bytes
    (void)state;
    struct ends e;
    ends_init(&e, TLS_1_2);
    assert_int_equal(shake_hands(&e, 100), HTTP_TLS_COMPLETE);
    for (unsigned i = 0; i < 4; i++) {
        send_data(&e);
        assert_int_equal(send_alerts(&e, FEW), FEW);
    }
    assert_in_range(send_alerts(&e, 4 * FEW), FEW / 2, 2 * FEW);
    ends_done(&e);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, use_usual_files, remove_usual_files)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_gnutls_cannot_read_is_refused),
        cmocka_unit_test(large_rsa_keys_are_refused),
        cmocka_unit_test(a_handshake_gets_the_chain_and_the_key),
        CASE(a_handshake_has_few_bytes),
        CASE(a_handshake_says_what_it_waits_for),
        CASE(slow_groups_are_not_agreed_on),
        CASE(a_high_descriptor_is_refused),
        CASE(an_adopted_session_is_the_next_one_that_is_made),
        CASE(the_first_record_may_come_in_pieces),
        CASE(data_after_a_new_key_is_not_waited_for),
        CASE(a_client_of_the_process_reads_as_usual),
        CASE(empty_records_leave_turns_to_others),
        CASE(empty_records_of_tls_1_2_leave_turns_to_others),
        CASE(records_without_data_have_few_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* http_tls.h - TLS of the HTTPS server: certificates, sessions and their limits.
 *
 * A session is made and shakes hands in the thread of handshakes.h. Then libmicrohttpd adopts it:
 * the server defines gnutls_init(), gnutls_handshake() and gnutls_record_recv() itself, and
 * libmicrohttpd calls these. Established connections keep the certificate that they began with.
 * Only this file includes GnuTLS. Private to gateway/http, except http_tls_check(). */
#pragma once
#include "base/cert.h"

struct http_tls_session;

/* A check for cert.h. -EINVAL: GnuTLS does not accept this certificate and key, or the RSA key is
 * too large. One of 8,192 bits takes 45 ms for a handshake. Any thread. */
#define HTTP_TLS_RSA_MAX 4096
int http_tls_check(const struct cert_text *t);
/* Only groups that are fast and that clients have. A handshake with ffdhe8192 takes 144 ms of CPU
 * (Xeon, 2.1 GHz), one with X25519 3 ms. */
#define HTTP_TLS_PRIORITIES                                                                        \
    "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2:-GROUP-DH-ALL:-GROUP-X448:-GROUP-SECP521R1"        \
    ":-DHE-RSA:-RSA"
/* Before the server starts. files: used until it has stopped. There is one HTTPS server in a
 * process, because GnuTLS gives its callbacks no argument of ours. -ENOMEM. */
int http_tls_use(struct cert_files *files);

/* The most bytes of a client until its handshake is complete. Browsers need 2 to 5 KiB. GnuTLS
 * alone would keep 128 KiB of an unfinished ClientHello, and work 6 ms on one of 115 KB. */
#define HTTP_TLS_HANDSHAKE_MAX 8192
/* Later the most bytes without any of the application. A record has 16,645 at most (RFC 8446,
 * section 5.2). GnuTLS keeps 128 KiB of an unfinished message after the handshake, too. */
#define HTTP_TLS_SILENT_MAX 17408
/* Reads of a connection before others have their turn. A record needs two. */
#define HTTP_TLS_READS_MAX 8

/* READS: it continues when the client has sent more; WRITES: when the socket takes more. */
enum http_tls_step { HTTP_TLS_COMPLETE, HTTP_TLS_READS, HTTP_TLS_WRITES, HTTP_TLS_FAILED };

/* Of a new connection with this socket, which does not block. -ENOMEM; -EMFILE: its number is too
 * high. */
int http_tls_session_new(int fd, struct http_tls_session **ret);
void http_tls_session_free(struct http_tls_session *s); // before its socket is closed
/* Continues the handshake until it needs more bytes. FAILED: the client has got an alert. */
enum http_tls_step http_tls_proceed(struct http_tls_session *s);
/* The next connection that this thread adds to libmicrohttpd gets this session, whose handshake is
 * complete. Returns what an earlier call has left. NULL: none. */
struct http_tls_session *http_tls_adopt(struct http_tls_session *s);
/* For MHD_OPTION_HTTPS_CERT_CALLBACK2, which libmicrohttpd requires. */
void *http_tls_callback(void);

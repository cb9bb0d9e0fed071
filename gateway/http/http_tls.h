/* http_tls.h - the certificate of the HTTPS server, chosen for each connection.
 *
 * libmicrohttpd reads a certificate once, at its start. So GnuTLS asks this callback during each
 * handshake, and gets the content of the files that is in use. Established connections continue.
 * Only this file includes GnuTLS. Private to gateway/http, except http_tls_check(). */
#pragma once
#include <stdbool.h>
#include "base/cert.h"

/* A check for cert.h. -EINVAL: GnuTLS does not accept this certificate and key, or the RSA key is
 * too large. One of 8,192 bits takes 45 ms for a handshake. Any thread. */
#define HTTP_TLS_RSA_MAX 4096
int http_tls_check(const struct cert_text *t);
/* Before the server starts. files: used until the server has stopped. may_sign(user, c, cost):
 * whether the handshake of this connection proceeds; c is libmicrohttpd's. cost: the time of a
 * signature with the key that was checked last, in those of RSA with 2,048 bits. There is one HTTPS
 * server in a process, because the callback gets no argument of ours. */
struct MHD_Connection;
typedef bool http_tls_may_sign(void *user, struct MHD_Connection *c, unsigned cost);
void http_tls_use(struct cert_files *files, http_tls_may_sign *may_sign, void *user);
/* The most bytes of a client until its handshake is complete. Browsers need 2 to 5 KiB. GnuTLS
 * alone would keep 128 KiB of an unfinished ClientHello, and work 6 ms on one of 115 KB. */
#define HTTP_TLS_HANDSHAKE_MAX 8192
/* Later the most bytes without any of the application. A record has 16,645 at most (RFC 8446,
 * section 5.2). GnuTLS keeps 128 KiB of an unfinished message after the handshake, too. */
#define HTTP_TLS_SILENT_MAX 17408
/* Reads of a connection before others have their turn. A record needs two. */
#define HTTP_TLS_READS_MAX 8
/* Sets these limits for a new connection of the server. session: of GnuTLS, with a socket. */
void http_tls_limit(void *session);
/* For MHD_OPTION_HTTPS_CERT_CALLBACK2. */
void *http_tls_callback(void);

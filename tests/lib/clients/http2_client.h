/* http2_client.h - a gRPC client that reads no message: its HTTP/2 windows are 0. It can also send
 * what good clients do not.
 *
 * Threads: the test's only. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct http2_client {
    int fd;
    uint32_t next_stream;
    unsigned n_headers; // of answers that have arrived
    size_t window;      // bytes of messages that the server permits
};

/* Connects to a unix socket. */
struct http2_client http2_client_open(const char *socket);
/* Starts a call whose only request is an empty message. */
void http2_client_call(struct http2_client *c, const char *path);
/* Waits until n_headers answers have begun, or were refused. False: the server has ended the
 * connection. */
bool http2_client_await(struct http2_client *c, unsigned n_headers);
/* Connects to a port of 127.0.0.1. */
struct http2_client http2_client_open_tcp(uint16_t port);
/* Starts n calls and resets each of them; stops when the server ends the connection. */
void http2_client_reset(struct http2_client *c, const char *path, unsigned n);
/* Starts a call whose headers have n_bytes and do not end; stops like the above. */
void http2_client_endless_headers(struct http2_client *c, size_t n_bytes);
/* Confirms the server's settings, so its limit of header bytes holds. */
void http2_client_confirm(struct http2_client *c);
/* Starts a call with the further header `name: value`, followed by headers of n_bytes together,
 * at most 16,000. */
void http2_client_large_headers(struct http2_client *c, const char *name, const char *value,
                                size_t n_bytes);
/* Starts a call whose message of 3 MiB ends after n_bytes, at most 16,000. False: the server has
 * ended the connection. */
bool http2_client_part(struct http2_client *c, const char *path, size_t n_bytes);
/* Sends frames of an unknown type, which a server ignores; at least n_bytes. */
void http2_client_pad(struct http2_client *c, size_t n_bytes);
/* Waits until the server has ended the connection. */
void http2_client_await_end(struct http2_client *c);
void http2_client_close(struct http2_client *c);

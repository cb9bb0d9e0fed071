/* http2_client.h - a gRPC client that reads no message: its HTTP/2 windows are 0.
 *
 * Threads: the test's only. */
#pragma once
#include <stdint.h>

struct http2_client {
    int fd;
    uint32_t next_stream;
    unsigned n_headers; // of answers that have arrived
};

/* Connects to a unix socket. */
struct http2_client http2_client_open(const char *socket);
/* Starts a call whose only request is an empty message. */
void http2_client_call(struct http2_client *c, const char *path);
/* Waits until n_headers answers have begun, or were refused. */
void http2_client_await(struct http2_client *c, unsigned n_headers);
void http2_client_close(struct http2_client *c);

/* http_request.h - a request inside the HTTP server: how it waits, and how its answer leaves.
 *
 * Private to http.c and http_request.c, which alone see libmicrohttpd.
 *
 * Threads: the connection's, for what takes or returns libmicrohttpd's types; else any. */
#pragma once
#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>
#include "gateway/http/connections.h"
#include "gateway/http/http.h"

#define HTTP_MAX_HEADERS 8 // of an answer, beside those that each has

struct http_server {
    struct http_options o;
    struct MHD_Daemon *daemon;
    struct connections *connections;
    http_handler *handler;
    void *user;
    int listen_fd;
    atomic_bool draining, stopping;
    atomic_size_t body_bytes; // that requests count for, see http_free_body()
};

enum answer { NONE, REPLY, STREAM };

struct http_request {
    struct http_server *s;
    atomic_uint n_refs;
    char *path;
    char method[16], id[72];
    struct buf body;
    size_t body_bytes; // arrived, also those over the limit
    size_t counted;    // of the server's body_bytes
    int64_t begun_us;
    bool too_big, bodies_full;
    bool refused; // by its header

    pthread_mutex_t mu;       // for what follows
    struct MHD_Connection *c; // NULL: libmicrohttpd is done with it
    enum answer answer;
    bool dispatched; // the application knows it
    bool suspended;  // its connection sleeps
    bool hung_up;    // the client has closed, or will not say more
    bool gone;       // nobody will read an answer
    bool overrun;    // its reader is too slow
    bool ended;      // the stream is complete
    int status;
    const char *type;
    struct {
        const char *name;
        char *value;
    } headers[HTTP_MAX_HEADERS];
    unsigned n_headers;
    struct buf out;
    size_t out_at;    // read up to here
    size_t out_first; // bytes of the event that found nothing waiting
    int64_t written_us;
    int64_t behind_us; // since when half of max_unread waits, 0: it does not; REPLY: its last block
    void (*on_close)(void *user);
    void (*on_drain)(void *user);
    void *user;
    void (*release)(void *attached);
    void *attached;
};

/* Outside the lock: the owner may call back. */
void http_notify_close(struct http_request *r);
/* Answers if there is an answer, else lets the connection sleep. */
enum MHD_Result http_answer_or_sleep(struct http_request *r);
/* An error of the server's own, in the API's shape. */
enum MHD_Result http_refuse(struct http_request *r, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

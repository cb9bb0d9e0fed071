/* http_request.h - a request inside the HTTP server.
 *
 * Private to http.c and http_request.c, the only files that see libmicrohttpd.
 *
 * Threads: functions with types of libmicrohttpd on the connection's thread, others on any. */
#pragma once
#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>
#include "gateway/http/connections.h"
#include "gateway/http/http.h"
#include "gateway/http/request_memory.h"
#include "gateway/http/request_pace.h"

#define HTTP_MAX_HEADERS 16 // of an answer, in addition to the standard ones

struct http_server {
    struct http_options o;
    struct MHD_Daemon *daemon;
    struct connections *connections;
    http_handler *handler;
    void *user;
    int listen_fd;
    atomic_bool draining, stopping;
    struct request_memory *memory;
    struct request_pace *pace;
};

enum http_request_answer { NONE, REPLY, STREAM };

struct http_request {
    struct http_server *s;
    atomic_uint n_refs;
    char *path;
    char method[16], id[72];
    struct buf body;
    size_t body_bytes;                   // arrived, also those over the limit
    unsigned n_pieces;                   // in which the body has arrived
    size_t counted;                      // bytes of the server's memory
    struct request_memory_client *payer; // NULL: nothing was counted yet
    int64_t begun_us;
    bool too_big;
    bool refused; // before it was complete; its answer is set
    struct address client;
    enum http_reserve reserve;
    bool closes; // its connection, after the answer
    struct request_pace_turn turn;

    pthread_mutex_t mu;       // guards the fields below
    struct MHD_Connection *c; // NULL: libmicrohttpd has finished it
    enum http_request_answer answer;
    bool asked;       // for its turn
    bool has_turn;    // it may be handled
    bool dispatched;  // the handler was called
    bool keeps_place; // work on its answer has begun
    bool suspended;   // its connection is suspended
    bool hung_up;     // the client has closed at least its sending side
    bool unreachable; // no answer can reach the client
    bool overrun;     // the reader is too slow
    bool ended;       // the stream is complete
    int status;
    const char *type;
    struct {
        const char *name;
        char *value;
    } headers[HTTP_MAX_HEADERS];
    unsigned n_headers;
    struct buf out;
    size_t out_at;      // read up to here
    size_t out_first;   // bytes of the event that found `out` empty
    size_t out_counted; // bytes of the server's memory, in addition to `counted`
    int64_t written_us;
    int64_t delay_until_us; // REPLY: it is not sent before this time; 0: it may be sent
    /* When libmicrohttpd got the answer, or last took a part of it. Of a stream that has ended
     * since: when it ended. 0: it has not got it. */
    int64_t taken_us;
    /* STREAM: time at which more than half of max_unread was unread, or memory was lacking. 0: the
     * reader is not slow, or has caught up to a quarter. */
    int64_t slow_since_us;
    void (*on_close)(void *user);
    void (*on_drain)(void *user);
    void *user;
    void (*release)(void *attached);
    void *attached;
};

/* NEVER: the client has hung up, or the server stops. */
enum http_turn { HTTP_TURN_NOW, HTTP_TURN_LATER, HTTP_TURN_NEVER };
/* Whether the complete request may be handled. LATER: its connection is suspended until then. */
enum http_turn http_take_turn(struct http_request *r);
/* Called by request_pace.h: the wait is over. */
void http_on_turn(struct request_pace_turn *t);
/* Calls on_close once. Without the lock: the owner may call functions of this file. */
void http_notify_close(struct http_request *r);
/* Sends the answer if there is one, else suspends the connection. */
enum MHD_Result http_answer_or_sleep(struct http_request *r);
/* Answers with an error of the HTTP server, in the shape of the API. */
enum MHD_Result http_refuse(struct http_request *r, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

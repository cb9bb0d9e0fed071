/* rpc_server_impl.h - what the files of the server share. Not for other files.
 *
 *     rpc_server.c        start, listening, all calls, stop
 *     rpc_server_slots.c  new calls: whose they are, and whether there is a place
 *     rpc_server_calls.c  a call: its events, and the functions for its owner
 *
 * A door is a server of gRPC core, and there is one for each kind of connection. So the door of a
 * call tells the roles of its client. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>
#include "base/metrics.h"
#include "rpc/rpc_base.h"
#include "rpc/rpc_guard.h"
#include "rpc/rpc_listen.h"
#include "rpc/rpc_places.h"
#include "rpc/rpc_roles.h"

#define MAX_METHODS 64

enum door_kind {
    DOOR_CLIENT, // TCP without TLS, and other users at a unix socket
    DOOR_OWN,    // the service's own user at a unix socket; with `insecure` TCP without TLS, too
    DOOR_ADMIN,  // the admin sockets
    DOOR_TLS,
    N_DOORS,
};

struct door {
    grpc_server *core;
    unsigned roles; // of its clients; DOOR_TLS: their certificates decide
};

struct method {
    const struct rpc_method *m;
    void *service;
    void *handles[N_DOORS]; // NULL: this entry serves all unknown methods
    /* Under the server's lock: */
    struct rpc_places own;  // max 0: its calls take shared places of the server
    unsigned reported;      // bit i: a refusal of the roles i has been logged
    struct rpc_call *calls; // list of its calls, the newest first
};

struct beat {
    struct rpc_timer t;
    struct rpc_server *s;
    unsigned worker;
};

struct rpc_server {
    struct door doors[N_DOORS];
    grpc_server_credentials *creds;
    struct rpc_roles_map tls_roles;
    struct metric *refused;
    bool insecure;
    struct rpc_worker *workers;
    unsigned n_workers, linger_ms;
    size_t max_unread;
    struct rpc_timer linger; // runs on the first worker
    mode_t socket_mode;
    struct method methods[MAX_METHODS + 1];
    unsigned n_methods;
    struct rpc_listen listen;
    struct rpc_guard *guard;
    struct beat *beats; // of each worker

    pthread_mutex_t mu;
    pthread_cond_t idle; // signalled when n_running or n_calls becomes 0
    unsigned n_calls;
    struct rpc_places shared;
    unsigned n_running; // calls that a drain waits for
    bool draining;

    atomic_size_t queued; // the sum of rpc_call.queued
};

struct rpc_call {
    struct rpc_tag t_recv, t_send, t_close;
    struct rpc_server *s;
    struct rpc_worker *w;
    const struct rpc_method *m;
    void *service, *user;
    const struct rpc_method *asked; // what the client called; m differs if that is refused
    unsigned roles;                 // of the client
    grpc_call *core;
    char *peer;               // names the connection, if the method has during_drain; else NULL
    struct rpc_peer *account; // of the connection; NULL: it is not watched
    int64_t begun_us;
    grpc_byte_buffer *in;
    int was_cancelled; // written by the core before t_close
    atomic_int n_refs;
    struct rpc_call *next, **prev; // in the method's list, under the server's lock
    struct rpc_place place;        // under the server's lock
    bool is_running;               // counts in n_running
    bool is_refused;               // counts for the connection

    pthread_mutex_t mu; // guards the fields below and the start of batches
    struct rpc_sendq q;
    size_t queued; // bytes of q that no line of rpc_places counts
    bool sending, sent_headers, has_status, sent_status;
    bool cancelled, aborted; // by the client; by the server
    bool paused, recv_due;
    bool received; // a message has arrived; its thread's
    bool started;  // on_start() was called; its thread's
    bool answered; // the client has got something; its thread's
    enum rpc_code code;
    char *text;
    int64_t finished_us; // valid if has_status
};

/* ---- rpc_server_slots.c ---- */

/* Without this method, calls of unknown methods would wait until their deadline. */
extern const struct rpc_method rpc_server_unknown;
/* Whether on_start() waits for the request. */
bool rpc_server_has_request(const struct rpc_method *m);
/* The first message of c has arrived, or its client sends none: c no longer gives way to new
 * calls. */
void rpc_server_asked(struct rpc_call *c);
/* The answer of c is finished; its client still has to read so many bytes. Ends older answers that
 * are unread, above max_unread. */
void rpc_server_left_unread(struct rpc_call *c, size_t bytes);
/* Above max_unread queued bytes: ends the call that has most of them. Without locks. */
void rpc_server_end_slowest(struct rpc_server *s);
/* Gateways, verifiers and operators. */
bool rpc_server_is_service(unsigned roles);
/* Requests the first call of each method on the worker's queue. */
void rpc_server_request_calls(struct rpc_server *s, struct rpc_worker *w, enum door_kind door);

/* ---- rpc_server_calls.c ---- */

/* The events of a call: a message or its end, a message or the status sent, the end of the call. */
void rpc_server_on_recv(struct rpc_tag *t, bool ok);
void rpc_server_on_send(struct rpc_tag *t, bool ok);
void rpc_server_on_close(struct rpc_tag *t, bool ok);
/* Starts a new call, or reads the request that it waits for. */
void rpc_server_begin(struct rpc_call *c);
/* Takes a reference, unless the last one has already been released. */
bool rpc_server_try_ref(struct rpc_call *c);
/* Ends a call whose client does not read its finished answer. */
void rpc_server_end_unread(struct rpc_call *c);
/* Ends a call that has given way: one as above, or one whose client has sent no message. */
void rpc_server_end_displaced(struct rpc_call *c);
/* Ends a call whose client has too many bytes still to read. */
void rpc_server_end_slow(struct rpc_call *c);
/* The server stops, and the time for running calls is over: ends the call. */
void rpc_server_stop_call(struct rpc_call *c);

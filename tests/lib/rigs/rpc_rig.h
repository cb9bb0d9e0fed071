/* rpc_rig.h - an rpc server and a client of it in one process, for the tests of rpc.
 *
 * The service speaks messages of tandem.v1. /test/Echo answers a DetokenizeRequest with its ids as
 * text (id 99: RESOURCE_EXHAUSTED); Count sends one answer per id, as long as the id says; Chat
 * answers each message; Keep starts and never ends by itself; Flood sends 64 messages of 64 KiB and
 * stops while 256 KiB are unread; Paused is Chat that does not read until it is told to. */
#pragma once
#include <pthread.h>
#include <stdint.h>
#include "lib/lib.h"
#include "rpc/rpc.h"
#include "rpc/rpc_health.h"

#define RPC_RIG_WAIT_US 10000000 // nothing here takes that long unless it is broken

/* Counters that another thread waits for; all under one lock. */
void rpc_rig_bump(int *counter);
int rpc_rig_count(int *counter);
void rpc_rig_await(int *counter, int at_least); // ends the test if it waits in vain

/* What the service saw, since rpc_rig_init(). */
extern struct rpc_rig_seen {
    int starts, cancels, ends, drains, messages;
    int flooded;           // messages Flood has sent
    struct rpc_call *kept; // of Keep and Paused, with a reference
} rpc_rig_seen;

struct rpc_rig {
    struct rpc_server *server; // NULL once the test has stopped it
    struct rpc_client *client;
    struct rpc_health *health; // of "" and "test"
    char folder[64], path[96], target[112];
};

/* Starts on a unix socket in a folder of its own; rpc_rig_done() checks that nothing is left. */
void rpc_rig_init(struct rpc_rig *r, const struct rpc_server_options *opt);
void rpc_rig_done(struct rpc_rig *r);
/* The service alone: not listening, not started. */
struct rpc_server *rpc_rig_server(const struct rpc_server_options *opt, struct rpc_health *h);

/* Asks Echo and checks what it says. */
struct rpc_status rpc_rig_echo(struct rpc_client *c, const struct rpc_options *opt, uint32_t id);
struct rpc_msg *rpc_rig_ids(uint32_t id, size_t n); // a DetokenizeRequest
struct rpc_msg *rpc_rig_text(size_t n);             // a DetokenizeReply
/* What Health/Check says, or -code. */
int rpc_rig_health(struct rpc_client *c, const char *service);

/* A stream whose events are counted. */
struct rpc_tally {
    int messages, drains, ends;
    size_t bytes;
    struct rpc_status status;
};
void rpc_tally_message(void *user, struct rpc_msg *msg);
void rpc_tally_end(void *user, const struct rpc_status *status);
struct rpc_stream *rpc_rig_open(struct rpc_rig *r, const char *path, struct rpc_tally *t);

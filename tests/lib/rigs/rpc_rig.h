/* rpc_rig.h - an rpc server and its client in one process, for the tests of rpc.
 *
 * The methods use messages of tandem.v1:
 *     /test/Echo     answers a DetokenizeRequest with its ids as text; id 99: RESOURCE_EXHAUSTED
 *     /test/Count    sends one answer per id; the id is the length of its text
 *     /test/Chat     answers each message with the same message
 *     /test/Keep     starts and never ends
 *     /test/Flood    sends 64 messages of 64 KiB; pauses while more than 256 KiB are unread
 *     /test/Paused   like Chat, but reads only after rpc_call_unpause()
 *     /test/Own      like Keep; RPC_RIG_OWN_CALLS calls, which take no places of other calls */
#pragma once
#include <pthread.h>
#include <stdint.h>
#include "lib/lib.h"
#include "rpc/rpc.h"
#include "rpc/rpc_health.h"

#define RPC_RIG_OWN_CALLS 4
#define RPC_RIG_WAIT_US 10000000 // limit of a wait; correct code takes far less

/* Counters that a thread can wait for; one lock protects all of them. */
void rpc_rig_bump(int *counter);
int rpc_rig_count(int *counter);
void rpc_rig_await(int *counter, int at_least); // ends the test after RPC_RIG_WAIT_US

/* Events of the service since rpc_rig_init(). */
extern struct rpc_rig_seen {
    int starts, cancels, ends, drains, messages;
    int chats;             // calls of Chat that have started
    int flooded;           // messages that Flood has sent
    struct rpc_call *kept; // the last call of Keep or Paused, with a reference
} rpc_rig_seen;

struct rpc_rig {
    struct rpc_server *server; // NULL once the test has stopped it
    struct rpc_client *client;
    struct rpc_health *health; // of "" and "test"
    char folder[64], path[96], target[112];
};

/* Starts the server on a unix socket in a new folder. opt: NULL for the defaults. rpc_rig_done()
 * checks that the folder is empty. */
void rpc_rig_init(struct rpc_rig *r, const struct rpc_server_options *opt);
void rpc_rig_done(struct rpc_rig *r);
/* A test whose *state is a rig with the defaults. */
#define RPC_RIG_TEST(f) cmocka_unit_test_setup_teardown(f, rpc_rig_setup, rpc_rig_teardown)
int rpc_rig_setup(void **state);
int rpc_rig_teardown(void **state);
/* The server with its methods; it does not listen and is not started. */
struct rpc_server *rpc_rig_server(const struct rpc_server_options *opt, struct rpc_health *h);

/* Calls Echo and checks its answer. */
struct rpc_status rpc_rig_echo(struct rpc_client *c, const struct rpc_options *opt, uint32_t id);
struct rpc_msg *rpc_rig_ids(uint32_t id, size_t n); // a DetokenizeRequest with n times this id
struct rpc_msg *rpc_rig_text(size_t n);             // a DetokenizeReply of n bytes
/* The status that Health/Check returns, or -code. */
int rpc_rig_health(struct rpc_client *c, const char *service);

/* A stream whose events are counted. */
struct rpc_tally {
    int messages, drains, ends;
    size_t bytes;
    struct rpc_status status;
};
void rpc_tally_message(void *user, struct rpc_msg *msg);
void rpc_tally_end(void *user, const struct rpc_status *status);
/* Starts a call and sends nothing. */
struct rpc_stream *rpc_rig_open(struct rpc_rig *r, const char *path, struct rpc_tally *t);
/* Starts a call, sends rpc_rig_ids(id, n) as its only request, and closes the client's side. */
struct rpc_stream *rpc_rig_call(struct rpc_rig *r, const char *path, uint32_t id, size_t n,
                                struct rpc_tally *t);
/* A call of Keep that has started at the server: rpc_rig_seen.kept. */
struct rpc_stream *rpc_rig_keep(struct rpc_rig *r, struct rpc_tally *t);
/* Waits for the end of a call and asserts its status. */
void rpc_rig_await_end(struct rpc_tally *t, enum rpc_code code);
/* The same; then frees the stream. */
void rpc_rig_finish(struct rpc_stream *s, struct rpc_tally *t, enum rpc_code code);

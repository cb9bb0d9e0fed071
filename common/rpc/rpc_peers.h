/* rpc_peers.h - the connections of a server, and which of them abuse it. They are those of TCP, and
 * of other users at unix sockets.
 *
 * gRPC core has no limit for what a client sends before a call begins, nor for calls that the
 * client resets. So each connection has an account of its calls and bytes. Bytes are unexplained if
 * they are in unfinished headers and messages, or in frames that gRPC core ignores or buffers. The
 * bytes of complete messages are known. Those of headers and frames are not, so calls and messages
 * explain as many as a good client needs for them, in all RPC_PEERS_CREDIT_PER_S. A connection is
 * ended if
 * - it resets calls faster than RPC_PEERS_RESETS_PER_S and is not settled. A gateway cancels the
 *   calls of its clients, and the rate of calls (rpc_wire.h) bounds the resets, too;
 * - it makes a cheap call after its client has made RPC_PEERS_CHEAP_PER_S, on all connections
 *   together. The first RPC_PEERS_CHEAP_FIRST calls of each are free, and one that is settled uses
 *   up its share before;
 * - it leaves more than RPC_PEERS_REFUSED_MAX refusals unread: the more calls there are, the longer
 *   gRPC core works for each event;
 * - all clients' connections together have more than RPC_PEERS_CLIENT_BYTES_MAX unexplained bytes,
 *   or those of services too more than RPC_PEERS_ALL_TIMES as many. Those that are not settled end
 *   first, then those of the client that had most during the last second. A prompt on its way has
 *   many bytes for a shorter time than a client that holds them;
 * - the process has allocated RPC_PEERS_GROWTH_MAX more, in small pieces, while clients together
 *   had at least RPC_PEERS_STALL_BYTES, and it is one of the largest. These have half of the bytes.
 *   gRPC core may need 100 bytes for one byte of a header. Weights and KV are no small pieces;
 * - a thread of the server has been stalled for RPC_PEERS_STALL_US, and it has most of these bytes.
 *   While a client sends fast enough, gRPC core may read and serve nothing else on that thread. The
 *   client's other connections with RPC_PEERS_STALL_BYTES end with it;
 * - there are too many connections, and its client has most. Those without a running call end
 *   first: those that never had a call, then those whose last call is the oldest;
 * - its client alone has more than RPC_PEERS_CROWD_MAX. When clients close many connections
 *   together, gRPC core works 0.1 ms for each, and serves nobody meanwhile;
 * - it is new, and its address is banned: two of its connections were ended, at most
 *   RPC_PEERS_BAN_US apart. The reasons were resets, refusals, a stall, or a quarter of the
 *   permitted bytes. The ban ends RPC_PEERS_BAN_US after the last of these.
 *
 * Clients may share an address, for example on this machine. So up to RPC_PEERS_SETTLED_MAX of its
 * connections are settled: the first ones that have had a call and are RPC_PEERS_SETTLED_US old.
 * These have equal shares of a separate rate. Short connections cannot use it up.
 *
 * A trusted client is a service, which passes on what its own clients send. Its connections are
 * known from their first trusted call. They are ended for their bytes only if no other one has
 * RPC_PEERS_STALL_BYTES, one at a time for a stall, and never cause a ban.
 *
 * Decisions only: the caller passes times and counts. Private to common/rpc.
 *
 * Threads: any. One thread scans. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

/* A call counts as reset if its client cancels it within RPC_PEERS_RESET_US and had no answer. */
#define RPC_PEERS_RESET_US 1000000
#define RPC_PEERS_RESETS_PER_S 64 // in the long run
#define RPC_PEERS_RESETS_BURST 2048
/* Calls that cost the client nothing: health, models and statistics, reflection, and those that its
 * role may not make. Requests that a method refuses do not count: a gateway over TCP without TLS is
 * a client, and passes on those of its users. The thread that answers has other work. */
#define RPC_PEERS_CHEAP_PER_S 250 // in the long run
#define RPC_PEERS_CHEAP_BURST 2000
#define RPC_PEERS_CHEAP_FIRST 8 // of a connection: those of a gateway until it is settled
#define RPC_PEERS_REFUSED_MAX 512
/* Of unfinished headers gRPC core 1.51 keeps about five times as many bytes (fields of 104). */
#define RPC_PEERS_CLIENT_BYTES_MAX (64u << 20)
#define RPC_PEERS_ALL_TIMES 4 // services are few, and send the prompts of many clients
#define RPC_PEERS_CONNECTIONS_MAX 2048
#define RPC_PEERS_CROWD_MAX 512 // connections of a client
#define RPC_PEERS_GROWTH_MAX (256u << 20)
#define RPC_PEERS_STALL_US 1000000
#define RPC_PEERS_STALL_BYTES (1u << 20) // less stalls no thread for that time
/* Bytes without messages that a good client may send, measured with gRPC core's: */
#define RPC_PEERS_HEADER_BYTES 768  // of a call; compressed, they have 300 to 800, later about 100
#define RPC_PEERS_CALL_BYTES 256    // frames of a call
#define RPC_PEERS_MESSAGE_BYTES 256 // frames of a message
#define RPC_PEERS_RECORD_BYTES 256  // a message has one byte more for this many: frames, TLS
#define RPC_PEERS_SENT_BYTES 64     // answers to a message of ours: window updates, pings
#define RPC_PEERS_ACKED_BYTES 64    // one byte for this many of ours: window updates
#define RPC_PEERS_IDLE_PER_S 64     // keepalive pings and their acknowledgements
/* All of these. 17,000 calls per second with 150 bytes each need as much. */
#define RPC_PEERS_CREDIT_PER_S (2560 << 10)
#define RPC_PEERS_BAN_US 30000000
/* A flood of calls needs new connections, or the places of old ones: */
#define RPC_PEERS_SETTLED_US 3000000
#define RPC_PEERS_SETTLED_MAX 16   // of a client; more than the gateways of a machine
#define RPC_PEERS_KEPT_US 10000000 // calls of an ended connection arrive later

enum rpc_peers_end {
    RPC_PEERS_KEEP,
    RPC_PEERS_RESETS,
    RPC_PEERS_CHEAP,
    RPC_PEERS_REFUSED,
    RPC_PEERS_BYTES,
    RPC_PEERS_STALL,
    RPC_PEERS_CROWD, // too many connections
    RPC_PEERS_BAN,
    RPC_PEERS_ENDS,
};

struct rpc_peer_address {
    /* Of IPv4: mapped to IPv6. Of a user at a unix socket: "user", the id, and the cookie of the
     * socket. No address of the internet begins with these letters. */
    uint8_t ip[16];
    uint16_t port;
};

/* text: of grpc_call_get_peer(). False: not TCP. */
bool rpc_peer_address_read(const char *text, struct rpc_peer_address *ret);
bool rpc_peer_address_of(const struct sockaddr_storage *from, struct rpc_peer_address *ret);
/* fd: a connected unix socket. */
void rpc_peer_address_of_user(int fd, struct rpc_peer_address *ret);
/* "192.0.2.1:1234", "[2001:db8::1]:1234", "unix user 1000" */
#define RPC_PEER_ADDRESS_MAX 64
const char *rpc_peer_address_text(const struct rpc_peer_address *a, char out[RPC_PEER_ADDRESS_MAX]);

/* The client that has this address: of a unix socket the user. Of IPv6 a client has a /64 network,
 * unless the prefix is the same for everybody. Each user of this machine has all of 127.0.0.0/8. */
void rpc_peer_client(const struct rpc_peer_address *a, uint8_t ret[16]);

struct rpc_peers;
struct rpc_peer;

/* client_bytes: usually RPC_PEERS_CLIENT_BYTES_MAX. */
struct rpc_peers *rpc_peers_new(unsigned max_connections, size_t client_bytes);
void rpc_peers_free(struct rpc_peers *ps); // after rpc_peer_done() of all calls

struct rpc_peer_call {
    size_t header_bytes; // uncompressed
    bool trusted;        // the client is a service or an operator
};

/* A call of this connection begins. NULL: the connection is being ended, so the call is void. */
struct rpc_peer *rpc_peers_call(struct rpc_peers *ps, const struct rpc_peer_address *a,
                                const struct rpc_peer_call *call, int64_t now_us);
/* A message has arrived. */
void rpc_peer_message(struct rpc_peers *ps, struct rpc_peer *p, size_t bytes);
/* We have sent a message. */
void rpc_peer_sent(struct rpc_peers *ps, struct rpc_peer *p);
/* The client has reset the call. True: therefore the connection must be ended now. */
bool rpc_peer_reset(struct rpc_peers *ps, struct rpc_peer *p, int64_t now_us);
/* The call is cheap. If there were too many, the next scan ends the connection. */
void rpc_peer_cheap(struct rpc_peers *ps, struct rpc_peer *p, int64_t now_us);
/* The call was refused. True: the connection must be ended now, because too many refused ones have
 * not ended. */
bool rpc_peer_refused(struct rpc_peers *ps, struct rpc_peer *p, int64_t now_us);
/* A refused call ends; rpc_peer_done() follows. */
void rpc_peer_refused_done(struct rpc_peers *ps, struct rpc_peer *p);
/* The call has ended; p is not valid afterwards. */
void rpc_peer_done(struct rpc_peers *ps, struct rpc_peer *p, int64_t now_us);

/* What the system tells of a connection. */
struct rpc_peer_socket {
    uint64_t cookie; // differs from that of every other socket; 0: unknown
    uint64_t received;
    uint64_t acked; // bytes of ours
};

/* A scan: begin, then rpc_peers_saw() for each connection, then end. The counts are read after the
 * scan has begun: a message counts as received before it counts as delivered. rpc_peers_saw()
 * returns the number of settled connections of the client, or 0 if this is none of them. */
void rpc_peers_scan_begin(struct rpc_peers *ps);
unsigned rpc_peers_saw(struct rpc_peers *ps, const struct rpc_peer_address *a,
                       const struct rpc_peer_socket *socket, int64_t now_us);
/* Bytes that the process has allocated in small pieces. In a scan, before its end. */
void rpc_peers_memory(struct rpc_peers *ps, uint64_t bytes);
/* stalled_us: since when the server's slowest thread has been stalled; now_us if none is. Returns
 * the number of connections to end: those for which rpc_peers_take() tells a reason. */
unsigned rpc_peers_scan_end(struct rpc_peers *ps, int64_t stalled_us, int64_t now_us);
/* Whether any address is banned. */
bool rpc_peers_any_banned(struct rpc_peers *ps, int64_t now_us);
/* Whether clients had more than a quarter of the permitted bytes or growth in the last scan,
 * without those of the connections that it ended. */
bool rpc_peers_many_bytes(struct rpc_peers *ps);
/* Why the connection with this cookie must be ended; RPC_PEERS_KEEP: it need not, or was already
 * taken. */
enum rpc_peers_end rpc_peers_take(struct rpc_peers *ps, const struct rpc_peer_address *a,
                                  uint64_t cookie);

/* rpc_frames.h - the frames that a peer sends over HTTP/2, and which of them gRPC core may read.
 *
 * gRPC core 1.51 keeps an unfinished header without a limit, and copies it whenever a part of it
 * arrives. Its threads serve all connections of the process, so a peer that sends parts of a header
 * for ever delays all others. Good peers need few parts and few bytes.
 *
 * The format: RFC 9113, sections 3.4 (preface), 4.1 (frames) and 6. Payloads are not looked into.
 *
 * Private to common/rpc. Threads: one at a time for each struct. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RPC_FRAMES_HEADER_MAX (32u << 10) // compressed; gRPC core accepts 8 KiB uncompressed
#define RPC_FRAMES_PARTS_MAX 8            // CONTINUATION frames of a header
#define RPC_FRAMES_GOAWAY_MAX 8           // of a connection; gRPC core sends two
/* PING, SETTINGS, PRIORITY, empty DATA and unknown frames. The keepalive of gRPC needs one per
 * second; a peer that measures its bandwidth by PING frames one per round trip. */
#define RPC_FRAMES_CONTROL_PER_S 10000 // in the long run
#define RPC_FRAMES_CONTROL_BURST 20000

enum rpc_frames_state {
    RPC_FRAMES_START,   // the connection begins
    RPC_FRAMES_PREFACE, // of a client
    RPC_FRAMES_HEAD,    // of a frame
    RPC_FRAMES_PAYLOAD,
    RPC_FRAMES_OTHER, // no HTTP/2, but TLS for example: all bytes pass
    RPC_FRAMES_OVER,  // no byte passes
};

struct rpc_frames { // starts zeroed
    enum rpc_frames_state state;
    bool begun; // it is HTTP/2
    bool open;  // a header is unfinished
    uint8_t n;  // bytes in `head`, or of the preface
    uint8_t head[9];
    uint32_t left; // bytes of the payload
    uint64_t header_bytes;
    unsigned n_parts, n_goaways;
    int64_t control_us; // when the last control frame was due at RPC_FRAMES_CONTROL_PER_S
    bool is_client;     // the peer has begun with a preface
    uint32_t stream;    // the last that it has opened
    uint64_t n_calls;   // streams that it has opened
};

/* The next bytes of the peer. False: a limit is exceeded, a header is interrupted, or a client's
 * stream has an even number. Then gRPC core must not see these bytes, nor later ones. How the bytes
 * are cut does not matter. */
bool rpc_frames_pass(struct rpc_frames *f, const uint8_t *bytes, size_t n, int64_t now_us);

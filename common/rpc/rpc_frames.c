/* rpc_frames.c - follows the frames of a connection, from head to head. */
#include "rpc/rpc_frames.h"
#include <string.h>
#include "rpc/rpc_rate.h"

static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
#define PREFACE_BYTES (sizeof(preface) - 1)

enum type {
    DATA = 0,
    HEADERS = 1,
    RST_STREAM = 3,
    SETTINGS = 4,
    PUSH_PROMISE = 5,
    GOAWAY = 7,
    WINDOW_UPDATE = 8,
    CONTINUATION = 9
};
#define END_STREAM 0x1  // flag of DATA
#define END_HEADERS 0x4 // flag of HEADERS, PUSH_PROMISE and CONTINUATION
#define FIRST_MAX 16384 // bytes of the first frame, before a peer knows other limits

static bool control_passes(struct rpc_frames *f, int64_t now_us)
{
    const struct rpc_rate_limit limit = {RPC_FRAMES_CONTROL_PER_S, RPC_FRAMES_CONTROL_BURST};
    return rpc_rate_pass(&f->control_us, &limit, 1, now_us);
}

static uint32_t stream_of(const struct rpc_frames *f)
{
    return (uint32_t)(f->head[5] & 0x7f) << 24 | (uint32_t)f->head[6] << 16 |
           (uint32_t)f->head[7] << 8 | f->head[8];
}

/* Whether a client's header may pass. A client opens odd streams, in ascending order (RFC 9113,
 * 5.1.1). Trailers belong to a stream that is open. */
static bool call_passes(struct rpc_frames *f)
{
    uint32_t stream = stream_of(f);
    if (stream % 2 == 0)
        return false;
    if (stream > f->stream) {
        f->stream = stream;
        f->n_calls++;
    }
    return true;
}

/* A header, or a part of one. */
static bool header_passes(struct rpc_frames *f, bool is_part, uint8_t flags)
{
    if (!is_part) {
        f->header_bytes = 0;
        f->n_parts = 0;
    }
    f->n_parts += is_part;
    f->header_bytes += f->left;
    f->open = !(flags & END_HEADERS);
    return f->header_bytes <= RPC_FRAMES_HEADER_MAX && f->n_parts <= RPC_FRAMES_PARTS_MAX;
}

static bool frame_passes(struct rpc_frames *f, int64_t now_us)
{
    const uint8_t type = f->head[3], flags = f->head[4];
    if (f->open != (type == CONTINUATION)) // RFC 9113, 6.10
        return false;
    switch (type) {
    case HEADERS:
        return (!f->is_client || call_passes(f)) && header_passes(f, false, flags);
    case PUSH_PROMISE:
    case CONTINUATION:
        return header_passes(f, type == CONTINUATION, flags);
    case GOAWAY:
        return ++f->n_goaways <= RPC_FRAMES_GOAWAY_MAX;
    case DATA:
        return f->left || flags & END_STREAM || control_passes(f, now_us);
    case RST_STREAM: // good peers send one for each call or message: no rate
    case WINDOW_UPDATE:
        return true;
    default:
        return control_passes(f, now_us);
    }
}

/* Whether gRPC core may accept this as the first frame of a server. A TLS record is none: it would
 * be a frame of 1.4 MB. */
static bool is_first(const struct rpc_frames *f)
{
    return f->head[3] == SETTINGS && f->left <= FIRST_MAX;
}

/* The head of a frame is complete. */
static void begin_frame(struct rpc_frames *f, int64_t now_us)
{
    f->left = (uint32_t)f->head[0] << 16 | (uint32_t)f->head[1] << 8 | f->head[2];
    f->n = 0;
    if (!f->begun && !is_first(f))
        f->state = RPC_FRAMES_OTHER;
    else if (!frame_passes(f, now_us))
        f->state = RPC_FRAMES_OVER;
    else
        f->state = f->left ? RPC_FRAMES_PAYLOAD : RPC_FRAMES_HEAD;
    f->begun = true;
}

/* Takes the next byte of the preface, or of a head. */
static void take_byte(struct rpc_frames *f, uint8_t byte, int64_t now_us)
{
    if (f->state == RPC_FRAMES_START)
        f->state = byte == (uint8_t)*preface ? RPC_FRAMES_PREFACE : RPC_FRAMES_HEAD;
    if (f->state == RPC_FRAMES_HEAD) {
        f->head[f->n++] = byte;
        if (f->n == sizeof(f->head))
            begin_frame(f, now_us);
    } else if (byte != (uint8_t)preface[f->n]) {
        f->state = RPC_FRAMES_OTHER;
    } else if (++f->n == PREFACE_BYTES) {
        f->n = 0;
        f->begun = f->is_client = true;
        f->state = RPC_FRAMES_HEAD;
    }
}

bool rpc_frames_pass(struct rpc_frames *f, const uint8_t *bytes, size_t n, int64_t now_us)
{
    const uint8_t *end = bytes + n;
    while (bytes < end && f->state < RPC_FRAMES_OTHER) {
        size_t rest = (size_t)(end - bytes), skip = rest < f->left ? rest : f->left;
        if (f->state != RPC_FRAMES_PAYLOAD) {
            take_byte(f, *bytes++, now_us);
            continue;
        }
        bytes += skip;
        f->left -= (uint32_t)skip;
        f->state = f->left ? RPC_FRAMES_PAYLOAD : RPC_FRAMES_HEAD;
    }
    return f->state != RPC_FRAMES_OVER;
}

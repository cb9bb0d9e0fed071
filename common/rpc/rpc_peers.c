/* rpc_peers.c - accounts of a server's TCP connections. */
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "rpc/rpc_base.h"
#include "rpc/rpc_peers.h"

#define BUCKETS 1024
#define OFFENDERS 64 // addresses that are remembered; a new one displaces the oldest

/* Bytes that calls explain. */
struct explained {
    uint64_t messages;
    uint64_t others; // at most as many are in headers and frames
};

struct rpc_peer {
    struct rpc_peer *next; // in its bucket
    struct rpc_peer_address address;
    enum rpc_peers_end end;
    bool taken; // the caller ends it
    bool seen;  // in this scan
    bool gone;  // not seen in the last scan
    bool called;
    unsigned n_calls;  // they hold a pointer
    int64_t used_us;   // a call has begun or ended; before the first one: the first sight
    int64_t resets_us; // when n_resets was calculated
    int64_t n_resets;  // less those that time has forgiven
    struct explained all;
    struct explained settled;  // what `all` was when the scan began
    struct explained credited; // of those, in `unexplained`
    uint64_t others_left;      // that may count, of RPC_PEERS_CREDIT_PER_S
    int64_t seen_us;           // the last scan; before: like used_us
    uint64_t received, acked;
    uint64_t unexplained;
};

/* An address whose connections were ended. */
struct offender {
    uint8_t ip[16];
    unsigned n;
    int64_t last_us;
};

struct rpc_peers {
    pthread_mutex_t mu;
    unsigned max_connections;
    size_t max_bytes;
    int64_t stall_ended_us; // when a connection was last ended for a stall
    struct offender offenders[OFFENDERS];
    struct rpc_peer *buckets[BUCKETS];
};

/* ---- addresses ---- */

static void map_ipv4(const void *ipv4, uint8_t ret[16])
{
    memset(ret, 0, 10);
    memset(ret + 10, 0xff, 2);
    memcpy(ret + 12, ipv4, 4);
}

/* gRPC core escapes the brackets of IPv6. */
bool rpc_peer_address_read(const char *text, struct rpc_peer_address *ret)
{
    char host[INET6_ADDRSTRLEN] = "";
    struct in_addr ipv4;
    const char *port = strrchr(text, ':');
    *ret = (struct rpc_peer_address){.port = port ? (uint16_t)strtoul(port + 1, NULL, 10) : 0};
    if (sscanf(text, "ipv4:%45[0-9.]", host) == 1 && inet_pton(AF_INET, host, &ipv4) == 1) {
        map_ipv4(&ipv4, ret->ip);
        return true;
    }
    return sscanf(text, "ipv6:%%5B%45[0-9a-f:.]", host) == 1 &&
           inet_pton(AF_INET6, host, ret->ip) == 1;
}

bool rpc_peer_address_of(const struct sockaddr_storage *from, struct rpc_peer_address *ret)
{
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)from;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)from;
    *ret = (struct rpc_peer_address){0};
    if (from->ss_family == AF_INET) {
        map_ipv4(&v4->sin_addr, ret->ip);
        ret->port = ntohs(v4->sin_port);
    } else if (from->ss_family == AF_INET6) {
        memcpy(ret->ip, &v6->sin6_addr, sizeof(ret->ip));
        ret->port = ntohs(v6->sin6_port);
    }
    return from->ss_family == AF_INET || from->ss_family == AF_INET6;
}

const char *rpc_peer_address_text(const struct rpc_peer_address *a, char out[RPC_PEER_ADDRESS_MAX])
{
    char host[INET6_ADDRSTRLEN];
    if (IN6_IS_ADDR_V4MAPPED((const struct in6_addr *)a->ip))
        snprintf(out, RPC_PEER_ADDRESS_MAX, "%s:%u",
                 inet_ntop(AF_INET, a->ip + 12, host, sizeof(host)), a->port);
    else
        snprintf(out, RPC_PEER_ADDRESS_MAX, "[%s]:%u",
                 inet_ntop(AF_INET6, a->ip, host, sizeof(host)), a->port);
    return out;
}

static bool is_same(const struct rpc_peer_address *a, const struct rpc_peer_address *b)
{
    return a->port == b->port && memcmp(a->ip, b->ip, sizeof(a->ip)) == 0;
}

/* ---- bans; with the lock ---- */

static bool is_recent(const struct offender *o, int64_t now_us)
{
    return o->n && now_us - o->last_us < RPC_PEERS_BAN_US;
}

/* Of IPv6 a client has a /64 network, unless the prefix is the same for everybody. */
static size_t client_bytes(const uint8_t ip[16])
{
    static const uint8_t nat64[12] = {0, 0x64, 0xff, 0x9b}; // RFC 6052
    const struct in6_addr *a = (const struct in6_addr *)ip;
    bool shared = IN6_IS_ADDR_V4MAPPED(a) || IN6_IS_ADDR_LOOPBACK(a) || IN6_IS_ADDR_LINKLOCAL(a) ||
                  memcmp(ip, nat64, sizeof(nat64)) == 0;
    return shared ? 16 : 8;
}

static bool is_same_client(const uint8_t a[16], const uint8_t b[16])
{
    size_t n_a = client_bytes(a), n_b = client_bytes(b);
    return n_a == n_b && memcmp(a, b, n_a) == 0;
}

/* That of this address, or the one to replace. */
static struct offender *offender_of(struct rpc_peers *ps, const uint8_t ip[16])
{
    struct offender *oldest = ps->offenders;
    for (struct offender *o = ps->offenders; o < ps->offenders + OFFENDERS; o++) {
        if (o->n && is_same_client(ip, o->ip))
            return o;
        oldest = o->last_us < oldest->last_us ? o : oldest;
    }
    return oldest;
}

static void end_offender(struct rpc_peers *ps, struct rpc_peer *p, enum rpc_peers_end end,
                         int64_t now_us)
{
    struct offender *o = offender_of(ps, p->address.ip);
    bool again = is_recent(o, now_us) && is_same_client(p->address.ip, o->ip);
    p->end = end;
    o->n = again ? o->n + 1 : 1;
    o->last_us = now_us;
    memcpy(o->ip, p->address.ip, sizeof(o->ip));
}

/* RPC_PEERS_KEEP, or why a new connection of this address ends. */
static enum rpc_peers_end first_verdict(struct rpc_peers *ps, const struct rpc_peer_address *a,
                                        int64_t now_us)
{
    const struct offender *o = offender_of(ps, a->ip);
    bool banned = is_recent(o, now_us) && o->n > 1 && is_same_client(a->ip, o->ip);
    return banned ? RPC_PEERS_BAN : RPC_PEERS_KEEP;
}

bool rpc_peers_are_banned(struct rpc_peers *ps, int64_t now_us)
{
    bool any = false;
    pthread_mutex_lock(&ps->mu);
    for (unsigned i = 0; i < OFFENDERS; i++)
        any |= is_recent(&ps->offenders[i], now_us) && ps->offenders[i].n > 1;
    pthread_mutex_unlock(&ps->mu);
    return any;
}

/* ---- the table; with its lock ---- */

static struct rpc_peer **bucket_of(struct rpc_peers *ps, const struct rpc_peer_address *a)
{
    unsigned h = a->port;
    for (size_t i = 0; i < sizeof(a->ip); i++)
        h = h * 31 + a->ip[i];
    return &ps->buckets[h % BUCKETS];
}

static struct rpc_peer *find(struct rpc_peers *ps, const struct rpc_peer_address *a)
{
    struct rpc_peer *p = *bucket_of(ps, a);
    while (p && !is_same(&p->address, a))
        p = p->next;
    return p;
}

static struct rpc_peer *find_or_add(struct rpc_peers *ps, const struct rpc_peer_address *a,
                                    int64_t now_us)
{
    struct rpc_peer *p = find(ps, a), **bucket = bucket_of(ps, a);
    if (p)
        return p;
    p = rpc_alloc(1, sizeof(*p));
    *p = (struct rpc_peer){.next = *bucket,
                           .address = *a,
                           .end = first_verdict(ps, a, now_us),
                           .used_us = now_us,
                           .resets_us = now_us,
                           .others_left = RPC_PEERS_CREDIT_PER_S,
                           .seen_us = now_us};
    return *bucket = p;
}

/* Another connection has this address now. Calls of the old one may hold a pointer. */
static void renew(struct rpc_peers *ps, struct rpc_peer *p, int64_t now_us)
{
    *p = (struct rpc_peer){.next = p->next,
                           .address = p->address,
                           .end = first_verdict(ps, &p->address, now_us),
                           .n_calls = p->n_calls,
                           .used_us = now_us,
                           .resets_us = now_us,
                           .others_left = RPC_PEERS_CREDIT_PER_S,
                           .seen_us = now_us};
}

struct rpc_peers *rpc_peers_new(unsigned max_connections, size_t max_bytes)
{
    struct rpc_peers *ps = rpc_alloc(1, sizeof(*ps));
    pthread_mutex_init(&ps->mu, NULL);
    ps->max_connections = max_connections;
    ps->max_bytes = max_bytes;
    return ps;
}

/* Removes the connections that are over: since `before_us` nothing was heard of them. */
static void remove_old(struct rpc_peers *ps, int64_t before_us)
{
    for (unsigned i = 0; i < BUCKETS; i++) {
        for (struct rpc_peer **at = &ps->buckets[i]; *at;) {
            struct rpc_peer *p = *at;
            if (p->seen || p->n_calls || p->used_us > before_us) {
                at = &p->next;
                continue;
            }
            *at = p->next;
            free(p);
        }
    }
}

void rpc_peers_free(struct rpc_peers *ps)
{
    rpc_peers_scan_begin(ps);
    remove_old(ps, INT64_MAX);
    pthread_mutex_destroy(&ps->mu);
    free(ps);
}

/* ---- calls ---- */

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void explain(struct rpc_peer *p, size_t message_bytes, size_t others)
{
    p->all.messages += message_bytes;
    p->all.others += others + message_bytes / RPC_PEERS_RECORD_BYTES;
}

struct rpc_peer *rpc_peers_call(struct rpc_peers *ps, const struct rpc_peer_address *a,
                                const struct rpc_peer_call *call, int64_t now_us)
{
    pthread_mutex_lock(&ps->mu);
    struct rpc_peer *p = find_or_add(ps, a, now_us);
    p->used_us = now_us;
    if (p->end) {
        p = NULL;
    } else {
        p->called = true;
        p->n_calls++;
        explain(p, call->message_bytes,
                min_u64(call->header_bytes, RPC_PEERS_HEADER_BYTES) + RPC_PEERS_CALL_BYTES);
    }
    pthread_mutex_unlock(&ps->mu);
    return p;
}

void rpc_peer_message(struct rpc_peers *ps, struct rpc_peer *p, size_t bytes)
{
    pthread_mutex_lock(&ps->mu);
    explain(p, bytes, RPC_PEERS_MESSAGE_BYTES);
    pthread_mutex_unlock(&ps->mu);
}

void rpc_peer_sent(struct rpc_peers *ps, struct rpc_peer *p)
{
    pthread_mutex_lock(&ps->mu);
    explain(p, 0, RPC_PEERS_SENT_BYTES);
    pthread_mutex_unlock(&ps->mu);
}

bool rpc_peer_reset(struct rpc_peers *ps, struct rpc_peer *p, int64_t now_us)
{
    pthread_mutex_lock(&ps->mu);
    int64_t forgiven = (now_us - p->resets_us) * RPC_PEERS_RESETS_PER_S / 1000000;
    if (forgiven > 0) {
        p->resets_us = now_us;
        p->n_resets = p->n_resets > forgiven ? p->n_resets - forgiven : 0;
    }
    bool ends = !p->end && ++p->n_resets > RPC_PEERS_RESETS_BURST;
    if (ends)
        end_offender(ps, p, RPC_PEERS_RESETS, now_us);
    pthread_mutex_unlock(&ps->mu);
    return ends;
}

void rpc_peer_done(struct rpc_peers *ps, struct rpc_peer *p, int64_t now_us)
{
    pthread_mutex_lock(&ps->mu);
    p->n_calls--;
    p->used_us = now_us;
    pthread_mutex_unlock(&ps->mu);
}

/* ---- scans ---- */

void rpc_peers_scan_begin(struct rpc_peers *ps)
{
    pthread_mutex_lock(&ps->mu);
    for (unsigned i = 0; i < BUCKETS; i++) {
        for (struct rpc_peer *p = ps->buckets[i]; p; p = p->next) {
            p->seen = false;
            p->settled = p->all;
        }
    }
    pthread_mutex_unlock(&ps->mu);
}

/* Bytes of headers and frames that may be among those that arrived since the last scan. */
static uint64_t others_since(struct rpc_peer *p, uint64_t acked, int64_t now_us)
{
    uint64_t us = min_u64((uint64_t)(now_us - p->seen_us), 1000000);
    uint64_t left = p->others_left + us * RPC_PEERS_CREDIT_PER_S / 1000000;
    p->others_left = min_u64(left, RPC_PEERS_CREDIT_PER_S);
    uint64_t others = p->settled.others - p->credited.others;
    others += acked / RPC_PEERS_ACKED_BYTES - p->acked / RPC_PEERS_ACKED_BYTES;
    others += us * RPC_PEERS_IDLE_PER_S / 1000000;
    return min_u64(others, p->others_left);
}

/* No part of an explanation is left for bytes that arrive later. */
static void count_bytes(struct rpc_peer *p, uint64_t received, uint64_t acked, int64_t now_us)
{
    uint64_t n = p->unexplained + received - p->received;
    n -= min_u64(n, p->settled.messages - p->credited.messages);
    uint64_t others = min_u64(n, others_since(p, acked, now_us));
    p->unexplained = n - others;
    p->others_left -= others;
    p->credited = p->settled;
    p->received = received;
    p->acked = acked;
    p->seen_us = now_us;
}

void rpc_peers_saw(struct rpc_peers *ps, const struct rpc_peer_address *a, uint64_t received,
                   uint64_t acked, int64_t now_us)
{
    pthread_mutex_lock(&ps->mu);
    struct rpc_peer *p = find_or_add(ps, a, now_us);
    if (p->gone)
        renew(ps, p, now_us);
    p->seen = true;
    count_bytes(p, received, acked, now_us);
    pthread_mutex_unlock(&ps->mu);
}

/* Whether p should be ended rather than q, if there are too many connections. */
static bool is_idler(const struct rpc_peer *p, const struct rpc_peer *q)
{
    return p->called != q->called ? q->called : p->used_us < q->used_us;
}

/* What all connections have, and the one to end for either reason; NULL: none. */
struct sum {
    unsigned n;
    uint64_t unexplained;
    struct rpc_peer *largest, *idlest;
    unsigned n_due;
};

static struct sum sum_up(struct rpc_peers *ps)
{
    struct sum s = {0};
    for (unsigned i = 0; i < BUCKETS; i++) {
        for (struct rpc_peer *p = ps->buckets[i]; p; p = p->next) {
            s.n_due += p->seen && p->end && !p->taken;
            if (!p->seen || p->end)
                continue;
            s.n++;
            s.unexplained += p->unexplained;
            if (!s.largest || p->unexplained > s.largest->unexplained)
                s.largest = p;
            if (!p->n_calls && (!s.idlest || is_idler(p, s.idlest)))
                s.idlest = p;
        }
    }
    return s;
}

static void mark_gone(struct rpc_peers *ps)
{
    for (unsigned i = 0; i < BUCKETS; i++) {
        for (struct rpc_peer *p = ps->buckets[i]; p; p = p->next)
            p->gone = !p->seen;
    }
}

/* One connection per RPC_PEERS_STALL_US: the thread needs time to continue. */
static void end_stall(struct rpc_peers *ps, struct rpc_peer *largest, int64_t stalled_us,
                      int64_t now_us)
{
    int64_t since_us = stalled_us > ps->stall_ended_us ? stalled_us : ps->stall_ended_us;
    if (now_us - since_us < RPC_PEERS_STALL_US || !largest ||
        largest->unexplained < RPC_PEERS_STALL_BYTES)
        return;
    end_offender(ps, largest, RPC_PEERS_STALL, now_us);
    ps->stall_ended_us = now_us;
}

unsigned rpc_peers_scan_end(struct rpc_peers *ps, int64_t stalled_us, int64_t now_us)
{
    pthread_mutex_lock(&ps->mu);
    remove_old(ps, now_us - RPC_PEERS_KEPT_US);
    mark_gone(ps);
    struct sum s = sum_up(ps);
    end_stall(ps, s.largest, stalled_us, now_us);
    for (;;) {
        s = sum_up(ps);
        if (s.unexplained > ps->max_bytes)
            end_offender(ps, s.largest, RPC_PEERS_BYTES, now_us);
        else if (s.n > ps->max_connections && s.idlest)
            s.idlest->end = RPC_PEERS_CROWD;
        else
            break;
    }
    pthread_mutex_unlock(&ps->mu);
    return s.n_due;
}

enum rpc_peers_end rpc_peers_take(struct rpc_peers *ps, const struct rpc_peer_address *a)
{
    pthread_mutex_lock(&ps->mu);
    struct rpc_peer *p = find(ps, a);
    enum rpc_peers_end end = p && !p->taken ? p->end : RPC_PEERS_KEEP;
    if (end)
        p->taken = true;
    pthread_mutex_unlock(&ps->mu);
    return end;
}

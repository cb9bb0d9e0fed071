/* rpc_peers.c - accounts of a server's TCP connections. */
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include "base/rng.h"
#include "rpc/rpc_base.h"
#include "rpc/rpc_peers.h"
#include "rpc/rpc_rate.h"

#define BUCKETS 16384
#define OFFENDERS 64 // addresses that are remembered; a new one displaces the oldest

/* Bytes that calls explain. */
struct explained {
    uint64_t messages;
    uint64_t others; // at most as many are in headers and frames
};

struct rpc_peer {
    struct rpc_peer *next; // in its bucket
    struct rpc_peer_address address;
    uint8_t client[16]; // all of its connections have this
    enum rpc_peers_end end;
    bool taken; // the caller ends it
    bool seen;  // in this scan
    bool gone;  // not seen in the last scan, although it was there before that
    bool known; // when the scan began; a call may create an account later
    bool called;
    bool trusted;
    bool is_settled;    // it is one of RPC_PEERS_SETTLED_MAX
    int64_t begun_us;   // the first sight or call
    unsigned n_cheap;   // cheap calls, up to RPC_PEERS_CHEAP_FIRST
    int64_t cheap_us;   // of its share of cheap calls, see rpc_rate_pass()
    unsigned n_calls;   // they hold a pointer
    int64_t used_us;    // a call has begun or ended; before the first one: the first sight
    int64_t resets_us;  // when n_resets was calculated
    int64_t n_resets;   // less those that time has forgiven
    unsigned n_refused; // refused calls that have not ended
    struct explained all;
    struct explained settled;      // what `all` was when the scan began
    struct explained credited;     // of those, in `unexplained`
    uint64_t others_left;          // that may count, of RPC_PEERS_CREDIT_PER_S
    int64_t seen_us;               // the last scan; before: like used_us
    struct rpc_peer_socket socket; // at the last scan
    uint64_t unexplained;
    uint64_t held;         // their mean during the last second
    uint64_t client_bytes; // in a scan: the unexplained bytes of all connections of this client
    uint64_t client_held;  // the sum of their `held`
    unsigned rank;         // in end_crowd(): connections of this client that are of more use
};

/* An address whose connections were ended. */
struct offender {
    uint8_t client[16];
    unsigned n;
    int64_t last_us;
};

struct rpc_peers {
    pthread_mutex_t mu;
    struct rpc_rate cheap;
    uint8_t n_settled[RPC_RATE_CLIENTS]; // of each client, by rpc_rate_place()
    unsigned max_connections;
    uint64_t client_bytes; // unexplained, at most
    bool many_bytes;
    uint64_t memory;        // of the process
    uint64_t memory_before; // what it was when clients had few unexplained bytes
    int64_t stall_ended_us; // when a connection was last ended for a stall
    struct offender offenders[OFFENDERS];
    uint64_t seed; // nobody else can tell which addresses share a bucket
    unsigned n;    // accounts in the buckets
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

#define USER "user"

void rpc_peer_address_of_user(int fd, struct rpc_peer_address *ret)
{
    struct ucred peer = {.uid = (uid_t)-1};
    uint64_t cookie = 0;
    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &(socklen_t){sizeof(peer)});
    getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &(socklen_t){sizeof(cookie)});
    *ret = (struct rpc_peer_address){.port = 0};
    memcpy(ret->ip, USER, 4);
    memcpy(ret->ip + 4, &peer.uid, 4);
    memcpy(ret->ip + 8, &cookie, 8);
}

void rpc_peer_client(const struct rpc_peer_address *a, uint8_t ret[16])
{
    static const uint8_t nat64[12] = {0, 0x64, 0xff, 0x9b}; // RFC 6052
    const struct in6_addr *ip = (const struct in6_addr *)a->ip;
    bool shared = IN6_IS_ADDR_V4MAPPED(ip) || IN6_IS_ADDR_LOOPBACK(ip) ||
                  IN6_IS_ADDR_LINKLOCAL(ip) || memcmp(a->ip, nat64, sizeof(nat64)) == 0;
    memset(ret, 0, 16);
    memcpy(ret, a->ip, shared ? 16 : 8);
    if (IN6_IS_ADDR_V4MAPPED(ip) && a->ip[12] == IN_LOOPBACKNET)
        memset(ret + 13, 0, 3);
}

const char *rpc_peer_address_text(const struct rpc_peer_address *a, char out[RPC_PEER_ADDRESS_MAX])
{
    char host[INET6_ADDRSTRLEN];
    uid_t user;
    memcpy(&user, a->ip + 4, sizeof(user));
    if (memcmp(a->ip, USER, 4) == 0)
        snprintf(out, RPC_PEER_ADDRESS_MAX, "unix user %u", user);
    else if (IN6_IS_ADDR_V4MAPPED((const struct in6_addr *)a->ip))
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

static bool is_same_client(const uint8_t a[16], const uint8_t b[16])
{
    return memcmp(a, b, 16) == 0;
}

/* That of this client, or the one to replace. */
static struct offender *offender_of(struct rpc_peers *ps, const uint8_t client[16])
{
    struct offender *oldest = ps->offenders;
    for (struct offender *o = ps->offenders; o < ps->offenders + OFFENDERS; o++) {
        if (o->n && is_same_client(client, o->client))
            return o;
        oldest = o->last_us < oldest->last_us ? o : oldest;
    }
    return oldest;
}

static void end_offender(struct rpc_peers *ps, struct rpc_peer *p, enum rpc_peers_end end,
                         int64_t now_us)
{
    p->end = end;
    if (p->trusted)
        return;
    struct offender *o = offender_of(ps, p->client);
    bool again = is_recent(o, now_us) && is_same_client(p->client, o->client);
    o->n = again ? o->n + 1 : 1;
    o->last_us = now_us;
    memcpy(o->client, p->client, sizeof(o->client));
}

/* RPC_PEERS_KEEP, or why a new connection of this client ends. */
static enum rpc_peers_end first_verdict(struct rpc_peers *ps, const uint8_t client[16],
                                        int64_t now_us)
{
    const struct offender *o = offender_of(ps, client);
    bool banned = is_recent(o, now_us) && o->n > 1 && is_same_client(client, o->client);
    return banned ? RPC_PEERS_BAN : RPC_PEERS_KEEP;
}

bool rpc_peers_any_banned(struct rpc_peers *ps, int64_t now_us)
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
    _Static_assert(sizeof(*a) == sizeof(a->ip) + sizeof(a->port), "no padding");
    return &ps->buckets[XXH3_64bits_withSeed(a, sizeof(*a), ps->seed) % BUCKETS];
}

static struct rpc_peer *find(struct rpc_peers *ps, const struct rpc_peer_address *a)
{
    struct rpc_peer *p = *bucket_of(ps, a);
    while (p && !is_same(&p->address, a))
        p = p->next;
    return p;
}

/* The account of a connection of which nothing is known yet. */
static void begin_account(struct rpc_peers *ps, struct rpc_peer *p, int64_t now_us)
{
    *p = (struct rpc_peer){.next = p->next,
                           .address = p->address,
                           .n_calls = p->n_calls,
                           .n_refused = p->n_refused,
                           .begun_us = now_us,
                           .used_us = now_us,
                           .resets_us = now_us,
                           .others_left = RPC_PEERS_CREDIT_PER_S,
                           .seen_us = now_us};
    rpc_peer_client(&p->address, p->client);
    p->end = first_verdict(ps, p->client, now_us);
}

static struct rpc_peer *find_or_add(struct rpc_peers *ps, const struct rpc_peer_address *a,
                                    int64_t now_us)
{
    struct rpc_peer *p = find(ps, a), **bucket = bucket_of(ps, a);
    if (p)
        return p;
    p = rpc_alloc(1, sizeof(*p));
    *p = (struct rpc_peer){.next = *bucket, .address = *a};
    begin_account(ps, p, now_us);
    ps->n++;
    return *bucket = p;
}

struct rpc_peers *rpc_peers_new(unsigned max_connections, size_t client_bytes)
{
    struct rpc_peers *ps = rpc_alloc(1, sizeof(*ps));
    pthread_mutex_init(&ps->mu, NULL);
    ps->max_connections = max_connections;
    ps->client_bytes = client_bytes;
    ps->memory_before = UINT64_MAX;
    ps->seed = rng_secret();
    ps->cheap = (struct rpc_rate){.limit = {RPC_PEERS_CHEAP_PER_S, RPC_PEERS_CHEAP_BURST},
                                  .seed = ps->seed};
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
            ps->n--;
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
        p->trusted |= call->trusted;
        p->n_calls++;
        explain(p, 0, min_u64(call->header_bytes, RPC_PEERS_HEADER_BYTES) + RPC_PEERS_CALL_BYTES);
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
    bool ends = !p->end && !p->is_settled && ++p->n_resets > RPC_PEERS_RESETS_BURST;
    if (ends)
        end_offender(ps, p, RPC_PEERS_RESETS, now_us);
    pthread_mutex_unlock(&ps->mu);
    return ends;
}

static bool is_first_cheap(struct rpc_peer *p)
{
    bool first = p->n_cheap < RPC_PEERS_CHEAP_FIRST;
    p->n_cheap += first;
    return first;
}

static uint8_t *settled_of(struct rpc_peers *ps, const struct rpc_peer *p)
{
    return &ps->n_settled[rpc_rate_place(ps->seed, p->client)];
}

/* No ban: good clients may share the address. */
void rpc_peer_cheap(struct rpc_peers *ps, struct rpc_peer *p, int64_t now_us)
{
    pthread_mutex_lock(&ps->mu);
    bool ok = is_first_cheap(p) || (p->is_settled && rpc_rate_pass(&p->cheap_us, &ps->cheap.limit,
                                                                   *settled_of(ps, p), now_us));
    if (!ok && !rpc_rate_take(&ps->cheap, p->client, 1, now_us) && !p->end)
        p->end = RPC_PEERS_CHEAP;
    pthread_mutex_unlock(&ps->mu);
}

bool rpc_peer_refused(struct rpc_peers *ps, struct rpc_peer *p, int64_t now_us)
{
    pthread_mutex_lock(&ps->mu);
    bool ends = ++p->n_refused > RPC_PEERS_REFUSED_MAX && !p->end;
    if (ends)
        end_offender(ps, p, RPC_PEERS_REFUSED, now_us);
    pthread_mutex_unlock(&ps->mu);
    return ends;
}

void rpc_peer_refused_done(struct rpc_peers *ps, struct rpc_peer *p)
{
    pthread_mutex_lock(&ps->mu);
    p->n_refused--;
    pthread_mutex_unlock(&ps->mu);
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
    memset(ps->n_settled, 0, sizeof(ps->n_settled));
    for (unsigned i = 0; i < BUCKETS; i++) {
        for (struct rpc_peer *p = ps->buckets[i]; p; p = p->next) {
            p->is_settled &= p->seen && !p->end; // it is open
            *settled_of(ps, p) += p->is_settled;
            p->seen = false;
            p->known = true;
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
    others += acked / RPC_PEERS_ACKED_BYTES - p->socket.acked / RPC_PEERS_ACKED_BYTES;
    others += us * RPC_PEERS_IDLE_PER_S / 1000000;
    return min_u64(others, p->others_left);
}

/* A moving mean, with a weight of 1 / e for what was a second ago. */
static void hold(struct rpc_peer *p, int64_t now_us)
{
    uint64_t us = min_u64((uint64_t)(now_us - p->seen_us), 1000000);
    p->held = (p->held * (1000000 - us) + p->unexplained * us) / 1000000;
}

/* No part of an explanation is left for bytes that arrive later. */
static void count_bytes(struct rpc_peer *p, const struct rpc_peer_socket *now, int64_t now_us)
{
    hold(p, now_us);
    uint64_t n = p->unexplained + now->received - p->socket.received;
    n -= min_u64(n, p->settled.messages - p->credited.messages);
    uint64_t others = min_u64(n, others_since(p, now->acked, now_us));
    p->unexplained = n - others;
    p->others_left -= others;
    p->credited = p->settled;
    p->socket = *now;
    p->seen_us = now_us;
}

static bool is_other(uint64_t cookie, uint64_t other)
{
    return cookie && other && cookie != other;
}

/* Whether another connection has the address of p now. */
static bool is_replaced(const struct rpc_peer *p, const struct rpc_peer_socket *now)
{
    return p->gone || is_other(p->socket.cookie, now->cookie) ||
           now->received < p->socket.received || now->acked < p->socket.acked;
}

static void settle_if_due(struct rpc_peers *ps, struct rpc_peer *p, int64_t now_us)
{
    uint8_t *n = settled_of(ps, p);
    if (p->is_settled || !p->called || now_us - p->begun_us < RPC_PEERS_SETTLED_US ||
        *n == RPC_PEERS_SETTLED_MAX)
        return;
    p->is_settled = true;
    ++*n;
}

unsigned rpc_peers_saw(struct rpc_peers *ps, const struct rpc_peer_address *a,
                       const struct rpc_peer_socket *socket, int64_t now_us)
{
    pthread_mutex_lock(&ps->mu);
    struct rpc_peer *p = find_or_add(ps, a, now_us);
    if (is_replaced(p, socket))
        begin_account(ps, p, now_us); // calls of the old connection may hold a pointer
    p->seen = true;
    count_bytes(p, socket, now_us);
    settle_if_due(ps, p, now_us);
    unsigned n_settled = p->is_settled ? *settled_of(ps, p) : 0;
    pthread_mutex_unlock(&ps->mu);
    return n_settled;
}

void rpc_peers_memory(struct rpc_peers *ps, uint64_t bytes)
{
    pthread_mutex_lock(&ps->mu);
    ps->memory = bytes;
    pthread_mutex_unlock(&ps->mu);
}

static void mark_gone(struct rpc_peers *ps)
{
    for (unsigned i = 0; i < BUCKETS; i++) {
        for (struct rpc_peer *p = ps->buckets[i]; p; p = p->next)
            p->gone = !p->seen && p->known;
    }
}

static unsigned count_due(const struct rpc_peers *ps)
{
    unsigned n = 0;
    for (unsigned i = 0; i < BUCKETS; i++) {
        for (const struct rpc_peer *p = ps->buckets[i]; p; p = p->next)
            n += p->seen && p->end && !p->taken;
    }
    return n;
}

/* The connections that the scan has seen, without those that are being ended. */
struct list {
    struct rpc_peer **v;
    unsigned n;
};

static struct list list_seen(const struct rpc_peers *ps)
{
    struct list l = {.v = rpc_alloc(ps->n + 1, sizeof(struct rpc_peer *))};
    for (unsigned i = 0; i < BUCKETS; i++) {
        for (struct rpc_peer *p = ps->buckets[i]; p; p = p->next) {
            if (p->seen && !p->end)
                l.v[l.n++] = p;
        }
    }
    return l;
}

static void drop_ended(struct list *l)
{
    unsigned n = 0;
    for (unsigned i = 0; i < l->n; i++) {
        if (!l->v[i]->end)
            l->v[n++] = l->v[i];
    }
    l->n = n;
}

static int by_name(const void *a, const void *b)
{
    const struct rpc_peer *p = *(struct rpc_peer *const *)a, *q = *(struct rpc_peer *const *)b;
    return p->trusted != q->trusted ? (p->trusted ? 1 : -1)
                                    : memcmp(p->client, q->client, sizeof(p->client));
}

/* A service is another client than others with its address. */
static void sum_clients(struct list *l)
{
    qsort(l->v, l->n, sizeof(*l->v), by_name);
    for (unsigned i = 0, end; i < l->n; i = end) {
        uint64_t bytes = 0, held = 0;
        for (end = i; end < l->n && by_name(&l->v[i], &l->v[end]) == 0; end++) {
            bytes += l->v[end]->unexplained;
            held += l->v[end]->held;
        }
        for (unsigned k = i; k < end; k++) {
            l->v[k]->client_bytes = bytes;
            l->v[k]->client_held = held;
        }
    }
}

static bool is_large_client(const struct rpc_peer *p)
{
    return !p->trusted && p->unexplained >= RPC_PEERS_STALL_BYTES;
}

/* The one that is most likely to stall a thread first. */
static int by_size(const void *a, const void *b)
{
    const struct rpc_peer *p = *(struct rpc_peer *const *)a, *q = *(struct rpc_peer *const *)b;
    bool p_first = is_large_client(p), q_first = is_large_client(q);
    if (p_first != q_first)
        return p_first ? -1 : 1;
    return (p->unexplained < q->unexplained) - (p->unexplained > q->unexplained);
}

/* The order in which they end if they have too many bytes. */
static int by_client_size(const void *a, const void *b)
{
    const struct rpc_peer *p = *(struct rpc_peer *const *)a, *q = *(struct rpc_peer *const *)b;
    bool p_first = !p->trusted && p->client_bytes >= RPC_PEERS_STALL_BYTES;
    bool q_first = !q->trusted && q->client_bytes >= RPC_PEERS_STALL_BYTES;
    if (p_first != q_first)
        return p_first ? -1 : 1;
    if (p->is_settled != q->is_settled)
        return p->is_settled ? 1 : -1;
    if (p->client_held != q->client_held)
        return p->client_held < q->client_held ? 1 : -1;
    if (p->client_bytes != q->client_bytes)
        return p->client_bytes < q->client_bytes ? 1 : -1;
    return (p->unexplained < q->unexplained) - (p->unexplained > q->unexplained);
}

/* One connection per RPC_PEERS_STALL_US, since the thread needs time to continue. Together with it
 * end the others by which its client could continue the stall. */
static void end_stall(struct rpc_peers *ps, struct list *l, int64_t stalled_us, int64_t now_us)
{
    int64_t since_us = stalled_us > ps->stall_ended_us ? stalled_us : ps->stall_ended_us;
    if (now_us - since_us < RPC_PEERS_STALL_US || !l->n)
        return;
    struct rpc_peer *largest = l->v[0];
    for (unsigned i = 1; i < l->n; i++)
        largest = by_size(&l->v[i], &largest) < 0 ? l->v[i] : largest;
    if (largest->unexplained < RPC_PEERS_STALL_BYTES)
        return;
    for (unsigned i = 0; i < l->n; i++) {
        bool with_it = is_large_client(largest) && is_large_client(l->v[i]) &&
                       is_same_client(largest->client, l->v[i]->client);
        if (with_it || l->v[i] == largest)
            end_offender(ps, l->v[i], RPC_PEERS_STALL, now_us);
    }
    ps->stall_ended_us = now_us;
    drop_ended(l);
}

/* Those of clients, or of services too. */
static uint64_t sum_bytes(const struct list *l, bool services)
{
    uint64_t sum = 0;
    for (unsigned i = 0; i < l->n; i++)
        sum += services || !l->v[i]->trusted ? l->v[i]->unexplained : 0;
    return sum;
}

static void end_bytes(struct rpc_peers *ps, struct list *l, bool services, uint64_t max,
                      int64_t now_us)
{
    uint64_t sum = sum_bytes(l, services);
    if (sum <= max)
        return;
    qsort(l->v, l->n, sizeof(*l->v), by_client_size);
    for (unsigned i = 0; i < l->n && sum > max; i++) {
        if (!services && l->v[i]->trusted)
            continue;
        sum -= l->v[i]->unexplained;
        if (l->v[i]->client_bytes >= ps->client_bytes / 4)
            end_offender(ps, l->v[i], RPC_PEERS_BYTES, now_us);
        l->v[i]->end = RPC_PEERS_BYTES;
    }
    drop_ended(l);
}

/* malloc keeps what the ended connections free, so later growth counts from here. */
static void end_growth(struct rpc_peers *ps, struct list *l, int64_t now_us)
{
    uint64_t sum = sum_bytes(l, false);
    if (sum < RPC_PEERS_STALL_BYTES || ps->memory < ps->memory_before)
        ps->memory_before = ps->memory;
    if (ps->memory - ps->memory_before <= RPC_PEERS_GROWTH_MAX)
        return;
    ps->memory_before = ps->memory;
    end_bytes(ps, l, false, sum / 2, now_us);
}

static bool have_many_bytes(const struct rpc_peers *ps, const struct list *l)
{
    return sum_bytes(l, false) > ps->client_bytes / 4 ||
           ps->memory - ps->memory_before > RPC_PEERS_GROWTH_MAX / 4;
}

/* The most useful one first: a settled one, with a running call, with any call, the last used. */
static int by_use(const struct rpc_peer *p, const struct rpc_peer *q)
{
    if (p->is_settled != q->is_settled)
        return p->is_settled ? -1 : 1;
    if (!p->n_calls != !q->n_calls)
        return p->n_calls ? -1 : 1;
    if (p->called != q->called)
        return p->called ? -1 : 1;
    return (p->used_us < q->used_us) - (p->used_us > q->used_us);
}

static int by_client(const void *a, const void *b)
{
    const struct rpc_peer *p = *(struct rpc_peer *const *)a, *q = *(struct rpc_peer *const *)b;
    int order = by_name(a, b);
    return order ? order : by_use(p, q);
}

static int by_rank(const void *a, const void *b)
{
    const struct rpc_peer *p = *(struct rpc_peer *const *)a, *q = *(struct rpc_peer *const *)b;
    return p->rank != q->rank ? (p->rank < q->rank ? 1 : -1) : by_use(q, p);
}

/* A client with too many connections, and the one with most, lose their least useful ones. */
static void end_crowd(struct rpc_peers *ps, struct list *l)
{
    if (l->n <= ps->max_connections && l->n <= RPC_PEERS_CROWD_MAX)
        return;
    qsort(l->v, l->n, sizeof(*l->v), by_client);
    for (unsigned i = 0; i < l->n; i++) {
        bool first = i == 0 || by_name(&l->v[i - 1], &l->v[i]) != 0;
        l->v[i]->rank = first ? 0 : l->v[i - 1]->rank + 1;
    }
    qsort(l->v, l->n, sizeof(*l->v), by_rank);
    for (unsigned i = 0; i < l->n; i++) {
        if (l->v[i]->rank >= RPC_PEERS_CROWD_MAX || l->n - i > ps->max_connections)
            l->v[i]->end = RPC_PEERS_CROWD;
    }
}

unsigned rpc_peers_scan_end(struct rpc_peers *ps, int64_t stalled_us, int64_t now_us)
{
    pthread_mutex_lock(&ps->mu);
    remove_old(ps, now_us - RPC_PEERS_KEPT_US);
    mark_gone(ps);
    struct list l = list_seen(ps);
    sum_clients(&l);
    end_stall(ps, &l, stalled_us, now_us);
    end_growth(ps, &l, now_us);
    end_bytes(ps, &l, false, ps->client_bytes, now_us);
    end_bytes(ps, &l, true, ps->client_bytes * RPC_PEERS_ALL_TIMES, now_us);
    ps->many_bytes = have_many_bytes(ps, &l);
    end_crowd(ps, &l);
    free(l.v);
    unsigned n_due = count_due(ps);
    pthread_mutex_unlock(&ps->mu);
    return n_due;
}

bool rpc_peers_many_bytes(struct rpc_peers *ps)
{
    pthread_mutex_lock(&ps->mu);
    bool many_bytes = ps->many_bytes;
    pthread_mutex_unlock(&ps->mu);
    return many_bytes;
}

enum rpc_peers_end rpc_peers_take(struct rpc_peers *ps, const struct rpc_peer_address *a,
                                  uint64_t cookie)
{
    pthread_mutex_lock(&ps->mu);
    struct rpc_peer *p = find(ps, a);
    bool due = p && !p->taken && !is_other(p->socket.cookie, cookie);
    enum rpc_peers_end end = due ? p->end : RPC_PEERS_KEEP;
    if (end)
        p->taken = true;
    pthread_mutex_unlock(&ps->mu);
    return end;
}

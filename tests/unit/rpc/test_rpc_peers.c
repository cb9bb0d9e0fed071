/* test_rpc_peers.c - which connections are ended, by their counts; the time is the test's. */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "base/mem.h"
#include "lib/lib.h"
#include "rpc/rpc_peers.h"

#define S 1000000
#define MAX_CONNECTIONS 3
#define MAX_BYTES 1000000
#define EACH RPC_PEERS_CALL_BYTES // bytes that a call without headers explains

static struct rpc_peers *peers;
static int64_t now_us;

static int setup(void **state)
{
    (void)state;
    now_us = 1000 * (int64_t)S;
    peers = rpc_peers_new(MAX_CONNECTIONS, MAX_BYTES);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    rpc_peers_free(peers);
    return 0;
}

static struct rpc_peer_address address(uint16_t port)
{
    struct rpc_peer_address a;
    assert_true(rpc_peer_address_read("ipv4:192.0.2.1:1", &a));
    a.port = port;
    return a;
}

/* bytes: of its message */
static struct rpc_peer *call(uint16_t port, size_t bytes)
{
    struct rpc_peer_address a = address(port);
    struct rpc_peer *p = rpc_peers_call(peers, &a, &(struct rpc_peer_call){0}, now_us);
    if (p && bytes)
        rpc_peer_message(peers, p, bytes);
    return p;
}

static void saw(uint16_t port, uint64_t received, uint64_t acked)
{
    struct rpc_peer_address a = address(port);
    const struct rpc_peer_socket socket = {.received = received, .acked = acked};
    rpc_peers_saw(peers, &a, &socket, now_us);
}

static enum rpc_peers_end take(uint16_t port)
{
    struct rpc_peer_address a = address(port);
    return rpc_peers_take(peers, &a, 0);
}

/* A scan that sees one connection. Returns why it ends. */
static enum rpc_peers_end scan(uint64_t received, uint64_t acked)
{
    rpc_peers_scan_begin(peers);
    saw(1, received, acked);
    unsigned n = rpc_peers_scan_end(peers, now_us, now_us);
    enum rpc_peers_end end = take(1);
    assert_int_equal(n, end != RPC_PEERS_KEEP);
    return end;
}

static void must_read(const char *text, const char *want)
{
    struct rpc_peer_address a;
    char out[RPC_PEER_ADDRESS_MAX];
    assert_true(rpc_peer_address_read(text, &a));
    assert_string_equal(rpc_peer_address_text(&a, out), want);
}

static void addresses_of_grpc_core_are_read(void **state)
{
    (void)state;
    struct rpc_peer_address a;
    must_read("ipv4:192.0.2.7:65535", "192.0.2.7:65535");
    must_read("ipv6:%5B2001:db8::1%5D:80", "[2001:db8::1]:80");
    must_read("ipv6:%5Bfe80::1%25eth0%5D:80", "[fe80::1]:80");
    static const char *const others[] = {"unix:", "unix:/a/b", "fd:3",         "",
                                         "ipv4:", "ipv4:x:1",  "ipv4:1.2.3:4", "ipv6:%5B%5D:1"};
    for (size_t i = 0; i < ARRAY_LEN(others); i++)
        assert_false(rpc_peer_address_read(others[i], &a));
}

static void addresses_of_sockets_are_the_same(void **state)
{
    (void)state;
    struct rpc_peer_address a, b;
    struct sockaddr_storage s = {0};
    struct sockaddr_in *v4 = (struct sockaddr_in *)&s;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&s;
    assert_false(rpc_peer_address_of(&s, &a));
    *v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(77)};
    assert_int_equal(inet_pton(AF_INET, "192.0.2.7", &v4->sin_addr), 1);
    assert_true(rpc_peer_address_of(&s, &a) && rpc_peer_address_read("ipv4:192.0.2.7:77", &b));
    assert_memory_equal(&a, &b, sizeof(a));
    *v6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(77)};
    assert_int_equal(inet_pton(AF_INET6, "::ffff:192.0.2.7", &v6->sin6_addr), 1);
    assert_true(rpc_peer_address_of(&s, &a)); // IPv4 at an IPv6 socket
    assert_memory_equal(&a, &b, sizeof(a));
}

static unsigned reset_until_end(struct rpc_peer *p, unsigned at_most)
{
    for (unsigned n = 1; n <= at_most; n++) {
        if (rpc_peer_reset(peers, p, now_us))
            return n;
    }
    return 0;
}

static void refusals_that_are_not_read_end_a_connection(void **state)
{
    (void)state;
    struct rpc_peer *p = call(1, 0);
    assert_int_equal(scan(0, 0), RPC_PEERS_KEEP);
    for (unsigned i = 0; i < 3 * RPC_PEERS_REFUSED_MAX; i++) { // these are read
        assert_false(rpc_peer_refused(peers, p, now_us));
        rpc_peer_refused_done(peers, p);
    }
    for (unsigned i = 0; i < RPC_PEERS_REFUSED_MAX; i++)
        assert_false(rpc_peer_refused(peers, p, now_us));
    assert_true(rpc_peer_refused(peers, p, now_us));
    assert_false(rpc_peer_refused(peers, p, now_us)); // once only
    assert_null(call(1, 0));
    assert_int_equal(scan(0, 0), RPC_PEERS_REFUSED);
    for (unsigned i = 0; i < RPC_PEERS_REFUSED_MAX + 2; i++)
        rpc_peer_refused_done(peers, p);
    rpc_peer_done(peers, p, now_us);
}

static void resets_end_a_connection_and_make_its_other_calls_void(void **state)
{
    (void)state;
    struct rpc_peer *p = call(1, 0), *other = call(2, 0);
    assert_int_equal(scan(0, 0), RPC_PEERS_KEEP);
    assert_int_equal(reset_until_end(p, 9000), RPC_PEERS_RESETS_BURST + 1);
    assert_false(rpc_peer_reset(peers, p, now_us)); // once only
    assert_null(call(1, 0));
    assert_int_equal(scan(0, 0), RPC_PEERS_RESETS);
    assert_int_equal(scan(0, 0), RPC_PEERS_KEEP); // once only
    assert_false(rpc_peer_reset(peers, other, now_us));
    rpc_peer_done(peers, p, now_us);
    rpc_peer_done(peers, other, now_us);
}

/* Of all connections of a client together. */
static void cheap_calls_have_a_rate(void **state)
{
    (void)state;
    struct rpc_peer *p[] = {call(1, 0), call(2, 0)};
    for (int i = 0; i < RPC_PEERS_CHEAP_BURST + 2 * RPC_PEERS_CHEAP_FIRST; i++)
        rpc_peer_cheap(peers, p[i % 2], now_us);
    now_us += S / RPC_PEERS_CHEAP_PER_S;
    rpc_peer_cheap(peers, p[0], now_us);
    assert_int_equal(take(2), RPC_PEERS_KEEP);
    rpc_peer_cheap(peers, p[1], now_us);
    assert_int_equal(take(2), RPC_PEERS_CHEAP);
    rpc_peer_cheap(peers, p[1], now_us);
    assert_int_equal(take(2), RPC_PEERS_KEEP); // it is being ended
    assert_int_equal(take(1), RPC_PEERS_KEEP);
    for (int i = 0; i < 2; i++)
        rpc_peer_done(peers, p[i], now_us);
}

/* Good clients may share the address, and connect again. */
static void cheap_calls_ban_nobody(void **state)
{
    (void)state;
    for (uint16_t port = 2; port < 5; port++) {
        struct rpc_peer *p = call(port, 0);
        assert_non_null(p);
        for (int i = 0; i <= RPC_PEERS_CHEAP_BURST + RPC_PEERS_CHEAP_FIRST; i++)
            rpc_peer_cheap(peers, p, now_us);
        rpc_peer_done(peers, p, now_us);
        assert_int_equal(take(port), RPC_PEERS_CHEAP);
    }
    assert_false(rpc_peers_any_banned(peers, now_us));
}

/* So a gateway connects while another client makes too many. */
static void the_first_cheap_calls_of_a_connection_are_free(void **state)
{
    (void)state;
    struct rpc_peer *p[] = {call(1, 0), call(2, 0)};
    for (int i = 0; i <= RPC_PEERS_CHEAP_BURST + RPC_PEERS_CHEAP_FIRST; i++)
        rpc_peer_cheap(peers, p[0], now_us);
    assert_int_equal(take(1), RPC_PEERS_CHEAP);
    for (int i = 0; i < RPC_PEERS_CHEAP_FIRST; i++)
        rpc_peer_cheap(peers, p[1], now_us);
    assert_int_equal(take(2), RPC_PEERS_KEEP);
    rpc_peer_cheap(peers, p[1], now_us);
    assert_int_equal(take(2), RPC_PEERS_CHEAP);
    for (int i = 0; i < 2; i++)
        rpc_peer_done(peers, p[i], now_us);
}

/* A scan that sees the connections with these ports. Returns how many of them are settled. */
static unsigned scan_settled(uint16_t from, uint16_t to)
{
    unsigned n = 0;
    rpc_peers_scan_begin(peers);
    for (uint16_t port = from; port <= to; port++) {
        struct rpc_peer_address a = address(port);
        n += rpc_peers_saw(peers, &a, &(struct rpc_peer_socket){0}, now_us) > 0;
    }
    rpc_peers_scan_end(peers, now_us, now_us);
    return n;
}

static void call_once(uint16_t from, uint16_t to)
{
    for (uint16_t port = from; port <= to; port++)
        rpc_peer_done(peers, call(port, 0), now_us);
}

static void old_connections_with_calls_are_settled(void **state)
{
    (void)state;
    teardown(NULL);
    peers = rpc_peers_new(100, MAX_BYTES);
    call_once(1, 1);
    now_us += RPC_PEERS_SETTLED_US - 1;
    assert_int_equal(scan_settled(1, 2), 0);
    now_us++;
    assert_int_equal(scan_settled(1, 2), 1);
    now_us += RPC_PEERS_SETTLED_US;
    assert_int_equal(scan_settled(2, 2), 0); // without a call
    call_once(2, 2);
    assert_int_equal(scan_settled(2, 2), 1);
}

/* A gateway cancels the calls of its clients. */
static void a_settled_connection_may_reset_calls(void **state)
{
    (void)state;
    struct rpc_peer *p = call(1, 0);
    assert_int_equal(scan_settled(1, 1), 0);
    now_us += RPC_PEERS_SETTLED_US;
    assert_int_equal(scan_settled(1, 1), 1);
    assert_int_equal(reset_until_end(p, 3 * RPC_PEERS_RESETS_BURST), 0);
    assert_int_equal(scan_settled(1, 1), 1);
    rpc_peer_done(peers, p, now_us);
}

static void the_client_with_most_bytes_gives_way(void **state)
{
    enum { N = 9, PART = MAX_BYTES / 10 };
    (void)state;
    struct rpc_peer_address one;
    const struct rpc_peer_socket socket = {.received = 3 * PART}; // the largest connection
    assert_true(rpc_peer_address_read("ipv4:192.0.2.2:1", &one));
    rpc_peers_scan_begin(peers);
    rpc_peers_saw(peers, &one, &socket, now_us);
    for (int i = 1; i <= N; i++)
        saw((uint16_t)i, PART, 0);
    rpc_peers_scan_end(peers, now_us, now_us);
    unsigned n_bytes = 0;
    for (int i = 1; i <= N; i++)
        n_bytes += take((uint16_t)i) == RPC_PEERS_BYTES;
    assert_int_equal(n_bytes, 2);
    assert_int_not_equal(rpc_peers_take(peers, &one, 0), RPC_PEERS_BYTES);
}

static void few_connections_of_a_client_are_settled(void **state)
{
    enum { N = RPC_PEERS_SETTLED_MAX };
    (void)state;
    teardown(NULL);
    peers = rpc_peers_new(100, MAX_BYTES);
    struct rpc_peer_address elsewhere;
    assert_true(rpc_peer_address_read("ipv4:192.0.2.2:1", &elsewhere));
    call_once(1, N + 5);
    now_us += RPC_PEERS_SETTLED_US;
    assert_int_equal(scan_settled(1, N + 5), N);
    assert_int_equal(scan_settled(N + 1, N + 5), 0); // the others are closed now
    assert_int_equal(scan_settled(N + 1, N + 5), 5);
    rpc_peer_done(peers, rpc_peers_call(peers, &elsewhere, &(struct rpc_peer_call){0}, now_us),
                  now_us);
    now_us += RPC_PEERS_SETTLED_US;
    rpc_peers_scan_begin(peers);
    assert_int_equal(rpc_peers_saw(peers, &elsewhere, &(struct rpc_peer_socket){0}, now_us), 1);
    rpc_peers_scan_end(peers, now_us, now_us);
}

/* Of which they have equal shares. */
static void settled_connections_have_their_own_rate_of_cheap_calls(void **state)
{
    (void)state;
    struct rpc_peer *p[] = {call(1, 0), call(2, 0), NULL};
    now_us += RPC_PEERS_SETTLED_US;
    p[2] = call(3, 0);
    assert_int_equal(scan_settled(1, 3), 2);
    for (int i = 0; i <= RPC_PEERS_CHEAP_BURST + RPC_PEERS_CHEAP_FIRST; i++) // one too many
        rpc_peer_cheap(peers, p[2], now_us);
    for (int i = 0; i < RPC_PEERS_CHEAP_BURST / 2 + RPC_PEERS_CHEAP_FIRST; i++) {
        rpc_peer_cheap(peers, p[0], now_us);
        rpc_peer_cheap(peers, p[1], now_us);
    }
    rpc_peers_scan_begin(peers);
    for (uint16_t port = 1; port <= 3; port++)
        saw(port, 0, 0);
    assert_int_equal(rpc_peers_scan_end(peers, now_us, now_us), 1);
    assert_int_equal(take(3), RPC_PEERS_CHEAP);
    rpc_peer_cheap(peers, p[0], now_us);
    assert_int_equal(take(1), RPC_PEERS_CHEAP);
    for (int i = 0; i < 3; i++)
        rpc_peer_done(peers, p[i], now_us);
}

static void time_forgives_resets(void **state)
{
    (void)state;
    struct rpc_peer *p = call(1, 0);
    assert_int_equal(reset_until_end(p, RPC_PEERS_RESETS_BURST), 0);
    now_us += S;
    assert_int_equal(reset_until_end(p, RPC_PEERS_RESETS_PER_S), 0);
    now_us += 1000 * (int64_t)S; // forgives no more than there was
    assert_int_equal(reset_until_end(p, 9000), RPC_PEERS_RESETS_BURST + 1);
    rpc_peer_done(peers, p, now_us);
}

/* A clock that moves between the resets forgives as much as one that stands. */
static void single_resets_are_forgiven_at_the_same_rate(void **state)
{
    (void)state;
    struct rpc_peer *p = call(1, 0);
    unsigned n = 0;
    for (; n < 90000 && !rpc_peer_reset(peers, p, now_us); n++)
        now_us += S / (2 * RPC_PEERS_RESETS_PER_S) + 1;
    assert_in_range(n, 2 * RPC_PEERS_RESETS_BURST - 64, 2 * RPC_PEERS_RESETS_BURST + 64);
    rpc_peer_done(peers, p, now_us);
}

static void bytes_that_nothing_explains_end_a_connection(void **state)
{
    (void)state;
    assert_int_equal(scan(MAX_BYTES, 0), RPC_PEERS_KEEP);
    assert_int_equal(scan(MAX_BYTES + 1, 0), RPC_PEERS_BYTES);
}

static void calls_messages_and_answers_explain_bytes(void **state)
{
    (void)state;
    struct rpc_peer *p = call(1, 5120);
    uint64_t explained = EACH + 5120 + RPC_PEERS_MESSAGE_BYTES + 20;
    assert_int_equal(scan(MAX_BYTES + explained, 0), RPC_PEERS_KEEP);
    rpc_peer_message(peers, p, 700);
    rpc_peer_sent(peers, p);
    explained += 700 + 2 + RPC_PEERS_MESSAGE_BYTES + RPC_PEERS_SENT_BYTES + 10;
    assert_int_equal(scan(MAX_BYTES + explained, 640), RPC_PEERS_KEEP);
    now_us += S / 2;
    explained += RPC_PEERS_IDLE_PER_S / 2;
    assert_int_equal(scan(MAX_BYTES + explained, 640), RPC_PEERS_KEEP);
    assert_int_equal(scan(MAX_BYTES + explained + 1, 640), RPC_PEERS_BYTES);
    rpc_peer_done(peers, p, now_us);
}

/* Sees the connection for the first time, after a call with these headers and no message. */
static enum rpc_peers_end scan_with_headers(size_t header_bytes, uint64_t received)
{
    struct rpc_peer_address a = address(1);
    struct rpc_peer_call c = {.header_bytes = header_bytes};
    struct rpc_peer *p = rpc_peers_call(peers, &a, &c, now_us);
    enum rpc_peers_end end = scan(received, 0);
    rpc_peer_done(peers, p, now_us);
    return end;
}

static void headers_explain_no_more_bytes_than_usual_ones_have(void **state)
{
    (void)state;
    assert_int_equal(scan_with_headers(100, MAX_BYTES + EACH + 100), RPC_PEERS_KEEP);
    uint64_t at_most = MAX_BYTES + 2 * EACH + 100 + RPC_PEERS_HEADER_BYTES;
    assert_int_equal(scan_with_headers(100000, at_most), RPC_PEERS_KEEP);
    assert_int_equal(scan_with_headers(0, at_most + EACH + 1), RPC_PEERS_BYTES);
}

static void calls_and_answers_explain_a_limited_number_of_bytes_per_second(void **state)
{
    enum { N = RPC_PEERS_CREDIT_PER_S / EACH, EXPLAINED = RPC_PEERS_CREDIT_PER_S };
    (void)state;
    struct rpc_peer *p = call(1, 3000000); // this is exact
    for (unsigned i = 0; i < 3 * N; i++) {
        rpc_peer_message(peers, p, 0);
        rpc_peer_sent(peers, p);
    }
    uint64_t received = 3000000 + EXPLAINED + MAX_BYTES, acked = (uint64_t)1 << 40;
    assert_int_equal(scan(received, acked), RPC_PEERS_KEEP);
    now_us += S / 2;
    for (unsigned i = 0; i < 3 * N; i++)
        rpc_peer_sent(peers, p);
    received += EXPLAINED / 2;
    assert_int_equal(scan(received, 2 * acked), RPC_PEERS_KEEP);
    assert_int_equal(scan(received + 1, 3 * acked), RPC_PEERS_BYTES);
    rpc_peer_done(peers, p, now_us);
}

static void explanations_do_not_count_for_later_bytes(void **state)
{
    (void)state;
    struct rpc_peer *p = call(1, 50000000);
    assert_int_equal(scan(100, 0), RPC_PEERS_KEEP);
    assert_int_equal(scan(100 + MAX_BYTES + 1, 0), RPC_PEERS_BYTES);
    rpc_peer_done(peers, p, now_us);
}

static void what_arrives_during_a_scan_counts_in_the_next_one(void **state)
{
    (void)state;
    struct rpc_peer *p = call(1, 0);
    rpc_peers_scan_begin(peers);
    rpc_peer_message(peers, p, 600000);
    saw(1, 0, 0); // read before the message had arrived
    assert_int_equal(rpc_peers_scan_end(peers, now_us, now_us), 0);
    assert_int_equal(scan(600000 + MAX_BYTES, 0), RPC_PEERS_KEEP);
    rpc_peer_done(peers, p, now_us);
}

static void a_connection_whose_first_call_comes_during_a_scan_keeps_its_account(void **state)
{
    (void)state;
    rpc_peers_scan_begin(peers);
    struct rpc_peer *p = call(1, 600000);
    assert_int_equal(rpc_peers_scan_end(peers, now_us, now_us), 0);
    assert_int_equal(scan(600000 + MAX_BYTES, 0), RPC_PEERS_KEEP);
    rpc_peer_done(peers, p, now_us);
}

/* The calls of the first one explain no bytes of the second one. */
static void a_connection_that_no_scan_has_seen_leaves_no_account(void **state)
{
    (void)state;
    rpc_peer_done(peers, call(1, 600000), now_us);
    rpc_peers_scan_begin(peers);
    assert_int_equal(rpc_peers_scan_end(peers, now_us, now_us), 0);
    assert_int_equal(scan(MAX_BYTES + 1, 0), RPC_PEERS_BYTES);
}

static void of_all_connections_that_with_most_bytes_ends(void **state)
{
    (void)state;
    rpc_peers_scan_begin(peers);
    saw(1, 400000, 0);
    saw(2, 500000, 0);
    saw(3, 400000, 0);
    assert_int_equal(rpc_peers_scan_end(peers, now_us, now_us), 1);
    assert_int_equal(take(1), RPC_PEERS_KEEP);
    assert_int_equal(take(2), RPC_PEERS_BYTES);
    assert_int_equal(take(3), RPC_PEERS_KEEP);
}

static void services_may_have_four_times_the_bytes_of_clients(void **state)
{
    (void)state;
    struct rpc_peer_address a = address(1);
    struct rpc_peer *p =
        rpc_peers_call(peers, &a, &(struct rpc_peer_call){.trusted = true}, now_us);
    const uint64_t most = EACH + 3 * MAX_BYTES;
    for (int more = 0; more < 2; more++) {
        rpc_peers_scan_begin(peers);
        saw(1, most, 0);
        saw(2, MAX_BYTES / 2 + 1, 0);
        saw(3, MAX_BYTES / 2 - 1 + more, 0);
        assert_int_equal(rpc_peers_scan_end(peers, now_us, now_us), more);
    }
    assert_int_equal(take(2), RPC_PEERS_BYTES);
    assert_int_equal(scan(most + MAX_BYTES, 0), RPC_PEERS_KEEP); // no other one is left
    assert_int_equal(scan(most + MAX_BYTES + 1, 0), RPC_PEERS_BYTES);
    rpc_peer_done(peers, p, now_us);
}

static void clients_with_a_quarter_of_their_bytes_have_many(void **state)
{
    (void)state;
    struct rpc_peer_address a = address(9);
    struct rpc_peer *p =
        rpc_peers_call(peers, &a, &(struct rpc_peer_call){.trusted = true}, now_us);
    assert_false(rpc_peers_many_bytes(peers));
    for (uint64_t more = 0; more < 2; more++) {
        rpc_peers_scan_begin(peers);
        saw(9, MAX_BYTES, 0); // of a service
        saw(1, MAX_BYTES / 8, 0);
        saw(2, MAX_BYTES / 8 + more, 0);
        assert_int_equal(rpc_peers_scan_end(peers, now_us, now_us), 0);
        assert_int_equal(rpc_peers_many_bytes(peers), more);
    }
    assert_int_equal(scan(2 * MAX_BYTES, 0), RPC_PEERS_BYTES);
    assert_false(rpc_peers_many_bytes(peers)); // the connection is ended
    rpc_peer_done(peers, p, now_us);
}

/* A scan of two clients and a service with these bytes. Returns the number of those to end. */
static unsigned scan_with_memory(uint64_t memory, uint64_t first, uint64_t second)
{
    rpc_peers_scan_begin(peers);
    saw(1, first, 0);
    saw(2, second, 0);
    saw(3, EACH + 4 * RPC_PEERS_STALL_BYTES, 0);
    rpc_peers_memory(peers, memory);
    return rpc_peers_scan_end(peers, now_us, now_us);
}

/* gRPC core may need 100 times their bytes. */
static void a_process_that_grows_ends_the_clients_with_most_bytes(void **state)
{
    enum { FEW = RPC_PEERS_STALL_BYTES / 2 };
    const uint64_t begin = (uint64_t)1 << 33, most = begin + RPC_PEERS_GROWTH_MAX;
    (void)state;
    struct rpc_peer_address a = address(3);
    rpc_peers_free(peers);
    peers = rpc_peers_new(MAX_CONNECTIONS, 9 * FEW);
    struct rpc_peer *service =
        rpc_peers_call(peers, &a, &(struct rpc_peer_call){.trusted = true}, now_us);
    assert_int_equal(scan_with_memory(2 * begin, FEW, FEW), 0); // the first one
    assert_int_equal(scan_with_memory(0, FEW, FEW), 0);
    assert_int_equal(scan_with_memory(RPC_PEERS_GROWTH_MAX / 4, FEW, FEW), 0);
    assert_false(rpc_peers_many_bytes(peers));
    assert_int_equal(scan_with_memory(RPC_PEERS_GROWTH_MAX / 4 + 1, FEW, FEW), 0);
    assert_true(rpc_peers_many_bytes(peers));
    assert_int_equal(take(1), RPC_PEERS_KEEP);
    rpc_peer_done(peers, service, now_us);
    rpc_peers_free(peers);
    peers = rpc_peers_new(MAX_CONNECTIONS, 9 * FEW);
    service = rpc_peers_call(peers, &a, &(struct rpc_peer_call){.trusted = true}, now_us);
    assert_int_equal(scan_with_memory(0, 0, 0), 0);
    assert_int_equal(scan_with_memory(begin, FEW - 1, FEW), 0); // it does not grow by these
    assert_int_equal(scan_with_memory(most, FEW, FEW + 1), 0);
    assert_int_equal(scan_with_memory(most + 1, FEW, FEW + 1), 1);
    assert_int_equal(take(1), RPC_PEERS_KEEP);
    assert_int_equal(take(2), RPC_PEERS_BYTES);
    assert_int_equal(take(3), RPC_PEERS_KEEP);
    assert_int_equal(scan_with_memory(most + 1, 2 * FEW, FEW + 1), 0); // grown no more since
    assert_int_equal(scan_with_memory(most + 2 + RPC_PEERS_GROWTH_MAX, 2 * FEW, FEW + 1), 1);
    assert_int_equal(take(1), RPC_PEERS_BYTES);
    assert_int_equal(take(3), RPC_PEERS_KEEP);
    rpc_peer_done(peers, service, now_us);
}

/* Sees one connection, while a thread is stalled since the time given. */
static enum rpc_peers_end stalled_scan(int64_t stalled_us, uint64_t received)
{
    rpc_peers_scan_begin(peers);
    saw(1, received, 0);
    rpc_peers_scan_end(peers, stalled_us, now_us);
    return take(1);
}

static void a_stalled_thread_ends_the_connection_with_most_bytes(void **state)
{
    (void)state;
    rpc_peers_free(peers);
    peers = rpc_peers_new(MAX_CONNECTIONS, 10 * RPC_PEERS_STALL_BYTES);
    int64_t early_us = now_us - RPC_PEERS_STALL_US;
    assert_int_equal(stalled_scan(early_us, RPC_PEERS_STALL_BYTES - 1), RPC_PEERS_KEEP);
    assert_int_equal(stalled_scan(early_us + 1, RPC_PEERS_STALL_BYTES), RPC_PEERS_KEEP);
    assert_int_equal(stalled_scan(early_us, RPC_PEERS_STALL_BYTES), RPC_PEERS_STALL);
}

static struct rpc_peer_address address_of(const char *text)
{
    struct rpc_peer_address a;
    assert_true(rpc_peer_address_read(text, &a));
    return a;
}

static void saw_at(const char *text, uint64_t received)
{
    struct rpc_peer_address a = address_of(text);
    rpc_peers_saw(peers, &a, &(struct rpc_peer_socket){.received = received}, now_us);
}

static enum rpc_peers_end take_at(const char *text)
{
    struct rpc_peer_address a = address_of(text);
    return rpc_peers_take(peers, &a, 0);
}

/* The client could continue the stall by its other connections. */
static void a_stall_ends_all_large_connections_of_the_client(void **state)
{
    enum { MANY = RPC_PEERS_STALL_BYTES };
    (void)state;
    struct rpc_peer_address a = address(4);
    rpc_peers_free(peers);
    peers = rpc_peers_new(9, 20 * MANY);
    struct rpc_peer *service =
        rpc_peers_call(peers, &a, &(struct rpc_peer_call){.trusted = true}, now_us);
    rpc_peers_scan_begin(peers);
    saw(1, MANY - 1, 0);
    saw(2, MANY, 0);
    saw(3, 3 * MANY, 0);
    saw(4, 9 * MANY, 0);
    saw_at("ipv4:192.0.2.2:1", 2 * MANY);
    assert_int_equal(rpc_peers_scan_end(peers, now_us - RPC_PEERS_STALL_US, now_us), 2);
    assert_int_equal(take(1), RPC_PEERS_KEEP);
    assert_int_equal(take(2), RPC_PEERS_STALL);
    assert_int_equal(take(3), RPC_PEERS_STALL);
    assert_int_equal(take(4), RPC_PEERS_KEEP);
    assert_int_equal(take_at("ipv4:192.0.2.2:1"), RPC_PEERS_KEEP);
    rpc_peer_done(peers, service, now_us);
}

/* They pass on what many clients send. */
static void a_stall_ends_one_connection_of_a_service(void **state)
{
    (void)state;
    rpc_peers_free(peers);
    peers = rpc_peers_new(MAX_CONNECTIONS, 10 * RPC_PEERS_STALL_BYTES);
    rpc_peers_scan_begin(peers);
    for (uint16_t i = 1; i <= 2; i++) {
        struct rpc_peer_address a = address(i);
        const struct rpc_peer_call c = {.trusted = true};
        rpc_peer_done(peers, rpc_peers_call(peers, &a, &c, now_us), now_us);
        saw(i, (1 + i) * RPC_PEERS_STALL_BYTES, 0);
    }
    assert_int_equal(rpc_peers_scan_end(peers, now_us - RPC_PEERS_STALL_US, now_us), 1);
    assert_int_equal(take(1), RPC_PEERS_KEEP);
    assert_int_equal(take(2), RPC_PEERS_STALL);
}

static void a_stall_ends_the_connections_of_one_client_at_a_time(void **state)
{
    static const char *const of_client[] = {"ipv4:192.0.2.1:1", "ipv4:192.0.2.2:1"};
    (void)state;
    rpc_peers_free(peers);
    peers = rpc_peers_new(MAX_CONNECTIONS, 10 * RPC_PEERS_STALL_BYTES);
    int64_t stalled_us = now_us - RPC_PEERS_STALL_US;
    for (int want = 1; want >= 0; want--, now_us += RPC_PEERS_STALL_US) {
        for (int i = 0; i < 2; i++) {
            rpc_peers_scan_begin(peers);
            saw_at(of_client[0], 2 * RPC_PEERS_STALL_BYTES);
            saw_at(of_client[1], 2 * RPC_PEERS_STALL_BYTES + 1);
            assert_int_equal(rpc_peers_scan_end(peers, stalled_us, now_us), i == 0);
            assert_int_equal(take_at(of_client[want]), i == 0 ? RPC_PEERS_STALL : RPC_PEERS_KEEP);
        }
    }
}

/* Scans connections of several clients. received: what each has sent, from this port. */
static unsigned scan_clients(unsigned n, unsigned port, const uint64_t received[])
{
    char text[40];
    rpc_peers_scan_begin(peers);
    for (unsigned i = 0; i < n; i++) {
        snprintf(text, sizeof(text), "ipv4:192.0.2.%u:%u", i, port);
        struct rpc_peer_address a = address_of(text);
        rpc_peer_done(peers, rpc_peers_call(peers, &a, &(struct rpc_peer_call){0}, now_us), now_us);
        saw_at(text, received[i]);
    }
    return rpc_peers_scan_end(peers, now_us, now_us);
}

/* Clients hold parts of messages, and one sends a larger message that arrives soon. */
static void what_clients_hold_ends_before_what_is_on_its_way(void **state)
{
    enum { N = 4, SENT = MAX_BYTES / 3, HELD = MAX_BYTES / 4 - 5000 };
    (void)state;
    rpc_peers_free(peers);
    peers = rpc_peers_new(N, MAX_BYTES);
    for (unsigned port = 1; port <= 2; port++) {
        uint64_t received[N] = {0, HELD, HELD + 1000, HELD};
        for (unsigned i = 0; i < 40; i++, now_us += S / 10)
            assert_int_equal(scan_clients(N, port, received), 0);
        received[0] = SENT;
        assert_int_equal(scan_clients(N, port, received), 1);
        assert_int_equal(take_at(port == 1 ? "ipv4:192.0.2.2:1" : "ipv4:192.0.2.2:2"),
                         RPC_PEERS_BYTES);
    }
    assert_false(rpc_peers_any_banned(peers, now_us)); // it had less than a quarter
}

/* A gateway of another user, with large prompts, and new clients. */
static void a_settled_connection_ends_after_new_ones(void **state)
{
    enum { N = 4, SENT = MAX_BYTES / 2, LESS = MAX_BYTES / 5 };
    (void)state;
    rpc_peers_free(peers);
    peers = rpc_peers_new(N, MAX_BYTES);
    for (unsigned i = 0; i < 40; i++, now_us += S / 10)
        assert_int_equal(scan_clients(1, 1, (uint64_t[]){0}), 0);
    assert_int_equal(scan_clients(N, 1, (uint64_t[]){SENT, LESS, LESS + 1000, LESS}), 1);
    assert_int_equal(take_at("ipv4:192.0.2.2:1"), RPC_PEERS_BYTES);
}

static void of_too_many_connections_those_without_calls_end(void **state)
{
    (void)state;
    struct rpc_peer *running = call(1, 0);
    rpc_peer_done(peers, call(2, 0), now_us);
    rpc_peers_scan_begin(peers);
    for (uint16_t i = 5; i >= 1; i--, now_us += S)
        saw(i, 0, 0); // of those without a call, 5 is the oldest
    assert_int_equal(rpc_peers_scan_end(peers, now_us, now_us), 2);
    assert_int_equal(take(5), RPC_PEERS_CROWD);
    assert_int_equal(take(4), RPC_PEERS_CROWD);
    for (uint16_t i = 1; i <= 3; i++)
        assert_int_equal(take(i), RPC_PEERS_KEEP);
    rpc_peer_done(peers, running, now_us);
}

static void connections_with_running_calls_end_last(void **state)
{
    (void)state;
    struct rpc_peer *p[MAX_CONNECTIONS];
    for (uint16_t i = 0; i < MAX_CONNECTIONS; i++, now_us += S)
        p[i] = call(i, 0);
    rpc_peer_done(peers, call(9, 0), now_us);
    rpc_peers_scan_begin(peers);
    for (uint16_t i = 0; i < 10; i++)
        saw(i, 0, 0);
    assert_int_equal(rpc_peers_scan_end(peers, now_us, now_us), 10 - MAX_CONNECTIONS);
    for (uint16_t i = 0; i < MAX_CONNECTIONS; i++) {
        assert_int_equal(take(i), RPC_PEERS_KEEP);
        rpc_peer_done(peers, p[i], now_us);
    }
}

/* One address has running calls on all connections; another one opens its first. */
static void of_too_many_connections_those_of_the_address_with_most_end(void **state)
{
    (void)state;
    struct rpc_peer_address other = address_of("ipv4:192.0.2.2:1");
    struct rpc_peer *p[MAX_CONNECTIONS];
    rpc_peers_scan_begin(peers);
    for (uint16_t i = 0; i < MAX_CONNECTIONS; i++, now_us += S) {
        p[i] = call(i, 0);
        saw(i, 0, 0);
    }
    rpc_peers_saw(peers, &other, &(struct rpc_peer_socket){0}, now_us);
    assert_int_equal(rpc_peers_scan_end(peers, now_us, now_us), 1);
    assert_int_equal(rpc_peers_take(peers, &other, 0), RPC_PEERS_KEEP);
    assert_int_equal(take(0), RPC_PEERS_CROWD);
    for (uint16_t i = 0; i < MAX_CONNECTIONS; i++)
        rpc_peer_done(peers, p[i], now_us);
}

static void a_client_has_few_connections(void **state)
{
    enum { N = RPC_PEERS_CROWD_MAX + 20, OTHERS = 5 };
    (void)state;
    rpc_peers_free(peers);
    peers = rpc_peers_new(2 * N, MAX_BYTES);
    rpc_peers_scan_begin(peers);
    for (unsigned i = 0; i < N; i++)
        saw((uint16_t)i, 0, 0);
    for (unsigned i = 0; i < OTHERS; i++) {
        char text[40];
        snprintf(text, sizeof(text), "ipv4:192.0.2.2:%u", i);
        saw_at(text, 0);
    }
    assert_int_equal(rpc_peers_scan_end(peers, now_us, now_us), N - RPC_PEERS_CROWD_MAX);
    unsigned n = 0;
    for (unsigned i = 0; i < N; i++)
        n += take((uint16_t)i) == RPC_PEERS_CROWD;
    assert_int_equal(n, N - RPC_PEERS_CROWD_MAX);
}

/* Connections of one address, which all run a call. A gateway that runs none now has the address,
 * too: one that is settled, or a service. */
static void a_crowd_of_its_address_does_not_end_a_gateway(void **state)
{
    enum { N = RPC_PEERS_CROWD_MAX + 5, GATEWAY = N };
    (void)state;
    for (int trusted = 0; trusted < 2; trusted++) {
        struct rpc_peer_address a = address(GATEWAY);
        struct rpc_peer *p[N];
        rpc_peers_free(peers);
        peers = rpc_peers_new(2 * N, MAX_BYTES);
        rpc_peer_done(peers, rpc_peers_call(peers, &a, &(struct rpc_peer_call){0, trusted}, now_us),
                      now_us);
        now_us += trusted ? 1 : RPC_PEERS_SETTLED_US;
        for (unsigned turn = 0; turn < 2; turn++) {
            rpc_peers_scan_begin(peers);
            saw(GATEWAY, 0, 0);
            for (unsigned i = 0; i < N * turn; i++) {
                p[i] = call((uint16_t)i, 0);
                saw((uint16_t)i, 0, 0);
            }
            unsigned n_ends = turn ? N - RPC_PEERS_CROWD_MAX + !trusted : 0;
            assert_int_equal(rpc_peers_scan_end(peers, now_us, now_us), n_ends);
        }
        assert_int_equal(take(GATEWAY), RPC_PEERS_KEEP);
        for (unsigned i = 0; i < N; i++)
            rpc_peer_done(peers, p[i], now_us);
    }
}

/* Addresses that an attacker chooses: in each pair of bytes, 31 times the first and the second give
 * the same sum. */
static struct rpc_peer_address chosen_address(unsigned i)
{
    struct rpc_peer_address a = {.port = 1};
    for (unsigned k = 4; k < sizeof(a.ip); k += 2, i /= 8) {
        a.ip[k] = i % 8;
        a.ip[k + 1] = (uint8_t)(248 - 31 * (i % 8));
    }
    return a;
}

static void a_scan_of_many_connections_takes_little_time(void **state)
{
    enum { N = 20000 };
    (void)state;
    clock_t begin = clock(); // of the CPU
    rpc_peers_scan_begin(peers);
    for (unsigned i = 0; i < N; i++) {
        struct rpc_peer_address a = chosen_address(i);
        rpc_peers_saw(peers, &a, &(struct rpc_peer_socket){.received = 100}, now_us);
    }
    assert_int_equal(rpc_peers_scan_end(peers, now_us, now_us), N - MAX_CONNECTIONS);
    assert_true(clock() - begin < CLOCKS_PER_SEC / 2);
}

static void many_connections_with_many_bytes_end_in_little_time(void **state)
{
    enum { N = 20000 };
    (void)state;
    rpc_peers_free(peers);
    peers = rpc_peers_new(N, MAX_BYTES);
    clock_t begin = clock(); // of the CPU
    rpc_peers_scan_begin(peers);
    for (unsigned i = 0; i < N; i++) {
        struct rpc_peer_address a = chosen_address(i);
        rpc_peers_saw(peers, &a, &(struct rpc_peer_socket){.received = 100}, now_us);
    }
    assert_int_equal(rpc_peers_scan_end(peers, now_us, now_us), N - MAX_BYTES / 100);
    assert_true(clock() - begin < CLOCKS_PER_SEC / 2);
}

/* An ended connection that later scans do not see. */
static void end_and_lose(struct rpc_peer *p)
{
    assert_int_equal(scan(500, 0), RPC_PEERS_KEEP);
    assert_true(reset_until_end(p, 9000));
    assert_int_equal(scan(500, 0), RPC_PEERS_RESETS);
    rpc_peers_scan_begin(peers);
    rpc_peers_scan_end(peers, now_us, now_us);
}

static void late_calls_of_an_ended_connection_are_void(void **state)
{
    (void)state;
    struct rpc_peer *p = call(1, 0);
    end_and_lose(p);
    assert_null(call(1, 0));
    rpc_peer_done(peers, p, now_us);
    now_us += RPC_PEERS_KEPT_US; // then it is forgotten
    rpc_peers_scan_begin(peers);
    rpc_peers_scan_end(peers, now_us, now_us);
    assert_non_null(p = call(1, 0));
    rpc_peer_done(peers, p, now_us);
}

static void a_new_connection_with_the_address_of_an_ended_one_is_served(void **state)
{
    (void)state;
    struct rpc_peer *p = call(1, 0), *next;
    end_and_lose(p);
    assert_int_equal(scan(100, 0), RPC_PEERS_KEEP); // fewer bytes than the old one had sent
    assert_non_null(next = call(1, 0));
    rpc_peer_done(peers, next, now_us);
    rpc_peer_done(peers, p, now_us);
}

/* The connection of a service, and one of a client. Returns which ends: 1, 2 or none. */
static uint16_t end_of_two(uint64_t by_service, uint64_t by_client, int64_t stalled_us)
{
    struct rpc_peer_address a = address(1);
    rpc_peer_done(
        peers, rpc_peers_call(peers, &a, &(struct rpc_peer_call){.trusted = true}, now_us), now_us);
    rpc_peers_scan_begin(peers);
    saw(1, EACH + by_service, 0);
    saw(2, by_client, 0);
    rpc_peers_scan_end(peers, stalled_us, now_us);
    enum rpc_peers_end service = take(1), client = take(2);
    assert_true(!service || !client);
    return service ? 1 : client ? 2 : 0;
}

static void a_service_is_ended_only_if_no_client_has_many_bytes(void **state)
{
    enum { MANY = RPC_PEERS_STALL_BYTES };
    (void)state;
    int64_t early_us = now_us - RPC_PEERS_STALL_US;
    rpc_peers_free(peers);
    peers = rpc_peers_new(MAX_CONNECTIONS, 9 * MANY / RPC_PEERS_ALL_TIMES);
    assert_int_equal(end_of_two(8 * MANY, MANY, now_us), 0);
    assert_int_equal(end_of_two(8 * MANY, 2 * MANY, now_us), 2);
    rpc_peers_free(peers);
    peers = rpc_peers_new(MAX_CONNECTIONS, 9 * MANY / RPC_PEERS_ALL_TIMES);
    assert_int_equal(end_of_two(9 * MANY, MANY - 1, now_us), 1);
    rpc_peers_free(peers);
    peers = rpc_peers_new(MAX_CONNECTIONS, 9 * MANY / RPC_PEERS_ALL_TIMES);
    assert_int_equal(end_of_two(4 * MANY, MANY, early_us), 2);
    now_us += RPC_PEERS_STALL_US;
    assert_int_equal(end_of_two(4 * MANY, MANY, early_us), 1);
}

/* A scan that sees the socket with this cookie at the address of port 1. */
static unsigned scan_socket(uint64_t cookie, uint64_t received, uint64_t acked)
{
    struct rpc_peer_address a = address(1);
    rpc_peers_scan_begin(peers);
    rpc_peers_saw(peers, &a, &(struct rpc_peer_socket){cookie, received, acked}, now_us);
    return rpc_peers_scan_end(peers, now_us, now_us);
}

static enum rpc_peers_end take_socket(uint64_t cookie)
{
    struct rpc_peer_address a = address(1);
    return rpc_peers_take(peers, &a, cookie);
}

static void an_account_is_that_of_one_socket(void **state)
{
    (void)state;
    struct rpc_peer *p = call(1, 0), *next;
    assert_int_equal(scan_socket(1, 100, 0), 0);
    assert_true(reset_until_end(p, 9000));
    assert_int_equal(scan_socket(1, 100, 0), 1);
    assert_int_equal(take_socket(2), RPC_PEERS_KEEP); // it has no account yet
    assert_int_equal(take_socket(1), RPC_PEERS_RESETS);
    assert_null(call(1, 0));
    assert_int_equal(scan_socket(2, 200, 0), 0);
    assert_non_null(next = call(1, 0));
    rpc_peer_done(peers, next, now_us);
    rpc_peer_done(peers, p, now_us);
}

static void counts_that_decrease_are_those_of_another_socket(void **state)
{
    (void)state;
    assert_int_equal(scan_socket(0, MAX_BYTES, 1000), 0);
    assert_int_equal(scan_socket(0, MAX_BYTES - 1, 1000), 0);
    assert_int_equal(scan_socket(0, MAX_BYTES, 999), 0);
    assert_int_equal(scan_socket(0, MAX_BYTES, 0), 0);
    assert_int_equal(scan_socket(0, MAX_BYTES + 1, 0), 1);
    assert_int_equal(take_socket(0), RPC_PEERS_BYTES);
}

/* A connection from the address of the others, which resets too many calls. */
static void offend(uint16_t port)
{
    struct rpc_peer *p = call(port, 0);
    assert_true(reset_until_end(p, 9000));
    rpc_peer_done(peers, p, now_us);
}

static void after_two_offences_new_connections_of_the_address_end(void **state)
{
    (void)state;
    struct rpc_peer *old = call(1, 0), *other;
    struct rpc_peer_address elsewhere;
    assert_true(rpc_peer_address_read("ipv4:192.0.2.2:1", &elsewhere));
    offend(2);
    assert_false(rpc_peers_any_banned(peers, now_us));
    now_us += RPC_PEERS_BAN_US - 1;
    offend(3);
    assert_true(rpc_peers_any_banned(peers, now_us));
    assert_null(call(4, 0));
    assert_int_equal(scan(0, 0), RPC_PEERS_KEEP); // the old one stays
    assert_non_null(other = rpc_peers_call(peers, &elsewhere, &(struct rpc_peer_call){0}, now_us));
    rpc_peer_done(peers, other, now_us);
    rpc_peer_done(peers, old, now_us);
    now_us += RPC_PEERS_BAN_US;
    assert_false(rpc_peers_any_banned(peers, now_us));
    assert_non_null(other = call(5, 0));
    rpc_peer_done(peers, other, now_us);
}

static struct rpc_peer *call_of(const char *text)
{
    struct rpc_peer_address a = address_of(text);
    return rpc_peers_call(peers, &a, &(struct rpc_peer_call){0}, now_us);
}

static void offend_from(const char *text)
{
    struct rpc_peer *p = call_of(text);
    assert_non_null(p);
    assert_true(reset_until_end(p, 9000));
    rpc_peer_done(peers, p, now_us);
}

static void must_serve(const char *text)
{
    struct rpc_peer *p = call_of(text);
    assert_non_null(p);
    rpc_peer_done(peers, p, now_us);
}

static void a_ban_covers_the_network_of_an_ipv6_client(void **state)
{
    (void)state;
    offend_from("ipv6:%5B2001:db8::1%5D:1");
    offend_from("ipv6:%5B2001:db8::2%5D:1");
    assert_null(call_of("ipv6:%5B2001:db8::3%5D:1"));
    must_serve("ipv6:%5B2001:db8:0:1::3%5D:1");
}

/* Their first 64 bits say nothing about the client. */
static void a_ban_covers_one_address_of_a_shared_prefix(void **state)
{
    static const char *const banned[][2] = {
        {"ipv6:%5B::1%5D:1", "ipv6:%5B::1%5D:2"},
        {"ipv4:192.0.2.1:1", "ipv4:192.0.2.1:2"},
        {"ipv6:%5Bfe80::1%5D:1", "ipv6:%5Bfe80::1%5D:2"},
        {"ipv6:%5B64:ff9b::1.2.3.4%5D:1", "ipv6:%5B64:ff9b::1.2.3.4%5D:2"}};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(banned); i++) {
        offend_from(banned[i][0]);
        offend_from(banned[i][1]);
    }
    must_serve("ipv4:192.0.2.2:2");
    must_serve("ipv6:%5B::2%5D:2");
    must_serve("ipv6:%5Bfe80::2%5D:2");
    must_serve("ipv6:%5B64:ff9b::1.2.3.5%5D:2");
    offend_from("ipv6:%5B::3%5D:2");
    offend_from("ipv6:%5B::4%5D:2"); // bans ::/64
    must_serve("ipv4:192.0.2.2:3");
}

static void a_ban_covers_all_loopback_addresses_of_ipv4(void **state)
{
    (void)state;
    offend_from("ipv4:127.0.0.1:1");
    offend_from("ipv4:127.1.2.3:1");
    assert_null(call_of("ipv4:127.255.255.254:2"));
    must_serve("ipv4:126.1.2.3:2");
    must_serve("ipv4:128.1.2.3:2");
    must_serve("ipv6:%5B::1%5D:2");
    must_serve("ipv6:%5B64:ff9b::127.1.2.3%5D:2");
}

/* There are more of them than buckets. */
static void addresses_of_one_bucket_have_separate_accounts(void **state)
{
    enum { N = 20000, ENDED = 77 };
    static struct rpc_peer *p[N];
    (void)state;
    for (unsigned i = 0; i < N; i++)
        p[i] = call(i, 0);
    assert_true(reset_until_end(p[ENDED], 9000));
    for (unsigned i = 0; i < N; i++) {
        if (i == ENDED) {
            assert_null(call(i, 0));
        } else {
            assert_ptr_equal(call(i, 0), p[i]);
            rpc_peer_done(peers, p[i], now_us);
        }
        assert_int_equal(take(i), i == ENDED ? RPC_PEERS_RESETS : RPC_PEERS_KEEP);
        rpc_peer_done(peers, p[i], now_us);
    }
}

static void offences_that_lie_apart_ban_nobody(void **state)
{
    (void)state;
    offend(1);
    now_us += RPC_PEERS_BAN_US;
    offend(2);
    assert_false(rpc_peers_any_banned(peers, now_us));
}

static void offences_of_a_service_ban_nobody(void **state)
{
    (void)state;
    struct rpc_peer_address a = address(1);
    for (a.port = 1; a.port < 9; a.port++) {
        struct rpc_peer *p =
            rpc_peers_call(peers, &a, &(struct rpc_peer_call){.trusted = true}, now_us);
        assert_true(reset_until_end(p, 9000));
        rpc_peer_done(peers, p, now_us);
    }
    assert_false(rpc_peers_any_banned(peers, now_us));
}

static void a_banned_connection_ends_in_the_next_scan(void **state)
{
    (void)state;
    offend(2);
    offend(3);
    assert_int_equal(scan(0, 0), RPC_PEERS_BAN);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(addresses_of_grpc_core_are_read),
        TEST(addresses_of_sockets_are_the_same),
        TEST(refusals_that_are_not_read_end_a_connection),
        TEST(resets_end_a_connection_and_make_its_other_calls_void),
        TEST(cheap_calls_have_a_rate),
        TEST(cheap_calls_ban_nobody),
        TEST(the_first_cheap_calls_of_a_connection_are_free),
        TEST(old_connections_with_calls_are_settled),
        TEST(a_settled_connection_may_reset_calls),
        TEST(the_client_with_most_bytes_gives_way),
        TEST(what_clients_hold_ends_before_what_is_on_its_way),
        TEST(a_settled_connection_ends_after_new_ones),
        TEST(a_client_has_few_connections),
        TEST(a_crowd_of_its_address_does_not_end_a_gateway),
        TEST(few_connections_of_a_client_are_settled),
        TEST(settled_connections_have_their_own_rate_of_cheap_calls),
        TEST(time_forgives_resets),
        TEST(single_resets_are_forgiven_at_the_same_rate),
        TEST(bytes_that_nothing_explains_end_a_connection),
        TEST(calls_messages_and_answers_explain_bytes),
        TEST(headers_explain_no_more_bytes_than_usual_ones_have),
        TEST(calls_and_answers_explain_a_limited_number_of_bytes_per_second),
        TEST(explanations_do_not_count_for_later_bytes),
        TEST(what_arrives_during_a_scan_counts_in_the_next_one),
        TEST(a_connection_whose_first_call_comes_during_a_scan_keeps_its_account),
        TEST(a_connection_that_no_scan_has_seen_leaves_no_account),
        TEST(of_all_connections_that_with_most_bytes_ends),
        TEST(a_stalled_thread_ends_the_connection_with_most_bytes),
        TEST(services_may_have_four_times_the_bytes_of_clients),
        TEST(clients_with_a_quarter_of_their_bytes_have_many),
        TEST(a_process_that_grows_ends_the_clients_with_most_bytes),
        TEST(a_stall_ends_all_large_connections_of_the_client),
        TEST(a_stall_ends_one_connection_of_a_service),
        TEST(a_stall_ends_the_connections_of_one_client_at_a_time),
        TEST(of_too_many_connections_those_without_calls_end),
        TEST(connections_with_running_calls_end_last),
        TEST(of_too_many_connections_those_of_the_address_with_most_end),
        TEST(a_scan_of_many_connections_takes_little_time),
        TEST(many_connections_with_many_bytes_end_in_little_time),
        TEST(late_calls_of_an_ended_connection_are_void),
        TEST(a_new_connection_with_the_address_of_an_ended_one_is_served),
        TEST(an_account_is_that_of_one_socket),
        TEST(counts_that_decrease_are_those_of_another_socket),
        TEST(after_two_offences_new_connections_of_the_address_end),
        TEST(a_ban_covers_the_network_of_an_ipv6_client),
        TEST(a_ban_covers_one_address_of_a_shared_prefix),
        TEST(a_ban_covers_all_loopback_addresses_of_ipv4),
        TEST(addresses_of_one_bucket_have_separate_accounts),
        TEST(offences_that_lie_apart_ban_nobody),
        TEST(a_service_is_ended_only_if_no_client_has_many_bytes),
        TEST(offences_of_a_service_ban_nobody),
        TEST(a_banned_connection_ends_in_the_next_scan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

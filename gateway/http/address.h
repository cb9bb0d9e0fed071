/* address.h - addresses of clients, and which client a proxy names.
 *
 * Threads: any, nothing is shared. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#define ADDRESS_TEXT_MAX 48
#define ADDRESS_MAX_HOPS 32 // entries of a forwarding header that are read, from its end

struct address { // zeroed: the peer of a unix socket
    bool is_ip;
    unsigned char ip[16]; // IPv4 as ::ffff:a.b.c.d
};

struct address_range {
    struct address first;
    unsigned n_bits; // of the 128 that must be equal
};

struct address address_of(const struct sockaddr *a, socklen_t len);
/* "192.0.2.1", "2001:db8::1", with or without a port ("192.0.2.1:80", "[::1]:80"). */
bool address_parse(const char *text, size_t len, struct address *ret);
/* "192.0.2.1", "2001:db8::1", "unix". */
void address_text(const struct address *a, char ret[ADDRESS_TEXT_MAX]);
bool address_equal(const struct address *a, const struct address *b);
/* What limits count as one client: the address; of IPv6 the /56 network, which one household may
 * have (RIPE-690). */
struct address address_site(const struct address *a);
/* For tables. secret: a random number that clients do not know. */
uint64_t address_hash(const struct address *a, uint64_t secret);

/* "10.0.0.0/8", "fd00::/8", a single address, or "unix". -EINVAL with a sentence. */
int address_range_parse(const char *text, struct address_range *ret);
bool address_in(const struct address *a, const struct address_range *ranges, unsigned n);
/* The client of a request that `peer` has sent. If the peer is in the ranges, its header field
 * names the client: the last address that is not in the ranges. A malformed entry ends the search,
 * and the address that follows it counts.
 * lists: the values of X-Forwarded-For in the order of arrival. */
struct address address_client(const struct address *peer, const char *const *lists,
                              unsigned n_lists, const struct address_range *trusted, unsigned n);

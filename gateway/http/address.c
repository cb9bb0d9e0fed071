/* address.c - addresses of clients, and which client a proxy names. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "base/mem.h"
#include "base/rng.h"
#include "gateway/http/address.h"

static const unsigned char v4_prefix[12] = {[10] = 0xFF, [11] = 0xFF};

static bool is_v4(const struct address *a)
{
    return a->is_ip && memcmp(a->ip, v4_prefix, sizeof(v4_prefix)) == 0;
}

uint64_t address_hash(const struct address *a, uint64_t secret)
{
    uint64_t words[2];
    memcpy(words, a->ip, sizeof(words));
    return rng_splitmix64(rng_splitmix64(secret ^ words[0]) ^ words[1]);
}

struct address address_of(const struct sockaddr *a, socklen_t len)
{
    struct address ret = {0};
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    if (a->sa_family == AF_INET && len >= sizeof(v4)) {
        memcpy(&v4, a, sizeof(v4));
        ret.is_ip = true;
        memcpy(ret.ip, v4_prefix, sizeof(v4_prefix));
        memcpy(ret.ip + 12, &v4.sin_addr, 4);
    } else if (a->sa_family == AF_INET6 && len >= sizeof(v6)) {
        memcpy(&v6, a, sizeof(v6));
        ret.is_ip = true;
        memcpy(ret.ip, &v6.sin6_addr, 16);
    }
    return ret;
}

static bool parse_ip(const char *text, struct address *ret)
{
    struct in_addr v4;
    *ret = (struct address){.is_ip = true};
    if (inet_pton(AF_INET, text, &v4) != 1)
        return inet_pton(AF_INET6, text, ret->ip) == 1;
    memcpy(ret->ip, v4_prefix, sizeof(v4_prefix));
    memcpy(ret->ip + 12, &v4, 4);
    return true;
}

/* "", or ":" and up to five digits. */
static bool is_port(const char *text)
{
    size_t n = *text ? strspn(text + 1, "0123456789") : 0;
    return !*text || (*text == ':' && n >= 1 && n <= 5 && !text[1 + n]);
}

bool address_parse(const char *text, size_t len, struct address *ret)
{
    char copy[64];
    if (!len || len >= sizeof(copy) || memchr(text, 0, len))
        return false;
    memcpy(copy, text, len);
    copy[len] = 0;
    char *colon = strchr(copy, ':'), *end = strchr(copy, ']');
    if (*copy == '[') {
        bool ok = end && is_port(end + 1);
        if (ok)
            *end = 0;
        return ok && strchr(copy, ':') && parse_ip(copy + 1, ret);
    }
    if (colon && !strchr(colon + 1, ':')) { // one colon: a port after IPv4
        if (!is_port(colon))
            return false;
        *colon = 0;
    }
    return parse_ip(copy, ret);
}

void address_text(const struct address *a, char ret[ADDRESS_TEXT_MAX])
{
    bool v4 = is_v4(a);
    if (!a->is_ip)
        snprintf(ret, ADDRESS_TEXT_MAX, "unix");
    else
        inet_ntop(v4 ? AF_INET : AF_INET6, a->ip + (v4 ? 12 : 0), ret, ADDRESS_TEXT_MAX);
}

bool address_equal(const struct address *a, const struct address *b)
{
    return a->is_ip == b->is_ip && memcmp(a->ip, b->ip, sizeof(a->ip)) == 0;
}

#define SITE_BYTES 7 // a /56 network

struct address address_site(const struct address *a)
{
    struct address site = *a;
    if (a->is_ip && !is_v4(a))
        memset(site.ip + SITE_BYTES, 0, sizeof(site.ip) - SITE_BYTES);
    return site;
}

int address_range_parse(const char *text, struct address_range *ret)
{
    const char *slash = strchr(text, '/');
    char ip[64] = "", *end = NULL;
    *ret = (struct address_range){.n_bits = 128};
    if (strcmp(text, "unix") == 0)
        return 0;
    snprintf(ip, sizeof(ip), "%.*s", slash ? (int)(slash - text) : (int)strlen(text), text);
    if (!parse_ip(ip, &ret->first))
        return fail(-EINVAL, "'%s' is neither an address, a network (10.0.0.0/8) nor unix", text);
    if (!slash)
        return 0;
    unsigned long most = is_v4(&ret->first) && !strchr(ip, ':') ? 32 : 128;
    unsigned long n = slash[1] >= '0' && slash[1] <= '9' ? strtoul(slash + 1, &end, 10) : 999;
    if (n > most || *end)
        return fail(-EINVAL, "'%s': the number after / must be 0 to %lu", text, most);
    ret->n_bits = (unsigned)(n + 128 - most);
    return 0;
}

static bool fits(const struct address *a, const struct address_range *r)
{
    unsigned n = r->n_bits / 8, rest = r->n_bits % 8;
    if (a->is_ip != r->first.is_ip || memcmp(a->ip, r->first.ip, n) != 0)
        return false;
    return !rest || (a->ip[n] ^ r->first.ip[n]) >> (8 - rest) == 0;
}

bool address_in(const struct address *a, const struct address_range *ranges, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        if (fits(a, &ranges[i]))
            return true;
    return false;
}

/* The last entry of a list that ends at *len, without blanks. Shortens the list by it. */
static const char *last_entry(const char *list, size_t *len, size_t *ret_len)
{
    size_t end = *len, at;
    while (end && (list[end - 1] == ' ' || list[end - 1] == '\t'))
        end--;
    for (at = end; at && list[at - 1] != ',';)
        at--;
    *len = at ? at - 1 : 0;
    while (at < end && (list[at] == ' ' || list[at] == '\t'))
        at++;
    *ret_len = end - at;
    return list + at;
}

struct address address_client(const struct address *peer, const char *const *lists,
                              unsigned n_lists, const struct address_range *trusted, unsigned n)
{
    struct address client = *peer, next;
    unsigned hops = 0;
    for (unsigned i = n_lists; i-- > 0;) {
        for (size_t len = strlen(lists[i]); len;) {
            size_t entry_len;
            if (hops++ == ADDRESS_MAX_HOPS || !address_in(&client, trusted, n))
                return client;
            const char *entry = last_entry(lists[i], &len, &entry_len);
            if (!address_parse(entry, entry_len, &next))
                return client;
            client = next;
        }
    }
    return client;
}

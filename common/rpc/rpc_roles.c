/* rpc_roles.c - which roles a peer has. */
#include <errno.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/err.h"
#include "base/mem.h"
#include "rpc/rpc_base.h"
#include "rpc/rpc_roles.h"

#define SCHEME "tandem://"
#define NOBODY 65534 // the overflow uid of Linux

static const struct role_name {
    const char *name;
    unsigned role;
} names[] = {
    {"client", RPC_ROLE_CLIENT},     {"gateway", RPC_ROLE_GATEWAY},
    {"verifier", RPC_ROLE_VERIFIER}, {"proposer", RPC_ROLE_PROPOSER},
    {"operator", RPC_ROLE_OPERATOR},
};

/* 0: there is no such role. */
static unsigned role_of(const char *text, size_t len)
{
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (strlen(names[i].name) == len && memcmp(names[i].name, text, len) == 0)
            return names[i].role;
    }
    return 0;
}

int rpc_roles_read(const struct conf_list *from, struct rpc_roles_map *ret)
{
    *ret = (struct rpc_roles_map){0};
    for (unsigned i = 0; from && i < from->n; i++) {
        const char *text = from->v[i], *mark = strrchr(text, '='); // a URI may contain '='
        unsigned role = mark ? role_of(mark + 1, strlen(mark + 1)) : 0;
        if (!role || mark == text)
            return fail(-EINVAL,
                        "tls_roles: %s is not NAME=ROLE with the role client, gateway, verifier, "
                        "proposer or operator",
                        text);
        ret->v[ret->n].name = text;
        ret->v[ret->n].len = (size_t)(mark - text);
        ret->v[ret->n++].roles = role;
    }
    return 0;
}

unsigned rpc_roles_of_name(const struct rpc_roles_map *map, const char *name, size_t len)
{
    unsigned roles = 0;
    for (unsigned i = 0; i < map->n; i++) {
        if (map->v[i].len == len && memcmp(map->v[i].name, name, len) == 0)
            roles |= map->v[i].roles;
    }
    return roles;
}

unsigned rpc_roles_of_uri(const struct rpc_roles_map *map, const char *uri, size_t len)
{
    const size_t n = strlen(SCHEME);
    unsigned roles = rpc_roles_of_name(map, uri, len);
    if (len > n && memcmp(uri, SCHEME, n) == 0)
        roles |= role_of(uri + n, len - n);
    return roles;
}

unsigned rpc_roles_of_peer(const struct rpc_roles_map *map, grpc_call *call)
{
    /* GRPC_X509_SAN_PROPERTY_NAME is left out: it mixes the SANs of all types. */
    static const struct {
        const char *property;
        unsigned (*roles)(const struct rpc_roles_map *map, const char *name, size_t len);
    } sources[] = {
        {GRPC_PEER_URI_PROPERTY_NAME, rpc_roles_of_uri},
        {GRPC_PEER_DNS_PROPERTY_NAME, rpc_roles_of_name},
        {GRPC_X509_CN_PROPERTY_NAME, rpc_roles_of_name},
    };
    grpc_auth_context *ctx = grpc_call_auth_context(call);
    unsigned roles = 0;
    for (size_t i = 0; ctx && i < ARRAY_LEN(sources); i++) {
        grpc_auth_property_iterator it =
            grpc_auth_context_find_properties_by_name(ctx, sources[i].property);
        for (const grpc_auth_property *p; (p = grpc_auth_property_iterator_next(&it));)
            roles |= sources[i].roles(map, p->value, p->value_length);
    }
    grpc_auth_context_release(ctx);
    return roles;
}

static unsigned roles_of_sans(const struct rpc_roles_map *map, const X509 *x)
{
    GENERAL_NAMES *names_of = X509_get_ext_d2i(x, NID_subject_alt_name, NULL, NULL);
    unsigned roles = 0;
    for (int i = 0; i < sk_GENERAL_NAME_num(names_of); i++) { // -1 without names
        int type;
        const ASN1_IA5STRING *s =
            GENERAL_NAME_get0_value(sk_GENERAL_NAME_value(names_of, i), &type);
        if (type != GEN_URI && type != GEN_DNS)
            continue;
        const char *text = (const char *)ASN1_STRING_get0_data(s);
        size_t len = (size_t)ASN1_STRING_length(s);
        roles |=
            type == GEN_URI ? rpc_roles_of_uri(map, text, len) : rpc_roles_of_name(map, text, len);
    }
    GENERAL_NAMES_free(names_of);
    return roles;
}

static unsigned roles_of_subject(const struct rpc_roles_map *map, const X509 *x)
{
    const X509_NAME *subject = X509_get_subject_name(x);
    unsigned roles = 0;
    for (int i = -1; (i = X509_NAME_get_index_by_NID(subject, NID_commonName, i)) >= 0;) {
        const ASN1_STRING *s = X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, i));
        roles |= rpc_roles_of_name(map, (const char *)ASN1_STRING_get0_data(s),
                                   (size_t)ASN1_STRING_length(s));
    }
    return roles;
}

unsigned rpc_roles_of_x509(const struct rpc_roles_map *map, const X509 *x)
{
    return roles_of_sans(map, x) | roles_of_subject(map, x);
}

unsigned rpc_roles_of_certificate(const struct rpc_roles_map *map, const char *pem)
{
    BIO *in = BIO_new_mem_buf(pem, -1);
    X509 *x = in ? PEM_read_bio_X509(in, NULL, NULL, NULL) : NULL;
    unsigned roles = x ? rpc_roles_of_x509(map, x) : 0;
    X509_free(x);
    BIO_free(in);
    return roles;
}

const char *rpc_roles_text(unsigned roles, char out[RPC_ROLES_TEXT_MAX])
{
    size_t len = 0;
    snprintf(out, RPC_ROLES_TEXT_MAX, "none");
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (roles & names[i].role)
            len += (size_t)snprintf(out + len, RPC_ROLES_TEXT_MAX - len, "%s%s", len ? " or " : "",
                                    names[i].name);
    }
    return out;
}

bool rpc_roles_is_own_user(int fd)
{
    struct ucred peer;
    socklen_t len = sizeof(peer);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0 || peer.uid == NOBODY)
        return false;
    return peer.uid == 0 || peer.uid == geteuid();
}

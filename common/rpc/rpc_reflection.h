/* rpc_reflection.h - the standard server reflection service, v1alpha and v1 (the same messages).
 *
 * Serves the descriptors of proto/, which are embedded, so that a client needs no .proto file. */
#pragma once
#include "rpc/rpc.h"

#define RPC_REFLECTION_MAX_SERVICES 8

struct rpc_reflection {
    const char
        *services[RPC_REFLECTION_MAX_SERVICES]; // "package.Service": what list_services tells
    unsigned n_services;
};

/* r outlives the server. */
void rpc_reflection_register(const struct rpc_reflection *r, struct rpc_server *s);

/* The file of proto/ with this name ("tandem/v1/stats.proto"), or that defines this message, enum,
 * service, method or field ("tandem.v1.Stats.GetStats"), as a packed FileDescriptorProto; NULL:
 * none does. */
const uint8_t *rpc_reflection_file(const char *name, size_t *ret_len);
const uint8_t *rpc_reflection_symbol(const char *symbol, size_t *ret_len);

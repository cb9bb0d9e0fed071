/* rpc_reflection.h - the standard server reflection service, v1alpha and v1 (the same messages).
 *
 * Serves the embedded descriptors of proto/, so clients need no .proto files. */
#pragma once
#include "rpc/rpc.h"

#define RPC_REFLECTION_MAX_SERVICES 8

struct rpc_reflection {
    const char *services[RPC_REFLECTION_MAX_SERVICES]; // "package.Service", for list_services
    unsigned n_services;
};

/* r must outlive the server. */
void rpc_reflection_register(const struct rpc_reflection *r, struct rpc_server *s);

/* A file of proto/ as a packed FileDescriptorProto; NULL: there is none.
 * name: "tandem/v1/stats.proto". symbol: a message, enum, service, method or field that the file
 * defines, "tandem.v1.Stats.GetStats". */
const uint8_t *rpc_reflection_file(const char *name, size_t *ret_len);
const uint8_t *rpc_reflection_symbol(const char *symbol, size_t *ret_len);

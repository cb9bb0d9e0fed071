/* fuzz_generate_wire.c - messages from the wire. The first byte selects a type of proto/; the rest
 * is unpacked, packed and unpacked again. A packed message must stay the same when it is packed
 * again. */
#include <stdlib.h>
#include <string.h>
#include "grpc/health/v1/health.pb-c.h"
#include "grpc/reflection/v1alpha/reflection.pb-c.h"
#include "rpc/rpc.h"
#include "tandem/v1/proposer.pb-c.h"
#include "tandem/v1/stats.pb-c.h"
#include "tandem/v1/verifier.pb-c.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const ProtobufCMessageDescriptor *const types[] = {
    &tandem__v1__generate_request__descriptor,
    &tandem__v1__generate_event__descriptor,
    &tandem__v1__verify_request__descriptor,
    &tandem__v1__verify_reply__descriptor,
    &tandem__v1__model_info__descriptor,
    &tandem__v1__tokenize_request__descriptor,
    &tandem__v1__tokenize_reply__descriptor,
    &tandem__v1__detokenize_request__descriptor,
    &tandem__v1__round__descriptor,
    &tandem__v1__drafts__descriptor,
    &tandem__v1__describe_request__descriptor,
    &tandem__v1__describe_reply__descriptor,
    &tandem__v1__stats_reply__descriptor,
    &grpc__health__v1__health_check_request__descriptor,
    &grpc__reflection__v1alpha__server_reflection_request__descriptor,
    &grpc__reflection__v1alpha__server_reflection_response__descriptor,
};

static uint8_t *packed(const ProtobufCMessage *m, size_t *ret_n)
{
    *ret_n = protobuf_c_message_get_packed_size(m);
    uint8_t *bytes = malloc(*ret_n + 1);
    if (!bytes || protobuf_c_message_pack(m, bytes) != *ret_n)
        abort();
    return bytes;
}

static ProtobufCMessage *unpacked(const ProtobufCMessageDescriptor *type, const uint8_t *bytes,
                                  size_t n)
{
    struct rpc_msg *msg = rpc_msg_of(bytes, n);
    ProtobufCMessage *m = rpc_unpack(type, msg);
    rpc_msg_free(msg);
    return m;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (!n)
        return 0;
    const ProtobufCMessageDescriptor *type = types[data[0] % ARRAY_LEN(types)];
    ProtobufCMessage *first = unpacked(type, data + 1, n - 1);
    if (!first)
        return 0;
    size_t n_once, n_twice;
    uint8_t *once = packed(first, &n_once);
    /* It may be refused: protobuf-c packs unknown fields of number 0, but does not unpack them. */
    ProtobufCMessage *second = unpacked(type, once, n_once);
    if (second) {
        uint8_t *twice = packed(second, &n_twice);
        if (n_twice != n_once || memcmp(once, twice, n_once) != 0)
            abort();
        free(twice);
        protobuf_c_message_free_unpacked(second, NULL);
    }
    free(once);
    protobuf_c_message_free_unpacked(first, NULL);
    return 0;
}

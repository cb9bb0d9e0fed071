/* rpc_reflection.c - the standard server reflection service.
 *
 * protobuf-c does not store file descriptors. rpc_protos.S embeds the FileDescriptorSet that
 * protoc-c writes; this file parses it by hand. The field numbers are those of
 * google/protobuf/descriptor.proto. */
#include <stdint.h>
#include <string.h>
#include "grpc/reflection/v1alpha/reflection.pb-c.h"
#include "rpc/rpc_reflection.h"

#define MAX_WAITING (256 << 10) // bytes of unread answers beyond which we stop reading requests
#define MAX_REQUEST 4096
/* Anybody may ask, and the thread that answers has other work. */
#define MAX_CALLS 16 // of each version; of a connection a quarter
#define PAUSE_MS 20  // of a stream, after each answer
#define TOO_LARGE "a reflection request has at most 4096 bytes"

extern const uint8_t rpc_protos[]; // rpc_protos.S
extern const uint64_t rpc_protos_size;

/* ---- the descriptors ---- */

struct view {
    const uint8_t *at;
    size_t len;
};

static uint64_t read_varint(struct view *v)
{
    uint64_t x = 0;
    for (int shift = 0; v->len; shift += 7) {
        uint8_t byte = *v->at++;
        v->len--;
        x |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            break;
    }
    return x;
}

/* Reads the next field of a message; false at its end. Values of varint fields are skipped. The
 * messages of proto/ have no fields of fixed width. */
static bool next_field(struct view *v, unsigned *ret_number, struct view *ret_value)
{
    if (!v->len)
        return false;
    uint64_t key = read_varint(v);
    *ret_number = (unsigned)(key >> 3);
    size_t n = read_varint(v);
    if ((key & 7) == 0)
        n = 0;
    *ret_value = (struct view){v->at, n};
    v->at += n;
    v->len -= n;
    return true;
}

static struct view find_field(struct view v, unsigned number)
{
    unsigned k;
    struct view value;
    while (next_field(&v, &k, &value)) {
        if (k == number)
            return value;
    }
    return (struct view){0};
}

enum kind { NONE, FILE_, MESSAGE, ENUM, SERVICE, LEAF };

/* For each kind of descriptor: the fields that contain named descriptors, and their kinds. */
static const uint8_t children[][9] = {
    [FILE_] = {[4] = MESSAGE, [5] = ENUM, [6] = SERVICE, [7] = LEAF},
    [MESSAGE] = {[2] = LEAF, [3] = MESSAGE, [4] = ENUM, [6] = LEAF, [8] = LEAF},
    [ENUM] = {0},
    [SERVICE] = {[2] = LEAF},
    [LEAF] = {0},
};

/* Whether `symbol` is v or a descriptor inside it. The name is relative to the scope of v. The
 * depth of the recursion is bounded by the nesting in proto/. */
static bool defines_symbol(struct view v, enum kind kind, const char *symbol)
{
    struct view name = find_field(v, kind == FILE_ ? 2 : 1); // a file: its package
    if (strncmp(symbol, (const char *)name.at, name.len) != 0)
        return false;
    symbol += name.len;
    if (!*symbol)
        return kind != FILE_;
    if (*symbol++ != '.')
        return false;
    unsigned k;
    struct view child;
    while (next_field(&v, &k, &child)) {
        if (k < 9 && children[kind][k] && defines_symbol(child, children[kind][k], symbol))
            return true;
    }
    return false;
}

static bool is_named(struct view v, const char *name)
{
    struct view own = find_field(v, 1);
    return own.len == strlen(name) && memcmp(own.at, name, own.len) == 0;
}

static const uint8_t *find_file(const char *name, bool is_symbol, size_t *ret_len)
{
    struct view all = {rpc_protos, rpc_protos_size}, file;
    unsigned k;
    while (next_field(&all, &k, &file)) {
        if (k == 1 && (is_symbol ? defines_symbol(file, FILE_, name) : is_named(file, name))) {
            *ret_len = file.len;
            return file.at;
        }
    }
    return NULL;
}

const uint8_t *rpc_reflection_file(const char *name, size_t *ret_len)
{
    return find_file(name, false, ret_len);
}

const uint8_t *rpc_reflection_symbol(const char *symbol, size_t *ret_len)
{
    return find_file(symbol, true, ret_len);
}

/* ---- the service ---- */

/* Short names for the generated ones. */
typedef Grpc__Reflection__V1alpha__ServerReflectionRequest Request;
typedef Grpc__Reflection__V1alpha__ServerReflectionResponse Response;
#define ASKED(x) GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_##x
#define ANSWERED(x) GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_##x

static void send_response(struct rpc_call *c, Request *req, Response *r)
{
    r->valid_host = req->host;
    r->original_request = req;
    rpc_call_send(c, rpc_pack(&r->base));
}

static void respond_error(struct rpc_call *c, Request *req, enum rpc_code code, char *text)
{
    Grpc__Reflection__V1alpha__ErrorResponse e = GRPC__REFLECTION__V1ALPHA__ERROR_RESPONSE__INIT;
    e.error_code = (int32_t)code;
    e.error_message = text;
    Response r = GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_RESPONSE__INIT;
    r.message_response_case = ANSWERED(ERROR_RESPONSE);
    r.error_response = &e;
    send_response(c, req, &r);
}

static void respond_file(struct rpc_call *c, Request *req, const char *name, bool is_symbol)
{
    ProtobufCBinaryData file;
    const uint8_t *data = find_file(name, is_symbol, &file.len);
    if (!data) {
        respond_error(c, req, RPC_NOT_FOUND,
                      is_symbol ? "no file defines that symbol" : "no such file");
        return;
    }
    file.data = (uint8_t *)(uintptr_t)data; // read only, by rpc_pack()
    Grpc__Reflection__V1alpha__FileDescriptorResponse f =
        GRPC__REFLECTION__V1ALPHA__FILE_DESCRIPTOR_RESPONSE__INIT;
    f.n_file_descriptor_proto = 1;
    f.file_descriptor_proto = &file;
    Response r = GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_RESPONSE__INIT;
    r.message_response_case = ANSWERED(FILE_DESCRIPTOR_RESPONSE);
    r.file_descriptor_response = &f;
    send_response(c, req, &r);
}

static void respond_list(struct rpc_call *c, Request *req)
{
    const struct rpc_reflection *own = rpc_call_service(c);
    Grpc__Reflection__V1alpha__ServiceResponse names[RPC_REFLECTION_MAX_SERVICES];
    Grpc__Reflection__V1alpha__ServiceResponse *list[RPC_REFLECTION_MAX_SERVICES];
    for (unsigned i = 0; i < own->n_services; i++) {
        grpc__reflection__v1alpha__service_response__init(&names[i]);
        names[i].name = (char *)(uintptr_t)own->services[i];
        list[i] = &names[i];
    }
    Grpc__Reflection__V1alpha__ListServiceResponse l =
        GRPC__REFLECTION__V1ALPHA__LIST_SERVICE_RESPONSE__INIT;
    l.n_service = own->n_services;
    l.service = list;
    Response r = GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_RESPONSE__INIT;
    r.message_response_case = ANSWERED(LIST_SERVICES_RESPONSE);
    r.list_services_response = &l;
    send_response(c, req, &r);
}

static void answer_request(struct rpc_call *c, Request *req)
{
    switch (req->message_request_case) {
    case ASKED(FILE_BY_FILENAME):
        respond_file(c, req, req->file_by_filename, false);
        break;
    case ASKED(FILE_CONTAINING_SYMBOL):
        respond_file(c, req, req->file_containing_symbol, true);
        break;
    case ASKED(LIST_SERVICES):
        respond_list(c, req);
        break;
    case ASKED(FILE_CONTAINING_EXTENSION):
    case ASKED(ALL_EXTENSION_NUMBERS_OF_TYPE):
        respond_error(c, req, RPC_NOT_FOUND, "proto/ defines no extensions");
        break;
    default:
        respond_error(c, req, RPC_UNIMPLEMENTED, "unknown kind of reflection request");
        break;
    }
}

static void read_on(struct rpc_call *c)
{
    if (rpc_call_unread(c) > MAX_WAITING)
        rpc_call_after(c, PAUSE_MS, read_on);
    else
        rpc_call_unpause(c);
}

static void on_message(struct rpc_call *c, struct rpc_msg *msg)
{
    if (!msg) {
        rpc_call_finish(c, RPC_OK, NULL);
        return;
    }
    if (rpc_msg_len(msg) > MAX_REQUEST) { // the answer repeats it
        rpc_call_finish(c, RPC_INVALID_ARGUMENT, TOO_LARGE);
        return;
    }
    ProtobufCMessage *m =
        rpc_call_unpack(c, &grpc__reflection__v1alpha__server_reflection_request__descriptor, msg);
    if (!m)
        return;
    rpc_call_pause(c);
    answer_request(c, (Request *)m);
    rpc_call_after(c, PAUSE_MS, read_on);
    protobuf_c_message_free_unpacked(m, NULL);
}

void rpc_reflection_register(const struct rpc_reflection *r, struct rpc_server *s)
{
    static const struct rpc_method methods[] = {
        {.path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
         .roles = RPC_ROLE_ANY,
         .reads_stream = true,
         .during_drain = true,
         .max_calls = MAX_CALLS,
         .on_message = on_message},
        {.path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
         .roles = RPC_ROLE_ANY,
         .reads_stream = true,
         .during_drain = true,
         .max_calls = MAX_CALLS,
         .on_message = on_message},
    };
    for (size_t i = 0; i < ARRAY_LEN(methods); i++)
        rpc_server_add(s, &methods[i], (void *)(uintptr_t)r);
}

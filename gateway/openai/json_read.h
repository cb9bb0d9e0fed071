/* json_read.h - a JSON body, value by value: what the readers of requests share. jansson stays behind
 * them (openai_request.h).
 *
 * Every function gives 0, or a negative errno with the fault filled: -EINVAL, -ENOMEM.
 *
 * Threads: any, nothing is shared. */
#pragma once
#include <jansson.h>
#include "base/mem.h"
#include "gateway/openai/openai_field.h"

static inline void json_decref_own(json_t *j)
{
    json_decref(j);
}
DEFINE_AUTO(json_t, json_decref_own)

#define JSON_READ_MAX_DEPTH 128 // nested arrays and objects
/* Values in a body, keys included. Parsing this many takes as long as parsing 8 MiB of text. */
#define JSON_READ_MAX_VALUES (256 << 10)

/* One body that is being read. */
struct json_read {
    struct openai_fault *fault;
    unsigned n_values; // in the JSON seen so far
};

/* Status 400. param: the field, "" for the whole body. */
int json_read_refuse(struct json_read *r, const char *param, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
int json_read_no_memory(struct json_read *r);

/* The body as an object, once its shape is checked. */
int json_read_load(struct json_read *r, const char *body, size_t len, json_t **ret);
/* Bounds what the parser is given, before anything recursive sees it: the depth, and the number of
 * values and keys, of which many cost far more than long ones. name: the field, "" for the body. */
int json_read_shape(struct json_read *r, const char *name, const char *s, size_t len);

/* json_loadb, but integers of any length are numbers: too long ones become reals. */
json_t *json_read_json(const char *s, size_t len, size_t flags, json_error_t *e);

/* The member, NULL when absent or null. */
json_t *json_read_member(const json_t *object, const char *name);
const char *json_read_type(const json_t *v); // "an object", "true" ...

/* v of the field `name`, which must be there ... */
int json_read_flag(struct json_read *r, const json_t *v, const char *name, bool *ret);
int json_read_int(struct json_read *r, const json_t *v, const char *name, double min, double max,
                  struct openai_int *ret);
int json_read_real(struct json_read *r, const json_t *v, const char *name, double min, double max,
                   struct openai_real *ret);
/* ... or may be NULL: *ret stays. */
int json_read_text(struct json_read *r, const json_t *v, const char *name, char **ret);
/* A string, or an array of {"type": "text", "text": ...} joined by line breaks: new reference. */
int json_read_parts(struct json_read *r, json_t *v, const char *name, json_t **ret);
/* Element i of `field`. */
int json_read_id(struct json_read *r, const json_t *v, const char *field, size_t i, uint32_t *ret);

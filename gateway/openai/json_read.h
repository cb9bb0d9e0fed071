/* json_read.h - reads a JSON body value by value, with an error that names the wrong field.
 *
 * Shared by the readers of requests. Only they see jansson, the users of openai_request.h do not.
 *
 * Functions with an int result return 0, or -EINVAL or -ENOMEM with the fault filled.
 *
 * Threads: any, nothing is shared. */
#pragma once
#include <jansson.h>
#include "base/buf.h"
#include "base/mem.h"
#include "gateway/openai/openai_values.h"

static inline void json_decref_own(json_t *j)
{
    json_decref(j);
}
DEFINE_AUTO(json_t, json_decref_own)

#define JSON_READ_MAX_DEPTH 128 // nested arrays and objects
/* Values in a body, keys included. Parsing this many takes as long as parsing 8 MiB of text. */
#define JSON_READ_MAX_VALUES (256 << 10)
/* Memory of a parsed value at most, without its text; measured with jansson 2.14 on 2026-11-23:
 * 135 bytes in an array of {"a":{}}. */
#define JSON_READ_VALUE_BYTES 144

/* One body that is being read. */
struct json_read {
    struct openai_fault *fault;
    const struct openai_memory *memory; // for the tree; NULL: not counted
    unsigned n_values;                  // in the JSON seen so far
};

/* Sets a fault of status 400. param: the field, "" for the whole body. Returns -EINVAL. */
int json_read_refuse(struct json_read *r, const char *param, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
int json_read_no_memory(struct json_read *r);

/* Parses the body, which must be an object. First it checks the shape, and counts the memory of the
 * tree. -ENOBUFS: there is too little, and the fault has the status: 413, 429, 503 or 500. */
int json_read_body(struct json_read *r, const char *body, size_t len, json_t **ret);
/* Limits the depth and the number of values before a recursive parser sees the text. Many values
 * and keys cost far more time and memory than long ones. name: the field, "" for the body. */
int json_read_shape(struct json_read *r, const char *name, const char *s, size_t len);

/* As json_loadb(), but integers that do not fit become reals. */
json_t *json_read_parse(const char *s, size_t len, size_t flags, json_error_t *e);

/* Adds the value as compact JSON. Without memory `to` has an error; json_dumps() of jansson 2.14
 * may drop a key then. */
void json_read_dump(const json_t *v, struct buf *to);

/* The member, NULL when absent or null. */
json_t *json_read_member(const json_t *object, const char *name);
const char *json_read_type(const json_t *v); // "an object", "true" ...

/* Read the value v of the field `name`. v must not be NULL ... */
int json_read_flag(struct json_read *r, const json_t *v, const char *name, bool *ret);
int json_read_int(struct json_read *r, const json_t *v, const char *name, double min, double max,
                  struct openai_int *ret);
int json_read_real(struct json_read *r, const json_t *v, const char *name, double min, double max,
                   struct openai_real *ret);
/* ... or may be NULL: then *ret is unchanged. */
int json_read_text(struct json_read *r, const json_t *v, const char *name, char **ret);
/* A string, or an array of {"type": "text", "text": ...}, joined by line breaks. New reference. */
int json_read_text_parts(struct json_read *r, json_t *v, const char *name, json_t **ret);
/* A token id, element i of `field`. */
int json_read_token_id(struct json_read *r, const json_t *v, const char *field, size_t i,
                       uint32_t *ret);

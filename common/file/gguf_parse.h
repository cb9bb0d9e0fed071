/* gguf_parse.h - reads and checks the header of one part; private to the room.
 *
 * Threads: plain functions. */
#pragma once
#include "file/file_reader.h"
#include "file/gguf.h"

#define GGUF_ALIGNMENT 32 // without general.alignment

struct gguf_key {
    struct span name;
    enum gguf_kind kind;
    const uint8_t *value; // text: its bytes; array: the first item; else the number, unaligned
    enum gguf_kind item;  // of an array
    uint64_t n;           // items of an array, bytes of a text
    uint64_t *index;      // of an array of texts: offsets from value, malloc'ed
};

struct gguf_part { // one file
    char *path;
    struct file_reader file;
    size_t head_len;       // bytes in front of the weights
    struct gguf_key *keys; // sorted by name
    uint32_t n_keys;
    struct checkpoint_tensor *tensors; // in the order of the file
    uint32_t n_tensors;
};

/* Reads the header of the file (path and file are set by the caller); fills in the rest. */
int gguf_parse(struct gguf_part *part);
void gguf_part_done(struct gguf_part *part);
/* NULL: none. */
const struct gguf_key *gguf_part_key(const struct gguf_part *part, const char *name);
/* An integer key's value; -ENOENT, -EINVAL as checkpoint_u64(). */
int gguf_key_u64(const struct gguf_part *part, const char *name, uint64_t *ret);
/* A value of a fixed-size kind at an unaligned place. */
int64_t gguf_load_int(enum gguf_kind kind, const uint8_t *at);
double gguf_load_float(enum gguf_kind kind, const uint8_t *at);
bool gguf_is_int(enum gguf_kind kind);         // bool is not
bool gguf_is_signed(enum gguf_kind kind);      // of an integer kind
unsigned gguf_kind_bytes(enum gguf_kind kind); // 0: text and array
const char *gguf_kind_name(enum gguf_kind kind);

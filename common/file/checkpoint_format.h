/* checkpoint_format.h - the interface of a format of model files; private to common/file.
 *
 * A format's open() allocates a struct that begins with a struct checkpoint, and fills in that
 * part. checkpoint.c then looks up tensors by name and checks the kinds of values.
 *
 * Threads: as checkpoint.h. */
#pragma once
#include "file/checkpoint.h"
#include "file/file_reader.h"

struct checkpoint {
    const struct checkpoint_format *format;
    const char *path;
    bool is_file; // else in memory of the caller
    int64_t modified;
    uint64_t identity;    // of its files, 0 in memory
    uint64_t head_digest; // of all bytes before the weights
    uint32_t n_tensors;
    struct checkpoint_tensor *tensors;        // malloc'ed, in the order of the file
    const struct checkpoint_tensor **by_name; // see checkpoint_index()
};

/* A parameter as the file holds it. */
struct checkpoint_value {
    enum checkpoint_kind {
        CHECKPOINT_UNSIGNED, // an integer of 0 or more
        CHECKPOINT_NEGATIVE, // an integer below 0, as its two's complement
        CHECKPOINT_FLOAT,
        CHECKPOINT_BOOL,
        CHECKPOINT_TEXT,
        CHECKPOINT_ARRAY,
    } kind;
    const char *kind_name; // for error texts: "i32"
    uint64_t integer;      // a bool's as well
    double number;
    struct span text;
    struct checkpoint_array array;
};

struct checkpoint_format {
    char magic[5];      // a file's first four bytes
    const char *suffix; // of a file's name: ".gguf"
    /* Owns the file, also after an error. The path is copied. */
    int (*open)(const char *path, struct file_reader *file, struct checkpoint **ret);
    /* Frees the format's own struct, once checkpoint.c has freed the tables in the base. */
    void (*close)(struct checkpoint *c);
    /* The format's name of a key or role of checkpoint.h, cut to size. */
    void (*key_name)(const struct checkpoint *c, const char *key, char *to, size_t size);
    void (*role_name)(enum checkpoint_role role, uint32_t layer, char *to, size_t size);
    /* The file that a tensor lies in, and its path for error texts. */
    const struct file_reader *(*file)(const struct checkpoint *c, const struct checkpoint_tensor *t,
                                      const char **ret_path);
    /* By the format's name. False: no such key. */
    bool (*value)(const struct checkpoint *c, const char *name, struct checkpoint_value *ret);
};

/* Sorts the filled-in tensors by name. -EINVAL: two have the same name. -ENOMEM. */
int checkpoint_index(struct checkpoint *c);

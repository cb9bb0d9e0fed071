/* key_file.h - the file of API keys: a line for each key, with its name, the key and its limits.
 *
 *     alice  sha256:0a4d55a8d778e5022fab701977c5d840bbc486d0b1c5...  rate=60 tokens_per_day=9000
 *     bob    sk-5f1c0e...                                            max_tokens=2048 models=a,b
 *
 * The format is ours (docs/operating.md). A '#' that begins a word begins a comment, but not as the
 * second word. Errors name the line and never show the key.
 *
 * Threads: any, nothing is shared. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "base/mem.h"

#define KEY_FILE_MAX_KEYS 1024
#define KEY_FILE_MIN_KEY 16 // characters of a key
#define KEY_FILE_MAX_KEY 256
#define KEY_FILE_MAX_NAME 64
#define KEY_FILE_MAX_MODELS 2048 // bytes of the value of models=
#define KEY_FILE_DIGEST 32       // bytes of a SHA-256

/* 0: no limit. */
struct key_file_limits {
    uint32_t rate;                              // requests per minute
    uint32_t concurrency;                       // choices that run at a time
    uint32_t max_tokens;                        // of an answer, all choices together
    uint32_t tokens_per_minute, tokens_per_day; // of prompts and answers
};

struct key_file_line {
    char name[KEY_FILE_MAX_NAME + 1];
    unsigned char digest[KEY_FILE_DIGEST]; // the SHA-256 of the key
    struct key_file_limits limits;
    char *models; // names of the models that the key may use, "a,b"; NULL: all
};

struct key_file {
    struct key_file_line *lines; // (n)
    unsigned n;
};

/* where: the name of the file in errors. -EINVAL: a line is malformed, a key is there twice, or
 * there is no key; -ENOMEM. */
int key_file_parse(const char *where, const char *text, size_t len, struct key_file *ret);
void key_file_done(struct key_file *f);
static inline void key_file_done_auto(struct key_file *f)
{
    key_file_done(f);
}

/* The SHA-256 of a key of len bytes. */
void key_file_digest(const char *key, size_t len, unsigned char ret[KEY_FILE_DIGEST]);

/* auth.h - API keys: who may ask, and how much.
 *
 * A file has a line for each: a name, the key or its digest, limits.
 *
 *     alice  sha256:0a4d55a8d778e5022fab701977c5d840bbc486d0b1c5...  rate=60 concurrency=4
 *     bob    sk-5f1c0e...                                            max_tokens=2048
 *
 * Only digests are kept. A key that is asked with is compared with all of them in the same time,
 * whichever it is. Names are whose prompts are kept together: lines of one name (an old key and its
 * successor) share them, others cannot time each other's.
 *
 * Threads: any. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/mem.h"
#include "gateway/openai/openai_request.h"

#define AUTH_MAX_KEYS 1024
#define AUTH_MIN_KEY 16 // characters of a key
#define AUTH_MAX_KEY 256
#define AUTH_MAX_NAME 64

struct auth;
struct auth_guest; // a request that was let in

/* -EINVAL: a line is wrong, or there is none; -ENOENT, -EACCES ...: the file. Warns if others may
 * read it. */
int auth_new(const char *path, struct auth **ret);
/* For tests and fuzzers: from a file's text; `where` is for sentences. */
int auth_new_text(const char *where, const char *text, size_t len, struct auth **ret);
/* Reads the file again. Keys that stay keep what counts for their limits; requests of those that go
 * end as they would. After an error everything is as it was. */
int auth_reload(struct auth *a);
unsigned auth_n_keys(struct auth *a);
void auth_free(struct auth *a); // when nobody is let in any more
DEFINE_AUTO(struct auth, auth_free)

/* Lets a request in. counts: for the limits, as one of one choice; then *ret_guest, until
 * auth_leave().
 * -EACCES: no such key (secret NULL: none was given); -EAGAIN: one of its limits, and when to try
 * again; -ENOMEM. Each with a sentence. */
int auth_enter(struct auth *a, const char *secret, bool counts, int64_t now_us,
               struct auth_guest **ret_guest, unsigned *ret_retry_s);
void auth_leave(struct auth_guest *u);
/* For the log. u NULL: "". */
void auth_name(const struct auth_guest *u, char ret_name[AUTH_MAX_NAME + 1]);

/* Puts a request for tokens under its key: all its choices count from now on, max_tokens is within
 * the limit, cache_salt the key's own. u NULL: nothing. -EINVAL, -EAGAIN (429), -ENOMEM with
 * *ret_fault. Once. */
int auth_bind(struct auth_guest *u, struct openai_request *q, struct openai_fault *ret_fault);

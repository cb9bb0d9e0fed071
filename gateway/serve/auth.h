/* auth.h - API keys: which requests are accepted, and the limits of each key.
 *
 * A file has a line for each key: a name, the key or its digest, limits.
 *
 *     alice  sha256:0a4d55a8d778e5022fab701977c5d840bbc486d0b1c5...  rate=60 concurrency=4
 *     bob    sk-5f1c0e...                                            max_tokens=2048
 *
 * Only digests are stored. A key is compared with all digests, so the time does not depend on the
 * key. The name is the tenant of the prefix cache. Lines of one name (an old key and its successor)
 * share cached prefixes. Keys of different names cannot probe each other's prompts by timing.
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
struct auth_guest; // an accepted request

/* -EINVAL: a line is malformed, or there is no key; -ENOENT, -EACCES ...: reading the file failed.
 * Warns if other users may read it. */
int auth_new(const char *path, struct auth **ret);
/* For tests and fuzzers: reads the text of a file; `where` is its name in errors. */
int auth_new_text(const char *where, const char *text, size_t len, struct auth **ret);
/* Reads the file again. Keys that are still in it keep their counts. Running requests of removed
 * keys finish. After an error nothing has changed. */
int auth_reload(struct auth *a);
unsigned auth_n_keys(struct auth *a);
void auth_free(struct auth *a); // after all guests have left
DEFINE_AUTO(struct auth, auth_free)

/* Accepts a request. counts: it counts against the limits, as one choice, until auth_leave() of
 * *ret_guest. Otherwise there is no guest.
 * -EACCES: the key is unknown, or secret is NULL: no key was sent.
 * -EAGAIN: the key is over a limit; *ret_retry_s: when to try again. -ENOMEM.
 * Each with a sentence. */
int auth_enter(struct auth *a, const char *secret, bool counts, int64_t now_us,
               struct auth_guest **ret_guest, unsigned *ret_retry_s);
void auth_leave(struct auth_guest *u);
/* The name of the key, for the log. u NULL: "". */
void auth_name(const struct auth_guest *u, char ret_name[AUTH_MAX_NAME + 1]);

/* Applies the limits of the key to a request for tokens. All its choices count from now on,
 * max_tokens is bounded, and cache_salt becomes the tenant's. u NULL: no effect. Only once.
 * -EINVAL, -EAGAIN (429), -ENOMEM with *ret_fault filled. */
int auth_bind(struct auth_guest *u, struct openai_request *q, struct openai_fault *ret_fault);

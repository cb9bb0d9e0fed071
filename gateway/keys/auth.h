/* auth.h - API keys: which requests are accepted, and the limits of each key.
 *
 * The keys and their limits are in a file (key_file.h). Only digests are stored. A key is compared
 * with all digests, so the time does not depend on the key. The name is the tenant of the prefix
 * cache. Lines of one name (an old key and its successor) share cached prefixes. Keys of different
 * names cannot probe each other's prompts by timing.
 *
 * Times are microseconds since 1970 (clock_unix_us()): counts are kept over restarts.
 *
 * Threads: any. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/mem.h"
#include "gateway/keys/key_budget.h"
#include "gateway/keys/key_file.h"
#include "gateway/openai/openai_request.h"

/* A request that sets no limit gets this many tokens for each choice, if its key has limits
 * of tokens per minute or day. If half of such a limit is less, the choices share this half. */
#define AUTH_DEFAULT_TOKENS 4096
#define AUTH_TOKEN_BYTES 4 // bytes of a prompt that are estimated as one token

struct auth;
struct usage_file;
struct auth_guest; // an accepted request

/* The limits of a key as they stand now; empty: no key is known. */
struct auth_levels {
    struct key_budget_level requests, tokens;
    unsigned retry_s; // after -EAGAIN: when to try again
};

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

/* Accepts a request until auth_leave() of *ret_guest. counts: it counts against the limits, as one
 * choice.
 * -EACCES: the key is unknown; -ENOKEY: secret is NULL, no key was sent.
 * -EAGAIN: the key is over a limit. -ENOMEM.
 * Each with a sentence. *ret_levels is always set. */
int auth_enter(struct auth *a, const char *secret, bool counts, int64_t now_us,
               struct auth_guest **ret_guest, struct auth_levels *ret_levels);
/* Gives back what the request has reserved and not used. */
void auth_leave(struct auth_guest *u);
/* The name of the key, for the log. u NULL: "". */
void auth_name(const struct auth_guest *u, char ret_name[KEY_FILE_MAX_NAME + 1]);

/* Whether the key may use this model. u NULL: yes. */
bool auth_allows_model(const struct auth_guest *u, const void *model, size_t len);
/* A request that names no model, or "default", gets the first model of the key's list. u NULL, or
 * no list: no effect.
 * -ENOENT (404): the key may not use the model; -ENOMEM. With *ret_fault filled. */
int auth_bind_model(const struct auth_guest *u, struct openai_request *q,
                    struct openai_fault *ret_fault);
/* Names the flow of the key, or without one of the client's address, so that its calls take turns
 * with those of others. address: any text of the client (http_payer()). -ENOMEM, with *ret_fault
 * filled. */
int auth_bind_flow(const struct auth_guest *u, const char *address, struct openai_request *q,
                   struct openai_fault *ret_fault);
/* Applies the limits of the key to a request for tokens, only once. Includes auth_bind_model(). All
 * its choices count from now on, max_tokens is bounded, and cache_salt becomes the tenant's. The
 * tokens that it may use are reserved: its prompts, estimated by their bytes, and max_tokens of
 * each choice. u NULL: no effect.
 * -ENOENT, -EINVAL, -EAGAIN (429), -ENOMEM with *ret_fault filled. *ret_levels is always set. */
int auth_bind(struct auth_guest *u, struct openai_request *q, int64_t now_us,
              struct openai_fault *ret_fault, struct auth_levels *ret_levels);
/* The request has used this many tokens until now, prompts included. u NULL: no effect. */
void auth_use(struct auth_guest *u, uint64_t n_tokens, int64_t now_us);
/* The same, and verifiers may have worked on this part of the prompts, whose count will not arrive.
 * It counts as estimated. */
void auth_use_prompts(struct auth_guest *u, uint64_t n_tokens, double part, int64_t now_us);

/* Adds the counts of all keys to the file, and takes those that other processes have added. Errors
 * as those of usage_file_sync(); the counts are saved by the next call then. One thread at a
 * time. */
int auth_save(struct auth *a, struct usage_file *f, int64_t now_us);

/* auth.c - API keys. */
#include "gateway/keys/auth.h"
#include <errno.h>
#include <inttypes.h>
#include <openssl/crypto.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "base/secret.h"
#include "gateway/keys/usage_file.h"
#include "gateway/upstream/generate_wire.h"

struct auth_key {
    struct auth *a;
    struct key_file_line line;
    struct key_budget budget;
    unsigned n_guests;
    unsigned n_running; // choices
    bool dropped;       // no longer in the file
};

struct auth_guest {
    struct auth_key *k;
    unsigned n; // its part of k->n_running
    struct key_budget_hold hold;
    uint64_t prompt_tokens; // estimated
};

struct auth {
    char *path;
    pthread_mutex_t mu; // guards the fields below and all keys
    struct auth_key **keys;
    unsigned n;
};

/* ---- the keys ---- */

static struct auth_key *same_key(struct auth_key *const *keys, unsigned n,
                                 const unsigned char digest[KEY_FILE_DIGEST])
{
    struct auth_key *found = NULL;
    for (unsigned i = 0; i < n; i++)
        if (CRYPTO_memcmp(keys[i]->line.digest, digest, KEY_FILE_DIGEST) == 0)
            found = keys[i]; // no break: the time must not depend on the key
    return found;
}

static void key_free(struct auth_key *k)
{
    free(k->line.models);
    free(k);
}

static int add_keys(struct auth *a, struct key_file *f)
{
    for (unsigned i = 0; i < f->n; i++) {
        struct auth_key *k = calloc(1, sizeof(*k));
        if (!k)
            return fail(-ENOMEM, "no memory for API keys");
        k->a = a;
        k->line = f->lines[i];
        f->lines[i].models = NULL; // the key owns it now
        a->keys[a->n++] = k;
    }
    return 0;
}

int auth_new_text(const char *where, const char *text, size_t len, struct auth **ret)
{
    AUTO(key_file_done) struct key_file f = {0};
    int rc = key_file_parse(where, text, len, &f);
    if (rc < 0)
        return rc;
    AUTO(auth_free) struct auth *a = calloc(1, sizeof(*a));
    if (!a)
        return fail(-ENOMEM, "no memory for API keys");
    pthread_mutex_init(&a->mu, NULL);
    a->path = strdup(where);
    a->keys = calloc(KEY_FILE_MAX_KEYS, sizeof(struct auth_key *));
    if (!a->path || !a->keys)
        return fail(-ENOMEM, "no memory for API keys");
    rc = add_keys(a, &f);
    if (rc == 0)
        *ret = TAKE(a);
    return rc;
}

int auth_new(const char *path, struct auth **ret)
{
    AUTO(secret_done) struct secret file = {0};
    int rc = secret_read("the API keys", path, true, &file);
    return rc < 0 ? rc : auth_new_text(path, file.text, file.len, ret);
}

/* With the lock. k: a key as the file has it now. If the key is already known, the known entry gets
 * the new name and limits, and its counts stay. */
static struct auth_key *merge_key(struct auth *a, struct auth_key *k)
{
    struct auth_key *old = same_key(a->keys, a->n, k->line.digest);
    k->a = a;
    if (!old)
        return k;
    free(old->line.models);
    old->line = k->line;
    old->dropped = false;
    free(k);
    return old;
}

int auth_reload(struct auth *a)
{
    AUTO(auth_free) struct auth *b = NULL;
    int rc = auth_new(a->path, &b);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&a->mu);
    for (unsigned i = 0; i < a->n; i++)
        a->keys[i]->dropped = true;
    for (unsigned i = 0; i < b->n; i++)
        b->keys[i] = merge_key(a, b->keys[i]);
    for (unsigned i = 0; i < a->n; i++)
        if (a->keys[i]->dropped && !a->keys[i]->n_guests)
            key_free(a->keys[i]);
    free(a->keys);
    a->keys = TAKE(b->keys);
    a->n = b->n;
    b->n = 0;
    pthread_mutex_unlock(&a->mu);
    return 0;
}

unsigned auth_n_keys(struct auth *a)
{
    pthread_mutex_lock(&a->mu);
    unsigned n = a->n;
    pthread_mutex_unlock(&a->mu);
    return n;
}

void auth_free(struct auth *a)
{
    if (!a)
        return;
    for (unsigned i = 0; i < a->n; i++)
        key_free(a->keys[i]);
    free(a->keys);
    pthread_mutex_destroy(&a->mu);
    free(a->path);
    free(a);
}

/* ---- requests ---- */

#define TOO_MANY_CHOICES                                                                           \
    "this API key allows %u concurrent choices (concurrency); try again when some have ended"

static unsigned seconds_of(int64_t us)
{
    return (unsigned)((us + 999999) / 1000000);
}

/* With the lock. */
static void read_levels(const struct auth_key *k, int64_t now_us, struct auth_levels *ret)
{
    ret->requests = key_budget_requests(&k->budget, &k->line.limits, now_us);
    ret->tokens = key_budget_tokens(&k->budget, &k->line.limits, now_us);
}

/* After a refusal for the concurrency: the time in which the bucket gains one request. Such a
 * request counts, so a client that tried again earlier would use up its rate. */
static unsigned choices_retry_s(const struct key_file_limits *l)
{
    return l->rate ? (60 + l->rate - 1) / l->rate : 1;
}

/* With the lock. A request that is refused for its concurrency counts per minute, too. So a client
 * cannot repeat it without limit. */
static int admit_request(struct auth_key *k, int64_t now_us, struct auth_levels *levels)
{
    const struct key_file_limits *l = &k->line.limits;
    int64_t wait_us;
    levels->retry_s = choices_retry_s(l);
    if (key_budget_begin(&k->budget, l, now_us, &wait_us) < 0) {
        levels->retry_s = seconds_of(wait_us);
        return fail(-EAGAIN, "this API key allows %u requests per minute (rate); try again in %u s",
                    l->rate, levels->retry_s);
    }
    if (l->concurrency && k->n_running >= l->concurrency)
        return fail(-EAGAIN, TOO_MANY_CHOICES, l->concurrency);
    return 0;
}

/* With the lock. */
static void enter_key(struct auth_key *k, bool counts, struct auth_guest *u)
{
    *u = (struct auth_guest){.k = k, .n = counts};
    k->n_guests++;
    k->n_running += u->n;
}

int auth_enter(struct auth *a, const char *secret, bool counts, int64_t now_us,
               struct auth_guest **ret_guest, struct auth_levels *ret_levels)
{
    unsigned char digest[KEY_FILE_DIGEST];
    *ret_levels = (struct auth_levels){0};
    if (!secret)
        return fail(-ENOKEY, "an API key is required: send it as \"Authorization: Bearer KEY\"");
    AUTO(mem_free) struct auth_guest *u = calloc(1, sizeof(*u));
    if (!u)
        return fail(-ENOMEM, "no memory for this request");
    key_file_digest(secret, strlen(secret), digest);
    pthread_mutex_lock(&a->mu);
    struct auth_key *k = same_key(a->keys, a->n, digest);
    int rc = !k       ? fail(-EACCES, "this API key is not valid")
             : counts ? admit_request(k, now_us, ret_levels)
                      : 0;
    if (k)
        read_levels(k, now_us, ret_levels);
    if (rc == 0) {
        enter_key(k, counts, u);
        *ret_guest = TAKE(u);
    }
    pthread_mutex_unlock(&a->mu);
    return rc;
}

void auth_leave(struct auth_guest *u)
{
    struct auth_key *k = u->k;
    struct auth *a = k->a;
    pthread_mutex_lock(&a->mu);
    key_budget_end(&k->budget, &u->hold);
    k->n_running -= u->n;
    if (--k->n_guests == 0 && k->dropped)
        key_free(k);
    pthread_mutex_unlock(&a->mu);
    free(u);
}

void auth_name(const struct auth_guest *u, char ret_name[KEY_FILE_MAX_NAME + 1])
{
    *ret_name = 0;
    if (!u)
        return;
    pthread_mutex_lock(&u->k->a->mu);
    memcpy(ret_name, u->k->line.name, sizeof(u->k->line.name));
    pthread_mutex_unlock(&u->k->a->mu);
}

void auth_use(struct auth_guest *u, uint64_t n_tokens, int64_t now_us)
{
    if (!u)
        return;
    pthread_mutex_lock(&u->k->a->mu);
    key_budget_use(&u->k->budget, &u->hold, n_tokens, now_us);
    pthread_mutex_unlock(&u->k->a->mu);
}

void auth_use_prompts(struct auth_guest *u, uint64_t n_tokens, double part, int64_t now_us)
{
    if (u)
        auth_use(u, n_tokens + (uint64_t)(part * (double)u->prompt_tokens), now_us);
}

/* ---- models ---- */

/* Whether `name` is one of "a,b,c". */
static bool is_listed(const char *list, const char *name, size_t len)
{
    for (const char *at = list; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (strcspn(at, ",") == len && memcmp(at, name, len) == 0)
            return true;
    }
    return false;
}

bool auth_allows_model(const struct auth_guest *u, const void *model, size_t len)
{
    if (!u)
        return true;
    pthread_mutex_lock(&u->k->a->mu); // a reload may change the list
    const char *list = u->k->line.models;
    bool allowed = !list || is_listed(list, model, len);
    pthread_mutex_unlock(&u->k->a->mu);
    return allowed;
}

/* The first model of the key's list; NULL: it has none, or no memory. */
static char *first_model(const struct auth_guest *u)
{
    pthread_mutex_lock(&u->k->a->mu);
    const char *list = u->k->line.models;
    char *first = list ? strndup(list, strcspn(list, ",")) : NULL;
    pthread_mutex_unlock(&u->k->a->mu);
    return first;
}

static int no_memory(struct openai_fault *ret_fault)
{
    *ret_fault = (struct openai_fault){.status = 500, .text = "no memory for this request"};
    return -ENOMEM;
}

int auth_bind_model(const struct auth_guest *u, struct openai_request *q,
                    struct openai_fault *ret_fault)
{
    bool named = q->model && *q->model && strcmp(q->model, "default") != 0;
    if (!u || auth_allows_model(u, "", 0)) // no list: it holds no empty name
        return 0;
    if (!named) {
        char *first = first_model(u);
        if (!first)
            return no_memory(ret_fault);
        free(q->model);
        q->model = first;
    } else if (!auth_allows_model(u, q->model, strlen(q->model))) {
        *ret_fault = (struct openai_fault){.status = 404, .param = "model"};
        snprintf(ret_fault->text, sizeof(ret_fault->text), "the model '%.200s' is not served here",
                 q->model);
        return -ENOENT;
    }
    return 0;
}

/* ---- limits of a request ---- */

/* With the lock. Each running choice counts. Of several prompts, only as many run at a time as the
 * limit allows. */
static int count_choices(struct auth_guest *u, struct openai_request *q,
                         struct openai_fault *ret_fault)
{
    const struct auth_key *k = u->k;
    unsigned n = openai_request_n(q), most = k->line.limits.concurrency;
    unsigned others = k->n_running - u->n, left = most > others ? most - others : 0;
    if (most && n > left) {
        bool never = n > most;
        *ret_fault = (struct openai_fault){.status = never ? 400 : 429};
        snprintf(ret_fault->param, sizeof(ret_fault->param), "%s", never ? "n" : "");
        snprintf(ret_fault->text, sizeof(ret_fault->text),
                 never ? "this API key allows %u concurrent choices (concurrency)"
                       : TOO_MANY_CHOICES,
                 most);
        return never ? -EINVAL : -EAGAIN;
    }
    if (most && left / n < q->max_running)
        q->max_running = left / n;
    u->n = q->max_running * n;
    u->k->n_running = others + u->n;
    return 0;
}

static int limit_tokens(uint32_t limit, struct openai_request *q, struct openai_fault *ret_fault)
{
    int64_t most = limit / openai_request_choices(q);
    bool fits = q->max_tokens.set ? q->max_tokens.value <= most : most > 0;
    if (!fits) {
        *ret_fault = (struct openai_fault){.status = 400, .param = "max_tokens"};
        snprintf(ret_fault->text, sizeof(ret_fault->text),
                 "this API key allows %u tokens for all choices together (max_tokens)", limit);
        return -EINVAL;
    }
    if (!q->max_tokens.set &&
        (q->kind != OPENAI_COMPLETION || most < GENERATE_WIRE_COMPLETION_TOKENS)) {
        q->max_tokens.set = true;
        q->max_tokens.value = most;
    }
    return 0;
}

/* An answer without a limit could use the whole context, and no key could reserve that. */
static void set_default_tokens(const struct key_file_limits *l, struct openai_request *q)
{
    uint32_t limits[] = {l->tokens_per_minute, l->tokens_per_day};
    int64_t most = AUTH_DEFAULT_TOKENS;
    bool limited = false;
    for (size_t i = 0; i < ARRAY_LEN(limits); i++) {
        int64_t half = limits[i] / (2 * openai_request_choices(q));
        if (limits[i] && half < most)
            most = half;
        limited |= limits[i] > 0;
    }
    if (!limited || q->max_tokens.set || q->kind == OPENAI_COMPLETION)
        return;
    q->max_tokens.set = true;
    q->max_tokens.value = most > 0 ? most : 1;
}

/* An estimate: only the verifier can count the tokens of the prompts. */
static uint64_t prompt_tokens(const struct openai_request *q)
{
    size_t bytes = q->template_vars ? strlen(q->template_vars) : 0;
    uint64_t n = 0;
    for (unsigned i = 0; i < q->n_prompts; i++) {
        n += q->prompts[i].n_ids;
        bytes += q->prompts[i].len;
    }
    return n + (bytes + AUTH_TOKEN_BYTES - 1) / AUTH_TOKEN_BYTES;
}

/* The tokens that the choices of the request may use. */
static uint64_t completion_tokens(const struct openai_request *q)
{
    uint64_t each =
        q->max_tokens.set ? (uint64_t)q->max_tokens.value : GENERATE_WIRE_COMPLETION_TOKENS;
    return openai_request_choices(q) * each;
}

/* With the lock. */
static int reserve_tokens(struct auth_guest *u, const struct openai_request *q, int64_t now_us,
                          struct openai_fault *ret_fault, unsigned *ret_retry_s)
{
    const struct key_file_limits *l = &u->k->line.limits;
    struct key_budget_level level;
    int64_t wait_us;
    u->prompt_tokens = prompt_tokens(q);
    uint64_t n = u->prompt_tokens + completion_tokens(q);
    int rc = key_budget_reserve(&u->k->budget, l, now_us, n, &u->hold, &level, &wait_us);
    if (rc == 0)
        return 0;
    bool never = rc == -EMSGSIZE;
    const char *of = level.per_day ? "day" : "minute";
    *ret_fault = (struct openai_fault){.status = never ? 400 : 429};
    if (never) {
        snprintf(ret_fault->param, sizeof(ret_fault->param), "max_tokens");
        snprintf(ret_fault->text, sizeof(ret_fault->text),
                 "the request may use %" PRIu64 " tokens (prompt, and max_tokens of each choice), "
                 "and this API key allows %" PRIu64 " per %s (tokens_per_%s)",
                 n, level.limit, of, of);
        return -EINVAL;
    }
    *ret_retry_s = seconds_of(wait_us);
    snprintf(ret_fault->text, sizeof(ret_fault->text),
             "this API key allows %" PRIu64 " tokens per %s (tokens_per_%s); %" PRIu64
             " are left, and the request may use %" PRIu64 "; try again in %u s",
             level.limit, of, of, level.left, n, *ret_retry_s);
    return -EAGAIN;
}

/* A hash of kind, name and salt; it has the 64 bytes that a salt may have. NULL: no memory. */
static char *hash_of(const char *kind, const char *name, const char *salt)
{
    unsigned char digest[KEY_FILE_DIGEST];
    char text[KEY_FILE_MAX_NAME + OPENAI_MAX_SALT + 16];
    snprintf(text, sizeof(text), "%s %s %s", kind, name, salt ? salt : "");
    char *hash = malloc(2 * KEY_FILE_DIGEST + 1);
    if (!hash)
        return NULL;
    key_file_digest(text, strlen(text), digest);
    for (size_t i = 0; i < KEY_FILE_DIGEST; i++)
        snprintf(hash + 2 * i, 3, "%02x", digest[i]);
    return hash;
}

/* The flow is the key's or the address's alone, so a client cannot have several. */
int auth_bind_flow(const struct auth_guest *u, const char *address, struct openai_request *q,
                   struct openai_fault *ret_fault)
{
    char name[KEY_FILE_MAX_NAME + 1];
    auth_name(u, name);
    q->flow = u ? hash_of("flow", name, NULL) : hash_of("address", address, NULL);
    return q->flow ? 0 : no_memory(ret_fault);
}

/* Replaces the salt by one of the key's name and the client's salt. */
static int make_tenant(const struct auth_guest *u, struct openai_request *q,
                       struct openai_fault *ret_fault)
{
    char name[KEY_FILE_MAX_NAME + 1];
    auth_name(u, name);
    char *tenant = hash_of("tenant", name, q->cache_salt);
    free(q->cache_salt);
    q->cache_salt = tenant;
    return tenant ? 0 : no_memory(ret_fault);
}

/* With the lock. */
static int apply_limits(struct auth_guest *u, struct openai_request *q, int64_t now_us,
                        struct openai_fault *ret_fault, struct auth_levels *levels)
{
    const struct key_file_limits *l = &u->k->line.limits;
    levels->retry_s = choices_retry_s(l);
    int rc = count_choices(u, q, ret_fault);
    if (rc == 0 && l->max_tokens)
        rc = limit_tokens(l->max_tokens, q, ret_fault);
    if (rc < 0)
        return rc;
    set_default_tokens(l, q);
    return reserve_tokens(u, q, now_us, ret_fault, &levels->retry_s);
}

int auth_bind(struct auth_guest *u, struct openai_request *q, int64_t now_us,
              struct openai_fault *ret_fault, struct auth_levels *ret_levels)
{
    *ret_levels = (struct auth_levels){0};
    if (!u)
        return 0;
    int rc = auth_bind_model(u, q, ret_fault);
    pthread_mutex_lock(&u->k->a->mu); // a reload may change the key
    rc = rc < 0 ? rc : apply_limits(u, q, now_us, ret_fault, ret_levels);
    read_levels(u->k, now_us, ret_levels);
    pthread_mutex_unlock(&u->k->a->mu);
    return rc < 0 ? rc : make_tenant(u, q, ret_fault);
}

/* ---- saving ---- */

/* With the lock. */
static void collect_entry(struct auth_key *k, int64_t now_us, struct usage_file_entry *ret)
{
    memcpy(ret->digest, k->line.digest, sizeof(ret->digest));
    memcpy(ret->name, k->line.name, sizeof(ret->name));
    ret->change = key_budget_take_unsaved(&k->budget, now_us);
    ret->before = k->budget.counts;
}

/* With the lock. i: where the key was; a reload may have moved or removed it. */
static struct auth_key *key_of_entry(struct auth *a, unsigned i, const struct usage_file_entry *e)
{
    if (i < a->n && memcmp(a->keys[i]->line.digest, e->digest, sizeof(e->digest)) == 0)
        return a->keys[i];
    return same_key(a->keys, a->n, e->digest);
}

/* The file is written without the lock: requests are counted meanwhile. */
int auth_save(struct auth *a, struct usage_file *f, int64_t now_us)
{
    unsigned n;
    AUTO(mem_free) struct usage_file_entry *v = calloc(KEY_FILE_MAX_KEYS, sizeof(*v));
    if (!v)
        return fail(-ENOMEM, "no memory to save the keys' counts");
    pthread_mutex_lock(&a->mu);
    for (n = 0; n < a->n; n++)
        collect_entry(a->keys[n], now_us, &v[n]);
    pthread_mutex_unlock(&a->mu);
    int rc = usage_file_sync(f, v, n, now_us);
    pthread_mutex_lock(&a->mu);
    for (unsigned i = 0; i < n; i++) {
        struct auth_key *k = key_of_entry(a, i, &v[i]);
        if (k && rc == 0)
            key_budget_adopt(&k->budget, &v[i].before, &v[i].after);
        else if (k)
            key_budget_return_unsaved(&k->budget, &v[i].change, v[i].before.day);
    }
    pthread_mutex_unlock(&a->mu);
    return rc;
}

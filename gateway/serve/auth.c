/* auth.c - API keys. */
#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "base/secret.h"
#include "gateway/serve/auth.h"
#include "gateway/upstream/generate_wire.h"

#define DIGEST SHA256_DIGEST_LENGTH

struct auth_key {
    struct auth *a;
    char name[AUTH_MAX_NAME + 1];
    unsigned char digest[DIGEST];
    uint32_t rate, concurrency, max_tokens; // requests/minute, choices, tokens; 0: no limit

    double n_allowed;   // token bucket: requests that may begin now, at most `rate`
    int64_t counted_us; // when n_allowed was computed; 0: never
    unsigned n_running; // choices
    bool dropped;       // no longer in the file
};

struct auth_guest {
    struct auth_key *k;
    unsigned n; // its part of k->n_running
};

struct auth {
    char *path;
    pthread_mutex_t mu; // guards the fields below and all keys
    struct auth_key **keys;
    unsigned n;
};

/* ---- a line ---- */

static void digest_of(const char *key, size_t len, unsigned char to[DIGEST])
{
    SHA256((const unsigned char *)key, len, to);
}

/* The next word of the line, "" at its end; *ret_len: its bytes. */
static const char *next_word(const char **at, const char *end, size_t *ret_len)
{
    while (*at < end && (**at == ' ' || **at == '\t'))
        ++*at;
    const char *word = *at;
    while (*at < end && **at != ' ' && **at != '\t')
        ++*at;
    *ret_len = (size_t)(*at - word);
    return word;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static int read_digest(const char *hex, size_t len, unsigned char to[DIGEST])
{
    if (len != 2 * DIGEST)
        return fail(-EINVAL, "sha256: must be followed by %d hex digits", 2 * DIGEST);
    for (size_t i = 0; i < DIGEST; i++) {
        int high = hex_digit(hex[2 * i]), low = hex_digit(hex[2 * i + 1]);
        if (high < 0 || low < 0)
            return fail(-EINVAL, "sha256: must be followed by %d hex digits, a-f in lower case",
                        2 * DIGEST);
        to[i] = (unsigned char)(high << 4 | low);
    }
    return 0;
}

static int read_key(const char *word, size_t len, unsigned char to[DIGEST])
{
    static const char mark[] = "sha256:";
    size_t n = sizeof(mark) - 1;
    if (len >= n && memcmp(word, mark, n) == 0)
        return read_digest(word + n, len - n, to);
    if (len < AUTH_MIN_KEY || len > AUTH_MAX_KEY)
        return fail(-EINVAL, "a key must have %d to %d characters, not %zu", AUTH_MIN_KEY,
                    AUTH_MAX_KEY, len);
    for (size_t i = 0; i < len; i++)
        if (word[i] < '!' || word[i] > '~')
            return fail(-EINVAL, "a key must be printable ASCII");
    digest_of(word, len, to);
    return 0;
}

static int read_limit(const char *word, size_t len, struct auth_key *k)
{
    const struct {
        const char *name;
        uint32_t *value;
    } limits[] = {
        {"rate=", &k->rate}, {"concurrency=", &k->concurrency}, {"max_tokens=", &k->max_tokens}};
    for (size_t i = 0; i < ARRAY_LEN(limits); i++) {
        size_t n = strlen(limits[i].name);
        if (len <= n || memcmp(word, limits[i].name, n) != 0)
            continue;
        uint32_t v = 0;
        for (; n < len && word[n] >= '0' && word[n] <= '9' && v < 100000000; n++)
            v = v * 10 + (uint32_t)(word[n] - '0');
        if (n != len || !v)
            return fail(-EINVAL, "%s must be followed by a number from 1 to 999999999",
                        limits[i].name);
        *limits[i].value = v;
        return 0;
    }
    return fail(-EINVAL, "unknown limit: use rate=, concurrency= or max_tokens=");
}

static int read_name(const char *word, size_t len, struct auth_key *k)
{
    static const char chars[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    if (len > AUTH_MAX_NAME)
        return fail(-EINVAL, "a name must have 1 to %d characters", AUTH_MAX_NAME);
    memcpy(k->name, word, len);
    if (strspn(k->name, chars) != len)
        return fail(-EINVAL, "a name may contain letters, digits, '.', '_' and '-'");
    return 0;
}

static int read_line(const char *at, const char *end, struct auth_key *k)
{
    size_t len;
    const char *word = next_word(&at, end, &len);
    int rc = read_name(word, len, k);
    word = next_word(&at, end, &len);
    rc = rc < 0 ? rc : read_key(word, len, k->digest);
    while (rc == 0 && (word = next_word(&at, end, &len), len) && *word != '#')
        rc = read_limit(word, len, k);
    return rc;
}

/* ---- the file ---- */

static struct auth_key *same_key(struct auth_key *const *keys, unsigned n,
                                 const unsigned char digest[DIGEST])
{
    struct auth_key *found = NULL;
    for (unsigned i = 0; i < n; i++)
        if (CRYPTO_memcmp(keys[i]->digest, digest, DIGEST) == 0)
            found = keys[i]; // no break: the time must not depend on the key
    return found;
}

static void keys_free(struct auth_key **keys, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        free(keys[i]);
    free(keys);
}

static int add_line(struct auth *a, const char *line, const char *end)
{
    size_t len;
    const char *at = line, *word = next_word(&at, end, &len);
    if (!len || *word == '#')
        return 0;
    if (a->n == AUTH_MAX_KEYS)
        return fail(-EINVAL, "the file has more than %d keys", AUTH_MAX_KEYS);
    AUTO(mem_free) struct auth_key *k = calloc(1, sizeof(*k));
    if (!k)
        return fail(-ENOMEM, "no memory for API keys");
    int rc = read_line(line, end, k);
    if (rc < 0)
        return rc;
    if (same_key(a->keys, a->n, k->digest))
        return fail(-EINVAL, "this key is in the file twice");
    k->a = a;
    a->keys[a->n++] = TAKE(k);
    return 0;
}

static int read_text(struct auth *a, const char *where, const char *text, size_t len)
{
    const char *end = text + len;
    unsigned number = 1;
    for (const char *line = text; line < end; number++) {
        const char *stop = memchr(line, '\n', (size_t)(end - line));
        stop = stop ? stop : end;
        int rc = add_line(a, line, stop > line && stop[-1] == '\r' ? stop - 1 : stop);
        if (rc < 0) {
            char why[FAIL_TEXT_MAX];
            snprintf(why, sizeof(why), "%s", fail_text());
            return fail(rc, "%s, line %u: %.300s", where, number, why);
        }
        line = stop + 1;
    }
    return a->n ? 0 : fail(-EINVAL, "%s holds no key", where);
}

int auth_new_text(const char *where, const char *text, size_t len, struct auth **ret)
{
    AUTO(auth_free) struct auth *a = calloc(1, sizeof(*a));
    if (!a)
        return fail(-ENOMEM, "no memory for API keys");
    pthread_mutex_init(&a->mu, NULL);
    a->path = strdup(where);
    a->keys = calloc(AUTH_MAX_KEYS, sizeof(struct auth_key *));
    if (!a->path || !a->keys)
        return fail(-ENOMEM, "no memory for API keys");
    int rc = read_text(a, where, text, len);
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
 * the new limits, and its counts stay. */
static struct auth_key *merge_key(struct auth *a, struct auth_key *k)
{
    struct auth_key *old = same_key(a->keys, a->n, k->digest);
    k->a = a;
    if (!old)
        return k;
    memcpy(old->name, k->name, sizeof(k->name));
    old->rate = k->rate;
    old->concurrency = k->concurrency;
    old->max_tokens = k->max_tokens;
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
        if (a->keys[i]->dropped && !a->keys[i]->n_running)
            free(a->keys[i]);
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
    keys_free(a->keys, a->n);
    pthread_mutex_destroy(&a->mu);
    free(a->path);
    free(a);
}

/* ---- requests ---- */

#define TOO_MANY_CHOICES                                                                           \
    "this API key allows %u concurrent choices (concurrency); try again when some have ended"

/* With the lock. */
static int admit_request(struct auth_key *k, int64_t now_us, unsigned *ret_retry_s)
{
    *ret_retry_s = 1;
    if (k->concurrency && k->n_running >= k->concurrency)
        return fail(-EAGAIN, TOO_MANY_CHOICES, k->concurrency);
    double rate = k->rate, more = (double)(now_us - k->counted_us) * rate / 60e6;
    k->n_allowed = !k->counted_us || k->n_allowed + more > rate ? rate : k->n_allowed + more;
    k->counted_us = now_us;
    if (rate > 0 && k->n_allowed < 1) {
        *ret_retry_s = 1 + (unsigned)((1 - k->n_allowed) * 60 / rate);
        return fail(-EAGAIN, "this API key allows %u requests per minute (rate); try again in %u s",
                    k->rate, *ret_retry_s);
    }
    k->n_allowed -= rate > 0;
    k->n_running++;
    return 0;
}

int auth_enter(struct auth *a, const char *secret, bool counts, int64_t now_us,
               struct auth_guest **ret_guest, unsigned *ret_retry_s)
{
    unsigned char digest[DIGEST];
    AUTO(mem_free) struct auth_guest *u = counts ? calloc(1, sizeof(*u)) : NULL;
    if (!secret)
        return fail(-EACCES, "an API key is required: send it as \"Authorization: Bearer KEY\"");
    if (counts && !u)
        return fail(-ENOMEM, "no memory for this request");
    digest_of(secret, strlen(secret), digest);
    pthread_mutex_lock(&a->mu);
    struct auth_key *k = same_key(a->keys, a->n, digest);
    int rc = !k       ? fail(-EACCES, "this API key is not valid")
             : counts ? admit_request(k, now_us, ret_retry_s)
                      : 0;
    if (rc == 0 && counts) {
        *u = (struct auth_guest){.k = k, .n = 1};
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
    k->n_running -= u->n;
    if (!k->n_running && k->dropped)
        free(k);
    pthread_mutex_unlock(&a->mu);
    free(u);
}

void auth_name(const struct auth_guest *u, char ret_name[AUTH_MAX_NAME + 1])
{
    *ret_name = 0;
    if (!u)
        return;
    pthread_mutex_lock(&u->k->a->mu);
    memcpy(ret_name, u->k->name, sizeof(u->k->name));
    pthread_mutex_unlock(&u->k->a->mu);
}

/* ---- limits of a request ---- */

/* With the lock. Each running choice counts. Of several prompts, only as many run at a time as the
 * limit allows. */
static int count_choices(struct auth_guest *u, struct openai_request *q,
                         struct openai_fault *ret_fault)
{
    const struct auth_key *k = u->k;
    unsigned n = openai_request_n(q), most = k->concurrency;
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

/* A hash of kind, name and salt; it has the 64 bytes that a salt may have. NULL: no memory. */
static char *hash_of(const char *kind, const char *name, const char *salt)
{
    unsigned char digest[DIGEST];
    char text[AUTH_MAX_NAME + OPENAI_MAX_SALT + 16];
    int len = snprintf(text, sizeof(text), "%s %s %s", kind, name, salt ? salt : "");
    char *hash = malloc(2 * DIGEST + 1);
    if (!hash)
        return NULL;
    digest_of(text, (size_t)len, digest);
    for (size_t i = 0; i < DIGEST; i++)
        snprintf(hash + 2 * i, 3, "%02x", digest[i]);
    return hash;
}

/* Replaces the salt by one of the key's name and the client's salt. The flow is the key's alone, so
 * a client cannot have several. */
static int make_tenant(const char *name, struct openai_request *q)
{
    char *tenant = hash_of("tenant", name, q->cache_salt);
    free(q->cache_salt);
    q->cache_salt = tenant;
    q->flow = hash_of("flow", name, NULL);
    return tenant && q->flow ? 0 : -ENOMEM;
}

int auth_bind(struct auth_guest *u, struct openai_request *q, struct openai_fault *ret_fault)
{
    if (!u)
        return 0;
    struct auth_key *k = u->k;
    char name[sizeof(k->name)];
    pthread_mutex_lock(&k->a->mu); // a reload may change the key
    memcpy(name, k->name, sizeof(name));
    uint32_t limit = k->max_tokens;
    int rc = count_choices(u, q, ret_fault);
    pthread_mutex_unlock(&k->a->mu);
    rc = rc == 0 && limit ? limit_tokens(limit, q, ret_fault) : rc;
    if (rc == 0 && (rc = make_tenant(name, q)) < 0)
        *ret_fault = (struct openai_fault){.status = 500, .text = "no memory for this request"};
    return rc;
}

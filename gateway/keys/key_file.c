/* key_file.c - the file of API keys. */
#include "gateway/keys/key_file.h"
#include <errno.h>
#include <openssl/sha.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"

_Static_assert(KEY_FILE_DIGEST == SHA256_DIGEST_LENGTH, "a digest is a SHA-256");

void key_file_digest(const char *key, size_t len, unsigned char ret[KEY_FILE_DIGEST])
{
    SHA256((const unsigned char *)key, len, ret);
}

/* ---- a line ---- */

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

static int read_digest(const char *hex, size_t len, unsigned char to[KEY_FILE_DIGEST])
{
    if (len != 2 * KEY_FILE_DIGEST)
        return fail(-EINVAL, "sha256: must be followed by %d hex digits", 2 * KEY_FILE_DIGEST);
    for (size_t i = 0; i < KEY_FILE_DIGEST; i++) {
        int high = hex_digit(hex[2 * i]), low = hex_digit(hex[2 * i + 1]);
        if (high < 0 || low < 0)
            return fail(-EINVAL, "sha256: must be followed by %d hex digits, a-f in lower case",
                        2 * KEY_FILE_DIGEST);
        to[i] = (unsigned char)(high << 4 | low);
    }
    return 0;
}

static bool is_printable(const char *word, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (word[i] < '!' || word[i] > '~')
            return false;
    return true;
}

static int read_key(const char *word, size_t len, unsigned char to[KEY_FILE_DIGEST])
{
    static const char mark[] = "sha256:";
    size_t n = sizeof(mark) - 1;
    if (len >= n && memcmp(word, mark, n) == 0)
        return read_digest(word + n, len - n, to);
    if (len < KEY_FILE_MIN_KEY || len > KEY_FILE_MAX_KEY)
        return fail(-EINVAL, "a key must have %d to %d characters, not %zu", KEY_FILE_MIN_KEY,
                    KEY_FILE_MAX_KEY, len);
    if (!is_printable(word, len))
        return fail(-EINVAL, "a key must be printable ASCII");
    key_file_digest(word, len, to);
    return 0;
}

/* Requests may ask for the model `default`. */
static bool has_default(const char *names)
{
    static const char word[] = "default";
    const size_t n = sizeof(word) - 1;
    for (const char *at = names; (at = strstr(at, word)); at += n)
        if ((at == names || at[-1] == ',') && (!at[n] || at[n] == ','))
            return true;
    return false;
}

/* names: "a,b", at least one byte. */
static int read_models(const char *names, size_t len, struct key_file_line *k)
{
    if (len > KEY_FILE_MAX_MODELS || !is_printable(names, len) || *names == ',' ||
        names[len - 1] == ',' || memmem(names, len, ",,", 2))
        return fail(-EINVAL,
                    "models= must be followed by names of models with commas between them, "
                    "at most %d characters",
                    KEY_FILE_MAX_MODELS);
    if (k->models)
        return fail(-EINVAL, "models= may be given only once");
    k->models = strndup(names, len);
    if (!k->models)
        return fail(-ENOMEM, "no memory for API keys");
    return has_default(k->models)
               ? fail(-EINVAL, "models= may not name 'default', which stands for any model")
               : 0;
}

static int read_number(const char *name, const char *digits, size_t len, uint32_t *to)
{
    uint32_t v = 0;
    size_t n = 0;
    for (; n < len && digits[n] >= '0' && digits[n] <= '9' && v < 100000000; n++)
        v = v * 10 + (uint32_t)(digits[n] - '0');
    if (n != len || !v)
        return fail(-EINVAL, "%s must be followed by a number from 1 to 999999999", name);
    if (*to)
        return fail(-EINVAL, "%s may be given only once", name);
    *to = v;
    return 0;
}

static int read_limit(const char *word, size_t len, struct key_file_line *k)
{
    struct key_file_limits *l = &k->limits;
    const struct {
        const char *name;
        uint32_t *value; // NULL: the names of models
    } limits[] = {{"rate=", &l->rate},
                  {"concurrency=", &l->concurrency},
                  {"max_tokens=", &l->max_tokens},
                  {"tokens_per_minute=", &l->tokens_per_minute},
                  {"tokens_per_day=", &l->tokens_per_day},
                  {"models=", NULL}};
    for (size_t i = 0; i < ARRAY_LEN(limits); i++) {
        size_t n = strlen(limits[i].name);
        if (len > n && memcmp(word, limits[i].name, n) == 0)
            return limits[i].value ? read_number(limits[i].name, word + n, len - n, limits[i].value)
                                   : read_models(word + n, len - n, k);
    }
    return fail(-EINVAL, "unknown limit: use rate=, concurrency=, max_tokens=, "
                         "tokens_per_minute=, tokens_per_day= or models=");
}

static int read_name(const char *word, size_t len, struct key_file_line *k)
{
    static const char chars[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    if (len > KEY_FILE_MAX_NAME)
        return fail(-EINVAL, "a name must have 1 to %d characters", KEY_FILE_MAX_NAME);
    memcpy(k->name, word, len);
    if (strspn(k->name, chars) != len)
        return fail(-EINVAL, "a name may contain letters, digits, '.', '_' and '-'");
    return 0;
}

static int read_line(const char *at, const char *end, struct key_file_line *k)
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

static bool is_known(const struct key_file *f, const struct key_file_line *k)
{
    for (unsigned i = 0; i < f->n; i++)
        if (memcmp(f->lines[i].digest, k->digest, KEY_FILE_DIGEST) == 0)
            return true;
    return false;
}

static int add_line(struct key_file *f, const char *line, const char *end)
{
    size_t len;
    const char *at = line, *word = next_word(&at, end, &len);
    if (!len || *word == '#')
        return 0;
    if (f->n == KEY_FILE_MAX_KEYS)
        return fail(-EINVAL, "the file has more than %d keys", KEY_FILE_MAX_KEYS);
    struct key_file_line *k = &f->lines[f->n];
    int rc = read_line(line, end, k);
    if (rc == 0 && is_known(f, k))
        rc = fail(-EINVAL, "this key is in the file twice");
    if (rc == 0)
        f->n++;
    else
        free(k->models);
    return rc;
}

int key_file_parse(const char *where, const char *text, size_t len, struct key_file *ret)
{
    AUTO(key_file_done) struct key_file f = {0};
    const char *end = text + len;
    unsigned number = 1;
    f.lines = calloc(KEY_FILE_MAX_KEYS, sizeof(*f.lines));
    if (!f.lines)
        return fail(-ENOMEM, "no memory for API keys");
    for (const char *line = text; line < end; number++) {
        const char *stop = memchr(line, '\n', (size_t)(end - line));
        stop = stop ? stop : end;
        int rc = add_line(&f, line, stop > line && stop[-1] == '\r' ? stop - 1 : stop);
        if (rc < 0) {
            char why[FAIL_TEXT_MAX];
            snprintf(why, sizeof(why), "%s", fail_text());
            return fail(rc, "%s, line %u: %.300s", where, number, why);
        }
        line = stop + 1;
    }
    if (!f.n)
        return fail(-EINVAL, "%s holds no key", where);
    *ret = f;
    f = (struct key_file){0};
    return 0;
}

void key_file_done(struct key_file *f)
{
    for (unsigned i = 0; i < f->n; i++)
        free(f->lines[i].models);
    free(f->lines);
    *f = (struct key_file){0};
}

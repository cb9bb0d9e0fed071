/* test_auth.c - API keys: the format of the file, accepted keys, and limits. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/buf.h"
#include "base/err.h"
#include "gateway/keys/auth.h"
#include "lib/fakes/failing.h"
#include "lib/lib.h"

#define ALICE "sk-0123456789abcdef"
#define ALICE_SHA256 "d8578edf8458ce06fbc5bb76a58c5ca4"
#define BOB "sk-bob-has-another-key"
#define CAROL "sk-carols-own-long-key"
#define DAVE "sk-dave-has-no-limits"
#define MINUTE_US 60000000

/* No NUL follows the text, so the address sanitizer sees a read past its end. */
static struct auth *auth_of(const char *text)
{
    struct auth *a = NULL;
    AUTO(mem_free) char *exact = malloc(strlen(text));
    memcpy(exact, text, strlen(text));
    if (auth_new_text("keys", exact, strlen(text), &a) < 0)
        fail_msg("%s", fail_text());
    return a;
}

/* The result of a request with this key. */
static int enters(struct auth *a, const char *secret, int64_t now_us, struct auth_guest **ret)
{
    struct auth_levels levels;
    return auth_enter(a, secret, true, now_us, ret, &levels);
}

static int binds(struct auth_guest *u, struct openai_request *q, struct openai_fault *ret_fault)
{
    struct auth_levels levels;
    return auth_bind(u, q, 1, ret_fault, &levels);
}

static void a_known_key_is_accepted(void **state)
{
    (void)state;
    AUTO(auth_free) struct auth *a = auth_of("# keys\n\nalice " ALICE "\r\nbob\t" BOB " # old\n");
    struct auth_guest *k;
    assert_int_equal(auth_n_keys(a), 2);
    assert_int_equal(enters(a, ALICE, 1, &k), 0);
    auth_leave(k);
    assert_int_equal(enters(a, BOB, 1, &k), 0);
    auth_leave(k);
    static const char *const others[] = {"", " ", ALICE " ", "sk-0123456789abcdeF", "alice", "old"};
    for (size_t i = 0; i < ARRAY_LEN(others); i++)
        assert_int_equal(enters(a, others[i], 1, &k), -EACCES);
    assert_non_null(strstr(fail_text(), "not valid"));
    assert_int_equal(enters(a, NULL, 1, &k), -ENOKEY);
    assert_non_null(strstr(fail_text(), "Authorization: Bearer"));
}

static void a_digest_replaces_its_key(void **state)
{
    (void)state;
    /* printf %s sk-0123456789abcdef | sha256sum */
    AUTO(auth_free)
    struct auth *a = auth_of(
        "alice sha256:221df437bc4f8c4d9718bd7a9ec4c1021c72fd69dfb2a5f568ecf4607c824bee rate=5");
    struct auth_guest *k;
    assert_int_equal(enters(a, ALICE, 1, &k), 0);
    auth_leave(k);
    assert_int_equal(
        enters(a, "221df437bc4f8c4d9718bd7a9ec4c1021c72fd69dfb2a5f568ecf4607c824bee", 1, &k),
        -EACCES);
}

static void digests_that_differ_in_one_byte_are_two_keys(void **state)
{
    (void)state;
#define SAME "221df437bc4f8c4d9718bd7a9ec4c1021c72fd69dfb2a5f568ecf4607c824b"
    AUTO(auth_free)
    struct auth *a =
        auth_of("bob sha256:" SAME "ef\nalice sha256:" SAME "ee\ncarl sha256:" SAME "ed");
    struct auth_guest *k;
    assert_int_equal(auth_n_keys(a), 3);
    assert_int_equal(enters(a, ALICE, 1, &k), 0);
    auth_leave(k);
    AUTO(auth_free) struct auth *others = auth_of("bob sha256:" SAME "ef\ncarl sha256:" SAME "ed");
    assert_int_equal(enters(others, ALICE, 1, &k), -EACCES);
#undef SAME
}

static void a_malformed_line_is_named_by_its_number(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } v[] = {
        {"", "keys holds no key"},
        {"# nobody\n", "keys holds no key"},
        {"alice\n", "line 1: a key must have 16 to 256 characters, not 0"},
        {"\n\nalice short\n", "line 3: a key must have 16"},
        {"al/ice " ALICE, "a name may contain letters"},
        {"alice " ALICE "\xC3\xA4", "printable ASCII"},
        {"alice sha256:12ab", "64 hex digits"},
        {"alice sha256:", "64 hex digits"},
        {"alice sha256:XX" ALICE_SHA256 ALICE_SHA256, "64 hex digits"},
        {"alice " ALICE " rate=0", "rate= must be followed by a number"},
        {"alice " ALICE " rate=5x", "rate= must be followed by a number"},
        {"alice " ALICE " rate=", "unknown limit"},
        {"alice " ALICE " rate=9999999999", "1 to 999999999"},
        {"alice " ALICE " rate=1000000000", "1 to 999999999"},
        {"alice " ALICE " rate=:", "1 to 999999999"},
        {"alice " ALICE " rate=/", "1 to 999999999"},
        {"alice " ALICE "\x7F", "printable ASCII"},
        {"alice \x1F" ALICE, "printable ASCII"},
        {"alice " ALICE " models=a\x7F", "names of models with commas"},
        {"alice " ALICE " speed=9", "unknown limit: use rate="},
        {"alice " ALICE " tokens_per_day=x", "tokens_per_day= must be followed by a number"},
        {"alice " ALICE " models=", "unknown limit"},
        {"alice " ALICE " models=a,,b", "names of models with commas"},
        {"alice " ALICE " models=,a", "names of models with commas"},
        {"alice " ALICE " models=a,", "names of models with commas"},
        {"alice " ALICE " models=a models=b", "models= may be given only once"},
        {"alice " ALICE " models=a,default", "models= may not name 'default'"},
        {"alice " ALICE " models=default,a", "models= may not name 'default'"},
        {"alice " ALICE " models=default", "models= may not name 'default'"},
        {"alice " ALICE " rate=1 rate=2", "rate= may be given only once"},
        {"alice " ALICE " concurrency=1 concurrency=2", "concurrency= may be given only once"},
        {"alice " ALICE " max_tokens=1 max_tokens=2", "max_tokens= may be given only once"},
        {"alice " ALICE " tokens_per_day=1 rate=1 tokens_per_day=2",
         "tokens_per_day= may be given only once"},
        {"alice " ALICE "\nbob " ALICE, "line 2: this key is in the file twice"},
    };
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        struct auth *a;
        assert_int_equal(auth_new_text("keys", v[i].text, strlen(v[i].text), &a), -EINVAL);
        if (!strstr(fail_text(), v[i].says))
            fail_msg("'%s' does not say '%s'", fail_text(), v[i].says);
        assert_null(strstr(fail_text(), ALICE)); // the log must not show the key
    }
}

#define SHA256_62 "221df437bc4f8c4d9718bd7a9ec4c1021c72fd69dfb2a5f568ecf4607c824b"

/* The whole digest counts: the two differ in the last byte only. */
static void a_key_is_known_by_its_whole_digest(void **state)
{
    (void)state;
    AUTO(auth_free)
    struct auth *a = auth_of("bob sha256:" SHA256_62 "ef\nalice sha256:" SHA256_62 "ee\n");
    struct auth_guest *k;
    assert_int_equal(auth_n_keys(a), 2);
    assert_int_equal(enters(a, ALICE, 1, &k), 0);
    auth_leave(k);
    AUTO(auth_free) struct auth *other = auth_of("bob sha256:" SHA256_62 "ef\n");
    assert_int_equal(enters(other, ALICE, 1, &k), -EACCES);
    static const char *const wrong[] = {
        "alice sha256:" SHA256_62 "EE", "alice sha256:" SHA256_62 "eg",
        "alice sha256:" SHA256_62 "ge", "alice sha256:" SHA256_62 "e:",
        "alice sha256:" SHA256_62 "e/", "alice sha256:" SHA256_62 "e`",
        "alice sha256:" SHA256_62 "e"};
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        struct auth *none;
        assert_int_equal(auth_new_text("keys", wrong[i], strlen(wrong[i]), &none), -EINVAL);
        assert_non_null(strstr(fail_text(), "64 hex digits"));
    }
}

static void the_number_of_keys_is_limited(void **state)
{
    (void)state;
    AUTO(buf_done) struct buf text = {0};
    buf_init(&text, 1 << 20);
    for (unsigned i = 0; i < KEY_FILE_MAX_KEYS; i++)
        buf_printf(&text, "name%u sk-0123456789-%06u\n", i, i);
    AUTO(auth_free) struct auth *all = auth_of(text.data);
    assert_int_equal(auth_n_keys(all), KEY_FILE_MAX_KEYS);
    buf_puts(&text, "last " ALICE "\n");
    struct auth *none;
    assert_int_equal(auth_new_text("keys", text.data, text.len, &none), -EINVAL);
    assert_non_null(strstr(fail_text(), "the file has more than 1024 keys"));
}

static void requests_per_minute_are_limited(void **state)
{
    (void)state;
    AUTO(auth_free) struct auth *a = auth_of("alice " ALICE " rate=3\nbob " BOB);
    struct auth_guest *k;
    struct auth_levels levels;
    int64_t now_us = 5 * (int64_t)MINUTE_US;
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(enters(a, ALICE, now_us, &k), 0);
        auth_leave(k);
    }
    assert_int_equal(auth_enter(a, ALICE, true, now_us, &k, &levels), -EAGAIN);
    assert_non_null(strstr(fail_text(), "3 requests per minute (rate)"));
    unsigned retry_s = levels.retry_s;
    assert_int_equal(retry_s, 20);
    assert_int_equal(auth_enter(a, ALICE, true, now_us + 1, &k, &levels), -EAGAIN);
    assert_int_equal(levels.retry_s, 20); // rounded up
    assert_int_equal(levels.requests.limit, 3);
    assert_int_equal(levels.requests.left, 0);
    assert_int_equal(auth_enter(a, ALICE, false, now_us, &k, &levels), 0); // does not count
    auth_leave(k);
    assert_int_equal(enters(a, BOB, now_us, &k), 0);
    auth_leave(k);
    now_us += (int64_t)retry_s * 1000000;
    assert_int_equal(enters(a, ALICE, now_us, &k), 0);
    auth_leave(k);
    assert_int_equal(enters(a, ALICE, now_us, &k), -EAGAIN);
    now_us += 60 * (int64_t)MINUTE_US; // unused requests accumulate to one minute's
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(enters(a, ALICE, now_us, &k), 0);
        auth_leave(k);
    }
    assert_int_equal(enters(a, ALICE, now_us, &k), -EAGAIN);
}

static void concurrent_requests_are_limited(void **state)
{
    (void)state;
    AUTO(auth_free) struct auth *a = auth_of("alice " ALICE " concurrency=2");
    struct auth_guest *k[3];
    assert_int_equal(enters(a, ALICE, 1, &k[0]), 0);
    assert_int_equal(enters(a, ALICE, 1, &k[1]), 0);
    struct auth_levels levels = {.retry_s = 9};
    assert_int_equal(auth_enter(a, ALICE, true, 1, &k[2], &levels), -EAGAIN);
    assert_int_equal(levels.retry_s, 1);
    assert_non_null(strstr(fail_text(), "2 concurrent choices (concurrency)"));
    auth_leave(k[0]);
    assert_int_equal(auth_enter(a, ALICE, false, 1, &k[0], &levels), 0); // does not count
    assert_int_equal(enters(a, ALICE, 1, &k[2]), 0);
    auth_leave(k[0]);
    auth_leave(k[1]);
    auth_leave(k[2]);
}

static void a_request_refused_for_concurrency_counts_per_minute(void **state)
{
    (void)state;
    AUTO(auth_free) struct auth *a = auth_of("alice " ALICE " rate=3 concurrency=1");
    struct auth_guest *k, *none;
    struct auth_levels levels;
    assert_int_equal(enters(a, ALICE, 1, &k), 0);
    for (unsigned left = 2; left--;) {
        assert_int_equal(auth_enter(a, ALICE, true, 1, &none, &levels), -EAGAIN);
        assert_non_null(strstr(fail_text(), "1 concurrent choices (concurrency)"));
        assert_int_equal(levels.requests.left, left);
        assert_int_equal(levels.retry_s, 20);
    }
    assert_int_equal(auth_enter(a, ALICE, true, 1, &none, &levels), -EAGAIN);
    assert_non_null(strstr(fail_text(), "3 requests per minute (rate)"));
    auth_leave(k);
}

/* Otherwise a client that waits for Retry-After could be refused again. */
static void a_request_over_the_rate_takes_nothing(void **state)
{
    (void)state;
    AUTO(auth_free) struct auth *a = auth_of("alice " ALICE " rate=1");
    struct auth_guest *k;
    struct auth_levels levels;
    assert_int_equal(enters(a, ALICE, 1, &k), 0);
    auth_leave(k);
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(auth_enter(a, ALICE, true, 1, &k, &levels), -EAGAIN);
    assert_int_equal(enters(a, ALICE, 1 + levels.retry_s * INT64_C(1000000), &k), 0);
    auth_leave(k);
}

static void the_name_of_a_key_is_known(void **state)
{
    (void)state;
    AUTO(auth_free) struct auth *a = auth_of("alice " ALICE);
    struct auth_guest *u;
    struct auth_levels levels = {.retry_s = 9, .tokens.limit = 9};
    char name[KEY_FILE_MAX_NAME + 1] = "?";
    assert_int_equal(auth_enter(a, BOB, true, 1, &u, &levels), -EACCES);
    assert_int_equal(levels.retry_s, 0);
    assert_int_equal(levels.tokens.limit, 0);
    assert_int_equal(enters(a, ALICE, 1, &u), 0);
    auth_name(NULL, name);
    assert_string_equal(name, "");
    auth_name(u, name);
    assert_string_equal(name, "alice");
    auth_leave(u);
}

/* A line with a name, a key or models of this many characters. */
static int parses(unsigned name, unsigned key, unsigned models)
{
    struct auth *a = NULL;
    AUTO(buf_done) struct buf text = {0};
    buf_init(&text, 1 << 16);
    for (unsigned i = 0; i < name; i++)
        buf_puts(&text, "n");
    buf_puts(&text, " ");
    for (unsigned i = 0; i < key; i++)
        buf_puts(&text, i % 2 ? "!" : "~"); // the first and the last printable character
    if (models)
        buf_puts(&text, " models=");
    for (unsigned i = 0; i < models; i++)
        buf_puts(&text, "m");
    int rc = auth_new_text("keys", text.data, text.len, &a);
    if (rc == 0)
        auth_free(a);
    return rc;
}

static void lengths_are_checked_at_both_ends(void **state)
{
    (void)state;
    static const struct {
        unsigned name, key, models;
        int rc;
    } v[] = {{1, 16, 0, 0},       {64, 16, 0, 0},   {65, 16, 0, -EINVAL},
             {1, 15, 0, -EINVAL}, {1, 256, 0, 0},   {1, 257, 0, -EINVAL},
             {1, 16, 1, 0},       {1, 16, 2048, 0}, {1, 16, 2049, -EINVAL}};
    for (size_t i = 0; i < ARRAY_LEN(v); i++)
        assert_int_equal(parses(v[i].name, v[i].key, v[i].models), v[i].rc);
}

static struct openai_request request_of(const char *body)
{
    struct openai_request q;
    struct openai_fault fault;
    if (openai_request_parse(OPENAI_COMPLETION, body, strlen(body), NULL, &q, &fault) < 0)
        fail_msg("%s", fault.text);
    return q;
}

static void a_client_that_waits_for_its_choices_keeps_its_rate(void **state)
{
    (void)state;
    AUTO(auth_free) struct auth *a = auth_of("alice " ALICE " rate=7 concurrency=2");
    struct openai_request two = request_of("{\"prompt\":\"x\",\"n\":2}");
    struct openai_fault fault;
    struct auth_guest *k[2], *none;
    struct auth_levels levels;
    int64_t now_us = 1;
    assert_int_equal(enters(a, ALICE, now_us, &k[0]), 0);
    assert_int_equal(enters(a, ALICE, now_us, &k[1]), 0);
    assert_int_equal(auth_bind(k[1], &two, now_us, &fault, &levels), -EAGAIN);
    assert_int_equal(levels.retry_s, 9); // 60 / 7, rounded up
    for (unsigned i = 0; i < 20; i++) {
        now_us += levels.retry_s * INT64_C(1000000);
        assert_int_equal(auth_enter(a, ALICE, true, now_us, &none, &levels), -EAGAIN);
        assert_non_null(strstr(fail_text(), "2 concurrent choices (concurrency)"));
        assert_int_equal(levels.retry_s, 9);
        assert_true(levels.requests.left >= 5);
    }
    auth_leave(k[0]);
    auth_leave(k[1]);
    openai_request_done(&two);
}

static void every_choice_of_a_request_counts(void **state)
{
    (void)state;
    AUTO(auth_free) struct auth *a = auth_of("alice " ALICE " concurrency=4");
    struct openai_request two = request_of("{\"prompt\":\"x\",\"n\":2}"),
                          three = request_of("{\"prompt\":\"x\",\"n\":3}"),
                          five = request_of("{\"prompt\":\"x\",\"n\":5}");
    struct openai_fault fault;
    struct auth_guest *u[3];
    assert_int_equal(enters(a, ALICE, 1, &u[0]), 0);
    assert_int_equal(enters(a, ALICE, 1, &u[1]), 0);
    assert_int_equal(binds(u[0], &two, &fault), 0); // 3 with the other request
    assert_int_equal(binds(u[1], &three, &fault), -EAGAIN);
    assert_int_equal(fault.status, 429);
    assert_non_null(strstr(fault.text, "4 concurrent choices (concurrency); try again"));
    assert_int_equal(binds(u[1], &five, &fault), -EINVAL); // more than the limit itself
    assert_int_equal(fault.status, 400);
    assert_string_equal(fault.param, "n");
    assert_int_equal(enters(a, ALICE, 1, &u[2]), 0); // a refused request counts as before
    auth_leave(u[2]);
    auth_leave(u[0]);
    assert_int_equal(binds(u[1], &three, &fault), 0);
    assert_int_equal(enters(a, ALICE, 1, &u[0]), 0);
    assert_int_equal(enters(a, ALICE, 1, &u[2]), -EAGAIN);
    auth_leave(u[0]);
    auth_leave(u[1]);
    openai_request_done(&two);
    openai_request_done(&three);
    openai_request_done(&five);
}

static void a_key_limits_the_tokens_of_an_answer(void **state)
{
    (void)state;
    AUTO(auth_free) struct auth *a = auth_of("alice " ALICE " max_tokens=40");
    static const struct {
        const char *more;
        int64_t want; // 0: refused, -1: unchanged
    } v[] = {{"", -1},
             {",\"n\":4", 10},
             {",\"n\":41", 0},
             {",\"max_tokens\":40", 40},
             {",\"max_tokens\":41", 0},
             {",\"max_tokens\":20,\"n\":2", 20},
             {",\"max_tokens\":21,\"n\":2", 0}};
    struct auth_guest *k;
    assert_int_equal(enters(a, ALICE, 1, &k), 0);
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        char body[128];
        struct openai_fault fault;
        snprintf(body, sizeof(body), "{\"prompt\":\"x\"%s}", v[i].more);
        struct openai_request q = request_of(body);
        int rc = binds(k, &q, &fault);
        assert_int_equal(rc, v[i].want ? 0 : -EINVAL);
        if (rc < 0) {
            assert_int_equal(fault.status, 400);
            assert_string_equal(fault.param, "max_tokens");
            assert_non_null(strstr(fault.text, "allows 40 tokens"));
        } else {
            assert_int_equal(q.max_tokens.set, v[i].want > 0);
            assert_true(v[i].want < 0 || q.max_tokens.value == v[i].want);
        }
        openai_request_done(&q);
    }
    struct openai_request q = request_of("{\"prompt\":\"x\"}");
    struct openai_fault fault;
    q.kind = OPENAI_CHAT; // without max_tokens it continues to the end of the context
    assert_int_equal(binds(k, &q, &fault), 0);
    assert_int_equal(q.max_tokens.value, 40);
    openai_request_done(&q);
    auth_leave(k);
}

/* A completion without max_tokens gets OpenAI's default, or less if the key allows no more. */
static void a_completion_keeps_the_default_if_it_fits(void **state)
{
    (void)state;
    AUTO(auth_free) struct auth *a = auth_of("alice " ALICE " max_tokens=48");
    struct openai_fault fault;
    struct auth_guest *u;
    static const struct {
        unsigned n;
        int64_t tokens; // 0: not set
    } v[] = {{2, 0}, {3, 0}, {4, 12}};
    assert_int_equal(enters(a, ALICE, 1, &u), 0);
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        struct openai_request q = request_of("{\"prompt\":\"x\"}");
        q.n = (struct openai_int){true, v[i].n};
        assert_int_equal(binds(u, &q, &fault), 0);
        assert_int_equal(q.max_tokens.set, v[i].tokens > 0);
        assert_int_equal(q.max_tokens.value, v[i].tokens);
        openai_request_done(&q);
    }
    auth_leave(u);
}

/* Of several prompts only as many run at a time as the limit allows. */
static void prompts_take_turns_within_the_limit(void **state)
{
    (void)state;
    static const struct {
        const char *body;
        unsigned n_others, max_running, n_more; // n_more: requests that still find a place
    } v[] = {{"{\"prompt\":[\"a\",\"b\",\"c\"]}", 0, 3, 2},
             {"{\"prompt\":[\"a\",\"b\",\"c\"],\"n\":2}", 0, 2, 1},
             {"{\"prompt\":[\"a\",\"b\",\"c\"],\"n\":2}", 2, 1, 1},
             {"{\"prompt\":[\"a\",\"b\",\"c\"],\"n\":5}", 0, 1, 0}};
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        AUTO(auth_free) struct auth *a = auth_of("alice " ALICE " concurrency=5");
        struct auth_guest *u[8];
        struct openai_fault fault;
        struct openai_request q = request_of(v[i].body);
        unsigned n = 0;
        while (n <= v[i].n_others)
            assert_int_equal(enters(a, ALICE, 1, &u[n++]), 0);
        assert_int_equal(binds(u[0], &q, &fault), 0);
        assert_int_equal(q.max_running, v[i].max_running);
        while (enters(a, ALICE, 1, &u[n]) == 0)
            n++;
        assert_int_equal(n, 1 + v[i].n_others + v[i].n_more);
        while (n)
            auth_leave(u[--n]);
        openai_request_done(&q);
    }
}

/* The tenant and the flow for a key and a salt (NULL: none). */
static char *names_of(struct auth *a, const char *secret, const char *salt, char **ret_flow)
{
    char body[256];
    struct auth_guest *k;
    struct openai_fault fault;
    snprintf(body, sizeof(body),
             salt ? "{\"prompt\":\"x\",\"cache_salt\":\"%s\"}" : "{\"prompt\":\"x\"}", salt);
    struct openai_request q = request_of(body);
    assert_int_equal(enters(a, secret, 1, &k), 0);
    assert_int_equal(binds(k, &q, &fault), 0);
    assert_int_equal(auth_bind_flow(k, "192.0.2.1", &q, &fault), 0);
    auth_leave(k);
    char *tenant = TAKE(q.cache_salt);
    *ret_flow = TAKE(q.flow);
    openai_request_done(&q);
    assert_int_equal(strlen(tenant), 64); // the limit of the verifier
    assert_int_equal(strlen(*ret_flow), 64);
    assert_int_equal(strspn(tenant, "0123456789abcdef"), 64);
    assert_int_equal(strspn(*ret_flow, "0123456789abcdef"), 64);
    return tenant;
}

static char *tenant_of(struct auth *a, const char *secret, const char *salt)
{
    char *flow, *tenant = names_of(a, secret, salt, &flow);
    free(flow);
    return tenant;
}

static char *flow_of(struct auth *a, const char *secret, const char *salt)
{
    char *flow;
    free(names_of(a, secret, salt, &flow));
    return flow;
}

/* Else a client with many salts would have many turns. */
static void each_name_is_one_flow_whatever_the_salt(void **state)
{
    (void)state;
    AUTO(auth_free)
    struct auth *a = auth_of("alice " ALICE "\nbob " BOB "\nalice sk-the-next-key-of-alice\n");
    AUTO(mem_free) char *alice = flow_of(a, ALICE, NULL), *bob = flow_of(a, BOB, NULL);
    AUTO(mem_free) char *salted = flow_of(a, ALICE, "s"), *tenant = tenant_of(a, ALICE, NULL);
    AUTO(mem_free) char *next = flow_of(a, "sk-the-next-key-of-alice", "t");
    assert_string_not_equal(alice, bob);
    assert_string_equal(alice, salted);
    assert_string_equal(alice, next);
    assert_string_not_equal(alice, tenant);
}

#define N64(last) "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn" last

static char *address_flow(const char *address)
{
    struct openai_request q = {0};
    struct openai_fault fault;
    assert_int_equal(auth_bind_flow(NULL, address, &q, &fault), 0);
    assert_non_null(q.flow);
    assert_int_equal(strlen(q.flow), 64);
    assert_int_equal(strspn(q.flow, "0123456789abcdef"), 64);
    char *flow = TAKE(q.flow);
    openai_request_done(&q);
    return flow;
}

static void without_a_key_each_address_is_one_flow(void **state)
{
    (void)state;
    AUTO(auth_free) struct auth *a = auth_of("192.0.2.1 " ALICE "\n");
    AUTO(mem_free) char *one = address_flow("192.0.2.1"), *same = address_flow("192.0.2.1");
    AUTO(mem_free) char *other = address_flow("192.0.2.2"), *key = flow_of(a, ALICE, NULL);
    AUTO(mem_free) char *longest = address_flow(N64("a") N64("b") N64("c"));
    assert_string_equal(one, same);
    assert_string_not_equal(one, other);
    assert_string_not_equal(one, key);
    assert_string_not_equal(one, longest);
}

static void prefixes_are_shared_only_under_one_name_and_salt(void **state)
{
    (void)state;
    AUTO(auth_free)
    struct auth *a = auth_of("alice " ALICE "\nbob " BOB "\nalice sk-the-next-key-of-alice\n");
    char *tenants[] = {tenant_of(a, ALICE, NULL), tenant_of(a, BOB, NULL), tenant_of(a, ALICE, "s"),
                       tenant_of(a, BOB, "s"), tenant_of(a, "sk-the-next-key-of-alice", NULL)};
    for (size_t i = 0; i < 4; i++)
        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(tenants[i], tenants[k]);
    assert_string_equal(tenants[4], tenants[0]);
    for (size_t i = 0; i < ARRAY_LEN(tenants); i++)
        free(tenants[i]);
}

static void all_of_a_long_name_and_a_long_salt_counts(void **state)
{
    (void)state;
    AUTO(auth_free) struct auth *a = auth_of(N64("a") " " ALICE "\n" N64("b") " " BOB);
    AUTO(mem_free) char *alice = tenant_of(a, ALICE, N64("a"));
    AUTO(mem_free) char *bob = tenant_of(a, BOB, N64("a"));
    AUTO(mem_free) char *other = tenant_of(a, ALICE, N64("b"));
    AUTO(mem_free) char *same = tenant_of(a, ALICE, N64("a"));
    assert_string_equal(alice, same);
    assert_string_not_equal(alice, bob);
    assert_string_not_equal(alice, other);
}

/* ---- models ---- */

static int binds_model(struct auth_guest *u, const char *model, char ret_model[64])
{
    char body[128];
    struct openai_fault fault;
    snprintf(body, sizeof(body),
             model ? "{\"prompt\":\"x\",\"model\":\"%s\"}" : "{\"prompt\":\"x\"}", model);
    struct openai_request q = request_of(body);
    int rc = auth_bind_model(u, &q, &fault);
    snprintf(ret_model, 64, "%s", q.model ? q.model : "none");
    openai_request_done(&q);
    if (rc < 0) {
        assert_int_equal(fault.status, 404);
        assert_string_equal(fault.param, "model");
    }
    return rc;
}

static void a_key_may_use_only_its_models(void **state)
{
    (void)state;
    AUTO(auth_free) struct auth *a = auth_of("alice " ALICE " models=big/x,tiny\nbob " BOB);
    struct auth_guest *alice, *bob;
    char model[64];
    assert_int_equal(enters(a, ALICE, 1, &alice), 0);
    assert_int_equal(enters(a, BOB, 1, &bob), 0);
    static const struct {
        const char *model, *becomes; // becomes NULL: refused
    } v[] = {{"big/x", "big/x"}, {"tiny", "tiny"}, {NULL, "big/x"}, {"default", "big/x"},
             {"", "big/x"},      {"tin", NULL},    {"tiny2", NULL}, {"big", NULL},
             {"x,tiny", NULL},   {"big/x,", NULL}};
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        int rc = binds_model(alice, v[i].model, model);
        if (rc != (v[i].becomes ? 0 : -ENOENT) || (rc == 0 && strcmp(model, v[i].becomes) != 0))
            fail_msg("%s: %d %s", v[i].model, rc, model);
        assert_int_equal(binds_model(bob, v[i].model, model), 0);
        assert_string_equal(model, v[i].model ? v[i].model : "none");
        assert_int_equal(binds_model(NULL, v[i].model, model), 0);
    }
    assert_true(auth_allows_model(alice, "tiny!", 4));
    assert_false(auth_allows_model(alice, "tiny!", 5));
    assert_true(auth_allows_model(bob, "any", 3));
    assert_true(auth_allows_model(NULL, "any", 3));
    struct openai_request q = request_of("{\"prompt\":\"x\"}");
    struct openai_fault fault;
    assert_int_equal(binds(NULL, &q, &fault), 0); // no keys: nothing changes
    assert_null(q.cache_salt);
    auth_use(NULL, 1, 1);
    openai_request_done(&q);
    auth_leave(alice);
    auth_leave(bob);
}

/* ---- tokens per minute and day ---- */

#define NOON_US (INT64_C(20000) * 86400 * 1000000 + INT64_C(43200) * 1000000)

static void a_request_reserves_what_it_may_use(void **state)
{
    (void)state;
    AUTO(auth_free) struct auth *a = auth_of("alice " ALICE " tokens_per_minute=100\n");
    struct openai_fault fault;
    struct auth_levels levels;
    struct auth_guest *u[3];
    /* 8 bytes are estimated as 2 tokens. */
    struct openai_request big = request_of("{\"prompt\":\"12345678\",\"max_tokens\":60}"),
                          two = request_of("{\"prompt\":[1,2,3],\"max_tokens\":20,\"n\":2}"),
                          huge = request_of("{\"prompt\":\"12345678\",\"max_tokens\":99}");
    for (size_t i = 0; i < ARRAY_LEN(u); i++)
        assert_int_equal(enters(a, ALICE, NOON_US, &u[i]), 0);
    assert_int_equal(auth_bind(u[0], &big, NOON_US, &fault, &levels), 0);
    assert_int_equal(levels.tokens.limit, 100);
    assert_int_equal(levels.tokens.left, 38);
    assert_int_equal(levels.requests.limit, 0);
    assert_int_equal(auth_bind(u[1], &two, NOON_US, &fault, &levels), -EAGAIN); // 43
    assert_int_equal(fault.status, 429);
    assert_non_null(strstr(fault.text, "100 tokens per minute (tokens_per_minute); 38 are left"));
    assert_int_equal(levels.retry_s, 1); // the first may end before
    assert_int_equal(auth_bind(u[2], &huge, NOON_US, &fault, &levels), -EINVAL);
    assert_int_equal(fault.status, 400);
    assert_string_equal(fault.param, "max_tokens");
    auth_use(u[0], 7, NOON_US);
    auth_leave(u[0]); // gives the rest back
    assert_int_equal(auth_bind(u[1], &two, NOON_US, &fault, &levels), 0);
    assert_int_equal(levels.tokens.left, 100 - 7 - 43);
    auth_leave(u[1]);
    auth_leave(u[2]);
    openai_request_done(&big);
    openai_request_done(&two);
    openai_request_done(&huge);
}

static void a_request_without_a_limit_gets_a_share(void **state)
{
    (void)state;
    AUTO(auth_free)
    struct auth *a = auth_of("alice " ALICE " tokens_per_minute=1000 tokens_per_day=100000\n"
                             "bob " BOB " tokens_per_day=100000\n"
                             "carol " CAROL " tokens_per_minute=3\n"
                             "dave " DAVE);
    static const struct {
        const char *secret;
        unsigned n;
        int64_t tokens;
    } v[] = {{ALICE, 1, 500}, {ALICE, 2, 250}, {BOB, 1, 4096}, {CAROL, 2, 1}, {DAVE, 1, 0}};
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        struct openai_fault fault;
        struct auth_guest *u;
        struct openai_request q = request_of("{\"prompt\":\"x\"}");
        q.kind = OPENAI_CHAT;
        q.n = (struct openai_int){true, v[i].n};
        assert_int_equal(enters(a, v[i].secret, 1, &u), 0);
        assert_int_equal(binds(u, &q, &fault), 0);
        assert_int_equal(q.max_tokens.set, v[i].tokens > 0);
        assert_int_equal(q.max_tokens.value, v[i].tokens);
        auth_leave(u);
        openai_request_done(&q);
    }
}

/* A prompt of 9 bytes counts as 3 tokens; a completion without max_tokens may take 16. */
static void what_a_request_may_use_is_estimated(void **state)
{
    (void)state;
    static const struct {
        const char *body, *vars;
        bool is_chat;
        unsigned tokens;
    } v[] = {{"{\"prompt\":\"123456789\",\"max_tokens\":5}", NULL, false, 3 + 5},
             {"{\"prompt\":\"12345678\"}", NULL, false, 2 + 16},
             {"{\"prompt\":[\"1234\",[7,8]],\"n\":3,\"max_tokens\":2}", NULL, false, 1 + 2 + 12},
             {"{\"prompt\":\"1\",\"max_tokens\":9}", "12345678", true, 3 + 9},
             {"{\"prompt\":\"1234\"}", "1234", true, 2 + 500}};
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        AUTO(auth_free) struct auth *a = auth_of("alice " ALICE " tokens_per_day=1000");
        struct openai_request q = request_of(v[i].body);
        struct openai_fault fault;
        struct auth_levels levels;
        struct auth_guest *u;
        q.template_vars = v[i].vars ? strdup(v[i].vars) : NULL;
        q.kind = v[i].is_chat ? OPENAI_CHAT : OPENAI_COMPLETION;
        assert_int_equal(enters(a, ALICE, NOON_US, &u), 0);
        assert_int_equal(auth_bind(u, &q, NOON_US, &fault, &levels), 0);
        assert_int_equal(levels.tokens.left, 1000 - v[i].tokens);
        auth_leave(u);
        openai_request_done(&q);
    }
}

static void a_limit_per_day_is_named(void **state)
{
    (void)state;
    AUTO(auth_free) struct auth *a = auth_of("alice " ALICE " tokens_per_day=100\n");
    struct openai_fault fault;
    struct auth_levels levels;
    struct auth_guest *u;
    struct openai_request some = request_of("{\"prompt\":\"1234\",\"max_tokens\":99}"),
                          huge = request_of("{\"prompt\":\"1234\",\"max_tokens\":100}");
    assert_int_equal(enters(a, ALICE, NOON_US, &u), 0);
    assert_int_equal(auth_bind(u, &huge, NOON_US, &fault, &levels), -EINVAL);
    assert_int_equal(fault.status, 400);
    assert_non_null(strstr(fault.text, "may use 101 tokens"));
    assert_non_null(strstr(fault.text, "allows 100 per day (tokens_per_day)"));
    assert_int_equal(auth_bind(u, &some, NOON_US, &fault, &levels), 0);
    auth_use(u, 2, NOON_US);
    auth_leave(u);
    assert_int_equal(enters(a, ALICE, NOON_US, &u), 0);
    openai_request_done(&some);
    some = request_of("{\"prompt\":\"1234\",\"max_tokens\":99}");
    assert_int_equal(auth_bind(u, &some, NOON_US, &fault, &levels), -EAGAIN);
    assert_int_equal(fault.status, 429);
    assert_string_equal(fault.param, "");
    assert_int_equal(levels.retry_s, 43200); // midnight
    assert_non_null(strstr(fault.text, "100 tokens per day (tokens_per_day); 98 are left, and the "
                                       "request may use 100; try again in 43200 s"));
    auth_leave(u);
    openai_request_done(&some);
    openai_request_done(&huge);
}

static void write_file(const char *path, const char *text, mode_t mode)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    chmod(path, mode);
}

static void a_reload_keeps_the_counts_of_running_requests(void **state)
{
    (void)state;
    char path[] = "/tmp/tandem-test-keys-XXXXXX";
    int fd = mkstemp(path);
    close(fd);
    write_file(path, "alice " ALICE " concurrency=1\nbob " BOB "\n", 0600);
    AUTO(auth_free) struct auth *a = NULL;
    assert_int_equal(auth_new(path, &a), 0);
    struct auth_guest *alice, *bob, *k;
    assert_int_equal(enters(a, ALICE, 1, &alice), 0);
    assert_int_equal(enters(a, BOB, 1, &bob), 0);
    write_file(path, "carol " CAROL "\nalice " ALICE " concurrency=2\n", 0600);
    assert_int_equal(auth_reload(a), 0);
    assert_int_equal(enters(a, BOB, 1, &k), -EACCES);
    auth_leave(bob); // it may finish
    assert_int_equal(enters(a, ALICE, 1, &k), 0);
    assert_int_equal(enters(a, ALICE, 1, &bob), -EAGAIN);
    auth_leave(k);
    assert_int_equal(enters(a, CAROL, 1, &k), 0);
    auth_leave(k);
    write_file(path, "alice\n", 0600);
    assert_int_equal(auth_reload(a), -EINVAL);
    assert_int_equal(auth_n_keys(a), 2);
    auth_leave(alice);
    unlink(path);
    assert_int_equal(auth_reload(a), -ENOENT);
    assert_int_equal(enters(a, ALICE, 1, &k), 0);
    auth_leave(k);
}

/* Leaks, and names of models that a reload replaces, are seen by the address sanitizer. */
static void reloads_replace_all_of_a_line(void **state)
{
    (void)state;
    char path[] = "/tmp/tandem-test-keys-XXXXXX";
    close(mkstemp(path));
    write_file(path, "bob " BOB " models=x\nalice " ALICE " models=a,b concurrency=1\n", 0600);
    AUTO(auth_free) struct auth *a = NULL;
    assert_int_equal(auth_new(path, &a), 0);
    struct auth_guest *u;
    assert_int_equal(enters(a, ALICE, 1, &u), 0);
    for (unsigned i = 0; i < 2; i++) {
        write_file(path, i ? "bob " BOB "\n" : "carol " CAROL "\nanna " ALICE " models=c\n", 0600);
        assert_int_equal(auth_reload(a), 0);
        char name[KEY_FILE_MAX_NAME + 1];
        auth_name(u, name);
        assert_string_equal(name, "anna"); // a removed key's requests finish as they are
        assert_true(auth_allows_model(u, "c", 1));
        assert_false(auth_allows_model(u, "a", 1));
    }
    assert_int_equal(auth_n_keys(a), 1);
    write_file(path, "anna " ALICE "\n", 0600);
    assert_int_equal(auth_reload(a), 0); // the key returns, as a new one
    auth_leave(u);
    assert_int_equal(enters(a, ALICE, 1, &u), 0);
    assert_true(auth_allows_model(u, "any", 3));
    auth_leave(u);
    unlink(path);
}

/* One of all allocations fails. Requests are parsed before, since jansson does not survive that. */
static int enters_and_binds(struct openai_request *q)
{
    static const char text[] = "alice " ALICE " models=a,b tokens_per_day=1000\nbob " BOB;
    AUTO(auth_free) struct auth *a = NULL;
    struct auth_guest *u = NULL;
    struct openai_fault fault = {0};
    int rc = auth_new_text("keys", text, sizeof(text) - 1, &a);
    rc = rc < 0 ? rc : enters(a, ALICE, 1, &u);
    if (rc < 0)
        return rc;
    rc = binds(u, q, &fault);
    rc = rc < 0 ? rc : auth_bind_flow(u, "", q, &fault);
    auth_leave(u);
    assert_int_equal(fault.status, rc < 0 ? 500 : 0);
    return rc;
}

static void a_failed_allocation_is_an_error(void **state)
{
    (void)state;
    unsigned n = 0;
    for (bool failed = true; failed;) {
        struct openai_request q = request_of("{\"prompt\":\"x\"}");
        failing_at(++n);
        int rc = enters_and_binds(&q);
        failed = failing_has_failed();
        assert_int_equal(rc, failed ? -ENOMEM : 0);
        openai_request_done(&q);
    }
    assert_int_equal(n, 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_known_key_is_accepted),
        cmocka_unit_test(a_digest_replaces_its_key),
        cmocka_unit_test(digests_that_differ_in_one_byte_are_two_keys),
        cmocka_unit_test(a_malformed_line_is_named_by_its_number),
        cmocka_unit_test(a_key_is_known_by_its_whole_digest),
        cmocka_unit_test(the_number_of_keys_is_limited),
        cmocka_unit_test(requests_per_minute_are_limited),
        cmocka_unit_test(concurrent_requests_are_limited),
        cmocka_unit_test(a_request_refused_for_concurrency_counts_per_minute),
        cmocka_unit_test(a_request_over_the_rate_takes_nothing),
        cmocka_unit_test(a_client_that_waits_for_its_choices_keeps_its_rate),
        cmocka_unit_test(every_choice_of_a_request_counts),
        cmocka_unit_test(a_key_limits_the_tokens_of_an_answer),
        cmocka_unit_test(each_name_is_one_flow_whatever_the_salt),
        cmocka_unit_test(without_a_key_each_address_is_one_flow),
        cmocka_unit_test(prefixes_are_shared_only_under_one_name_and_salt),
        cmocka_unit_test(a_key_may_use_only_its_models),
        cmocka_unit_test(a_request_reserves_what_it_may_use),
        cmocka_unit_test(a_request_without_a_limit_gets_a_share),
        cmocka_unit_test(a_reload_keeps_the_counts_of_running_requests),
        cmocka_unit_test(the_name_of_a_key_is_known),
        cmocka_unit_test(lengths_are_checked_at_both_ends),
        cmocka_unit_test(a_completion_keeps_the_default_if_it_fits),
        cmocka_unit_test(prompts_take_turns_within_the_limit),
        cmocka_unit_test(all_of_a_long_name_and_a_long_salt_counts),
        cmocka_unit_test(what_a_request_may_use_is_estimated),
        cmocka_unit_test(a_limit_per_day_is_named),
        cmocka_unit_test(reloads_replace_all_of_a_line),
        cmocka_unit_test(a_failed_allocation_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

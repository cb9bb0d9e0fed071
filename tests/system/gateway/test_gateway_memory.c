/* The memory of all requests together stays within max_bodies_mib, and goes back to the system. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/buf.h"
#include "base/mem.h"
#include "lib/lib.h"
#include "lib/rigs/stage.h"

#define BODY_KIB 845
#define MIB 1024 // in KiB

/* A figure of /proc/PID/status in KiB. */
static long kib_of(pid_t pid, const char *name)
{
    char path[64], line[256];
    long kib = -1;
    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (kib < 0 && fgets(line, sizeof(line), f))
        if (strncmp(line, name, strlen(name)) == 0)
            kib = strtol(line + strlen(name) + 1, NULL, 10);
    fclose(f);
    assert_true(kib >= 0);
    return kib;
}

/* Whether the process becomes smaller than that within 60 s. */
static bool shrinks(pid_t pid, long kib)
{
    for (unsigned i = 0; i < 600 && kib_of(pid, "VmRSS") > kib; i++)
        poll(NULL, 0, 100);
    return kib_of(pid, "VmRSS") <= kib;
}

/* A chat of BODY_KIB whose tool has a parameter of any type per 10 bytes: as a tree it takes 27
 * MiB. */
static char *chat_with_parameters(void)
{
    AUTO(buf_done) struct buf b = {0};
    buf_init(&b, 2 << 20);
    buf_puts(&b, "{\"messages\":[{\"role\":\"user\",\"content\":\"stall\"}],\"stream\":true,"
                 "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{"
                 "\"properties\":{\"a\":{}");
    for (unsigned i = 0; b.len < BODY_KIB << 10; i++)
        buf_printf(&b, ",\"%05x\":{}", i);
    buf_puts(&b, "}}}}]}");
    return buf_take(&b);
}

static void tools_of_many_requests_stay_within_the_limit(void **state)
{
    (void)state;
    if (LIB_SANITIZED)
        lib_leave_out("a sanitizer keeps freed memory");
    enum { N = 222 };
    const char *more[] = {"--tool-format", "qwen-coder", "--request-timeout", "600", NULL};
    unsigned at, n = (unsigned)lib_amount(20, 30, N);
    struct child s = gateway_start(stage.address, more, &at);
    struct http_client c[N];
    AUTO(mem_free) char *body = chat_with_parameters();
    long before = kib_of(s.pid, "VmRSS");
    for (unsigned i = 0; i < n; i++) {
        c[i] = http_client_open_from(1 + i, at); // one client may use half of the limit
        http_client_ask(&c[i], "POST /v1/chat/completions", "", body);
    }
    for (unsigned i = 0; i < n; i++)
        assert_int_equal(http_client_read_head(&c[i], 300000), 200);
    gateway_await_running(stage.verifier, n);
    long most = kib_of(s.pid, "VmHWM");
    print_message("%u requests: %ld MiB before, %ld MiB at most\n", n, before / MIB, most / MIB);
    assert_true(most < before + 384 * MIB); // 30 trees: 800 MiB; the limit: 256 MiB
    assert_true(shrinks(s.pid, before + 64 * MIB));
    for (unsigned i = 0; i < n; i++)
        http_client_close(&c[i]);
    gateway_await_running(stage.verifier, 0);
    child_stop(&s);
}

static void memory_goes_back_after_a_long_text(void **state)
{
    (void)state;
    if (LIB_SANITIZED)
        lib_leave_out("a sanitizer keeps freed memory");
    unsigned at;
    struct child s = gateway_start(stage.address, NULL, &at);
    AUTO(buf_done) struct buf b = {0};
    buf_init(&b, 16 << 20);
    buf_puts(&b, "{\"prompt\":\"");
    while (b.len < 8000 << 10)
        buf_puts(&b, "aaaaaaaaaaaaaaaa");
    buf_puts(&b, "\"}");
    long before = kib_of(s.pid, "VmRSS");
    struct http_answer a = http_call(at, "POST", "/tokenize", b.data);
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(a.body, "\"count\":8192"));
    http_answer_done(&a);
    long after = kib_of(s.pid, "VmRSS");
    print_message("%ld MiB before, %ld MiB after\n", before / MIB, after / MIB);
    assert_true(shrinks(s.pid, before + 40 * MIB));
    child_stop(&s);
}

static void a_body_whose_tree_is_too_large_is_413(void **state)
{
    (void)state;
    const char *more[] = {"--max-bodies-mib", "8", "--max-body-kib", "1024", NULL};
    unsigned at;
    struct child s = gateway_start(stage.address, more, &at);
    AUTO(mem_free) char *body = chat_with_parameters();
    is_error(http_call(at, "POST", "/v1/chat/completions", body), 413, NULL,
             "one client may use 4 MiB");
    is_error(http_call(at, "POST", "/tokenize", body), 413, NULL, "one client may use 4 MiB");
    struct http_answer a = http_call(at, "POST", "/v1/completions", "{\"prompt\":\"say 1\"}");
    assert_int_equal(a.status, 200);
    http_answer_done(&a);
    child_stop(&s);
}

/* The text of 2 MiB fits, its 2 million ids do not. */
static void ids_that_find_no_memory_are_refused(void **state)
{
    (void)state;
    const char *more[] = {"--max-bodies-mib", "16", "--max-body-kib", "4096", NULL};
    unsigned at;
    struct child s = gateway_start(stage.address, more, &at);
    AUTO(buf_done) struct buf b = {0};
    buf_init(&b, 4 << 20);
    buf_puts(&b, "{\"prompt\":\"");
    while (b.len < 2 << 20)
        buf_puts(&b, "aaaaaaaaaaaaaaaa");
    buf_puts(&b, "\"}");
    is_error(http_call(at, "POST", "/tokenize", b.data), 413, NULL, "one client may use 8 MiB");
    child_stop(&s);
}

/* ---- one client beside others ---- */

#define SLOW_BYTES (1000u << 10)

/* A request whose body lacks its last byte. */
static struct http_client slow_body(unsigned host, unsigned port, const char *header)
{
    struct http_client c = http_client_open_from(host, port);
    AUTO(mem_free) char *body = malloc(SLOW_BYTES);
    memset(body, ' ', SLOW_BYTES);
    http_client_print(&c,
                      "POST /v1/completions HTTP/1.1\r\nHost: x\r\n%sContent-Length: %u\r\n\r\n",
                      header, SLOW_BYTES);
    http_client_send(&c, body, SLOW_BYTES - 1);
    return c;
}

/* The bytes that all requests count now. */
static unsigned long counted_bytes(unsigned port, const char *header)
{
    struct http_answer a = http_ask(port, "GET /metrics", header, "");
    const char *value = strstr(a.body, "\ntandem_gateway_body_bytes{");
    assert_non_null(value);
    unsigned long n = strtoul(strstr(value, "} ") + 2, NULL, 10);
    http_answer_done(&a);
    return n;
}

/* A good request with 100 KiB of blanks, which is the same for the server as a long prompt. */
static struct http_answer padded(unsigned host, unsigned port, const char *header)
{
    char body[100 << 10];
    struct http_client c = http_client_open_from(host, port);
    snprintf(body, sizeof(body), "{\"prompt\":\"say 1\"%*s}", (int)sizeof(body) - 32, "");
    http_client_ask(&c, "POST /v1/completions", header, body);
    struct http_answer a = http_client_read(&c, 20000);
    http_client_close(&c);
    return a;
}

static bool counts_at_least(unsigned port, unsigned long bytes)
{
    for (unsigned i = 0; i < 600 && counted_bytes(port, "") < bytes; i++)
        poll(NULL, 0, 100);
    return counted_bytes(port, "") >= bytes;
}

/* The memory of a request is freed a little later than the client has the answer. */
static bool counts_at_most(unsigned port, unsigned long bytes)
{
    for (unsigned i = 0; i < 600 && counted_bytes(port, "") > bytes; i++)
        poll(NULL, 0, 100);
    return counted_bytes(port, "") <= bytes;
}

#define SHARE (2 * (SLOW_BYTES - 1)) // two such bodies; the share of one client is 2 MiB

/* 6 bodies of 1 MB, which is more than the limit of 4 MiB. */
static void neighbours_are_answered_beside(unsigned host, const char *header, unsigned neighbour,
                                           const char *its_header, const char *const *more)
{
    enum { N = 6 };
    struct http_client c[N];
    unsigned at, n_refused = 0;
    struct child s = gateway_start(stage.address, more, &at);
    for (unsigned i = 0; i < N; i++) {
        c[i] = slow_body(host, at, header);
        for (unsigned j = 0; i == 1 && j < 600 && counted_bytes(at, header) < SHARE; j++)
            poll(NULL, 0, 100);
    }
    /* Bytes of a body that will be refused may count for a moment. */
    assert_true(counted_bytes(at, header) >= SHARE);
    http_client_send(&c[N - 1], " ", 1); // the answer comes once this body has arrived
    is_error(http_client_read(&c[N - 1], 20000), 429, NULL, "your other requests use");
    http_answer_is(padded(neighbour, at, its_header), 200, "", "");
    for (unsigned i = 0; i < N - 1; i++) {
        http_client_send(&c[i], " ", 1);
        struct http_answer a = http_client_read(&c[i], 20000);
        n_refused += a.status == 429;
        assert_true(a.status == 429 || a.status == 400); // 400: blanks are no JSON
        http_answer_done(&a);
    }
    assert_int_equal(n_refused, N - 1 - 2);
    http_answer_is(padded(host, at, header), 200, "", "");
    for (unsigned i = 0; i < N; i++)
        http_client_close(&c[i]);
    child_stop(&s);
}

#define SMALL "--max-bodies-mib", "4", "--max-body-kib", "1024", "--request-timeout", "600"

static void slow_bodies_of_an_address_leave_memory_for_others(void **state)
{
    (void)state;
    const char *more[] = {SMALL, NULL};
    neighbours_are_answered_beside(1, "", 2, "", more);
}

static void slow_bodies_of_a_key_leave_memory_for_others(void **state)
{
    (void)state;
    const char *more[] = {SMALL, "--api-keys", stage.keys, NULL};
    stage_write_keys("greedy one-111111111111111111\nmodest two-222222222222222222\n");
    neighbours_are_answered_beside(1, "X-API-Key: one-111111111111111111\r\n", 1,
                                   "X-API-Key: two-222222222222222222\r\n", more);
}

/* The values of a body count more than its bytes. Alone they fit, beside another request of the
 * same client they do not. */
static void values_count_beside_the_other_requests_of_a_client(void **state)
{
    (void)state;
    const char *more[] = {SMALL, NULL};
    unsigned at;
    struct child s = gateway_start(stage.address, more, &at);
    AUTO(buf_done) struct buf b = {0};
    buf_init(&b, 1 << 20);
    buf_puts(&b, "{\"prompt\":\"say 1\",\"stop\":[0");
    while (b.len < 18000)
        buf_puts(&b, ",0");
    buf_puts(&b, "]}");
    is_error(http_call(at, "POST", "/v1/completions", b.data), 400, "stop[0]", "");
    struct http_client c = slow_body(1, at, "");
    for (unsigned i = 0; i < 600 && counted_bytes(at, "") < SLOW_BYTES - 1; i++)
        poll(NULL, 0, 100);
    is_error(http_call(at, "POST", "/v1/completions", b.data), 429, NULL,
             "your other requests use");
    http_client_close(&c);
    child_stop(&s);
}

/* "flood N" sends N tokens of 1,000 bytes. */
static void an_answer_that_finds_no_memory_is_refused(void **state)
{
    (void)state;
    const char *more[] = {SMALL, NULL};
    unsigned at;
    struct child s = gateway_start(stage.address, more, &at);
    is_error(
        http_call(at, "POST", "/v1/completions", "{\"prompt\":\"flood 3000\",\"max_tokens\":3000}"),
        413, NULL, "one client may use 2 MiB");
    assert_true(counts_at_most(at, 0));
    struct http_client c = slow_body(1, at, "");
    assert_true(counts_at_least(at, SLOW_BYTES - 1));
    is_error(
        http_call(at, "POST", "/v1/completions", "{\"prompt\":\"flood 900\",\"max_tokens\":900}"),
        429, NULL, "your other requests use");
    http_answer_is(padded(2, at, ""), 200, "", "");
    http_client_close(&c);
    assert_true(counts_at_most(at, 0));
    http_answer_is(
        http_call(at, "POST", "/v1/completions", "{\"prompt\":\"flood 500\",\"max_tokens\":500}"),
        200, "", "finish_reason");
    gateway_await_running(stage.verifier, 0);
    child_stop(&s);
}

/* Streams that nobody reads pause; one that is read then is complete. */
static void unread_streams_leave_memory_for_others(void **state)
{
    (void)state;
    enum { N = 16, TOKENS = 20000 };
    const char *more[] = {SMALL, "--reader-timeout", "600", NULL};
    struct http_client c[N];
    unsigned at, n = 0, status = 200, n_tokens = 0;
    struct child s = gateway_start(stage.address, more, &at);
    while (n < N && status == 200) {
        c[n] = http_client_open(at);
        http_client_ask(&c[n], "POST /v1/completions", "",
                        "{\"prompt\":\"flood 20000\",\"max_tokens\":20000,\"stream\":true}");
        status = (unsigned)http_client_read_head(&c[n++], 20000);
        assert_true(status == 200 || (status == 429 && n > 1)); // 429: they have used up the share
    }
    assert_true(counts_at_least(at, 1 << 20));
    http_answer_is(padded(2, at, ""), 200, "", "");
    assert_true(counted_bytes(at, "") <= (4 << 20) / 2 + N * TOKENS * 4); // share, token ids
    while (n > 1)
        http_client_close(&c[--n]);
    for (char *e; (e = http_client_event(&c[0], 60000, NULL)); free(e))
        n_tokens += strstr(e, "\"finish_reason\":null") != NULL;
    assert_int_equal(n_tokens, TOKENS);
    http_client_close(&c[0]);
    gateway_await_running(stage.verifier, 0);
    child_stop(&s);
}

/* The value of a series that has one sample. */
static unsigned long series(unsigned port, const char *name)
{
    char line[128];
    struct http_answer a = http_call(port, "GET", "/metrics", "");
    snprintf(line, sizeof(line), "\n%s{", name);
    const char *value = strstr(a.body, line);
    assert_non_null(value);
    unsigned long n = strtoul(strstr(value, "} ") + 2, NULL, 10);
    http_answer_done(&a);
    return n;
}

static unsigned n_fillers;

/* Bodies that lack their last byte take all but `rest` bytes; each client has a part of what is
 * free. */
static void fill(unsigned port, struct http_client *c, size_t rest)
{
    unsigned long used;
    n_fillers = 0;
    while ((used = counted_bytes(port, "")) + rest < 1 << 20) {
        size_t n = ((1 << 20) - used - rest / 2) / 2;
        AUTO(mem_free) char *body = malloc(n);
        memset(body, ' ', n);
        c[n_fillers] = http_client_open_from(10 + n_fillers, port);
        http_client_print(&c[n_fillers],
                          "POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
                          "Content-Length: %zu\r\n\r\n",
                          n + 1);
        http_client_send(&c[n_fillers++], body, n);
        assert_true(counts_at_least(port, used + n));
    }
}

static void completes_and_is_freed(unsigned port, unsigned long before)
{
    AUTO(mem_free) char *body = chat_body("run 4000", ""); // it sets no limit
    http_answer_is(http_call(port, "POST", "/v1/chat/completions", body), 200, "", "w3999");
    assert_true(counts_at_most(port, before));
}

/* The verifier sends 4,000 tokens although its context has 1,024 positions, so their ids take more
 * memory than the request was charged for. */
static void an_answer_whose_ids_are_lost_is_counted(void **state)
{
    (void)state;
    const char *more[] = {
        "--max-bodies-mib", "1", "--max-body-kib", "512", "--request-timeout", "600", NULL};
    struct http_client c[32];
    unsigned at;
    fake_verifier_continues(stage.verifier, true);
    struct child s = gateway_start(stage.address, more, &at);
    completes_and_is_freed(at, 0);
    assert_int_equal(series(at, "tandem_gateway_not_resumable_total"), 0);
    fill(at, c, 15 << 10);
    unsigned long filled = counted_bytes(at, "");
    for (unsigned n = 0; n < 2; n++)
        completes_and_is_freed(at, filled);
    assert_int_equal(series(at, "tandem_gateway_not_resumable_total"), 2);
    for (unsigned i = 0; i < n_fillers; i++)
        http_client_close(&c[i]);
    fake_verifier_continues(stage.verifier, false);
    free(child_wait_log(&s, "can no longer be resumed n=1:"));
    child_stop(&s);
}

static void a_stop_ends_requests_that_wait_to_be_read(void **state)
{
    (void)state;
    enum { N = 12 };
    const char *more[] = {"--drain-timeout", "0", "--request-timeout", "600", NULL};
    unsigned at;
    struct child s = gateway_start(stage.address, more, &at);
    struct http_client c[N];
    AUTO(mem_free) char *body = chat_with_parameters();
    for (unsigned i = 0; i < N; i++) {
        c[i] = http_client_open(at);
        http_client_ask(&c[i], "POST /v1/chat/completions", "", body);
    }
    child_stop(&s);
    for (unsigned i = 0; i < N; i++)
        http_client_close(&c[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tools_of_many_requests_stay_within_the_limit),
        cmocka_unit_test(memory_goes_back_after_a_long_text),
        cmocka_unit_test(a_body_whose_tree_is_too_large_is_413),
        cmocka_unit_test(ids_that_find_no_memory_are_refused),
        cmocka_unit_test(slow_bodies_of_an_address_leave_memory_for_others),
        cmocka_unit_test(slow_bodies_of_a_key_leave_memory_for_others),
        cmocka_unit_test(values_count_beside_the_other_requests_of_a_client),
        cmocka_unit_test(an_answer_whose_ids_are_lost_is_counted),
        cmocka_unit_test(an_answer_that_finds_no_memory_is_refused),
        cmocka_unit_test(unread_streams_leave_memory_for_others),
        cmocka_unit_test(a_stop_ends_requests_that_wait_to_be_read),
    };
    return cmocka_run_group_tests(tests, stage_open_verifier, stage_close_verifier);
}

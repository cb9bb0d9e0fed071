/* Browser pages of other origins (CORS): which ones may use the gateway. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/mem.h"
#include "lib/clients/http_client.h"
#include "lib/lib.h"
#include "lib/rigs/services.h"
#include "lib/rigs/stage.h"

#define ALICE "sk-alice-0123456789"

static bool allows_origin(struct http_answer a)
{
    bool allows = strstr(a.head, "Access-Control-Allow-Origin: ") != NULL;
    http_answer_done(&a);
    return allows;
}

#define PREFLIGHT                                                                                  \
    "Access-Control-Request-Method: POST\r\n"                                                      \
    "Access-Control-Request-Headers: authorization,x-stainless-os\r\n"

static void pages_of_configured_origins_are_accepted(void **state)
{
    (void)state;
    unsigned port;
    const char *more[] = {"--api-keys", stage.keys, "--cors-origins", "https://a.example", NULL};
    stage_write_keys("alice " ALICE "\n");
    struct child s = gateway_start(stage.address, more, &port);
    struct http_answer a = http_ask(port, "OPTIONS /v1/chat/completions",
                                    "Origin: https://a.example\r\n" PREFLIGHT, "");
    assert_non_null(strstr(a.head, "Access-Control-Allow-Origin: https://a.example\r\n"));
    assert_non_null(strstr(a.head, "Access-Control-Allow-Headers: authorization,x-stainless-os"));
    assert_non_null(strstr(a.head, "Vary: Origin"));
    assert_non_null(strstr(a.head, "\r\nAccess-Control-Max-Age: 600\r\n"));
    assert_non_null(
        strstr(a.head, "\r\nAccess-Control-Expose-Headers: X-Request-Id, Retry-After, "));
    http_answer_is(a, 204, "Access-Control-Allow-Methods: GET, POST", "");
    http_answer_is(http_ask(port, "POST /v1/completions",
                            "Origin: https://a.example\r\nX-API-Key: " ALICE "\r\n",
                            "{\"prompt\":\"say 1\"}"),
                   200, "Access-Control-Allow-Origin: https://a.example\r\n", "w0");
    http_answer_is(http_ask(port, "POST /v1/completions", "Origin: https://a.example\r\n", "{}"),
                   401, "Access-Control-Allow-Origin: https://a.example\r\n",
                   "API key"); // the page can read the error
    static const char *const others[] = {"", "Origin: https://b.example\r\n", "Origin: null\r\n",
                                         "Origin: https://a.example.org\r\n"};
    for (size_t i = 0; i < ARRAY_LEN(others); i++)
        assert_false(allows_origin(http_ask(port, "GET /health", others[i], "")));
    child_stop(&s);
}

/* Names of fields that a page asks for are repeated, up to 1024 bytes. */
static void long_lists_of_fields_are_not_repeated(void **state)
{
    (void)state;
    unsigned port;
    const char *more[] = {"--cors-origins", "https://a.example", NULL};
    struct child s = gateway_start(stage.address, more, &port);
    for (unsigned n = 1024; n <= 1025; n++) {
        char fields[1100], header[1400], want[1200];
        memset(fields, 'f', n);
        fields[n] = 0;
        snprintf(header, sizeof(header),
                 "Origin: https://a.example\r\nAccess-Control-Request-Method: POST\r\n"
                 "Access-Control-Request-Headers: %s\r\n",
                 fields);
        snprintf(want, sizeof(want), "\r\nAccess-Control-Allow-Headers: %s\r\n",
                 n > 1024 ? "Authorization, Content-Type" : fields);
        http_answer_is(http_ask(port, "OPTIONS /v1/models", header, ""), 204, want, "");
    }
    child_stop(&s);
}

/* The status of GET /health that is requested from `host` without an origin. */
static int read_from(unsigned port, const char *host)
{
    struct http_client c = http_client_open(port);
    http_client_print(&c, "GET /health HTTP/1.1\r\nHost: %s\r\n\r\n", host);
    struct http_answer a = http_client_read(&c, 10000);
    int status = a.status;
    http_answer_done(&a);
    http_client_close(&c);
    return status;
}

static void a_server_without_keys_does_not_answer_for_foreign_names(void **state)
{
    (void)state;
    unsigned port;
    static const char *const local[] = {
        "127.0.0.1:80", "localhost", "[::1]:80",  "10.0.0.1",          "a.localhost:80",
        "a.LocalHost",  "desktop",   "desktop:8", "desktop:8.example", ""};
    static const char *const foreign[] = {"a.example", "a.example:80", "127.a.example",
                                          "localhost.a.example", "localhost."};
    struct child s = gateway_start(stage.address, NULL, &port);
    for (size_t i = 0; i < ARRAY_LEN(local); i++)
        assert_int_equal(read_from(port, local[i]), 200);
    for (size_t i = 0; i < ARRAY_LEN(foreign); i++)
        assert_int_equal(read_from(port, foreign[i]), 403);
    child_stop(&s);
    const char *more[] = {"--cors-origins", "https://A.example:80,https://b.example", NULL};
    s = gateway_start(stage.address, more, &port);
    assert_int_equal(read_from(port, "a.example:80"), 200);
    assert_int_equal(read_from(port, "b.example"), 200);
    assert_int_equal(read_from(port, "b.example:80"), 403);
    child_stop(&s);
    const char *any[] = {"--cors-origins", "*", NULL};
    s = gateway_start(stage.address, any, &port);
    assert_int_equal(read_from(port, "a.example"), 200);
    child_stop(&s);
    const char *keys[] = {"--api-keys", stage.keys, NULL};
    stage_write_keys("alice " ALICE "\n");
    s = gateway_start(stage.address, keys, &port);
    assert_int_equal(read_from(port, "a.example"), 200);
    child_stop(&s);
}

/* The status of a completion that a page of `origin` requests from `host`. */
static int asked_by(unsigned port, const char *host, const char *origin)
{
    static const char body[] = "{\"prompt\":\"say 1\"}";
    struct http_client c = http_client_open(port);
    http_client_print(&c,
                      "POST /v1/completions HTTP/1.1\r\nHost: %s\r\nOrigin: %s\r\n"
                      "Content-Type: text/plain\r\nContent-Length: %zu\r\n\r\n%s",
                      host, origin, strlen(body), body);
    struct http_answer a = http_client_read(&c, 10000);
    int status = a.status;
    http_answer_done(&a);
    http_client_close(&c);
    return status;
}

static void other_pages_cannot_use_a_server_without_keys(void **state)
{
    (void)state;
    unsigned port;
    struct child s = gateway_start(stage.address, NULL, &port);
    assert_int_equal(asked_by(port, "127.0.0.1:80", "http://127.0.0.1:80"), 200);
    assert_int_equal(asked_by(port, "localhost:80", "http://localhost:80"), 200);
    assert_int_equal(asked_by(port, "[::1]:80", "http://[::1]:80"), 200);
    assert_int_equal(asked_by(port, "127.0.0.1:80", "http://127.0.0.1:81"), 403);
    assert_int_equal(asked_by(port, "127.0.0.1:80", "https://a.example"), 403);
    assert_int_equal(asked_by(port, "127.0.0.1:80", "null"), 403);
    assert_int_equal(asked_by(port, "a.example:80", "http://a.example:80"), 403); // rebound
    assert_int_equal(asked_by(port, "127.a.example", "http://127.a.example"), 403);
    assert_int_equal(asked_by(port, "localhost.a.example", "http://localhost.a.example"), 403);
    child_stop(&s);
    const char *more[] = {"--cors-origins", "https://a.example", NULL};
    s = gateway_start(stage.address, more, &port);
    assert_int_equal(asked_by(port, "127.0.0.1:80", "https://a.example"), 200);
    assert_int_equal(asked_by(port, "127.0.0.1:80", "https://b.example"), 403);
    child_stop(&s);
}

static void pages_of_any_origin_are_accepted_only_if_configured(void **state)
{
    (void)state;
    unsigned port;
    const char *more[] = {"--cors-origins", "*", NULL};
    struct child s = gateway_start(stage.address, more, &port);
    http_answer_is(http_ask(port, "GET /v1/models", "Origin: null\r\n", ""), 200,
                   "Access-Control-Allow-Origin: *\r\n", "fake/model");
    child_stop(&s);
    s = gateway_start(stage.address, NULL, &port);
    http_answer_is(http_ask(port, "OPTIONS /v1/models", PREFLIGHT, ""), 405,
                   "\r\nAllow: GET, HEAD\r\n", "method");
    http_answer_is(http_ask(port, "GET /v1/completions", "", ""), 405, "\r\nAllow: POST\r\n",
                   "method");
    assert_false(
        allows_origin(http_ask(port, "GET /v1/models", "Origin: https://a.example\r\n", "")));
    child_stop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_of_configured_origins_are_accepted),
        cmocka_unit_test(long_lists_of_fields_are_not_repeated),
        cmocka_unit_test(a_server_without_keys_does_not_answer_for_foreign_names),
        cmocka_unit_test(other_pages_cannot_use_a_server_without_keys),
        cmocka_unit_test(pages_of_any_origin_are_accepted_only_if_configured),
    };
    return cmocka_run_group_tests(tests, stage_open_verifier, stage_close_verifier);
}

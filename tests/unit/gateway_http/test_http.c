/* test_http.c - the HTTP server over sockets: its limits at both sides, and what the application
 * sees of a request. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/buf.h"
#include "base/metrics.h"
#include "gateway/http/answer.h"
#include "gateway/http/http.h"
#include "gateway/http/listen.h"
#include "lib/clients/http_client.h"
#include "lib/fakes/failing.h"
#include "lib/lib.h"

#define WAIT_MS 20000
#define MAX_HEADER 3000
#define MAX_BODY 5000
#define MAX_URL 2048
#define PLACES 150
#define DISCARD ((size_t)64 << 20)

static struct http_server *server;
static unsigned port;
static int listen_fd;
static char seen[4096]; // "METHOD PATH BODYLEN" of the last request
static unsigned n_seen, n_admitted;
static atomic_uint n_closed;
static atomic_bool probes, listened_at_close; // at the end of a request, if it probes

/* So the addresses of the test are apart in the table. */
uint64_t __wrap_rng_secret(void);
uint64_t __wrap_rng_secret(void)
{
    return 7;
}

/* Whether the server takes a new connection. */
static bool listens(void)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool yes = connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0;
    close(fd);
    return yes;
}

static void on_close(void *user)
{
    (void)user;
    if (atomic_load(&probes))
        atomic_store(&listened_at_close, listens());
    atomic_fetch_add(&n_closed, 1);
}

static void refuse_some(void *user, struct http_request *r)
{
    assert_ptr_equal(user, &n_seen);
    n_admitted++;
    if (strncmp(http_path(r), "/refused", 8) == 0)
        answer_error(r, 403, "refused early", "");
}

static void answer(void *user, struct http_request *r)
{
    size_t len;
    struct buf body;
    assert_ptr_equal(user, &n_seen);
    http_body(r, &len);
    snprintf(seen, sizeof(seen), "%s %.100s %zu", http_method(r), http_path(r), len);
    n_seen++;
    if (strcmp(http_path(r), "/wait") == 0) {
        http_on_close(r, on_close, NULL);
        return;
    }
    buf_init(&body, 1 << 20);
    buf_puts(&body, "fine");
    http_reply(r, 200, "text/plain", &body);
}

static int start(void **state)
{
    (void)state;
    struct sockaddr_in a;
    socklen_t len = sizeof(a);
    const struct http_options o = {.n_threads = 1,
                                   .max_connections = PLACES,
                                   .max_per_ip = PLACES,
                                   .max_body = MAX_BODY,
                                   .max_bodies = 4 * MAX_BODY,
                                   .max_header = MAX_HEADER,
                                   .max_unread = 1000,
                                   .reader_us = 60000000,
                                   .request_us = 60000000,
                                   .idle_us = 60000000,
                                   .ping_us = 60000000,
                                   .admit = refuse_some};
    n_seen = n_admitted = 0;
    atomic_store(&n_closed, 0);
    assert_int_equal(listen_open("127.0.0.1:0", &listen_fd), 0);
    assert_int_equal(getsockname(listen_fd, (struct sockaddr *)&a, &len), 0);
    port = ntohs(a.sin_port);
    return http_new(&o, listen_fd, answer, &n_seen, &server);
}

static int end(void **state)
{
    (void)state;
    http_free(server);
    return 0;
}

static struct http_answer sent(const char *text, size_t len)
{
    struct http_client c = http_client_open(port);
    http_client_send(&c, text, len);
    struct http_answer a = http_client_read(&c, WAIT_MS);
    http_client_close(&c);
    return a;
}

/* The answer is an error object of this status, and closes the connection. */
static void refused(struct http_answer a, int status, const char *part)
{
    if (a.status != status || !strstr(a.body, part) || !strstr(a.head, "Connection: close\r\n") ||
        !strstr(a.head, "Content-Type: application/json\r\n") ||
        !strstr(a.body, "\"type\":\"invalid_request_error\""))
        fail_msg("not %d '%s', but %d %s %s", status, part, a.status, a.head, a.body);
    http_answer_done(&a);
}

static void fine(struct http_answer a)
{
    http_answer_is(a, 200, "Content-Type: text/plain\r\n", "fine");
}

static void fill(struct buf *to, char c, size_t n)
{
    for (size_t i = 0; i < n; i++)
        buf_add(to, &c, 1);
}

/* A header of n bytes, as the server counts them: of each field 4 more than its text, and the
 * path. */
static struct http_answer header_of(size_t n)
{
    AUTO(buf_done) struct buf text = {0};
    buf_init(&text, 1 << 16);
    buf_puts(&text, "GET /a HTTP/1.1\r\nHost: x\r\nX: ");
    fill(&text, 'v', n - strlen("/a") - strlen("Hostx") - 4 - strlen("X") - 4);
    buf_puts(&text, "\r\n\r\n");
    return sent(text.data, text.len);
}

static void a_header_may_have_the_limit(void **state)
{
    (void)state;
    fine(header_of(MAX_HEADER));
    assert_int_equal(n_admitted, 1);
    refused(header_of(MAX_HEADER + 1), 431, "too large: 3001 bytes, at most 3000");
    assert_int_equal(n_admitted, 1); // never seen by the application
    assert_int_equal(n_seen, 1);
}

/* Path and query; each name and value counts with its separators. */
static struct http_answer url_of(size_t n_path, const char *query)
{
    AUTO(buf_done) struct buf text = {0};
    buf_init(&text, 1 << 16);
    buf_puts(&text, "GET /");
    fill(&text, 'p', n_path - 1);
    buf_printf(&text, "%s HTTP/1.1\r\nHost: x\r\n\r\n", query);
    return sent(text.data, text.len);
}

static void a_path_and_its_query_may_have_the_limit(void **state)
{
    (void)state;
    fine(url_of(MAX_URL, ""));
    refused(url_of(MAX_URL + 1, ""), 414, "too long: 2049 bytes, at most 2048");
    fine(url_of(MAX_URL - 11, "?abc=1&de=4")); // 3 + 1 + 2 and 2 + 1 + 2
    refused(url_of(MAX_URL - 10, "?abc=1&de=4"), 414, "2049 bytes");
    assert_int_equal(n_seen, 2);
}

static struct http_answer body_of(size_t n, const char *header)
{
    AUTO(buf_done) struct buf text = {0};
    buf_init(&text, 1 << 20);
    buf_printf(&text, "POST /b HTTP/1.1\r\nHost: x\r\n%sContent-Length: %zu\r\n\r\n", header, n);
    fill(&text, 'b', n);
    return sent(text.data, text.len);
}

static void a_body_may_have_the_limit(void **state)
{
    (void)state;
    fine(body_of(MAX_BODY, ""));
    assert_string_equal(seen, "POST /b 5000");
    refused(body_of(MAX_BODY + 1, ""), 413, "at most 4 KiB");
    assert_int_equal(n_seen, 1);
    assert_int_equal(http_body_bytes(server), 0);
    assert_int_equal(http_freed_bytes(server), MAX_BODY);
}

/* Whether the server answers before it has read a body of this length. */
static bool answers_before_the_body(size_t n, const char *header)
{
    struct http_client c = http_client_open(port);
    http_client_print(&c, "POST /b HTTP/1.1\r\nHost: x\r\n%sContent-Length: %zu\r\n\r\n", header,
                      n);
    struct pollfd p = {c.fd, POLLIN, 0};
    bool is = poll(&p, 1, *header || n > MAX_BODY + DISCARD ? WAIT_MS : 200) == 1;
    if (is)
        refused(http_client_read(&c, WAIT_MS), 413, "at most 4 KiB");
    http_client_close(&c);
    return is;
}

static void a_large_body_is_read_unless_the_client_asks_or_it_is_huge(void **state)
{
    (void)state;
    assert_false(answers_before_the_body(MAX_BODY + 1, ""));
    assert_false(answers_before_the_body(MAX_BODY + DISCARD, ""));
    assert_true(answers_before_the_body(MAX_BODY + DISCARD + 1, ""));
    assert_true(answers_before_the_body(MAX_BODY + 1, "Expect: 100-continue\r\n"));
}

static void a_request_refused_early_never_reaches_the_handler(void **state)
{
    (void)state;
    struct http_client c = http_client_open(port);
    http_client_ask(&c, "POST /refused", "", "0123456789");
    http_answer_is(http_client_read(&c, WAIT_MS), 403, "", "refused early");
    http_client_ask(&c, "GET /next", "", ""); // the body was read
    fine(http_client_read(&c, WAIT_MS));
    http_client_close(&c);
    assert_int_equal(n_seen, 1);
    c = http_client_open(port);
    http_client_print(&c, "POST /refused HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
                          "Content-Length: 9\r\n\r\n");
    http_answer_is(http_client_read(&c, WAIT_MS), 403, "Connection: close\r\n", "refused early");
    assert_true(http_client_wait_close(&c, WAIT_MS));
    http_client_close(&c);
}

/* libmicrohttpd has limits for connections, too, and divides them among its threads. */
static void every_place_is_served(void **state)
{
    (void)state;
    struct http_client c[PLACES];
    for (unsigned i = 0; i < PLACES; i++) {
        c[i] = http_client_open(port);
        http_client_ask(&c[i], "GET /a", "", "");
        fine(http_client_read(&c[i], WAIT_MS));
    }
    for (unsigned i = 0; i < PLACES; i++)
        http_client_close(&c[i]);
}

static void ambiguous_headers_are_400(void **state)
{
    (void)state;
    static const char text[] = "GET /a HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n";
    refused(sent(text, sizeof(text) - 1), 400, "must not repeat");
    assert_int_equal(n_admitted, 0);
}

static void ids_are_kept_or_made(void **state)
{
    (void)state;
    static const char named[] = "GET /a HTTP/1.1\r\nHost: x\r\nX-Request-Id: mine-1\r\n\r\n",
                      bad[] = "GET /a HTTP/1.1\r\nHost: x\r\nX-Request-Id: a b\r\n\r\n";
    http_answer_is(sent(named, sizeof(named) - 1), 200, "X-Request-Id: mine-1\r\n", "");
    struct http_answer a = sent(bad, sizeof(bad) - 1);
    const char *id = strstr(a.head, "X-Request-Id: ") + strlen("X-Request-Id: ");
    assert_int_equal(strspn(id, "0123456789abcdef"), 16);
    assert_memory_equal(id + 16, "\r\n", 2);
    http_answer_done(&a);
}

/* A NUL in the path stays encoded; other characters are decoded. */
static void a_path_is_decoded_unless_it_has_a_nul(void **state)
{
    (void)state;
    fine(http_call(port, "GET", "/%61%2Fb", NULL));
    assert_string_equal(seen, "GET /a/b 0");
    fine(http_call(port, "GET", "/%61%00b", NULL));
    assert_string_equal(seen, "GET /%61%00b 0");
}

static bool has_open(unsigned n)
{
    for (unsigned i = 0; i < WAIT_MS && http_n_open(server) != n; i++)
        poll(NULL, 0, 1);
    return http_n_open(server) == n;
}

static void a_drain_answers_and_closes(void **state)
{
    (void)state;
    struct http_client c = http_client_open(port);
    http_client_ask(&c, "GET /a", "", "");
    fine(http_client_read(&c, WAIT_MS));
    assert_int_equal(http_n_open(server), 1);
    http_drain(server);
    http_client_ask(&c, "GET /b", "", "");
    http_answer_is(http_client_read(&c, WAIT_MS), 200, "Connection: close\r\n", "fine");
    assert_true(http_client_wait_close(&c, WAIT_MS));
    http_client_close(&c);
    assert_true(has_open(0));
    assert_false(listens());
}

/* It takes no new connections before, so none waits again when libmicrohttpd is stopped. */
static void a_stop_ends_what_waits(void **state)
{
    (void)state;
    struct http_client c = http_client_open(port);
    http_client_ask(&c, "GET /wait", "", "");
    for (unsigned i = 0; i < WAIT_MS && http_n_active(server) != 1; i++)
        poll(NULL, 0, 1);
    assert_int_equal(http_n_active(server), 1);
    http_wait_idle(server, 1000);
    assert_int_equal(http_n_active(server), 1);
    atomic_store(&probes, true);
    http_stop(server);
    assert_false(atomic_load(&listened_at_close));
    atomic_store(&probes, false);
    assert_int_equal(http_n_active(server), 0);
    assert_int_equal(http_n_open(server), 0);
    assert_int_equal(atomic_load(&n_closed), 1);
    assert_true(http_client_wait_close(&c, WAIT_MS));
    http_client_close(&c);
    http_stop(server); // no effect
}

static void a_disconnect_is_reported_once(void **state)
{
    (void)state;
    struct http_client c = http_client_open(port);
    http_client_ask(&c, "GET /wait", "", "");
    for (unsigned i = 0; i < WAIT_MS && http_n_active(server) != 1; i++)
        poll(NULL, 0, 1);
    http_client_close(&c);
    http_wait_idle(server, WAIT_MS * 1000);
    assert_true(has_open(0));
    assert_int_equal(atomic_load(&n_closed), 1);
}

static double n_paced(void)
{
    return metrics_value(metrics_counter("tandem_gateway_requests_paced_total", "", NULL));
}

/* Of an address with many connections, some wait while another address is there. All are answered,
 * and the other one does not wait. On a busy machine the requests arrive slowly: then once more. */
static void an_address_with_many_requests_waits(void **state)
{
    (void)state;
    struct http_client c[PLACES - 10], other = http_client_open_from(2, port);
    for (size_t i = 0; i < ARRAY_LEN(c); i++)
        c[i] = http_client_open(port);
    http_client_ask(&other, "GET /a", "", "");
    fine(http_client_read(&other, WAIT_MS));
    double before = n_paced();
    for (int tries = 0; n_paced() == before; tries++) {
        assert_true(tries < 100);
        for (size_t i = 0; i < ARRAY_LEN(c); i++)
            http_client_ask(&c[i], "GET /a", "", "");
        for (size_t i = 0; i < ARRAY_LEN(c); i++)
            fine(http_client_read(&c[i], WAIT_MS));
    }
    before = n_paced();
    http_client_ask(&other, "GET /a", "", "");
    fine(http_client_read(&other, WAIT_MS));
    assert_true(n_paced() == before);
    for (size_t i = 0; i < ARRAY_LEN(c); i++)
        http_client_close(&c[i]);
    http_client_close(&other);
    assert_true(has_open(0));
}

/* ---- without memory ---- */

/* A connection that the server knows. */
static struct http_client opened(void)
{
    struct http_client c = http_client_open(port);
    assert_true(has_open(1));
    return c;
}

/* The request itself, then its path. */
static void a_request_that_finds_no_memory_ends_its_connection(void **state)
{
    (void)state;
    static const char text[] = "GET /a HTTP/1.1\r\nHost: x\r\n\r\n";
    for (unsigned n = 1; n <= 2; n++) {
        struct http_client c = opened();
        failing_at(n);
        http_client_send(&c, text, sizeof(text) - 1);
        assert_true(http_client_wait_close(&c, WAIT_MS));
        assert_true(failing_has_failed());
        assert_int_equal(c.len, 0);
        http_client_close(&c);
        assert_true(has_open(0));
    }
    assert_int_equal(n_admitted, 0);
    fine(sent(text, sizeof(text) - 1));
}

/* The client's account, then the bytes. */
static void a_body_that_finds_no_memory_is_500(void **state)
{
    (void)state;
    static const char goes_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
    for (unsigned n = 1; n <= 2; n++) {
        char got[sizeof(goes_on)] = "";
        struct http_client c = opened();
        http_client_print(&c, "POST /b HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
                              "Content-Length: 4\r\n\r\n");
        assert_int_equal(recv(c.fd, got, sizeof(goes_on) - 1, MSG_WAITALL), sizeof(goes_on) - 1);
        assert_string_equal(got, goes_on); // the header was read
        failing_at(n);
        http_client_send(&c, "body", 4);
        http_answer_is(http_client_read(&c, WAIT_MS), 500, "Connection: close\r\n",
                       "no memory for this request");
        assert_true(failing_has_failed());
        http_client_close(&c);
        assert_true(has_open(0));
    }
    assert_int_equal(n_seen, 0);
    assert_int_equal(http_body_bytes(server), 0);
    fine(body_of(4, ""));
}

/* The server, the memory of requests, the connections and their table. */
static void a_server_that_finds_no_memory_closes_its_socket(void **state)
{
    (void)state;
    const struct http_options o = {.n_threads = 1, .max_connections = PLACES};
    for (unsigned n = 1; n <= 4; n++) {
        struct http_server *none = NULL;
        int fd;
        assert_int_equal(listen_open("127.0.0.1:0", &fd), 0);
        failing_at(n);
        assert_int_equal(http_new(&o, fd, answer, &n_seen, &none), -ENOMEM);
        assert_true(failing_has_failed());
        assert_null(none);
        assert_int_equal(fcntl(fd, F_GETFD), -1);
        assert_int_equal(errno, EBADF);
    }
    http_free(NULL); // no effect
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, start, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_header_may_have_the_limit),
        CASE(a_path_and_its_query_may_have_the_limit),
        CASE(a_body_may_have_the_limit),
        CASE(a_large_body_is_read_unless_the_client_asks_or_it_is_huge),
        CASE(a_request_refused_early_never_reaches_the_handler),
        CASE(every_place_is_served),
        CASE(ambiguous_headers_are_400),
        CASE(ids_are_kept_or_made),
        CASE(a_path_is_decoded_unless_it_has_a_nul),
        CASE(a_drain_answers_and_closes),
        CASE(a_stop_ends_what_waits),
        CASE(a_disconnect_is_reported_once),
        CASE(an_address_with_many_requests_waits),
        CASE(a_request_that_finds_no_memory_ends_its_connection),
        CASE(a_body_that_finds_no_memory_is_500),
        CASE(a_server_that_finds_no_memory_closes_its_socket),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

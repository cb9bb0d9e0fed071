/* test_http_request.c - one request: its header, its answer, its reader, its end. libmicrohttpd and
 * the clock are fakes (--wrap). */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "gateway/http/answer.h"
#include "gateway/http/http_request.h"
#include "gateway/http/http_watch.h"
#include "lib/fakes/failing.h"
#include "lib/lib.h"

#define UNREAD 4000

/* ---- fakes ---- */

static struct {
    bool suspended, queued, dropped; // dropped: libmicrohttpd has freed the response
    unsigned n_resumed, status;
    uint64_t size;
    MHD_ContentReaderCallback read;
    MHD_ContentReaderFreeCallback free;
    void *cls;
    char header[2048];
} mhd;
static int64_t now_us;
static bool has_memory = true;
static bool may_begin;
static unsigned n_asked;

int64_t __wrap_clock_us(void);
struct MHD_Response *__wrap_MHD_create_response_from_callback(uint64_t size, size_t block,
                                                              MHD_ContentReaderCallback read,
                                                              void *cls,
                                                              MHD_ContentReaderFreeCallback fn);
enum MHD_Result __wrap_MHD_add_response_header(struct MHD_Response *m, const char *name,
                                               const char *value);
const char *__wrap_MHD_get_response_header(struct MHD_Response *m, const char *name);
enum MHD_Result __wrap_MHD_queue_response(struct MHD_Connection *c, unsigned status,
                                          struct MHD_Response *m);
void __wrap_MHD_destroy_response(struct MHD_Response *m);
void __wrap_MHD_suspend_connection(struct MHD_Connection *c);
bool __wrap_request_pace_ask(struct request_pace *p, struct request_pace_turn *t,
                             const struct address *a, size_t bytes, int64_t at_us);
void __wrap_MHD_resume_connection(struct MHD_Connection *c);

int64_t __wrap_clock_us(void)
{
    return now_us;
}

struct MHD_Response *__wrap_MHD_create_response_from_callback(uint64_t size, size_t block,
                                                              MHD_ContentReaderCallback read,
                                                              void *cls,
                                                              MHD_ContentReaderFreeCallback fn)
{
    assert_true(block > 0);
    mhd.size = size;
    mhd.read = read;
    mhd.free = fn;
    mhd.cls = cls;
    *mhd.header = 0;
    return has_memory ? (struct MHD_Response *)&mhd : NULL;
}

enum MHD_Result __wrap_MHD_add_response_header(struct MHD_Response *m, const char *name,
                                               const char *value)
{
    (void)m;
    size_t n = strlen(mhd.header);
    snprintf(mhd.header + n, sizeof(mhd.header) - n, "%s: %s\n", name, value);
    return MHD_YES;
}

const char *__wrap_MHD_get_response_header(struct MHD_Response *m, const char *name)
{
    (void)m;
    return strstr(mhd.header, name);
}

enum MHD_Result __wrap_MHD_queue_response(struct MHD_Connection *c, unsigned status,
                                          struct MHD_Response *m)
{
    (void)c, (void)m;
    assert_false(mhd.queued);
    mhd.queued = true;
    mhd.status = status;
    return MHD_YES;
}

void __wrap_MHD_destroy_response(struct MHD_Response *m)
{
    (void)m;
    mhd.dropped = true; // the connection has its reference
}

void __wrap_MHD_suspend_connection(struct MHD_Connection *c)
{
    (void)c;
    assert_false(mhd.suspended);
    mhd.suspended = true;
}

void __wrap_MHD_resume_connection(struct MHD_Connection *c)
{
    (void)c;
    assert_true(mhd.suspended);
    mhd.suspended = false;
    mhd.n_resumed++;
}

bool __wrap_request_pace_ask(struct request_pace *p, struct request_pace_turn *t,
                             const struct address *a, size_t bytes, int64_t at_us)
{
    (void)p, (void)t, (void)a;
    assert_int_equal(bytes, 1234);
    assert_int_equal(at_us, now_us);
    n_asked++;
    return may_begin;
}

/* ---- a request ---- */

static struct http_server server;
static struct http_request *r;
static unsigned n_closed, n_drained, n_released;

static void count(void *user)
{
    ++*(unsigned *)user;
}

static void drained(void *user)
{
    (void)user;
    n_drained++;
}

static int start(void **state)
{
    (void)state;
    memset(&mhd, 0, sizeof(mhd));
    n_closed = n_drained = n_released = 0;
    now_us = 1000000000;
    server = (struct http_server){
        .o = {.max_unread = UNREAD, .reader_us = 60000000, .ping_us = 5000000}};
    assert_int_equal(request_memory_new(1 << 20, &server.memory), 0);
    r = calloc(1, sizeof(*r));
    *r = (struct http_request){.s = &server,
                               .c = (struct MHD_Connection *)&mhd,
                               .path = strdup("/v1/x"),
                               .asked = true,
                               .has_turn = true,
                               .dispatched = true,
                               .method = "POST",
                               .id = "id-1",
                               .begun_us = 77};
    atomic_init(&r->n_refs, 1);
    pthread_mutex_init(&r->mu, NULL);
    http_on_close(r, count, &n_closed);
    http_on_drain(r, drained);
    http_attach(r, &n_released, count);
    return 0;
}

/* libmicrohttpd frees the response. Drops the last reference. */
static int end(void **state)
{
    (void)state;
    if (mhd.queued)
        mhd.free(mhd.cls);
    assert_int_equal(atomic_load(&r->n_refs), 1);
    http_unref(r);
    assert_int_equal(n_released, 1);
    assert_int_equal(request_memory_used(server.memory), 0);
    request_memory_free(server.memory);
    return 0;
}

static void reply(int status, const char *text)
{
    struct buf body;
    buf_init(&body, 1 << 20);
    buf_puts(&body, text);
    http_reply(r, status, "text/plain", &body);
    assert_null(body.data);
}

/* What the reader gets when it asks for at most `max` bytes. */
static ssize_t reads(char *to, size_t max)
{
    return mhd.read(mhd.cls, 0, to, max);
}

static void has_header(const char *line, bool has)
{
    if ((strstr(mhd.header, line) != NULL) != has)
        fail_msg("'%s' in '%s'", line, mhd.header);
}

/* ---- whole answers ---- */

static void what_arrived_is_known(void **state)
{
    (void)state;
    size_t len;
    assert_ptr_equal(http_server_of(r), &server);
    assert_string_equal(http_method(r), "POST");
    assert_string_equal(http_path(r), "/v1/x");
    assert_string_equal(http_id(r), "id-1");
    assert_ptr_equal(http_attached(r), &n_released);
    assert_int_equal(http_begun_us(r), 77);
    assert_int_equal(http_reserve(r), HTTP_REGULAR);
    assert_string_equal(http_body(r, &len), "");
    assert_int_equal(len, 0);
    buf_init(&r->body, 100);
    buf_puts(&r->body, "abc");
    assert_string_equal(http_body(r, &len), "abc");
    assert_int_equal(len, 3);
    http_free_body(r);
    http_body(r, &len);
    assert_int_equal(len, 0);
}

static void a_reply_is_sent_whole(void **state)
{
    (void)state;
    char got[16];
    assert_int_equal(http_answer_or_sleep(r), MHD_YES);
    assert_true(mhd.suspended);
    reply(200, "0123456789");
    assert_false(mhd.suspended);
    reply(500, "too late");
    assert_int_equal(http_answer_or_sleep(r), MHD_YES);
    assert_int_equal(mhd.status, 200);
    assert_true(mhd.dropped);
    assert_int_equal(mhd.size, 10);
    has_header("Content-Type: text/plain\n", true);
    has_header("X-Request-Id: id-1\n", true);
    has_header("Cache-Control: no-store\n", true);
    has_header("Connection", false);
    has_header("Retry-After", false);
    assert_int_equal(mhd.read(mhd.cls, 0, got, 4), 4);
    assert_memory_equal(got, "0123", 4);
    assert_int_equal(n_released, 0);
    assert_int_equal(mhd.read(mhd.cls, 4, got, 16), 6);
    assert_memory_equal(got, "456789", 6);
    assert_int_equal(n_released, 1); // before the last bytes are sent
    http_notify_close(r);
    http_notify_close(r);
    assert_int_equal(n_closed, 1);
}

static void a_reader_that_stalls_is_dropped(void **state)
{
    (void)state;
    char got[4];
    reply(200, "0123456789");
    assert_int_equal(http_answer_or_sleep(r), MHD_YES);
    assert_false(http_watch_tick(r, now_us + 60000000));
    assert_true(http_watch_tick(r, now_us + 60000001));
    now_us += 60000000;
    mhd.read(mhd.cls, 0, got, 4); // it reads on
    assert_false(http_watch_tick(r, now_us + 60000000));
    assert_true(http_watch_tick(r, now_us + 60000001));
}

/* Only when another connection needs the place, and much sooner than it is dropped. */
static void an_unread_answer_gives_way(void **state)
{
    (void)state;
    char got[4];
    assert_false(http_watch_gives_way(r, now_us + 100001, false)); // somebody works on it
    reply(200, "0123456789");
    assert_int_equal(http_answer_or_sleep(r), MHD_YES);
    assert_false(http_watch_gives_way(r, now_us + 100000, false));
    assert_true(http_watch_gives_way(r, now_us + 100001, false));
    now_us += 100001;
    mhd.read(mhd.cls, 0, got, 4); // it reads on
    assert_false(http_watch_gives_way(r, now_us + 100000, false));
    assert_true(http_watch_gives_way(r, now_us + 100001, false));
}

static void a_request_gives_way_until_work_on_it_begins(void **state)
{
    for (unsigned how = 0; how < 3; how++) {
        assert_true(http_watch_gives_way(r, now_us, true));
        assert_false(http_watch_gives_way(r, now_us, false));
        if (how == 0)
            http_keep_place(r);
        else if (how == 1)
            http_stream(r);
        else
            reply(200, "0123456789");
        assert_false(http_watch_gives_way(r, now_us, true));
        end(state);
        start(state);
    }
}

/* It is sent by the first tick after its time, or when the server drains. */
static void a_delayed_answer_waits(void **state)
{
    for (unsigned drains = 0; drains < 2; drains++) {
        http_delay(r, now_us + 1000);
        reply(429, "0123456789");
        assert_int_equal(http_answer_or_sleep(r), MHD_YES);
        assert_true(mhd.suspended);
        assert_false(http_watch_tick(r, now_us + 999));
        assert_true(mhd.suspended);
        assert_true(http_watch_gives_way(r, now_us, false));
        atomic_store(&server.draining, drains);
        assert_false(http_watch_tick(r, now_us + (drains ? 0 : 1000)));
        assert_false(mhd.suspended);
        assert_int_equal(http_answer_or_sleep(r), MHD_YES);
        assert_int_equal(mhd.status, 429);
        assert_false(http_watch_gives_way(r, now_us, false));
        end(state);
        start(state);
    }
}

static void a_delay_may_end_before_the_answer(void **state)
{
    (void)state;
    http_delay(r, now_us + 1000);
    assert_int_equal(http_answer_or_sleep(r), MHD_YES);
    http_watch_tick(r, now_us + 1000);
    assert_true(mhd.suspended); // there is no answer
    reply(429, "0123456789");
    assert_false(mhd.suspended);
    assert_int_equal(http_answer_or_sleep(r), MHD_YES);
    assert_int_equal(mhd.status, 429);
}

static void refusals_for_load_say_when_to_try_again(void **state)
{
    (void)state;
    static const struct {
        int status;
        bool retry;
    } v[] = {{400, false}, {429, true}, {500, false}, {503, true}, {504, false}};
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        if (i) {
            end(NULL);
            start(NULL);
        }
        reply(v[i].status, "");
        assert_int_equal(http_answer_or_sleep(r), MHD_YES);
        assert_int_equal(mhd.status, v[i].status);
        has_header("Retry-After: 1\n", v[i].retry);
    }
    end(NULL);
    start(NULL);
    http_header(r, "Retry-After", "77");
    reply(429, "");
    http_answer_or_sleep(r);
    has_header("Retry-After: 77\n", true);
    has_header("Retry-After: 1\n", false);
}

static void an_answer_may_close_its_connection(void **state)
{
    (void)state;
    for (unsigned why = 0; why < 3; why++) {
        if (why) {
            end(NULL);
            start(NULL);
        }
        r->closes = why == 0;
        server.draining = why == 1;
        if (why == 2)
            http_header(r, "Connection", "upgrade");
        reply(200, "");
        http_answer_or_sleep(r);
        has_header("Connection: close\n", why < 2);
        has_header("Connection: upgrade\n", why == 2);
    }
}

static void sixteen_fields_may_be_added(void **state)
{
    (void)state;
    static const char *const names[] = {"a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8",
                                        "a9", "b0", "b1", "b2", "b3", "b4", "b5", "b6"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        http_header(r, names[i], "v");
    reply(200, "");
    http_answer_or_sleep(r);
    has_header("a0: v\n", true);
    has_header("b5: v\n", true);
    has_header("b6: v\n", false);
}

static void a_refusal_is_an_error_object(void **state)
{
    (void)state;
    char got[256];
    assert_int_equal(http_refuse(r, 414, "too long: %d", 7), MHD_YES);
    assert_int_equal(mhd.status, 414);
    has_header("Connection: close\n", true);
    has_header("Content-Type: application/json\n", true);
    ssize_t n = reads(got, sizeof(got) - 1);
    got[n] = 0;
    assert_string_equal(got, "{\"error\":{\"message\":\"too long: 7\",\"type\":"
                             "\"invalid_request_error\",\"param\":null,\"code\":null}}");
}

static void errors_of_the_answer_are_500(void **state)
{
    (void)state;
    struct buf body;
    buf_init(&body, 3);
    buf_puts(&body, "ab");
    buf_puts(&body, "longer"); // the first part is freed
    answer_json(r, 200, &body);
    http_answer_or_sleep(r);
    assert_int_equal(mhd.status, 500);
}

static void without_memory_there_is_no_answer(void **state)
{
    (void)state;
    reply(200, "x");
    has_memory = false;
    assert_int_equal(http_answer_or_sleep(r), MHD_NO);
    assert_int_equal(atomic_load(&r->n_refs), 1);
    has_memory = true;
}

/* ---- disconnects ---- */

static void a_disconnect_ends_a_request_that_waits(void **state)
{
    (void)state;
    http_answer_or_sleep(r);
    http_watch_hung_up(r);
    assert_false(mhd.suspended);
    assert_int_equal(n_closed, 1);
    http_watch_hung_up(r);
    assert_int_equal(n_closed, 1);
    reply(200, "x");
    http_stream(r);
    assert_int_equal(http_write(r, "x", 1), -ECANCELED);
    assert_int_equal(http_answer_or_sleep(r), MHD_NO);
    assert_false(mhd.queued);
    assert_int_equal(n_closed, 1);
}

static void a_disconnect_before_the_wait_is_noticed(void **state)
{
    (void)state;
    http_watch_hung_up(r); // the handler still runs
    assert_int_equal(n_closed, 0);
    assert_int_equal(http_answer_or_sleep(r), MHD_NO);
    assert_int_equal(n_closed, 1);
    assert_false(mhd.suspended);
}

/* ---- turns ---- */

/* A complete request that has not asked yet. */
static enum http_turn ask(bool now)
{
    r->asked = r->has_turn = r->dispatched = false;
    r->body_bytes = 1234;
    may_begin = now;
    n_asked = 0;
    return http_take_turn(r);
}

static void a_request_may_begin_immediately(void **state)
{
    (void)state;
    assert_int_equal(ask(true), HTTP_TURN_NOW);
    assert_int_equal(http_take_turn(r), HTTP_TURN_NOW); // when its answer is there
    assert_int_equal(n_asked, 1);
    assert_false(mhd.suspended);
}

static void a_request_sleeps_until_its_turn(void **state)
{
    (void)state;
    assert_int_equal(ask(false), HTTP_TURN_LATER);
    assert_true(mhd.suspended);
    assert_true(http_watch_gives_way(r, now_us, false));
    http_on_turn(&r->turn);
    assert_false(mhd.suspended);
    assert_false(http_watch_gives_way(r, now_us, false));
    assert_int_equal(http_take_turn(r), HTTP_TURN_NOW);
    assert_int_equal(n_asked, 1);
}

/* The answer of a refused one is set already. */
static void a_refused_request_sleeps_until_its_turn(void **state)
{
    (void)state;
    reply(401, "x");
    assert_int_equal(ask(false), HTTP_TURN_LATER);
    http_on_turn(&r->turn);
    assert_int_equal(http_take_turn(r), HTTP_TURN_NOW);
    assert_int_equal(http_answer_or_sleep(r), MHD_YES);
    assert_int_equal(mhd.status, 401);
}

static void a_client_that_hangs_up_gets_no_turn(void **state)
{
    (void)state;
    assert_int_equal(ask(false), HTTP_TURN_LATER);
    http_watch_hung_up(r);
    assert_false(mhd.suspended); // its connection can end
    assert_int_equal(http_take_turn(r), HTTP_TURN_NEVER);
}

static void a_client_that_hung_up_before_gets_no_turn(void **state)
{
    (void)state;
    r->hung_up = true;
    assert_int_equal(ask(false), HTTP_TURN_NEVER);
    assert_false(mhd.suspended);
}

static void a_server_that_stops_gives_no_turns(void **state)
{
    (void)state;
    assert_int_equal(ask(false), HTTP_TURN_LATER);
    http_watch_abandon(r);
    assert_false(mhd.suspended);
    assert_int_equal(http_take_turn(r), HTTP_TURN_NEVER);
    r->unreachable = false;
    atomic_store(&server.stopping, true);
    assert_int_equal(ask(false), HTTP_TURN_NEVER);
    atomic_store(&server.stopping, false);
}

static void a_half_closed_client_gets_the_answer_that_is_there(void **state)
{
    (void)state;
    http_watch_hung_up(r);
    reply(200, "x");
    assert_int_equal(http_answer_or_sleep(r), MHD_YES);
    assert_true(mhd.queued);
}

static void a_request_that_was_not_complete_only_notes_a_disconnect(void **state)
{
    (void)state;
    r->asked = r->has_turn = r->dispatched = false;
    http_answer_or_sleep(r);
    http_watch_hung_up(r);
    assert_int_equal(n_closed, 0);
    assert_true(mhd.suspended);
    assert_true(r->hung_up);
}

static void a_stopped_server_answers_no_longer(void **state)
{
    (void)state;
    http_answer_or_sleep(r);
    http_watch_abandon(r);
    assert_false(mhd.suspended);
    assert_int_equal(http_answer_or_sleep(r), MHD_NO);
    end(NULL);
    start(NULL);
    server.stopping = true;
    assert_int_equal(http_answer_or_sleep(r), MHD_NO);
    assert_int_equal(n_closed, 1);
}

/* ---- streams ---- */

static void begin_stream(void)
{
    http_stream(r);
    http_answer_or_sleep(r);
    assert_true(mhd.queued);
    assert_int_equal(mhd.status, 200);
    assert_true(mhd.size == MHD_SIZE_UNKNOWN);
    has_header("Content-Type: text/event-stream; charset=utf-8\n", true);
}

static void events_are_sent_as_they_come(void **state)
{
    (void)state;
    char got[16];
    assert_int_equal(http_write(r, "x", 1), -ECANCELED); // not begun
    begin_stream();
    assert_int_equal(reads(got, 16), 0);
    assert_true(mhd.suspended);
    assert_int_equal(http_write(r, "abcd", 4), 0);
    assert_false(mhd.suspended);
    assert_int_equal(reads(got, 3), 3);
    assert_memory_equal(got, "abc", 3);
    assert_int_equal(http_write(r, "ef", 2), 0);
    assert_int_equal(reads(got, 16), 3);
    assert_memory_equal(got, "def", 3);
    assert_int_equal(reads(got, 16), 0);
    assert_true(mhd.suspended);
    http_end(r);
    assert_false(mhd.suspended);
    assert_int_equal(n_released, 1);
    assert_int_equal(http_write(r, "x", 1), -ECANCELED);
    assert_int_equal(reads(got, 16), MHD_CONTENT_READER_END_OF_STREAM);
    assert_int_equal(n_closed, 0); // on_completed() calls it
}

static void the_guest_leaves_with_the_last_bytes(void **state)
{
    (void)state;
    char got[16];
    begin_stream();
    http_write(r, "abcd", 4);
    http_end(r);
    assert_int_equal(n_released, 0);
    assert_int_equal(reads(got, 3), 3);
    assert_int_equal(n_released, 0);
    assert_int_equal(reads(got, 3), 1);
    assert_int_equal(n_released, 1);
    assert_int_equal(reads(got, 3), MHD_CONTENT_READER_END_OF_STREAM);
}

/* More than half unread: slow. At most a quarter: it has caught up. */
static void a_slow_reader_pauses_the_writer(void **state)
{
    (void)state;
    char data[UNREAD] = {0}, got[UNREAD];
    begin_stream();
    assert_int_equal(http_write(r, data, UNREAD / 2), 0);
    assert_false(http_reader_is_slow(r));
    assert_int_equal(http_write(r, data, 1), -EAGAIN);
    assert_true(http_reader_is_slow(r));
    now_us += 5;
    assert_int_equal(http_write(r, data, 1), -EAGAIN); // since the first
    assert_false(http_watch_tick(r, now_us - 5 + 60000000));
    assert_true(http_watch_tick(r, now_us - 5 + 60000001));
    assert_int_equal(reads(got, UNREAD / 4 + 1), UNREAD / 4 + 1); // a quarter and one are left
    assert_int_equal(n_drained, 0);
    assert_true(http_reader_is_slow(r));
    assert_int_equal(reads(got, 1), 1);
    assert_int_equal(n_drained, 1);
    assert_false(http_reader_is_slow(r));
    assert_false(http_watch_tick(r, now_us + 1)); // no longer slow
    assert_int_equal(http_write(r, data, 1), 0);
    assert_int_equal(reads(got, UNREAD), UNREAD / 4 + 1);
    assert_int_equal(n_drained, 1);
}

/* From its end on, also when so little is unread that its reader was never slow. */
static void an_unread_end_of_a_stream_gives_way(void **state)
{
    (void)state;
    char got[2];
    begin_stream();
    assert_int_equal(http_write(r, "abc", 3), 0);
    assert_false(http_watch_gives_way(r, now_us + 100001, false)); // it is not complete
    assert_false(http_watch_tick(r, now_us + 60000001));
    now_us += 7;
    http_end(r);
    assert_false(http_watch_gives_way(r, now_us + 100000, false));
    assert_true(http_watch_gives_way(r, now_us + 100001, false));
    now_us += 100001;
    assert_int_equal(reads(got, 2), 2);
    assert_false(http_watch_gives_way(r, now_us + 100000, false));
    assert_true(http_watch_gives_way(r, now_us + 100001, false));
    assert_false(http_watch_tick(r, now_us + 60000000));
    assert_true(http_watch_tick(r, now_us + 60000001));
}

/* An event may be larger than the limit; what follows counts. */
static void a_writer_that_does_not_pause_is_cut_off(void **state)
{
    (void)state;
    char data[2 * UNREAD] = {0};
    begin_stream();
    assert_int_equal(http_write(r, data, sizeof(data)), -EAGAIN); // the first
    assert_int_equal(http_write(r, data, UNREAD), -EAGAIN);
    assert_int_equal(http_write(r, data, 1), -EAGAIN); // the limit was not exceeded before it
    assert_int_equal(http_write(r, data, 1), -ENOBUFS);
    assert_true(http_watch_tick(r, now_us));
    assert_int_equal(http_write(r, data, 1), -ECANCELED);
    char got[8];
    assert_int_equal(reads(got, 8), MHD_CONTENT_READER_END_WITH_ERROR);
}

static void a_silent_stream_gets_a_comment(void **state)
{
    (void)state;
    char got[64];
    begin_stream();
    assert_false(
        http_watch_tick(r, now_us + 9000000)); // it is not suspended: bytes may be on the way
    assert_int_equal(reads(got, 64), 0);
    http_watch_tick(r, now_us + 4999999);
    assert_true(mhd.suspended);
    http_watch_tick(r, now_us + 5000000);
    assert_false(mhd.suspended);
    assert_true(reads(got, 64) > 0);
    assert_int_equal(got[0], ':');
    now_us += 1000000;
    http_write(r, "x", 1);
    assert_int_equal(reads(got, 64), 1);
    assert_int_equal(reads(got, 64), 0);
    http_watch_tick(r, now_us + 4999999); // since the last event
    assert_true(mhd.suspended);
}

static void a_hung_up_stream_ends(void **state)
{
    (void)state;
    char got[8];
    begin_stream();
    http_write(r, "ab", 2);
    http_watch_hung_up(r); // it is not suspended: it can still read
    assert_int_equal(n_closed, 0);
    assert_int_equal(reads(got, 8), 2);
    assert_int_equal(reads(got, 8), MHD_CONTENT_READER_END_WITH_ERROR);
    end(NULL);
    start(NULL);
    begin_stream();
    http_write(r, "ab", 2);
    http_end(r);
    http_watch_hung_up(r);
    assert_int_equal(reads(got, 8), 2); // the whole answer
    assert_int_equal(reads(got, 8), MHD_CONTENT_READER_END_OF_STREAM);
}

static void nobody_is_told_to_go_on_after_the_end(void **state)
{
    (void)state;
    char data[UNREAD] = {0}, got[UNREAD];
    begin_stream();
    http_write(r, data, UNREAD / 2 + 1);
    http_notify_close(r);
    reads(got, UNREAD);
    assert_int_equal(n_drained, 0); // its user may be gone
}

/* ---- memory ---- */

static void memory_is_charged_to_the_payer(void **state)
{
    (void)state;
    http_set_payer(r, "alice");
    assert_int_equal(http_charge(r, 1000), 0);
    http_set_payer(r, "bob"); // too late
    assert_int_equal(request_memory_used(server.memory), 1000);
    assert_int_equal(http_charge(r, 1000), 0);
    assert_true(http_hold(r, 24));
    assert_int_equal(request_memory_used(server.memory), 1024);
    assert_false(http_hold(r, 1 << 20));
    assert_int_equal(http_charge(r, (1 << 19) + 1), -EMSGSIZE);
    struct request_memory_client *alice = request_memory_join(server.memory, "key alice");
    size_t counted = 0;
    assert_int_equal(request_memory_set(server.memory, alice, 1 << 19, &counted), -EDQUOT);
    request_memory_leave(server.memory, alice);
}

static void unread_bytes_of_a_stream_count_until_they_are_read(void **state)
{
    (void)state;
    static char data[200000], got[200000];
    begin_stream();
    assert_int_equal(http_write(r, data, 1000), 0);
    assert_int_equal(request_memory_used(server.memory), 0);
    assert_int_equal(reads(got, sizeof(got)), 1000);
    assert_int_equal(http_write(r, data, sizeof(data)), -EAGAIN);
    assert_in_range(request_memory_used(server.memory), 3 * 65536, 4 * 65536);
    assert_int_equal(reads(got, sizeof(got)), sizeof(data));
    assert_int_equal(request_memory_used(server.memory), 0);
    assert_in_range(request_memory_freed(server.memory), 3 * 65536, 4 * 65536);
    http_write(r, data, sizeof(data)); // never read
}

static void a_stream_that_finds_no_memory_pauses_until_it_is_read(void **state)
{
    (void)state;
    static char data[100000], got[100000];
    struct request_memory_client *other = request_memory_join(server.memory, "other");
    size_t counted = 0, max_unread = server.o.max_unread;
    begin_stream();
    server.o.max_unread = 1 << 20;
    assert_true(request_memory_grow(server.memory, other, (1 << 20) - 1000, &counted));
    assert_int_equal(http_write(r, data, sizeof(data)), -EAGAIN);
    assert_true(http_reader_is_slow(r));
    assert_int_equal(reads(got, sizeof(got)), sizeof(data));
    assert_int_equal(n_drained, 1);
    assert_int_equal(request_memory_set(server.memory, other, 0, &counted), 0);
    assert_int_equal(http_write(r, data, sizeof(data)), 0);
    assert_int_equal(reads(got, sizeof(got)), sizeof(data));
    server.o.max_unread = max_unread;
    request_memory_leave(server.memory, other);
}

/* The only request of its client: others hold the memory, or it alone needs too much. */
static void unread_bytes_are_no_other_request(void **state)
{
    (void)state;
    static char data[200000], got[200000];
    struct request_memory_client *other = request_memory_join(server.memory, "other");
    size_t counted = 0;
    begin_stream();
    assert_int_equal(http_write(r, data, sizeof(data)), -EAGAIN);
    assert_int_equal(request_memory_set(server.memory, other, 400000, &counted), 0);
    assert_int_equal(http_charge(r, 250000), -EAGAIN);
    assert_int_equal(http_charge(r, 330000), -EMSGSIZE);
    assert_int_equal(request_memory_set(server.memory, other, 0, &counted), 0);
    assert_int_equal(http_charge(r, 250000), 0);
    assert_int_equal(reads(got, sizeof(got)), sizeof(data));
    request_memory_leave(server.memory, other);
}

static void without_a_key_the_address_pays(void **state)
{
    (void)state;
    r->client = (struct address){.is_ip = true, .ip = {0x20, 1, [15] = 1}};
    assert_true(http_hold(r, 10));
    struct request_memory_client *site = request_memory_join(server.memory, "2001::");
    size_t counted = 0;
    assert_int_equal(request_memory_set(server.memory, site, 1 << 19, &counted), -EDQUOT);
    request_memory_leave(server.memory, site);
}

static void a_charge_without_memory_is_an_error(void **state)
{
    (void)state;
    failing_at(1);
    assert_int_equal(http_charge(r, 10), -ENOMEM);
    failing_at(1);
    assert_false(http_hold(r, 10));
    failing_at(0);
    static const struct {
        int error, status;
    } v[] = {{-EMSGSIZE, 413}, {-EDQUOT, 429}, {-EAGAIN, 503}, {-ENOMEM, 500}};
    for (size_t i = 0; i < ARRAY_LEN(v); i++)
        assert_int_equal(answer_charge_status(v[i].error), v[i].status);
}

static void errors_of_calls_have_a_status(void **state)
{
    (void)state;
    static const struct {
        enum rpc_code code;
        int status;
    } v[] = {{RPC_OK, 200},
             {RPC_INVALID_ARGUMENT, 400},
             {RPC_OUT_OF_RANGE, 400},
             {RPC_FAILED_PRECONDITION, 400},
             {RPC_UNAUTHENTICATED, 401},
             {RPC_PERMISSION_DENIED, 403},
             {RPC_NOT_FOUND, 404},
             {RPC_ALREADY_EXISTS, 409},
             {RPC_ABORTED, 409},
             {RPC_RESOURCE_EXHAUSTED, 429},
             {RPC_CANCELLED, 503},
             {RPC_UNAVAILABLE, 503},
             {RPC_UNIMPLEMENTED, 501},
             {RPC_DEADLINE_EXCEEDED, 504},
             {RPC_INTERNAL, 500},
             {RPC_UNKNOWN, 500}};
    for (size_t i = 0; i < ARRAY_LEN(v); i++)
        assert_int_equal(answer_status_of(v[i].code), v[i].status);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, start, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(what_arrived_is_known),
        CASE(a_reply_is_sent_whole),
        CASE(a_reader_that_stalls_is_dropped),
        CASE(an_unread_answer_gives_way),
        CASE(a_request_gives_way_until_work_on_it_begins),
        CASE(a_delayed_answer_waits),
        CASE(a_delay_may_end_before_the_answer),
        CASE(refusals_for_load_say_when_to_try_again),
        CASE(an_answer_may_close_its_connection),
        CASE(sixteen_fields_may_be_added),
        CASE(a_refusal_is_an_error_object),
        CASE(errors_of_the_answer_are_500),
        CASE(without_memory_there_is_no_answer),
        CASE(a_disconnect_ends_a_request_that_waits),
        CASE(a_disconnect_before_the_wait_is_noticed),
        CASE(a_request_may_begin_immediately),
        CASE(a_request_sleeps_until_its_turn),
        CASE(a_refused_request_sleeps_until_its_turn),
        CASE(a_client_that_hangs_up_gets_no_turn),
        CASE(a_client_that_hung_up_before_gets_no_turn),
        CASE(a_server_that_stops_gives_no_turns),
        CASE(a_half_closed_client_gets_the_answer_that_is_there),
        CASE(a_request_that_was_not_complete_only_notes_a_disconnect),
        CASE(a_stopped_server_answers_no_longer),
        CASE(events_are_sent_as_they_come),
        CASE(the_guest_leaves_with_the_last_bytes),
        CASE(a_slow_reader_pauses_the_writer),
        CASE(an_unread_end_of_a_stream_gives_way),
        CASE(a_writer_that_does_not_pause_is_cut_off),
        CASE(a_silent_stream_gets_a_comment),
        CASE(a_hung_up_stream_ends),
        CASE(nobody_is_told_to_go_on_after_the_end),
        CASE(memory_is_charged_to_the_payer),
        CASE(unread_bytes_of_a_stream_count_until_they_are_read),
        CASE(a_stream_that_finds_no_memory_pauses_until_it_is_read),
        CASE(unread_bytes_are_no_other_request),
        CASE(without_a_key_the_address_pays),
        CASE(a_charge_without_memory_is_an_error),
        CASE(errors_of_calls_have_a_status),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_rpc_frames.c - the frames of a connection, and the limits that they have. */
#include <string.h>
#include "base/mem.h"
#include "lib/lib.h"
#include "rpc/rpc_frames.h"

#define PREFACE "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
#define PREFACE_BYTES (sizeof(PREFACE) - 1)
#define NOW INT64_C(1000000000)
#define INTERVAL_US (1000000 / RPC_FRAMES_CONTROL_PER_S)

enum { DATA, HEADERS, PRIORITY, RESET, SETTINGS, PUSH, PING, GOAWAY, WINDOW, PART, UNKNOWN };
enum { END_STREAM = 1, END_HEADERS = 4 };

static struct rpc_frames f;
static int64_t now_us;

static int start(void **state)
{
    (void)state;
    f = (struct rpc_frames){0};
    now_us = NOW;
    return 0;
}

static bool frame(unsigned type, unsigned flags, uint32_t bytes)
{
    static const uint8_t payload[1 << 20];
    const uint8_t head[9] = {(uint8_t)(bytes >> 16),
                             (uint8_t)(bytes >> 8),
                             (uint8_t)bytes,
                             (uint8_t)type,
                             (uint8_t)flags,
                             0,
                             0,
                             0,
                             type == HEADERS};
    return rpc_frames_pass(&f, head, sizeof(head), now_us) &&
           rpc_frames_pass(&f, payload, bytes, now_us);
}

static bool begin(void)
{
    return frame(SETTINGS, 0, 6);
}

static void a_header_has_a_limit(void **state)
{
    (void)state;
    assert_true(begin());
    for (int i = 0; i < 3; i++) // each one
        assert_true(frame(HEADERS, END_HEADERS, RPC_FRAMES_HEADER_MAX));
    assert_true(frame(HEADERS, 0, RPC_FRAMES_HEADER_MAX - 5));
    assert_true(frame(PART, 0, 5));
    assert_true(frame(PART, END_HEADERS, 0));
    assert_true(frame(HEADERS, 0, RPC_FRAMES_HEADER_MAX));
    assert_false(frame(PART, END_HEADERS, 1));
    assert_false(frame(DATA, 0, 1)); // nothing passes from now on
    start(NULL);
    assert_true(begin());
    assert_false(frame(PUSH, END_HEADERS, RPC_FRAMES_HEADER_MAX + 1));
}

static void a_header_has_few_parts(void **state)
{
    (void)state;
    assert_true(begin());
    for (int turn = 0; turn < 2; turn++) {
        assert_true(frame(turn ? PUSH : HEADERS, 0, 1));
        for (int i = 1; i < RPC_FRAMES_PARTS_MAX; i++)
            assert_true(frame(PART, 0, 1));
        assert_true(frame(PART, END_HEADERS, 1));
        assert_true(frame(DATA, END_STREAM, 9));
    }
    assert_true(frame(HEADERS, 0, 0));
    for (int i = 0; i < RPC_FRAMES_PARTS_MAX; i++)
        assert_true(frame(PART, 0, 0));
    assert_false(frame(PART, END_HEADERS, 0));
}

static void a_header_is_not_interrupted(void **state)
{
    (void)state;
    static const unsigned types[] = {DATA, HEADERS, SETTINGS, PING, WINDOW, UNKNOWN};
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        start(NULL);
        assert_true(begin());
        assert_true(frame(HEADERS, 0, 10));
        assert_false(frame(types[i], END_HEADERS, 6));
    }
    start(NULL);
    assert_true(begin());
    assert_false(frame(PART, END_HEADERS, 1)); // of no header
}

static void frames_for_nothing_have_a_rate(void **state)
{
    (void)state;
    static const struct {
        unsigned type, flags;
        uint32_t bytes;
    } v[] = {{DATA, 0, 0},     {DATA, 8, 0}, {PRIORITY, 0, 5}, {SETTINGS, 0, 6},
             {SETTINGS, 1, 0}, {PING, 0, 8}, {UNKNOWN, 0, 0},  {255, 0, 70000}};
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        start(NULL);
        assert_true(begin());
        now_us += INTERVAL_US; // of the first one
        for (int k = 0; k < RPC_FRAMES_CONTROL_BURST; k++)
            assert_true(frame(v[i].type, v[i].flags, v[i].bytes));
        now_us += INTERVAL_US;
        assert_true(frame(v[i].type, v[i].flags, v[i].bytes));
        now_us += INTERVAL_US - 1;
        assert_false(frame(v[i].type, v[i].flags, v[i].bytes));
    }
}

static void frames_of_calls_have_no_rate(void **state)
{
    (void)state;
    assert_true(begin());
    for (int k = 0; k < 2 * RPC_FRAMES_CONTROL_BURST; k++)
        assert_true(frame(DATA, 0, 1) && frame(DATA, END_STREAM, 0) && frame(RESET, 0, 4) &&
                    frame(WINDOW, 0, 4) && frame(HEADERS, END_HEADERS, 10));
}

static bool call(uint32_t stream)
{
    const uint8_t head[9] = {0,
                             0,
                             0,
                             HEADERS,
                             END_HEADERS,
                             (uint8_t)(stream >> 24),
                             (uint8_t)(stream >> 16),
                             (uint8_t)(stream >> 8),
                             (uint8_t)stream};
    return rpc_frames_pass(&f, head, sizeof(head), now_us);
}

/* Trailers, and answers of a server, are no calls. */
static void calls_are_counted(void **state)
{
    (void)state;
    assert_true(begin() && call(1));
    assert_int_equal(f.n_calls, 0);
    start(NULL);
    assert_true(rpc_frames_pass(&f, (const uint8_t *)PREFACE, PREFACE_BYTES, now_us) && begin());
    for (uint32_t i = 1; i <= 3; i++) {
        assert_true(call(2 * i + 1) && call(2 * i + 1));
        assert_int_equal(f.n_calls, i);
    }
    assert_true(call(1) && call(0x80000001)); // the highest bit has no meaning
    assert_int_equal(f.n_calls, 3);
}

/* Otherwise the highest even number would make trailers of all later calls. */
static void a_client_opens_odd_streams_only(void **state)
{
    (void)state;
    static const uint32_t even[] = {0, 2, 0x7ffffffe, 0x80000000};
    for (size_t i = 0; i < ARRAY_LEN(even); i++) {
        start(NULL);
        assert_true(rpc_frames_pass(&f, (const uint8_t *)PREFACE, PREFACE_BYTES, now_us));
        assert_true(begin() && call(1));
        assert_false(call(even[i]));
        assert_int_equal(f.n_calls, 1);
    }
    start(NULL); // a server
    assert_true(begin() && call(2));
}

static void a_connection_says_goodbye_few_times(void **state)
{
    (void)state;
    assert_true(begin());
    for (int k = 0; k < RPC_FRAMES_GOAWAY_MAX; k++)
        assert_true(frame(GOAWAY, 0, 8));
    assert_false(frame(GOAWAY, 0, 8));
}

/* The verdict about a header that is too long, after `first`. */
static bool endless_passes_after(const void *first, size_t n)
{
    start(NULL);
    return rpc_frames_pass(&f, first, n, now_us) &&
           frame(HEADERS, END_HEADERS, RPC_FRAMES_HEADER_MAX + 1);
}

#define SETTINGS_6 "\0\0\x06\x04\0\0\0\0\0\0\x04\0\0\0\0"

static void only_http2_is_judged(void **state)
{
    (void)state;
    static const struct {
        const char *first;
        size_t n;
        bool passes;
    } v[] = {{PREFACE SETTINGS_6, PREFACE_BYTES + 15, false},
             {SETTINGS_6, 15, false},
             {"\0\0\0\x04\0\0\0\0\0", 9, false},
             {PREFACE "\0\0\0\x06\0\0\0\0\0", PREFACE_BYTES + 9, false},
             {"\0\0\x05\x04\0\x80\0\0\x01", 9, false},      // gRPC core decides
             {"\0\x40\x01\x04\0\0\0\0\0", 9, true},         // 16385 bytes
             {"\0\0\0\x06\0\0\0\0\0", 9, true},             // no SETTINGS
             {"\x16\x03\x01\x04\0\x01\0\x02\x03", 9, true}, // TLS
             {"GET / HTTP/1.1\r\n", 16, true},
             {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\r", PREFACE_BYTES, true}};
    for (size_t i = 0; i < ARRAY_LEN(v); i++)
        if (endless_passes_after(v[i].first, v[i].n) != v[i].passes)
            fail_msg("case %zu", i);
}

static void bytes_may_be_cut_anywhere(void **state)
{
    (void)state;
    static const char all[] = PREFACE SETTINGS_6 "\0\0\x02\x01\0\0\0\0\x01xy"
                                                 "\0\0\x01\x09\0\0\0\0\x01z"
                                                 "\0\x80\0\x09\x04\0\0\0\x01";
    const size_t n = sizeof(all) - 1; // its last head makes the header too long
    for (size_t cut = 0; cut < n; cut++) {
        start(NULL);
        assert_true(rpc_frames_pass(&f, (const uint8_t *)all, cut, now_us));
        assert_false(rpc_frames_pass(&f, (const uint8_t *)all + cut, n - cut, now_us));
    }
    start(NULL);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(rpc_frames_pass(&f, (const uint8_t *)all + i, 1, now_us), i + 1 < n);
}

#define TEST(t) cmocka_unit_test_setup(t, start)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_header_has_a_limit),
        TEST(a_header_has_few_parts),
        TEST(a_header_is_not_interrupted),
        TEST(frames_for_nothing_have_a_rate),
        TEST(frames_of_calls_have_no_rate),
        TEST(calls_are_counted),
        TEST(a_client_opens_odd_streams_only),
        TEST(a_connection_says_goodbye_few_times),
        TEST(only_http2_is_judged),
        TEST(bytes_may_be_cut_anywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

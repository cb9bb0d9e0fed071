/* lib.h - functions and macros for all tests. */
#pragma once
#include <setjmp.h> // cmocka.h requires these four before it
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#undef fail // cmocka's macro; ours is in base/err.h
#undef fail_msg
#define fail_msg(...) (print_error(__VA_ARGS__), print_error("\n"), _fail(__FILE__, __LINE__))
#include <stdbool.h>

/* A build with sanitizers takes up to 30 times as long. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LIB_SANITIZED 1
#else
#define LIB_SANITIZED 0
#endif

/* Size of a test: `little` in a build with sanitizers, `much` in the long suite (TANDEM_TEST_LONG),
 * otherwise `some`. */
uint64_t lib_amount(uint64_t little, uint64_t some, uint64_t much);

/* The call after the n-th that a test lets fail: in the long suite the next one. Otherwise the
 * distances grow with n: by one after each `part` calls. */
uint64_t lib_next_call(uint64_t n, uint64_t part);

/* Ends the running test as skipped: data, a tool or a right is missing here. tools/count.py counts
 * it and takes the reason from the output. A test that returns instead counts as passed. */
#define lib_skip(...) (print_message("skipped: " __VA_ARGS__), print_message("\n"), skip())
/* Ends the running test uncounted: it has no meaning in this build, and another one runs it. */
#define lib_leave_out(why) (print_message("left out: " why "\n"), skip())

/* The path of a file in the folder shared/ next to the checkout. NULL, after printing the reason
 * for tools/count.py: there is no such file. Static buffer. */
const char *lib_shared(const char *path);
/* The same; skips the running test instead of returning NULL. */
const char *lib_need_shared(const char *path);

/* The whole file and a NUL; ends the test if it cannot be read. Free it. */
char *lib_read(const char *path, size_t *ret_len);
/* Writes the 1 to 4 bytes of a code point, which must not be a surrogate; returns their number. */
unsigned lib_put_utf8(uint32_t code, char out[4]);
/* Whether `name` is one of "a,b,c". */
bool lib_listed(const char *list, const char *name);

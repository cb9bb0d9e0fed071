/* lib.h - what tests of every kind share. */
#pragma once
#include <setjmp.h> // cmocka.h wants these four before it
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#undef fail // cmocka's macro; ours is in base/err.h
#undef fail_msg
#define fail_msg(...) (print_error(__VA_ARGS__), print_error("\n"), _fail(__FILE__, __LINE__))
#include <stdbool.h>

/* A build that checks every access takes up to 30 times as long. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LIB_SANITIZED 1
#else
#define LIB_SANITIZED 0
#endif

/* How much is tried: `little` where a sanitizer checks every access, `much` in the long suite, else
 * `some`. */
uint64_t lib_amount(uint64_t little, uint64_t some, uint64_t much);

/* "shared/models/x" beside the checkout, or NULL after printing that it is skipped. Static buffer.
 */
const char *lib_shared(const char *path);

/* Whole file, NUL added; ends the test if it cannot be read. Free it. */
char *lib_read(const char *path, size_t *ret_len);
/* Writes 1-4 bytes of a code point that is none of the surrogates. */
unsigned lib_put_utf8(uint32_t code, char out[4]);
/* Whether `name` is one of "a,b,c". */
bool lib_listed(const char *list, const char *name);

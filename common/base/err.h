/* err.h - the one error idiom: 0 or a negative errno, and a sentence said once where it went wrong.
 *
 * Callers pass the code up unchanged; the service logs the sentence or puts it into a status. The
 * text is kept per thread: whoever moves an error to another thread copies the text along. */
#pragma once

#define FAIL_TEXT_MAX 512 // bytes of a sentence, NUL included; longer ones are cut

/* Keeps the sentence for fail_text() and returns err (a negative errno). */
int fail(int err, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A compiler sees one file at a time: this tells it that the result is negative, so that it does
 * not follow "failed with 0" into values that were never written. */
#ifdef TANDEM_ANALYZE // gcc's analyzer forgets what ?: has shown
#define FAIL_NEGATIVE(code)                                                                        \
    ({                                                                                             \
        if (code >= 0)                                                                             \
            __builtin_unreachable();                                                               \
        code;                                                                                      \
    })
#else
#define FAIL_NEGATIVE(code) (code < 0 ? code : -1)
#endif
#define fail(...)                                                                                  \
    ({                                                                                             \
        int fail_code = (fail)(__VA_ARGS__);                                                       \
        FAIL_NEGATIVE(fail_code);                                                                  \
    })

/* The sentence of the last fail() of this thread; "" when there was none. */
const char *fail_text(void);

/* err.h - how functions report errors: 0 or a negative errno, and a sentence that describes it.
 *
 * The function in which the error occurs sets the sentence with fail(). Callers pass the code up
 * unchanged. The service logs the sentence or returns it in a status. The sentence is stored per
 * thread: code that moves an error to another thread copies the sentence, too. */
#pragma once

#define FAIL_TEXT_MAX 512 // bytes of a sentence, NUL included; longer ones are cut

/* Stores the sentence for fail_text() and returns err (a negative errno). */
int fail(int err, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Tells the compiler that the result of fail() is negative. The compiler sees one file at a time.
 * Without this macro it assumes that fail() may return 0, and warns about unwritten results. */
#ifdef TANDEM_ANALYZE // gcc's analyzer does not learn the sign from the ?: below
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

/* The sentence of this thread's last fail(); "" if there was none. */
const char *fail_text(void);

/* err.c - the sentence that describes an error, one per thread. */
#include <stdarg.h>
#include <stdio.h>
#include "base/err.h"

static _Thread_local char text[FAIL_TEXT_MAX];

int(fail)(int err, const char *format, ...)
{
    char formatted[FAIL_TEXT_MAX]; // not `text`: the old sentence may be an argument of the new one
    va_list args;
    va_start(args, format);
    vsnprintf(formatted, sizeof(formatted), format, args);
    va_end(args);
    __builtin_memcpy(text, formatted, sizeof(text));
    return err;
}

const char *fail_text(void)
{
    return text;
}

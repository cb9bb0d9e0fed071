/* mem.h - ownership by scope, with the compiler's cleanup attribute.
 *
 *     DEFINE_AUTO(struct kv, kv_free)               in kv.h, once
 *     AUTO(kv_free) struct kv *kv = kv_new();       freed on every return of the scope ...
 *     *ret = TAKE(kv);                              ... but not after this: it has a new owner
 *
 * Threads: any. */
#pragma once
#include <stdlib.h>

/* Calls free_fn when the variable leaves its scope. `unused`: some variables are only freed.
 * The variable has an initialiser, so each return of the scope frees a defined value. */
#define AUTO(free_fn) __attribute__((cleanup(free_fn##_auto), unused))

/* Makes free_fn usable with AUTO(). It takes a pointer and accepts NULL. */
#define DEFINE_AUTO(type, free_fn)                                                                 \
    static inline void free_fn##_auto(type **p)                                                    \
    {                                                                                              \
        free_fn(*p);                                                                               \
    }

/* The value of p, which becomes NULL: the caller of TAKE() passes the ownership on. */
#define TAKE(p)                                                                                    \
    ({                                                                                             \
        __typeof__(p) taken_ = (p);                                                                \
        (p) = NULL;                                                                                \
        taken_;                                                                                    \
    })

/* For malloc'ed memory: AUTO(mem_free) char *text = malloc(n); */
static inline void mem_free_auto(void *p)
{
    free(*(void **)p);
}

/* The struct that contains the member to which ptr points. */
#define OWNER(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

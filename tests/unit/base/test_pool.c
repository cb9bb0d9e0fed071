/* test_pool.c - jobs on all threads, barriers, and the CPU time of an idle pool. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <unistd.h>
#include "base/pool.h"
#include "lib/lib.h"

static struct pool *pool_of(unsigned n)
{
    struct pool *p;
    assert_int_equal(pool_new(n, true, &p), 0);
    assert_int_equal(pool_threads(p), n);
    return p;
}

static void count_run(void *arg, unsigned i, unsigned n)
{
    atomic_uint *runs = arg;
    assert_true(i < n);
    runs[i]++;
}

static void every_thread_runs_every_job_once(void **state)
{
    (void)state;
    for (unsigned n = 1; n <= 7; n += 2) {
        AUTO(pool_free) struct pool *p = pool_of(n);
        atomic_uint runs[8] = {0};
        for (int job = 0; job < 100; job++)
            pool_run(p, count_run, runs);
        for (unsigned i = 0; i < 8; i++)
            assert_int_equal(runs[i], i < n ? 100 : 0);
    }
}

static void note_thread(void *arg, unsigned i, unsigned n)
{
    (void)n;
    ((pthread_t *)arg)[i] = pthread_self();
}

static void the_caller_is_thread_0(void **state)
{
    (void)state;
    AUTO(pool_free) struct pool *p = pool_of(3);
    pthread_t ids[3];
    pool_run(p, note_thread, ids);
    assert_true(pthread_equal(ids[0], pthread_self()));
    assert_false(pthread_equal(ids[1], ids[0]));
    assert_false(pthread_equal(ids[2], ids[1]));
}

#define ROUNDS 10000

struct rounds {
    struct pool *pool;
    unsigned n_rounds;
    unsigned at[8]; // not atomic: only the barriers order the accesses
    atomic_uint wrong;
};

/* Before each barrier a thread writes its round; after it all threads must have written it. */
static void keep_step(void *arg, unsigned i, unsigned n)
{
    struct rounds *r = arg;
    for (unsigned round = 1; round <= r->n_rounds; round++) {
        r->at[i] = round;
        pool_barrier(r->pool);
        for (unsigned k = 0; k < n; k++)
            r->wrong += r->at[k] != round;
        pool_barrier(r->pool);
    }
}

static void a_barrier_waits_for_all_threads(void **state)
{
    (void)state;
    AUTO(pool_free) struct pool *p = pool_of(2);
    struct rounds r = {.pool = p, .n_rounds = ROUNDS / 2};
    pool_run(p, keep_step, &r);
    assert_int_equal(r.wrong, 0);
    assert_int_equal(r.at[1], ROUNDS / 2);
}

static void more_threads_than_cores_make_progress(void **state)
{
    (void)state;
    AUTO(pool_free) struct pool *p = pool_of(8);
    struct rounds r = {.pool = p, .n_rounds = 500};
    pool_run(p, keep_step, &r);
    assert_int_equal(r.wrong, 0);
}

static int64_t cpu_us(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000LL + u.ru_utime.tv_usec +
           u.ru_stime.tv_usec;
}

static void an_idle_pool_uses_no_cpu_time(void **state)
{
    (void)state;
    AUTO(pool_free) struct pool *p = pool_of(2);
    atomic_uint runs[2] = {0};
    pool_run(p, count_run, runs);
    int never[2];
    assert_int_equal(pipe(never), 0);
    struct pollfd nothing = {.fd = never[0], .events = POLLIN};
    int64_t before = cpu_us();
    assert_int_equal(poll(&nothing, 1, 100), 0);
    assert_true(cpu_us() - before < 10000); // of 100 ms
    close(never[0]);
    close(never[1]);
    pool_run(p, count_run, runs);
    assert_int_equal(runs[1], 2);
}

static void *run_steps(void *arg)
{
    struct rounds *r = arg;
    pool_run(r->pool, keep_step, r);
    return NULL;
}

static void another_thread_may_be_the_caller(void **state)
{
    (void)state;
    AUTO(pool_free) struct pool *p = pool_of(2);
    struct rounds r = {.pool = p, .n_rounds = 10};
    pool_run(p, keep_step, &r);
    pthread_t t;
    pthread_create(&t, NULL, run_steps, &r);
    pthread_join(t, NULL);
    assert_int_equal(r.wrong, 0);
}

#define KERNEL_STACK (2 << 20) // bytes; kernels use less

static void use_stack(void *arg, unsigned i, unsigned n)
{
    volatile char room[KERNEL_STACK];
    (void)n;
    for (size_t at = sizeof(room); at; at -= 4096)
        room[at - 1] = (char)i;
    atomic_fetch_add((atomic_uint *)arg, (unsigned)(room[4095] == (char)i));
}

static void *run_as_caller(void *arg)
{
    AUTO(pool_free) struct pool *p = pool_of(3);
    pool_run(p, use_stack, arg);
    return NULL;
}

static void every_thread_has_enough_stack_for_kernels(void **state)
{
    (void)state;
    pthread_attr_t before, small;
    assert_int_equal(pthread_getattr_default_np(&before), 0);
    assert_int_equal(pthread_attr_init(&small), 0);
    assert_int_equal(pthread_attr_setstacksize(&small, 256 << 10), 0);
    assert_int_equal(pthread_setattr_default_np(&small), 0); // as under such a limit
    atomic_uint runs = 0;
    pthread_t leader;
    assert_int_equal(pool_thread(run_as_caller, &runs, &leader), 0);
    pthread_join(leader, NULL);
    assert_int_equal(runs, 3);
    pthread_setattr_default_np(&before);
    pthread_attr_destroy(&before);
    pthread_attr_destroy(&small);
}

static void note_core(void *arg, unsigned i, unsigned n)
{
    (void)n;
    ((atomic_int *)arg)[i] = sched_getcpu();
}

static void begin_on(int cpu, const cpu_set_t *allowed)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
    assert_int_equal(sched_setaffinity(0, sizeof(*allowed), allowed), 0);
}

/* Both threads would compete for that core at each barrier. */
static void the_caller_leaves_the_core_of_another_thread(void **state)
{
    (void)state;
    AUTO(pool_free) struct pool *p = pool_of(2);
    cpu_set_t allowed, after;
    atomic_int cores[2];
    if (sched_getaffinity(0, sizeof(allowed), &allowed) < 0 || CPU_COUNT(&allowed) < 2)
        lib_skip("it needs two cores");
    pool_run(p, note_core, cores);
    unsigned n_shared = 0;
    for (unsigned i = 0; i < 100; i++) {
        begin_on(cores[1], &allowed);
        pool_run(p, note_core, cores);
        n_shared += cores[0] == cores[1];
    }
    assert_in_range(n_shared, 0, 20); // the system may move it back
    assert_int_equal(sched_getaffinity(0, sizeof(after), &after), 0);
    assert_true(CPU_EQUAL(&allowed, &after));
}

static void too_many_threads_are_refused(void **state)
{
    (void)state;
    struct pool *p;
    assert_int_equal(pool_new(POOL_MAX_THREADS + 1, false, &p), -EINVAL);
}

static void slices_cover_every_item_once(void **state)
{
    (void)state;
    for (unsigned n_threads = 1; n_threads <= 5; n_threads++)
        for (unsigned n = 0; n <= 100; n++) {
            unsigned next = 0;
            for (unsigned i = 0; i < n_threads; i++) {
                unsigned from, to;
                pool_slice(i, n_threads, n, 16, &from, &to);
                assert_true(from == next && to >= from && (from % 16 == 0 || from == n));
                next = to;
            }
            assert_int_equal(next, n);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_thread_runs_every_job_once),
        cmocka_unit_test(the_caller_is_thread_0),
        cmocka_unit_test(a_barrier_waits_for_all_threads),
        cmocka_unit_test(more_threads_than_cores_make_progress),
        cmocka_unit_test(an_idle_pool_uses_no_cpu_time),
        cmocka_unit_test(another_thread_may_be_the_caller),
        cmocka_unit_test(every_thread_has_enough_stack_for_kernels),
        cmocka_unit_test(the_caller_leaves_the_core_of_another_thread),
        cmocka_unit_test(too_many_threads_are_refused),
        cmocka_unit_test(slices_cover_every_item_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

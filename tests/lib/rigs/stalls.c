/* stalls.c - how long the machine keeps threads from running. */
#include "lib/rigs/stalls.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>
#include "base/clock.h"
#include "lib/lib.h"

#define SLEEP_US 1000
#define SPAN_US 100000

struct core {
    pthread_t thread;
    int cpu;
    int64_t from_us, late_us; // the current span, and what the thread was late in it
    int64_t before_us;        // late in the span before
    int64_t longest_us;       // late in two adjacent spans
};

static struct core *cores;
static unsigned n_cores;
static atomic_bool over;

static void count(struct core *c, int64_t now_us, int64_t late_us)
{
    if (now_us - c->from_us > SPAN_US) {
        c->before_us = c->late_us;
        c->late_us = 0;
        c->from_us = now_us;
    }
    c->late_us += late_us;
    if (c->before_us + c->late_us > c->longest_us)
        c->longest_us = c->before_us + c->late_us;
}

static void *measure(void *arg)
{
    struct core *c = arg;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(c->cpu, &set);
    sched_setaffinity(0, sizeof(set), &set);
    for (int64_t now_us = clock_us(); !atomic_load(&over);) {
        usleep(SLEEP_US);
        int64_t slept_us = clock_us() - now_us;
        now_us += slept_us;
        count(c, now_us, slept_us > 2 * SLEEP_US ? slept_us - SLEEP_US : 0);
    }
    return NULL;
}

void stalls_begin(void)
{
    cpu_set_t set;
    assert_int_equal(sched_getaffinity(0, sizeof(set), &set), 0);
    cores = calloc((size_t)CPU_COUNT(&set), sizeof(*cores));
    atomic_store(&over, false);
    n_cores = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &set))
            continue;
        struct core *c = &cores[n_cores++];
        c->cpu = cpu;
        c->from_us = clock_us();
        assert_int_equal(pthread_create(&c->thread, NULL, measure, c), 0);
    }
}

int64_t stalls_end_us(void)
{
    int64_t longest_us = 0;
    atomic_store(&over, true);
    for (unsigned i = 0; i < n_cores; i++) {
        pthread_join(cores[i].thread, NULL);
        longest_us = cores[i].longest_us > longest_us ? cores[i].longest_us : longest_us;
    }
    free(cores);
    return longest_us;
}

/* test_queue.c - a bounded queue between threads. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include "base/clock.h"
#include "base/queue.h"
#include "lib/lib.h"

static struct queue *queue_of(uint32_t max)
{
    struct queue *q;
    assert_int_equal(queue_new(max, &q), 0);
    return q;
}

static void items_come_out_in_order_past_the_end_of_the_ring(void **state)
{
    (void)state;
    AUTO(queue_free) struct queue *q = queue_of(3);
    int items[10];
    for (int i = 0; i < 10; i++) {
        assert_int_equal(queue_push(q, &items[i]), 0);
        if (i > 0)
            assert_ptr_equal(queue_pop(q, 0), &items[i - 1]);
    }
    assert_int_equal(queue_len(q), 1);
    assert_ptr_equal(queue_pop(q, 0), &items[9]);
    assert_null(queue_pop(q, 0));
}

static void a_full_queue_leaves_the_item_to_the_caller(void **state)
{
    (void)state;
    AUTO(queue_free) struct queue *q = queue_of(2);
    int a, b, c;
    assert_int_equal(queue_push(q, &a), 0);
    assert_int_equal(queue_push(q, &b), 0);
    assert_int_equal(queue_push(q, &c), -EAGAIN);
    assert_ptr_equal(queue_pop(q, 0), &a);
    assert_int_equal(queue_push(q, &c), 0);
    queue_pop(q, 0);
    queue_pop(q, 0);
}

static void waiting_ends_at_its_limit(void **state)
{
    (void)state;
    AUTO(queue_free) struct queue *q = queue_of(1);
    int64_t from = clock_us();
    assert_null(queue_pop(q, 20000));
    assert_true(clock_us() - from >= 20000);
}

static void a_wake_up_before_the_wait_is_not_lost(void **state)
{
    (void)state;
    AUTO(queue_free) struct queue *q = queue_of(1);
    queue_wake(q);
    assert_null(queue_pop(q, 0));
    assert_null(queue_pop(q, -1)); // would otherwise never return
}

static void a_closed_queue_can_be_emptied_but_not_filled(void **state)
{
    (void)state;
    AUTO(queue_free) struct queue *q = queue_of(2);
    int a;
    queue_push(q, &a);
    queue_close(q);
    assert_int_equal(queue_push(q, &a), -EPIPE);
    assert_ptr_equal(queue_pop(q, -1), &a);
    assert_null(queue_pop(q, -1));
}

#define PUSHERS 3
#define EACH 2000

struct pusher {
    struct queue *q;
    int items[EACH];
};

static void *push_all(void *arg)
{
    struct pusher *p = arg;
    for (int i = 0; i < EACH; i++) {
        p->items[i] = i; // written here, read by the popping thread
        while (queue_push(p->q, &p->items[i]) == -EAGAIN)
            sched_yield();
    }
    return NULL;
}

static void many_threads_push_and_nothing_is_lost(void **state)
{
    (void)state;
    static struct pusher pushers[PUSHERS];
    AUTO(queue_free) struct queue *q = queue_of(16);
    pthread_t threads[PUSHERS];
    for (int i = 0; i < PUSHERS; i++) {
        pushers[i].q = q;
        pthread_create(&threads[i], NULL, push_all, &pushers[i]);
    }
    int next[PUSHERS] = {0};
    for (int n = 0; n < PUSHERS * EACH; n++) {
        int *item = queue_pop(q, 10000000);
        assert_non_null(item);
        for (int i = 0; i < PUSHERS; i++) {
            if (item >= pushers[i].items && item < pushers[i].items + EACH)
                assert_int_equal(*item, next[i]++); // items of one thread stay in order
        }
    }
    for (int i = 0; i < PUSHERS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(next[i], EACH);
    }
    assert_int_equal(queue_len(q), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(items_come_out_in_order_past_the_end_of_the_ring),
        cmocka_unit_test(a_full_queue_leaves_the_item_to_the_caller),
        cmocka_unit_test(waiting_ends_at_its_limit),
        cmocka_unit_test(a_wake_up_before_the_wait_is_not_lost),
        cmocka_unit_test(a_closed_queue_can_be_emptied_but_not_filled),
        cmocka_unit_test(many_threads_push_and_nothing_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

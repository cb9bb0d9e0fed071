/* full_queues.h - clients whose requests the full queues of the verifiers refuse.
 *
 * A refused call costs the verifier and the gateway time of the passes that run. So after
 * FULL_QUEUES_MAX refusals of a payer's calls for a model, its queue counts as full: further
 * requests get the same error without a call. This ends FULL_QUEUES_US after the first refusal.
 * Each call of the payer that ends well permits one more refusal, since it has left a place.
 *
 * Clients that send the next request after each error would still take much time from the passes.
 * So these errors are sent one after the other, one each FULL_QUEUES_PACE_US of a payer. None waits
 * for more than FULL_QUEUES_DELAY_US.
 *
 * The table of payers has a fixed size. Of two that meet in one entry, the last refused one stays.
 *
 * Threads: any. */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "tandem/v1/verifier.pb-c.h"

#define FULL_QUEUES_MAX 2
#define FULL_QUEUES_US 100000
#define FULL_QUEUES_RETRY_US 50000 // between two retries of a payer's calls, which a tick may make
#define FULL_QUEUES_RETRIES 5      // together
#define FULL_QUEUES_PACE_US 10000
#define FULL_QUEUES_DELAY_US 4000000
#define FULL_QUEUES_ENTRIES 256

struct full_queues {
    pthread_mutex_t mu; // guards the entries
    uint64_t secret;    // clients must not choose addresses that meet
    struct full_queues_entry {
        uint64_t key; // of payer and model
        int64_t since_us;
        unsigned n;       // refusals, less calls that have ended well since
        int64_t last_us;  // when the last error without a call is sent
        int64_t retry_us; // when the last retry was due
        char text[FAIL_TEXT_MAX];
    } entries[FULL_QUEUES_ENTRIES];
};

void full_queues_init(struct full_queues *f);
void full_queues_done(struct full_queues *f);
/* Verifiers have refused a call for this model, with this text. */
void full_queues_note(struct full_queues *f, const char *payer, ProtobufCBinaryData model,
                      const char *text, int64_t now_us);
/* A call for this model has ended well. */
void full_queues_ended(struct full_queues *f, const char *payer, ProtobufCBinaryData model);
bool full_queues_is_full(struct full_queues *f, const char *payer, ProtobufCBinaryData model,
                         int64_t now_us);
/* Whether a call that was refused may be made again. */
bool full_queues_may_retry(struct full_queues *f, const char *payer, ProtobufCBinaryData model,
                           int64_t now_us);
/* -EAGAIN: a call would be refused; the sentence is that of the last refusal. It is sent at
 * *ret_send_us. */
int full_queues_check(struct full_queues *f, const char *payer, ProtobufCBinaryData model,
                      int64_t now_us, int64_t *ret_send_us);

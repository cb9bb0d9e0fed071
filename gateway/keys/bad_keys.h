/* bad_keys.h - wrong API keys: pauses for the addresses that send them, and a summary for the log.
 *
 * The wrong key number BAD_KEYS_FREE from one address begins a pause of 1 s. It still gets 401. The
 * first wrong key after a pause begins the next one, which is twice as long, and at most
 * BAD_KEYS_MAX_PAUSE_S. Wrong keys during a pause get 429 and do not count. A right key is never
 * looked up here, so it works from the same address. An address is forgotten after
 * BAD_KEYS_FORGET_S without wrong keys.
 *
 * The table has a fixed size. If a set of it is full, the address with the oldest wrong key is
 * forgotten. Addresses of one address_site() are the same client.
 *
 * Times are arguments, in microseconds of clock_us().
 *
 * Threads: any. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/mem.h"
#include "gateway/http/address.h"

#define BAD_KEYS_FREE 10
#define BAD_KEYS_MAX_PAUSE_S 60
#define BAD_KEYS_FORGET_S 600
#define BAD_KEYS_REPORT_S 60

struct bad_keys;

int bad_keys_new(struct bad_keys **ret); // -ENOMEM
void bad_keys_free(struct bad_keys *b);
DEFINE_AUTO(struct bad_keys, bad_keys_free)

/* A request has sent a wrong key. 0: to be answered with 401; else with 429, and this is the number
 * of seconds until the pause ends. */
unsigned bad_keys_note(struct bad_keys *b, const struct address *client, int64_t now_us);

struct bad_keys_report {
    uint64_t n, n_paused;          // wrong keys, and how many of them came during a pause
    char client[ADDRESS_TEXT_MAX]; // of the last one
};
/* Whether there were wrong keys since the last report. false also if this was less than
 * BAD_KEYS_REPORT_S ago. */
bool bad_keys_report(struct bad_keys *b, int64_t now_us, struct bad_keys_report *ret);

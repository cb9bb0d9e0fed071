/* refusal_lines.h - how many log lines the refusals of one client may have, and its requests that
 * fail before their first token.
 *
 * A refusal costs a client next to nothing, and its line would fill the disk. So a client gets
 * REFUSAL_LINES_MAX lines in LOG_BURST_US. Addresses of one address_site() are the same client.
 *
 * The table has a fixed size. Clients that meet in one entry share its lines.
 *
 * Threads: any. */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/log_burst.h"
#include "gateway/http/address.h"

#define REFUSAL_LINES_MAX 20
#define REFUSAL_LINES_ENTRIES 1024

struct refusal_lines { // zeroed at first, except for the secret
    pthread_mutex_t mu;
    uint64_t secret; // random: clients must not choose addresses that meet in one entry
    struct log_burst entries[REFUSAL_LINES_ENTRIES];
};

/* A refusal of this client. true: it may have a line, and *ret_left_out had none before it. */
bool refusal_lines_take(struct refusal_lines *t, const struct address *client, int64_t now_us,
                        uint64_t *ret_left_out);

/* usage_keeper.h - the thread that saves the counts of API keys once a second, and reads those that
 * other gateways have added.
 *
 * No request waits for the file. If the file cannot be written, the counts stay in memory, and a
 * line of the log says why once a minute. A process that is killed loses the last second.
 *
 * Threads: main. */
#pragma once
#include "base/mem.h"
#include "gateway/keys/auth.h"

struct usage_keeper;

/* Reads the counts, then starts the thread. a must live until usage_keeper_free(). Errors as those
 * of usage_file_open(). */
int usage_keeper_new(struct auth *a, const char *path, struct usage_keeper **ret);
/* Ends the thread and saves the last counts. */
void usage_keeper_free(struct usage_keeper *k);
DEFINE_AUTO(struct usage_keeper, usage_keeper_free)

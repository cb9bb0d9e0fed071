/* calibrate.h - measures t(M, context) of a model that has just been loaded.
 *
 * Threads: the engine's, before the first round. */
#pragma once
#include "verifier-svc/control/pass_time.h"
#include "model/runner.h"

/* Runs passes for about a second (at least one of one row) and starts *ret with their times. Rows
 * of the KV pool are used and given back. -ENOMEM; -ENOSPC: there was none, *ret is as before. */
int calibrate(struct runner *r, struct pass_time *ret);

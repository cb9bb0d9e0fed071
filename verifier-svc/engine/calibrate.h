/* calibrate.h - measures t(M, context) of a model that has just been loaded.
 *
 * Threads: the engine's, before the first round. */
#pragma once
#include "verifier-svc/control/pass_time.h"
#include "model/runner.h"

/* Runs passes for about two seconds, at least one of one row, and initialises *ret with their
 * times. Takes rows of the KV pool and returns them. The times are kept in the runner's folder
 * (weights_cache), if it has one. The next start with the same model, CPU and threads then runs no
 * passes; later passes correct the times. -ENOMEM; -ENOSPC: no block is free, *ret is unchanged.
 *
 * ids: n tokens of a text, at least one. Passes take parts of it in turn, and begin again at its
 * end. How many weights a pass reads depends on its rows: those of a text share some experts. */
int calibrate(struct runner *r, const uint32_t *ids, size_t n, struct pass_time *ret);

/* fake_verifier.h - a gRPC server that acts as a verifier and misbehaves on request: it stalls,
 * dies, sends unusual tokens, or never finishes loading.
 *
 * The text of the prompt says what Generate does:
 *     say N          sends N tokens "w0 ", "w1 " ..., one per message, finish reason length
 *     run N          the same in one message
 *     pace N MS      N tokens, one every MS milliseconds, the first immediately
 *     spell N MS L   for ever the text L of fake_verifier_text(), as tokens of N bytes, one every
 *                    MS milliseconds
 *     stall          sends the start, then nothing
 *     silent         sends nothing, not even the start
 *     flood N        N tokens of 1000 bytes, as fast as the client reads them
 *     bytes          three tokens: half a character, its other half, a byte that is not UTF-8
 *     held           one token, then text that is held back until the end
 *     die N          N tokens, then the process kills itself
 *     short N        N tokens, then status OK without a finish
 *     status CODE    the call ends with that gRPC status and a sentence
 *     lose CODE N    one token, then UNAVAILABLE; the next N calls that continue the answer, at any
 *                    fake of the process, end with CODE; a later one sends the second token
 *     call CODE N    the same with a tool call in Hermes's format
 *     garbage        bytes that are not a message
 *     newer N        an event of no known kind, then as say
 *     choice         an event for a choice that was not requested
 * Prompts are echoed if the request wants it. Tokenize returns one token per byte; it does not
 * answer "stall", and ends "lost" with UNAVAILABLE. The chat template renders the last message's
 * content. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "rpc/rpc.h"
#include "tandem/v1/verifier.pb-c.h"

struct fake_verifier;

#define FAKE_TEMPLATE "{{ messages[-1].content }}"

/* address: see rpc_server_listen(). Ends the test on errors. */
struct fake_verifier *fake_verifier_start(const char *address);
void fake_verifier_stop(struct fake_verifier *f);
/* For a child process that a test can kill: starts a fake verifier, prints "playing", and never
 * returns. */
void fake_verifier_play(const char *address) __attribute__((noreturn));
void fake_verifier_state(struct fake_verifier *f, Tandem__V1__ModelInfo__State state,
                         float progress);
void fake_verifier_protocol(struct fake_verifier *f, uint32_t version);   // for GetModel
void fake_verifier_template(struct fake_verifier *f, const char *source); // static text
/* What GetModel says of continuing answers; false by default. */
void fake_verifier_continues(struct fake_verifier *f, bool yes);
/* How long the engine has been busy with its turn, as GetModel says. */
void fake_verifier_turn(struct fake_verifier *f, uint64_t ms);
/* GetModel ends with this status; RPC_OK, the default: it is answered. */
void fake_verifier_get_model(struct fake_verifier *f, enum rpc_code code);
/* Static texts. Defaults: "fake/model" and "fp_fake". */
void fake_verifier_model(struct fake_verifier *f, const char *name, const char *fingerprint);
/* Sets the text that "spell" sends for a letter from a to d: static, ASCII, not empty. */
void fake_verifier_text(struct fake_verifier *f, char which, const char *text);
/* The request that holds most of the cache; static text, "r\"1" by default. */
void fake_verifier_holder(struct fake_verifier *f, const char *id);
unsigned fake_verifier_running(struct fake_verifier *f);   // running Generate and stalled calls
unsigned fake_verifier_queries(struct fake_verifier *f);   // calls of GetModel so far
unsigned fake_verifier_cancelled(struct fake_verifier *f); // cancelled calls so far
/* The last Generate request, or NULL; the caller frees it with free_unpacked. */
Tandem__V1__GenerateRequest *fake_verifier_request(struct fake_verifier *f);

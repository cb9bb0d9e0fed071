/* fake_verifier.h - a gRPC server that plays the verifier, for what the real one never does on
 * request: stalls, deaths, strange tokens, loading for ever.
 *
 * What Generate does is said by the prompt's text:
 *     say N          N tokens "w0 ", "w1 " ... at once, one per message, finish length
 *     run N          the same in one message
 *     pace N MS      N tokens, one every MS milliseconds, the first at once
 *     stall          starts and then says nothing
 *     silent         not even starts
 *     flood N        N tokens of 1000 bytes as fast as they are taken
 *     bytes          three tokens: half a character, its end, a byte that is no text
 *     held           one token, and text that was held back until the end
 *     die N          N tokens, then the process is gone
 *     short N        N tokens and status OK without an end
 *     status CODE    the call ends with that gRPC status and a sentence
 *     garbage        bytes that are no message
 *     choice         an event for a choice that was not asked for
 * Texts are echoed when the request says so. Tokenize gives a token per byte, to "stall" no answer,
 * to "lost" UNAVAILABLE.
 * The template renders to the last message's content. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "tandem/v1/verifier.pb-c.h"

struct fake_verifier;

#define FAKE_TEMPLATE "{{ messages[-1].content }}"

/* address: as rpc_server_listen(). Ends the test on errors. */
struct fake_verifier *fake_verifier_start(const char *address);
void fake_verifier_stop(struct fake_verifier *f);
/* For a process of its own, so that it can be killed: starts one, says "playing", and never ends.
 */
void fake_verifier_play(const char *address) __attribute__((noreturn));
void fake_verifier_state(struct fake_verifier *f, Tandem__V1__ModelInfo__State state,
                         float progress);
void fake_verifier_protocol(struct fake_verifier *f, uint32_t version);   // told by GetModel
void fake_verifier_template(struct fake_verifier *f, const char *source); // static text
/* Static texts; "fake/model" and "fp_fake" else. */
void fake_verifier_model(struct fake_verifier *f, const char *name, const char *fingerprint);
unsigned fake_verifier_running(struct fake_verifier *f);   // Generate (and stalled) calls
unsigned fake_verifier_cancelled(struct fake_verifier *f); // that were cancelled, so far
/* The last Generate request; the caller frees it with free_unpacked. */
Tandem__V1__GenerateRequest *fake_verifier_request(struct fake_verifier *f);

/* template_turns.h - which waiting chat is rendered next, and which one is refused. Decisions only.
 *
 * Payers share the helpers' CPU time by fair queueing, with one virtual time. It advances by the
 * CPU time of each rendering, divided by the number of payers that have chats. A payer that starts
 * to wait gets a start in virtual time: the end of its last chat. The start is at least now, and at
 * most TEMPLATE_TURNS_DEBT_US later, so nobody collects credit or debt. The chat with the least
 * expected end is next, and the next one of its payer starts at this end. So short chats wait for
 * few of the long ones, and each payer gets its share. Chats of one payer keep their order, but one
 * that may not run yet lets the others pass. A payer is an API key's name or a client's address.
 *
 * The expected cost of a chat is template_turns_cost_us(), or what recent chats of its payer took,
 * if that is more. For a new payer it grows with what recent chats of new payers took. So a new
 * name gains nothing.
 *
 * The places have one limit for all payers. Without a free one, a newcomer displaces the newest
 * chat of the payer with the most. Its own payer must have fewer, the newcomer included.
 *
 * A template that fails for a payer, because its helper had to be killed, runs for this payer in
 * one helper at a time. From the second failure in a row on, it is refused for a growing pause. It
 * is not refused for others: a payer could make a good template slow by its messages.
 *
 * A payer whose rendering took longer than TEMPLATE_TURNS_SLOW_US is slow for a while. A chat with
 * a larger template_turns_cost_us() counts as that of a slow payer. While other payers send
 * chats, slow payers together get all helpers but one, and at least one. So chats of quick payers
 * do not wait for them. A rendering of that time counts before its end, also while its helper
 * starts.
 *
 * The table of payers has a fixed size. A payer that meets another one in an entry takes it, if the
 * other one has no chats and is not slow. Otherwise they share its times.
 *
 * Threads: one at a time. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/mem.h"

#define TEMPLATE_TURNS_FAILING 256 // failing templates that are known; then the oldest is forgotten
#define TEMPLATE_TURNS_MAX_PAUSE_S 60
#define TEMPLATE_TURNS_ENTRIES 4096         // of payers
#define TEMPLATE_TURNS_DEBT_US 20000        // a usual chat takes 1 to 20 ms
#define TEMPLATE_TURNS_SLOW_US 100000       // a longer rendering makes its payer slow ...
#define TEMPLATE_TURNS_SLOW_FOR_US 10000000 // ... for this long

struct template_turns;
struct template_turns_entry;

/* FAILED: its helper had to be killed. NOT_TRIED: there was no helper. */
enum template_turns_result { TEMPLATE_TURNS_DONE, TEMPLATE_TURNS_FAILED, TEMPLATE_TURNS_NOT_TRIED };

/* The place of a chat. The caller sets `user` and `cost_us` before template_turns_enter(). */
struct template_turn {
    void *user;                         // of the caller, for template_turns_leave()
    struct template_turn *next;         // of the same payer; or of those that are rendered
    struct template_turns_entry *entry; // of the payer
    uint64_t key;                       // of payer and template
    int64_t since_us;                   // waits; then: is rendered
    int64_t cost_us;                    // template_turns_cost_us(); at least 1
    int64_t charged_us;                 // to the payer when the rendering began
    bool was_slow;                      // the payer or the chat, when it came
    bool probes;      // its template has failed, and no other chat of it begins meanwhile
    unsigned retry_s; // after -EBUSY: when its template is tried again, rounded up
};

/* n_helpers: that render; max: chats that may wait; wait_us: for how long. -ENOMEM. */
int template_turns_new(unsigned n_helpers, unsigned max, int64_t wait_us,
                       struct template_turns **ret);
void template_turns_free(struct template_turns *t); // nothing may wait
DEFINE_AUTO(struct template_turns, template_turns_free)

/* Expected CPU time of a rendering of these variables, from their size, values and nesting. */
int64_t template_turns_cost_us(const char *vars);

/* The chat waits from now on. name: of its payer; source: of its template.
 * *ret_displaced: the chat that was removed for it, with a sentence for it; NULL: none.
 * -EDQUOT: no place, and too many of this payer wait; -EAGAIN: no place, and none of this payer
 * waits; -ENOMEM. Each has a sentence. */
int template_turns_enter(struct template_turns *t, struct template_turn *turn, const char *name,
                         const void *source, size_t len, int64_t now_us,
                         struct template_turn **ret_displaced);
/* Removes the chat whose turn it is. *ret NULL: none may be rendered now.
 * 0: it is to be rendered, until template_turns_end(). With a sentence, and without an end:
 * -ETIMEDOUT: it has waited for too long; -EBUSY: its template is in a pause. */
int template_turns_next(struct template_turns *t, int64_t now_us, struct template_turn **ret);
/* took_us: CPU time of the helper. Returns whether more chats may be rendered now. */
bool template_turns_end(struct template_turns *t, const struct template_turn *turn,
                        enum template_turns_result result, int64_t took_us, int64_t now_us);
/* Removes the chat of this user, which must not be NULL. NULL: it does not wait. */
struct template_turn *template_turns_leave(struct template_turns *t, const void *user);
/* Removes a chat that waits, whatever its turn is. NULL: none waits. */
struct template_turn *template_turns_drop(struct template_turns *t);

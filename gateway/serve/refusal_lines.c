/* refusal_lines.c - counts the refusals of each client. */
#include "gateway/serve/refusal_lines.h"

bool refusal_lines_take(struct refusal_lines *t, const struct address *client, int64_t now_us,
                        uint64_t *ret_left_out)
{
    struct address site = address_site(client);
    uint64_t i = address_hash(&site, t->secret) % REFUSAL_LINES_ENTRIES;
    *ret_left_out = 0;
    pthread_mutex_lock(&t->mu);
    if (!t->entries[i].from_us || now_us - t->entries[i].from_us >= REFUSAL_LINES_US) {
        uint64_t n = t->entries[i].n;
        *ret_left_out = n > REFUSAL_LINES_MAX ? n - REFUSAL_LINES_MAX : 0;
        t->entries[i].from_us = now_us;
        t->entries[i].n = 0;
    }
    bool has_line = t->entries[i].n++ < REFUSAL_LINES_MAX;
    pthread_mutex_unlock(&t->mu);
    return has_line;
}

/* refusal_lines.c - counts the refusals of each client. */
#include "gateway/serve/refusal_lines.h"

bool refusal_lines_take(struct refusal_lines *t, const struct address *client, int64_t now_us,
                        uint64_t *ret_left_out)
{
    struct address site = address_site(client);
    uint64_t i = address_hash(&site, t->secret) % REFUSAL_LINES_ENTRIES;
    pthread_mutex_lock(&t->mu);
    bool has_line = log_burst_take(&t->entries[i], REFUSAL_LINES_MAX, now_us, ret_left_out);
    pthread_mutex_unlock(&t->mu);
    return has_line;
}

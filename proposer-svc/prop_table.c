/* prop_table.c - all proposers of this service, for prop_find() and prop_at() of prop.h. A new
 * proposer is added here. */
#include <string.h>
#include "base/mem.h"
#include "proposer-svc/props/prop.h"
#include "proposer-svc/props/prop_cascade.h"
#include "proposer-svc/draftmodel/prop_draft_model.h"
#include "proposer-svc/props/prop_ngram.h"
#include "proposer-svc/props/prop_suffix.h"

static const struct prop_ops *const table[] = {
    &prop_ngram,
    &prop_draft_model,
    &prop_suffix,
    &prop_cascade,
};

const struct prop_ops *prop_at(size_t i)
{
    return i < ARRAY_LEN(table) ? table[i] : NULL;
}

const struct prop_ops *prop_find(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(table); i++)
        if (strcmp(table[i]->name, name) == 0)
            return table[i];
    return NULL;
}

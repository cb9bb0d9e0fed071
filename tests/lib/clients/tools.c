/* tools.c - the tools of a request, from their JSON text. */
#include <jansson.h>
#include "lib/clients/tools.h"
#include "lib/lib.h"

struct tool_types *tools_of(const char *text)
{
    struct tool_types *types = NULL;
    json_t *tools = json_loads(text, 0, NULL);
    assert_non_null(tools);
    assert_int_equal(tool_types_new(tools, &types), 0);
    json_decref(tools);
    return types;
}

/* tools.h - the tools of a request, from their JSON text. Ends the test on errors. */
#pragma once
#include "gateway/openai/tool_types.h"

/* text: the JSON array of a request. Free with tool_types_free(). */
struct tool_types *tools_of(const char *text);

"""Renders chat templates for the gateway. They come from downloaded model files and may be hostile.

Started as `python3 -I -c`, in the sandbox of sandbox.h. Reads one JSON
object per line from descriptor 0, {"template", "vars", "now"?}, and answers with one line, {"text"}
or {"error"}. The parent kills a template that loops or grows without end; only its request fails.
`now` (seconds since 1970) fixes strftime_now() for tests.
"""

import json
import os
import re
import sys
import time

from jinja2.exceptions import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import SandboxedEnvironment

MAX_TEXT = 16 << 20  # characters of a rendering
MAX_ERROR = 400
CACHED = 4  # compiled templates


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def raise_exception(message):
    raise TemplateError(message)


now = None


def strftime_now(form):
    return time.strftime(form, time.gmtime(now))


environment = SandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols], cache_size=0
)
environment.filters["tojson"] = tojson
environment.globals["raise_exception"] = raise_exception
environment.globals["strftime_now"] = strftime_now
compiled = {}


def template_of(source):
    if source not in compiled:
        if len(compiled) == CACHED:
            del compiled[next(iter(compiled))]
        compiled[source] = environment.from_string(source)
    return compiled[source]


class Arguments(dict):
    """The arguments of a call: an object, and its JSON text for templates that append text."""

    def __init__(self, value, text):
        super().__init__(value)
        self.__text = text

    def __add__(self, other):
        return self.__text + other

    def __radd__(self, other):
        return other + self.__text


def open_arguments(message):
    for call in message.get("tool_calls") or []:
        function = call.get("function", {})
        text = function.get("arguments")
        value = json.loads(text) if isinstance(text, str) else text
        if isinstance(value, dict):
            text = text if isinstance(text, str) else tojson(value)
            function["arguments"] = Arguments(value, text)


def variables_of(source, values):
    """Adapts messages to the template. If it does not mention the role `developer`, that becomes
    `system`. If it does not test whether the content is none, none becomes an empty string. The
    template of gpt-oss calls reasoning `thinking`."""
    tests_none = re.search(r"content['\"\]]*\s+is\s+(not\s+)?none", source, re.IGNORECASE)
    for message in values.get("messages", []):
        if message.get("role") == "developer" and "developer" not in source:
            message["role"] = "system"
        thoughts = message.get("reasoning_content")
        if thoughts and "<|channel|>" in source and ".thinking" in source:
            message.setdefault("thinking", thoughts)
            if message.get("tool_calls"):
                message["content"] = ""  # the template refuses both
        if message.get("content", "") is None and not tests_none:
            message["content"] = ""
        open_arguments(message)
    return values


def render(request):
    global now
    now = request.get("now")
    source = request["template"]
    parts, size = [], 0
    for part in template_of(source).generate(**variables_of(source, request["vars"])):
        size += len(part)
        if size > MAX_TEXT:
            raise TemplateError("the rendering is longer than %d characters" % MAX_TEXT)
        parts.append(part)
    return "".join(parts)


def text_of(e):
    try:
        return str(e)[:MAX_ERROR] or type(e).__name__
    except Exception:  # the text of an object that a template has raised may not be possible
        return type(e).__name__


def answer(line):
    try:
        return {"text": render(json.loads(line))}
    except TemplateError as e:
        return {"error": text_of(e)}
    except MemoryError:
        return {"error": "the template needs more memory than it may have"}
    except RecursionError:
        return {"error": "the template recurses without end"}
    except Exception as e:  # any exception of a template is an error of its request
        return {"error": "%s: %s" % (type(e).__name__, text_of(e))}


def send(reply):
    data = json.dumps(reply, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
    while data:
        data = data[os.write(1, data) :]


def main():
    send({"text": "ready"})
    for line in sys.stdin.buffer:
        send(answer(line))


main()

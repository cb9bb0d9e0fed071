"""stream.py <EVENTS: prints the text of a streamed answer (server-sent events) while it arrives.

Reads the events of /v1/chat/completions or /v1/completions. An error is printed on stderr; the status is then 3
if the model has no chat template, else 1.
"""
import json
import sys


def text_of(choice):
    if "delta" in choice:  # chat
        return choice["delta"].get("content") or ""
    return choice["text"]


def fail(message):
    print("tandem: " + message, file=sys.stderr)
    sys.exit(3 if "chat template" in message else 1)


def main():
    for line in sys.stdin:
        line = line.removeprefix("data: ")
        if not line.startswith("{"):
            continue
        event = json.loads(line)
        if "error" in event:
            fail(event["error"]["message"])
        for choice in event["choices"]:
            print(text_of(choice), end="", flush=True)
    print()


main()

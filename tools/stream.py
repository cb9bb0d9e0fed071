import json
import sys

for line in sys.stdin:
    line = line.removeprefix("data: ")
    if not line.startswith("{"):
        continue
    event = json.loads(line)
    if "error" in event:
        message = event["error"]["message"]
        print("tandem: " + message, file=sys.stderr)
        sys.exit(3 if "chat template" in message else 1)
    for choice in event["choices"]:
        sys.stdout.write(choice["delta"].get("content") or "" if "delta" in choice else choice["text"])
        sys.stdout.flush()
print()

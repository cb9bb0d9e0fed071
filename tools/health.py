"""health.py <HEALTH.json: reads the gateway's /health for ./tandem up and prints one line about it.

  ok TEXT        the verifier serves and all its proposers are connected
  without TEXT   the verifier serves, but at least one proposer is not connected
  TEXT           the model is being loaded

Prints nothing if the input is not JSON: the gateway does not answer yet.
"""
import json
import sys


def line_of(verifier):
    waiting = [p["target"] for p in verifier.get("proposers", []) if not p["connected"]]
    if verifier["state"] == "loading":
        return "loading the model: %d %%" % (100 * verifier["progress"])
    if verifier["state"] == "ready" and waiting:
        return "without model %s, waiting for the proposer %s" % (verifier["model"], ", ".join(waiting))
    if verifier["state"] == "ready":
        names = [p["name"] for p in verifier["proposers"]] or ["none"]
        return "ok model %s, proposer %s" % (verifier["model"], ", ".join(names))
    return None


def main():
    try:
        verifier = json.load(sys.stdin)["verifiers"][0]
    except ValueError:
        return
    line = line_of(verifier)
    if line:
        print(line)


main()

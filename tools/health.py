import json
import sys

try:
    verifier = json.load(sys.stdin)["verifiers"][0]
except ValueError:
    sys.exit()
waiting = [p["target"] for p in verifier.get("proposers", []) if not p["connected"]]
if verifier["state"] == "loading":
    print("loading the model: %d %%" % (100 * verifier["progress"]))
elif verifier["state"] == "ready" and waiting:
    print("without model %s, waiting for the proposer %s" % (verifier["model"], ", ".join(waiting)))
elif verifier["state"] == "ready":
    names = [p["name"] for p in verifier["proposers"]] or ["none"]
    print("ok model %s, proposer %s" % (verifier["model"], ", ".join(names)))

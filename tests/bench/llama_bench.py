"""llama_bench.py: ik_llama.cpp beside Tandem, measured by the programs of a build of it.

It has no binaries to install and no interface for single passes. So each turn is a run of its llama-bench, which loads the
model, warms up and measures. A single row comes after the context, as with Tandem. Several rows are a prompt at an empty
context, and only the last token has logits, so the peer does a little less than Tandem.
"""
import json
import os
import re
import subprocess

REPS = 3  # of each size in a turn
GENERATED = 16  # rows of one token in a repetition


class Failed(Exception):
    pass


def output_of(command):
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        raise Failed("%s ended with status %d: %s" % (command[0], done.returncode, done.stderr.strip()[-500:]))
    return done.stdout + done.stderr if "speculative" in os.path.basename(command[0]) else done.stdout


class LlamaBench:
    """repack: weights are interleaved when the model is loaded (-rtr 1)."""

    def __init__(self, folder, repack):
        self.program, self.repack = os.path.join(folder, "llama-bench"), repack
        self.name = "ik -rtr 1" if repack else "ik"
        self.commit = "?"

    def arguments(self, o):
        prompts = [n for n in o.rows if n > 1] if o.bench != "decode" else []
        sizes = ["-p", ",".join(map(str, prompts or [0])), "-n", "0"]
        if 1 in o.rows and o.context:
            sizes += ["-gp", "%d,%d" % (o.context, GENERATED)]
        elif 1 in o.rows:
            sizes[-1] = str(GENERATED)
        return ["-m", o.path, "-t", str(o.threads), "-fa", "1", "-rtr", str(int(self.repack)), "-r", str(REPS), *sizes, "-o", "json"]

    def turn(self, o):
        """rows -> milliseconds of each repetition. Sizes that llama-bench cannot measure are missing."""
        times = {}
        for test in json.loads(output_of([self.program, *self.arguments(o)])):
            self.commit = test["build_commit"]
            n, rows = (test["n_gen"], 1) if test["n_gen"] else (1, test["n_prompt"])
            times[rows] = [ns / n / 1e6 for ns in test["samples_ns"]]
        return times


def benches(folder):
    return [LlamaBench(folder, repack) for repack in (False, True)] if folder else []


def speculative(folder, o, k, n_tokens, prompt):
    """(tokens/s, part of the draft tokens that was accepted) of greedy text by ik's llama-speculative."""
    text = output_of([os.path.join(folder, "llama-speculative"), "-m", o.path, "-md", o.draft, "-p", prompt, "-n", str(n_tokens),
                      "--draft", str(k), "--temp", "0", "-t", str(o.threads), "-td", str(o.threads), "-c", "1024", "-fa", "1"])
    speed = re.search(r"^decoded .* speed: +([\d.]+) t/s", text, re.M)
    accepted = re.search(r"^accept += +([\d.]+)%", text, re.M)
    if not speed or not accepted:
        raise Failed("llama-speculative printed no speed: " + text[-500:])
    return float(speed[1]), float(accepted[1]) / 100

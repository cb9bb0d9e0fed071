"""llama_bench.py: ik_llama.cpp beside Tandem, measured by the programs of a build of it.

It has no binaries to install and no interface for single passes. So each turn is a run of its llama-bench, which loads the
model, warms up and measures. A single row comes after the context, as with Tandem. Several rows are a prompt at an empty
context, and only the last token has logits, so the peer does a little less than Tandem.
"""
import json
import os
import socket
import subprocess
import time
import urllib.request

REPS = 3  # of each size in a turn
GENERATED = 16  # rows of one token in a repetition
START_S = 60  # for a server to load a model


class Failed(Exception):
    pass


def output_of(command):
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        raise Failed("%s ended with status %d: %s" % (command[0], done.returncode, done.stderr.strip()[-500:]))
    return done.stdout


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


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def post(port, path, body):
    url = "http://127.0.0.1:%d%s" % (port, path)
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode()), timeout=START_S) as r:
        return json.load(r)


def wait_ready(server, port):
    until = time.monotonic() + START_S
    while time.monotonic() < until and server.poll() is None:
        try:
            with urllib.request.urlopen("http://127.0.0.1:%d/health" % port, timeout=1):
                return
        except OSError:  # it does not listen yet, or loads
            time.sleep(0.1)
    raise Failed("llama-server did not become ready")


def speculative(folder, o, k, n_tokens, prompt):
    """(tokens/s, part of the draft tokens that was accepted) of greedy text by ik's llama-server. Its llama-speculative
    ignores the length of drafts."""
    port = free_port()
    command = [os.path.join(folder, "llama-server"), "-m", o.path, "-md", o.draft, "--spec-type",
               "draft:n_max=%d,p_min=0.0" % k, "-t", str(o.threads), "-td", str(o.threads), "-c", "2048", "-fa", "1",
               "--host", "127.0.0.1", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            wait_ready(server, port)
            times = post(port, "/completion", {"prompt": prompt, "n_predict": n_tokens, "temperature": 0, "ignore_eos": True,
                                               "cache_prompt": False})["timings"]
        finally:
            server.terminate()
    return times["predicted_per_second"], times["draft_n_accepted"] / max(1, times["draft_n"])

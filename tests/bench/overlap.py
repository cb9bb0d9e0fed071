"""overlap [OPTIONS]: drafting while the verifier verifies (draft_ahead), beside drafting in turns.

Verifier and drafter have one core each, and the drafter a network namespace of its own, where only a relay reaches
it that adds to the round trip. One sequence, greedy, a fixed k. What is compared takes turns at every text,
in any order, and is timed again while the machine's host takes more than 3 % of it for others; gains come with their
standard error.
"""
import argparse
import contextlib
import os
import random
import subprocess
import sys
import urllib.request

import engine
import report
from services import Services
from stats import alpha_of, rate_of, relative
from timing import must_agree, prompt_of, text_with_figures

DRAFTER = "127.0.0.1:7703"  # in its namespace
MODES = {"in turns": "--no-draft-ahead", "ahead": "--draft-ahead"}


def may_unshare():
    with contextlib.suppress(OSError):
        return subprocess.run(["unshare", "-n", "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0
    return False


class FarServices(Services):
    """A drafter on core 1, verifiers on core 0, and a relay between them."""

    def __init__(self, o, stack):
        self.far = may_unshare()
        if not self.far:
            print("network namespaces are not permitted here; the drafter listens in ours", file=sys.stderr)
        drafter = ["--proposer", "draft", "--draft-model", o.draft, "--draft-threads", "1"]
        self.relay = None
        self.drafter = None
        verifiers = {name: ["--policy", "fixed", "--k", str(o.k), value] for name, value in MODES.items()}
        o.threads = 1
        super().__init__(o, stack, o.path, {"draft": drafter}, verifiers)

    def command(self, program, arguments):
        path = [os.path.join(self.bin, program), *arguments]
        if program == "verifier-svc":
            return ["taskset", "-c", "0", *path]
        path = ["taskset", "-c", "1", *path]
        if program == "proposer-svc" and self.far:
            return ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "drafter", *path]
        return path

    def start(self, program, name, *arguments):
        arguments = [DRAFTER if a == self.path("draft") else a for a in arguments]
        if self.relay:
            arguments = ["draft=" + self.target if a == "draft=" + self.path("draft") else a for a in arguments]
        log = self.stack.enter_context(open(os.path.join(self.folder, name.replace(" ", "-") + ".log"), "wb"))
        # pylint: disable-next=consider-using-with
        process = self.processes[name] = subprocess.Popen(self.command(program, arguments), stderr=log)
        self.stack.callback(self.stop, process)
        if program == "proposer-svc":
            self.start_relay(process)

    def start_relay(self, drafter):
        if self.far:  # once it has left ours
            ours = os.readlink("/proc/self/ns/net")
            while os.readlink("/proc/%d/ns/net" % drafter.pid) == ours:
                pass
        where = "/proc/%d/ns/net" % drafter.pid if self.far else "-"
        # pylint: disable-next=consider-using-with
        self.relay = subprocess.Popen(["taskset", "-c", "1", os.path.join(self.bin, "tests", "relay_tool"), where, DRAFTER],
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.stack.callback(self.stop, self.relay)
        self.target = self.relay.stdout.readline().strip()

    def path(self, name):
        return super().path(name.replace(" ", "-"))

    def add_round_trip(self, ms):
        self.relay.stdin.write("%d\n" % (ms * 500))
        self.relay.stdin.flush()
        assert self.relay.stdout.readline() == "ok\n"

    def count(self, name, what):
        with urllib.request.urlopen("http://127.0.0.1:%d/metrics" % self.ports[name], timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(what))


def measure(o, services):
    """(ms of round trip, mode) -> texts; the first text of each is thrown away."""
    texts = {(ms, mode): [] for ms in o.delays for mode in MODES}
    for turn in range(o.reps + 1):
        said = []
        for ms, mode in random.sample(sorted(texts), len(texts)):
            services.add_round_trip(ms)
            text = text_with_figures(o, services, mode, prompt_of(turn, o.context), {})
            text.passes = text.figures["tandem_engine_pass_seconds_count"]
            text.pass_ms = 1e3 * text.figures["tandem_engine_pass_seconds_sum"]
            text.wait_ms = text.ms - text.pass_ms
            said.append(text)
            if turn:
                texts[ms, mode].append(text)
        must_agree(said)
    return texts


def per_pass(texts, what):
    return sum(getattr(t, what) for t in texts) / sum(t.passes for t in texts)


def results(o, services, texts):
    rates = {key: rate_of(t) for key, t in texts.items()}
    turns = {key: [rate_of([x]) for x in t] for key, t in texts.items()}
    n, used = (services.count("ahead", "tandem_spec_decode_ahead_drafts" + s) for s in ("_total", "_used_total"))
    first = o.delays[0]
    return {"model": os.path.basename(o.path), "draft": os.path.basename(o.draft), "k": o.k, "hits": used / max(1, n),
            "alpha": alpha_of(sum(texts.values(), []), o.k),
            "round_trips": [{"ms": ms, **{mode: rates[ms, mode] for mode in MODES},
                             "pass_ms": {mode: per_pass(texts[ms, mode], "pass_ms") for mode in MODES},
                             "wait_ms": {mode: per_pass(texts[ms, mode], "wait_ms") for mode in MODES},
                             "tau": {mode: per_pass(texts[ms, mode], "tokens") for mode in MODES},
                             "gain": relative(turns[ms, "ahead"], turns[ms, "in turns"]),
                             "of_first": relative(turns[ms, "ahead"], turns[first, "ahead"])} for ms in o.delays]}


def table(o, r):
    yield "%s, draft %s, k = %d, one core each, %d texts of %d tokens behind %d; alpha %.2f, %.0f %% of drafts ahead were of use" % (
        r["model"], r["draft"], o.k, o.reps, o.tokens, o.context, r["alpha"], 100 * r["hits"])
    yield "%10s | %9s %8s %8s %5s | %9s %8s %8s %5s | %13s %13s" % (
        "round trip", "in turns", "pass ms", "wait ms", "tau", "ahead", "pass ms", "wait ms", "tau", "gain", "of first")
    for t in r["round_trips"]:
        yield "%+7g ms | %s | %4.2f +- %4.2f  %4.2f +- %4.2f" % (
            t["ms"], " | ".join("%9.1f %8.1f %8.1f %5.2f" % (t[m], t["pass_ms"][m], t["wait_ms"][m], t["tau"][m]) for m in MODES),
            *t["gain"], *t["of_first"])


def main(arguments):
    p = argparse.ArgumentParser(prog="tandem bench overlap", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--shape", default="1b", help="of the synthetic pair (default: 1b), as for tandem bench spec")
    p.add_argument("--type", default="q8_0")
    p.add_argument("--eps", type=float, default=0.018, help="how much the target's layers add that the draft has not")
    p.add_argument("--model", help="this pair of GGUF files, not a synthetic one")
    p.add_argument("--draft")
    p.add_argument("--k", type=int, default=4, help="tokens of a draft (default: 4)")
    p.add_argument("--delays", default="0,1,5", help="milliseconds added to the round trip (default: 0,1,5)")
    p.add_argument("--reps", type=int, default=3, help="texts, at least 2 (default: 3)")
    p.add_argument("--tokens", type=int, default=64, help="of a text (default: 64)")
    p.add_argument("--context", type=int, default=32, help="tokens before it (default: 32)")
    report.add_option(p)
    p.add_argument("--bin", default=os.path.join(engine.ROOT, "build", "release"), help=argparse.SUPPRESS)
    p.add_argument("--models", default=os.path.join(engine.ROOT, "build", "bench"), help=argparse.SUPPRESS)
    o = p.parse_args(arguments)
    if bool(o.model) != bool(o.draft):
        p.error("overlap takes both --model and --draft, or none")
    if o.reps < 2:
        p.error("overlap takes at least 2 --reps: their difference is its error")
    if os.cpu_count() < 2:
        raise SystemExit("verifier and drafter want a core each; this machine has one")
    o.delays = [float(ms) for ms in o.delays.split(",")]
    o.bench, o.vocab = "spec", None
    engine.find_models(o)
    with contextlib.ExitStack() as stack:
        services = FarServices(o, stack)
        r = results(o, services, measure(o, services))
    print("\n".join(table(o, r)))
    report.write(o, r)


if __name__ == "__main__":
    main(sys.argv[1:])

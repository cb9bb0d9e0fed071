"""overlap.py [OPTIONS]: drafting while the verifier verifies (draft_ahead), compared with alternating.

The verifier and the proposer have one core each. The proposer runs in a separate network
namespace. Only a relay reaches it there, and the relay adds to the round trip. One sequence,
greedy, a fixed k.

The variants take turns with every text, in random order. A text is measured again, at most three
times in all, if the machine's host gave more than 3 % of the time to other guests. Gains have their
standard error.
"""
import argparse
import contextlib
import os
import random
import subprocess
import sys

import engine
import report
from services import Services
from stats import alpha, relative, tokens_per_s
from timing import must_agree, prompt_of, time_answer_and_passes

PROPOSER = "127.0.0.1:7703"  # in its network namespace
MODES = {"in turns": "--no-draft-ahead", "ahead": "--draft-ahead"}


def may_unshare():
    with contextlib.suppress(OSError):
        return subprocess.run(["unshare", "-n", "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0
    return False


class FarServices(Services):
    """A proposer on core 1, a verifier for each mode on core 0, and a relay between them."""

    def __init__(self, o, stack):
        self.far = may_unshare()
        if not self.far:
            print("no permission to create a network namespace; the proposer listens in the current one", file=sys.stderr)
        proposer = ["--insecure-listen", "--proposer", "draft", "--draft-model", o.draft, "--draft-threads", "1"]
        self.relay = None
        verifiers = {name: ["--policy", "fixed", "--k", str(o.k), value] for name, value in MODES.items()}
        o.threads = 1
        super().__init__(o, stack, o.path, {"draft": proposer}, verifiers)

    def command(self, program, arguments):
        path = [os.path.join(self.bin, program), *arguments]
        if program == "verifier-svc":
            return ["taskset", "-c", "0", *path]
        path = ["taskset", "-c", "1", *path]
        if program == "proposer-svc" and self.far:
            return ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "proposer", *path]
        return path

    def start(self, program, name, *arguments):
        arguments = [PROPOSER if a == self.path("draft") else a for a in arguments]
        if self.relay:
            arguments = ["draft=" + self.target if a == "draft=" + self.path("draft") else a for a in arguments]
        log = self.stack.enter_context(open(os.path.join(self.folder, name.replace(" ", "-") + ".log"), "wb"))
        # pylint: disable-next=consider-using-with
        process = self.processes[name] = subprocess.Popen(self.command(program, arguments), stderr=log)
        self.stack.callback(self.stop, process)
        if program == "proposer-svc":
            self.start_relay(process)

    def start_relay(self, proposer):
        if self.far:  # wait until the process has entered the new namespace
            ours = os.readlink("/proc/self/ns/net")
            while os.readlink("/proc/%d/ns/net" % proposer.pid) == ours:
                pass
        where = "/proc/%d/ns/net" % proposer.pid if self.far else "-"
        # pylint: disable-next=consider-using-with
        self.relay = subprocess.Popen(["taskset", "-c", "1", os.path.join(self.bin, "tests", "relay_tool"), where, PROPOSER],
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.stack.callback(self.stop, self.relay)
        self.target = self.relay.stdout.readline().strip()

    def path(self, name):
        return super().path(name.replace(" ", "-"))

    def add_round_trip(self, ms):
        """From now on the relay adds ms milliseconds to each round trip."""
        self.relay.stdin.write("%d\n" % (ms * 500))  # microseconds each way
        self.relay.stdin.flush()
        assert self.relay.stdout.readline() == "ok\n"

    def count(self, name, what):
        return sum(float(line.rsplit(" ", 1)[1]) for line in self.metrics(name) if line.startswith(what))


def measure(o, services):
    """(milliseconds added to the round trip, mode) -> answers. The first turn warms up and is not counted."""
    answers = {(ms, mode): [] for ms in o.delays for mode in MODES}
    for turn in range(o.reps + 1):
        of_turn = []
        for ms, mode in random.sample(sorted(answers), len(answers)):
            services.add_round_trip(ms)
            answer = time_answer_and_passes(o, services, mode, prompt_of(turn, o.context), {})
            answer.passes = answer.pass_metrics["tandem_engine_pass_seconds_count"]
            answer.pass_ms = 1e3 * answer.pass_metrics["tandem_engine_pass_seconds_sum"]
            answer.wait_ms = answer.ms - answer.pass_ms
            of_turn.append(answer)
            if turn:
                answers[ms, mode].append(answer)
        must_agree(of_turn)
    return answers


def per_pass(answers, what):
    return sum(getattr(a, what) for a in answers) / sum(a.passes for a in answers)


def results(o, services, answers):
    rates = {key: tokens_per_s(each) for key, each in answers.items()}
    turns = {key: [tokens_per_s([a]) for a in each] for key, each in answers.items()}
    n, used = (services.count("ahead", "tandem_spec_decode_ahead_drafts" + s) for s in ("_total", "_used_total"))
    first = o.delays[0]
    return {"model": os.path.basename(o.path), "draft": os.path.basename(o.draft), "k": o.k, "hits": used / max(1, n),
            "alpha": alpha(sum(answers.values(), []), o.k),
            "round_trips": [{"ms": ms, **{mode: rates[ms, mode] for mode in MODES},
                             "pass_ms": {mode: per_pass(answers[ms, mode], "pass_ms") for mode in MODES},
                             "wait_ms": {mode: per_pass(answers[ms, mode], "wait_ms") for mode in MODES},
                             "tau": {mode: per_pass(answers[ms, mode], "tokens") for mode in MODES},
                             "gain": relative(turns[ms, "ahead"], turns[ms, "in turns"]),
                             "of_first": relative(turns[ms, "ahead"], turns[first, "ahead"])} for ms in o.delays]}


def table(o, r):
    yield "%s, draft %s, k = %d, one core each, %d texts of %d tokens after %d; alpha %.2f, %.0f %% of the drafts ahead were used" % (
        r["model"], r["draft"], o.k, o.reps, o.tokens, o.context, r["alpha"], 100 * r["hits"])
    yield "%10s | %9s %8s %8s %5s | %9s %8s %8s %5s | %13s %13s" % (
        "round trip", "in turns", "pass ms", "wait ms", "tau", "ahead", "pass ms", "wait ms", "tau", "gain", "of first")
    for t in r["round_trips"]:
        yield "%+7g ms | %s | %4.2f +- %4.2f  %4.2f +- %4.2f" % (
            t["ms"], " | ".join("%9.1f %8.1f %8.1f %5.2f" % (t[m], t["pass_ms"][m], t["wait_ms"][m], t["tau"][m]) for m in MODES),
            *t["gain"], *t["of_first"])


def main(arguments):
    p = argparse.ArgumentParser(prog="tandem bench overlap", description=report.description(__doc__),
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--shape", default="1b", help="size of the synthetic pair, as for tandem bench spec (default: 1b)")
    p.add_argument("--type", default="q8_0", help="type of the weights (default: q8_0)")
    p.add_argument("--eps", type=float, default=0.018, 
                   help="scale of the target's layers that the draft model lacks (default: 0.018)")
    p.add_argument("--model", help="GGUF file of the target, instead of a synthetic one")
    p.add_argument("--draft", help="GGUF file of the draft model for --model")
    p.add_argument("--k", type=int, default=4, help="tokens per draft (default: 4)")
    p.add_argument("--delays", default="0,1,5", help="milliseconds to add to the round trip (default: 0,1,5)")
    p.add_argument("--reps", type=int, default=3, help="turns after the first, which warms up; at least 2 (default: 3)")
    p.add_argument("--tokens", type=int, default=64, help="tokens of a text (default: 64)")
    p.add_argument("--context", type=int, default=32, help="tokens of the prompt (default: 32)")
    report.add_option(p)
    p.add_argument("--bin", default=os.path.join(engine.ROOT, "build", "release"), help=argparse.SUPPRESS)
    p.add_argument("--models", default=os.path.join(engine.ROOT, "build", "bench"), help=argparse.SUPPRESS)
    o = p.parse_args(arguments)
    if bool(o.model) != bool(o.draft):
        p.error("overlap needs either both --model and --draft or neither")
    if o.reps < 2:
        p.error("overlap needs at least 2 --reps: the error is computed from their differences")
    if os.cpu_count() < 2:
        raise SystemExit("the verifier and the proposer need one core each; this machine has only one")
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

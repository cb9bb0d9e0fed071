"""prefix.py [OPTIONS]: what keeping prompts is worth, on the running services.

  hit       time to the first token of prompts with a shared beginning, the first time and afterwards
  disk      the same before and after a restart with --kv-disk: computed, read from disk, found in memory
  overhead  the same prompts when nothing is ever found, beside a verifier that keeps nothing

A prompt is the shared beginning and a few words of its own. Verifiers take turns at every prompt.
"""
import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time

import services
import timing
from pair import EPS, synthetic

OWN = 8  # words behind the shared ones


class Bench:
    def __init__(self, o, stack):
        self.o, self.n_prompts = o, 0
        self.model = synthetic(o, "eps0.01", "--faint-from", "1", "--eps", "0.01")
        pool = ["--kv-mib", "64"]  # full before the overhead is measured: its memory was touched
        self.services = services.Services(o, stack, self.model, {}, {"kept": pool, "not kept": [*pool, "--no-prefix-cache"]})

    def first_token_ms(self, name, prompt):
        answer = self.services.generate(name, prompt, 1, {"proposer": "none"})
        return answer["timings"]["prompt_ms"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    def another(self, n):
        self.n_prompts += 1
        return timing.prompt_of(self.n_prompts, n)

    def hit(self):
        for name in ["kept", "not kept"]:  # the first passes warm caches and threads
            self.first_token_ms(name, self.another(self.o.shared))
        cold, warm = [], []
        for _ in range(self.o.rounds):
            shared = self.another(self.o.shared)
            ms, cached = self.first_token_ms("kept", shared + self.another(OWN))
            assert cached == 0, cached
            cold.append(ms)
            ms, cached = self.first_token_ms("kept", shared + self.another(OWN))
            assert cached == self.o.shared // 16 * 16, cached
            warm.append(ms)
        miss, hit = statistics.median(cold), statistics.median(warm)
        print(f"hit: {self.o.shared} shared and {OWN} own tokens: {miss:.1f} ms to the first token, {hit:.2f} ms afterwards: "
              f"{miss / hit:.1f} x", flush=True)

    def overhead(self):
        times = {"kept": [], "not kept": []}
        for i in range(self.o.rounds):
            prompt = self.another(self.o.shared + OWN)
            for name in sorted(times, reverse=i % 2 == 1):
                answer = self.services.generate(name, prompt, 64, {"proposer": "none"})
                times[name].append(answer["timings"]["prompt_ms"] + answer["timings"]["predicted_ms"])
        kept, plain = (statistics.median(times[name]) for name in ["kept", "not kept"])
        ratio = statistics.median(a / b for a, b in zip(times["kept"], times["not kept"]))
        print(f"overhead: {self.o.shared + OWN} tokens and 64 more, nothing found: {kept:.1f} ms, {plain:.1f} ms with "
              f"--no-prefix-cache; median of the ratios {ratio:.3f}", flush=True)


def answer_ms(running, prompt):
    """As its client sees it: blocks are read before a request is admitted."""
    start = time.monotonic()
    answer = running.generate("disk", prompt, 1, {"proposer": "none"})
    return 1e3 * (time.monotonic() - start), answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def disk(o, model):
    prompts = [timing.prompt_of(-1 - i, o.shared + OWN) for i in range(o.rounds)]
    ms = {"computed": [], "read from disk": [], "found in memory": []}
    with tempfile.TemporaryDirectory() as folder:
        for kinds in [["computed"], ["read from disk", "found in memory"]]:
            with contextlib.ExitStack() as stack:
                running = services.Services(o, stack, model, {}, {"disk": ["--kv-disk", folder]})
                answer_ms(running, timing.prompt_of("warm", o.shared))
                for prompt in prompts:
                    for kind in kinds:
                        took, cached = answer_ms(running, prompt)
                        assert cached == (0 if kind == "computed" else (o.shared + OWN - 1) // 16 * 16), (kind, cached)
                        ms[kind].append(took)
    computed, read, found = (statistics.median(v) for v in ms.values())
    print(f"disk: {o.shared + OWN} tokens: {computed:.1f} ms to the answer's first token, {read:.1f} ms read from disk after a restart: "
          f"{computed / read:.1f} x, {found:.1f} ms from memory", flush=True)


def main(arguments):
    p = argparse.ArgumentParser(prog="tandem bench prefix", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--shape", default="0.1b", choices=EPS, help="of the synthetic model (default: 0.1b)")
    p.add_argument("--shared", type=int, default=1024, help="tokens that prompts share (default: 1024)")
    p.add_argument("--rounds", type=int, default=9, help="prompts of each kind (default: 9)")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of the verifiers (default: all cores)")
    p.add_argument("--bin", default=os.path.join(services.ROOT, "build", "release"), help=argparse.SUPPRESS)
    p.add_argument("--models", default=os.path.join(services.ROOT, "build", "bench"), help="folder for synthetic models (default: build/bench)")
    o = p.parse_args(arguments)
    with contextlib.ExitStack() as stack:
        bench = Bench(o, stack)
        bench.hit()
        bench.overhead()
    disk(o, bench.model)


if __name__ == "__main__":
    main(sys.argv[1:])

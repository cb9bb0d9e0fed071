"""prefix.py [OPTIONS]: what the prefix cache and the KV disk bring on the running services.

  hit       Time to the first token of prompts with a shared beginning: the first time, and
            afterwards.
  disk      Time to the first token with --kv-disk: computed, then read from disk after a restart,
            then found in memory.
  overhead  The same prompts when nothing is ever found, compared with a verifier without a cache.

A prompt is the shared beginning and a few tokens that no other prompt has. The verifiers take turns
at every prompt.
"""
import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time

import report
from services import ROOT, Services
from synthetic import EPS, target_file
from timing import prompt_of

OWN = 8  # tokens of a prompt after the shared ones
BLOCK = 16  # tokens of a KV block; only whole blocks are found


class Bench:
    """Two verifiers: "cached" has a prefix cache, "uncached" has none."""

    def __init__(self, o, stack):
        self.o, self.n_prompts = o, 0
        self.model = target_file(o, 0.01)
        # A small pool: hit() has used all its blocks before overhead() measures, so no memory is touched for the first time.
        pool = ["--kv-mib", "64"]
        self.services = Services(o, stack, self.model, {}, {"cached": pool, "uncached": [*pool, "--no-prefix-cache"]})

    def first_token_ms(self, name, prompt):
        """(milliseconds to the first token, tokens of the prompt that were cached)"""
        answer = self.services.generate(name, prompt, 1, {"proposer": "none"})
        return answer["timings"]["prompt_ms"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    def another(self, n):
        """n tokens that were not used before."""
        self.n_prompts += 1
        return prompt_of(self.n_prompts, n)

    def hit(self):
        for name in ["cached", "uncached"]:  # the first passes warm up caches and threads
            self.first_token_ms(name, self.another(self.o.shared))
        cold, warm = [], []
        for _ in range(self.o.rounds):
            shared = self.another(self.o.shared)
            ms, cached = self.first_token_ms("cached", shared + self.another(OWN))
            assert cached == 0, cached
            cold.append(ms)
            ms, cached = self.first_token_ms("cached", shared + self.another(OWN))
            assert cached == self.o.shared // BLOCK * BLOCK, cached
            warm.append(ms)
        miss, hit = statistics.median(cold), statistics.median(warm)
        print(f"hit: {self.o.shared} shared and {OWN} own tokens: {miss:.1f} ms to the first token, {hit:.2f} ms afterwards: "
              f"{miss / hit:.1f} x", flush=True)

    def overhead(self):
        times = {"cached": [], "uncached": []}
        for i in range(self.o.rounds):
            prompt = self.another(self.o.shared + OWN)
            for name in sorted(times, reverse=i % 2 == 1):
                answer = self.services.generate(name, prompt, 64, {"proposer": "none"})
                times[name].append(answer["timings"]["prompt_ms"] + answer["timings"]["predicted_ms"])
        cached, plain = (statistics.median(times[name]) for name in ["cached", "uncached"])
        ratio = statistics.median(a / b for a, b in zip(times["cached"], times["uncached"]))
        print(f"overhead: {self.o.shared + OWN} tokens and 64 more, nothing found: {cached:.1f} ms, {plain:.1f} ms with "
              f"--no-prefix-cache; median of the ratios {ratio:.3f}", flush=True)


def answer_ms(services, prompt):
    """(milliseconds of an answer of one token, cached tokens). The client's clock is used: blocks are read from disk
    before a request is admitted, so the server's prompt_ms does not contain that time."""
    start = time.monotonic()
    answer = services.generate("disk", prompt, 1, {"proposer": "none"})
    return 1e3 * (time.monotonic() - start), answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def disk(o, model):
    prompts = [prompt_of(-1 - i, o.shared + OWN) for i in range(o.rounds)]
    ms = {"computed": [], "read from disk": [], "found in memory": []}
    with tempfile.TemporaryDirectory() as folder:
        for kinds in [["computed"], ["read from disk", "found in memory"]]:  # a restart lies between these two
            with contextlib.ExitStack() as stack:
                services = Services(o, stack, model, {}, {"disk": ["--kv-disk", folder]})
                answer_ms(services, prompt_of("warm", o.shared))
                for prompt in prompts:
                    for kind in kinds:
                        took, cached = answer_ms(services, prompt)
                        assert cached == (0 if kind == "computed" else (o.shared + OWN - 1) // BLOCK * BLOCK), (kind, cached)
                        ms[kind].append(took)
    computed, read, found = (statistics.median(v) for v in ms.values())
    print(f"disk: {o.shared + OWN} tokens: {computed:.1f} ms to the answer's first token, {read:.1f} ms read from disk after a restart: "
          f"{computed / read:.1f} x, {found:.1f} ms from memory", flush=True)


def main(arguments):
    p = argparse.ArgumentParser(prog="tandem bench prefix", description=report.description(__doc__),
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--shape", default="0.1b", choices=EPS, help="size of the synthetic model (default: 0.1b)")
    p.add_argument("--shared", type=int, default=1024, help="tokens of the shared beginning (default: 1024)")
    p.add_argument("--rounds", type=int, default=9, help="prompts of each kind (default: 9)")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)),
                   help="threads of each verifier (default: all cores)")
    p.add_argument("--bin", default=os.path.join(ROOT, "build", "release"), help=argparse.SUPPRESS)
    p.add_argument("--models", default=os.path.join(ROOT, "build", "bench"),
                   help="folder for synthetic models (default: build/bench)")
    o = p.parse_args(arguments)
    with contextlib.ExitStack() as stack:
        bench = Bench(o, stack)
        bench.hit()
        bench.overhead()
    disk(o, bench.model)


if __name__ == "__main__":
    main(sys.argv[1:])

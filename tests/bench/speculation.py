"""speculation.py pairs|sweep|rules|texts [OPTIONS]: what speculation makes of the running services.

  pairs  a target and a draft that agree to a known degree (alpha), one sequence, k = 2, 4, 8: measured speed-up
         beside the theory (1 - a^(k+1)) / ((1 - a) (k c + t(k+1) / t(1))) for the measured a, c and t
  sweep  the controller (goodput) beside fixed k and beside no drafts: alpha x sequences x context. "of best" is relative
         to the k that the other half of the turns names, and rather too high; "of best column" to the k that was best in
         the same turns, and rather too low. At the end: means of all points, weighted by their errors
  rules  the lossless rules for unseeded requests of such a pair at a temperature: own-draw, rejection and block
  texts  the embedded pair on repetitive and on free prompts: none, ngram, suffix, draft and chain (ngram and draft);
         "again": suffix with what it said to the same prompt in the pool of past outputs

Proposer, verifiers and gateways are the real ones, on unix sockets. What is compared takes turns at every text,
and a text's speed is that from its first token to its last. pairs and sweep time it again, a few times at most, while
the machine's host takes more than 3 % of it for others.
"""
import argparse
import os
import sys

import report
from pair import EPS
from services import ROOT
from speculation_pairs import pairs
from speculation_rules import rules
from speculation_sweep import sweep
from speculation_texts import texts


def numbers(text):
    return [int(n) for n in text.split(",")]


def main(arguments):
    p = argparse.ArgumentParser(prog="tandem bench speculation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = {"pairs": pairs, "sweep": sweep, "rules": rules, "texts": texts}
    p.add_argument("what", choices=kinds)
    p.add_argument("--shape", default="1b", choices=EPS, help="of the synthetic pair (default: 1b)")
    p.add_argument("--eps", type=float, action="append", help="how much the target's layers add that the draft has not; may be given again")
    p.add_argument("--k", type=numbers, default=[2, 4, 8], help="pairs, sweep, rules: draft lengths (default: 2,4,8)")
    p.add_argument("--context", type=int, default=256, help="pairs, rules: tokens of the prompt (default: 256)")
    p.add_argument("--contexts", type=numbers, default=[256, 4096, 16000], help="sweep (default: 256,4096,16000)")
    p.add_argument("--sequences", type=numbers, default=[1, 4, 16], help="sweep (default: 1,4,16)")
    p.add_argument("--points", nargs="+", metavar="FILE", help="sweep: measure nothing; table and means of what --json wrote to these")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of target and draft each (default: all cores)")
    p.add_argument("--tokens", type=int, default=64, help="of an answer (default: 64)")
    p.add_argument("--reps", type=int, default=5, help="turns after one to warm up (default: 5)")
    p.add_argument("--temperature", type=float, default=0, help="texts (default: 0), rules (default: 1)")
    report.add_option(p)
    p.add_argument("--bin", default=os.path.join(ROOT, "build", "release"), help=argparse.SUPPRESS)
    p.add_argument("--models", default=os.path.join(ROOT, "build", "bench"), help="folder for synthetic models (default: build/bench)")
    o = p.parse_args(arguments)
    if o.points and o.what != "sweep":
        p.error("--points are those of sweep")
    if o.what == "sweep" and o.reps < 2:
        p.error("sweep takes at least 2 --reps: some turns name the best k for the others")
    r = kinds[o.what](o)
    report.write(o, r)


if __name__ == "__main__":
    main(sys.argv[1:])

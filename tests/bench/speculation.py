"""speculation.py pairs|sweep|rules|texts [OPTIONS]: what speculation brings on the running services.

  pairs  A target and a draft model that agree to a known degree (alpha), one sequence, fixed k.
         The measured speed-up is printed beside the theory for the measured a = alpha, c and t:
         (1 - a^(k+1)) / ((1 - a) (k c + t(k+1) / t(1))). c is the time of one draft token over
         t(1); t(M) is the time of a pass of M rows. The controller is compared as in sweep.
  sweep  The controller (goodput) beside fixed k and beside no drafts, for each combination of
         alpha, number of sequences and context length. Two figures compare with the best k:
           of best         one half of the turns chooses the k for the other; biased upwards
           of best column  the k that was best in the same turns; biased downwards
         The last lines are the means of all points, weighted by their errors.
  rules  The lossless acceptance rules own-draw, rejection and block, for unseeded requests of such
         a pair at a temperature above 0.
  texts  The embedded pair of models on repetitive and on free prompts, with each proposer: none,
         ngram, suffix, draft, cascade (ngram and draft), and again. "again" is suffix with its
         earlier answers to the same prompt in the pool of past outputs.

The proposers, verifiers and gateways are the real programs, on unix sockets. Variants that are
compared take turns with every text. The speed of a text is measured from its first token to its
last. pairs and sweep measure a text again if the machine's host gave more than 3 % of the time to
other guests. They measure it at most three times in all.
"""
import argparse
import os
import sys

import report
from services import ROOT
from speculation_pairs import pairs
from speculation_rules import rules
from speculation_sweep import sweep
from speculation_texts import texts
from synthetic import EPS


def numbers(text):
    return [int(n) for n in text.split(",")]


def main(arguments):
    p = argparse.ArgumentParser(prog="tandem bench speculation", description=report.description(__doc__),
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = {"pairs": pairs, "sweep": sweep, "rules": rules, "texts": texts}
    p.add_argument("what", choices=kinds, help="the experiment")
    p.add_argument("--shape", default="1b", choices=EPS, help="size of the synthetic pair (default: 1b)")
    p.add_argument("--eps", type=float, action="append",
                   help="scale of the target's layers that the draft model lacks; can be given several times")
    p.add_argument("--k", type=numbers, default=[2, 4, 8], help="pairs, sweep, rules: draft lengths (default: 2,4,8)")
    p.add_argument("--context", type=int, default=256, help="pairs, rules: tokens of the prompt (default: 256)")
    p.add_argument("--contexts", type=numbers, default=[256, 4096, 16000],
                   help="sweep: tokens of the prompts (default: 256,4096,16000)")
    p.add_argument("--sequences", type=numbers, default=[1, 4, 16],
                   help="sweep: numbers of sequences (default: 1,4,16)")
    p.add_argument("--points", nargs="+", metavar="FILE",
                   help="sweep: measure nothing; print table and means of files that --json wrote")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)),
                   help="threads of the target and of the draft model, each (default: all cores)")
    p.add_argument("--tokens", type=int, default=64, help="tokens of an answer (default: 64)")
    p.add_argument("--reps", type=int, default=5, help="turns after the first, which warms up (default: 5)")
    p.add_argument("--temperature", type=float, default=0, help="texts (default: 0), rules (default: 1)")
    report.add_option(p)
    p.add_argument("--bin", default=os.path.join(ROOT, "build", "release"), help=argparse.SUPPRESS)
    p.add_argument("--models", default=os.path.join(ROOT, "build", "bench"),
                   help="folder for synthetic models (default: build/bench)")
    o = p.parse_args(arguments)
    if o.points and o.what != "sweep":
        p.error("only sweep takes --points")
    if o.what in ("pairs", "sweep") and o.reps < 2:
        p.error("%s needs at least 2 --reps: some turns choose the best k for the others" % o.what)
    report.write(o, kinds[o.what](o))


if __name__ == "__main__":
    main(sys.argv[1:])

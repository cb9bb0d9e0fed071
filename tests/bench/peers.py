"""peers.py [OPTIONS]: passes of 1, 8 and 16 rows and a prompt of 512 tokens, beside all peers, in one table.

It runs verify and prefill for each type of weights. The peers are llama.cpp and, with --ik, a build
of ik_llama.cpp, with and without -rtr 1. "faster" is the time of the fastest peer divided by
Tandem's, turn by turn: geometric mean and standard error.
"""
import argparse
import os
import sys

import engine
import report

TYPES = ["q8_0", "q4_0", "q4_k_m", "q6_k", "iq4_xs", "bf16"]
SIZES = [("verify", "1,8,16"), ("prefill", "512")]


def options(arguments):
    p = argparse.ArgumentParser(prog="tandem bench peers", description=report.description(__doc__),
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--ik", metavar="DIR", help="also measure ik_llama.cpp: the folder of its llama-bench")
    p.add_argument("--types", default=",".join(TYPES), help="types of the weights (default: %s)" % ",".join(TYPES))
    p.add_argument("--shape", default="1b", help="size of the synthetic models (default: 1b)")
    p.add_argument("--reps", default="5", help="turns (default: 5)")
    p.add_argument("--threads", default=str(len(os.sched_getaffinity(0))), help="threads of each engine (default: all cores)")
    p.add_argument("--peer", default="best", help="as for verify (default: best)")
    report.add_option(p)
    p.add_argument("--bin", default=os.path.join(engine.ROOT, "build", "release"), help=argparse.SUPPRESS)
    p.add_argument("--models", default=os.path.join(engine.ROOT, "build", "bench"),
                   help="folder for synthetic models (default: build/bench)")
    return p.parse_args(arguments)


def engine_options(o, bench, rows, kind):
    arguments = [bench, "--rows", rows, "--type", kind]
    for name in ["shape", "reps", "threads", "peer", "bin", "models", "ik"]:
        if getattr(o, name):
            arguments += ["--" + name, getattr(o, name)]
    return engine.options(arguments)


def rate(rows, side):
    """Tokens/s; "": not measured."""
    return "%.1f" % (1e3 * rows / side["t_ms"][rows]) if rows in side["t_ms"] else ""


def lines(kind, figures):
    """A line for each size."""
    for r, rows in ((r, n) for r in figures for n in r["t_ms"]):
        sides = [r, *([r["peer"]] if "peer" in r else []), *r["benches"].values()]
        line = "%-7s %5d | " % (kind, rows) + " ".join("%12s" % rate(rows, s) for s in sides)
        best = engine.best_peer(r, rows)
        if best:
            ratio, error = best[2]
            line += " | %.2f +- %.2f  %s" % (1 / ratio, error / ratio, best[0])
        yield line


def head(r):
    yield "%d threads, %d turns, shape %s: tokens/s" % (r["threads"], r["turns"], r["model"].split("-")[0])
    titles = ["tandem " + r["cpu"]] + (["llama.cpp"] if "peer" in r else []) + list(r["benches"])
    yield "%-7s %5s | " % ("type", "rows") + " ".join("%12s" % t for t in titles) + " | faster than the fastest peer"


def main(arguments):
    o, all_figures = options(arguments), {}
    for kind in o.types.split(","):
        figures = [engine.run(engine_options(o, bench, rows, kind)) for bench, rows in SIZES]
        if not all_figures:
            print("\n".join(head(figures[0])))
        print("\n".join(lines(kind, figures)), flush=True)
        all_figures[kind] = figures
    busy = max(r["others_cores"] for figures in all_figures.values() for r in figures)
    print("other processes used at most %.2f cores during the measurements" % busy)
    report.write(o, all_figures)


if __name__ == "__main__":
    main(sys.argv[1:])

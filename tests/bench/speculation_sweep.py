"""speculation_sweep.py: the controller beside fixed k and beside no drafts, at many points."""
import contextlib
import json

from pair import start_pair, take_turns
from stats import alpha, compare, drafted_per_step, tokens_per_s, weighted_mean
from synthetic import EPS
from timing import time_answer

HARDLY = 0.01  # draft tokens per step; up to this many, the passes are practically those of no drafts


def measure_point(o, s, eps, context, n):
    answers = take_turns(o, s, [0, *o.k, "goodput", "off"], context, n, time_answer)
    turns = {k: [tokens_per_s([a]) for a in each] for k, each in answers.items()}
    longest = o.k[-1]
    return {"eps": eps, "sequences": n, "context": context, "alpha": alpha(answers[longest], longest),
            "tokens_per_s": {k: tokens_per_s(each) for k, each in answers.items()},
            "drafted": drafted_per_step(answers["goodput"]), **compare(turns), "turns": turns}


def measure_points(o):
    for eps in o.eps or EPS[o.shape]:
        with contextlib.ExitStack() as stack:
            s = start_pair(o, eps, stack)
            for context in o.contexts:
                for n in o.sequences:
                    yield measure_point(o, s, eps, context, n)


def read_points(paths):
    """The points of files that --json wrote. They are compared again because older files lack some figures."""
    points = []
    for path in paths:
        with open(path, encoding="utf-8") as f:
            points += json.load(f, object_hook=lambda o: {int(k) if k.isdigit() else k: v for k, v in o.items()})
    for r in points:
        r.update(compare(r["turns"]))
    return sorted(points, key=lambda r: (r["eps"], r["context"], r["sequences"]))


def print_mean(name, figures):
    """Prints nothing if there are no figures."""
    if figures:
        print("%-31s %.3f +- %.3f, chi-square %.1f, n = %d" % (name, *weighted_mean(figures), len(figures)))


def print_means(points):
    print_mean("of best", [r["of_best"] for r in points])
    print_mean("of best column", [r["of_best_column"] for r in points])
    print_mean("of none, more than %g drafted" % HARDLY, [r["of_none"] for r in points if r["drafted"] > HARDLY])
    print_mean("of none, at most %g drafted" % HARDLY, [r["of_none"] for r in points if r["drafted"] <= HARDLY])
    print_mean("off, of k=0 elsewhere", [r["processes"] for r in points if r["processes"][1]])


def print_point(r, ks):
    rates = r["tokens_per_s"]
    print("%6g %5d %8d %6.2f | %s | %10.1f %7.2f | k=%-2d %s" % (
        r["eps"], r["sequences"], r["context"], r["alpha"],
        " ".join("%7.1f" % rates[k] if k in rates else " " * 7 for k in ks), rates["goodput"], r["drafted"], r["best"],
        " ".join("%.3f +- %.3f" % r[of] for of in ("of_best", "of_best_column", "of_none", "processes"))), flush=True)


def sweep(o):
    if o.points:
        points = read_points(o.points)
        ks = sorted({k for r in points for k in r["tokens_per_s"] if k not in ("goodput", "off")})
    else:
        points, ks = measure_points(o), [0, *o.k]
        print("%s and its first layer, Q8_0, %d threads each, %d texts of %d tokens: tokens/s of all sequences" % (
            o.shape, o.threads, o.reps, o.tokens))
    print("%6s %5s %8s %6s | %s | %10s %7s | %4s %14s %14s %14s %14s" % (
        "eps", "seqs", "context", "alpha", " ".join("%7s" % ("k=%d" % k) for k in ks), "controller", "drafted", "best",
        "of best", "of best column", "of none", "off of k=0"))
    out = []
    for r in points:
        out.append(r)
        print_point(r, ks)
    print_means(out)
    return out

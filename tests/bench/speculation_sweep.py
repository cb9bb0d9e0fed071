"""speculation_sweep.py: the controller beside fixed k and beside no drafts."""
import contextlib
import json

from pair import EPS, start_pair, take_turns
from stats import alpha_of, compare, drafted_of, mean_of, rate_of
from timing import text_of

HARDLY = 0.01  # tokens drafted per step, and fewer: the passes are those of no drafts


def measure_point(o, s, eps, context, n):
    texts = take_turns(o, s, [0, *o.k, "goodput", "off"], context, n, text_of)
    turns = {k: [rate_of([x]) for x in t] for k, t in texts.items()}
    return {"eps": eps, "sequences": n, "context": context, "alpha": alpha_of(texts[o.k[-1]], o.k[-1]),
            "tokens_per_s": {k: rate_of(t) for k, t in texts.items()}, "drafted": drafted_of(texts["goodput"]),
            **compare(turns), "turns": turns}


def measure_points(o):
    for eps in o.eps or EPS[o.shape]:
        with contextlib.ExitStack() as stack:
            s = start_pair(o, eps, stack)
            for context in o.contexts:
                for n in o.sequences:
                    yield measure_point(o, s, eps, context, n)


def read_points(paths):
    """Those of --json, compared anew: older ones lack a figure."""
    points = []
    for path in paths:
        with open(path, encoding="utf-8") as f:
            points += json.load(f, object_hook=lambda o: {int(k) if k.isdigit() else k: v for k, v in o.items()})
    for r in points:
        r.update(compare(r["turns"]))
    return sorted(points, key=lambda r: (r["eps"], r["context"], r["sequences"]))

def sum_up(points):
    mean_of("of best", [r["of_best"] for r in points])
    mean_of("of best column", [r["of_best_column"] for r in points])
    mean_of("of none, more than %g drafted" % HARDLY, [r["of_none"] for r in points if r["drafted"] > HARDLY])
    mean_of("of none, at most %g drafted" % HARDLY, [r["of_none"] for r in points if r["drafted"] <= HARDLY])
    mean_of("off, of k=0 elsewhere", [r["processes"] for r in points if r["processes"][1]])


def sweep(o):
    if o.points:
        points = read_points(o.points)
        ks = sorted({k for r in points for k in r["tokens_per_s"] if k not in ("goodput", "off")})
    else:
        points, ks = measure_points(o), [0, *o.k]
        print("%s and its first layer, Q8_0, %d threads each, %d texts of %d tokens: tokens/s of all sequences" % (o.shape, o.threads, o.reps, o.tokens))
    print("%6s %5s %8s %6s | %s | %10s %7s | %4s %14s %14s %14s %14s" % (
        "eps", "seqs", "context", "alpha", " ".join("%7s" % ("k=%d" % k) for k in ks), "controller", "drafted", "best", "of best", "of best column", "of none", "off of k=0"))
    out = []
    for r in points:
        out.append(r)
        rates = r["tokens_per_s"]
        print("%6g %5d %8d %6.2f | %s | %10.1f %7.2f | k=%-2d %s" % (
            r["eps"], r["sequences"], r["context"], r["alpha"], " ".join("%7.1f" % rates[k] if k in rates else " " * 7 for k in ks),
            rates["goodput"], r["drafted"], r["best"],
            " ".join("%.3f +- %.3f" % r[of] for of in ("of_best", "of_best_column", "of_none", "processes"))), flush=True)
    sum_up(out)
    return out

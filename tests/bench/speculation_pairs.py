"""speculation_pairs.py: measured speed-up beside the theory."""
import contextlib

from pair import EPS, start_pair, take_turns
from stats import accepted_of, alpha_of, drafted_of, mean_ms, rate_of
from timing import text_with_figures


def measure_pair(o, s):
    ks = [0, *o.k]
    texts = take_turns(o, s, [*ks, "goodput"], o.context, 1, text_with_figures)
    plain, t1 = rate_of(texts[0]), mean_ms(texts[0], "engine_pass")
    out = {"plain_tokens_per_s": plain, "k": {}}
    for k in o.k:
        a, tk = alpha_of(texts[k], k), mean_ms(texts[k], "engine_pass")
        c = mean_ms(texts[k], "proposer_round_trip") / k / t1
        theory = sum(a ** i for i in range(k + 1)) / (k * c + tk / t1)
        speed_up = rate_of(texts[k]) / plain
        out["k"][k] = {"speed_up": speed_up, "theory": theory, "of_theory": speed_up / theory, "alpha": a, "c": c,
                       "accepted": accepted_of(texts[k]),
                       "t": tk / t1, "tau": sum(t.tokens for t in texts[k]) / sum(t.steps for t in texts[k])}
    best = max(rate_of(texts[k]) for k in ks)
    out["goodput"] = {"speed_up": rate_of(texts["goodput"]) / plain, "of_best_measured": rate_of(texts["goodput"]) / best,
                      "k": drafted_of(texts["goodput"]), "accepted": accepted_of(texts["goodput"])}
    return out


def pairs(o):
    print("%s and its first layer, Q8_0, %d threads each, context %d, %d texts of %d tokens; drafts by another process" % (
        o.shape, o.threads, o.context, o.reps, o.tokens))
    print("%6s %4s | %9s %7s %9s | %5s %5s %5s %9s" % ("eps", "k", "of plain", "theory", "of theory", "alpha", "tau", "c", "t(k+1)"))
    out = {}
    for eps in o.eps or EPS[o.shape]:
        with contextlib.ExitStack() as stack:
            out[eps] = r = measure_pair(o, start_pair(o, eps, stack))
        for k, t in r["k"].items():
            print("%6g %4d | %9.2f %7.2f %9.2f | %5.2f %5.2f %5.2f %9.2f" % (
                eps, k, t["speed_up"], t["theory"], t["of_theory"], t["alpha"], t["tau"], t["c"], t["t"]))
        g = r["goodput"]
        print("%6g %4.1f | %9.2f   the controller: %.2f of the best measured; plain %.1f tokens/s" % (
            eps, g["k"], g["speed_up"], g["of_best_measured"], r["plain_tokens_per_s"]), flush=True)
    return out

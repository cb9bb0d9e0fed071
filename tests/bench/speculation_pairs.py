"""speculation_pairs.py: the speed-up of a fixed k and of the controller, beside the theory."""
import contextlib

from pair import start_pair, take_turns
from stats import accepted_ratio, alpha, compare, drafted_per_step, mean_ms, tau, tokens_per_s
from synthetic import EPS
from timing import time_answer_and_passes


def figures_of_k(answers, k, plain, t1):
    """plain: tokens/s without drafts; t1: milliseconds of a pass of one row."""
    a, tk = alpha(answers, k), mean_ms(answers, "engine_pass")
    c = mean_ms(answers, "proposer_round_trip") / k / t1
    theory = sum(a ** i for i in range(k + 1)) / (k * c + tk / t1)
    speed_up = tokens_per_s(answers) / plain
    return {"speed_up": speed_up, "theory": theory, "of_theory": speed_up / theory, "alpha": a, "c": c,
            "accepted": accepted_ratio(answers), "t": tk / t1, "tau": tau(answers)}


def measure_pair(o, s):
    ks = [0, *o.k]
    answers = take_turns(o, s, [*ks, "goodput"], o.context, 1, time_answer_and_passes)
    plain, t1 = tokens_per_s(answers[0]), mean_ms(answers[0], "engine_pass")
    compared = compare({k: [tokens_per_s([a]) for a in turns] for k, turns in answers.items()})
    controlled = answers["goodput"]
    return {"plain_tokens_per_s": plain, "k": {k: figures_of_k(answers[k], k, plain, t1) for k in o.k},
            "goodput": {"speed_up": tokens_per_s(controlled) / plain,
                        "of_best": compared["of_best"], "of_best_column": compared["of_best_column"],
                        "k": drafted_per_step(controlled), "accepted": accepted_ratio(controlled)}}


def pairs(o):
    print("%s and its first layer, Q8_0, %d threads each, context %d, %d texts of %d tokens; drafts by another process" % (
        o.shape, o.threads, o.context, o.reps, o.tokens))
    print("%6s %4s | %9s %7s %9s | %5s %5s %5s %9s" % (
        "eps", "k", "of plain", "theory", "of theory", "alpha", "tau", "c", "t(k+1)"))
    out = {}
    for eps in o.eps or EPS[o.shape]:
        with contextlib.ExitStack() as stack:
            out[eps] = r = measure_pair(o, start_pair(o, eps, stack))
        for k, t in r["k"].items():
            print("%6g %4d | %9.2f %7.2f %9.2f | %5.2f %5.2f %5.2f %9.2f" % (
                eps, k, t["speed_up"], t["theory"], t["of_theory"], t["alpha"], t["tau"], t["c"], t["t"]))
        g = r["goodput"]
        print("%6g %4.1f | %9.2f   the controller: %.3f +- %.3f of best, %.3f +- %.3f of best column; plain %.1f tokens/s" % (
            eps, g["k"], g["speed_up"], *g["of_best"], *g["of_best_column"], r["plain_tokens_per_s"]), flush=True)
    return out

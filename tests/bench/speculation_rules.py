"""speculation_rules.py: the lossless acceptance rules for unseeded requests at a temperature above 0."""
import contextlib
import random

from pair import request_for, start_pair
from stats import accepted_ratio, tau, tokens_per_s
from synthetic import EPS
from timing import TimedAnswer, prompt_of

RULES = ("own-draw", "rejection", "block")


def measure_rules(o, s, temperature):
    """(k, rule) -> answers. The answers are random, so a rule is judged by all its answers together."""
    got = {(0, "no draft"): [], **{(k, rule): [] for k in o.k for rule in RULES}}
    for turn in range(o.reps + 1):
        for (k, rule), answers in random.sample(sorted(got.items()), len(got)):
            name, speculative = request_for(k)
            speculative = {**speculative, "rule": rule} if k else speculative
            prompt = prompt_of(turn, o.context)
            answer = TimedAnswer(s.generate(name, prompt, o.tokens, speculative, temperature=temperature))
            answers += [answer] if turn else []
    return got


def rules(o):
    temperature = o.temperature or 1
    print("%s and its first layer, Q8_0, %d threads each, temperature %g, unseeded, %d answers of %d tokens in turns" % (
        o.shape, o.threads, temperature, o.reps, o.tokens))
    print("%6s %4s %-10s | %9s %9s | %8s %5s" % ("eps", "k", "rule", "tokens/s", "of plain", "accepted", "tau"))
    out = []
    for eps in o.eps or EPS[o.shape]:
        with contextlib.ExitStack() as stack:
            got = measure_rules(o, start_pair(o, eps, stack), temperature)
        plain = tokens_per_s(got[0, "no draft"])
        for (k, rule), answers in got.items():
            r = {"eps": eps, "k": k, "rule": rule, "tokens_per_s": tokens_per_s(answers),
                 "accepted": accepted_ratio(answers), "tau": tau(answers)}
            out.append(r)
            print("%6g %4d %-10s | %9.1f %9.2f | %8.2f %5.2f" % (
                eps, k, rule, r["tokens_per_s"], r["tokens_per_s"] / plain, r["accepted"], r["tau"]), flush=True)
    return out

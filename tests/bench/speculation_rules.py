"""speculation_rules.py: the lossless rules for unseeded requests."""
import contextlib
import random

from pair import EPS, start_pair, wish
from stats import accepted_of, rate_of
from timing import Text, prompt_of


def rules(o):
    """Answers are random, so rules are compared by all of them together."""
    temperature = o.temperature or 1
    print("%s and its first layer, Q8_0, %d threads each, temperature %g, unseeded, %d answers of %d tokens in turns" % (
        o.shape, o.threads, temperature, o.reps, o.tokens))
    print("%6s %4s %-10s | %9s %9s | %8s %5s" % ("eps", "k", "rule", "tokens/s", "of plain", "accepted", "tau"))
    out = []
    for eps in o.eps or EPS[o.shape]:
        got = {(0, "no draft"): [], **{(k, rule): [] for k in o.k for rule in ("own-draw", "rejection", "block")}}
        with contextlib.ExitStack() as stack:
            s = start_pair(o, eps, stack)
            for turn in range(o.reps + 1):
                for (k, rule), answers in random.sample(sorted(got.items()), len(got)):
                    name, speculative = wish(k)
                    speculative = {**speculative, "rule": rule} if k else speculative
                    text = Text(s.generate(name, prompt_of(turn, o.context), o.tokens, speculative, temperature=temperature))
                    answers += [text] if turn else []
        plain = rate_of(got[0, "no draft"])
        for (k, rule), answers in got.items():
            r = {"eps": eps, "k": k, "rule": rule, "tokens_per_s": rate_of(answers),
                 "accepted": accepted_of(answers),
                 "tau": sum(t.tokens for t in answers) / sum(t.steps for t in answers)}
            out.append(r)
            print("%6g %4d %-10s | %9.1f %9.2f | %8.2f %5.2f" % (eps, k, rule, r["tokens_per_s"], r["tokens_per_s"] / plain, r["accepted"], r["tau"]), flush=True)
    return out

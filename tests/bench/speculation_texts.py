"""speculation_texts.py: the embedded pair on repetitive and on free prompts."""
import contextlib
import os
import random

from services import ROOT, Services
from stats import alpha_of, rate_of
from timing import Text, must_agree

REPETITIVE = [
    "The cat sat on the mat. The cat sat on the mat. The cat sat on the mat. The cat",
    "Tom had a red ball. Tom had a blue ball. Tom had a green ball. Sam had a red ball. Sam had a blue",
    "1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6, 1, 2, 3, 4,",
]
FREE = [
    "Once upon a time, there was a little girl named Lily. She loved to play outside. One day, Lily",
    "One day, a big bear went into the forest to find some honey. He looked under a big tree and",
    "The old man said to the boy: \"If you find the key, you will find the door.\" So the boy",
]


def texts(o):
    models = os.path.join(ROOT, "models")
    draft = ["--draft.model", os.path.join(models, "tales-1m-q8_0.gguf"), "--draft.threads", str(o.threads)]
    proposers = {name: ["--proposer", name, *(draft if name in ("draft", "chain") else [])] for name in ("ngram", "suffix", "draft", "chain")}
    proposers["again"] = proposers["suffix"]  # in a process of its own: how good it is, is learnt by name
    out = {}
    with contextlib.ExitStack() as stack:
        s = Services(o, stack, os.path.join(models, "tales-11m-q8_0.gguf"), proposers,
                     {"goodput": [], "fixed": ["--policy", "fixed", "--k", "5"]})
        print("the embedded pair, %d threads each, temperature %g, %d turns, answers of %d tokens: tokens/s, of plain" % (
            o.threads, o.temperature, o.reps, o.tokens))
        print("%-11s %-8s %-8s | %9s %9s | %5s %5s" % ("prompts", "proposer", "policy", "tokens/s", "of plain", "alpha", "tau"))
        for kind, prompts in {"repetitive": REPETITIVE, "free": FREE}.items():
            for row in measure_texts(o, s, prompts, ["none", *proposers]):
                out.setdefault(kind, []).append(row)
                print("%-11s %-8s %-8s | %9.1f %9.2f | %5.2f %5.2f" % (
                    kind, row["proposer"], row["policy"], row["tokens_per_s"], row["of_plain"], row["alpha"], row["tau"]), flush=True)
        for name, process in s.processes.items():
            out.setdefault("peak_mib", {})[name] = peak_mib(process)
        print("peak memory, MiB: " + ", ".join("%s %.0f" % (name, mib) for name, mib in out["peak_mib"].items()))
    return out


def peak_mib(process):
    with open("/proc/%d/status" % process.pid, encoding="ascii") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmHWM:")) / 1024


def measure_texts(o, s, prompts, names):
    """Answers differ from turn to turn in nothing but the seed, and share nothing but with "again"."""
    got = {(name, policy): [] for name in names for policy in s.ports}
    for turn in range(o.reps + 1):
        for i, prompt in enumerate(prompts):
            said = []
            for (name, policy), answers in random.sample(sorted(got.items()), len(got)):
                own = {} if name == "again" else {"cache_salt": "%s %s %d %d" % (name, policy, turn, i)}
                text = Text(s.generate(policy, prompt, o.tokens, {"proposer": name},
                                       temperature=o.temperature, seed=turn, **own))
                said.append(text)
                if turn:
                    answers.append(text)
            must_agree(said)
    plain = rate_of([t for policy in s.ports for t in got["none", policy]])
    for (name, policy), answers in got.items():
        if name == "none" and policy != "fixed":
            continue
        yield {"proposer": name, "policy": policy if name != "none" else "", "tokens_per_s": rate_of(answers), "of_plain": rate_of(answers) / plain,
               "alpha": alpha_of(answers, 5), "tau": sum(t.tokens for t in answers) / sum(t.steps for t in answers)}

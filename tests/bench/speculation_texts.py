"""speculation_texts.py: each proposer with the embedded pair of models, on repetitive and on free prompts."""
import contextlib
import os
import random

from services import ROOT, Services
from stats import alpha, tau, tokens_per_s
from timing import TimedAnswer, must_agree

K = 5  # tokens per draft of the verifier with a fixed k
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


def proposer_options(o, models):
    """Name -> options of a proposer-svc. "again" is a second suffix proposer: the verifier keeps its estimates by
    name, so the two do not mix."""
    draft = ["--draft.model", os.path.join(models, "tales-1m-q8_0.gguf"), "--draft.threads", str(o.threads)]
    found = {"ngram": [], "suffix": [], "draft": draft, "cascade": draft, "again": []}
    return {name: ["--proposer", "suffix" if name == "again" else name, *more] for name, more in found.items()}


def peak_mib(process):
    with open("/proc/%d/status" % process.pid, encoding="ascii") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmHWM:")) / 1024


def measure_prompts(o, s, prompts, names):
    """Yields the figures of each proposer and policy. Turns differ only in the seed. Each answer has its own cache
    salt, so nothing is reused between answers; only "again" sees the answers of earlier turns."""
    got = {(name, policy): [] for name in names for policy in s.ports}
    for turn in range(o.reps + 1):
        for i, prompt in enumerate(prompts):
            of_turn = []
            for (name, policy), answers in random.sample(sorted(got.items()), len(got)):
                own = {} if name == "again" else {"cache_salt": "%s %s %d %d" % (name, policy, turn, i)}
                answer = TimedAnswer(s.generate(policy, prompt, o.tokens, {"proposer": name},
                                                temperature=o.temperature, seed=turn, **own))
                of_turn.append(answer)
                if turn:
                    answers.append(answer)
            must_agree(of_turn)
    plain = tokens_per_s([a for policy in s.ports for a in got["none", policy]])
    for (name, policy), answers in got.items():
        if name == "none" and policy != "fixed":
            continue
        rate = tokens_per_s(answers)
        yield {"proposer": name, "policy": policy if name != "none" else "", "tokens_per_s": rate,
               "of_plain": rate / plain, "alpha": alpha(answers, K), "tau": tau(answers)}


def texts(o):
    models = os.path.join(ROOT, "models")
    proposers = proposer_options(o, models)
    out = {}
    with contextlib.ExitStack() as stack:
        s = Services(o, stack, os.path.join(models, "tales-11m-q8_0.gguf"), proposers,
                     {"goodput": [], "fixed": ["--policy", "fixed", "--k", str(K)]})
        print("the embedded pair, %d threads each, temperature %g, %d turns, answers of %d tokens: tokens/s, of plain" % (
            o.threads, o.temperature, o.reps, o.tokens))
        print("%-11s %-8s %-8s | %9s %9s | %5s %5s" % ("prompts", "proposer", "policy", "tokens/s", "of plain", "alpha", "tau"))
        for kind, prompts in {"repetitive": REPETITIVE, "free": FREE}.items():
            for row in measure_prompts(o, s, prompts, ["none", *proposers]):
                out.setdefault(kind, []).append(row)
                print("%-11s %-8s %-8s | %9.1f %9.2f | %5.2f %5.2f" % (
                    kind, row["proposer"], row["policy"], row["tokens_per_s"], row["of_plain"], row["alpha"], row["tau"]),
                    flush=True)
        for name, process in s.processes.items():
            out.setdefault("peak_mib", {})[name] = peak_mib(process)
        print("peak memory, MiB: " + ", ".join("%s %.0f" % (name, mib) for name, mib in out["peak_mib"].items()))
    return out

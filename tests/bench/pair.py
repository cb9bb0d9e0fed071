"""pair.py: a synthetic target and a draft that agree to a known degree, and the services that run them."""
import os
import random
import subprocess

from services import Services
from timing import must_agree, prompt_of_turn

EPS = {"1b": [0.018, 0.07, 0.2], "0.1b": [0.005, 0.02, 0.1], "tiny": [0.05]}


def synthetic(o, name, *how):
    path = os.path.join(o.models, "%s-q8_0-%s.gguf" % (o.shape, name))
    if not os.path.exists(path):
        os.makedirs(o.models, exist_ok=True)
        make = [os.path.join(o.bin, "tests", "make_model"), "--shape", o.shape, "--type", "q8_0", *how]
        subprocess.run([*make, "--out", path + ".part"], check=True)
        os.rename(path + ".part", path)
    return path


def pair(o, eps):
    return synthetic(o, "eps%g" % eps, "--faint-from", "1", "--eps", str(eps)), synthetic(o, "layers1", "--layers", "1")


def start_pair(o, eps, stack):
    """A verifier that is told how many tokens are drafted whatever they bring, and one that chooses."""
    target, draft = pair(o, eps)
    return Services(o, stack, target, {"draft": ["--proposer", "draft", "--draft.model", draft, "--draft.threads", str(o.threads)]},
                    {"goodput": [], "fixed": ["--policy", "fixed", "--k", str(max(o.k))]})


def wish(k):
    """The verifier that is asked, and for how many tokens."""
    return {"goodput": ("goodput", {}), "off": ("goodput", {"n_max": 0})}.get(k, ("fixed", {"n_max": k}))


def take_turns(o, s, ks, context, n_sequences, ask):
    """k -> texts of o.reps turns after one to warm up; each sequence has a prompt of its own."""
    texts = {k: [] for k in ks}
    for turn in range(o.reps + 1):
        prompts, said = [prompt_of_turn(turn * n_sequences + i, context) for i in range(n_sequences)], []
        for name in s.ports:
            s.generate(name, prompts, 1, {})  # known from now on
        for k in random.sample(ks, len(ks)):
            name, speculative = wish(k)
            said.append(ask(o, s, name, prompts, speculative))
            if turn:
                texts[k].append(said[-1])
        must_agree(said)
    return texts

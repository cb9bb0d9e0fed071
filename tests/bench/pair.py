"""pair.py: a synthetic target and draft model that agree to a known degree, and the services that run them."""
import random

import synthetic
from services import Services
from timing import must_agree, prompt_of_turn


def start_pair(o, eps, stack):
    """Two verifiers with one proposer: "goodput" runs the controller, "fixed" drafts as many tokens as the request
    asks for, whether or not the drafts pay."""
    target, draft = synthetic.target_file(o, eps), synthetic.draft_file(o)
    proposer = ["--proposer", "draft", "--draft.model", draft, "--draft.threads", str(o.threads)]
    return Services(o, stack, target, {"draft": proposer},
                    {"goodput": [], "fixed": ["--policy", "fixed", "--k", str(max(o.k))]})


def request_for(k):
    """(the verifier to use, the request's field "speculative"). k: tokens per draft, "goodput", or "off"."""
    return {"goodput": ("goodput", {}), "off": ("goodput", {"n_max": 0})}.get(k, ("fixed", {"n_max": k}))


def take_turns(o, s, ks, context, n_sequences, measure):
    """k -> the answers of o.reps turns. One more turn before these warms up. In a turn every k generates the same
    answer, in random order. Each sequence has its own prompt, which is cached before it is measured.

    measure: time_answer() or time_answer_and_passes()."""
    answers = {k: [] for k in ks}
    for turn in range(o.reps + 1):
        prompts, of_turn = [prompt_of_turn(turn * n_sequences + i, context) for i in range(n_sequences)], []
        for name in s.ports:
            s.generate(name, prompts, 1, {})
        for k in random.sample(ks, len(ks)):
            name, speculative = request_for(k)
            of_turn.append(measure(o, s, name, prompts, speculative))
            if turn:
                answers[k].append(of_turn[-1])
        must_agree(of_turn)
    return answers

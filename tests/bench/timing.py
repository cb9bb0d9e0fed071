"""timing.py: what one answer took."""
import random

FIRST_WORD = 300  # of a synthetic vocabulary; bytes come before
WORDS = 30000
OWN_WORDS = 16  # of a prompt's end
MAX_STOLEN = 0.03  # of the machine's time, by its host, while a text is timed
TRIES = 3  # at most, for one of which no more was stolen


class Text:
    """What one answer took."""

    def __init__(self, answer):
        t, s = answer["timings"], answer["metrics"]["speculative_decoding"]
        self.tokens, self.ms = t["predicted_n"], t["predicted_ms"]
        self.drafted, self.accepted, self.steps = s["num_draft_tokens"], s["num_accepted_draft_tokens"], s["num_steps"]
        self.histogram = s["acceptance_histogram"]
        self.said = [c["text"] for c in answer["choices"]]


def prompt_of(seed, n):
    words = random.Random(seed)
    return [words.randrange(FIRST_WORD, WORDS) for _ in range(n)]


def prompt_of_turn(turn, n):
    """They differ in their end only, so that a long one is computed once. One more: of a known prompt the last token is run."""
    own = min(n, OWN_WORDS)
    return prompt_of("all", n - own) + prompt_of(turn, own + 1)


def must_agree(texts):
    if len({tuple(t.said) for t in texts}) > 1:
        raise SystemExit("the texts differ: speculation has changed an answer")



def times():
    """The machine's time so far, and what of it other guests had, in ticks (proc(5): cpu of /proc/stat)."""
    with open("/proc/stat", encoding="ascii") as f:
        ticks = [int(t) for t in f.readline().split()[1:9]]
    return sum(ticks), ticks[7]


def undisturbed(take):
    """What take() gives when the host steals little meanwhile; if it always steals, when it stole least."""
    got = []
    while len(got) < TRIES and (not got or got[-1][0] > MAX_STOLEN):
        before, result, after = times(), take(), times()
        got.append(((after[1] - before[1]) / max(1, after[0] - before[0]), result))
    return min(got, key=lambda g: g[0])[1]


def text_of(o, s, name, prompts, speculative):
    """What an answer takes behind a known prompt."""
    return undisturbed(lambda: Text(s.generate(name, prompts, o.tokens, speculative)))


def text_with_figures(o, s, name, prompts, speculative):
    """And the figures of its passes, whether the prompt is known or not."""
    s.generate(name, prompts, 1, speculative)
    start = s.figures(name)
    s.generate(name, prompts, 1, speculative)  # what has to be run of a known prompt
    of_prompt = s.figures(name)
    of_prompt.subtract(start)

    def take():
        before = s.figures(name)
        text = Text(s.generate(name, prompts, o.tokens, speculative))
        text.figures = s.figures(name)
        text.figures.subtract(before)
        return text

    text = undisturbed(take)
    text.figures.subtract(of_prompt)
    return text


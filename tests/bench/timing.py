"""timing.py: requests to the running services, and the time that each answer takes."""
import random

FIRST_WORD = 300  # the lowest token of prompts; lower tokens are bytes and special tokens
WORDS = 30000  # prompts use tokens below this one, so a synthetic vocabulary of 32000 has them all
OWN_WORDS = 16  # tokens at the end of a prompt in which the prompts of different turns differ
MAX_STOLEN = 0.03  # fraction of the machine's time that its host may give to other guests during a measurement
TRIES = 3  # measurements, at most, until the host took no more than MAX_STOLEN


class TimedAnswer:
    """One answer: its tokens, the milliseconds from the first token to the last, and the result of its drafts."""

    def __init__(self, answer):
        t, s = answer["timings"], answer["metrics"]["speculative_decoding"]
        self.tokens, self.ms = t["predicted_n"], t["predicted_ms"]
        self.drafted, self.accepted, self.steps = s["num_draft_tokens"], s["num_accepted_draft_tokens"], s["num_steps"]
        self.histogram = s["acceptance_histogram"]  # [i]: steps in which i draft tokens were accepted
        self.texts = [c["text"] for c in answer["choices"]]
        self.pass_metrics = None  # of this answer only; see time_answer_and_passes()


def prompt_of(seed, n):
    """n random tokens, the same for the same seed."""
    words = random.Random(seed)
    return [words.randrange(FIRST_WORD, WORDS) for _ in range(n)]


def prompt_of_turn(turn, n):
    """n + 1 tokens. Prompts of different turns share all but their last tokens, so a long context is computed only
    once. The additional token is the one that the verifier must run even if the whole prompt is cached."""
    own = min(n, OWN_WORDS)
    return prompt_of("all", n - own) + prompt_of(turn, own + 1)


def must_agree(answers):
    """Ends the program if the answers differ. Speculation must not change an answer."""
    if len({tuple(a.texts) for a in answers}) > 1:
        raise SystemExit("the texts differ: speculation has changed an answer")


def machine_ticks():
    """(all, stolen): ticks of the machine's time so far, and those that the host gave to other guests.

    The second is "steal" in the cpu line of /proc/stat, see proc(5)."""
    with open("/proc/stat", encoding="ascii") as f:
        ticks = [int(t) for t in f.readline().split()[1:9]]
    return sum(ticks), ticks[7]


def undisturbed(measure):
    """The result of measure(), called until the host stole at most MAX_STOLEN of the machine's time, at most TRIES
    times. If the host always stole more: the result of the call in which it stole least."""
    results = []
    while len(results) < TRIES and (not results or results[-1][0] > MAX_STOLEN):
        before, result, after = machine_ticks(), measure(), machine_ticks()
        results.append(((after[1] - before[1]) / max(1, after[0] - before[0]), result))
    return min(results, key=lambda r: r[0])[1]


def time_answer(o, s, name, prompts, speculative):
    """An answer of o.tokens tokens to prompts that are already cached."""
    return undisturbed(lambda: TimedAnswer(s.generate(name, prompts, o.tokens, speculative)))


def time_answer_and_passes(o, s, name, prompts, speculative):
    """Like time_answer(), and sets pass_metrics: the passes and round trips of the answer without those of the
    prompt. The prompts need not be cached."""
    s.generate(name, prompts, 1, speculative)
    start = s.pass_metrics(name)
    s.generate(name, prompts, 1, speculative)  # the passes that even a cached prompt needs
    of_prompt = s.pass_metrics(name)
    of_prompt.subtract(start)

    def measure():
        before = s.pass_metrics(name)
        answer = TimedAnswer(s.generate(name, prompts, o.tokens, speculative))
        answer.pass_metrics = s.pass_metrics(name)
        answer.pass_metrics.subtract(before)
        return answer

    answer = undisturbed(measure)
    answer.pass_metrics.subtract(of_prompt)
    return answer

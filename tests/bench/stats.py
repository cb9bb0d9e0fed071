"""stats.py: what many answers amount to."""


def rate_of(texts):
    return 1e3 * sum(t.tokens for t in texts) / sum(t.ms for t in texts)


def alpha_of(texts, k):
    """Of the draft tokens that were reached, the share that was kept."""
    kept = sum(t.accepted for t in texts)
    stopped = sum(sum(t.histogram[:k]) for t in texts)
    return kept / max(1, kept + stopped)


def accepted_of(texts):
    return sum(t.accepted for t in texts) / max(1, sum(t.drafted for t in texts))

def mean_ms(texts, name):
    seconds, count = (sum(t.figures["tandem_%s_seconds_%s" % (name, of)] for t in texts) for of in ("sum", "count"))
    return 1e3 * seconds / max(1, count)


def drafted_of(texts):
    """Tokens drafted per step of a sequence."""
    return sum(t.drafted for t in texts) / sum(t.steps for t in texts)


def relative(rates, others):
    """The speed of turns relative to that of others, turn by turn, and its standard error (a ratio estimator's: Cochran,
    Sampling Techniques, 2.11): a wait of the machine that both met counts for both."""
    n, took = len(rates), sum(1 / r for r in rates)
    ratio = sum(1 / r for r in others) / took
    return ratio, (sum((1 / other - ratio / r) ** 2 for r, other in zip(rates, others)) * n / (n - 1)) ** 0.5 / took


def compare(turns):
    """The controller (goodput) relative to the best k and to none; turns: k -> tokens/s of each, all of as many tokens.
    None is what the controller's own verifier makes without drafts (off): that of the other, which is told its k, lies at
    other places in memory, and `processes` says how much that makes. of_best lets every other turn name the best k for
    those between: of ks that are alike it takes the worse one at times, and so is rather too high. of_best_column takes
    the k that was best in these same turns, by luck too: rather too low."""
    ours, told = turns["goodput"], {k: turns[k] for k in turns if k not in ("goodput", "off")}
    processes = relative(turns["off"], told[0]) if "off" in turns else (1, 0)
    told[0] = turns.get("off", told[0])

    def best(of):
        return min(told, key=lambda k: sum(1 / r for r in told[k][of]))
    even, odd, whole = slice(0, None, 2), slice(1, None, 2), slice(None)
    halves = ((even, odd), (odd, even))
    return {"best": best(whole),
            "of_best": relative([r for here, _ in halves for r in ours[here]],
                                [r for here, there in halves for r in told[best(there)][here]]),
            "of_best_column": relative(ours, told[best(whole)]), "of_none": relative(ours, told[0]), "processes": processes}


def mean_of(name, figures):
    """Weighted by their errors; they scatter as these say where chi-square is about n - 1."""
    weights = [max(error, 1e-9) ** -2 for _, error in figures]
    if weights:
        mean = sum(w * ratio for w, (ratio, _) in zip(weights, figures)) / sum(weights)
        chi_square = sum(w * (ratio - mean) ** 2 for w, (ratio, _) in zip(weights, figures))
        print("%-31s %.3f +- %.3f, chi-square %.1f, n = %d" % (name, mean, sum(weights) ** -0.5, chi_square, len(figures)))


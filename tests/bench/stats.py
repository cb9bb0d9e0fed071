"""stats.py: figures of several answers together, and comparisons with their errors. Pure: no services, no clock."""


def tokens_per_s(answers):
    return 1e3 * sum(a.tokens for a in answers) / sum(a.ms for a in answers)


def alpha(answers, k):
    """Acceptance rate: the probability that a draft token is accepted if all tokens before it were. A step of a
    draft of k tokens that accepted fewer than k rejected exactly one."""
    accepted = sum(a.accepted for a in answers)
    rejected = sum(sum(a.histogram[:k]) for a in answers)
    return accepted / max(1, accepted + rejected)


def accepted_ratio(answers):
    """Accepted draft tokens over all draft tokens, including those after the first rejection."""
    return sum(a.accepted for a in answers) / max(1, sum(a.drafted for a in answers))


def drafted_per_step(answers):
    """Draft tokens per step of a sequence."""
    return sum(a.drafted for a in answers) / sum(a.steps for a in answers)


def tau(answers):
    """Committed tokens per step of a sequence."""
    return sum(a.tokens for a in answers) / sum(a.steps for a in answers)


def mean_ms(answers, name):
    """The mean of the histogram tandem_NAME_seconds over these answers."""
    seconds, count = (sum(a.pass_metrics["tandem_%s_seconds_%s" % (name, of)] for a in answers) for of in ("sum", "count"))
    return 1e3 * seconds / max(1, count)


def relative(rates, others):
    """(ratio, standard error): the speed of turns relative to other turns with the same number of tokens.

    rates[i] and others[i] were measured in the same turn, so a disturbance that slows both cancels. The error is
    that of a ratio estimator (Cochran, Sampling Techniques, 2.11)."""
    n, took = len(rates), sum(1 / r for r in rates)
    ratio = sum(1 / r for r in others) / took
    return ratio, (sum((1 / other - ratio / r) ** 2 for r, other in zip(rates, others)) * n / (n - 1)) ** 0.5 / took


def compare(turns):
    """Compares the controller with the best fixed k and with no drafts; each figure is (ratio, standard error).

    turns: k -> tokens/s of each turn. All turns have the same number of tokens. k is "goodput" (the controller),
    "off" (no drafts, on the controller's verifier) or a number (a fixed k, on another verifier; 0: no drafts).

    of_none         relative to "off". k = 0 is slightly different because the other verifier's process has another
                    memory layout; `processes` is the ratio of "off" to k = 0.
    of_best         relative to the best k. The even turns choose this k for the odd turns, and the odd turns for the
                    even ones. If several k are almost equal, the choice is sometimes not the best one, so this
                    figure is biased upwards.
    of_best_column  relative to the k that was best in these same turns, in part by chance, so this figure is biased
                    downwards."""
    ours, fixed = turns["goodput"], {k: turns[k] for k in turns if k not in ("goodput", "off")}
    processes = relative(turns["off"], fixed[0]) if "off" in turns else (1, 0)
    fixed[0] = turns.get("off", fixed[0])

    def best(of):
        return min(fixed, key=lambda k: sum(1 / r for r in fixed[k][of]))
    even, odd, whole = slice(0, None, 2), slice(1, None, 2), slice(None)
    halves = ((even, odd), (odd, even))
    return {"best": best(whole),
            "of_best": relative([r for here, _ in halves for r in ours[here]],
                                [r for here, there in halves for r in fixed[best(there)][here]]),
            "of_best_column": relative(ours, fixed[best(whole)]), "of_none": relative(ours, fixed[0]),
            "processes": processes}


def weighted_mean(figures):
    """(mean, error, chi-square) of (ratio, error) figures, weighted by their errors. The errors describe the scatter
    of the ratios if chi-square is about n - 1. figures: at least one."""
    weights = [max(error, 1e-9) ** -2 for _, error in figures]
    mean = sum(w * ratio for w, (ratio, _) in zip(weights, figures)) / sum(weights)
    chi_square = sum(w * (ratio - mean) ** 2 for w, (ratio, _) in zip(weights, figures))
    return mean, sum(weights) ** -0.5, chi_square

"""serve_figures.py: the figures of one run: percentiles, throughput, errors, goodput. Pure: no clock, no network."""
import collections

PERCENTS = [50, 90, 99]
LATENCIES = {"ttft": "time to the first token", "itl": "between tokens", "e2e": "whole answer"}  # name: label


def percentile(values, p):
    """The percentile of sorted values, interpolated linearly. None without values."""
    if not values:
        return None
    at = (len(values) - 1) * p / 100
    low = int(at)
    return values[low] + (values[min(low + 1, len(values) - 1)] - values[low]) * (at - low)


def percentiles(values, percents):
    values = sorted(values)
    return {str(p): percentile(values, p) for p in percents}


def distribution(values):
    """Milliseconds of values in seconds: mean, the usual percentiles, maximum, and the percentiles 0 to 100."""
    values = sorted(1e3 * v for v in values)
    if not values:
        return None
    named = {f"p{p}": percentile(values, p) for p in PERCENTS}
    return {"mean": sum(values) / len(values), **named, "max": values[-1], "curve": [percentile(values, p) for p in range(101)]}


def meets(sample, limits):
    return all(getattr(sample, name)() <= limit_s for name, limit_s in limits.items())


def ratio(part, whole):
    """None if there is no whole."""
    return part / whole if whole else None


def figures(run, limits):
    """run: a serve_traffic.Run that has ended. limits: name of a latency -> seconds, for the goodput; may be empty."""
    good = [s for s in run.samples if s.ok]
    wall_s = max(run.wall_s, 1e-9)
    total = lambda name: sum(getattr(s, name) for s in good)
    r = {
        "requests": len(run.samples), "ok": len(good), "seconds": run.wall_s,
        "errors": dict(collections.Counter(s.status for s in run.samples if s.status not in ("ok", "hung up"))),
        "hung_up": sum(s.status == "hung up" for s in run.samples),
        "requests_per_s": len(good) / wall_s,
        "tokens": sum(s.tokens for s in run.samples), "tokens_per_s": sum(s.tokens for s in run.samples) / wall_s,
        "prompt_tokens": total("prompt_tokens"), "cached_tokens": total("cached"),
        "drafted_tokens": total("drafted"), "accepted_tokens": total("accepted"), "steps": total("steps"),
        "alpha": ratio(total("accepted"), total("drafted")), "cached_share": ratio(total("cached"), total("prompt_tokens")),
        "latency_ms": {"ttft": distribution(s.ttft() for s in good), "itl": distribution(g for s in good for g in s.gaps),
                       "e2e": distribution(s.e2e() for s in good)},
        "lag_ms": 1e3 * run.lag_s, "generator_cores": run.cpu_s / wall_s,
    }
    if limits:
        within = sum(meets(s, limits) for s in good)
        r["goodput"] = {"limits_ms": {name: 1e3 * v for name, v in limits.items()}, "requests_per_s": within / wall_s,
                        "share": ratio(within, len(run.samples) - r["hung_up"])}
    return r


def each(run):
    """The figures of each request, in the order in which they were due."""
    def ms(value):
        return None if value is None else round(1e3 * value, 3)
    return [{"planned_s": round(s.planned, 6), "status": s.status, **({"why": s.why} if s.why else {}),
             "ttft_ms": ms(s.ttft() if s.first is not None else None), "itl_ms": ms(s.itl() if s.first is not None else None),
             "e2e_ms": ms(s.e2e()), "tokens": s.tokens, "prompt_tokens": s.prompt_tokens, "cached_tokens": s.cached,
             "drafted": s.drafted, "accepted": s.accepted} for s in sorted(run.samples, key=lambda s: s.planned)]


# ---------------------------------------------------------------- text


def short(value, unit=""):
    """The value with three digits; a dash for None."""
    if value is None:
        return "-"
    return (f"{value:.0f}" if value >= 100 else f"{value:.3g}") + unit


def lines(r):
    """The figures of one run as text."""
    text = [f"  {r['ok']} of {r['requests']} requests answered in {r['seconds']:.1f} s: {short(r['requests_per_s'])} requests/s, "
            f"{short(r['tokens_per_s'])} tokens/s"]
    left_out = r["requests"] - r["ok"]
    if left_out:
        text.append(f"  latencies leave out {left_out} requests that failed or hung up")
    for name, what in LATENCIES.items():
        d = r["latency_ms"][name]
        if d:
            text.append(f"  {name:5}{what + ', ms':28}" + "".join(f"{k} {short(d[k]):<9}" for k in ["p50", "p90", "p99", "max"]))
    if r["drafted_tokens"]:
        text.append(f"  drafts: {r['accepted_tokens']} of {r['drafted_tokens']} tokens accepted (alpha {r['alpha']:.2f})")
    if r["cached_tokens"]:
        text.append(f"  cache: {r['cached_tokens']} of {r['prompt_tokens']} prompt tokens found")
    if "goodput" in r:
        g = r["goodput"]
        limits = ", ".join(f"{name} {short(ms)} ms" for name, ms in g["limits_ms"].items())
        text.append(f"  goodput ({limits}): {short(g['requests_per_s'])} requests/s, {100 * (g['share'] or 0):.0f} %")
    if r["hung_up"]:
        text.append(f"  hung up: {r['hung_up']}")
    if r["errors"]:
        text.append("  errors: " + ", ".join(f"{n} x {name}" for name, n in sorted(r["errors"].items())))
    if r["seconds"] > 1 and (r["lag_ms"] > 50 or r["generator_cores"] > 0.9):
        text.append(f"  warning: this program sent requests up to {short(r['lag_ms'])} ms late and used {r['generator_cores']:.2f} cores")
    return text

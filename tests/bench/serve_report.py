"""serve_report.py: writes the figures of `bench serve` as one HTML file with SVG plots. It loads no other files."""
import html
import math

from serve_figures import LATENCIES, short

WIDTH, HEIGHT = 360, 220  # of a plot, in SVG units
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 10, 34
TIMELINE = (1120, 240)
TIMELINE_MAX = 400  # with more requests, the timeline draws only every n-th one

STYLE = """
:root { color-scheme: light dark; --page: #fff; --text: #1f2430; --dim: #667085; --line: #e3e6eb; --a: #1d63d1; --b: #c2570c; --wait: #b6bfcd; --bad: #c01c28; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14171c; --text: #e6e9ef; --dim: #98a2b3; --line: #2b313b; --a: #6ea8ff; --b: #ff9d57; --wait: #4a5362; --bad: #ff6b6b; } }
body { margin: 0 auto; padding: 1.5rem; max-width: 75rem; background: var(--page); color: var(--text); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .3rem; } h3 { font-size: .95rem; margin: 0; font-weight: 600; }
p { margin: .3rem 0; } .dim { color: var(--dim); } code { font-size: .85em; overflow-wrap: anywhere; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr)); gap: 1rem; }
figure { margin: .6rem 0; min-width: 0; } svg { width: 100%; height: auto; display: block; } .wide { overflow-x: auto; }
svg text { fill: var(--dim); font: 11px system-ui, sans-serif; } .grid { stroke: var(--line); stroke-width: 1; }
.a { --is: var(--a); } .b { --is: var(--b); } .curve { fill: none; stroke: var(--is); stroke-width: 2; } .dot { fill: var(--is); }
.p99 { stroke-dasharray: 5 4; } .wait { stroke: var(--wait); } .flow { stroke: var(--is); } .bad { stroke: var(--bad); }
.key { display: inline-flex; align-items: center; gap: .4em; margin-right: 1.2em; } .key i { width: 1.4em; border-top: 3px solid var(--is); }
.key i.dash { border-top-style: dashed; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; } td, th { padding: .3rem .5rem; text-align: right; border-bottom: 1px solid var(--line); } td { white-space: nowrap; }
th { font-weight: 600; color: var(--dim); } td:first-child, th:first-child { text-align: left; padding-left: 0; }
"""


def ticks(top, n=4):
    """Round numbers from 0 to the first one that is at least top, n + 1 at most."""
    if top <= 0:
        return [0, 1]
    step = 10 ** math.floor(math.log10(top / n))
    step *= next(m for m in [1, 2, 5, 10] if top / (step * m) <= n)
    return [i * step for i in range(math.ceil(top / step - 1e-9) + 1)]


def number(v):
    return f"{v:,.0f}" if v >= 10 or v == int(v) else f"{v:.3g}"


class Plot:
    """An SVG plot. Both axes start at 0."""

    def __init__(self, x_top, y_top, x_name, y_name, size=(WIDTH, HEIGHT), x_ticks=None, percent=False):
        self.size, self.parts = size, []
        self.x_ticks, self.y_ticks = x_ticks or ticks(x_top), ticks(y_top)
        self.x_top = max(x_top, 1e-9) if x_ticks else self.x_ticks[-1]
        self.y_top = y_top if percent else self.y_ticks[-1]
        for y in self.y_ticks:
            if y <= self.y_top:
                self.parts.append(f'<line class="grid" x1="{LEFT}" x2="{size[0] - RIGHT}" y1="{self.y(y):.1f}" y2="{self.y(y):.1f}"/>'
                                  f'<text x="{LEFT - 6}" y="{self.y(y) + 4:.1f}" text-anchor="end">{number(100 * y) if percent else number(y)}</text>')
        for x in self.x_ticks:
            self.parts.append(f'<text x="{self.x(x):.1f}" y="{size[1] - BOTTOM + 15}" text-anchor="middle">{number(x)}</text>')
        self.parts.append(f'<text x="{size[0] - RIGHT}" y="{size[1] - 4}" text-anchor="end">{x_name}</text>')
        self.name = f"{y_name} over {x_name}"

    def x(self, v):
        return LEFT + (self.size[0] - LEFT - RIGHT) * v / self.x_top

    def y(self, v):
        return TOP + (self.size[1] - TOP - BOTTOM) * (1 - v / self.y_top)

    def curve(self, points, look, dots=None):
        """points: (x, y). dots: for each point, the text to show when the mouse is over it; None: no dots."""
        path = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        self.parts.append(f'<polyline class="curve {look}" points="{path}"/>')
        for (x, y), text in zip(points, dots or []):
            self.parts.append(f'<circle class="dot {look}" cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="4"><title>{html.escape(text)}</title></circle>')

    def bar(self, x1, x2, y, look, width, text):
        self.parts.append(f'<line class="{look}" x1="{self.x(x1):.1f}" x2="{max(self.x(x2), self.x(x1) + 1):.1f}" y1="{y:.1f}" y2="{y:.1f}" '
                          f'stroke-width="{width:.1f}"><title>{html.escape(text)}</title></line>')

    def figure(self, title):
        return (f'<figure><h3>{html.escape(title)}</h3><svg viewBox="0 0 {self.size[0]} {self.size[1]}" role="img" '
                f'aria-label="{html.escape(title + ": " + self.name)}">{"".join(self.parts)}</svg></figure>')


def looks(figures):
    """Variant -> CSS class of its colour."""
    names = list(dict.fromkeys(r["variant"] for r in figures["runs"]))
    return {name: "ab"[i % 2] for i, name in enumerate(names)}


def legend(colours, *more):
    keys = [f'<span class="key {look}"><i></i>{html.escape(name or "requests")}</span>' for name, look in colours.items() if name or not more]
    return '<p class="dim">' + "".join([*keys, *more]) + "</p>"


# ---------------------------------------------------------------- sections of the page


def table(figures):
    slo = any("goodput" in r for r in figures["runs"])
    heads = ["run", "requests", "failed", "requests/s", "tokens/s", *(f"{name} {p}, ms" for name in LATENCIES for p in ["p50", "p99"]),
             "alpha", "cached", *(["goodput/s"] if slo else [])]
    rows = []
    for r in figures["runs"]:
        d = r["latency_ms"]
        percent = lambda v: "-" if v is None else f"{100 * v:.0f} %"
        rows.append([r["name"], r["requests"], sum(r["errors"].values()), short(r["requests_per_s"]), short(r["tokens_per_s"]),
                     *(short(d[name] and d[name][p]) for name in LATENCIES for p in ["p50", "p99"]),
                     "-" if r["alpha"] is None else f"{r['alpha']:.2f}", percent(r["cached_share"]),
                     *([short(r["goodput"]["requests_per_s"]) + f" ({percent(r['goodput']['share'])})"] if slo else [])])
    row = lambda cells, tag: "<tr>" + "".join(f"<{tag}>{html.escape(str(c))}</{tag}>" for c in cells) + "</tr>"
    return '<div class="wide"><table>' + row(heads, "th") + "".join(row(r, "td") for r in rows) + "</table></div>"


def by_traffic(figures, colours):
    """Latencies and throughput against the rate or the number of clients. Empty with fewer than two values."""
    runs = [r for r in figures["runs"] if r["ok"]]
    values = sorted({r["load"] for r in runs})
    if len(values) < 2:
        return ""
    x_name = {"rate": "requests per second", "concurrency": "clients"}[runs[0]["kind"]]
    plots = []

    def plot(title, y_name, kinds):
        """kinds: [(CSS class, function that takes a run and returns the figure)]"""
        top = max(of(r) or 0 for r in runs for _, of in kinds)
        p = Plot(values[-1], top, x_name, y_name, x_ticks=values)
        for variant, colour in colours.items():
            for look, of in kinds:
                points = sorted((r["load"], of(r)) for r in runs if r["variant"] == variant and of(r) is not None)
                p.curve(points, f"{colour} {look}", [f"{variant} {number(x)}: {short(y)} {y_name}" for x, y in points])
        plots.append(p.figure(title))

    for name, what in LATENCIES.items():
        plot(what + ", ms", "ms", [("", lambda r, n=name: r["latency_ms"][n] and r["latency_ms"][n]["p50"]),
                                   ("p99", lambda r, n=name: r["latency_ms"][n] and r["latency_ms"][n]["p99"])])
    plot("tokens per second", "tokens/s", [("", lambda r: r["tokens_per_s"])])
    if all("goodput" in r for r in runs):
        plot("goodput, requests per second", "requests/s", [("", lambda r: r["goodput"]["requests_per_s"])])
    key = '<span class="key"><i style="--is: var(--dim)"></i>median</span><span class="key"><i class="dash" style="--is: var(--dim)"></i>p99</span>'
    return "<h2>By traffic</h2>" + legend(colours, key) + '<div class="plots">' + "".join(plots) + "</div>"


def curves(figures, colours):
    """For each traffic, the cumulative distribution of each latency."""
    parts = ["<h2>Distributions</h2>", '<p class="dim">Percent of the answers (between tokens: of the tokens) with at most this '
             "latency, up to the 99th percentile.</p>"]
    if len(colours) > 1:
        parts.append(legend(colours))
    for value in dict.fromkeys(r["load"] for r in figures["runs"]):
        runs, plots = [r for r in figures["runs"] if r["load"] == value], []
        for name, what in LATENCIES.items():
            found = [(r, r["latency_ms"][name]["curve"]) for r in runs if r["latency_ms"][name]]
            if found:
                p = Plot(max(c[99] for _, c in found), 1, "ms", "percent", percent=True)
                for r, c in found:
                    p.curve([(x, i / 100) for i, x in enumerate(c[:100])], colours[r["variant"]])
                plots.append(p.figure(f"{what}, {runs[0]['kind']} {value}"))
        parts.append('<div class="plots">' + "".join(plots) + "</div>")
    return "".join(parts)


def timeline(r, colour):
    """A line for each request, from the time when it was due to its end."""
    each = r["each"][::math.ceil(len(r["each"]) / TIMELINE_MAX) or 1]
    if not each:
        return ""
    p = Plot(max(s["planned_s"] + s["e2e_ms"] / 1e3 for s in each), 1, "seconds", "requests", size=TIMELINE)
    p.parts = [part for part in p.parts if "grid" not in part]  # no grid: the height only separates the requests
    step = (TIMELINE[1] - TOP - BOTTOM) / len(each)
    for i, s in enumerate(each):
        y, end = TOP + (i + 0.5) * step, s["planned_s"] + s["e2e_ms"] / 1e3
        first = end if s["ttft_ms"] is None else s["planned_s"] + s["ttft_ms"] / 1e3
        text = f"at {s['planned_s']:.2f} s: {s['status']}, {s['tokens']} tokens, first after {short(s['ttft_ms'])} ms, end after {short(s['e2e_ms'])} ms"
        good = s["status"] in ("ok", "hung up")
        p.bar(s["planned_s"], first, y, "wait" if good else "bad", min(step * 0.8, 6), text)
        if first < end:
            p.bar(first, end, y, "flow " + colour if good else "bad", min(step * 0.8, 6), text)
    return p.figure(r["name"])


def timelines(figures, colours):
    key = ('<span class="key"><i style="--is: var(--wait)"></i>before the first token</span><span class="key a"><i></i>tokens arrive</span>'
           '<span class="key"><i style="--is: var(--bad)"></i>failed</span>')
    return ("<h2>Timeline</h2>" + f'<p class="dim">{key}</p>' + "".join(f'<div class="wide">{timeline(r, colours[r["variant"]])}</div>' for r in figures["runs"]))


def page(figures):
    colours = looks(figures)
    about = f"{figures['model']} at {figures['server']}, {figures['when']}"
    return ('<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
            f"<title>Traffic on {html.escape(figures['model'])}</title><style>{STYLE}</style></head><body>"
            f'<h1>Latency and throughput</h1><p class="dim">{html.escape(about)}</p><p><code>{html.escape(figures["command"])}</code></p>'
            + table(figures) + by_traffic(figures, colours) + curves(figures, colours) + timelines(figures, colours) + "</body></html>\n")


def write(path, figures):
    with open(path, "w", encoding="utf-8") as f:
        f.write(page(figures))

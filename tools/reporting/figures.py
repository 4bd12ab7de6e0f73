"""The pictures of docs/figures that are drawn from recorded results."""
from . import records
from .chart import Axis, Chart, Series, svg

KIB = 1024
CONTEXTS = [(n * KIB, f"{n}K") for n in (2, 8, 32, 128)]


def context_record():
    """Names of the records of decode time against context length, and their cases as one record."""
    try:
        return ["m8-context-h200"], records.load("m8-context-h200")
    except records.Missing:
        names = ["m6-h200", "m6-recall-h200"]
        return names, {"cases": [c for n in names for c in records.load(n)["cases"]]}


def number(value):
    """Three digits: 4.76, 87.7, 339."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def offloaded():
    """transformers' cache in host memory: [(depth, ms)]. Errors: Missing."""
    case = records.load("m8-transformers-offloaded-h200")["cases"][0]
    return sorted((int(d), ms) for d, ms in case["decode_ms"].items())


def optional(read, *arguments):
    try:
        return read(*arguments)
    except records.Missing:
        return []


def decode_context():
    """Decode time against context length."""
    _, record = context_record()
    full = records.by_depth(record, "full", "device")
    linked = records.by_depth(record, "full", "host")
    window = records.by_depth(record, "window", "host")
    freekv = records.by_depth(record, "freekv", "host", 0)
    corrected = optional(records.by_depth, record, "freekv", "host", 0.2)
    corrected = [p for p in corrected if p[0] in dict(freekv)]
    theirs = optional(offloaded)
    last = freekv[-1][1]
    upper = corrected[-1][1] if corrected else last
    series = [Series(f"full, host {linked[-1][1]:.0f}", linked, "orange"),
              Series(f"full, GPU {full[-1][1]:.1f}", full, "green"),
              Series(f"FreeKV, host {last:.1f}\N{EN DASH}{upper:.1f}", freekv, "blue", bold=True,
                     band=corrected if len(corrected) == len(freekv) else []),
              Series(f"2K window, host {window[-1][1]:.1f}", window, "grey")]
    if theirs:
        series.insert(0, Series(f"transformers, host {theirs[-1][1]:.0f}", theirs, "purple"))
    said = "; ".join(f"{s.label} at {s.points[-1][0]:,} tokens" for s in series)
    return svg(Chart(
        title="Milliseconds per token (log scale)", x_title="tokens of context",
        description="Decode time against context length on one H200, Llama 3.1 8B shape, bf16, one sequence. `host` "
                    "and `GPU` say where the KV cache is; the band of FreeKV runs from no corrected KV head to 20 %. "
                    + said + ".",
        x=Axis(2 * KIB, 128 * KIB, CONTEXTS, log=True),
        y=Axis(2.4, 700, [(v, str(v)) for v in (3, 10, 30, 100, 300)], log=True), series=series))


PLANNED = [(1, "grey"), (2, "orange"), (4, "purple"), (8, "blue"), (64, "green")]
PLANNED_CONTEXTS = [(n * KIB, f"{n}K") for n in (8, 32, 128, 512)] + [(2048 * KIB, "2M")]


def planned(title, unit, value, ticks):
    """A value of `mneme plan --sweep` against the context, for numbers of GPUs."""
    rows = records.load("m14-plan")["rows"]
    series = []
    for gpus, colour in PLANNED:
        points = sorted((r["context"], value(r)) for r in rows if r["gpus"] == gpus)
        series.append(Series(f"{gpus} GPU{'s' if gpus > 1 else ''} {number(points[-1][1])}", points, colour,
                             bold=gpus == 8))
    said = "; ".join(f"{s.label} at {s.points[-1][0]:,} tokens" for s in series)
    return svg(Chart(
        title=f"{title} (log scale)", x_title="tokens of context",
        description=f"{unit} against context length on 1 to 64 H200s as mneme plan computes it, Llama 3.1 70B shape, bf16, "
                    f"FreeKV, as many sequences as fit up to 256. {said}.",
        x=Axis(8 * KIB, 4096 * KIB, PLANNED_CONTEXTS, log=True),
        y=Axis(ticks[0], ticks[-1], [(v, f"{v:,}") for v in ticks], log=True), series=series))


def plan_throughput():
    """Planned tokens a second against context length."""
    return planned("Tokens per second, all sequences: computed", "Decode throughput", lambda r: r["tokens_per_second"],
                   (20, 100, 500, 2000, 12000))


def plan_cost():
    """Planned cost of a token against context length."""
    return planned("GPU milliseconds per token: computed", "GPU time of a decoded token",
                   lambda r: 1e3 * r["gpus"] / r["tokens_per_second"], (1, 5, 20, 100, 200))


BY_BYTES = [("mneme", "mneme", "blue"), ("fier", "FIER", "orange"), ("quest:unit=page:32", "Quest", "purple"),
            ("freekv", "FreeKV", "grey")]


def answers_by_bytes(length):
    """Right answers about a register against what a step reads, of the shipped model."""
    def draw():
        points, spans, full = {}, {}, None
        for cell in records.measured_again("m11-methods-needle", "m12-mneme-needle"):
            if cell["column"] == "register" and cell["length"] == length:
                method = cell["method"].rpartition(" b")[0]
                percent, half = cell["score_percent"], cell["half_width_95"]
                points.setdefault(method, []).append((cell["kib_per_step"], percent))
                spans.setdefault(method, []).append((max(0, percent - half), min(100, percent + half)))
                full = cell if cell["method"] == "full" else full
        low = min(x for m, *_ in BY_BYTES for x, _ in points[m])
        high = max(x for m, *_ in BY_BYTES for x, _ in points[m])
        share = full["score_percent"]
        series = [Series(f"full {share:.0f} %", [(low, share), (high, share)], "green", dash=True)]
        for method, label, colour in BY_BYTES:
            series.append(Series(f"{label} {points[method][-1][1]:.0f} %", points[method], colour, bold=method == "mneme",
                                 spans=spans[method]))
        return svg(Chart(
            title=f"Right answers, %: a register of {length:,} tokens", x_title=f"KiB that a step reads, of {full['kib_per_step']:,.0f} (log scale)",
            description=f"Right answers of the shipped 27 M model about a register of {length:,} tokens against what a step "
                        "reads of keys, values and index, by budgets of 256 to 4,096, with 95 % intervals. "
                        + "; ".join(f"{s.label} at {s.points[-1][0]:,.0f} KiB" for s in series) + ".",
            x=Axis(low, high, [(n * KIB, f"{n}K") for n in (3, 5, 10, 20) if low <= n * KIB <= high], log=True),
            y=Axis(0, 100, [(v, str(v)) for v in (0, 25, 50, 75, 100)]), series=series))
    draw.__doc__ = answers_by_bytes.__doc__
    return draw


PAPER = ("<style>svg{fill:#1f2328}.paper{fill:#fff}@media(prefers-color-scheme:dark){svg{fill:#e6edf3}.paper{fill:#0d1117}}"
         '</style>\n<rect class="paper" width="100%" height="100%"/>\n')
PHASES = ["#1b6ca8", "#c8553d", "#3c8d40", "#8e5ea2", "#b8860b", "#59636e", "#d1478c"]


def latency():
    """A decode step by phase, a bar a method."""
    results = records.load("m12-latency")["cases"][0]["results"]
    names = list(results[0]["phase_seconds"])
    longest = max(sum(r["phase_seconds"].values()) for r in results)
    out = ['<text x="12" y="30" font-weight="600">A decode step at 131,072 tokens in host memory, by phase, ms</text>']
    for i, name in enumerate(names):
        x, y = 12 + 200 * (i % 4), 58 + 24 * (i // 4)
        out.append(f'<rect x="{x}" y="{y - 12}" width="14" height="14" fill="{PHASES[i]}"/><text x="{x + 20}" y="{y}">{name}</text>')
    for row, r in enumerate(results):
        y, x = 112 + 36 * row, 240.0
        out.append(f'<text x="228" y="{y + 18}" text-anchor="end">{r["method"]}</text>')
        for i, name in enumerate(names):
            width = 500 * r["phase_seconds"][name] / longest
            out.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="24" fill="{PHASES[i]}"/>')
            x += width
        out.append(f'<text x="{x + 8:.1f}" y="{y + 18}">{1e3 * sum(r["phase_seconds"].values()):.1f}</text>')
    height = 124 + 36 * len(results)
    said = "; ".join(f"{r['method']} {1e3 * sum(r['phase_seconds'].values()):.1f} ms" for r in results)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 820 {height}" width="820" height="{height}" role="img" '
            'aria-labelledby="t d" font-family="system-ui,sans-serif" font-size="16">\n'
            f'<title id="t">A decode step by phase</title>\n<desc id="d">{said}</desc>\n'
            + PAPER + "\n".join(out) + "\n</svg>\n")


FIGURES = {"decode-context.svg": decode_context, "latency.svg": latency, "plan-throughput.svg": plan_throughput,
           "plan-cost.svg": plan_cost, **{f"answers-{n}.svg": answers_by_bytes(n) for n in (12288, 31744)}}

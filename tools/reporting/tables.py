"""What stands between `<!-- report: NAME -->` and `<!-- /report -->` in the pages."""
import os

from . import figures, records
from .eval_tables import EVAL_TABLES
from .markdown import link, sources, table, wrapped
from .records import Missing

DEEP = 128 * 1024


def headline(page):
    """The step over 131,072 tokens in host memory, beside a window of the same run."""
    names, record = figures.context_record()
    run = records.one_run(record, "host", DEEP, "window", "freekv")
    window, step = run[("window", None, None)], run[("freekv", 0.2, 0.0)]
    text = (f"On one H200 a decode step of an 8B model over 131,072 tokens whose KV cache lies in host memory takes "
            f"**{step:.1f} ms** with FreeKV: **{step / window:.2f} times** a window of 2,048 tokens ({window:.1f} ms)")
    if ("freekv", 0.2, 0.2) in run:
        text += f", {run[('freekv', 0.2, 0.2)] / window:.2f} times where a fifth of the KV heads is corrected"
    linked = records.at(records.by_depth(record, "full", "host"), DEEP)
    text += f". Full attention over that cache takes {linked:.0f} ms"
    theirs = figures.optional(figures.offloaded)
    if theirs:
        text += f", transformers' offloaded cache {records.at(theirs, DEEP):.0f} ms"
        names = names + ["m8-transformers-offloaded-h200"]
    text += (". (Llama 3.1 8B shape, bf16, random weights; the turnover of 20 % is injected: "
             f"{sources(page, names)}.)")
    return wrapped(text)


ALT = {
    "decode-context.svg": "Decode time against context length: full attention, FreeKV from host memory, a window",
    "throughput.svg": "Throughput against context length: as many sequences as fit, full attention and FreeKV",
    "accuracy.svg": "Right answers against the budget: full attention, FreeKV, Quest, FIER, a window",
    "page.png": "The web page: a conversation over a document, and what the answer's steps read of it",
}


def available(name):
    """Whether a picture can be drawn, or is a screenshot, which is not."""
    if name not in figures.FIGURES:
        return (records.ROOT / "docs" / "figures" / name).exists()
    try:
        figures.FIGURES[name]()
    except Missing:
        return False
    return True


def pictures(page):
    """The pictures of the README, two in a row, and where they come from."""
    lines = ["<p>"]
    for name, alt in ALT.items():
        if available(name):
            source = os.path.relpath(f"docs/figures/{name}", os.path.dirname(page) or ".")
            lines += [f'<img src="{source}" width="49%"', f'  alt="{alt}">']
    names = list(figures.context_record()[0])
    names += [n for n in ("m13-throughput-h200", "m8-accuracy-h200") if (records.RESULTS / f"{n}.json").exists()]
    text = ("Speed: one H200, Llama 3.1 8B shape, bf16, random weights, budget 2,048, KV cache on GPU or host; FreeKV's two "
            "times: nothing and 20 % of the heads corrected. Throughput: what 80 GB hold, or a million tokens. ")
    if "accuracy.svg" in "".join(lines):
        text += "Accuracy: the shipped model, 12,288 tokens. "
    text += f"`tools/report` draws from {sources(page, names)}."
    return "\n".join(lines + ["</p>", "", wrapped(text)])


def context_table(page):
    """Decode time against context length."""
    names, record = figures.context_record()
    lines = [("full, KV cache on the GPU", "full", "device", None), ("full, from host memory", "full", "host", None),
             ("window of 2,048, from host memory", "window", "host", None),
             ("freekv, from host memory, nothing corrected", "freekv", "host", 0),
             ("freekv, from host memory, 20 % of KV heads corrected", "freekv", "host", 0.2)]
    series = [(label, dict(figures.optional(records.by_depth, record, m, s, c))) for label, m, s, c in lines]
    theirs = dict(figures.optional(figures.offloaded))
    if theirs:
        names = names + ["m8-transformers-offloaded-h200"]
        series.append(("transformers, offloaded cache", theirs))
    depths = sorted({d for _, points in series for d in points})
    rows = [[label] + [figures.number(points[d]) if d in points else "" for d in depths] for label, points in series]
    return table(["ms a token at"] + [f"{d:,}" for d in depths], rows) + "\n\n" + wrapped(
        f"One H200: {sources(page, names)}.")


def throughput_table(page):
    """Throughput against the number of sequences of 32,768 tokens."""
    record = records.load("m8-batch-h200")
    lines = [("full, KV cache on the GPU", "full", "device", None),
             ("freekv, KV cache on the GPU", "freekv", "device", 0.13),
             ("freekv, from host memory", "freekv", "host", 0.13)]
    series = [(label, dict(records.by_batch(record, m, s, 32 * 1024, c))) for label, m, s, c in lines]
    counts = sorted({n for _, points in series for n in points})
    rows = [[label] + [f"{points[n]:,.0f}" if n in points else "" for n in counts] for label, points in series]
    return table(["tokens/s of all sequences"] + [str(n) for n in counts], rows) + (
        f"\n\nOne H200, 32,768 tokens each: {sources(page, ['m8-batch-h200'])}.")


def accuracy_table(page):
    """Right answers against the budget."""
    points = figures.accuracy_points(records.load("m8-accuracy-h200"))
    budgets = [b for b, *_ in points["freekv"]]
    rows = []
    for method, line in points.items():
        if method == "full":
            rows.insert(0, ["`full`"] + [f"{line[0][2]} of {line[0][3]}"] * len(budgets))
        else:
            rows.append([f"`{method}`"] + [f"{right} of {answers}" for _, _, right, answers in line])
    return table(["right answers, budget"] + [f"{b:,}" for b in budgets], rows) + (
        f"\n\nThe shipped model, 12,288 tokens: {sources(page, ['m8-accuracy-h200'])}.")


# Methods beside a window of the same run: (method, record, depth); m8-methods-h200 replaces those of the older records.
BESIDE_WINDOW = [("freekv", "m6-recall-h200", DEEP), ("freekv:gate=mass", "m6-recall-h200", DEEP),
                 ("quest:unit=page:32", "m6-recall-h200", DEEP),
                 ("freekv:unit=token/index=one_bit", "m6-fier-h200", DEEP), ("fier", "m6-fier-h200", 32 * 1024),
                 ("louiskv", "m6-louis-h200", 32 * 1024)]


def methods_table(page):
    """A decode step from host memory by method, beside a window of the same run."""
    newer = figures.optional(records.load, "m8-methods-h200")
    rows = []
    for method, name, depth in BESIDE_WINDOW:
        run = figures.optional(records.one_run, newer, "host", DEEP, "window", method) if newer else {}
        if run:
            name, depth = "m8-methods-h200", DEEP
        else:
            run = records.one_run(records.load(name), "host", depth, "window", method)
        window = run[("window", None, None)]
        for (found, turnover, correction), ms in run.items():
            if found == method:
                shares = [f"{100 * s:.0f} %" if s is not None else "" for s in (turnover, correction)]
                rows.append([f"`{method}`", f"{depth:,}", *shares, figures.number(ms), f"{ms / window:.2f}",
                             link(page, f"bench/results/{name}.json", name)])
    return table(["method", "tokens", "turnover", "corrected", "ms a token", "times `window`", "record"], rows)


def recipes_table(page):
    """A decode step over 131,072 tokens in host memory by method, with the same sinks, window and dense layer."""
    name = "m9-recipes-h200"
    rows = []
    for case, form in ((1, ""), (3, ", unfused")):
        results = records.load(name)["cases"][case]["results"]
        window = records.load(name)["cases"][1]["results"][0]["step_seconds"]["median"]
        for r in results:
            seconds = r["step_seconds"]["median"]
            corrected = f"{100 * r['correction']:.0f} %" if r.get("correction") is not None else ""
            rows.append([f"`{r['method']}`{form}", corrected, figures.number(1e3 * seconds), f"{seconds / window:.2f}"])
    note = ("A step at 131,072 tokens in host memory, budget 2,048 with 512 sinks and 512 recent tokens, 20 % of a "
            f"selection replaced: {sources(page, [name])}.")
    return table(["method", "corrected", "ms a token", "times `window`"], rows) + "\n\n" + wrapped(note)


def latency_table(page):
    """A decode step by phase."""
    name, parts = "m12-latency", []
    for case in records.load(name)["cases"]:
        phases = list(case["results"][0]["phase_seconds"])
        rows = []
        for r in case["results"]:
            seconds = r["phase_seconds"]
            rows.append([f"`{r['method']}`"] + [f"{1e3 * seconds[p]:.2f}" for p in phases]
                        + [f"{1e3 * sum(seconds.values()):.2f}"])
        where = "host memory" if case["kv_store"] == "host" else "device memory"
        parts.append(f"{case['results'][0]['depth']:,} tokens in {where}, ms:\n\n"
                     + table(["method"] + phases + ["sum"], rows))
    card = records.load(name)["device"]["name"]
    note = f"Llama 3.1 8B shape, bf16, random weights, {card}: {sources(page, [name])}. {records.load(name)['note']}."
    return "\n\n".join(parts) + "\n\n" + wrapped(note)


TABLES = {"headline": headline, "pictures": pictures, "context": context_table, "throughput": throughput_table,
          "accuracy": accuracy_table, "methods": methods_table, "latency": latency_table, "m9-recipes": recipes_table,
          **EVAL_TABLES}

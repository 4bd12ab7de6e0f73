"""The text between `<!-- report: NAME -->` and `<!-- /report -->` in the pages."""
import os

from . import figures, records
from .eval_tables import EVAL_TABLES, suite_cells
from .markdown import link, sources, table, wrapped
from .records import Missing

DEEP = 128 * 1024


def tens(value):
    """To the nearest ten: 70.6 is 70."""
    return f"{10 * round(value / 10):,}"


def headline(page):
    """How much faster a step over 131,072 tokens in host memory is, which answers are kept, and the conditions."""
    _, record = figures.context_record()
    run = records.one_run(record, "host", DEEP, "window", "freekv")
    step, corrected = run[("freekv", 0.2, 0.0)], run.get(("freekv", 0.2, 0.2))
    linked = records.at(records.by_depth(record, "full", "host"), DEEP)
    theirs = figures.optional(figures.offloaded)
    slower = [linked] + ([records.at(theirs, DEEP)] if theirs else [])
    whose = ["full attention", "transformers' offloaded cache"]
    faster = " and ".join(f"about {tens(ms / step)} times faster than {name}" for ms, name in zip(slower, whose))
    taken = " and ".join(f"{ms:.0f}" for ms in slower)
    kept, rows, flagged = answers_kept(linked)
    speed = (f"**Over a KV cache of 131,072 tokens in host memory, decoding is {faster}**: {step:.1f} ms per token with "
             f"`freekv` instead of {taken} ms (8B model, one H200). {kept}")
    less = " and ".join(f"{ms / corrected:.0f}" for ms in slower) if corrected else ""
    return "\n\n".join([wrapped(speed), rows, wrapped(conditions(page, less, flagged, bool(theirs)))])


def conditions(page, less, flagged, theirs):
    """What the figures of the headline hold for, and their records."""
    def term(word):
        return link(page, "docs/glossary.md", word)
    text = (f"Speed: Llama 3.1 8B's shape, bf16, random weights, one sequence, {term('budget')} 2,048 (512 sinks, 512 "
            f"recent tokens), 20 % {term('turnover')} injected, no {term('correction')}. ")
    if less:
        text += f"With 20 % of the KV heads corrected, FreeKV is {less} times faster. "
    text += (f"Answers: the shipped model (27 M parameters), 200 questions per cell, 32 sinks, 128 recent; FreeKV "
             f"corrected {100 * flagged:.0f} % of its KV heads there. Records: ")
    named = {"m8-context-h200": "speed", "m8-transformers-offloaded-h200": "transformers", "m9-rows-h200": "`mneme`",
             "m11-methods-needle": "answers", "m12-mneme-needle": "more"}
    return text + ", ".join(link(page, f"bench/results/{name}.json", what) for name, what in named.items()
                            if theirs or what != "transformers") + "."


KEPT = [("full", "`full` attention"), ("mneme b2048", "`mneme`"), ("freekv b2048", "`freekv`")]


def answers_kept(linked):
    """A sentence on what methods keep of the answers, a table of it, and the share of KV heads that FreeKV corrected."""
    methods, columns = suite_cells({"cells": [c for c in records.measured_again("m11-methods-needle", "m12-mneme-needle")
                                              if c["length"] == 12288]})
    run = records.one_run(records.load("m9-rows-h200"), "host", DEEP, "window", "freekv", "mneme")
    ms = {"full": linked, "mneme b2048": run[("mneme", 0.2, 0.0)], "freekv b2048": run[("freekv", 0.2, 0.0)]}
    tasks = sorted(columns, key=["number", "where", "register"].index)

    def mean(method, field):
        return sum(methods[method][t][field] for t in tasks) / len(tasks)
    rows = [[name] + [f"{methods[method][t]['score_percent']:.1f} %" for t in tasks]
            + [f"{mean(method, 'kib_per_step') / 1024:.1f} MiB", number_of_ms(ms[method])] for method, name in KEPT]
    head = ["right answers, 12,288 tokens, budget 2,048", "a number", "a place", "register", "read per step",
            "ms per token at 131,072"]
    lost = max(-methods["mneme b2048"][t]["against_full"]["points"] for t in tasks)
    share = methods["freekv b2048"]["register"]["score_percent"] / methods["full"]["register"]["score_percent"]
    text = (f"`mneme` takes {number_of_ms(ms['mneme b2048'])} ms and stays within {lost:.1f} points of full attention on "
            f"every task; FreeKV keeps only {100 * share:.0f} % of the answers about a *register* (hundreds of similar lines).")
    return text, table(head, rows), mean("freekv b2048", "correction_rate")


def number_of_ms(value):
    return f"{value:.0f}" if value > 100 else f"{value:.1f}"


ALT = {
    "decode-context.svg": "Decode time against context length",
    "answers-12288.svg": "Right answers against bytes read per step",
}


def available(name):
    """Whether a picture can be drawn."""
    try:
        figures.FIGURES[name]()
    except Missing:
        return False
    return True


def pictures(page):
    """The pictures of the README in a row, and where they come from."""
    lines = []
    for name, alt in ALT.items():
        if available(name):
            source = os.path.relpath(f"docs/figures/{name}", os.path.dirname(page) or ".")
            lines.append(f'<img src="{source}" width="49%" alt="{alt}">')
    text = ("Left: decode time, with the KV cache on the GPU or in host memory. Right: right answers about the register against the "
            "bytes read per step, for budgets of 256 to 4,096, with 95 % intervals.")
    return "\n".join(["<p>", *lines, "</p>", "", wrapped(text)])


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
    return table(["ms per token at"] + [f"{d:,}" for d in depths], rows) + "\n\n" + wrapped(
        f"One H200: {sources(page, names)}.")


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
            of_tokens = name == "m6-fier-h200"  # of single tokens the table has the lower turnover
            if found == method and not (of_tokens and turnover == 0.2):
                shares = [f"{100 * s:.0f} %" if s is not None else "" for s in (turnover, correction)]
                rows.append([f"`{method}`", f"{depth:,}", *shares, figures.number(ms), f"{ms / window:.2f}",
                             link(page, f"bench/results/{name}.json", name)])
    return table(["method", "tokens", "turnover", "corrected", "ms per token", "times `window`", "record"], rows)


TABLES = {"headline": headline, "pictures": pictures, "context": context_table, "methods": methods_table,
          **EVAL_TABLES}

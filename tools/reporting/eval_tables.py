"""Tables of `mneme eval`: answers of suites, papers' rows, long answers, indexes and gates."""
import re

from . import records
from .markdown import sources, table, wrapped


def suite_cells(case):
    """{method: {column: cell}} of a case of `mneme eval --suite`, and its columns in order."""
    methods, columns = {}, []
    for cell in case["cells"]:
        if cell["column"] not in columns:
            columns.append(cell["column"])
        methods.setdefault(cell["method"], {})[cell["column"]] = cell
    return methods, columns


def score(cell):
    return f"{cell['score_percent']:.1f} ±{cell['half_width_95']:.0f}"


def suite_rows(*cases):
    """Head and rows of cases of the same methods: methods, their tasks, and the mean KiB that a step of each case reads."""
    head, rows = ["method"], {}
    for case in cases:
        methods, columns = suite_cells(case)
        first = next(iter(methods.values()))
        head += [f"{c} (n={first[c]['questions']})" for c in columns] + ["KiB/step"]
        for method, cells in methods.items():
            kib = sum(cells[c]["kib_per_step"] for c in columns) / len(columns)
            rows.setdefault(method, [method]).extend([score(cells[c]) for c in columns] + [f"{kib:,.0f}"])
    return head, list(rows.values())


def transposed(head, rows):
    """Rows as columns: a row a task."""
    names = [row[0] for row in rows]
    return ["task"] + names, [[head[i]] + [row[i] for row in rows] for i in range(1, len(head))]


def commit_of(record):
    return ", ".join(record["commit"])


def paper_table(paper):
    """The rows of a paper's page, of both models."""
    def draw(page):
        """The rows of a paper's page, of both models."""
        names = ["m12-papers-needle", "m12-papers-smollm2"]
        cases = [c for name in names for c in records.load(name)["cases"]
                 if f"--paper {paper} " in records.command_of(c) + " "]
        head, rows = suite_rows(*cases)
        if paper == "refreekv":
            head, rows = transposed(head, rows)
        note = ("The shipped model on facts in 4,096 tokens (number to chain), SmolLM2-135M-Instruct on a needle in 2,048 "
                f"tokens, alone and beside six like it; budget 512, percent with 95 % intervals: {sources(page, names)}.")
        return table(head, rows) + "\n\n" + wrapped(note)
    return draw


SHOWN_BUDGETS = (512, 2048)


def is_shown(method):
    """Whether a table has a method's row: those without a budget and of two budgets; records have all of them."""
    name, _, budget = method.rpartition(" b")
    return not name or int(budget) in SHOWN_BUDGETS


def without_budget(method):
    return method.rpartition(" b")[0] or method


def suite_of(case):
    return re.search(r"--suite (\S+)", records.command_of(case)).group(1)


def shown(cell):
    """A score with its interval, or a perplexity."""
    return score(cell) if "score_percent" in cell else f"{cell['perplexity']:.2f}"


def smollm2_suites_table(page):
    """Every suite that fits the context of SmolLM2: full attention and six methods."""
    name, rows, means, unsolved = "m12-smollm2-suites", [], {}, []
    for case in records.load(name)["cases"]:
        methods, columns = suite_cells(case)
        methods = {m: c for m, c in methods.items() if without_budget(m) not in ("window", "louiskv")}
        names = [without_budget(m) for m in methods]
        suite = suite_of(case)
        foreseen = {(p["method"], p["task"]): sum(p["percent_by_eighth"]) / 8 for p in case.get("lines", [])}
        for column in columns:
            cells = {m: c[column] for m, c in methods.items()}
            if not foreseen and all(c.get("score_percent") == 0 for c in cells.values()):
                unsolved.append(column)
                continue
            title = column if suite in ("passkey", "pg19") else f"{suite}: {column}"
            first = cells["full"]
            title += ", perplexity" if suite == "pg19" else f" (n={first['questions']})"
            rows.append([title] + [f"{foreseen[m, column]:.1f}" if foreseen else shown(c) for m, c in cells.items()])
        if suite == "ruler":
            for field in ("score_percent", "kib_per_step"):
                means[field] = [sum(c[field] for c in m.values()) / len(m) for m in methods.values()]
            rows.append(["ruler, mean of 13"] + [f"{m:.1f}" for m in means["score_percent"]])
            rows.append(["ruler, KiB a step"] + [f"{m:,.0f}" for m in means["kib_per_step"]])
    note = (f"{records.load(name)['what']}: {sources(page, [name])}, commit {commit_of(records.load(name))[:12]}. No method, "
            f"full attention neither, has a right answer to {', '.join(unsolved)}.")
    return table(["task"] + names, rows) + "\n\n" + wrapped(note)


def selector_needle_table(page):
    """Right answers by index and gate, with the paired difference to full attention."""
    rows, columns, cells = [], [], {}
    for case in records.load("m11-selector-needle")["cases"]:
        for c in case["cells"]:
            budget = c["method"].rpartition(" b")[2] if " b" in c["method"] else None
            method = c["method"].rpartition(" b")[0] or c["method"]
            column = (c["task"], c["length"], budget)
            cells[method, column] = c
            if budget and column not in columns:
                columns.append(column)
    for method in dict.fromkeys(m for m, _ in cells if "domain" not in m):
        row = [f"`{method}`"]
        for column in columns:
            c = cells.get((method, column)) or cells.get((method, (*column[:2], None)))
            if c is None:
                row.append("-")
                continue
            d = c["against_full"]
            percent = f"{100 * c['right'] / c['answers']:.1f}"
            row.append(percent if method == "full" else f"{percent} ({d['points']:+.1f} ± {d['half_width_95']:.1f})")
        sizes = [c["kib_per_step"] for (m, column), c in cells.items() if m == method and column[1] == 4096]
        row.append(f"{sum(sizes) / len(sizes):,.0f}" if sizes else "-")
        rows.append(row)
    head = ["method"] + [f"{task}, {length:,}, {int(b):,}" for task, length, b in columns] + ["KiB a step at 4,096"]
    note = ("Right answers in percent (paired difference to full attention in points, 95 %) by task, length and budget, 200 "
            f"questions a cell, 40 at 12,288; the shipped model: {sources(page, ['m11-selector-needle'])}.")
    return table(head, rows) + "\n\n" + wrapped(note)




def long_table(page):
    """Long answers: exact lines, and tokens of lines that were foreseen, at their begin and at their end."""
    name, length = "m12-long-gpu", 12288
    scores, shares = {}, {}
    for case in records.load(name)["cases"]:
        scores.update({(c["method"], c["column"]): c for c in case["cells"] if c["length"] == length})
        shares.update({(p["method"], p["task"]): p["percent_by_eighth"] for p in case["lines"] if p["length"] == length})
    rows = []
    for method in filter(is_shown, dict.fromkeys(m for m, _ in scores)):
        row = [f"`{method}`", f"{scores[method, 'trace']['score_percent']:.1f}"]
        for task in ("trace", "register"):
            eighths = shares[method, task]
            row.append(f"{sum(eighths) / 8:.0f} ({eighths[0]:.0f} to {eighths[-1]:.0f})")
        rows.append(row + [f"{scores[method, 'trace']['kib_per_step']:,.0f}"])
    n = scores["full", "trace"]["questions"]
    head = [f"{length:,} tokens, n = {n}", "trace: exact lines, %", "trace: tokens foreseen, %",
            "register: tokens foreseen, %", "KiB a step"]
    note = ("In brackets the first and the last eighth of an answer of 4,096 tokens. No line of the register is foreseen "
            f"whole, by full attention neither. The record has 27,648 tokens too: {sources(page, [name])}.")
    return table(head, rows) + "\n\n" + wrapped(note)


def with_difference(cell):
    """Score and paired difference to full attention."""
    d = cell["against_full"]
    return f"{cell['score_percent']:.1f} ({d['points']:+.1f} ± {d['half_width_95']:.1f})"


def answers_table(length):
    """Every method on three tasks at a length, by budget, with what a step reads."""
    def draw(page):
        """Every method on three tasks at a length, by budget, with what a step reads."""
        names = ["m11-methods-needle", "m12-mneme-needle"]
        methods, columns = suite_cells({"cells": [c for c in records.measured_again(*names) if c["length"] == length]})
        rows = [[f"`{method}`"] + [f"{cells[c]['score_percent']:.1f}" if method == "full" else with_difference(cells[c])
                                   for c in columns]
                + [f"{sum(cells[c]['kib_per_step'] for c in columns) / len(columns):,.0f}"]
                for method, cells in methods.items() if is_shown(method)]
        first = next(iter(methods.values()))
        head = ["method"] + [f"{c}, {first[c]['questions']} answers" for c in columns] + ["KiB a step"]
        note = (f"Right answers in percent (paired difference to full attention in points, 95 %), {length:,} tokens: "
                f"{sources(page, names[:1])}; `mneme`: {sources(page, names[1:])}. Where fewer than 200 are named, some "
                "methods have up to 10 more or less.")
        return table(head, rows) + "\n\n" + wrapped(note)
    return draw


def long_turns_table(page):
    """Conversations over a document, a turn a question."""
    names, rows = ["m12-long-turns", "m12-mneme-turns"], {}
    methods, columns = suite_cells({"cells": records.measured_again(*names)})
    for method, cells in methods.items():
        if not is_shown(method):
            continue
        kib = sum(cells[c]["kib_per_step"] for c in columns) / len(columns)
        scores = [f"{cells[c]['score_percent']:.1f}" if method == "full" else with_difference(cells[c]) for c in columns]
        rows[method] = [f"`{method}`"] + scores + [f"{kib:,.0f}"]
    head = ["method"] + [f"{c}, {methods['full'][c]['questions']} turns" for c in columns] + ["KiB a step"]
    note = ("Turns whose answer was foreseen token for token, in percent (paired difference to full attention, 95 %): "
            f"{sources(page, names[:1])}; `mneme` on a GPU: {sources(page, names[1:])}.")
    return table(head, list(rows.values())) + "\n\n" + wrapped(note)


def smollm2_fact_table(page):
    """One fact in prose, alone and beside six like it, by length."""
    name, columns, rows = "m12-smollm2-fact", [], {}
    for case in records.load(name)["cases"]:
        for cell in case["cells"]:
            column = (cell["column"], cell["length"])
            if column not in columns:
                columns.append(column)
            rows.setdefault(cell["method"], {})[column] = cell
    columns.sort(key=lambda c: (c[0] != "niah", c[1]))
    titles = [f"{'alone' if c == 'niah' else 'six look-alikes'}, {n:,}" for c, n in columns]
    body = [[f"`{m}`"] + [f"{cells[c]['score_percent']:.1f}" if m == "full" else with_difference(cells[c]) for c in columns
                          if c in cells] for m, cells in rows.items()]
    n = next(iter(rows["full"].values()))["questions"]
    note = (f"A needle at 10 depths, {n} questions a cell, budget 512, the question through decode, in percent (paired "
            f"difference to full attention, 95 %), SmolLM2-135M-Instruct: {sources(page, [name])}.")
    return table(["method"] + titles, body) + "\n\n" + wrapped(note)


SHOWN_INDEXES = re.compile(r"exact|box|moments|1-bit|centroids:(8|16),|sketch:16,")


def keys_table(page):
    """What indexes find among random keys."""
    name = "m11-key-statistics"
    found = [r for r in records.load(name)["cases"][0]["data"] if r["head_dim"] == 128]
    cases = list(dict.fromkeys((r["head_dim"], r["statistics"]) for r in found))
    rows = []
    for index in filter(SHOWN_INDEXES.search, dict.fromkeys(r["index"] for r in found)):
        cells = {(r["head_dim"], r["statistics"]): r for r in found if r["index"] == index}
        bytes_of = [f"{next(r['bytes'] for (d, _), r in cells.items() if d == dim):.0f}" for dim in dict.fromkeys(d for d, _ in cases)]
        rows.append([f"`{index}`" if ":" in index else index, ", ".join(bytes_of)]
                    + [f"{100 * cells[c]['top_tokens']:.1f} ± {100 * cells[c]['half_width_95']:.1f}"
                       + (f"; {100 * cells[c]['top_pages']:.0f}" if "top_pages" in cells[c] else "") for c in cases])
    head = ["index", "bytes of 32 tokens"] + [f"D = {d}, {s}" for d, s in cases]
    note = ("Of the 64 tokens with the largest exact scores the share among 256 selected ones, in percent (95 %); behind the "
            "semicolon, of the eight pages with the largest log-sum-exp the share that is selected. 4,096 tokens, 8 "
            f"queries, 4 heads; the record has D = 64 too: {sources(page, [name])}.")
    return table(head, rows) + "\n\n" + wrapped(note)


PAPERS = ("freekv", "louiskv", "fier", "actqkv", "refreekv")
EVAL_TABLES = {
    "smollm2-suites": smollm2_suites_table, "smollm2-fact": smollm2_fact_table,
    "selector-needle": selector_needle_table, "key-statistics": keys_table,
    "long-answers": long_table, "long-turns": long_turns_table,
    "answers-12288": answers_table(12288), **{f"paper-{p}": paper_table(p) for p in PAPERS}}

"""Tables of `mneme eval`: answers of suites, papers' rows, long answers, indexes and gates."""
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


def suite_rows(case):
    """Head and rows of a case: methods, tasks, their mean, and the mean KiB that a step reads."""
    methods, columns = suite_cells(case)
    first = next(iter(methods.values()))
    rows = []
    for method, cells in methods.items():
        mean = sum(cells[c]["score_percent"] for c in columns) / len(columns)
        kib = sum(cells[c]["kib_per_step"] for c in columns) / len(columns)
        rows.append([method] + [score(cells[c]) for c in columns] + [f"{mean:.1f}", f"{kib:,.0f}"])
    return ["method"] + [f"{c} (n={first[c]['questions']})" for c in columns] + ["Avg.", "KiB/step"], rows


def transposed(head, rows):
    """Rows as columns: a row a task."""
    names = [row[0] for row in rows]
    return ["task"] + names, [[head[i]] + [row[i] for row in rows] for i in range(1, len(head))]


def commit_of(record):
    return ", ".join(record["commit"])


def suite_note(page, name, case):
    command = records.command_of(case).replace(" --json --no-progress", "")
    return f"`{command}`: {sources(page, [name])}, commit {commit_of(records.load(name))[:12]}."


def paper_table(name, paper):
    """The rows of a paper's page."""
    def draw(page):
        record = records.load(name)
        case = next(c for c in record["cases"] if f"--paper {paper} " in records.command_of(c) + " ")
        head, rows = suite_rows(case)
        if paper == "refreekv":
            head, rows = transposed(head, rows)
        return table(head, rows) + "\n\n" + wrapped(suite_note(page, name, case))
    return draw


def smollm2_table(page):
    """Suites that the program makes, with SmolLM2."""
    record = records.load("m12-smollm2")
    parts = []
    for case in record["cases"]:
        head, rows = suite_rows(case)
        if len(head) > 8:
            head, rows = transposed(head, rows)
        parts.append(table(head, rows) + "\n\n" + wrapped(suite_note(page, "m12-smollm2", case)))
    return "\n\n".join(parts)


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
    for method in dict.fromkeys(m for m, _ in cells):
        row = [f"`{method}`"]
        for column in columns:
            c = cells.get((method, column)) or cells.get((method, (*column[:2], None)))
            if c is None:
                row.append("-")
                continue
            d = c["against_full"]
            mean = f"{c['right']} of {c['answers']}"
            row.append(mean if method == "full" else f"{mean} ({d['points']:+.1f} ± {d['half_width_95']:.1f})")
        sizes = [c["kib_per_step"] for (m, column), c in cells.items() if m == method and column[1] == 4096]
        row.append(f"{sum(sizes) / len(sizes):,.0f}" if sizes else "-")
        rows.append(row)
    head = ["method"] + [f"{task}, {length:,}, {int(b):,}" for task, length, b in columns] + ["KiB a step at 4,096"]
    note = ("Right answers (paired difference to full attention in points, 95 %) by task, length and budget; the shipped "
            f"model, the question through decode: {sources(page, ['m11-selector-needle'])}.")
    return table(head, rows) + "\n\n" + wrapped(note)


def selector_smollm2_table(page):
    """A needle, by index and gate, with SmolLM2."""
    parts = []
    for case in records.load("m11-selector-smollm2")["cases"]:
        rows = [[f"`{m['method']}`", m["score"], m["against"]] for m in selector_scores(case)]
        length = case["cells"][0]["length"]
        parts.append(table([f"needle, {length:,} tokens", "score", "against full"], rows))
    note = f"SmolLM2-135M-Instruct, 10 depths: {sources(page, ['m11-selector-smollm2'])}."
    return "\n\n".join(parts) + "\n\n" + wrapped(note)


def selector_scores(case):
    for c in case["cells"]:
        if c["column"] == "niah":
            d = c["against_full"]
            yield {"method": c["method"], "score": f"{c['score_percent']:.0f}",
                   "against": "-" if c["method"] == "full" else f"{d['points']:+.0f} ± {d['half_width_95']:.0f}"}


LONG_RECORDS = ("m12-long-4k", "m12-long-register")


def long_table(page):
    """Exact lines of long answers."""
    parts = []
    for name in LONG_RECORDS:
        for case in records.load(name)["cases"]:
            parts.append(table(*suite_rows(case)) + "\n\n" + wrapped(suite_note(page, name, case)))
    return "\n\n".join(parts)


def long_lines(page):
    """Right tokens of lines along long answers."""
    del page
    rows = [[p["task"], p["method"]] + [f"{v:.0f}" for v in p["percent_by_eighth"]]
            for name in LONG_RECORDS for case in records.load(name)["cases"] for p in case["lines"]]
    return table(["task", "method"] + [f"to {i}/8" for i in range(1, 9)], rows)


def along_row(task, method, points):
    """What a method did between the last two points of an answer."""
    end, before = points[-1], points[-2] if len(points) > 1 else dict.fromkeys(points[-1], 0)

    def share(part, *whole):
        n = sum(end[w] - before[w] for w in whole)
        return f"{100 * (end[part] - before[part]) / n:.1f}" if n else "-"
    segments = [str(end["segments"]), f"{100 * end['segments_attended'] / max(end['units_attended'], 1):.1f}"]
    return [task, method, str(end["answer_tokens"]), share("corrections", "checks"),
            share("selections", "selections", "reused"), share("replaced_units", "selected_units"),
            f"{end['kv_bytes'] / 2**20:.1f}", f"{end['method_bytes'] / 2**20:.1f}",
            *(segments if end["segments"] else ["-", "-"])]


def long_along(page):
    """What methods did by the end of long answers."""
    del page
    points = {}
    for name in LONG_RECORDS:
        for case in records.load(name)["cases"]:
            for point in case["along"]:
                points.setdefault((point["task"], point["method"]), []).append(point)
    return table(["task", "method", "answer tokens", "corrected %", "reselected %", "turnover %", "KV MiB",
                  "method MiB", "segments", "segments attended %"],
                 [along_row(*key, found) for key, found in points.items()])


def with_difference(cell):
    """Score and paired difference to full attention."""
    d = cell["against_full"]
    return f"{cell['score_percent']:.1f} ({d['points']:+.1f} ± {d['half_width_95']:.1f})"


def answers_table(length):
    """Every method on three tasks at a length, by budget, with what a step reads."""
    def draw(page):
        name = "m11-methods-needle"
        case = next(c for c in records.load(name)["cases"] if c["cells"][0]["length"] == length)
        methods, columns = suite_cells(case)
        rows = [[f"`{method}`"] + [f"{cells[c]['score_percent']:.1f}" if method == "full" else with_difference(cells[c])
                                   for c in columns]
                + [f"{sum(cells[c]['kib_per_step'] for c in columns) / len(columns):,.0f}"]
                for method, cells in methods.items()]
        first = next(iter(methods.values()))
        head = ["method"] + [f"{c}, {first[c]['questions']} answers" for c in columns] + ["KiB a step"]
        note = (f"Right answers in percent (paired difference to full attention in points, 95 %), {length:,} tokens: "
                f"{sources(page, [name])}. Where fewer than 200 are named, some methods have up to 10 less.")
        return table(head, rows) + "\n\n" + wrapped(note)
    return draw


def long_turns_table(page):
    """Conversations over a document, a turn a question."""
    name, rows = "m12-long-turns", {}
    for case in records.load(name)["cases"]:
        methods, columns = suite_cells(case)
        for method, cells in methods.items():
            kib = sum(cells[c]["kib_per_step"] for c in columns) / len(columns)
            scores = [f"{cells[c]['score_percent']:.1f}" if method == "full" else with_difference(cells[c]) for c in columns]
            rows[method] = [f"`{method}`"] + scores + [f"{kib:,.0f}"]
    head = ["method"] + [f"{c}, {methods['full'][c]['questions']} turns" for c in columns] + ["KiB a step"]
    note = ("Turns whose answer was foreseen token for token, in percent (paired difference to full attention, 95 %): "
            f"{sources(page, [name])}.")
    return table(head, list(rows.values())) + "\n\n" + wrapped(note)


def long_turns_along(page):
    """What methods did by the end of these conversations."""
    del page
    points = {}
    for case in records.load("m12-long-turns")["cases"]:
        for point in case["along"]:
            points.setdefault((point["task"], point["method"], point["context"]), []).append(point)
    rows = {(task, method): along_row(task, method, found) for (task, method, _), found in sorted(
        points.items(), key=lambda item: (item[0][0], -item[0][2]))}
    return table(["task", "method", "answer tokens", "corrected %", "reselected %", "turnover %", "KV MiB",
                  "method MiB", "segments", "segments attended %"], list(rows.values()))


def smollm2_long_table(page):
    """SmolLM2 at its longest context."""
    parts = []
    for name in ("m12-smollm2-8k", "m12-smollm2-8k-rest"):
        for case in records.load(name)["cases"]:
            parts.append(table(*transposed(*suite_rows(case))) + "\n\n" + wrapped(suite_note(page, name, case)))
    return "\n\n".join(parts)


def smollm2_fact_table(page, name="m11-smollm2-niah", questions=40):
    """One fact in prose, by length."""
    cases = [suite_cells(c)[0] for c in records.load(name)["cases"]]
    rows = [[f"`{method}`"] + [f"{c[method]['niah']['score_percent']:.1f}" if method == "full"
                               else with_difference(c[method]["niah"]) for c in cases] for method in cases[0]]
    lengths = [f"{c['full']['niah']['length']:,} tokens" for c in cases]
    note = (f"A needle at 10 depths, {questions} questions a cell, in percent (paired difference to full attention, 95 %), "
            f"SmolLM2-135M-Instruct: {sources(page, [name])}.")
    return table(["method"] + lengths, rows) + "\n\n" + wrapped(note)


def gates_table(page):
    """What kept selections hold of the attention, by gate."""
    name = "m11-gates"
    found = [r for r in records.load(name)["cases"][0]["data"] if "gate" in r]
    units = sorted({r["unit"] for r in found})
    rows = []
    shown = {"cosine": (0.5, 0.6, 0.7, 0.8), "cosine to the last selection": (0.4, 0.5, 0.6, 0.7),
             "every n-th step": (2, 4, 6, 8), "mass": (0.5, 0.8, 0.9, 0.95)}
    for gate, threshold in dict.fromkeys((r["gate"], r["threshold"]) for r in found):
        if threshold not in shown[gate]:
            continue
        row = [gate, f"{threshold:g}"]
        for unit in units:
            r = next(r for r in found if (r["gate"], r["threshold"], r["unit"]) == (gate, threshold, unit))
            row += [f"{100 * r['selected_again']:.0f} %", f"{100 * r['held']:.1f} %", f"{100 * r['held_worst_tenth']:.0f} %"]
        rows.append(row)
    head = ["gate", "threshold"]
    for unit in units:
        what = "tokens" if unit == 1 else f"pages of {unit}"
        head += [f"{what}: selected again", "held", "least tenth"]
    return table(head, rows) + "\n\n" + wrapped(f"{records.load(name)['what']}: {sources(page, [name])}.")


def keys_table(page):
    """What indexes find among random keys."""
    name = "m11-key-statistics"
    found = records.load(name)["cases"][0]["data"]
    cases = list(dict.fromkeys((r["head_dim"], r["statistics"]) for r in found))
    rows = []
    for index in dict.fromkeys(r["index"] for r in found):
        cells = {(r["head_dim"], r["statistics"]): r for r in found if r["index"] == index}
        bytes_of = [f"{next(r['bytes'] for (d, _), r in cells.items() if d == dim):.0f}" for dim in dict.fromkeys(d for d, _ in cases)]
        rows.append([f"`{index}`" if ":" in index else index, ", ".join(bytes_of)]
                    + [f"{100 * cells[c]['top_tokens']:.1f} ± {100 * cells[c]['half_width_95']:.1f}"
                       + (f"; {100 * cells[c]['top_pages']:.0f}" if cells[c]["top_pages"] is not None else "") for c in cases])
    head = ["index", "bytes of 32 tokens"] + [f"D = {d}, {s}" for d, s in cases]
    note = ("Of the 64 tokens with the largest exact scores the share among 256 selected ones, in percent (95 %); behind the "
            "semicolon, of the eight pages with the largest log-sum-exp the share that is selected. 4,096 tokens, 8 "
            f"queries, 4 heads: {sources(page, [name])}.")
    return table(head, rows) + "\n\n" + wrapped(note)


def variants_table(page):
    """One fact in prose by variants of mneme."""
    name = "m11-smollm2-variants"
    cases = [suite_cells(c)[0] for c in records.load(name)["cases"]]
    rows = []
    for method in cases[0]:
        cells = [c[method]["niah"] for c in cases if method in c]
        rows.append([f"`{method}`"] + [f"{c['score_percent']:.1f}" if method == "full" else with_difference(c) for c in cells])
    lengths = [f"{c['full']['niah']['length']:,} tokens, {c['full']['niah']['questions']} questions" for c in cases]
    return table(["method"] + lengths, rows) + "\n\n" + wrapped(f"{records.load(name)['what']}: {sources(page, [name])}.")


def register_table(page):
    """A register by index."""
    name = "m11-register-sketch"
    cells = records.load(name)["cases"][0]["cells"]
    rows = [[f"`{c['method']}`", f"{c['score_percent']:.1f}" if c["method"] == "full" else with_difference(c),
             f"{c['kib_per_step']:,.0f}"] for c in cells]
    return table(["method", "right, %", "KiB a step"], rows) + "\n\n" + wrapped(f"{records.load(name)['what']}: {sources(page, [name])}.")


PAPERS = ("freekv", "louiskv", "fier", "actqkv", "refreekv")
EVAL_TABLES = {
    "smollm2": smollm2_table, "smollm2-8k": smollm2_long_table, "smollm2-fact": smollm2_fact_table,
    "smollm2-fact-200": lambda page: smollm2_fact_table(page, "m11-smollm2-fact", 200),
    "smollm2-variants": variants_table,
    "selector-needle": selector_needle_table, "selector-smollm2": selector_smollm2_table,
    "register-sketch": register_table, "gates": gates_table, "key-statistics": keys_table,
    "long-4k": long_table, "long-4k-lines": long_lines, "long-4k-along": long_along,
    "long-turns": long_turns_table, "long-turns-along": long_turns_along,
    **{f"answers-{n}": answers_table(n) for n in (4096, 12288, 31744)},
    **{f"paper-{p}-{model}": paper_table(f"m12-papers-{model}", p) for p in PAPERS for model in ("needle", "smollm2")}}

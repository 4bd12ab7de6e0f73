"""Markdown of tables, links and notes."""
import os
import textwrap

COLUMNS = 120


def wrapped(text):
    return "\n".join(textwrap.wrap(text, COLUMNS, break_long_words=False, break_on_hyphens=False))


def link(page, path, text=None):
    """A Markdown link from a page to a path of the repository."""
    return f"[{text or path}]({os.path.relpath(path, os.path.dirname(page) or '.')})"


def sources(page, names):
    return ", ".join(link(page, f"bench/results/{n}.json", n) for n in names)


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])

"""What KV methods lose in right answers and save in bytes and time."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Union

from . import _core
from ._error import Error
from ._program import command
from .recipe import Recipe

if TYPE_CHECKING:
    from .llm import LLM

_COLUMNS = (
    "task length method answers right exact_percent points points_half_width pairs kib_per_step "
    "achieved_budget_tokens tokens_per_second"
).split()


class Report(Sequence[Mapping[str, Any]]):
    """A table of one row a (task, length, method): ``pandas.DataFrame(report)`` takes it.

    Columns: task, length (tokens of context), method, answers, right, exact_percent; points: exact_percent less that
    of full attention on the same questions, with the half width of its 95 % interval over so many pairs;
    kib_per_step (keys, values and index that a step of one sequence reads), achieved_budget_tokens, tokens_per_second.
    """

    def __init__(self, record: Mapping[str, Any]) -> None:
        self.record = record
        """What ``mneme eval --json`` wrote: cells, settings, origin."""
        self.rows: list[dict[str, Any]] = [_row(cell) for cell in record["cells"]]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __str__(self) -> str:
        cells = [[_cell(row.get(c)) for c in _COLUMNS] for row in self.rows]
        widths = [max(len(c), *(len(row[i]) for row in cells)) for i, c in enumerate(_COLUMNS)]
        lines = [_COLUMNS, *cells]
        return "\n".join("  ".join(text.rjust(w) for text, w in zip(line, widths)) for line in lines)


def _cell(value: object) -> str:
    return f"{value:.1f}" if isinstance(value, float) else "" if value is None else str(value)


def _row(cell: Mapping[str, Any]) -> dict[str, Any]:
    against = cell.get("against_full") or {}
    row = {c: cell.get(c) for c in _COLUMNS}
    row.update(
        points=against.get("points"), points_half_width=against.get("half_width_95"), pairs=against.get("pairs")
    )
    return row


def _spec(method: Union[Recipe, str]) -> str:
    """A method as ``--methods`` takes it: what differs from the method's own settings."""
    if not isinstance(method, Recipe):
        return method
    own = dict(_core.recipe_values(method.method))
    changed = [f"{k}={v}" for k, v in _core.recipe_values(str(method)) if k != "budget" and own.get(k) != v]
    return method.method + (":" + ",".join(changed) if changed else "")


def evaluate(
    llm: LLM,
    tasks: str | Sequence[str] = ("number", "password", "where"),
    *,
    lengths: Sequence[int] = (4096,),
    budgets: Sequence[int] = (512,),
    methods: Sequence[Recipe | str] = ("full", "window", "oracle", "quest", "freekv", "fier"),
    samples: int = 4,
    seed: int = 1,
) -> Report:
    """Asks about hidden facts in contexts of each length, under every method and budget, over one prefill of each.

    ``mneme eval`` does it in a process of its own, with the weights of `llm` shared through the page cache.

    Args:
        tasks: "number", "password", "where", "several", "two_hops", ... (``mneme eval --help`` lists them).
        lengths: tokens of context.
        budgets: tokens that a step attends, all included; also of a Recipe that has one of its own.
        samples: contexts for each task and length; each has several questions.

    Raises:
        mneme.Error: kind "option": no such task or method, or what ``mneme eval`` said.
    """
    names = [tasks] if isinstance(tasks, str) else list(tasks)
    arguments = [
        *("-m", llm.model, "--json", "--no-progress", "--tasks", ",".join(names)),
        *("--lengths", ",".join(str(n) for n in lengths), "--budgets", ",".join(str(n) for n in budgets)),
        *("--methods", ",".join(_spec(m) for m in methods), "--contexts", str(samples), "--seed", str(seed)),
    ]
    done = subprocess.run(command("eval", *arguments), capture_output=True, text=True, env=dict(os.environ))
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"mneme eval ended with {done.returncode}"]
        message = next((line for line in lines if line.startswith("mneme: error: ")), lines[-1])
        raise Error(message.removeprefix("mneme: error: "), "option" if done.returncode == 2 else "resource")
    return Report(json.loads(done.stdout))

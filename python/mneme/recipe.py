"""A KV method as an immutable value: which part of the KV cache a decode step reads, and how it is selected."""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from . import _core

_INTEGERS = frozenset(
    "block group hold iterations max_reuse norm_first recent scan_from seed sink stamp_page top unit_fetch".split()
)
_FLOATS = {"eps", "gamma", "loss", "question_weight", "scan_share", "tau"}
_FLAGS = {"by_size", "first_in_norm", "pin_prompt"}


def _text_of(name: str, value: Any) -> str:
    """A keyword's value in the syntax of ``mneme --kv``."""
    if name == "dense_layers":
        if isinstance(value, str) or not all(isinstance(v, int) for v in value):
            raise TypeError(f"dense_layers: expected layers as integers, found {value!r}")
        return "+".join(str(v) for v in value) or "none"
    if name in _FLAGS:
        if not isinstance(value, bool):
            raise TypeError(f"{name}: expected True or False, found {value!r}")
        return "yes" if value else "no"
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise TypeError(f"{name}: expected a number or a name, found {value!r}")
    return str(value)


def _value_of(name: str, text: str) -> Any:
    if name == "dense_layers":
        return () if text == "none" else tuple(int(v) for v in text.split("+"))
    if name in _FLAGS:
        return text == "yes"
    if name in _FLOATS or (name == "stamp" and text != "half"):
        return float(text)
    if name in _INTEGERS or (name in ("budget", "rows") and text.isdigit()):
        return int(text)
    return text


class Recipe:
    """A KV method with its settings. Immutable and hashable; equal recipes select alike.

    >>> quest = mneme.Recipe("quest", budget=512, unit="page:32")
    >>> quest.replace(budget=1024).budget
    1024
    >>> mneme.Recipe.parse(str(quest)) == quest
    True

    Settings are attributes too; one is None where the recipe has no such block.
    """

    __slots__ = ("_text", "_values")
    _text: str
    _values: dict[str, str]

    def __init__(
        self,
        method: str,
        *,
        budget: int | Literal["norm"] | None = None,
        sink: int | None = None,
        recent: int | None = None,
        dense_layers: Sequence[int] | None = None,
        prefill: str | None = None,
        positions: Literal["absolute", "in_cache", "one_angle"] | None = None,
        loss: float | None = None,
        norm_first: int | None = None,
        first_in_norm: bool | None = None,
        rows: int | Literal["all"] | None = None,
        drop: Literal["prefill_end", "over_budget"] | None = None,
        rank: Literal["mass", "position", "mass_var", "stamp"] | None = None,
        smooth: str | None = None,
        scope: Literal["kv_head", "layer"] | None = None,
        unit: str | None = None,
        segment: str | None = None,
        block: int | None = None,
        iterations: int | None = None,
        metric: Literal["cosine", "distance"] | None = None,
        order: Literal["token", "unit"] | None = None,
        unit_fetch: int | None = None,
        index: str | None = None,
        group: int | None = None,
        levels: Literal["minmax", "meanabs"] | None = None,
        by_size: bool | None = None,
        probe: Literal["current", "previous_layer"] | None = None,
        pool: Literal["none", "maxQ", "meanQ", "maxQK", "meanQK", "maxS", "meanS", "concat"] | None = None,
        top: int | None = None,
        match: Literal["mean", "best"] | None = None,
        window_probe: Literal["activation", "mean", "reversed"] | None = None,
        question_weight: float | None = None,
        cutoff: str | None = None,
        cutoff_in: Literal["decode", "all"] | None = None,
        alpha: str | None = None,
        scan: Literal["flat", "two_level"] | None = None,
        scan_share: float | None = None,
        scan_from: int | None = None,
        schedule: Literal["every_step", "speculative", "boundary"] | None = None,
        gate: Literal["cosine", "mass"] | None = None,
        tau: float | None = None,
        eps: float | None = None,
        gate_pool: Literal["mean", "max", "any"] | None = None,
        reference: Literal["previous", "last_retrieval"] | None = None,
        max_reuse: int | None = None,
        seed: int | None = None,
        domain: Literal["candidates", "attention"] | None = None,
        eps_of: Literal["domain", "attended"] | None = None,
        answer: Literal["segments", "clusters"] | None = None,
        page_score: Literal["mean", "lse"] | None = None,
        open_group: Literal["attend", "score"] | None = None,
        similarity: Literal["cosine", "dot"] | None = None,
        question_in: Literal["prefill", "all"] | None = None,
        select: Literal["kv_head", "layer"] | None = None,
        hold: int | None = None,
        gamma: float | None = None,
        stamp_page: int | None = None,
        stamp: float | Literal["half"] | None = None,
        pin_prompt: bool | None = None,
        share: str | None = None,
        full_heads: str | None = None,
    ) -> None:
        """A method of :func:`mneme.methods` by name; keywords change its settings, None is the method's own.

        Args:
            method: "full", "window", "quest", "freekv", "fier", ...
            budget: what one KV head reads in one layer in one step, sinks, window and current token included; norm:
                what the attention of the prompt's last row asks for.
            sink: first tokens that are always attended.
            recent: last tokens that are always attended.
            dense_layers: layers that attend everything.
            prefill: prompts attend everything; or, N rows at a time, what the method has them attend.
            positions: where attention sees what is not in the window: where it is; as if nothing were left out; at
                the window's far end.
            loss: budget=norm: share of the attention norm that may be missing.
            norm_first: budget=norm: first tokens that count in any case.
            first_in_norm: budget=norm: whether the norms count these tokens.
            rows: queries at the end of a prefill whose attention is looked at to drop, or for budget=norm.
            drop: when the rest is dropped: at the end of a prefill, or also in every step.
            rank: what stays first: the most attended tokens, the newest, those of the largest mean and variance of
                attention over the rows, or the pages that a step attended last.
            smooth: pooling of attention over N neighbours before ranking.
            scope: who drops together.
            unit: what is selected; clusters of N tokens on average.
            segment: tokens of a segment of an answer; with unit=cluster:N.
            block: of a prompt that are clustered together.
            iterations: of k-means.
            metric: what k-means calls alike, of keys less their mean.
            order: keys and values of clusters and segments: in the sequence's pages, or in a copy too, unit after
                unit.
            unit_fetch: tokens that come to a device at once from the host's memory: the one that is missing, or its
                aligned four.
            index: what is stored of a unit's keys to score it.
            group: tokens that share scale and zero point of 1-bit keys.
            levels: the two values that a 1-bit key may take.
            by_size: index=centroid: a unit of n tokens scores as n tokens with its centroid for a key.
            probe: the query that is scored.
            pool: how the query heads of a KV head decide together.
            top: that stand for a unit, by query head: those that received most attention.
            match: what a probe is compared with: the mean of these keys, or each of them, the best counting.
            window_probe: how a window's queries weigh in what is scored: by how unusual they are, alike, by how
                usual.
            question_weight: of the score by the prompt's question, where a request marks one.
            cutoff: units by layer: all the same; by how evenly its scores are spread; by how unevenly; top_p:P: of
                what is selected, the tokens that hold a share P of the attention.
            cutoff_in: where layers share units by entropy: in answers, or in windows of prefill too.
            alpha: scale of scores before a softmax.
            scan: index=sketch:R or box, of pages: whether all pages are scored in full, or in long contexts those
                that score best by a coarse score.
            scan_share: scan=two_level: share of the pages that is scored in full.
            scan_from: scan=two_level: all pages are scored in full until the candidates hold more tokens.
            schedule: when a selection is made, and with which step's query.
            gate: what corrects a KV head (speculative): its query moved, or what the speculative selection lacks
                weighs too much.
            tau: the gate: a KV head is corrected (speculative), a layer reselects (boundary), when the cosine of
                its query with an earlier one is below this.
            eps: gate=mass: a KV head is corrected when more than this share of the estimated attention is missing;
                below 0: always, 1: never.
            gate_pool: which of its heads' cosines the gate looks at.
            reference: the query that a boundary's gate compares with.
            max_reuse: that a selection may serve after its own between boundaries; 0: no limit.
            seed: of the random control.
            domain: what a softmax of scores normalises over: the units that may be selected; sinks and window too.
            eps_of: gate=mass: what eps is a share of: the softmax, or the part of it that is attended.
            answer: with unit=cluster:N: a segment of an answer is one unit, or clusters of its own when it leaves the
                window.
            page_score: index=one_bit: a page scores the mean or the log-sum-exp of its tokens.
            open_group: index=one_bit: tokens of the group that is not complete are always attended, or are
                candidates with exact scores.
            similarity: index=representative, match=mean: of the concatenated heads, or the sum of dot products with
                unscaled means.
            question_in: where the prompt's question counts: in windows of prefill, or in answers too.
            select: whose pooled scores make one selection.
            hold: new units that a step attends at most; the others stay from the step before; 0: every step attends
                its own best.
            gamma: rank=mass_var: weight of the variance beside the mean.
            stamp_page: rank=stamp: consecutive stored tokens that are dropped together.
            stamp: rank=stamp: a step stamps pages that receive more than this share of its attention, or the half
                that receives most.
            pin_prompt: rank=stamp: whether pages of prompts are dropped after all others.
            share: how layers and heads share what is kept: even, pyramid:BETA, heads:FLOOR, heads_safe:FLOOR,
                preference:TAU1-TAU2.
            full_heads: a file that names the KV heads which attend everything, or none.

        Raises:
            mneme.Error: kind "option": no such method, a value that does not fit, a block that the method does not
                have,
                blocks that do not combine.
        """
        given = {k: v for k, v in locals().items() if k not in ("self", "method") and v is not None}
        if not isinstance(method, str):
            raise TypeError(f"method: expected a name, found {method!r}")
        pairs = [f"{'dense' if name == 'dense_layers' else name}={_text_of(name, given[name])}" for name in given]
        self._set(_core.recipe_text(method, ",".join(pairs)))

    def _set(self, text: str) -> None:
        values = {("dense_layers" if k == "dense" else k): v for k, v in _core.recipe_values(text)}
        object.__setattr__(self, "_text", text)
        object.__setattr__(self, "_values", values)

    @classmethod
    def parse(cls, text: str) -> Recipe:
        """The recipe of a text, ``"quest"`` or ``"quest:unit=page:32,budget=512"``.

        Raises:
            mneme.Error: kind "option".
        """
        recipe = object.__new__(cls)
        recipe._set(_core.recipe_parse(text))
        return recipe

    def replace(self, **fields: Any) -> Recipe:
        """The same recipe with other settings; keywords are those of the constructor.

        Raises:
            mneme.Error: kind "option". TypeError: no such keyword.
        """
        unknown = [name for name in fields if name not in _FIELDS]
        if unknown:
            raise TypeError(f"replace: no such setting: {', '.join(unknown)}")
        pairs = [
            f"{'dense' if name == 'dense_layers' else name}={_text_of(name, value)}"
            for name, value in fields.items()
            if value is not None
        ]
        return Recipe.parse(self._text + ("," if ":" in self._text else ":") + ",".join(pairs)) if pairs else self

    @property
    def method(self) -> str:
        """The method's name."""
        return self._text.split(":", 1)[0]

    def _value(self, name: str) -> Any:
        return _value_of(name, self._values[name]) if name in self._values else None

    @property
    def budget(self) -> int | Literal["norm"] | None:
        """What one KV head reads in one layer in one step, sinks, window and current token included; norm: what the
        attention of the prompt's last row asks for."""
        return self._value("budget")

    @property
    def sink(self) -> int | None:
        """First tokens that are always attended."""
        return self._value("sink")

    @property
    def recent(self) -> int | None:
        """Last tokens that are always attended."""
        return self._value("recent")

    @property
    def dense_layers(self) -> Sequence[int] | None:
        """Layers that attend everything."""
        return self._value("dense_layers")

    @property
    def prefill(self) -> str | None:
        """Prompts attend everything; or, N rows at a time, what the method has them attend."""
        return self._value("prefill")

    @property
    def positions(self) -> Literal["absolute", "in_cache", "one_angle"] | None:
        """Where attention sees what is not in the window: where it is; as if nothing were left out; at the window's
        far end."""
        return self._value("positions")

    @property
    def loss(self) -> float | None:
        """Budget=norm: share of the attention norm that may be missing."""
        return self._value("loss")

    @property
    def norm_first(self) -> int | None:
        """Budget=norm: first tokens that count in any case."""
        return self._value("norm_first")

    @property
    def first_in_norm(self) -> bool | None:
        """Budget=norm: whether the norms count these tokens."""
        return self._value("first_in_norm")

    @property
    def rows(self) -> int | Literal["all"] | None:
        """Queries at the end of a prefill whose attention is looked at to drop, or for budget=norm."""
        return self._value("rows")

    @property
    def drop(self) -> Literal["prefill_end", "over_budget"] | None:
        """When the rest is dropped: at the end of a prefill, or also in every step."""
        return self._value("drop")

    @property
    def rank(self) -> Literal["mass", "position", "mass_var", "stamp"] | None:
        """What stays first: the most attended tokens, the newest, those of the largest mean and variance of attention
        over the rows, or the pages that a step attended last."""
        return self._value("rank")

    @property
    def smooth(self) -> str | None:
        """Pooling of attention over N neighbours before ranking."""
        return self._value("smooth")

    @property
    def scope(self) -> Literal["kv_head", "layer"] | None:
        """Who drops together."""
        return self._value("scope")

    @property
    def unit(self) -> str | None:
        """What is selected; clusters of N tokens on average."""
        return self._value("unit")

    @property
    def segment(self) -> str | None:
        """Tokens of a segment of an answer; with unit=cluster:N."""
        return self._value("segment")

    @property
    def block(self) -> int | None:
        """Of a prompt that are clustered together."""
        return self._value("block")

    @property
    def iterations(self) -> int | None:
        """Of k-means."""
        return self._value("iterations")

    @property
    def metric(self) -> Literal["cosine", "distance"] | None:
        """What k-means calls alike, of keys less their mean."""
        return self._value("metric")

    @property
    def order(self) -> Literal["token", "unit"] | None:
        """Keys and values of clusters and segments: in the sequence's pages, or in a copy too, unit after unit."""
        return self._value("order")

    @property
    def unit_fetch(self) -> int | None:
        """Tokens that come to a device at once from the host's memory: the one that is missing, or its aligned four."""
        return self._value("unit_fetch")

    @property
    def index(self) -> str | None:
        """What is stored of a unit's keys to score it."""
        return self._value("index")

    @property
    def group(self) -> int | None:
        """Tokens that share scale and zero point of 1-bit keys."""
        return self._value("group")

    @property
    def levels(self) -> Literal["minmax", "meanabs"] | None:
        """The two values that a 1-bit key may take."""
        return self._value("levels")

    @property
    def by_size(self) -> bool | None:
        """Index=centroid: a unit of n tokens scores as n tokens with its centroid for a key."""
        return self._value("by_size")

    @property
    def probe(self) -> Literal["current", "previous_layer"] | None:
        """The query that is scored."""
        return self._value("probe")

    @property
    def pool(self) -> Literal["none", "maxQ", "meanQ", "maxQK", "meanQK", "maxS", "meanS", "concat"] | None:
        """How the query heads of a KV head decide together."""
        return self._value("pool")

    @property
    def top(self) -> int | None:
        """That stand for a unit, by query head: those that received most attention."""
        return self._value("top")

    @property
    def match(self) -> Literal["mean", "best"] | None:
        """What a probe is compared with: the mean of these keys, or each of them, the best counting."""
        return self._value("match")

    @property
    def window_probe(self) -> Literal["activation", "mean", "reversed"] | None:
        """How a window's queries weigh in what is scored: by how unusual they are, alike, by how usual."""
        return self._value("window_probe")

    @property
    def question_weight(self) -> float | None:
        """Of the score by the prompt's question, where a request marks one."""
        return self._value("question_weight")

    @property
    def cutoff(self) -> str | None:
        """Units by layer: all the same; by how evenly its scores are spread; by how unevenly; top_p:P: of what is
        selected, the tokens that hold a share P of the attention."""
        return self._value("cutoff")

    @property
    def cutoff_in(self) -> Literal["decode", "all"] | None:
        """Where layers share units by entropy: in answers, or in windows of prefill too."""
        return self._value("cutoff_in")

    @property
    def alpha(self) -> str | None:
        """Scale of scores before a softmax."""
        return self._value("alpha")

    @property
    def scan(self) -> Literal["flat", "two_level"] | None:
        """Index=sketch:R or box, of pages: whether all pages are scored in full, or in long contexts those that score
        best by a coarse score."""
        return self._value("scan")

    @property
    def scan_share(self) -> float | None:
        """Scan=two_level: share of the pages that is scored in full."""
        return self._value("scan_share")

    @property
    def scan_from(self) -> int | None:
        """Scan=two_level: all pages are scored in full until the candidates hold more tokens."""
        return self._value("scan_from")

    @property
    def schedule(self) -> Literal["every_step", "speculative", "boundary"] | None:
        """When a selection is made, and with which step's query."""
        return self._value("schedule")

    @property
    def gate(self) -> Literal["cosine", "mass"] | None:
        """What corrects a KV head (speculative): its query moved, or what the speculative selection lacks weighs too
        much."""
        return self._value("gate")

    @property
    def tau(self) -> float | None:
        """The gate: a KV head is corrected (speculative), a layer reselects (boundary), when the cosine of its query
        with an earlier one is below this."""
        return self._value("tau")

    @property
    def eps(self) -> float | None:
        """Gate=mass: a KV head is corrected when more than this share of the estimated attention is missing; below 0:
        always, 1: never."""
        return self._value("eps")

    @property
    def gate_pool(self) -> Literal["mean", "max", "any"] | None:
        """Which of its heads' cosines the gate looks at."""
        return self._value("gate_pool")

    @property
    def reference(self) -> Literal["previous", "last_retrieval"] | None:
        """The query that a boundary's gate compares with."""
        return self._value("reference")

    @property
    def max_reuse(self) -> int | None:
        """That a selection may serve after its own between boundaries; 0: no limit."""
        return self._value("max_reuse")

    @property
    def seed(self) -> int | None:
        """Of the random control."""
        return self._value("seed")

    @property
    def domain(self) -> Literal["candidates", "attention"] | None:
        """What a softmax of scores normalises over: the units that may be selected; sinks and window too."""
        return self._value("domain")

    @property
    def eps_of(self) -> Literal["domain", "attended"] | None:
        """Gate=mass: what eps is a share of: the softmax, or the part of it that is attended."""
        return self._value("eps_of")

    @property
    def answer(self) -> Literal["segments", "clusters"] | None:
        """With unit=cluster:N: a segment of an answer is one unit, or clusters of its own when it leaves the window."""
        return self._value("answer")

    @property
    def page_score(self) -> Literal["mean", "lse"] | None:
        """Index=one_bit: a page scores the mean or the log-sum-exp of its tokens."""
        return self._value("page_score")

    @property
    def open_group(self) -> Literal["attend", "score"] | None:
        """Index=one_bit: tokens of the group that is not complete are always attended, or are candidates with exact
        scores."""
        return self._value("open_group")

    @property
    def similarity(self) -> Literal["cosine", "dot"] | None:
        """Index=representative, match=mean: of the concatenated heads, or the sum of dot products with unscaled means.
"""
        return self._value("similarity")

    @property
    def question_in(self) -> Literal["prefill", "all"] | None:
        """Where the prompt's question counts: in windows of prefill, or in answers too."""
        return self._value("question_in")

    @property
    def select(self) -> Literal["kv_head", "layer"] | None:
        """Whose pooled scores make one selection."""
        return self._value("select")

    @property
    def hold(self) -> int | None:
        """New units that a step attends at most; the others stay from the step before; 0: every step attends its own
        best."""
        return self._value("hold")

    @property
    def gamma(self) -> float | None:
        """Rank=mass_var: weight of the variance beside the mean."""
        return self._value("gamma")

    @property
    def stamp_page(self) -> int | None:
        """Rank=stamp: consecutive stored tokens that are dropped together."""
        return self._value("stamp_page")

    @property
    def stamp(self) -> float | Literal["half"] | None:
        """Rank=stamp: a step stamps pages that receive more than this share of its attention, or the half that receives
        most."""
        return self._value("stamp")

    @property
    def pin_prompt(self) -> bool | None:
        """Rank=stamp: whether pages of prompts are dropped after all others."""
        return self._value("pin_prompt")

    @property
    def share(self) -> str | None:
        """How layers and heads share what is kept: even, pyramid:BETA, heads:FLOOR, heads_safe:FLOOR,
        preference:TAU1-TAU2."""
        return self._value("share")

    @property
    def full_heads(self) -> str | None:
        """A file that names the KV heads which attend everything, or none."""
        return self._value("full_heads")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Recipe is immutable: use replace({name}=...)")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("a Recipe is immutable")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recipe) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Recipe.parse({self._text!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (Recipe.parse, (self._text,))


_FIELDS = frozenset(Recipe.__init__.__annotations__) - {"method", "return"}


def methods() -> dict[str, str]:
    """Every method by name, each with one line that says what it does."""
    return dict(_core.methods())

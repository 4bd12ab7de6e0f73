# Made by tools/reference from the table of fields (src/recipes/fields.cc): not edited by hand.
from collections.abc import Sequence
from typing import Any, Literal

class Recipe:
    """A KV method with its settings. Immutable and hashable; equal recipes select alike."""

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
        index: str | None = None,
        group: int | None = None,
        levels: Literal["minmax", "meanabs"] | None = None,
        by_size: bool | None = None,
        pool: Literal["none", "maxQ", "meanQ", "maxQK", "meanQK", "maxS", "meanS", "concat"] | None = None,
        top: int | None = None,
        match: Literal["mean", "best"] | None = None,
        window_probe: Literal["activation", "mean", "reversed"] | None = None,
        question_weight: float | None = None,
        cutoff: str | None = None,
        cutoff_in: Literal["decode", "all"] | None = None,
        alpha: Literal["inv_sqrt_d", "1"] | None = None,
        domain: Literal["candidates", "attention"] | None = None,
        schedule: Literal["every_step", "speculative", "boundary"] | None = None,
        gate: Literal["cosine", "mass"] | None = None,
        tau: float | None = None,
        eps: float | None = None,
        eps_of: Literal["domain", "attended"] | None = None,
        gate_pool: Literal["mean", "max", "any"] | None = None,
        reference: Literal["previous", "last_retrieval"] | None = None,
        max_reuse: int | None = None,
        seed: int | None = None,
        answer: Literal["segments", "clusters"] | None = None,
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
            positions: where attention sees what is not in the window: where it is; as if nothing were left out; at the
                window's far end.
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
            block: tokens of a prompt that are clustered together.
            iterations: iterations of k-means.
            metric: what k-means calls alike, of keys less their mean.
            order: keys and values of clusters and segments: in the sequence's pages, or in a copy too, unit after unit.
            index: what is stored of a unit's keys to score it.
            group: tokens that share scale and zero point of 1-bit keys.
            levels: the two values that a 1-bit key may take.
            by_size: index=centroid: a unit of n tokens scores as n tokens with its centroid for a key.
            pool: how the query heads of a KV head decide together.
            top: keys that stand for a unit, by query head: those that received most attention.
            match: what a probe is compared with: the mean of these keys, or each of them, the best counting.
            window_probe: how a window's queries weigh in what is scored: by how unusual they are, alike, by how usual.
            question_weight: weight of the score by the prompt's question, where a request marks one.
            cutoff: units by layer: all the same; by how evenly its scores are spread; by how unevenly; of what is
                selected, the tokens that hold a share P of the attention.
            cutoff_in: where layers share units by entropy: in answers, or in windows of prefill too.
            alpha: scale of scores before a softmax.
            domain: what a softmax of scores normalises over: the units that may be selected; sinks and window too.
            schedule: when a selection is made, and with which step's query.
            gate: what corrects a KV head (speculative): its query moved, or what the speculative selection lacks weighs
                too much.
            tau: the gate: a KV head is corrected (speculative), a layer reselects (boundary), when the cosine of its
                query with an earlier one is below this.
            eps: gate=mass: a KV head is corrected when more than this share of the estimated attention is missing;
                below 0: always, 1: never.
            eps_of: gate=mass: what eps is a share of: the softmax, or the part of it that is attended.
            gate_pool: which of its heads' cosines the gate looks at.
            reference: the query that a boundary's gate compares with.
            max_reuse: steps that a selection may serve after its own between boundaries; 0: no limit.
            seed: seed of the random control.
            answer: with unit=cluster:N: a segment of an answer is one unit, or clusters of its own when it leaves the
                window.
            open_group: index=one_bit: tokens of the group that is not complete are always attended, or are candidates
                with exact scores.
            similarity: index=representative, match=mean: of the concatenated heads, or the sum of dot products with
                unscaled means.
            question_in: where the prompt's question counts: in windows of prefill, or in answers too.
            select: whose pooled scores make one selection.
            hold: new units that a step attends at most; the others stay from the step before until better ones need
                their room; 0: every step attends its own best.
            gamma: rank=mass_var: weight of the variance beside the mean.
            stamp_page: rank=stamp: consecutive stored tokens that are dropped together.
            stamp: rank=stamp: a step stamps pages that receive more than this share of its attention, or the half that
                receives most.
            pin_prompt: rank=stamp: pages of prompts are dropped after all others.
            share: what is kept: as much in every head; less in every layer than in the one below; by where a layer's
                largest masses fall, with a floor for every head (safe: exactly the budget); more in layers whose
                attention is spread and changes.
            full_heads: KV heads that attend everything: a line a layer, a number a head, 0.5 or more.

        Raises:
            mneme.Error: kind "option".
        """

    @classmethod
    def parse(cls, text: str) -> Recipe:
        """The recipe of a text, ``"quest"`` or ``"quest:unit=page:32,budget=512"``."""

    def replace(
        self,
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
        index: str | None = None,
        group: int | None = None,
        levels: Literal["minmax", "meanabs"] | None = None,
        by_size: bool | None = None,
        pool: Literal["none", "maxQ", "meanQ", "maxQK", "meanQK", "maxS", "meanS", "concat"] | None = None,
        top: int | None = None,
        match: Literal["mean", "best"] | None = None,
        window_probe: Literal["activation", "mean", "reversed"] | None = None,
        question_weight: float | None = None,
        cutoff: str | None = None,
        cutoff_in: Literal["decode", "all"] | None = None,
        alpha: Literal["inv_sqrt_d", "1"] | None = None,
        domain: Literal["candidates", "attention"] | None = None,
        schedule: Literal["every_step", "speculative", "boundary"] | None = None,
        gate: Literal["cosine", "mass"] | None = None,
        tau: float | None = None,
        eps: float | None = None,
        eps_of: Literal["domain", "attended"] | None = None,
        gate_pool: Literal["mean", "max", "any"] | None = None,
        reference: Literal["previous", "last_retrieval"] | None = None,
        max_reuse: int | None = None,
        seed: int | None = None,
        answer: Literal["segments", "clusters"] | None = None,
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
    ) -> Recipe:
        """The same recipe with other settings; keywords are those of the constructor."""

    @property
    def method(self) -> str:
        """The method's name."""

    @property
    def budget(self) -> int | Literal["norm"] | None:
        """What one KV head reads in one layer in one step, sinks, window and current token included; norm: what the
        attention of the prompt's last row asks for."""

    @property
    def sink(self) -> int | None:
        """First tokens that are always attended."""

    @property
    def recent(self) -> int | None:
        """Last tokens that are always attended."""

    @property
    def dense_layers(self) -> Sequence[int] | None:
        """Layers that attend everything."""

    @property
    def prefill(self) -> str | None:
        """Prompts attend everything; or, N rows at a time, what the method has them attend."""

    @property
    def positions(self) -> Literal["absolute", "in_cache", "one_angle"] | None:
        """Where attention sees what is not in the window: where it is; as if nothing were left out; at the window's far
        end."""

    @property
    def loss(self) -> float | None:
        """Budget=norm: share of the attention norm that may be missing."""

    @property
    def norm_first(self) -> int | None:
        """Budget=norm: first tokens that count in any case."""

    @property
    def first_in_norm(self) -> bool | None:
        """Budget=norm: whether the norms count these tokens."""

    @property
    def rows(self) -> int | Literal["all"] | None:
        """Queries at the end of a prefill whose attention is looked at to drop, or for budget=norm."""

    @property
    def drop(self) -> Literal["prefill_end", "over_budget"] | None:
        """When the rest is dropped: at the end of a prefill, or also in every step."""

    @property
    def rank(self) -> Literal["mass", "position", "mass_var", "stamp"] | None:
        """What stays first: the most attended tokens, the newest, those of the largest mean and variance of attention
        over the rows, or the pages that a step attended last."""

    @property
    def smooth(self) -> str | None:
        """Pooling of attention over N neighbours before ranking."""

    @property
    def scope(self) -> Literal["kv_head", "layer"] | None:
        """Who drops together."""

    @property
    def unit(self) -> str | None:
        """What is selected; clusters of N tokens on average."""

    @property
    def segment(self) -> str | None:
        """Tokens of a segment of an answer; with unit=cluster:N."""

    @property
    def block(self) -> int | None:
        """Tokens of a prompt that are clustered together."""

    @property
    def iterations(self) -> int | None:
        """Iterations of k-means."""

    @property
    def metric(self) -> Literal["cosine", "distance"] | None:
        """What k-means calls alike, of keys less their mean."""

    @property
    def order(self) -> Literal["token", "unit"] | None:
        """Keys and values of clusters and segments: in the sequence's pages, or in a copy too, unit after unit."""

    @property
    def index(self) -> str | None:
        """What is stored of a unit's keys to score it."""

    @property
    def group(self) -> int | None:
        """Tokens that share scale and zero point of 1-bit keys."""

    @property
    def levels(self) -> Literal["minmax", "meanabs"] | None:
        """The two values that a 1-bit key may take."""

    @property
    def by_size(self) -> bool | None:
        """Index=centroid: a unit of n tokens scores as n tokens with its centroid for a key."""

    @property
    def pool(self) -> Literal["none", "maxQ", "meanQ", "maxQK", "meanQK", "maxS", "meanS", "concat"] | None:
        """How the query heads of a KV head decide together."""

    @property
    def top(self) -> int | None:
        """Keys that stand for a unit, by query head: those that received most attention."""

    @property
    def match(self) -> Literal["mean", "best"] | None:
        """What a probe is compared with: the mean of these keys, or each of them, the best counting."""

    @property
    def window_probe(self) -> Literal["activation", "mean", "reversed"] | None:
        """How a window's queries weigh in what is scored: by how unusual they are, alike, by how usual."""

    @property
    def question_weight(self) -> float | None:
        """Weight of the score by the prompt's question, where a request marks one."""

    @property
    def cutoff(self) -> str | None:
        """Units by layer: all the same; by how evenly its scores are spread; by how unevenly; of what is selected, the
        tokens that hold a share P of the attention."""

    @property
    def cutoff_in(self) -> Literal["decode", "all"] | None:
        """Where layers share units by entropy: in answers, or in windows of prefill too."""

    @property
    def alpha(self) -> Literal["inv_sqrt_d", "1"] | None:
        """Scale of scores before a softmax."""

    @property
    def domain(self) -> Literal["candidates", "attention"] | None:
        """What a softmax of scores normalises over: the units that may be selected; sinks and window too."""

    @property
    def schedule(self) -> Literal["every_step", "speculative", "boundary"] | None:
        """When a selection is made, and with which step's query."""

    @property
    def gate(self) -> Literal["cosine", "mass"] | None:
        """What corrects a KV head (speculative): its query moved, or what the speculative selection lacks weighs too
        much."""

    @property
    def tau(self) -> float | None:
        """The gate: a KV head is corrected (speculative), a layer reselects (boundary), when the cosine of its query
        with an earlier one is below this."""

    @property
    def eps(self) -> float | None:
        """Gate=mass: a KV head is corrected when more than this share of the estimated attention is missing; below 0:
        always, 1: never."""

    @property
    def eps_of(self) -> Literal["domain", "attended"] | None:
        """Gate=mass: what eps is a share of: the softmax, or the part of it that is attended."""

    @property
    def gate_pool(self) -> Literal["mean", "max", "any"] | None:
        """Which of its heads' cosines the gate looks at."""

    @property
    def reference(self) -> Literal["previous", "last_retrieval"] | None:
        """The query that a boundary's gate compares with."""

    @property
    def max_reuse(self) -> int | None:
        """Steps that a selection may serve after its own between boundaries; 0: no limit."""

    @property
    def seed(self) -> int | None:
        """Seed of the random control."""

    @property
    def answer(self) -> Literal["segments", "clusters"] | None:
        """With unit=cluster:N: a segment of an answer is one unit, or clusters of its own when it leaves the window."""

    @property
    def open_group(self) -> Literal["attend", "score"] | None:
        """Index=one_bit: tokens of the group that is not complete are always attended, or are candidates with exact
        scores."""

    @property
    def similarity(self) -> Literal["cosine", "dot"] | None:
        """Index=representative, match=mean: of the concatenated heads, or the sum of dot products with unscaled
        means."""

    @property
    def question_in(self) -> Literal["prefill", "all"] | None:
        """Where the prompt's question counts: in windows of prefill, or in answers too."""

    @property
    def select(self) -> Literal["kv_head", "layer"] | None:
        """Whose pooled scores make one selection."""

    @property
    def hold(self) -> int | None:
        """New units that a step attends at most; the others stay from the step before until better ones need their
        room; 0: every step attends its own best."""

    @property
    def gamma(self) -> float | None:
        """Rank=mass_var: weight of the variance beside the mean."""

    @property
    def stamp_page(self) -> int | None:
        """Rank=stamp: consecutive stored tokens that are dropped together."""

    @property
    def stamp(self) -> float | Literal["half"] | None:
        """Rank=stamp: a step stamps pages that receive more than this share of its attention, or the half that receives
        most."""

    @property
    def pin_prompt(self) -> bool | None:
        """Rank=stamp: pages of prompts are dropped after all others."""

    @property
    def share(self) -> str | None:
        """What is kept: as much in every head; less in every layer than in the one below; by where a layer's largest
        masses fall, with a floor for every head (safe: exactly the budget); more in layers whose attention is
        spread and changes."""

    @property
    def full_heads(self) -> str | None:
        """KV heads that attend everything: a line a layer, a number a head, 0.5 or more."""

    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

def methods() -> dict[str, str]:
    """Every method by name, each with one line that says what it does."""

"""How tokens are drawn, and when an answer ends."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ._error import Error


@dataclasses.dataclass(frozen=True)
class SamplingParams:
    """Settings of an answer, by vLLM's names. The defaults are greedy: the most likely token, always.

    Attributes:
        n: answers to one prompt; each with random numbers of its own, of seed, seed + 1, ...
        temperature: 0: greedy. Higher: more varied.
        top_k: only the k most likely tokens; 0: all.
        top_p: only the fewest tokens that reach this probability together; 1: all.
        min_p: only tokens at least this share as likely as the most likely one; 0: all.
        repetition_penalty: divides the logits of tokens seen in prompt or answer; 1: none.
        presence_penalty: subtracted once from the logits of tokens that the answer has.
        frequency_penalty: subtracted for every time that the answer has the token.
        logit_bias: added to the logits of these tokens, by id.
        seed: of the random numbers; None: from the system's entropy.
        max_tokens: of the answer; 0 computes the prompt alone.
        stop: the answer ends before any of these strings.
        stop_token_ids: end the answer as the model's own end tokens do.
        include_stop_str_in_output: the answer has the stop string that ends it.
        ignore_eos: go on after an end token (for measuring).
        logprobs: tell the log-probability of every token, and so many of the likeliest in its place; None: none.
        json_schema: the answer is JSON of this schema; a dictionary, or its text.
        priority: smaller first.
        page_reads: count how often each page of 32 tokens is read by the answer's steps (methods that select).
        speculative: as LLM's, of this answer; None: the model's own, where the answer can have drafts.
    """

    n: int = 1
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    seed: int | None = None
    max_tokens: int = 256
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    json_schema: str | Mapping[str, Any] | None = None
    priority: int = 0
    page_reads: bool = False
    speculative: str | None = None

    def __post_init__(self) -> None:
        whole = ("n", "top_k", "max_tokens", "priority")
        for name in whole + (("seed",) if self.seed is not None else ()) + (("logprobs",) if self.logprobs else ()):
            _expect(name, getattr(self, name), int)
        numbers = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
        for name in numbers:
            _expect(name, getattr(self, name), (int, float))
        for name, least in (("n", 1), ("max_tokens", 0)):
            if getattr(self, name) < least:
                raise Error(f"{name}: expected {least} or more, found {getattr(self, name)}", "option")
        if self.stop is not None and not isinstance(self.stop, str):
            if not all(isinstance(s, str) for s in self.stop):
                raise TypeError(f"stop: expected a string or strings, found {self.stop!r}")

    def _fields(self) -> dict[str, Any]:
        """What _core takes: fields that differ from the defaults."""
        fields = {k: v for k, v in self.__dict__.items() if v is not None and v != _DEFAULTS[k]}
        if "stop" in fields:
            fields["stop"] = [self.stop] if isinstance(self.stop, str) else list(self.stop or ())
        if "stop_token_ids" in fields:
            fields["stop_token_ids"] = list(fields["stop_token_ids"])
        if "logit_bias" in fields:
            fields["logit_bias"] = {int(k): float(v) for k, v in fields["logit_bias"].items()}
        if "json_schema" in fields and not isinstance(self.json_schema, str):
            fields["json_schema"] = json.dumps(self.json_schema)
        return fields


_DEFAULTS = {f.name: f.default for f in dataclasses.fields(SamplingParams)}


def _expect(name: str, value: object, kind: type | tuple[type, ...]) -> None:
    if isinstance(value, bool) or not isinstance(value, kind):
        raise TypeError(f"{name}: expected a number, found {value!r}")

"""What comes back: answers, pieces of answers, scores, and what they took."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ._core import KvMethodStats


@dataclasses.dataclass(frozen=True)
class TokenLogprob:
    """A token under the logits of those before it, before penalties, temperature and truncation.

    Attributes:
        token_id: the token.
        logprob: natural logarithm of its probability.
        top: the likeliest tokens in its place with theirs, the likeliest first.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclasses.dataclass(frozen=True)
class Stats:
    """What a request took.

    Attributes:
        num_prompt_tokens: tokens of the prompt; in a session all tokens before the answer.
        num_cached_tokens: those of them that were computed before.
        num_generated_tokens: of all answers.
        prefill_seconds: steps up to the first token of the answer.
        decode_seconds: steps after it.
        kv: what the KV method did for the first answer.
    """

    num_prompt_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int
    prefill_seconds: float
    decode_seconds: float
    kv: KvMethodStats | None


@dataclasses.dataclass(frozen=True)
class CompletionOutput:
    """One answer.

    Attributes:
        index: of the answer among those to its prompt.
        text: whole characters.
        token_ids: of the answer.
        finish_reason: "stop", "length", "abort".
        logprobs: one a token, where they were asked for.
        page_reads: int64 [pages]: tokens of each page of 32 that steps read, over layers, KV heads and steps, where
            they were asked for; sinks and window, which every step reads, are not counted.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    logprobs: tuple[TokenLogprob, ...] | None = None
    page_reads: NDArray[np.int64] | None = None


@dataclasses.dataclass(frozen=True)
class RequestOutput:
    """A prompt and its answers.

    Attributes:
        prompt: the text, where it was given as one.
        prompt_token_ids: its tokens.
        outputs: the answers, SamplingParams.n of them.
        stats: what they took.
    """

    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    stats: Stats

    @property
    def text(self) -> str:
        """The first answer's text."""
        return self.outputs[0].text


@dataclasses.dataclass(frozen=True)
class Chunk:
    """A piece of an answer, or its end.

    Attributes:
        text: the next piece, whole characters; may be empty.
        token_ids: tokens whose text begins in the pieces so far, each told once.
        logprobs: of these, where they were asked for.
        finish_reason: with the last piece; None before.
        output: with the last piece: the whole answer, statistics included.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish_reason: str | None = None
    output: RequestOutput | None = None


@dataclasses.dataclass(frozen=True)
class KvEvent:
    """A page of 32 tokens of the prefix cache.

    Attributes:
        stored: it can be shared from now on; False: no longer.
        block_hash: of the page and all before it.
        parent_hash: of the page before it; None: the first page, or not stored.
        token_ids: of the page; empty where it is not stored.
    """

    stored: bool
    block_hash: int
    parent_hash: int | None
    token_ids: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Scores:
    """Log-probabilities of given tokens.

    Attributes:
        token_ids: the scored tokens: all of a prompt but its first.
        logprobs: float32 [n], natural logarithms.
        top: the likeliest tokens in each one's place, the likeliest first, where they were asked for.
    """

    token_ids: tuple[int, ...]
    logprobs: NDArray[np.float32]
    top: tuple[tuple[tuple[int, float], ...], ...] = ()

    def __len__(self) -> int:
        return len(self.token_ids)

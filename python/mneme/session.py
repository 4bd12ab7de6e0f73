"""A conversation with its KV cache."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Generator, Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from . import _core
from .outputs import Chunk, CompletionOutput, RequestOutput, Scores, Stats, TokenLogprob
from .recipe import Recipe
from .sampling import SamplingParams

if TYPE_CHECKING:
    from .llm import LLM


class Session:
    """A growing sequence of tokens: a document that is read once, questions, answers; forks share what was computed.

    >>> session = llm.session()
    >>> session.read(book)
    >>> for method in ("full", "quest", "freekv"):
    ...     print(session.fork().ask("Who is the widow?", kv=mneme.Recipe(method, budget=512)).text)

    Threads: one call at a time; others wait. Forks may be asked at once and are computed in one batch.
    """

    def __init__(self, llm: LLM, *, kv: Recipe | str | None = None) -> None:
        """An empty session of a model; llm.session() is the same.

        Args:
            kv: how its document is read and its turns attend; None: as the LLM does.

        Raises:
            mneme.Error: kind "option": the recipe does not combine, or not with this model.
        """
        self._llm = llm
        self._core = _core.Session(llm._engine, None if kv is None else str(kv))

    @classmethod
    def _of(cls, llm: LLM, core: _core.Session) -> Session:
        session = object.__new__(cls)
        session._llm = llm
        session._core = core
        return session

    def read(self, document: str, *, system: str = "") -> None:
        """Reads a document now, so that questions about it answer at once. In the first turn only, and once.

        Raises:
            mneme.Error: kind "request": not the first turn, empty, longer than the context.
        """
        self._core.read(_core.Turn(document, "", system))

    def ask(
        self,
        question: str,
        params: SamplingParams | None = None,
        *,
        document: str = "",
        system: str = "",
        kv: Recipe | str | None = None,
    ) -> RequestOutput:
        """Appends a turn of the user and generates the answer.

        Args:
            question: follows the document after two empty lines.
            params: without n, json_schema, stop_token_ids, include_stop_str_in_output and page_reads.
            kv: how this turn attends. A method that drops tokens or decides how prompts are read binds its session.

        Raises:
            mneme.Error: kind "request" or "option"; the session stands where it stood before.
            KeyboardInterrupt: Ctrl-C; the session keeps what was computed.
        """
        params = params or SamplingParams()
        answer = self._core.ask(_core.Turn(document, question, system), _fields(params), _text(kv))
        return _output(question, answer, params)

    def stream(
        self,
        question: str,
        params: SamplingParams | None = None,
        *,
        document: str = "",
        system: str = "",
        kv: Recipe | str | None = None,
    ) -> Iterator[Chunk]:
        """The same piece by piece. Until the stream has ended or is closed, the session can do nothing else.

        Raises:
            mneme.Error: as ask().
        """
        params = params or SamplingParams()
        stream = self._core.stream(_core.Turn(document, question, system), _fields(params), _text(kv))
        return _chunks(stream, question, params)

    async def astream(
        self,
        question: str,
        params: SamplingParams | None = None,
        *,
        document: str = "",
        system: str = "",
        kv: Recipe | str | None = None,
    ) -> AsyncIterator[Chunk]:
        """The same for asyncio; a thread of the loop's executor waits for each piece. Raises as ask()."""
        params = params or SamplingParams()
        loop = asyncio.get_running_loop()
        stream = self._core.stream(_core.Turn(document, question, system), _fields(params), _text(kv))
        chunks = _chunks(stream, question, params)
        piece: asyncio.Future[Chunk | None] | None = None
        try:
            while True:
                piece = loop.run_in_executor(None, next, chunks, None)
                chunk = await asyncio.shield(piece)
                if chunk is None:
                    return
                yield chunk
        finally:
            # A cancelled task leaves its thread waiting for a piece, which comes at the end of the running step.
            if piece is not None and not piece.done():
                stream.stop()
                await asyncio.wait([piece])
                piece.exception()
            chunks.close()

    def fork(self) -> Session:
        """A second session that continues from here; it shares the KV cache.

        Raises:
            mneme.Error: kind "request": a stream of this session has not ended.
        """
        return Session._of(self._llm, self._core.fork())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes everything needed to go on to a file; LLM.restore() reads it.

        Raises:
            mneme.Error: kind "request": no turn yet; "file": the file cannot be written.
        """
        self._core.save(os.fspath(path))

    @staticmethod
    def restore(llm: LLM, path: str | os.PathLike[str]) -> Session:
        """LLM.restore()."""
        return llm.restore(path)

    def score(self, text: str, *, top: int = 0) -> Scores:
        """Log-probabilities of a text as if it followed the session, without framing; the session stays as it is.

        Raises:
            mneme.Error: kind "request": no token to score, longer than the context; "option": top.
        """
        rows = self._core.score(text, top)
        return Scores(
            token_ids=tuple(r[0] for r in rows),
            logprobs=np.array([r[1] for r in rows], dtype=np.float32),
            top=tuple(tuple(r[2]) for r in rows) if top else (),
        )

    def logits(self) -> NDArray[np.float32]:
        """Of the token that would follow: float32 [vocabulary], read-only, not copied.

        Raises:
            mneme.Error: kind "request": no turn yet.
        """
        return self._core.logits()

    @property
    def token_ids(self) -> list[int]:
        """All tokens so far."""
        return self._core.tokens()

    def count_tokens(self, question: str, *, document: str = "", system: str = "") -> int:
        """Tokens that asking so would put before the answer."""
        return self._core.count_tokens(_core.Turn(document, question, system))


def _fields(params: SamplingParams) -> dict[str, object]:
    if not isinstance(params, SamplingParams):
        raise TypeError(f"params: expected SamplingParams, found {type(params).__name__}")
    fields = params._fields()
    if params.logprobs is not None:
        fields["logprobs"] = params.logprobs
    return fields


def _text(kv: Recipe | str | None) -> str | None:
    return None if kv is None else str(kv)


def _output(question: str, answer: _core.Answer, params: SamplingParams) -> RequestOutput:
    logprobs = tuple(TokenLogprob(t, p, tuple(top)) for t, p, top in answer.scores)
    output = CompletionOutput(
        index=0,
        text=answer.text,
        token_ids=tuple(answer.tokens),
        finish_reason=answer.finish_reason,
        logprobs=logprobs if params.logprobs is not None else None,
    )
    stats = Stats(
        num_prompt_tokens=answer.prompt_tokens + answer.shared_tokens,
        num_cached_tokens=answer.shared_tokens,
        num_generated_tokens=answer.answer_tokens,
        prefill_seconds=answer.prefill_seconds,
        decode_seconds=answer.decode_seconds,
        kv=answer.kv,
    )
    return RequestOutput(question, (), (output,), stats)


def _chunks(
    stream: _core.SessionStream, question: str, params: SamplingParams
) -> Generator[Chunk, None, None]:
    try:
        while (text := stream.next()) is not None:
            yield Chunk(text)
        output = _output(question, stream.answer(), params)
        yield Chunk("", finish_reason=output.outputs[0].finish_reason, output=output)
    finally:
        stream.close()

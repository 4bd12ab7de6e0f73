"""A model that answers many callers at once."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import weakref
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Union

import numpy as np
from numpy.typing import NDArray

from . import _core
from ._error import Error
from .outputs import Chunk, CompletionOutput, KvEvent, RequestOutput, Scores, Stats, TokenLogprob
from .recipe import Recipe
from .sampling import SamplingParams

if TYPE_CHECKING:
    from .session import Session

Prompt = Union[str, Sequence[int]]
"""A text, which is tokenized with the token that begins a sequence, or token ids, which are taken as they are."""

_engines: weakref.WeakSet[_core.Engine] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """The engine's threads end before the interpreter does."""
    for engine in list(_engines):
        engine.close()
    _core.drain(10.0)


class LLM:
    """A loaded model: its weights, its KV cache, and a thread that runs the steps for all callers.

    >>> with mneme.LLM("model.gguf", kv=mneme.Recipe("freekv", budget=2048)) as llm:
    ...     print(llm.generate("Once upon a time")[0].text)

    Requests of different threads, tasks and sessions are computed in one batch. Every method may be called from any
    thread; the GIL is free while the engine computes.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        device: Literal["cpu", "cuda"] = "cpu",
        gpu_layers: int | Literal["auto"] = "auto",
        max_model_len: int = 0,
        kv: Recipe | str = "full",
        kv_cache_dtype: Literal["bf16", "f16", "int8", "fp8"] = "bf16",
        kv_store: Literal["auto", "device", "host"] = "auto",
        kv_memory_bytes: int = 0,
        threads: int = 0,
        pin_threads: bool = True,
        numa: Literal["none", "distribute", "isolate"] = "none",
        tensor_parallel_size: int = 1,
        max_num_seqs: int = 16,
        max_num_batched_tokens: int = 1024,
        inter_token_ms: float = 0.0,
        kv_admission: Literal["reserve", "forecast"] = "reserve",
        enable_prefix_caching: bool = True,
        kv_host_bytes: int = 0,
        kv_disk: str | os.PathLike[str] | None = None,
        kv_disk_bytes: int = 16 << 30,
        kv_events: bool = False,
        stream_interval_ms: float = 20.0,
        deterministic: bool = False,
        audit_every: int = 0,
        chat_template: str | None = None,
    ) -> None:
        """Reads the weights and starts the threads.

        Args:
            model: a .gguf file, or a Hugging Face folder.
            device: where the model computes.
            gpu_layers: with device="cuda": the number of first layers whose weights are in its memory; every step reads
                those of the others over the link; "auto": as many as fit.
            max_model_len: longest sequence, tokens; 0: what the model was made for.
            kv: how requests attend that name no recipe of their own; "auto": full attention, and the method "mneme"
                where device="cuda" keeps the KV cache in the host's memory.
            kv_cache_dtype: type of the KV cache; "int8" and "fp8" take half the memory.
            kv_store: where to store the KV cache with device="cuda".
            kv_memory_bytes: size of the KV cache of all sequences; 0: half of the free memory at most.
            threads: 0: one per CPU that the process may use.
            pin_threads: each thread to one CPU.
            numa: where threads and memory go on a machine with several memory nodes.
            tensor_parallel_size: only 1.
            max_num_seqs: sequences that run at the same time.
            max_num_batched_tokens: tokens of one step, prefill chunks included.
            inter_token_ms: the longest wait for an answer's next token while prompts are read: steps read fewer prompt
                tokens to keep it; 0: steps are full.
            kv_admission: a request starts when the KV cache has room for all it may need ("reserve"), or for its prompt
                and an answer as long as recent ones ("forecast"): more run at once; if the forecast was too short, the
                least urgent waits and is computed again.
            enable_prefix_caching: requests begin from the pages of others with the same prefix.
            kv_host_bytes: page-locked host memory, a second tier of the device's KV cache, for prompts that may recur
                and for answers that wait; 0: none.
            kv_disk: a folder for the KV cache of prompts that may come again: more of them than memory holds, also
                after a restart.
            kv_disk_bytes: its size; the least recently used entries are evicted.
            kv_events: keep news of these pages for kv_events(), which has to be called then.
            stream_interval_ms: pieces of streams wait so long for others, as to wake a reader takes time from threads
                that compute; first and last ones never. 0: every token on its own.
            deterministic: the same tokens whatever else is in the batch, a little slower; device="cpu" alone.
            audit_every: every n-th step also computes the true attention, for Stats.kv.audit; 0: never.
            chat_template: Jinja, in place of the model's own.

        Raises:
            mneme.Error: kind "file", "format", "unsupported", "option", "resource" or "device".
            TypeError: an argument of another type.
        """
        if tensor_parallel_size != 1:
            raise Error(f"tensor_parallel_size: expected 1, found {tensor_parallel_size!r}", "unsupported")
        options = {
            "device": _expect("device", device, str),
            "gpu_layers": str(_expect("gpu_layers", gpu_layers, (int, str))),
            "max_model_len": _expect("max_model_len", max_model_len, int),
            "kv": _kv_text(kv),
            "kv_cache_dtype": _expect("kv_cache_dtype", kv_cache_dtype, str),
            "kv_store": _expect("kv_store", kv_store, str),
            "kv_memory_bytes": _expect("kv_memory_bytes", kv_memory_bytes, int),
            "threads": _expect("threads", threads, int),
            "pin_threads": bool(pin_threads),
            "numa": _expect("numa", numa, str),
            "max_num_seqs": _expect("max_num_seqs", max_num_seqs, int),
            "max_num_batched_tokens": _expect("max_num_batched_tokens", max_num_batched_tokens, int),
            "inter_token_ms": float(_expect("inter_token_ms", inter_token_ms, (int, float))),
            "kv_admission": _expect("kv_admission", kv_admission, str),
            "enable_prefix_caching": bool(enable_prefix_caching),
            "kv_host_bytes": _expect("kv_host_bytes", kv_host_bytes, int),
            "kv_disk": "" if kv_disk is None else os.fspath(kv_disk),
            "kv_disk_bytes": _expect("kv_disk_bytes", kv_disk_bytes, int),
            "kv_events": bool(kv_events),
            "stream_interval_ms": float(_expect("stream_interval_ms", stream_interval_ms, (int, float))),
            "deterministic": bool(deterministic),
            "audit_every": _expect("audit_every", audit_every, int),
            "chat_template": chat_template or "",
        }
        self.model = os.fspath(model)
        self._engine = _core.Engine(self.model, options)
        _engines.add(self._engine)
        self._boxes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Box] = weakref.WeakKeyDictionary()

    # ---- answers

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        kv: Recipe | str | None = None,
    ) -> list[RequestOutput]:
        """Answers to prompts, in their order, computed together.

        Args:
            prompts: one, or several.
            params: for all, or one for each; None: the defaults.
            kv: how these requests attend; None: as the LLM does.

        Raises:
            mneme.Error: kind "request": longer than the context, closed; "option": sampling, recipe; "device".
            KeyboardInterrupt: Ctrl-C; the requests are ended.
        """
        batch = _prompts(prompts)
        each = [params] * len(batch) if params is None or isinstance(params, SamplingParams) else list(params)
        if len(each) != len(batch):
            raise Error(f"params: expected one, or {len(batch)} as there are prompts, found {len(each)}", "option")
        requests: list[_Request] = []
        try:
            for prompt, p in zip(batch, each):
                requests.append(self._submit(prompt, p, kv, stream=False))
            return [r.output() for r in requests]
        finally:
            for r in requests:
                r.end()

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        *,
        kv: Recipe | str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **template: Any,
    ) -> RequestOutput:
        """The answer to a conversation, framed as the model was trained.

        Args:
            messages: as OpenAI's: {"role": "user", "content": "..."}, the user's at the end.
            tools: where the model's chat template has a place for them.
            template: further names of the template (enable_thinking=False).

        Raises:
            mneme.Error: as generate(); kind "request": no message, roles out of order.
        """
        return self.generate(self.chat_tokens(messages, tools=tools, **template), params, kv=kv)[0]

    def chat_tokens(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **template: Any,
    ) -> list[int]:
        """The tokens of a conversation, up to where the next answer begins. Raises as chat()."""
        body: dict[str, Any] = {"messages": list(messages)}
        if tools is not None:
            body["tools"] = list(tools)
        if template:
            body["chat_template_kwargs"] = template
        return self._engine.chat_tokens(json.dumps(body))

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, kv: Recipe | str | None = None
    ) -> Iterator[Chunk]:
        """The answer piece by piece; the last piece has all of it. Left early, the answer ends before the next step.

        Raises:
            mneme.Error: as generate(), at the first piece.
        """
        _expect_single(params)
        request = self._submit(prompt, params, kv, stream=True)
        return _chunks(request)

    async def astream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, kv: Recipe | str | None = None
    ) -> AsyncIterator[Chunk]:
        """The same for asyncio. A cancelled task, or a loop that is left, ends the answer before the next step.

        Raises:
            mneme.Error: as generate(), at the first piece.
        """
        _expect_single(params)
        loop = asyncio.get_running_loop()
        box = self._boxes.get(loop)
        if box is None:
            box = self._boxes[loop] = _Box(loop)
        request = self._submit(prompt, params, kv, stream=True, box=box)
        try:
            while True:
                await box.news(request.core.number)
                for chunk in request.chunks():
                    yield chunk
                    if chunk.finish_reason is not None:
                        return
        finally:
            box.forget(request.core.number)
            request.end()

    async def agenerate(
        self, prompt: Prompt, params: SamplingParams | None = None, *, kv: Recipe | str | None = None
    ) -> RequestOutput:
        """The whole answer, for asyncio. Raises as generate()."""
        async for chunk in self.astream(prompt, params, kv=kv):
            if chunk.output is not None:
                return chunk.output
        raise AssertionError("a stream ends with its output")

    # ---- scores

    def score(self, prompt: Prompt, *, top: int = 0, kv: Recipe | str | None = None) -> Scores:
        """Log-probabilities of a prompt's tokens but the first, in one prefill.

        Args:
            top: so many of the likeliest tokens in each one's place.

        Raises:
            mneme.Error: kind "request": fewer than two tokens, longer than the context.
        """
        return self.scores([prompt], top=top, kv=kv)[0]

    def scores(
        self, prompts: Sequence[Prompt], *, top: int = 0, kv: Recipe | str | None = None
    ) -> list[Scores]:
        """score() of several prompts, computed together."""
        requests: list[_Request] = []
        try:
            for prompt in prompts:
                requests.append(self._submit(prompt, SamplingParams(max_tokens=0), kv, stream=False, score=top))
            return [r.scores(top) for r in requests]
        finally:
            for r in requests:
                r.end()

    def logits(self, prompt: Prompt, rows: slice = slice(None)) -> NDArray[np.float32]:
        """What the model says after tokens of a prompt, before any sampling option: float32 [rows, vocabulary].

        The array is read-only and owns its memory, 4 bytes times vocabulary a row; nothing is copied.

        Args:
            rows: of the prompt's tokens; row i is about the token that follows token i.

        Raises:
            mneme.Error: kind "request": longer than the context; "option": `rows` holds no token.
        """
        tokens = self._tokens(prompt)
        begin, end, step = rows.indices(len(tokens))
        if step != 1 or end <= begin:
            raise Error(f"rows: expected a range with at least one of {len(tokens)} tokens, found {rows}", "option")
        return self._engine.logits(tokens, begin, end)

    # ---- sessions

    def session(self, *, kv: Recipe | str | None = None) -> Session:
        """A conversation with its KV cache: read a document once, ask, fork, save."""
        from .session import Session

        return Session(self, kv=kv)

    def restore(self, path: str | os.PathLike[str]) -> Session:
        """The session that Session.save() wrote, with nothing to compute again.

        Raises:
            mneme.Error: kind "file", "format", "unsupported", "request" (another model's), "resource".
        """
        from .session import Session

        return Session._of(self, _core.Session.restore(self._engine, os.fspath(path)))

    # ---- text and tokens

    def tokenize(self, text: str, *, special: bool = False, bos: bool = False) -> list[int]:
        """Token ids of a text.

        Args:
            special: special tokens written in the text are those tokens, not ordinary characters.
            bos: begin with the token that begins a sequence, where the model has one.
        """
        return self._engine.tokenize(text, special, bos)

    def detokenize(self, token_ids: Sequence[int], *, special: bool = False) -> str:
        """The text of tokens.

        Args:
            special: special tokens are written ("<|end|>"), not left out.
        """
        return self._engine.detokenize(list(token_ids), special)

    @property
    def info(self) -> _core.ModelInfo:
        """What the model is: name, architecture, context, vocabulary, layers."""
        return self._engine.info

    @property
    def max_model_len(self) -> int:
        """Longest sequence, tokens, in force."""
        return self._engine.max_model_len

    @property
    def eos_token_ids(self) -> list[int]:
        """Tokens that end an answer."""
        return self._engine.end_tokens

    def kv_events(self) -> list[KvEvent]:
        """Pages that the prefix cache has stored or evicted since the last call, for routers that know prefixes."""
        return [KvEvent(stored, h, parent, tuple(t)) for stored, h, parent, t in self._engine.take_kv_events()]

    @property
    def num_kv_blocks(self) -> int:
        """Pages of 32 tokens, of all layers and KV heads, that the KV cache has room for."""
        return self._engine.kv_blocks // self._engine.kv_blocks_per_page

    # ---- the end

    def close(self) -> None:
        """Ends what runs and frees the model; waiting calls raise. Sessions keep it until they are freed."""
        self._engine.close()

    @property
    def closed(self) -> bool:
        """close() was called."""
        return self._engine.closed

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"LLM({self.model!r}{', closed' if self.closed else ''})"

    # ---- inside

    def _tokens(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self._engine.tokenize(prompt, True, True)
        return [int(t) for t in prompt]

    def _submit(
        self,
        prompt: Prompt,
        params: SamplingParams | None,
        kv: Recipe | str | None,
        *,
        stream: bool,
        score: int | None = None,
        box: _Box | None = None,
    ) -> _Request:
        if params is not None and not isinstance(params, SamplingParams):
            raise TypeError(f"params: expected SamplingParams, found {type(params).__name__}")
        params = params or SamplingParams()
        tokens = self._tokens(prompt)
        recipe = None if kv is None else _kv_text(kv)
        core = self._engine.submit(tokens, params._fields(), recipe, stream, score, box.core if box else None)
        return _Request(core, prompt if isinstance(prompt, str) else None, tokens, params)


class _Request:
    """A request, and what came of it so far."""

    def __init__(self, core: _core.Request, prompt: str | None, tokens: list[int], params: SamplingParams) -> None:
        self.core = core
        self.prompt = prompt
        self.tokens = tokens
        self.params = params
        self.pieces: list[list[_core.Piece]] = [[] for _ in range(params.n)]

    def output(self) -> RequestOutput:
        self.core.wait(True)
        for i, pieces in enumerate(self.pieces):
            pieces.append(self.core.take(i))
        return self._whole()

    def chunks(self) -> Iterator[Chunk]:
        """What is there of the only answer."""
        piece = self.core.take(0)
        self.pieces[0].append(piece)
        tokens = piece.tokens
        if not (tokens or piece.text or piece.end):
            return
        yield Chunk(
            text=piece.text,
            token_ids=tuple(t[0] for t in tokens),
            logprobs=_logprobs(tokens) if self.params.logprobs is not None else None,
            finish_reason=piece.end.finish_reason if piece.end else None,
            output=self._whole() if piece.end else None,
        )

    def scores(self, top: int) -> Scores:
        self.core.wait(True)
        logprobs, likeliest = self.core.prompt_scores()
        return Scores(
            token_ids=tuple(self.tokens[len(self.tokens) - len(logprobs) :]),
            logprobs=logprobs,
            top=tuple(tuple(t) for t in likeliest) if top else (),
        )

    def end(self) -> None:
        if not self.core.ended:
            self.core.cancel()

    def _whole(self) -> RequestOutput:
        outputs = []
        ends = []
        for i, pieces in enumerate(self.pieces):
            tokens = [t for p in pieces for t in p.tokens]
            end = pieces[-1].end
            assert end is not None
            ends.append(end)
            outputs.append(
                CompletionOutput(
                    index=i,
                    text="".join(p.text for p in pieces),
                    token_ids=tuple(t[0] for t in tokens),
                    finish_reason=end.finish_reason,
                    logprobs=_logprobs(tokens) if self.params.logprobs is not None else None,
                    page_reads=pieces[-1].page_reads if self.params.page_reads else None,
                )
            )
        n_prompt, n_cached = self.core.prompt_tokens()
        stats = Stats(
            num_prompt_tokens=n_prompt,
            num_cached_tokens=n_cached,
            num_generated_tokens=sum(e.tokens for e in ends),
            prefill_seconds=max(e.prefill_seconds for e in ends),
            decode_seconds=max(e.decode_seconds for e in ends),
            kv=ends[0].kv,
        )
        return RequestOutput(self.prompt, tuple(self.tokens), tuple(outputs), stats)


class _Box:
    """Wakes the tasks of one event loop: the engine's thread writes to a descriptor that the loop watches."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.core = _core.Mailbox()
        self.loop = weakref.ref(loop)
        self.waiting: dict[int, asyncio.Event] = {}

    async def news(self, number: int) -> None:
        event = self.waiting.get(number)
        if event is None:
            loop = asyncio.get_running_loop()
            if not self.waiting:
                loop.add_reader(self.core.fd, self.take)
            event = self.waiting[number] = asyncio.Event()
            event.set()  # what came before anybody watched
        await event.wait()
        event.clear()

    def take(self) -> None:
        for number in self.core.take():
            if event := self.waiting.get(number):
                event.set()

    def forget(self, number: int) -> None:
        self.waiting.pop(number, None)
        loop = self.loop()
        if not self.waiting and loop is not None and not loop.is_closed():
            loop.remove_reader(self.core.fd)


def _chunks(request: _Request) -> Iterator[Chunk]:
    try:
        while True:
            request.core.wait(False)
            for chunk in request.chunks():
                yield chunk
                if chunk.finish_reason is not None:
                    return
    finally:
        request.end()


def _logprobs(tokens: list[tuple[int, float, list[tuple[int, float]]]]) -> tuple[TokenLogprob, ...]:
    return tuple(TokenLogprob(t, p, tuple(top)) for t, p, top in tokens)


def _prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, Sequence) and not isinstance(prompts, np.ndarray):
        raise TypeError(f"prompts: expected a text, token ids, or several of these, found {type(prompts).__name__}")
    if len(prompts) > 0 and isinstance(prompts[0], (int, np.integer)):
        return [prompts]  # type: ignore[list-item]
    for p in prompts:
        if not isinstance(p, (str, Sequence, np.ndarray)):
            raise TypeError(f"prompts: expected texts or token ids, found {type(p).__name__}")
    return list(prompts)  # type: ignore[arg-type]


def _expect_single(params: SamplingParams | None) -> None:
    if params is not None and isinstance(params, SamplingParams) and params.n != 1:
        raise Error(f"n: expected 1 for a stream, which has one answer, found {params.n}", "option")


def _kv_text(kv: Recipe | str) -> str:
    if not isinstance(kv, (Recipe, str)):
        raise TypeError(f"kv: expected a Recipe or its text, found {type(kv).__name__}")
    return str(kv)


def _expect(name: str, value: Any, kind: type | tuple[type, ...]) -> Any:
    if not isinstance(value, kind) or (kind is not str and isinstance(value, bool)):
        expected = kind.__name__ if isinstance(kind, type) else "a number"
        raise TypeError(f"{name}: expected {expected}, found {value!r}")
    return value

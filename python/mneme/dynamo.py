"""A worker for NVIDIA Dynamo: ``python -m mneme.dynamo --model FOLDER --discovery-backend file``.

Dynamo's frontend tokenizes, routes by the blocks that workers have cached, and restarts; this worker takes token ids
and gives them back. A request's recipe is an annotation, ``"nvext": {"annotations": ["kv:quest:budget=1024"]}``.
Needs the package ai-dynamo. The guide for several machines has the commands.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from dynamo.common.backend.engine import EngineConfig, LLMEngine, LlmRegistration
from dynamo.common.backend.publisher import ComponentSnapshot, KvEventSource, PushSource
from dynamo.common.backend.run import run
from dynamo.common.backend.worker import WorkerConfig

import mneme

_BLOCK = 32  # tokens of a page
_PUBLISH_SECONDS = 0.05  # between looks at what the prefix cache stored and evicted


class Worker(LLMEngine):  # type: ignore[misc]
    """One LLM behind Dynamo's request plane; concurrent requests share its steps."""

    def __init__(self, model: str, served_name: str | None, options: dict[str, Any]) -> None:
        """The model is read by start(). `options` are keywords of LLM."""
        self._model, self._served_name, self._options = model, served_name, options
        self._llm: mneme.LLM | None = None
        self._snapshots: Any = None
        self._used = 0
        self._stops: dict[str, asyncio.Event] = {}
        self._ends = threading.Event()
        self._publisher: threading.Thread | None = None

    @classmethod
    async def from_args(cls, argv: list[str] | None = None) -> tuple[Worker, WorkerConfig]:
        """Options of the command line; discovery and planes are Dynamo's."""
        parser = argparse.ArgumentParser(prog="python -m mneme.dynamo", description="A Dynamo worker of mneme.")
        parser.add_argument("--model", required=True, help="a Hugging Face folder: the frontend reads its tokenizer")
        parser.add_argument("--served-model-name")
        parser.add_argument("--namespace", default="dynamo")
        parser.add_argument("--component", default="backend")
        parser.add_argument("--endpoint", default="generate")
        parser.add_argument("--discovery-backend", default="etcd", help="etcd, file, ...")
        parser.add_argument("--request-plane", default="tcp")
        parser.add_argument("--event-plane", default="zmq")
        parser.add_argument("--device", default="cpu")
        parser.add_argument("--kv", default="full", help="how requests attend that name no recipe")
        parser.add_argument("--max-model-len", type=int, default=0)
        parser.add_argument("--max-num-seqs", type=int, default=16)
        parser.add_argument("--threads", type=int, default=0)
        parser.add_argument("--kv-admission", default="reserve", help="reserve or forecast")
        parser.add_argument("--inter-token-ms", type=float, default=0.0)
        parser.add_argument("--kv-disk", help="a folder for the KV cache, of this worker alone")
        a = parser.parse_args(argv)
        names = "device kv max_model_len max_num_seqs threads kv_admission inter_token_ms kv_disk"
        options = {k: getattr(a, k) for k in names.split()}
        config = WorkerConfig(
            namespace=a.namespace,
            component=a.component,
            endpoint=a.endpoint,
            model_name=a.model,
            served_model_name=a.served_model_name,
            discovery_backend=a.discovery_backend,
            request_plane=a.request_plane,
            event_plane=a.event_plane,
            use_kv_events=True,
        )
        return cls(a.model, a.served_model_name, options), config

    async def start(self, worker_id: int) -> EngineConfig:
        """Reads the model. Raises mneme.Error as LLM does."""
        self._llm = await asyncio.to_thread(
            lambda: mneme.LLM(self._model, kv_events=True, pin_threads=False, **self._options)
        )
        return EngineConfig(
            model=self._model,
            served_model_name=self._served_name,
            llm=LlmRegistration(
                context_length=self._llm.max_model_len,
                kv_cache_block_size=_BLOCK,
                total_kv_blocks=self._llm.num_kv_blocks,
                max_num_seqs=self._options["max_num_seqs"],
                max_num_batched_tokens=1024,
            ),
        )

    # ---- requests

    async def generate(self, request: dict[str, Any], context: Any) -> AsyncGenerator[dict[str, Any], None]:
        """Token ids of an answer as they come; the last chunk says why it ended and what it used."""
        assert self._llm is not None
        prompt = list(request["token_ids"])
        stream = self._llm.astream(prompt, _params(request, self._llm, len(prompt)), kv=_recipe(request))
        stops = self._stops[context.id()] = asyncio.Event()
        n, reason, cached = 0, None, None
        try:
            # While a prompt is read no piece comes at which to look whether anybody still waits.
            chunk = await _unless(stops, stream)
            while chunk is not None and reason is None:
                n += len(chunk.token_ids)
                reason = chunk.finish_reason or ("cancelled" if context.is_stopped() else None)
                if chunk.output is not None:
                    cached = chunk.output.stats.num_cached_tokens
                if reason is None:
                    if chunk.token_ids:
                        yield {"token_ids": list(chunk.token_ids), "index": 0}
                    chunk = await anext(stream)
            usage: dict[str, Any] = {"prompt_tokens": len(prompt), "completion_tokens": n}
            usage["total_tokens"] = len(prompt) + n
            if cached is not None:
                usage["prompt_tokens_details"] = {"cached_tokens": cached}
            last = list(chunk.token_ids) if chunk is not None else []
            yield {
                "token_ids": last,
                "index": 0,
                "finish_reason": reason or "cancelled",
                "completion_usage": usage,
            }
        finally:
            del self._stops[context.id()]
            await stream.aclose()  # type: ignore[attr-defined]
            if reason in (None, "cancelled"):
                logging.getLogger("mneme.dynamo").warning("request %s: cancelled after %d tokens", context.id(), n)

    async def abort(self, context: Any) -> None:
        """The client has gone: the answer ends before the next step."""
        if stops := self._stops.get(context.id()):
            stops.set()

    # ---- what the router knows

    async def kv_event_sources(self) -> list[KvEventSource]:
        """Blocks that the prefix cache stores and evicts."""
        return [PushSource(on_ready=self._publish, dp_rank=0)]

    def component_metrics_dp_ranks(self) -> list[int]:
        """One rank: this worker."""
        return [0]

    def attach_snapshot_publisher(self, publisher: Any) -> None:
        """Where the share of used blocks goes."""
        self._snapshots = publisher

    def _publish(self, publisher: Any) -> None:
        self._publisher = threading.Thread(target=self._publish_events, args=(publisher,), daemon=True)
        self._publisher.start()

    def _publish_events(self, publisher: Any) -> None:
        while not self._ends.wait(_PUBLISH_SECONDS):
            llm = self._llm
            if llm is None or llm.closed:
                continue
            for event in llm.kv_events():
                try:
                    if event.stored:
                        publisher.publish_stored(
                            list(event.token_ids), [len(event.token_ids)], [event.block_hash], event.parent_hash
                        )
                    else:
                        publisher.publish_removed([event.block_hash])
                except Exception:
                    logging.exception("a KV event was not published")
                self._used += 1 if event.stored else -1
            if self._snapshots is not None:
                total = llm.num_kv_blocks
                self._snapshots.publish(
                    0,
                    ComponentSnapshot(
                        kv_used_blocks=self._used, kv_total_blocks=total, gpu_cache_usage=self._used / total, dp_rank=0
                    ),
                )

    async def cleanup(self) -> None:
        """Ends the publisher and the model."""
        self._ends.set()
        if self._publisher is not None:
            await asyncio.to_thread(self._publisher.join)
        if self._llm is not None:
            await asyncio.to_thread(self._llm.close)


async def _unless(stops: asyncio.Event, stream: AsyncIterator[mneme.Chunk]) -> mneme.Chunk | None:
    """A stream's first piece; None: told to stop before it came."""
    first, stopped = asyncio.ensure_future(anext(stream)), asyncio.ensure_future(stops.wait())
    try:
        await asyncio.wait({first, stopped}, return_when=asyncio.FIRST_COMPLETED)
        return await first if first.done() else None
    finally:
        stopped.cancel()
        if not first.done():
            first.cancel()
            await asyncio.wait({first})


def _recipe(request: dict[str, Any]) -> str | None:
    """The text after "kv:" of an annotation; None: there is none."""
    for annotation in request.get("annotations") or []:
        if isinstance(annotation, str) and annotation.startswith("kv:"):
            return annotation[3:]
    return None


def _params(request: dict[str, Any], llm: mneme.LLM, n_prompt: int) -> mneme.SamplingParams:
    """Dynamo's sampling options and stop conditions as SamplingParams."""
    sampling = {k: v for k, v in (request.get("sampling_options") or {}).items() if v is not None}
    stop = request.get("stop_conditions") or {}
    temperature = sampling.get("temperature", 1.0)
    return mneme.SamplingParams(
        temperature=float(temperature),
        top_k=max(0, int(sampling.get("top_k", 0))),
        top_p=float(sampling.get("top_p", 1.0)),
        min_p=float(sampling.get("min_p", 0.0)),
        repetition_penalty=float(sampling.get("repetition_penalty", 1.0)),
        presence_penalty=float(sampling.get("presence_penalty", 0.0)),
        frequency_penalty=float(sampling.get("frequency_penalty", 0.0)),
        seed=sampling.get("seed"),
        max_tokens=int(stop.get("max_tokens") or max(1, llm.max_model_len - n_prompt)),
        stop=stop.get("stop") or None,
        stop_token_ids=stop.get("stop_token_ids_hidden") or None,
        ignore_eos=bool(stop.get("ignore_eos")),
    )


if __name__ == "__main__":
    run(Worker)

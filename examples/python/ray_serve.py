"""Two replicas behind Ray Serve, tokens streamed: `pip install "ray[serve]" mneme-engine`, then
`serve run examples.python.ray_serve:app` and `curl -N localhost:8000 -d '{"prompt": "Once upon a time"}'`."""

import os
from collections.abc import AsyncIterator

from ray import serve
from starlette.requests import Request
from starlette.responses import StreamingResponse

import mneme


@serve.deployment(num_replicas=2, max_ongoing_requests=64, ray_actor_options={"num_cpus": 1})
class Replica:
    def __init__(self, model: str) -> None:
        self.llm = mneme.LLM(model, threads=1, pin_threads=False)

    async def answer(self, body: dict[str, object]) -> AsyncIterator[str]:
        params = mneme.SamplingParams(max_tokens=int(str(body.get("max_tokens", 64))))
        kv = body.get("kv")  # a recipe's text: "quest:budget=1024"
        async for chunk in self.llm.astream(str(body["prompt"]), params, kv=str(kv) if kv else None):
            yield chunk.text  # a client that goes away ends the answer

    async def __call__(self, request: Request) -> StreamingResponse:
        return StreamingResponse(self.answer(await request.json()), media_type="text/plain")


app = Replica.bind(os.environ.get("MNEME_MODEL", "models/needle-27m-q8_0.gguf"))

"""Two workers behind Dynamo's own frontend on loopback: discovery by files, routing by cached blocks."""

import asyncio
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

import mneme
from conftest import MODEL, ROOT, start

pytest.importorskip("dynamo.common.backend")
pytest.importorskip("transformers")

FOLDER = ROOT / "tests" / "golden" / "data" / "llama-f32"
CONTEXT = 32768  # its answers take seconds


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


class Frontend(NamedTuple):
    """Dynamo's frontend with two workers behind it."""

    url: str
    model: str
    log: pathlib.Path

    def body(self, prompt: list[int], annotations: list[str] | None = None, **more: Any) -> dict[str, Any]:
        nvext: dict[str, Any] = {"extra_fields": ["worker_id"], "annotations": annotations or []}
        settings = {"max_tokens": 8, "temperature": 0, "ignore_eos": True, "nvext": nvext}
        return {"model": self.model, "prompt": prompt, **settings, **more}

    def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            self.url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return dict(json.load(reply))
        except urllib.error.HTTPError as e:
            raise AssertionError(e.read().decode()) from e


def cached(answer: dict[str, Any]) -> int:
    return int((answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0)


def worker(answer: dict[str, Any]) -> int:
    return int(answer["nvext"]["worker_id"]["decode_worker_id"])


def started(url: str, folder: pathlib.Path, processes: list[subprocess.Popen[bytes]]) -> Frontend:
    """Waits for the model and for both workers."""
    for _ in range(600):
        assert all(p.poll() is None for p in processes), (folder / "log").read_text()
        instances = list((folder / "kv").glob("v1/instances/*generate*"))
        try:
            with urllib.request.urlopen(url + "/v1/models", timeout=5) as reply:
                models = json.load(reply)["data"]
                if models and len(instances) >= 2:
                    return Frontend(url, models[0]["id"], folder / "log")
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.2)
    pytest.fail((folder / "log").read_text())


@pytest.fixture(scope="module")
def frontend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frontend]:
    tmp_path = tmp_path_factory.mktemp("dynamo")
    model = tmp_path / "model"
    model.mkdir()
    for name in ("model.safetensors", "tokenizer.json"):
        (model / name).write_bytes((FOLDER / name).read_bytes())
    config = json.loads((FOLDER / "config.json").read_text())
    config["max_position_embeddings"] = CONTEXT
    (model / "config.json").write_text(json.dumps(config))
    (model / "tokenizer_config.json").write_text(json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
            }
        ))
    (tmp_path / "kv").mkdir()
    env = dict(os.environ, DYN_FILE_KV=str(tmp_path / "kv"), DYN_LOG="warn")
    port = free_port()
    planes = ["--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq"]
    frontend = [sys.executable, "-m", "dynamo.frontend", "--http-port", str(port), "--router-mode", "kv",
                "--kv-cache-block-size", "32", *planes]
    worker = [sys.executable, "-m", "mneme.dynamo", "--model", str(model), "--threads", "1", *planes]
    with open(tmp_path / "log", "w") as log:
        processes = [subprocess.Popen(c, env=env, stdout=log, stderr=log) for c in (frontend, worker, worker)]
        try:
            yield started(f"http://127.0.0.1:{port}", tmp_path, processes)
        finally:
            for p in processes[::-1]:
                p.send_signal(signal.SIGTERM)
            for p in processes:
                try:
                    p.wait(30)
                except subprocess.TimeoutExpired:
                    p.kill()


def document(n: int, *question: int) -> list[int]:
    """Two pages of a document's own tokens, and a question."""
    return [1, *[5 + n % 40] * 15, *[5 + n // 40] * 16, *[5 + n % 40] * 32, *question]


def test_answers_through_dynamos_frontend(frontend: Frontend) -> None:
    body = frontend.body(document(1000, 5, 6, 7))
    first, again = frontend.ask(body), frontend.ask(body)
    assert first["usage"]["completion_tokens"] == 8
    assert first["choices"][0]["text"] == again["choices"][0]["text"]
    assert cached(first) == 0
    recipe = frontend.body(document(1001, 5), annotations=["kv:window:budget=16,sink=2,recent=14"])
    assert frontend.ask(recipe)["usage"]["completion_tokens"] == 8


def test_questions_go_to_the_worker_that_has_their_document(frontend: Frontend) -> None:
    # The router hears of a worker's pages some time after their answer: where it had not, another document is asked
    # about, and waited for longer. By chance six documents keep their worker in one of 260,000 runs.
    kept, pause, n = 0, 0.25, 0
    homes = set()
    while kept < 6:
        first = frontend.ask(frontend.body(document(n, 50)))
        assert cached(first) == 0
        homes.add(worker(first))
        time.sleep(pause)
        answers = [frontend.ask(frontend.body(document(n, 51 + i))) for i in range(3)]
        if {worker(a) for a in answers} == {worker(first)}:
            assert [cached(a) for a in answers] == [64] * 3
            kept += 1
        else:
            pause *= 2
            assert pause < 60, "questions do not follow their documents"
        n += 1
    while len(homes) < 2:  # and both workers answer
        homes.add(worker(frontend.ask(frontend.body(document(n, 50)))))
        n += 1
        assert n < 150, "one worker gets everything"


def test_an_answer_that_its_client_leaves_ends(frontend: Frontend) -> None:
    for n in range(20):  # an answer may end before its client has left
        body = frontend.body(document(200 + n, 50), max_tokens=CONTEXT - 100, stream=True)
        request = urllib.request.Request(
            frontend.url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            assert reply.readline().startswith(b"data:")
        for _ in range(10):
            if "cancelled after" in frontend.log.read_text():
                return
            time.sleep(0.1)
    pytest.fail("no answer was cancelled: " + frontend.log.read_text()[-2000:])


class Context:
    """What generate() and abort() ask of Dynamo's."""

    def __init__(self) -> None:
        self.stopped = False

    def id(self) -> str:
        return "1"

    def is_stopped(self) -> bool:
        return self.stopped


async def test_a_prompt_that_its_client_leaves_is_not_read_to_its_end() -> None:
    from mneme.dynamo import Worker

    worker = Worker(str(MODEL), None, {})
    worker._llm = llm = start(max_num_seqs=1, max_num_batched_tokens=32)
    context = Context()
    request = {"token_ids": llm.tokenize("Once upon a time. " * 400)[:1900], "stop_conditions": {"max_tokens": 50}}

    async def read() -> list[dict[str, Any]]:
        return [chunk async for chunk in worker.generate(request, context)]

    task = asyncio.create_task(read())
    while not worker._stops:
        await asyncio.sleep(0)
    context.stopped = True
    await worker.abort(context)
    assert (await task)[-1]["finish_reason"] == "cancelled"
    after = await llm.agenerate("One", mneme.SamplingParams(max_tokens=2, ignore_eos=True))
    assert after.stats.num_generated_tokens == 2 and worker._stops == {}
    await worker.cleanup()

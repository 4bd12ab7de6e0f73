"""Two workers behind Dynamo's own frontend on loopback: discovery by files, routing by cached blocks."""

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
from typing import Any

import pytest

from conftest import ROOT

pytest.importorskip("dynamo.common.backend")
pytest.importorskip("transformers")

FOLDER = ROOT / "tests" / "golden" / "data" / "llama-f32"


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def ask(url: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return dict(json.load(reply))
    except urllib.error.HTTPError as e:
        raise AssertionError(e.read().decode()) from e


@pytest.fixture
def frontend(tmp_path: pathlib.Path) -> Iterator[str]:
    model = tmp_path / "model"
    model.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (model / name).write_bytes((FOLDER / name).read_bytes())
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
            url = f"http://127.0.0.1:{port}"
            for _ in range(300):
                assert all(p.poll() is None for p in processes), (tmp_path / "log").read_text()
                try:
                    with urllib.request.urlopen(url + "/v1/models", timeout=5) as reply:
                        if json.load(reply)["data"]:
                            break
                except (urllib.error.URLError, OSError):
                    pass
                time.sleep(0.2)
            else:
                pytest.fail((tmp_path / "log").read_text())
            yield url
        finally:
            for p in processes[::-1]:
                p.send_signal(signal.SIGTERM)
            for p in processes:
                try:
                    p.wait(30)
                except subprocess.TimeoutExpired:
                    p.kill()


def test_answers_through_dynamos_frontend(frontend: str) -> None:
    with urllib.request.urlopen(frontend + "/v1/models") as reply:
        model = json.load(reply)["data"][0]["id"]
    body = {"model": model, "prompt": [1, 5, 6, 7] * 10, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    first, again = ask(frontend, body), ask(frontend, body)
    assert first["usage"]["completion_tokens"] == 8
    assert first["choices"][0]["text"] == again["choices"][0]["text"]
    # A page of the prompt was computed for it before, by this worker or by the other one.
    assert first["usage"].get("prompt_tokens_details", {}).get("cached_tokens", 0) == 0
    for _ in range(8):
        cached = (ask(frontend, body)["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    assert cached == 32
    recipe = dict(body, nvext={"annotations": ["kv:window:budget=16,sink=2,recent=14"]})
    assert ask(frontend, recipe)["usage"]["completion_tokens"] == 8

"""The OpenAI-compatible server, as a context manager."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Union

from ._error import Error
from ._program import command
from .recipe import Recipe

ApiKeys = Union[str, "os.PathLike[str]", Sequence[Mapping[str, Any]]]


class Server:
    """A server that runs: where it listens, and what it counts."""

    def __init__(self, url: str, process: subprocess.Popen[str], api_key: str | None) -> None:
        self.url = url
        """``http://127.0.0.1:PORT``; the API is below ``/v1``."""
        self.process = process
        self._api_key = api_key

    def openai(self, **options: Any) -> Any:
        """OpenAI's own client of this server (needs the package openai)."""
        import openai

        options.setdefault("api_key", self._api_key or "none")
        return openai.OpenAI(base_url=self.url + "/v1", **options)

    def metrics(self) -> dict[str, float]:
        """What the server counts, by Prometheus' name with its labels."""
        request = urllib.request.Request(self.url + "/metrics")
        if self._api_key:
            request.add_header("Authorization", f"Bearer {self._api_key}")
        with urllib.request.urlopen(request) as reply:
            lines = reply.read().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in pairs}


def _flags(options: dict[str, Any]) -> list[str]:
    flags: list[str] = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is None or value is False:
            if name == "enable_prefix_caching" and value is False:
                flags.append("--no-enable-prefix-caching")
            continue
        if name == "kv":
            flags += ["--kv", str(value)]
        elif value is True:
            flags.append(flag)
        else:
            values = value if isinstance(value, (list, tuple)) else [value]
            for each in values:
                flags += [flag, os.fspath(each) if isinstance(each, os.PathLike) else str(each)]
    return flags


@contextlib.contextmanager
def _key_file(keys: ApiKeys | None) -> Iterator[str | None]:
    """The path that --api-keys takes; keys themselves are in a file of this process's user while the server runs."""
    if keys is None or isinstance(keys, (str, os.PathLike)):
        yield None if keys is None else os.fspath(keys)
        return
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"keys": [dict(key) for key in keys]}, file)
        file.flush()
        yield file.name


@contextlib.contextmanager
def serve(
    model: str | os.PathLike[str],
    *,
    port: int = 0,
    kv: Recipe | str | None = None,
    api_key: str | None = None,
    api_keys: ApiKeys | None = None,
    **options: Any,
) -> Iterator[Server]:
    """``mneme serve`` in a process of its own, ended with the block; answers that run may finish within 30 seconds.

    >>> with mneme.serve("model.gguf", kv="freekv") as server:
    ...     client = server.openai()

    Args:
        port: 0: any that is free.
        kv: how requests attend that name no method.
        api_key: answer only requests that have it.
        api_keys: more keys, each with its priority and limits: the file of ``--api-keys``, or the keys themselves,
            {"key": "...", "name": "...", "priority": 0, "max_running": 0, "max_in_flight": 0}.
        options: those of ``mneme serve`` with underscores: max_model_len=8192, kv_admission="forecast",
            inter_token_ms=50, kv_disk=folder, quiet=True, no_pin=True; a list repeats its option.

    Raises:
        mneme.Error: kind "option": the server did not start; the message is its own.
    """
    own = api_key or (None if api_keys is None or isinstance(api_keys, (str, os.PathLike)) else api_keys[0]["key"])
    with tempfile.TemporaryFile("w+") as log, _key_file(api_keys) as keys:
        flags = _flags({"port": port, "kv": kv, "api_key": api_key, "api_keys": keys, **options})
        process = subprocess.Popen(
            command("serve", "-m", os.fspath(model), *flags), stdout=subprocess.PIPE, stderr=log, text=True
        )
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line.startswith("listening on "):
                process.wait()
                log.seek(0)
                lines = [text for text in log.read().splitlines() if text.startswith("mneme: error: ")]
                message = lines[-1].removeprefix("mneme: error: ") if lines else f"it ended with {process.returncode}"
                raise Error(f"the server did not start: {message}", "option")
            yield Server(line.split()[-1], process, own)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.wait()
            process.stdout.close()

"""The OpenAI-compatible server, as a context manager."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from typing import Any

from ._error import Error
from ._program import command
from .recipe import Recipe


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

        return openai.OpenAI(base_url=self.url + "/v1", api_key=self._api_key or "none", **options)

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
            method, _, overrides = str(value).partition(":")
            flags += ["--kv-method", method, *(["--kv", overrides] if overrides else [])]
        elif value is True:
            flags.append(flag)
        else:
            flags += [flag, os.fspath(value) if isinstance(value, os.PathLike) else str(value)]
    return flags


@contextlib.contextmanager
def serve(
    model: str | os.PathLike[str],
    *,
    port: int = 0,
    kv: Recipe | str | None = None,
    api_key: str | None = None,
    **options: Any,
) -> Iterator[Server]:
    """``mneme serve`` in a process of its own, ended with the block; answers that run may finish within 30 seconds.

    >>> with mneme.serve("model.gguf", kv="freekv") as server:
    ...     client = server.openai()

    Args:
        port: 0: any that is free.
        kv: how requests attend that name no method.
        options: those of ``mneme serve`` with underscores: max_model_len=8192, quiet=True, no_pin=True.

    Raises:
        mneme.Error: kind "option": the server did not start; the message is its own.
    """
    arguments = ["-m", os.fspath(model), *_flags({"port": str(port), "kv": kv, "api_key": api_key, **options})]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command("serve", *arguments), stdout=subprocess.PIPE, stderr=log, text=True)
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line.startswith("listening on "):
                process.wait()
                log.seek(0)
                lines = [text for text in log.read().splitlines() if text.startswith("mneme: error: ")]
                message = lines[-1].removeprefix("mneme: error: ") if lines else f"it ended with {process.returncode}"
                raise Error(f"the server did not start: {message}", "option")
            yield Server(line.split()[-1], process, api_key)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.wait()
            process.stdout.close()

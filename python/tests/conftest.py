"""The shipped model, started once for all tests; the sources' root is MNEME_ROOT, or found from here."""

import os
import pathlib
from collections.abc import Iterator

import pytest

import mneme

ROOT = pathlib.Path(os.environ.get("MNEME_ROOT", pathlib.Path(__file__).resolve().parent.parent.parent))
MODEL = ROOT / "models" / "needle-27m-q8_0.gguf"
DOCUMENT = (
    "It was a dark evening, and the rain fell upon the roofs of the town.\n"
    "The secret number of silver-harbour is 48213.\n"
    "The old man lit his pipe, and for some time nobody spoke.\n"
    "The secret number of copper-lantern is 70935.\n"
    "Then the clock struck nine, and they went to bed."
)
HARBOUR, LANTERN = (f"What is the secret number of {name}?" for name in ("silver-harbour", "copper-lantern"))


def start(**options: object) -> mneme.LLM:
    settings: dict[str, object] = {
        "max_model_len": 2048,
        "kv_memory_bytes": 256 << 20,
        "max_num_batched_tokens": 64,
        "threads": 2,
        "pin_threads": False,
    }
    settings.update(options)
    return mneme.LLM(MODEL, **settings)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def llm() -> Iterator[mneme.LLM]:
    with start() as model:
        yield model

"""Sessions: a document read once, questions, forks, files."""

import asyncio
import gc
import pathlib

import numpy as np
import pytest

import mneme
from conftest import DOCUMENT, HARBOUR, LANTERN, start


@pytest.fixture
def read(llm: mneme.LLM) -> mneme.Session:
    session = llm.session()
    session.read(DOCUMENT)
    return session


def test_a_document_is_read_once(read: mneme.Session) -> None:
    before = len(read.token_ids)
    first = read.ask(HARBOUR)
    assert first.text.strip() == "48213"
    assert first.stats.num_cached_tokens >= before - 1
    assert read.ask(LANTERN).text.strip() == "70935"


def test_forks_answer_by_themselves_whatever_is_freed_first(llm: mneme.LLM) -> None:
    session = llm.session()
    session.read(DOCUMENT)
    forks = [session.fork() for _ in range(3)]
    del session
    gc.collect()
    assert [f.ask(q).text.strip() for f, q in zip(forks, (HARBOUR, LANTERN, HARBOUR))] == ["48213", "70935", "48213"]
    del forks[1]
    assert forks[0].fork().ask(LANTERN).text.strip() == "70935"


def test_methods_by_forks(read: mneme.Session) -> None:
    for method in ("full", "quest", "freekv", "fier", "window"):
        output = read.fork().ask(HARBOUR, kv=mneme.Recipe(method))
        assert output.text.strip() == "48213", method


def test_a_stream_of_a_session(read: mneme.Session) -> None:
    chunks = list(read.stream(HARBOUR))
    assert "".join(c.text for c in chunks).strip() == "48213"
    assert chunks[-1].output is not None and chunks[-1].output.text.strip() == "48213"
    stream = read.stream(LANTERN, mneme.SamplingParams(max_tokens=100, ignore_eos=True))
    next(stream)
    with pytest.raises(mneme.Error) as raised:
        read.ask(HARBOUR)
    assert raised.value.kind == "request"
    stream.close()  # type: ignore[attr-defined]
    assert read.count_tokens(HARBOUR) > 0


async def test_streams_of_sessions_for_asyncio(llm: mneme.LLM, read: mneme.Session) -> None:
    async def ask(session: mneme.Session, question: str) -> str:
        return "".join([c.text async for c in session.astream(question)]).strip()

    forks = [read.fork() for _ in range(4)]
    answers = await asyncio.gather(*(ask(f, q) for f, q in zip(forks, (HARBOUR, LANTERN) * 2)))
    assert answers == ["48213", "70935"] * 2


async def test_a_cancelled_task_leaves_its_session_usable(llm: mneme.LLM, read: mneme.Session) -> None:
    started = asyncio.Event()

    async def ask() -> None:
        async for _ in read.astream("Once more:", mneme.SamplingParams(max_tokens=1500, ignore_eos=True)):
            started.set()

    task = asyncio.create_task(ask())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(read.ask(HARBOUR, mneme.SamplingParams(max_tokens=3, ignore_eos=True)).outputs[0].token_ids) == 3


def test_saved_and_restored(llm: mneme.LLM, read: mneme.Session, tmp_path: pathlib.Path) -> None:
    read.ask(HARBOUR)
    path = tmp_path / "session.mneme"
    read.save(path)
    again = llm.restore(path)
    assert again.token_ids == read.token_ids
    assert again.ask(LANTERN).text == read.ask(LANTERN).text
    with pytest.raises(mneme.Error) as raised:
        llm.restore(tmp_path / "none")
    assert raised.value.kind == "file"
    path.write_bytes(b"not a session")
    with pytest.raises(mneme.Error) as raised:
        mneme.Session.restore(llm, path)
    assert raised.value.kind == "format"


def test_scores_and_logits_of_a_session(read: mneme.Session) -> None:
    read.ask(HARBOUR)
    tokens = read.token_ids
    scores = read.score(" The end.", top=2)
    assert len(scores) == len(scores.top) and scores.logprobs.dtype == np.float32
    logits = read.logits()
    assert logits.ndim == 1 and int(logits.argmax()) == scores.top[0][0][0]
    assert read.token_ids == tokens


def test_a_session_that_is_bound_to_a_method(llm: mneme.LLM) -> None:
    session = llm.session(kv=mneme.Recipe("snapkv", budget=64, recent=16))
    session.read(DOCUMENT)
    output = session.ask("What happened?", mneme.SamplingParams(max_tokens=4, ignore_eos=True))
    assert output.stats.kv is not None and output.stats.kv.dropped_tokens > 0
    with pytest.raises(mneme.Error) as raised:
        session.ask(HARBOUR, mneme.SamplingParams(n=2))
    assert raised.value.kind == "option"


def test_a_session_keeps_its_model_after_close() -> None:
    llm = start()
    session = llm.session()
    session.read(DOCUMENT)
    llm.close()
    assert session.ask(HARBOUR).text.strip() == "48213"

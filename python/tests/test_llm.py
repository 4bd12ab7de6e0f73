"""Answers, batches, streams, scores, and what is refused."""

import asyncio
import gc
import json
import pathlib
import threading

import numpy as np
import pytest

import mneme
from conftest import DOCUMENT, HARBOUR, LANTERN, MODEL, start

LONG = mneme.SamplingParams(max_tokens=400, ignore_eos=True)


def chat(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": DOCUMENT + "\n\n\n" + question}]


def test_answers_a_question_about_a_document(llm: mneme.LLM) -> None:
    answer = llm.chat(chat(HARBOUR))
    assert answer.text.strip() == "48213"
    assert answer.outputs[0].finish_reason == "stop"
    assert answer.stats.num_prompt_tokens == len(answer.prompt_token_ids)
    assert answer.stats.num_generated_tokens == len(answer.outputs[0].token_ids)
    assert answer.stats.kv is not None and answer.stats.kv.kv_bytes_read > 0


def test_a_batch_answers_as_each_prompt_alone(llm: mneme.LLM) -> None:
    prompts = [llm.chat_tokens(chat(q)) for q in (HARBOUR, LANTERN)] * 3
    together = [o.text for o in llm.generate(prompts)]
    assert together == [llm.generate(p)[0].text for p in prompts]
    assert together[:2] == [" 48213", " 70935"] or [t.strip() for t in together[:2]] == ["48213", "70935"]


def test_drafts_change_no_token() -> None:
    params = [mneme.SamplingParams(max_tokens=40, ignore_eos=True, speculative=s) for s in (None, "off")]
    answers = []
    for speculative in ("off", "ngram:k=4,min=2"):
        with start(speculative=speculative, deterministic=True) as model:
            answers += model.generate(["one two three one two three one two three"] * 2, params)
    assert len({tuple(a.outputs[0].token_ids) for a in answers}) == 1
    with pytest.raises(mneme.Error, match="speculative: expected"):
        start(speculative="mtp")


def test_settings_for_each_prompt(llm: mneme.LLM) -> None:
    few, more = (mneme.SamplingParams(max_tokens=n, ignore_eos=True) for n in (2, 5))
    outputs = llm.generate(["One", "Two"], [few, more])
    assert [len(o.outputs[0].token_ids) for o in outputs] == [2, 5]
    assert {o.outputs[0].finish_reason for o in outputs} == {"length"}
    with pytest.raises(mneme.Error, match="params: expected one, or 2"):
        llm.generate(["One", "Two"], [few])


def test_several_answers_of_a_seed(llm: mneme.LLM) -> None:
    params = mneme.SamplingParams(n=3, temperature=1.0, seed=7, max_tokens=8, ignore_eos=True, logprobs=2)
    first, again = (llm.generate("Once upon a time", params)[0] for _ in range(2))
    assert [o.index for o in first.outputs] == [0, 1, 2]
    assert [o.token_ids for o in first.outputs] == [o.token_ids for o in again.outputs]
    logprobs = first.outputs[0].logprobs
    assert logprobs is not None and [t.token_id for t in logprobs] == list(first.outputs[0].token_ids)
    assert all(len(t.top) == 2 and t.top[0][1] >= t.top[1][1] for t in logprobs)


def test_stop_strings_and_json(llm: mneme.LLM) -> None:
    whole = llm.generate("Once upon a time", mneme.SamplingParams(max_tokens=20, ignore_eos=True))[0].text
    stop = whole[len(whole) // 2 :][:3]
    cut = llm.generate("Once upon a time", mneme.SamplingParams(max_tokens=20, ignore_eos=True, stop=stop))[0]
    assert cut.text == whole[: whole.index(stop)] and cut.outputs[0].finish_reason == "stop"
    schema = {"type": "integer", "minimum": 0, "maximum": 9}
    number = llm.generate("A digit: ", mneme.SamplingParams(json_schema=schema, max_tokens=4))[0].text
    assert number.strip() in set("0123456789")


def test_a_schema_keeps_its_order_and_its_digits(llm: mneme.LLM) -> None:
    exactly = {"type": "integer", "minimum": 12345678901234567, "maximum": 12345678901234567}
    schema = {"type": "object", "properties": {"z": exactly, "a": {"type": "boolean"}}, "required": ["a", "z"]}
    text = json.dumps(schema)
    as_text = text.replace("12345678901234567", "12345678901234567.0")  # which no double holds
    for form in (schema, text, as_text):
        params = mneme.SamplingParams(json_schema=form, max_tokens=100, temperature=1.0, seed=3)
        answer = json.loads(llm.generate("An object: ", params)[0].text)
        assert list(answer) == ["z", "a"] and answer["z"] == 12345678901234567
    for wrong in ("{", '{"type": "object", "type": "object"}'):
        with pytest.raises(mneme.Error, match="json_schema: "):
            llm.generate("x", mneme.SamplingParams(json_schema=wrong))


def test_a_stream_is_the_answer_in_pieces(llm: mneme.LLM) -> None:
    tokens = llm.chat_tokens(chat(HARBOUR))
    chunks = list(llm.stream(tokens))
    whole = llm.generate(tokens)[0]
    assert "".join(c.text for c in chunks) == whole.text
    assert [c.finish_reason is not None for c in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].output is not None and chunks[-1].output.outputs == whole.outputs


def test_a_stream_that_is_left_ends_its_answer(llm: mneme.LLM) -> None:
    for chunk in llm.stream("Once upon a time", LONG):
        assert chunk.finish_reason is None
        break
    gc.collect()
    # All sequences are free: as many as may run answer at once.
    assert len(llm.generate(["One"] * 16, mneme.SamplingParams(max_tokens=1))) == 16


async def test_two_hundred_streams_at_once(llm: mneme.LLM) -> None:
    params = mneme.SamplingParams(max_tokens=6, ignore_eos=True)

    async def read(i: int) -> tuple[int, str]:
        pieces, last = [], None
        async for chunk in llm.astream(f"Number {i}:", params):
            pieces.append(chunk.text)
            last = chunk
        assert last is not None and last.output is not None
        assert last.output.text == "".join(pieces)
        return len(last.output.outputs[0].token_ids), last.output.text

    answers = await asyncio.gather(*(read(i) for i in range(200)))
    assert [n for n, _ in answers] == [6] * 200
    assert answers[3][1] == llm.generate("Number 3:", params)[0].text


async def test_a_cancelled_task_and_a_left_loop_end_their_answers(llm: mneme.LLM) -> None:
    started = asyncio.Event()

    async def read() -> None:
        async for _ in llm.astream("Once upon a time", LONG):
            started.set()

    task = asyncio.create_task(read())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async for _ in llm.astream("Once upon a time", LONG):
        break
    output = await llm.agenerate("One", mneme.SamplingParams(max_tokens=2, ignore_eos=True))
    assert len(output.outputs[0].token_ids) == 2


def test_threads_share_the_engine(llm: mneme.LLM) -> None:
    texts: dict[str, str] = {}
    questions = {HARBOUR: "48213", LANTERN: "70935"}
    threads = [
        threading.Thread(target=lambda q=q: texts.__setitem__(q, llm.chat(chat(q)).text.strip())) for q in questions
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert texts == questions


def test_scores_are_those_of_the_logits(llm: mneme.LLM) -> None:
    tokens = llm.tokenize(DOCUMENT, bos=True)
    scores = llm.score(tokens, top=3)
    logits = llm.logits(tokens)
    assert logits.dtype == np.float32 and logits.shape == (len(tokens), llm.info.vocabulary)
    assert not logits.flags.writeable and not logits.flags.owndata
    shifted = logits[:-1].astype(np.float64)
    logprobs = shifted - np.log(np.exp(shifted - shifted.max(1, keepdims=True)).sum(1, keepdims=True))
    logprobs -= shifted.max(1, keepdims=True)
    expected = logprobs[np.arange(len(tokens) - 1), tokens[1:]]
    assert list(scores.token_ids) == tokens[1:]
    assert np.abs(scores.logprobs - expected).max() <= 2e-3
    assert [t[0][0] for t in scores.top[5:8]] == list(logits[5:8].argmax(1))
    middle = llm.logits(tokens, slice(5, 8))
    assert middle.shape[0] == 3 and np.abs(middle - logits[5:8]).max() <= 1e-2


def test_logits_go_on_by_dlpack_and_outlive_the_call(llm: mneme.LLM) -> None:
    logits = llm.logits("Once upon a time", slice(-1, None))
    kept = logits[0, :5].copy()
    assert logits.__dlpack_device__() == (1, 0)
    view = logits[0]
    del logits
    gc.collect()
    assert np.array_equal(view[:5], kept)


def test_recipes_of_a_request(llm: mneme.LLM) -> None:
    prompt = llm.tokenize(DOCUMENT * 12, bos=True)
    params = mneme.SamplingParams(max_tokens=8, ignore_eos=True, page_reads=True)
    full, quest = (llm.generate(prompt, params, kv=kv)[0] for kv in ("full", mneme.Recipe("quest", budget=128)))
    assert full.stats.kv is not None and quest.stats.kv is not None
    assert quest.stats.kv.kv_bytes_per_step < full.stats.kv.kv_bytes_per_step
    reads = quest.outputs[0].page_reads
    assert reads is not None and reads.dtype == np.int64 and reads.sum() > 0
    assert quest.stats.kv.layers[2].achieved_budget <= 128


def test_pages_of_the_prefix_cache_are_told_of() -> None:
    params = mneme.SamplingParams(max_tokens=1, ignore_eos=True)
    with start(kv_events=True, stream_interval_ms=0) as llm:
        prompt = llm.tokenize(DOCUMENT, bos=True)
        llm.generate(prompt, params)
        events = llm.kv_events()
        assert len(events) >= len(prompt) // 32 - 1 and all(e.stored for e in events)
        assert [t for e in events for t in e.token_ids] == prompt[: 32 * len(events)]
        assert [e.parent_hash for e in events] == [None, *(e.block_hash for e in events[:-1])]
        assert llm.kv_events() == []
        assert llm.generate(prompt, params)[0].stats.num_cached_tokens == 32 * len(events)
        assert llm.num_kv_blocks >= 2048 // 32


def test_keys_and_values_come_back_from_a_disk(tmp_path: pathlib.Path) -> None:
    params = mneme.SamplingParams(max_tokens=4, ignore_eos=True)
    settings: dict[str, object] = {"kv_disk": tmp_path / "kv", "kv_disk_bytes": 64 << 20}
    with start(**settings) as llm:
        prompt = llm.tokenize(DOCUMENT, bos=True)
        first = llm.generate(prompt, params)[0]
    assert first.stats.num_cached_tokens == 0
    with start(**settings) as llm:
        again = llm.generate(prompt, params)[0]
    assert again.stats.num_cached_tokens >= 32 and again.stats.num_cached_tokens % 32 == 0
    assert again.outputs[0].token_ids == first.outputs[0].token_ids
    with pytest.raises(mneme.Error, match="enable_prefix_caching") as raised:
        start(enable_prefix_caching=False, **settings)
    assert raised.value.kind == "option"


def test_more_requests_run_by_forecast_than_memory_could_reserve() -> None:
    params = mneme.SamplingParams(max_tokens=160, ignore_eos=True)
    prompts = [f"Number {i}:" for i in range(8)]
    texts = []
    for admission in ("reserve", "forecast"):
        # Room for five of the eight to their last token.
        with start(kv_admission=admission, kv_memory_bytes=4 << 20, max_model_len=512, inter_token_ms=50) as llm:
            texts.append([o.text for o in llm.generate(prompts, params)])
            assert 160 // 32 < llm.num_kv_blocks < 8 * (160 // 32)
    assert texts[0] == texts[1]


@pytest.mark.parametrize("dtype", ["f16", "int8", "fp8"])
def test_keys_and_values_of_other_types(dtype: str) -> None:
    with start(kv_cache_dtype=dtype) as llm:
        assert llm.chat(chat(HARBOUR)).text.strip() == "48213"


def test_auto_is_full_attention_on_a_cpu() -> None:
    with start(kv="auto") as llm:
        output = llm.chat(chat(HARBOUR))
    assert output.text.strip() == "48213"
    assert output.stats.kv is not None and output.stats.kv.selections.made == 0


@pytest.mark.parametrize(
    ("settings", "kind", "words"),
    [
        ({"model": "no/such/model.gguf"}, "file", "no/such/model.gguf"),
        ({"kv": "no_such_method"}, "option", "no_such_method"),
        ({"device": "tpu"}, "option", "tpu"),
        ({"kv_cache_dtype": "f64"}, "option", "f64"),
        ({"gpu_layers": "most"}, "option", "most"),
        ({"kv_admission": "hope"}, "option", "reserve or forecast"),
        ({"inter_token_ms": -1}, "option", "inter_token_ms"),
        ({"kv_disk": "/proc/no/such"}, "file", "/proc/no/such"),
        ({"tensor_parallel_size": 2}, "unsupported", "tensor_parallel_size"),
    ],
)
def test_what_is_wrong_is_one_clear_error(settings: dict[str, object], kind: str, words: str) -> None:
    model = settings.pop("model", MODEL)
    with pytest.raises(mneme.Error, match=words) as raised:
        mneme.LLM(model, **settings)  # type: ignore[arg-type]
    assert raised.value.kind == kind


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(mneme.Error) as raised:
        start(device="cuda")
    assert raised.value.kind in ("device", "unsupported")


def test_wrong_types_are_named(llm: mneme.LLM) -> None:
    for call in (
        lambda: mneme.LLM(5),  # type: ignore[arg-type]
        lambda: mneme.LLM(MODEL, threads="two"),  # type: ignore[arg-type]
        lambda: mneme.LLM(MODEL, kv=5),  # type: ignore[arg-type]
        lambda: llm.generate(5),  # type: ignore[arg-type]
        lambda: llm.generate("One", {"temperature": 1}),  # type: ignore[arg-type]
        lambda: llm.generate("One", kv=3),  # type: ignore[arg-type]
        lambda: mneme.SamplingParams(temperature="hot"),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError):
            call()


def test_requests_that_cannot_be_are_errors_of_requests(llm: mneme.LLM) -> None:
    with pytest.raises(mneme.Error) as raised:
        llm.generate("One", mneme.SamplingParams(max_tokens=100000))
    assert raised.value.kind == "request"
    with pytest.raises(mneme.Error) as raised:
        llm.generate("One", mneme.SamplingParams(temperature=-1.0))
    assert raised.value.kind == "option"
    with pytest.raises(mneme.Error) as raised:
        llm.chat([])
    assert raised.value.kind == "request"


def test_a_closed_model_says_so_and_wakes_who_waits() -> None:
    llm = start()
    failed: list[BaseException] = []
    stream = llm.stream("Once upon a time", LONG)
    next(stream)

    def read() -> None:
        try:
            for _ in stream:
                pass
        except mneme.Error as e:
            failed.append(e)

    thread = threading.Thread(target=read)
    thread.start()
    llm.close()
    thread.join()
    assert failed == [] or "closed" in str(failed[0])
    with pytest.raises(mneme.Error, match="closed"):
        llm.generate("One")
    assert llm.closed and "closed" in repr(llm)
    llm.close()

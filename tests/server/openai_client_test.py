#!/usr/bin/env python3
"""The official openai client against `mneme serve`.

usage: openai_client_test.py MNEME MODEL VENV

Makes the virtual environment VENV at its first run. Exit code 77: the package index cannot be reached, nothing was tested.
"""
import json
import os
import subprocess
import sys

from client_venv import expect, run_inside

PINNED = ["openai==3.52.0"]


def refused(kind, call):
    try:
        call()
    except kind as e:
        return e
    raise AssertionError("expected %s" % kind.__name__)


def check_completions(client, model):
    a = client.completions.create(model=model, prompt="Once upon a time", max_tokens=6, temperature=0, logprobs=2)
    expect(a.object == "text_completion" and a.model == model, a)
    expect(a.usage.completion_tokens <= 6 and a.usage.total_tokens > a.usage.completion_tokens, a.usage)
    logprobs = a.choices[0].logprobs
    expect("".join(logprobs.tokens) == a.choices[0].text, a)
    expect(all(p <= 0 for p in logprobs.token_logprobs) and len(logprobs.top_logprobs) == len(logprobs.tokens), a)
    b = client.completions.create(model=model, prompt=["One", "Two"], max_tokens=3, n=2, seed=7)
    expect([c.index for c in b.choices] == [0, 1, 2, 3], b)
    scored = client.completions.create(model=model, prompt="The harbour", max_tokens=0, echo=True, logprobs=0)
    expect(scored.choices[0].text == "The harbour" and scored.choices[0].logprobs.token_logprobs[0] is None, scored)
    text = "".join(c.choices[0].text for c in client.completions.create(
        model=model, prompt="Once upon a time", max_tokens=6, temperature=0, stream=True))
    expect(text == a.choices[0].text, text)


def check_chat(client, model):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where is the harbour?"}]
    a = client.chat.completions.create(model=model, messages=messages, max_completion_tokens=5, temperature=0,
                                       logprobs=True, top_logprobs=3)
    expect(a.choices[0].message.role == "assistant", a)
    content = a.choices[0].logprobs.content
    expect("".join(t.token for t in content) == a.choices[0].message.content, a)
    expect(all(len(t.top_logprobs) == 3 for t in content), a)
    stream = client.chat.completions.create(model=model, messages=messages, max_tokens=5, temperature=0, stream=True,
                                            stream_options={"include_usage": True})
    text, usage, reason = "", None, None
    for chunk in stream:
        if chunk.usage:
            usage = chunk.usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
    expect(text == a.choices[0].message.content and reason in ("stop", "length"), (text, reason))
    expect(usage.completion_tokens == a.usage.completion_tokens, usage)
    expect(usage.prompt_tokens_details.cached_tokens >= 0, usage)
    extra = client.chat.completions.create(model=model, messages=messages, max_tokens=4,
                                           extra_body={"kv": {"method": "quest", "budget": 256}, "kv_retrieval": True})
    expect(extra.choices[0].kv_retrieval["method"] == "quest", extra)
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]
    expect(client.chat.completions.create(model=model, messages=parts, max_tokens=1).choices, "no choices")


def check_json(openai, client, model):
    """Answers of a schema parse and satisfy it, whatever the model would rather say: it was never taught any JSON."""
    import typing

    import pydantic

    class Place(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="forbid")
        kind: typing.Literal["harbour", "tower", "mill"]
        name: str = pydantic.Field(max_length=12)

    class Report(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="forbid")
        places: list[Place] = pydantic.Field(min_length=1, max_length=2)
        code: str = pydantic.Field(pattern="^[A-Z]{2}-[0-9]{3}$")
        count: int = pydantic.Field(ge=10, le=99)
        known: bool
        note: typing.Optional[str] = pydantic.Field(max_length=8)

    question = [{"role": "user", "content": "Report on the harbour."}]
    for seed in range(2):
        a = client.chat.completions.parse(model=model, messages=question, response_format=Report, max_tokens=2000, n=2,
                                          seed=100 * seed, temperature=seed)
        for choice in a.choices:
            expect(choice.finish_reason == "stop", choice)
            expect(isinstance(choice.message.parsed, Report), choice)
            expect(Report.model_validate_json(choice.message.content) == choice.message.parsed, choice)
    with client.chat.completions.stream(model=model, messages=question, response_format=Report, max_tokens=2000,
                                        seed=5) as stream:
        expect(isinstance(stream.get_final_completion().choices[0].message.parsed, Report), "no report")
    # A free object may go on to the last token, but for one that is told to end.
    brace = client.post("/../tokenize", body={"content": "}"}, cast_to=dict)["tokens"]
    for seed in range(3):
        bias = {str(t): 100 for t in brace} if seed == 0 else {}
        a = client.chat.completions.create(model=model, messages=question, response_format={"type": "json_object"},
                                           max_tokens=120, seed=seed, logit_bias=bias)
        content = a.choices[0].message.content
        expect(content.lstrip().startswith("{"), content)
        expect(seed > 0 or a.choices[0].finish_reason == "stop", a)
        if a.choices[0].finish_reason == "stop":
            expect(isinstance(json.loads(content), dict), content)
    wrong = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "patternProperties": {}}}}
    e = refused(openai.BadRequestError, lambda: client.with_options(max_retries=0).chat.completions.create(
        model=model, messages=question, response_format=wrong))
    expect("patternProperties" in e.message, e.message)


def check_errors(openai, client, model):
    bad = client.with_options(max_retries=0)
    e = refused(openai.BadRequestError, lambda: bad.completions.create(model=model, prompt="x", temperature=-1))
    expect("temperature" in e.message, e.message)
    e = refused(openai.BadRequestError, lambda: bad.completions.create(model=model, prompt="x" * 9000, max_tokens=5000))
    expect(e.code == "context_length_exceeded", e)
    refused(openai.NotFoundError, lambda: bad.completions.create(model="other", prompt="x"))
    refused(openai.NotFoundError, lambda: bad.models.retrieve("other"))
    refused(openai.AuthenticationError,
            lambda: bad.with_options(api_key="wrong").completions.create(model=model, prompt="x"))
    e = refused(openai.BadRequestError, lambda: bad.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "x"}], tools=[{"type": "function", "function": {"name": "f"}}]))
    expect("tools" in e.message, e.message)


def main():
    program, model_file = sys.argv[1], sys.argv[2]
    import openai

    env = dict(os.environ, MNEME_API_KEY="test-key")
    server = subprocess.Popen([program, "serve", "-m", model_file, "--port", "0", "-c", "4096", "--quiet", "--no-pin"],
                              stdout=subprocess.PIPE, env=env, text=True)
    try:
        line = server.stdout.readline()
        expect(line.startswith("listening on "), line)
        client = openai.OpenAI(base_url=line.split()[-1] + "/v1", api_key="test-key", timeout=600)
        model = client.models.list().data[0].id
        expect(client.models.retrieve(model).id == model, model)
        check_completions(client, model)
        check_chat(client, model)
        check_json(openai, client, model)
        check_errors(openai, client, model)
    finally:
        server.terminate()
        code = server.wait(timeout=600)
    expect(code == 0, "the server ended with %d" % code)
    print("openai %s: passed" % openai.__version__)


if __name__ == "__main__":
    if sys.argv[-1] == "--inside":
        main()
    else:
        run_inside(os.path.abspath(sys.argv[3]), PINNED)

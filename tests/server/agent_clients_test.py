#!/usr/bin/env python3
"""Clients of agents' APIs against a server whose model answers from a script.

usage: agent_clients_test.py SCRIPTED_SERVE VENV [--claude-code]

OpenAI's client (responses, streamed too), openai-agents (a loop of tools, both APIs, a handoff), Anthropic's client
(messages, streamed too, tools, count_tokens) and pydantic-ai (a loop of tools over all three APIs); with --claude-code
also Claude Code, which claude-agent-sdk bundles (385 MB). Makes the virtual environment VENV at its first run. Exit
code 77: the package index cannot be reached, nothing was tested.
"""
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile

from client_venv import expect, run_inside

PINNED = ["openai==3.52.0", "openai-agents==0.24.0", "anthropic==2.14.0", "pydantic-ai-slim[openai,anthropic]==2.68.0"]
CLAUDE_CODE = "--claude-code" in sys.argv
if CLAUDE_CODE:
    PINNED.append("claude-agent-sdk==0.2.189")
CALL = '<tool_call>{"name": "%s", "arguments": %s}</tool_call>'
ADD = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}


@contextlib.contextmanager
def serving(*answers, **more):
    """The address of a server that answers so, one request after the other."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as script:
        json.dump(dict(more, answers=answers), script)
        script.flush()
        server = subprocess.Popen([sys.argv[1], script.name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            line = server.stdout.readline()
            expect(line.startswith("listening on "), line)
            yield line.split()[-1]
        finally:
            server.terminate()
            server.communicate()


def check_responses(openai):
    import pydantic

    thought = "<think>\nI greet.\n</think>\n\nHello there."
    with serving(thought, thought, "Again.", CALL % ("add", '{"a": 1, "b": 2}'), '{"name": "Ada", "age": 36}') as url:
        client = openai.OpenAI(base_url=url + "/v1", api_key="none", timeout=600, max_retries=0)
        model = client.models.list().data[0].id
        whole = client.responses.create(model=model, input="Hello?")
        expect(whole.output_text == "Hello there." and whole.status == "completed", whole)
        expect(whole.output[0].content[0].text == "I greet.", whole)
        with client.responses.stream(model=model, input="Hello?") as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_response()
        expect(final.output_text == "Hello there.", final)
        expect(kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed", kinds)
        expect(final.usage.output_tokens_details.reasoning_tokens > 0, final.usage)
        again = client.responses.create(model=model, input="And?", previous_response_id=final.id)
        expect(again.output_text == "Again." and again.previous_response_id == final.id, again)
        expect(client.responses.retrieve(again.id).output_text == "Again.", "not stored")
        client.responses.delete(again.id)
        try:
            client.responses.retrieve(again.id)
            raise AssertionError("deleted, and still there")
        except openai.NotFoundError:
            pass
        tools = [{"type": "function", "name": "add", "parameters": ADD, "strict": False}]
        called = client.responses.create(model=model, input="1 + 2?", tools=tools)
        expect(called.output[0].type == "function_call", called)
        expect(json.loads(called.output[0].arguments) == {"a": 1, "b": 2}, called)

        class Person(pydantic.BaseModel):
            model_config = pydantic.ConfigDict(extra="forbid")
            name: str
            age: int

        parsed = client.responses.parse(model=model, input="Who?", text_format=Person)
        expect(parsed.output_parsed == Person(name="Ada", age=36), parsed)


def check_agents(openai):
    import agents

    agents.set_tracing_disabled(True)
    ran = []

    @agents.function_tool
    def add(a: int, b: int) -> int:
        """Adds two numbers."""
        ran.append(("add", a, b))
        return a + b

    @agents.function_tool
    def look_up(name: str) -> str:
        """Looks a name up."""
        ran.append(("look_up", name))
        return "found " + name

    script = ["<think>\nTwo calls.\n</think>\n\n" + CALL % ("add", '{"a": 1, "b": 2}') + CALL % ("look_up", '{"name": "x"}'),
              CALL % ("add", '{"a": 3, "b": 4}'), "All done: 7."]

    def connected(url):
        return openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", timeout=600, max_retries=0)

    async def run(url, kind, streamed):
        async with connected(url) as client:
            agent = agents.Agent(name="a", instructions="Use the tools.", tools=[add, look_up],
                                 model=kind(model="needle-27m-q8_0", openai_client=client))
            if not streamed:
                return (await agents.Runner.run(agent, "Go.")).final_output
            result = agents.Runner.run_streamed(agent, "Go.")
            async for _ in result.stream_events():
                pass
            return result.final_output

    for kind in (agents.OpenAIResponsesModel, agents.OpenAIChatCompletionsModel):
        for streamed in (False, True):
            ran.clear()
            with serving(*script) as url:
                output = asyncio.run(run(url, kind, streamed))
            expect(output == "All done: 7.", (kind, streamed, output))
            expect(sorted(ran[:2]) == [("add", 1, 2), ("look_up", "x")] and ran[2:] == [("add", 3, 4)], ran)

    async def hand_off(url):
        async with connected(url) as client:
            model = agents.OpenAIResponsesModel(model="needle-27m-q8_0", openai_client=client)
            other = agents.Agent(name="other", instructions="Answer.", model=model)
            first = agents.Agent(name="first", instructions="Hand off.", handoffs=[other], model=model)
            return await agents.Runner.run(first, "Go.")

    with serving(CALL % ("transfer_to_other", "{}"), "From the other.") as url:
        result = asyncio.run(hand_off(url))
    expect(result.final_output == "From the other." and result.last_agent.name == "other", result)


def check_anthropic(anthropic):
    tools = [{"name": "add", "description": "Adds.", "input_schema": ADD}]
    with serving("<think>\nI greet.\n</think>\n\nHello there.", "One, two, three.",
                 CALL % ("add", '{"a": 1, "b": 2}'), CALL % ("add", '{"a": 3, "b": 4}'), "Seven.",
                 api_key="secret") as url:
        client = anthropic.Anthropic(base_url=url, api_key="secret", timeout=600, max_retries=0)
        messages = [{"role": "user", "content": "Hello? " * 60}]  # more than a page
        counted = client.messages.count_tokens(model="claude-x", messages=messages).input_tokens
        first = client.messages.create(model="claude-x", max_tokens=100, messages=messages)
        expect([b.type for b in first.content] == ["thinking", "text"] and first.stop_reason == "end_turn", first)
        expect(first.content[1].text == "Hello there.", first)
        expect(first.usage.input_tokens + first.usage.cache_read_input_tokens == counted, (first.usage, counted))
        with client.messages.stream(model="claude-x", max_tokens=100, messages=messages,
                                    stop_sequences=["two"]) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        expect(text == "One, " and final.stop_reason == "stop_sequence" and final.stop_sequence == "two", final)
        expect(final.usage.cache_read_input_tokens > 0, final.usage)
        conversation, used = [{"role": "user", "content": "1 + 2, then + 4?"}], []
        for _ in range(3):
            with client.messages.stream(model="claude-x", max_tokens=100, messages=conversation, tools=tools) as stream:
                for _ in stream:
                    pass
                answer = stream.get_final_message()
            conversation.append({"role": "assistant", "content": answer.content})
            results = []
            for block in answer.content:
                if block.type == "tool_use":
                    used.append(block.input)
                    results.append({"type": "tool_result", "tool_use_id": block.id, "content": str(sum(block.input.values()))})
            if not results:
                break
            conversation.append({"role": "user", "content": results})
        expect(used == [{"a": 1, "b": 2}, {"a": 3, "b": 4}] and answer.content[0].text == "Seven.", (used, answer))
        for kind, call in ((anthropic.BadRequestError, dict(model="claude-x", max_tokens=0)),
                           (anthropic.NotFoundError, dict(model="other", max_tokens=1))):
            try:
                client.messages.create(messages=messages, **call)
                raise AssertionError("expected %s" % kind.__name__)
            except kind:
                pass
        try:
            client.with_options(api_key="wrong").messages.create(model="claude-x", max_tokens=1, messages=messages)
            raise AssertionError("a wrong key")
        except anthropic.AuthenticationError:
            pass


def check_pydantic_ai():
    from pydantic_ai import Agent
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    def by_openai(kind):
        return lambda url: kind("needle-27m-q8_0", provider=OpenAIProvider(base_url=url + "/v1", api_key="none"))

    def by_anthropic(url):
        return AnthropicModel("claude-x", provider=AnthropicProvider(base_url=url, api_key="none"))

    script = ["<think>\nHm.\n</think>\n\n" + CALL % ("add", '{"a": 1, "b": 2}'), CALL % ("add", '{"a": 3, "b": 4}'),
              CALL % ("now", "{}"), "Done: 7."]
    for model in (by_openai(OpenAIChatModel), by_openai(OpenAIResponsesModel), by_anthropic):
        ran = []
        with serving(*script) as url:
            agent = Agent(model(url), instructions="Be brief.")

            @agent.tool_plain
            def add(a: int, b: int) -> int:
                ran.append((a, b))
                return a + b

            @agent.tool_plain
            def now() -> str:
                ran.append("now")
                return "12:00"

            output = agent.run_sync("Go.").output
        expect(output == "Done: 7." and ran == [(1, 2), (3, 4), "now"], (output, ran))


def check_claude_code():
    """Reads a file by a tool, goes on in a second turn, and gives up at once where the prompt does not fit."""
    import claude_agent_sdk

    program = os.path.join(os.path.dirname(claude_agent_sdk.__file__), "_bundled", "claude")
    with tempfile.TemporaryDirectory() as home:
        file = os.path.join(home, "a.txt")
        with open(file, "w") as f:
            f.write("the code is 4711")

        def ask(url, *arguments):
            env = {"HOME": home, "PATH": "/usr/bin:/bin", "ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "none",
                   "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_TELEMETRY": "1", "DISABLE_AUTOUPDATER": "1"}
            done = subprocess.run([program, *arguments, "--model", "claude-local", "--output-format", "json"], env=env,
                                  cwd=home, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=900)
            return json.loads(done.stdout.splitlines()[-1])

        script = ["I read it.\n</think>\n\nReading. " + CALL % ("Read", json.dumps({"file_path": file})),
                  "I have it.\n</think>\n\nThe code is 4711.", "Again.\n</think>\n\nStill 4711."]
        with serving(*script, context=98304) as url:
            first = ask(url, "-p", "read a.txt")
            expect(first["result"] == "The code is 4711." and first["num_turns"] == 2, first)
            second = ask(url, "-c", "-p", "and again")
        expect(second["result"] == "Still 4711.", second)
        usage = second["usage"]
        expect(usage["cache_read_input_tokens"] > 100 * usage["input_tokens"], usage)
        with serving("Not asked for.", context=4096) as url:
            expect(ask(url, "-p", "hello")["terminal_reason"] == "prompt_too_long", "tried again")


def main():
    import anthropic
    import openai

    check_responses(openai)
    check_agents(openai)
    check_anthropic(anthropic)
    check_pydantic_ai()
    if CLAUDE_CODE:
        check_claude_code()
    print(", ".join(PINNED) + ": passed")


if __name__ == "__main__":
    if sys.argv[-1] == "--inside":
        main()
    else:
        run_inside(os.path.abspath(sys.argv[2]), PINNED)

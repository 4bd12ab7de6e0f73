"""serve() and evaluate(): processes of the package's own program, and clients of others."""

import json
import urllib.error
import urllib.request

import pytest

import mneme
from conftest import DOCUMENT, HARBOUR, MODEL


def test_serves_and_ends_with_its_block() -> None:
    with mneme.serve(MODEL, kv=mneme.Recipe("quest", budget=512), max_model_len=2048, no_pin=True) as server:
        body = {"messages": [{"role": "user", "content": DOCUMENT + "\n\n\n" + HARBOUR}], "temperature": 0}
        request = urllib.request.Request(
            server.url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as reply:
            answer = json.load(reply)
        assert answer["choices"][0]["message"]["content"].strip() == "48213"
        assert any(name.startswith("mneme:generation_tokens_total") for name in server.metrics())
        process = server.process
    assert process.returncode == 0


def test_says_why_it_does_not_start() -> None:
    with pytest.raises(mneme.Error, match="no/such.gguf"):
        with mneme.serve("no/such.gguf"):
            pass


def test_openais_client() -> None:
    pytest.importorskip("openai")
    with mneme.serve(MODEL, max_model_len=2048, no_pin=True, api_key="secret") as server:
        client = server.openai()
        messages = [{"role": "user", "content": DOCUMENT + "\n\n\n" + HARBOUR}]
        answer = client.chat.completions.create(
            model=client.models.list().data[0].id, messages=messages, temperature=0, extra_body={"kv": {"method": "quest"}}
        )
        assert answer.choices[0].message.content.strip() == "48213"


def test_keys_with_limits() -> None:
    keys = [{"key": "first", "name": "a"}, {"key": "second", "name": "b", "priority": 1, "max_running": 1}]
    options = {"kv_admission": "forecast", "inter_token_ms": 50, "allowed_host": ["one.test", "two.test"]}
    with mneme.serve(MODEL, max_model_len=2048, no_pin=True, api_keys=keys, **options) as server:
        assert server.metrics()  # by the first key
        for key, status in (("second", 200), ("third", 401)):
            request = urllib.request.Request(server.url + "/v1/models", headers={"Authorization": f"Bearer {key}"})
            try:
                with urllib.request.urlopen(request) as reply:
                    assert reply.status == status
            except urllib.error.HTTPError as e:
                assert e.code == status
    with pytest.raises(mneme.Error, match="keys"):
        with mneme.serve(MODEL, max_model_len=2048, no_pin=True, api_keys=[{"key": "first", "limit": 3}]):
            pass


def test_langchains_client() -> None:
    langchain = pytest.importorskip("langchain_openai")
    with mneme.serve(MODEL, max_model_len=2048, no_pin=True) as server:
        chat = langchain.ChatOpenAI(
            base_url=server.url + "/v1", api_key="none", model=server.openai().models.list().data[0].id, temperature=0
        )
        assert chat.invoke(DOCUMENT + "\n\n\n" + HARBOUR).content.strip() == "48213"
        assert "".join(c.content for c in chat.stream(DOCUMENT + "\n\n\n" + HARBOUR)).strip() == "48213"


def test_llamaindexs_client() -> None:
    like = pytest.importorskip("llama_index.llms.openai_like")
    with mneme.serve(MODEL, max_model_len=2048, no_pin=True) as server:
        name = server.openai().models.list().data[0].id
        llm = like.OpenAILike(
            api_base=server.url + "/v1", api_key="none", model=name, is_chat_model=True, temperature=0, max_tokens=16
        )
        assert llm.complete(DOCUMENT + "\n\n\n" + HARBOUR).text.strip() == "48213"


def test_a_table_of_methods(llm: mneme.LLM) -> None:
    report = mneme.evaluate(
        llm, "number", lengths=[512], budgets=[256], methods=["full", mneme.Recipe("quest", unit="page:32")], samples=1
    )
    assert [row["method"] for row in report] == ["full", report[1]["method"]] and len(report) == 2
    assert report[0]["exact_percent"] == 100.0
    assert report[1]["kib_per_step"] < report[0]["kib_per_step"]
    assert "exact_percent" in str(report).splitlines()[0]
    with pytest.raises(mneme.Error, match="no task is called"):
        mneme.evaluate(llm, "no_such_task")
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(report)
    assert list(table["task"]) == ["number", "number"] and "points" in table.columns

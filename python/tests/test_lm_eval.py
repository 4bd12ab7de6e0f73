"""lm-evaluation-harness with the model class `mneme`, on a task of our own files."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from conftest import DOCUMENT, HARBOUR, LANTERN, MODEL

pytest.importorskip("lm_eval")

import mneme.lm_eval  # noqa: E402

QUESTIONS = [
    {"question": HARBOUR, "answer": "48213", "choices": ["70935", "48213", "11111"], "gold": 1},
    {"question": LANTERN, "answer": "70935", "choices": ["70935", "48213", "11111"], "gold": 0},
]
CHOICE = """
task: own_choice
dataset_path: json
dataset_kwargs: {data_files: {test: "%s"}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{prompt}}"
doc_to_choice: "{{choices}}"
doc_to_target: gold
target_delimiter: ""
metric_list: [{metric: acc}]
"""
GENERATE = """
task: own_generate
dataset_path: json
dataset_kwargs: {data_files: {test: "%s"}}
test_split: test
output_type: generate_until
doc_to_text: "{{prompt}}"
doc_to_target: answer
generation_kwargs: {until: ["\\n"], max_gen_toks: 12, do_sample: false}
metric_list: [{metric: exact_match}]
filter_list: [{name: strip, filter: [{function: remove_whitespace}, {function: take_first}]}]
"""


@pytest.fixture(scope="module")
def model() -> "mneme.lm_eval.MnemeLM":
    return mneme.lm_eval.MnemeLM(MODEL, threads=1, pin_threads=False, max_length=2048)


@pytest.mark.parametrize("name", ["max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens"])
def test_every_name_of_the_length_counts(model: "mneme.lm_eval.MnemeLM", name: str) -> None:
    assert model._params({"until": ["x"], name: 7}).max_tokens == 7
    assert model._params({"until": ["x"], name: None}).max_tokens == 256


def test_of_two_lengths_the_harness_own_counts(model: "mneme.lm_eval.MnemeLM") -> None:
    assert model._params({"max_completion_tokens": 5, "max_new_tokens": 6, "max_gen_toks": 7}).max_tokens == 7


def test_an_answer_that_a_task_begins_is_left_open(model: "mneme.lm_eval.MnemeLM") -> None:
    begun = [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": "The answer is"}]
    asked = model.apply_chat_template(begun[:1])
    assert model.apply_chat_template(begun, add_generation_prompt=False) == asked + "The answer is"


def test_a_task_of_our_own_files(tmp_path: pathlib.Path) -> None:
    rows = [dict(q, prompt=f"{DOCUMENT}\n\n\n{q['question']}") for q in QUESTIONS]
    data = tmp_path / "own.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "own_choice.yaml").write_text(CHOICE % data)
    (tmp_path / "own_generate.yaml").write_text(GENERATE % data)
    command = [
        *(sys.executable, "-m", "mneme.lm_eval", "--model", "mneme"),
        *("--model_args", f"pretrained={MODEL},kv=quest:budget=512/unit=page:32,threads=2,pin_threads=False"),
        *("--device", "cpu", "--apply_chat_template", "--tasks", "own_choice,own_generate"),
        *("--include_path", str(tmp_path), "--output_path", str(tmp_path / "out")),
    ]
    env = dict(os.environ, HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_HOME=str(tmp_path / "hf"))
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads(next((tmp_path / "out").rglob("results_*.json")).read_text())["results"]
    assert results["own_choice"]["acc,none"] == 1.0
    assert results["own_generate"]["exact_match,strip"] == 1.0

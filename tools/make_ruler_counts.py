#!/usr/bin/env python3
"""Describes samples of the published RULER generator in numbers, for tests/apps/eval/generated/ruler_published_test.cc.

  tools/make_ruler_counts.py CHECKOUT OUT     needs numpy

CHECKOUT is NVIDIA/RULER at c3f5e3b. Its scripts run as they are, but for what is not part of them: a token is a word;
essays, word lists, SQuAD and HotpotQA are made by the rules below (the test makes the same); sentences end at ". " in
place of NLTK's punkt. OUT gets counts, positions and masked frames; nothing of the samples themselves.
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

TASKS = {
    "niah_single_1": ("niah", 128, "--type_haystack noise"),
    "niah_single_2": ("niah", 128, "--type_haystack essay"),
    "niah_single_3": ("niah", 128, "--type_haystack essay --type_needle_v uuids"),
    "niah_multikey_1": ("niah", 128, "--type_haystack essay --num_needle_k 4"),
    "niah_multikey_2": ("niah", 128, "--type_haystack needle"),
    "niah_multikey_3": ("niah", 128, "--type_haystack needle --type_needle_k uuids --type_needle_v uuids"),
    "niah_multivalue": ("niah", 128, "--type_haystack essay --num_needle_v 4"),
    "niah_multiquery": ("niah", 128, "--type_haystack essay --num_needle_q 4"),
    "vt": ("variable_tracking", 30, "--num_chains 1 --num_hops 4"),
    "cwe": ("common_words_extraction", 120, "--freq_cw 30 --freq_ucw 3 --num_cw 10"),
    "fwe": ("freq_words_extraction", 50, "--alpha 2.0"),
    "qa_1": ("qa", 32, "--dataset squad"),
    "qa_2": ("qa", 32, "--dataset hotpotqa"),
}
LENGTHS = (2048, 4096, 16384)
FRAME_TOKENS = 20

SHIMS = {
    "tokenizer.py": "class Words:\n    def text_to_tokens(self, text):\n        return text.split()\n"
                    "def select_tokenizer(kind, path):\n    return Words()\n",
    "nltk/__init__.py": "",
    "nltk/tokenize.py": "import re\ndef sent_tokenize(text):\n    return re.split(r'(?<=[.!?]) ', text)\n",
    "scipy/__init__.py": "",
    "scipy/special.py": "import math\ndef zeta(a):\n    assert a == 2\n    return math.pi ** 2 / 6\n",
    "wonderwords/__init__.py": "from . import random_word\n",
    "wonderwords/random_word.py": "import json\ndef _get_words_from_text_file(name):\n"
                                  "    return json.load(open('wonderwords/' + name))\n",
    "tqdm.py": "def tqdm(all):\n    return all\n",
}


def word(i):
    """The i-th word: five letters, all different for i below 26^4."""
    return "".join(chr(97 + i * 7919 // 26 ** k % 26) for k in range(5))


def essay():
    """Sentences of seven words."""
    return " ".join(f"The {word(3 * i)} and {word(3 * i + 1)} saw {word(3 * i + 2)}." for i in range(6000))


def squad():
    """60 articles of 5 paragraphs of 23 words, two questions each, one of which has no answer."""
    def paragraph(a, p):
        words = " ".join(word(5 * a + p + k) for k in range(20))
        return {"context": f"Article {a}.{p}: {words} end.",
                "qas": [{"question": f"What is {a} {p}?", "is_impossible": False, "answers": [{"text": f"it {a} {p}"}]},
                        {"question": "Nothing?", "is_impossible": True, "answers": []}]}
    return {"data": [{"paragraphs": [paragraph(a, p) for p in range(5)]} for a in range(60)]}


def hotpotqa():
    """40 questions of 10 paragraphs of their own."""
    def paragraph(q, p):
        return [f"Title {q}.{p}", [f"First {word(q + p)}.", f" Second {word(q * p)} with more words."]]
    return [{"question": f"Which is {q}?", "answer": f"that {q}", "context": [paragraph(q, p) for p in range(10)]}
            for q in range(40)]


def masked(text):
    """A frame without what is drawn."""
    text = re.sub(r" for \S+(, \S+)*(, and \S+)? mentioned", " for KEYS mentioned", text)
    return re.sub(r"[0-9]+", "#", text)


def described(task, sample):
    """Counts of one sample."""
    text, prefix = sample["input"], sample["answer_prefix"]
    out = {"words": len((text + prefix).split()), "answers": len(sample["outputs"])}
    noise = text.count("The grass is green.")
    needles = re.findall(r"One of the special magic \w+ for \S+ is: \S+\.", text)
    if task.startswith("niah"):
        out["needles"], out["noise"] = len(needles), noise
        head, rest = text.split("\n", 1)
        out["frame"] = masked(head + "|" + rest[rest.rindex("\n"):] + "|" + prefix)
        if task in ("niah_single_1", "niah_multikey_2", "niah_multikey_3"):
            out["lines"] = text.count("\n")
        else:
            out["sentences"] = len(re.findall(r" saw [a-z]+\.", rest))
    if task == "vt":
        first, second = text.split("\n\nMemorize")
        out["noise_of_example"], out["noise"] = first.count("The grass is green."), second.count("The grass is green.")
        out["lines"] = second.count("VAR ") - 4
        out["frame"] = masked(re.sub(r"\b[A-Z]{3}\b", "V", first[first.rindex("Question:"):]) + "|"
                              + second[second.rindex("\n"):] + "|" + prefix)
    if task == "cwe":
        first, second = text.split("\nBelow", 1)
        for name, part in (("example_", first), ("", second)):
            entries = re.findall(r"\d+\. (\S+)", part[:part.rindex("\nQuestion:")])
            counts = sorted(entries.count(w) for w in set(entries))
            out[name + "entries"], out[name + "least"], out[name + "most"] = len(words), counts[0], counts[-1]
        out["frame"] = masked(re.sub(r"\d+\. \S+", "W", first[first.rindex("Question:"):]) + "|"
                              + second[second.rindex("\n"):] + "|" + prefix)
    if task == "fwe":
        words = text[text.index("coded words. ") + 13:text.rindex("\nQuestion:")].split()
        counts = sorted((words.count(w) for w in set(words)), reverse=True)
        out["entries"], out["different"], out["first"] = len(words), len(counts), counts[:6]
        out["frame"] = masked(text[:text.index("coded words. ")] + "|" + text[text.rindex("\n"):] + "|" + prefix)
    if task.startswith("qa"):
        out["documents"] = len(re.findall(r"^Document \d+:$", text, re.M))
        documents = re.split(r"Document \d+:\n", text.split("\n\nAnswer the question")[0])[1:]
        out["different"] = len({d.strip() for d in documents})
        head, rest = text.split("Document 1:")
        out["frame"] = masked(head + "|" + rest[rest.index("\n\nAnswer the question"):rest.rindex("Question:")] + "|"
                              + prefix)
    return out


def prepared(checkout, folder):
    """A copy of the scripts with shims and made-up sources."""
    scripts = folder / "scripts"
    subprocess.run(["cp", "-r", str(checkout / "scripts"), str(scripts)], check=True)
    for name, text in SHIMS.items():
        path = scripts / "data" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    for name, numbers in (("nounlist", range(400)), ("adjectivelist", range(400, 440)), ("verblist", range(1000, 9000))):
        (scripts / "data" / "wonderwords" / f"{name}.txt").write_text(json.dumps([word(i) for i in numbers]))
    sources = scripts / "data" / "synthetic" / "json"
    words = {str(i): "x" + word(i) for i in range(20000)}
    for name, data in (("PaulGrahamEssays", {"text": essay()}), ("squad", squad()), ("hotpotqa", hotpotqa()),
                       ("english_words", words)):
        (sources / f"{name}.json").write_text(json.dumps(data))
    return scripts / "data"


def main():
    checkout, target = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    rows = []
    with tempfile.TemporaryDirectory() as name:
        data = prepared(checkout, pathlib.Path(name))
        constants = {}
        exec((data / "synthetic" / "constants.py").read_text(), constants)  # pylint: disable=exec-used
        for task, (script, answer, options) in TASKS.items():
            frame = constants["TASKS"][script]
            for length in LENGTHS:
                subprocess.run([sys.executable, f"synthetic/{script}.py", "--save_dir", name, "--save_name", task,
                                "--tokenizer_path", "-", "--max_seq_length", str(length), "--tokens_to_generate",
                                str(answer), "--num_samples", "3", "--model_template_token", str(FRAME_TOKENS),
                                "--template", frame["template"] + frame["answer_prefix"], *options.split()]
                               + (["--add_fewshot"] if script == "variable_tracking" else []),
                               cwd=data, env={"PYTHONPATH": str(data)}, check=True, capture_output=True)
                lines = (pathlib.Path(name) / task / "validation.jsonl").read_text().splitlines()
                rows.append({"task": task, "length": length,
                             "samples": [described(task, json.loads(line)) for line in lines]})
                print(task, length, rows[-1]["samples"][0], file=sys.stderr)
    target.write_text(json.dumps({"generator": "NVIDIA/RULER c3f5e3b", "frame_tokens": FRAME_TOKENS, "rows": rows},
                                 indent=1) + "\n")


if __name__ == "__main__":
    main()

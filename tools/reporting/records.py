"""Recorded results: which commands make them (tools/record), and how they are read (tools/report).

A record is bench/results/NAME.json: {"what", "machine", "date", "commit", "cases": [what each command printed, without
what nothing reads]}, a line each (record_text.py).
"""
import json
import pathlib
import re

from .record_text import command_of, unpacked

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results"

DECODE = "mneme bench decode --shape llama-3.1-8b --device cuda --no-progress --json"
SELECT = "--kv-budget 2048 --kv-sink 512 --kv-recent 512 --dense-layers 0 --turnover 0.2"
NEEDLE = "mneme eval -m models/needle-27m-q8_0.gguf --json --no-progress"
SMOLLM2 = "mneme eval -m models/smollm2-135m-instruct-q4_1.gguf --threads 1 --json --no-progress"
SELECTOR = f"{NEEDLE} --threads 1 --seed 7 --kv-sink 32 --kv-recent 128 --dense-layers none"
DEVICE = "--threads 1 --device cuda --kv-store device --dense-layers none"
PAPER = f"{NEEDLE} {DEVICE} --suite facts --tasks number,where,register,chain --lengths 4096 --contexts 2"
LONG_GPU = f"{NEEDLE} {DEVICE} --suite long --tasks register,trace --max-tokens 4096 --forced --along 1024"
SMALL_PAPER = (f"{SMOLLM2} {DEVICE.replace('--threads 1 ', '')} --suite niah --tasks niah,look_alikes --lengths 2048 "
               "--contexts 3")
DEPTHS = "--depth 2048,4096,8192,16384,32768,65536,131072"

FACTS = (f"{NEEDLE} --threads 1 --seed 7 --kv-sink 32 --kv-recent 128 --dense-layers none --device cuda --kv-store device "
         "--suite facts --tasks register,number,where --contexts 20")
EVERY = ("--methods full,oracle:unit=page:32,window,quest:unit=page:32,freekv,fier,louiskv,arkvale,mneme,"
         "mneme:index=sketch:12/unit=token")
TURNS = (f"{NEEDLE} --threads 1 --suite long --tasks lookups,chain --lengths 12288 --max-tokens 4096 --forced --along 1024 "
         "--contexts 2 --dense-layers none --methods full,window,freekv:tau=0.8,freekv:tau=0.9,louiskv,fier,mneme")
CHAT = f"{SMOLLM2} --kv-sink 32 --kv-recent 64 --dense-layers none --device cuda --kv-store device"
VARIANTS = ("full,mneme,oracle:unit=page:32,fier,mneme:schedule=every_step,mneme:index=keys,"
            "mneme:index=keys/schedule=every_step,mneme:eps=0.05,mneme:index=centroids:16,mneme:index=sketch:16,"
            "mneme:dense=0,mneme:domain=candidates")
SIX_OF_PAPERS = "--budgets 1024 --methods full,window,quest:unit=page:32,freekv,louiskv,fier,mneme"

# What each record is and the commands that make it. `mneme` is replaced by the program that was built.
RECORDS = {
    "m8-context-h200": (
        "Decode time against context length, one sequence, llama-3.1-8b shape in bf16 with random weights; freekv "
        "replaces 20 % of its pages a step and corrects none or 20 % of its KV heads",
        [f"{DECODE} {DEPTHS} -n 40 --kv-method full",
         f"{DECODE} {DEPTHS} -n 40 --kv-store host {SELECT} --correction 0,0.2 --kv-method window,freekv",
         f"{DECODE} {DEPTHS} -n 4 --kv-store host --kv-method full"]),
    "m8-batch-h200": (
        "Decode throughput against the number of sequences of 32,768 tokens, llama-3.1-8b shape in bf16 with random "
        "weights; freekv replaces 20 % of its pages a step and corrects 13 % of its KV heads",
        [f"{DECODE} --depth 32768 --batch 1,2,4,8,16,24 -n 32 --kv-method full",
         f"{DECODE} --depth 32768 --batch 1,2,4,8,16,24 -n 32 --kv-store device {SELECT} --correction 0.13 "
         "--kv-method freekv",
         f"{DECODE} --depth 32768 --batch 1,2,4,8,16,20 -n 32 --kv-store host {SELECT} --correction 0.13 "
         "--kv-method freekv"]),
    "m8-methods-h200": (
        "A decode step over 131,072 tokens in host memory by method, one sequence, llama-3.1-8b shape in bf16 with "
        "random weights; a selection replaces 20 % of its units, 20 % of KV heads (louiskv: of steps) are corrected",
        [f"{DECODE} --depth 131072 -n 40 --kv-store host {SELECT} --correction 0.2 "
         "--kv-method window,freekv,quest:unit=page:32,louiskv,fier"]),
    "m8-transformers-offloaded-h200": (
        "transformers' cache in host memory (DynamicCache with offloading), llama-3.1-8b shape in bf16, one sequence",
        ['python3 tools/measure_transformers.py --offloaded --depth 2048,8192,32768,131072 --prefill "" --steps 8']),
    "m9-device-h200": (
        "A decode step of the forms of selection, llama-3.1-8b shape in bf16 with random weights: fused over 131,072 "
        "tokens in host memory, unfused in its place, and methods with their own defaults; a selection replaces 20 % of "
        "its units",
        [f"{DECODE} --depth 131072 -n 40 --kv-store host {SELECT} --correction 0,0.2 "
         "--kv-method window,freekv,quest:unit=page:32",
         f"{DECODE} --depth 131072 -n 40 --kv-store host --turnover 0.2 --kv-method window,fier,quest"]),
    "m9-open-h200": (
        "Methods whose steps on the device are to come down, llama-3.1-8b and llama-2-7b shapes in bf16 with random "
        "weights, at 32,768 tokens: drops at every step, four sequences of louiskv from host memory, fier on the device",
        [f"{DECODE} --depth 32768 -n 30 --kv-method snapkv,h2o,tova",
         f"{DECODE} --depth 32768 --batch 4 -n 30 --kv-store host --kv-budget 2048 --turnover 0.2 --correction 0.2 "
         "--kv-method window,louiskv",
         f"{DECODE.replace('llama-3.1-8b', 'llama-2-7b')} --depth 32768 -n 30 --kv-method full,fier"]),
    "m9-recipes-h200": (
        "Recipes on the device beside each other, llama-3.1-8b shape in bf16 with random weights: full; window, freekv, "
        "mneme and quest over 131,072 tokens in host memory with the same sinks, window and dense layer, and methods with "
        "their own; the unfused selection; drops at every step; every query head for itself",
        [f"{DECODE} --depth 2048,32768,131072 -n 40 --kv-method full",
         f"{DECODE} --depth 131072 -n 40 --kv-store host {SELECT} --correction 0,0.2 "
         "--kv-method window,freekv,mneme,quest:unit=page:32",
         f"{DECODE} --depth 131072 -n 40 --kv-store host --turnover 0.2 --correction 0.1 "
         "--kv-method window,freekv,mneme,fier,quest",
         f"{DECODE} --depth 32768 --batch 1,4 -n 128 --kv-method snapkv,h2o,tova",
         f"{DECODE} --depth 32768 -n 128 --kv-store host --kv-method snapkv,h2o,tova",
         f"{DECODE} --depth 32768 -n 40 --kv-store host --turnover 0.2 "
         "--kv-method window,quest,quest:pool=none,fier,fier:pool=none"]),
    "m9-portable-h200": (
        "The same of a build for 80-virtual, the form for GPUs before Hopper, on an H200 (--program "
        "build-cuda-portable/mneme)",
        [f"{DECODE} --depth 2048,32768 -n 60 --kv-method full",
         f"{DECODE} --depth 131072 -n 40 --kv-store host {SELECT} --correction 0,0.2 "
         "--kv-method window,freekv,quest:unit=page:32,fier"]),
    "python-overhead": (
        "What the Python package costs beside the program: CPU seconds a token of one thread, and the share of wall time "
        "outside of the engine's steps; the shipped model on a CPU",
        ["python3 tools/measure_python build/mneme models/needle-27m-q8_0.gguf"]),
    "m20-ngram-drafts": (
        "Tokens a second with and without n-gram drafts (7 drafts, 4 tokens to match) by task, runs in turn: copying a "
        "text, editing code, a sampled story; SmolLM2-135M-Instruct on a CPU",
        ["python3 tools/measure_speculation build/mneme models/smollm2-135m-instruct-q4_1.gguf"]),
    "m11-selector-needle": (
        "Right answers by index and gate, shipped model: numbers, places and a register in 4,096 tokens at a budget of "
        "512, a register in 12,288 at 1,024 and 2,048; the question through decode, 32 sinks, 128 recent tokens",
        [f"{SELECTOR} --tasks number,where,register --lengths 4096 --contexts 20 --budgets 512 --methods "
         "full,oracle:unit=page:32,oracle:unit=page:32/domain=attention,quest:unit=page:32,freekv,fier,mneme,"
         "mneme:index=sketch:16,mneme:index=sketch:12/unit=token",
         f"{SELECTOR} --tasks register --lengths 12288 --contexts 4 --budgets 1024,2048 --methods "
         "full,quest:unit=page:32,freekv,fier,mneme"]),
    "m11-methods-needle": (
        "Right answers of the shipped model by method and budget: a register, numbers, places; the question through "
        "decode, 32 sinks, 128 recent tokens",
        [f"{FACTS} --lengths 4096 --budgets 256,512,1024,2048 {EVERY}"]
        + [f"{FACTS} --lengths {n} --budgets 256,512,1024,2048,4096 {EVERY}" for n in (12288, 31744)]),
    "m11-smollm2-variants": (
        "One fact in prose of 4,096 and 7,168 tokens at 10 depths by variants of mneme, SmolLM2-135M-Instruct at a budget "
        "of 512; the question through decode, 32 sinks, 64 recent tokens",
        [f"{CHAT} --suite niah --tasks niah --lengths {n} --contexts 2 --budgets 512 --methods {VARIANTS}"
         for n in (7168, 4096)]),
    "m11-smollm2-fact": (
        "One fact in prose of 2,048, 4,096 and 7,168 tokens at 10 depths, 200 questions a cell, SmolLM2-135M-Instruct at a "
        "budget of 512; the question through decode, 32 sinks, 64 recent tokens",
        [f"{CHAT} --suite niah --tasks niah --lengths {n} --contexts 20 --budgets 512 --methods "
         "full,mneme,fier,mneme:index=centroids:8" for n in (2048, 4096, 7168)]),
    "m11-register-sketch": (
        "A register of 12,288 tokens by index, shipped model, 200 questions a cell; the question through decode, 32 sinks, "
        "128 recent tokens",
        [f"{FACTS.replace('register,number,where', 'register')} --lengths 12288 --budgets 1024,2048 --methods "
         "full,mneme:index=centroids:8,mneme"]),
    "m11-key-statistics": (
        "What indexes find among random keys of heads of 64 and 128 channels: as they are, with four channels 20 times as "
        "wide, and with biases that RoPE rotates",
        ["mneme eval figure keys --json"]),
    "m11-gates": (
        "What selections that are kept hold of the attention, by how often they are made again: gates replayed over "
        "full attention, shipped model, numbers and places in 4,096 tokens, budget 512",
        ["mneme eval figure gates -m models/needle-27m-q8_0.gguf --tasks number,where --lengths 4096 --contexts 2 "
         "--kv-budget 512 --kv-sink 32 --kv-recent 128 --json --no-progress"]),
    "m12-latency": (
        "A decode step by phase, llama-3.1-8b shape in bf16 with random weights: 131,072 tokens in host memory, 20 % of a "
        "selection replaced, 20 % of KV heads (louiskv: of steps) corrected",
        [f"{DECODE} --depth 131072 -n 30 --kv-store host {SELECT} --correction 0.2 --phases "
         "--kv-method window,freekv,mneme,mneme:index=centroids:8,quest:unit=page:32,louiskv,fier"]),
    "m12-smollm2-suites": (
        "Every suite that fits the 8,192 tokens of SmolLM2-135M-Instruct and has its questions at hand: full attention and "
        "six methods at a budget of 1,024 (GSM8K: 256), 32 sinks and 64 recent tokens; GSM8K's test.jsonl and a novel are "
        "the user's files",
        [f"{CHAT} --suite ruler --lengths 8192 --contexts 20 {SIX_OF_PAPERS}",
         f"{CHAT} --suite passkey --lengths 8192 --contexts 3 {SIX_OF_PAPERS}",
         f"{CHAT} --suite facts --grader contained --lengths 8192 --contexts 4 {SIX_OF_PAPERS}",
         f"{CHAT} --suite long --tasks recite,rewrite --lengths 6144 --max-tokens 1024 --contexts 2 --forced "
         f"--along 256 {SIX_OF_PAPERS}",
         f"{CHAT} --suite pg19 --data data/almayers-folly-1895.txt --max-tokens 4096 {SIX_OF_PAPERS}",
         f"{CHAT} --suite math --data data/gsm8k_test.jsonl --contexts 200 --contexts-at-once 25 "
         f"--max-tokens 320 --question decode {SIX_OF_PAPERS.replace('1024', '256')}"]),
    "m12-smollm2-fact": (
        "One fact in prose of 2,048, 4,096 and 7,168 tokens at 10 depths, alone and beside six like it, 200 questions a "
        "cell, SmolLM2-135M-Instruct at a budget of 512; the question through decode, 32 sinks, 64 recent tokens",
        [f"{CHAT} --suite niah --tasks niah,look_alikes --lengths {n} --contexts 20 --contexts-at-once 16 --budgets 512 "
         "--methods full,mneme,fier,freekv,quest:unit=page:32" for n in (2048, 4096, 7168)]),
    "m12-mneme-needle": (
        "Right answers of the shipped model with mneme as it is by default since it has sketch:16: what m11-methods-needle "
        "measured with centroids:8",
        [f"{FACTS} --contexts-at-once 3 --lengths {n} --budgets 256,512,1024,2048{more} --methods full,mneme"
         for n, more in ((4096, ""), (12288, ",4096"), (31744, ",4096"))]),
    "m12-mneme-turns": (
        "Conversations of m12-long-turns with mneme as it is by default since it has sketch:16",
        [f"{NEEDLE} {DEVICE} --suite long --tasks lookups,chain --lengths 12288 --max-tokens 4096 --forced --along 1024 "
         "--contexts 2 --budgets 512,1024,2048 --methods full,mneme"]),
    "m12-long-turns": (
        "Conversations of 4,096 tokens over 12,288: values of a register, and names of a shuffled chain, a question a turn; "
        "the reference is fed and a turn counts where every token of its answer was foreseen; shipped model on a CPU",
        [f"{TURNS} --budgets {b}" for b in (512, 1024, 2048)]),
    "m12-papers-needle": (
        "One table a seed paper, in its layout, with the shipped model on facts in 4,096 tokens; the papers' methods at "
        "a budget of 512",
        [f"{PAPER} --paper {paper} --budgets 512" for paper in ("freekv", "louiskv", "fier", "actqkv")]
        + [f"{PAPER} --paper refreekv --budgets 512 --question prefill"]),
    "m12-long-gpu": (
        "Answers of 4,096 tokens over 12,288 and 27,648: a register in full and the states of a program; the reference is "
        "fed and a line counts where every token of it was foreseen; shipped model",
        [f"{LONG_GPU} --lengths 12288 --contexts 2 --budgets {b} "
         "--methods full,window,freekv:tau=0.8,freekv:tau=0.9,louiskv,fier,mneme" for b in (512, 1024, 2048)]
        + [f"{LONG_GPU} --lengths 27648 --contexts 1 --budgets {b} --methods full,window,freekv:tau=0.9,louiskv,fier,mneme"
           for b in (512, 2048)]),
    "m12-papers-smollm2": (
        "One table a seed paper, in its layout, with SmolLM2-135M-Instruct: a needle in 2,048 tokens at 10 depths, alone "
        "and beside six like it; the papers' methods at a budget of 512",
        [f"{SMALL_PAPER} --paper {paper} --budgets 512" for paper in ("freekv", "louiskv", "fier", "actqkv")]
        + [f"{SMALL_PAPER} --paper refreekv --budgets 512 --question prefill"]),
}


class Missing(Exception):
    """A record, or a point of one, that is not there. The message names it."""


def load(name):
    """The record NAME. Errors: Missing where bench/results has no such file."""
    path = RESULTS / f"{name}.json"
    if not path.exists():
        raise Missing(f"bench/results/{name}.json")
    return unpacked(json.loads(path.read_text()))


def measured_again(name, newer):
    """The cells of a record, those of methods other than full that a newer record has too taken from it, in the old order.

    A newer record's differences to full are those of its own run. Cells are told apart by column, length and method.
    """
    def key(cell):
        return cell["column"], cell["length"], cell["method"]
    again = {key(c): c for case in load(newer)["cases"] for c in case["cells"] if c["method"] != "full"}
    return [again.get(key(c), c) for case in load(name)["cases"] for c in case["cells"]]


def milliseconds(result):
    """The median step of a result of `mneme bench decode`, or None where the record does not hold one."""
    step = result.get("step_seconds")
    return 1e3 * step["median"] if isinstance(step, dict) and "median" in step else None


def steps(record, method, store, batch=None, correction=None):
    """Decode steps of llama-3.1-8b in bf16: {(depth, batch): ms}; the last case that measured a point wins.

    `store` is where the KV cache lies: device or host. `correction` is the injected share of corrected KV heads.
    """
    points = {}
    for case in record["cases"]:
        line = command_of(case)
        if not re.search(r"bench decode .*--shape llama-3\.1-8b|--shape llama-3\.1-8b .*bench decode", line):
            continue
        if case.get("kv_store") != store or case.get("weights") != "bf16":
            continue
        for r in case["results"]:
            if r.get("method") != method or milliseconds(r) is None:
                continue
            if batch is not None and r["batch"] != batch:
                continue
            if correction is not None and (r.get("correction") is None or abs(r["correction"] - correction) > 1e-3):
                continue
            points[(r["depth"], r["batch"])] = milliseconds(r)
    return points


def by_depth(record, method, store, correction=None):
    """[(depth, ms)] of one sequence, by depth. Errors: Missing where there is no point."""
    points = steps(record, method, store, batch=1, correction=correction)
    if not points:
        raise Missing(f"{method} with its KV cache on the {store}")
    return sorted((depth, ms) for (depth, _), ms in points.items())


def one_run(record, store, depth, *methods):
    """{(method, turnover, correction): ms} of one sequence at a depth, of the last run that has all these methods.

    Turnover and correction are the injected shares, None where nothing is injected. A ratio of two figures is taken
    within one run. Errors: Missing where no run has all of them.
    """
    for case in reversed(record["cases"]):
        if case.get("kv_store") != store or case.get("weights") != "bf16" or "llama-3.1-8b" not in command_of(case):
            continue
        found = {}
        for r in case["results"]:
            if r.get("depth") == depth and r.get("batch") == 1 and milliseconds(r) is not None:
                shares = [None if r.get(k) is None else round(r[k], 3) for k in ("turnover", "correction")]
                found[(r["method"], *shares)] = milliseconds(r)
        if set(methods) <= {m for m, *_ in found}:
            return found
    raise Missing(f"{' and '.join(methods)} in one run at {depth}")


def at(points, x):
    """y of the point at x. Errors: Missing."""
    for px, y in points:
        if px == x:
            return y
    raise Missing(f"a point at {x}")

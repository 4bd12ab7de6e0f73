"""The form of a record in bench/results: without what nothing reads, a line a case, lists of like objects as tables."""
import json
import shlex

# What nothing reads of what the programs print, by where it is.
DROPPED = {
    "case": ("version", "parameters", "weight_bytes", "peak_memory_bytes", "deterministic", "threads", "steps", "warmup",
             "max_num_batched_tokens", "groups", "along"),
    "row": ("test", "budget", "tokens_per_second", "tokens_per_second_deviation", "bytes", "operations", "bandwidth",
            "l3_bandwidth", "product_rate", "share_of_floor", "operation_seconds", "attended_tokens", "recall", "kv_bytes",
            "method_bytes", "activation_bytes"),
    "cell": ("achieved_budget_tokens", "answer_tokens", "audit", "prefill_seconds", "reselected_rate", "seconds",
             "selected_anew_rate", "tokens_per_second", "truncated"),
    "against_full": ("pairs",),
    "machine": ("cpus_online", "cores", "numa_nodes", "l3_bytes", "memory_bytes", "memory_limit", "memory_available",
                "features"),
    "device": ("compute_capability", "sm_count", "memory_bytes", "l2_bytes", "cuda_runtime"),
    "settings": ("methods",),
    "curve": ("series", "title", "x", "y"),
}
PLACES = {"cases": "case", "results": "row", "cells": "cell", "data": "curve"}
KEPT_OF_SECONDS = ("median", "mean", "p10")
# Lists of objects with the same members, written as their names and a line of values each.
TABLES = ("cells", "lines", "data")


def command_of(case):
    """A case's command as one line, quoted as a shell needs it."""
    command = case["command"]
    return command if isinstance(command, str) else shlex.join(command)


def slim(value, place=""):
    """A record, or a part of it, without what nothing reads; numbers have seven digits, a command is one line."""
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, list):
        return [v for v in (slim(e, place) for e in value) if v != {}]
    if not isinstance(value, dict):
        return value
    out = {}
    for key, v in value.items():
        if key in DROPPED.get(place, ()) or (key == "machine" and isinstance(value.get("device"), dict)):
            continue
        if key == "command":
            v = command_of(value)
        elif key.endswith("_seconds") and isinstance(v, dict) and "median" in v:
            v = {k: v[k] for k in KEPT_OF_SECONDS if k in v}
        out[key] = slim(v, PLACES.get(key, key if key in DROPPED else ""))
    return out


def flat(row, prefix=""):
    """An object without objects in it: {"a": {"b": 1}} as {"a.b": 1}."""
    out = {}
    for key, v in row.items():
        out.update(flat(v, f"{prefix}{key}.") if isinstance(v, dict) else {prefix + key: v})
    return out


def packed(value):
    """A record whose lists of TABLES are {"columns": [name], "rows": [[value]]}; what a row does not have is null."""
    if isinstance(value, list):
        return [packed(v) for v in value]
    if not isinstance(value, dict):
        return value
    out = {}
    for key, v in value.items():
        if key in TABLES and isinstance(v, list) and v and all(isinstance(e, dict) for e in v):
            rows = [flat(e) for e in v]
            names = list(dict.fromkeys(n for row in rows for n in row))
            out[key] = {"columns": names, "rows": [[row.get(n) for n in names] for row in rows]}
        else:
            out[key] = packed(v)
    return out


def unpacked(value, key=""):
    """The opposite of packed(), without the members that are null."""
    if isinstance(value, list):
        return [unpacked(v) for v in value]
    if not isinstance(value, dict):
        return value
    if key not in TABLES or set(value) != {"columns", "rows"}:
        return {k: unpacked(v, k) for k, v in value.items()}
    return [nested({n: v for n, v in zip(value["columns"], row) if v is not None}) for row in value["rows"]]


def nested(row):
    """The opposite of flat()."""
    out = {}
    for name, v in row.items():
        *outer, last = name.split(".")
        inner = out
        for part in outer:
            inner = inner.setdefault(part, {})
        inner[last] = v
    return out


def text_of(value, indent=0):
    """JSON with a line for each entry of a list of objects or lists, and for each member that holds such a list."""
    def listed(v):
        return isinstance(v, list) and any(isinstance(e, (dict, list)) for e in v)

    def tall(v):
        return listed(v) or (isinstance(v, dict) and any(tall(e) for e in v.values()))

    pad = " " * (indent + 1)
    if listed(value):
        return "[\n" + ",\n".join(pad + text_of(e, indent + 1) for e in value) + "]"
    if isinstance(value, dict) and (indent == 0 or tall(value)):
        short = [k for k, v in value.items() if indent > 0 and not tall(v)]
        lines = [", ".join(f"{json.dumps(k)}: {json.dumps(value[k], ensure_ascii=False)}" for k in short)] if short else []
        lines += [f"{json.dumps(k)}: {text_of(v, indent + 1)}" for k, v in value.items() if k not in short]
        return "{" + f",\n{pad}".join(lines) + "}"
    return json.dumps(value, ensure_ascii=False)


def record_text(record):
    """A record as bench/results has it."""
    return text_of(packed(slim(record, "case" if "test" in record else ""))) + "\n"
